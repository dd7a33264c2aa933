//! How soon a dead holder is succeeded, alone or with the waiters behind it.
//!
//! It dies as on a node that fails: its guard dies with it, and its session stays until Consul ends it. Another client holds the
//! second slot of the semaphore: `consul lock -n 1` would take a lock, which Consul keeps closed for 15 s after such a death.

use std::time::Duration;

use futures_util::future::{join_all, select_all};
use slotkeeper::internals::clock;
use slotkeeper_semaphore::Moment;
use tokio::process::Child;
use tokio::time::timeout;

use crate::arguments::Arguments;
use crate::latencies::Latencies;
use crate::line::{Line, endless, kill_together, works};
use crate::play::Program;
use crate::table::{NONE, Table, figure};
use crate::work::Work;

const TRIALS: usize = 3;
/// One holds on, and one dies.
const LIMIT: u32 = 2;
const TTL: &str = "10s";
/// From the arrival of the last client to the death.
const SETTLING: Duration = Duration::from_secs(3);
/// From the death to the start of another client.
const PATIENCE: Duration = Duration::from_secs(150);
const POLL: Duration = Duration::from_millis(10);
/// On a busy machine, the end of a session is noticed so late at most.
const LATE: Duration = Duration::from_secs(1);

struct Death {
    name: &'static str,
    /// Waiters that die with the holder.
    dying: usize,
    /// Waiters behind them; where there is none, clients with waits of 5 s follow each other.
    living: usize,
}

const DEATHS: [Death; 3] = [
    Death { name: "holder, before 20 waiters", dying: 0, living: 20 },
    Death { name: "holder and 20 waiters, before one", dying: 20, living: 1 },
    Death { name: "holder and the waiter, waits of 5 s follow", dying: 1, living: 0 },
];

/// What followed a death.
struct Succession {
    /// Until Consul ended the holder's session.
    ended: Duration,
    /// From then on until a client's command began.
    started: Duration,
}

/// Measures and prints, and says what was wrong.
pub(crate) async fn measure(arguments: &Arguments) -> Vec<String> {
    println!("\nDeaths of a holder, {TRIALS} times each; the TTL of ours is {TTL}, theirs is 15s");
    let heads = [
        "what dies",
        "program       ",
        "session ends/after s",
        "next start/after that, s",
        "worst/s",
        "from death/to start, s",
        "worst/s",
    ];
    let plays = || DEATHS.iter().flat_map(|death| arguments.programs().map(move |program| (death, program)));
    let mut trials = Vec::new();
    for _ in 0..TRIALS {
        // Each has a Consul of its own, for which it mostly waits.
        trials.push(join_all(plays().map(|(death, program)| death.play(program))).await);
    }
    let table = Table::begin(42, &heads);
    let mut faults = Vec::new();
    for (place, (death, program)) in plays().enumerate() {
        let mut successions = Vec::new();
        for trial in &trials {
            match &trial[place] {
                Ok(succession) => successions.push(succession),
                Err(why) => faults.push(format!("death of {}, {}: {why}", death.name, program.as_str())),
            }
        }
        let of = |time: fn(&Succession) -> Duration| -> Latencies {
            successions.iter().map(|one| time(one)).collect()
        };
        let (ended, started, all) =
            (of(|one| one.ended), of(|one| one.started), of(|one| one.ended + one.started));
        let times = [(&ended, 50), (&started, 50), (&started, 100), (&all, 50), (&all, 100)];
        let times = times.map(|(times, percent)| {
            times.percentile(percent).map_or(NONE.to_owned(), |time| figure(time.as_secs_f64()))
        });
        table.row([death.name.to_owned(), program.as_str().to_owned()].into_iter().chain(times));
    }
    faults
}

impl Death {
    async fn play(&self, program: Program) -> Result<Succession, String> {
        let folder = tempfile::tempdir().unwrap();
        let ttl = format!("--ttl={TTL}");
        let flags = [ttl.as_str(), "--kill-after=1s"];
        let mut line =
            Line::new(program, LIMIT, if program == Program::Slotkeeper { &flags } else { &[] }).await;
        let dies = line.add(false, &endless(1)).await?;
        let session = line.server.sessions().await.pop().ok_or("the holder has no session")?;
        let _stays = line.add(false, &endless(1)).await?;
        let dies: Vec<_> = dies.into_iter().chain(line.add(false, &endless(self.dying)).await?).collect();
        let works = works(self.living.max(1), Duration::ZERO, folder.path());
        let living = line.add(false, &works[..self.living]).await?;
        tokio::time::sleep(SETTLING).await;

        let died = clock::now();
        kill_together(&dies);
        let ends = async {
            while line.server.sessions().await.contains(&session) {
                tokio::time::sleep(POLL).await;
            }
            clock::now()
        };
        let starts = async {
            match living.is_empty() {
                true => serve(&line, &works[0]).await,
                false => first(living, &works).await,
            }
        };
        let (ended, started) = timeout(PATIENCE, async { tokio::join!(ends, starts) })
            .await
            .map_err(|_| format!("no client had started {PATIENCE:?} later"))?;
        if ended.since(started) > LATE {
            return Err("a client started before the holder's session had ended".to_owned());
        }
        Ok(Succession { ended: ended.since(died), started: started.since(ended) })
    }
}

/// When the first of them began.
async fn first(living: Vec<Child>, works: &[Work]) -> Moment {
    let ends = living.into_iter().zip(works).map(|(child, work)| {
        Box::pin(async {
            let _ = child.wait_with_output().await;
            work.turn()
        })
    });
    let (turn, ..) = select_all(ends).await;
    turn.unwrap().from
}

/// When the first of clients began that come one after the other.
async fn serve(line: &Line, work: &Work) -> Moment {
    let wait: &[&str] = match line.program {
        Program::Slotkeeper => &["--quiet", "--timeout=5s"],
        Program::ConsulLock => &["-timeout=5s"],
    };
    loop {
        let _ = line.start(wait, false, work).wait().await;
        if let Some(turn) = work.turn() {
            return turn.from;
        }
    }
}
