//! The black hole, side by side: who holds the last of two slots is cut off from Consul, and another waits for it.
//!
//! Of each program one fills a slot for the whole trial, one takes the other behind a proxy, and one waits; then the proxy
//! passes nothing on any more. Sessions have the TTL of `consul lock`, 15 s, in both. What is printed is what the commands
//! themselves have written down. Only ours is asserted.
//!
//! The proxy keeps its connections open and takes what is sent on them, like a middlebox that stands still, or a machine
//! that is paused behind one. Where the packets themselves are dropped the kernel gives an idle connection up after minutes;
//! in the time that is waited here the two are the same.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use crate::support::consul::{Consul, binary};
use crate::support::freezer::Freezer;
use crate::support::life::{self, Life, MEEK};
use crate::support::processes;

/// The limit of both.
const LIMIT: &str = "2";
const TTL: &str = "15s";
/// After the hole begins.
const PATIENCE: Duration = Duration::from_secs(90);
/// No one that is sound needs longer to begin.
const STARTING: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);
/// Who has not written for so long does not live.
const SILENCE: f64 = 1.0;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Program {
    Slotkeeper,
    ConsulLock,
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Self::Slotkeeper => "slotkeeper run",
            Self::ConsulLock => "consul lock -n 2",
        }
    }

    /// Starts one whose command writes down its life.
    fn start(self, consul: &str, life: &Path) -> Child {
        let mut command = match self {
            Self::Slotkeeper => {
                let mut run = Command::new(env!("CARGO_BIN_EXE_slotkeeper"));
                run.args(["run", "--http-addr", consul, "hole/ours", "-n", LIMIT, "--ttl", TTL]);
                // The most under that TTL; of no account to a command that ends when it is told to.
                run.args(["--kill-after", "4s", "--"]);
                run
            }
            Self::ConsulLock => {
                let mut lock = Command::new(binary());
                lock.args(["lock", "-http-addr", consul, "-n", LIMIT, "-shell=false", "hole/theirs"]);
                lock
            }
        };
        command.args(["sh", "-c", MEEK]).arg(life);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().unwrap()
    }
}

/// What became of the one that was cut off, in seconds after that.
struct Trial {
    ended: Option<f64>,
    next_began: Option<f64>,
}

impl Trial {
    /// For how long both lived, as far as was looked.
    fn overlap(&self) -> f64 {
        let until = self.ended.unwrap_or(PATIENCE.as_secs_f64());
        self.next_began.map_or(0.0, |began| (until - began).max(0.0))
    }
}

/// Plays so many, and says whether ours failed in one.
pub(crate) async fn play(trials: u32) -> bool {
    println!("a black hole between the holder of a slot and Consul; limit {LIMIT}, TTL {TTL}");
    println!(
        "{:<18}{:>6}{:>22}{:>18}{:>12}",
        "program", "trial", "its command ended", "successor began", "both lived"
    );
    let mut failed = false;
    for number in 1..=trials {
        for program in [Program::Slotkeeper, Program::ConsulLock] {
            let trial = one(program).await;
            let seconds = |time: Option<f64>, none: &str| {
                time.map_or(none.to_owned(), |time| format!("after {time:.1} s"))
            };
            let ended = seconds(trial.ended, &format!("not within {} s", PATIENCE.as_secs()));
            let began = seconds(trial.next_began, "never");
            let both = match (trial.ended, trial.next_began) {
                (None, Some(_)) => format!("> {:.1} s", trial.overlap()),
                _ => format!("{:.1} s", trial.overlap()),
            };
            println!("{:<18}{number:>6}{ended:>22}{began:>18}{both:>12}", program.name());
            if trial.ended.is_none() && trial.next_began.is_some() {
                println!("{:<18}{number:>6}  still running beside its successor", program.name());
            }
            let sound = trial.ended.is_some() && trial.next_began.is_some() && trial.overlap() == 0.0;
            failed |= program == Program::Slotkeeper && !sound;
        }
    }
    println!(
        "slotkeeper: {}",
        if failed { "FAILED" } else { "its command had ended before its successor began, in every trial" }
    );
    failed
}

async fn one(program: Program) -> Trial {
    let consul = Consul::start().await;
    let hole = Freezer::start(consul.addr()).await;
    let folder = tempfile::tempdir().unwrap();
    let life = |name: &str| Life::at(folder.path().join(name));
    let direct = consul.addr().to_string();
    let start = |name: &str, at: &str| program.start(at, &folder.path().join(name));
    let mut started = vec![start("filler", &direct)];
    begins(&life("filler")).await;
    started.push(start("first", &hole.addr().to_string()));
    begins(&life("first")).await;
    started.push(start("next", &direct));
    // Until it stands in line; and the hole is to meet renewals at another time in each trial.
    sleep(Duration::from_millis(fastrand::u64(3_000..8_000))).await;
    assert!(!life("next").has_begun(), "it was to wait");
    let (first, next) = (life("first"), life("next"));
    let began = life::now();
    hole.block(true);
    let both_known = async {
        loop {
            sleep(POLL).await;
            if next.has_begun() && life::now() - first.last() > SILENCE {
                return;
            }
        }
    };
    let _ = timeout(PATIENCE, both_known).await;
    let ended = (life::now() - first.last() > SILENCE).then(|| first.last() - began);
    let next_began = next.has_begun().then(|| next.first() - began);
    end_all(&mut started, &folder).await;
    Trial { ended, next_began }
}

async fn begins(life: &Life) {
    let begun = async {
        while !life.has_begun() {
            sleep(POLL).await;
        }
    };
    timeout(STARTING, begun).await.expect("nobody else holds a slot");
}

/// Ends the programs, and the commands that they leave behind.
async fn end_all(started: &mut [Child], folder: &TempDir) {
    for child in started {
        let _ = child.kill().await;
    }
    for pid in processes::mentioning(&folder.path().display().to_string()) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}
