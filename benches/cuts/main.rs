//! `cargo bench --bench cuts`: what handoffs cost through relays that cut long polls off after 6 s, 30 s and 60 s, or that lose
//! what is answered later than that, beside one that does neither; all in the same run on one Consul. Arguments: `--handoffs N`
//! of each of six semaphores behind each relay, and `--program FILE`, another slotkeeper to compare with.
//!
//! Commands under `slotkeeper run` with a TTL of 120 s, so that polls wait for up to a minute, hold a semaphore of 1 for 20 to
//! 70 s each, with two in line. A handoff is from the end of one command's work to the beginning of the next one's, by what
//! `date` says in each; so the end of one process and the start of another are part of it. It prints; it asserts nothing.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a benchmark that cannot go on says so"
)]
#![allow(clippy::print_stdout, reason = "its result is what it prints")]

#[path = "../../tests/support/mod.rs"]
mod support;

use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use futures_util::future::join_all;
use support::consul::Consul;
use support::relay::{End, Relay};

/// The relays: how each ends a poll, and after how many seconds.
const RELAYS: [(&str, End, u64); 7] = [
    ("none", End::Close, NEVER),
    ("cuts", End::Close, 6),
    ("cuts", End::Close, 30),
    ("cuts", End::Close, 60),
    ("loses", End::LoseAnswer, 6),
    ("loses", End::LoseAnswer, 30),
    ("loses", End::LoseAnswer, 60),
];
/// Behind each relay.
const SEMAPHORES: usize = 6;
/// Beside the holder.
const IN_LINE: usize = 2;
const POLL: Duration = Duration::from_millis(100);
/// Longer than the benchmark.
const NEVER: u64 = 3600;

/// One command, which notes when its work begins and ends.
struct Turn {
    child: Child,
    notes: PathBuf,
}

impl Turn {
    fn start(program: &str, relay: &Relay, prefix: &str, notes: PathBuf) -> Self {
        std::fs::create_dir(&notes).unwrap();
        let (place, seconds) = (notes.display(), 20.0 + fastrand::f64() * 50.0);
        let works = format!("date +%s%N > {place}/from; sleep {seconds:.3}; date +%s%N > {place}/to");
        let mut command = Command::new(program);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.args(["run", prefix, "-n", "1", "--ttl", "120s", "--verbose"]);
        command.args(["--http-addr", &relay.address(), "--", "/bin/sh", "-c", &works]);
        let log = File::create(notes.join("log")).unwrap();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        Self { child, notes }
    }

    async fn ended(&mut self) {
        while self.child.try_wait().unwrap().is_none() {
            tokio::time::sleep(POLL).await;
        }
    }

    fn noted(&self, what: &str) -> i64 {
        let noted = std::fs::read_to_string(self.notes.join(what)).unwrap();
        noted.trim().parse().unwrap()
    }

    fn warnings(&self) -> usize {
        let log = std::fs::read_to_string(self.notes.join("log")).unwrap();
        log.lines().filter(|line| line.contains(" WARN ") || line.contains(" ERROR ")).count()
    }
}

/// What one semaphore showed.
#[derive(Default)]
struct Shown {
    /// In milliseconds.
    handoffs: Vec<f64>,
    warnings: usize,
}

async fn play(program: &str, relay: &Relay, folder: &Path, name: &str, handoffs: usize) -> Shown {
    let mut number = 0;
    let mut start = || {
        number += 1;
        let notes = folder.join(format!("{name}-{number}"));
        Turn::start(program, relay, &format!("bench/cuts/{name}"), notes)
    };
    let mut line = VecDeque::from([start()]);
    let mut shown = Shown::default();
    let mut before: Option<i64> = None;
    for turn in 0..=handoffs {
        // The first one holds before the others come, and those keep their order.
        while line.len() <= IN_LINE && turn + line.len() <= handoffs {
            tokio::time::sleep(Duration::from_secs(2)).await;
            line.push_back(start());
        }
        let Some(mut holder) = line.pop_front() else { break };
        holder.ended().await;
        if let Some(before) = before {
            #[allow(clippy::cast_precision_loss, reason = "times of minutes")]
            shown.handoffs.push((holder.noted("from") - before) as f64 / 1e6);
        }
        before = Some(holder.noted("to"));
        shown.warnings += holder.warnings();
    }
    shown
}

fn argument(name: &str) -> Option<String> {
    let all: Vec<String> = std::env::args().collect();
    let at = all.iter().position(|argument| argument == name)?;
    all.get(at + 1).cloned()
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let handoffs = argument("--handoffs").map_or(5, |number| number.parse().unwrap());
    let program = argument("--program").unwrap_or_else(|| env!("CARGO_BIN_EXE_slotkeeper").into());
    let consul = Consul::start().await;
    let folder = tempfile::tempdir().unwrap();
    let relays =
        RELAYS.map(|(_, end, seconds)| Relay::start(consul.addr(), Duration::from_secs(seconds), end));
    let plays = RELAYS.iter().zip(&relays).map(|((name, _, seconds), relay)| {
        let (program, folder) = (&program, folder.path());
        join_all((0..SEMAPHORES).map(move |n| async move {
            play(program, relay, folder, &format!("{name}-{seconds}-{n}"), handoffs).await
        }))
    });
    let all = join_all(plays).await;
    println!(
        "{:>6} {:>9} {:>11} {:>9} {:>11} {:>8} {:>9} {:>9}",
        "relay", "after, s", "polls ended", "handoffs", "median, ms", "p90, ms", "most, ms", "warnings"
    );
    for (((name, _, seconds), relay), shown) in RELAYS.iter().zip(&relays).zip(all) {
        let warnings: usize = shown.iter().map(|one| one.warnings).sum();
        let mut times: Vec<_> = shown.into_iter().flat_map(|one| one.handoffs).collect();
        times.sort_by(f64::total_cmp);
        let percentile = |percent: usize| {
            times.get((times.len() * percent).div_ceil(100).saturating_sub(1)).copied().unwrap_or(f64::NAN)
        };
        println!(
            "{name:>6} {:>9} {:>11} {:>9} {:>11.0} {:>8.0} {:>9.0} {warnings:>9}",
            if *seconds == NEVER { "-".into() } else { seconds.to_string() },
            relay.ended(),
            times.len(),
            percentile(50),
            percentile(90),
            percentile(100),
        );
    }
}
