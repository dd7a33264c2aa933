//! `cargo bench --bench elections`: which commands survive that Consul's leader is stopped, at Consul's defaults.
//!
//! Three servers and a client agent; for each stop, of each kind, three commands that begin at random times before it, so that
//! some are just beginning. It prints how long nobody could write, and who lost what; it asserts nothing.
//!
//! `-- --stops 20` plays so many of each kind; `TEST_SEED` repeats the times.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a benchmark that cannot go on says so"
)]
#![allow(clippy::print_stdout, reason = "its result is what it prints")]
#![allow(clippy::disallowed_methods, reason = "it measures, and holds no lease of its own")]

#[path = "../../tests/support/mod.rs"]
mod support;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;
use rustix::process::{Signal, kill_process};
use slotkeeper_test_seed as seed;
use support::consul::binary;
use support::shipped::{CLIENT, Stage};

const SLOTKEEPER: &str = env!("CARGO_BIN_EXE_slotkeeper");
/// Commands of each kind at each stop.
const COMMANDS: usize = 3;
/// The longest time from a command's start to the stop: more than a holder's renewals are apart.
const EARLIER: Duration = Duration::from_secs(12);
/// A command that is to be stopped has been, so long after Consul works again.
const AFTER: Duration = Duration::from_secs(4);

/// Stops of Consul's leader
#[derive(Debug, Parser)]
struct Arguments {
    /// How many by SIGTERM, and as many by SIGKILL.
    #[arg(long, default_value_t = 20)]
    stops: usize,
    /// What `cargo bench` passes to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

/// A way to run a command on a slot.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    /// A server that does not lead is addressed, and not the client agent.
    server: bool,
    command: fn(consul: &str, prefix: &str, seconds: &str) -> Command,
}

const KINDS: [Kind; 4] = [
    Kind { name: "slotkeeper run, client agent", server: false, command: ours },
    Kind { name: "slotkeeper run, a server that does not lead", server: true, command: ours },
    Kind { name: "consul lock, client agent", server: false, command: theirs },
    Kind { name: "consul lock -monitor-retry 60, client agent", server: false, command: theirs_patient },
];

fn ours(consul: &str, prefix: &str, seconds: &str) -> Command {
    let mut command = Command::new(SLOTKEEPER);
    command.args(["run", prefix, "-n", "3", "--http-addr", consul, "--", "sleep", seconds]);
    command
}

fn theirs(consul: &str, prefix: &str, seconds: &str) -> Command {
    let mut command = Command::new(binary());
    command.args(["lock", "-n", "3", "-shell=false", "-http-addr", consul, prefix, "sleep", seconds]);
    command
}

fn theirs_patient(consul: &str, prefix: &str, seconds: &str) -> Command {
    let mut command = Command::new(binary());
    command.args(["lock", "-n", "3", "-shell=false", "-monitor-retry", "60", "-http-addr", consul, prefix]);
    command.args(["sleep", seconds]);
    command
}

/// What was lost at one stop, of each kind, and how long nobody could write.
struct Stop {
    outage: Duration,
    lost: [usize; KINDS.len()],
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments = Arguments::parse();
    let mut rng = fastrand::Rng::with_seed(seed::base());
    let mut stage = Stage::start().await;
    for (signal, said) in [(Signal::TERM, "SIGTERM"), (Signal::KILL, "kill -9")] {
        let mut stops = Vec::new();
        for number in 0..arguments.stops {
            let stop = play(&mut stage, signal, number, &mut rng).await;
            println!(
                "{said:>8} {:>3}: no leader for {:>5.1} s; lost {:?}",
                number + 1,
                stop.outage.as_secs_f64(),
                stop.lost
            );
            stops.push(stop);
        }
        print(said, &mut stops);
    }
}

fn print(said: &str, stops: &mut [Stop]) {
    stops.sort_by_key(|stop| stop.outage);
    let seconds = |stop: Option<&Stop>| stop.map_or(0.0, |stop| stop.outage.as_secs_f64());
    println!(
        "{} stops by {said}: no leader for {:.1} to {:.1} s, median {:.1} s",
        stops.len(),
        seconds(stops.first()),
        seconds(stops.last()),
        seconds(stops.get(stops.len() / 2)),
    );
    for (place, kind) in KINDS.iter().enumerate() {
        let lost: usize = stops.iter().map(|stop| stop.lost[place]).sum();
        println!("  {:<46} lost {lost:>3} of {}", kind.name, stops.len() * COMMANDS);
    }
}

async fn play(stage: &mut Stage, signal: Signal, number: usize, rng: &mut fastrand::Rng) -> Stop {
    let leader = stage.leader().await;
    let other = (0..CLIENT).find(|one| *one != leader).unwrap();
    let folder = tempfile::tempdir().unwrap();
    // By this the commands are found, whatever has become of what runs them.
    let seconds = format!("600.{}", rng.u32(1_000_000_000..));
    let mut starts: Vec<(Duration, usize)> =
        (0..KINDS.len() * COMMANDS).map(|place| (EARLIER.mul_f64(rng.f64()), place / COMMANDS)).collect();
    starts.sort();
    let (begun, mut commands) = (Instant::now(), Vec::new());
    for (at, kind) in starts {
        tokio::time::sleep(at.saturating_sub(begun.elapsed())).await;
        let address = stage.addr(if KINDS[kind].server { other } else { CLIENT });
        let prefix = format!("bench/{signal:?}/{number}/{kind}");
        let mut command = (KINDS[kind].command)(&address.to_string(), &prefix, &seconds);
        let log = std::fs::File::options().create(true).append(true).open(folder.path().join("log")).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        commands.push((kind, command.spawn().unwrap()));
    }
    // The last one has begun, or is about to.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let stopped = Instant::now();
    stage.stop(leader, signal).await;
    stage.takes_writes(CLIENT).await;
    let outage = stopped.elapsed();
    tokio::time::sleep(AFTER).await;
    let mut lost = [0; KINDS.len()];
    for (kind, command) in &mut commands {
        lost[*kind] += usize::from(command.try_wait().unwrap().is_some());
        let _ = command.kill();
        command.wait().unwrap();
    }
    for left in support::processes::mentioning(&seconds) {
        let _ = kill_process(left, Signal::KILL);
    }
    stage.restart(leader).await;
    Stop { outage, lost }
}
