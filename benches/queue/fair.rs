//! Turns beside clients of another program: one loop of `slotkeeper run` beside several of `consul lock`, each of which comes
//! again as soon as its turn is over.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use futures_util::future::try_join_all;
use slotkeeper::internals::clock;
use slotkeeper_semaphore::Moment;
use tokio::time::timeout;

use crate::arguments::Arguments;
use crate::commands::{self, Takes};
use crate::play::Program;
use crate::server::Server;
use crate::table::{Table, figure, number};
use crate::turns::{self, Turn};
use crate::work::Work;

const HOLD: Duration = Duration::from_millis(400);
/// For the last turns, once no loop begins another one.
const PATIENCE: Duration = Duration::from_secs(60);

/// Limits, and loops of `consul lock`.
const SCENES: [(u32, usize); 2] = [(2, 5), (1, 3)];

/// Measures and prints, and says what was wrong.
pub(crate) async fn measure(arguments: &Arguments) -> Vec<String> {
    let time = humantime::format_duration(arguments.fair_for);
    println!(
        "\nTurns in {time} of one loop of `slotkeeper run` beside loops of `consul lock`, held for {HOLD:?} each"
    );
    let heads = [
        "shared",
        "loops of/theirs",
        "turns/of ours",
        "of theirs,/each        ",
        "ours over/their mean",
        "slots busy/%",
    ];
    let table = Table::begin(32, &heads);
    let mut faults = Vec::new();
    for (limit, loops) in SCENES {
        match play(limit, loops, arguments.fair_for).await {
            Ok(turns) => {
                table.row(row(limit, &turns));
                let peak = turns::peak(&turns.concat());
                if peak > limit as usize {
                    faults.push(format!("beside consul lock: {peak} of {limit} slots were held at once"));
                }
            }
            Err(why) => faults.push(format!("beside consul lock, limit {limit}: {why}")),
        }
    }
    faults
}

/// The turns of each loop; ours are the first. Each begins its last one in time, or waits for it by then.
async fn play(limit: u32, loops: usize, time: Duration) -> Result<Vec<Vec<Turn>>, String> {
    let server = Server::start().await;
    let folder = tempfile::tempdir().unwrap();
    let until = clock::now() + time;
    // `consul lock -n 1` takes a lock, and so does `slotkeeper run` without a limit.
    let takes = if limit == 1 { Takes::Lock } else { Takes::Slot { of: limit } };
    let programs = [Program::Slotkeeper].into_iter().chain(std::iter::repeat_n(Program::ConsulLock, loops));
    let all = programs.enumerate().map(|(number, program)| {
        again_and_again(program, server.proxy().addr(), takes, folder.path(), number, until)
    });
    match timeout(time + PATIENCE, try_join_all(all)).await {
        Ok(turns) => turns,
        Err(_) => Err("a loop did not end".to_owned()),
    }
}

async fn again_and_again(
    program: Program,
    consul: SocketAddr,
    takes: Takes,
    folder: &Path,
    number: usize,
    until: Moment,
) -> Result<Vec<Turn>, String> {
    let mut turns = Vec::new();
    while clock::now() < until {
        let work = Work::new(HOLD, folder, &format!("{number}-{}", turns.len()));
        let child = commands::start(program, consul, "bench/fair", takes, &work);
        let turn = commands::end(child, &work).await.map_err(|why| format!("{}: {why}", program.as_str()))?;
        turns.push(turn);
    }
    Ok(turns)
}

fn row(limit: u32, turns: &[Vec<Turn>]) -> [String; 6] {
    let mut counts = turns.iter().map(|turns| number(turns.len() as u64));
    let ours = counts.next().unwrap_or_default();
    let theirs: Vec<_> = counts.collect();
    let mean = theirs.iter().sum::<f64>() / number(theirs.len() as u64);
    let all = || turns.iter().flatten();
    let held: Duration = all().map(|turn| turn.to.since(turn.from)).sum();
    let (first, last) = (all().map(|turn| turn.from).min(), all().map(|turn| turn.to).max());
    let time = first.zip(last).map_or(Duration::ZERO, |(first, last)| last.since(first));
    [
        if limit == 1 { "lock".to_owned() } else { format!("semaphore of {limit}, as a map") },
        theirs.len().to_string(),
        ours.to_string(),
        theirs.iter().map(f64::to_string).collect::<Vec<_>>().join(" "),
        figure(ours / mean),
        figure(held.as_secs_f64() / time.as_secs_f64() / f64::from(limit) * 100.0),
    ]
}
