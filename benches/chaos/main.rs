//! `scripts/chaos`: random faults against three real Consul servers and dozens of `slotkeeper run`, on semaphores and on a
//! lock.
//!
//! Each command writes down when it lives and under which token; that alone is judged, and no clock or word of ours. What
//! must hold of it:
//!
//! 1. At no instant do commands live on more slots than there are. A life that an operator has taken the slot away from
//!    behind its back, in Consul itself, may overlap its successor's until its agent has learned of it and has ended it: how
//!    long is bounded, and it is counted apart.
//! 2. On each slot one life begins after the other has ended, and under a higher token.
//! 3. Everybody is served, unless it was hurt; and no one loses its slot or fails without a cause.
//! 4. No slot is idle for long while a client waits for it that lives: see `idle`. This alone is judged by what is in Consul.
//! 5. In the end nothing is left: no process, no session, no contender, and all slots can be had.
//!
//! The seed decides the plan: which faults, when, to the how-manieth, and which jobs. Processes cannot be made to repeat
//! themselves, so a seed plays a similar game again, not the same.
//!
//! The servers do not remove those that fail (see `support::cluster`). Of an agent and its guard one is hurt at a time:
//! where both are, or the command stands still with them, nobody is left to end it, and the fencing token is for that.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a play that cannot go on says so"
)]
#![allow(clippy::print_stdout, reason = "its result is what it prints")]
#![allow(clippy::disallowed_methods, reason = "it measures, and holds no lease of its own")]

#[path = "../../tests/support/mod.rs"]
mod support;

mod arguments;
mod black_hole;
mod crossed;
mod faults;
mod idle;
mod impatient;
mod job;
mod plan;
mod restarts;
mod stage;
mod verdict;

use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use arguments::Arguments;
use clap::Parser;
use fastrand::Rng;
use idle::Watch;
use plan::Target;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use serde_json::Value;
use slotkeeper_test_seed::VARIABLE;
use stage::{SEMAPHORES, Stage};
use support::cluster::Cluster;
use support::processes;
use tokio::process::Command;
use tokio::task::LocalSet;
use tokio::time::timeout;
use verdict::Verdict;

/// After the last fault everybody comes to an end within this time: those in line all have their turn, and slots of those
/// that were killed are free after two TTLs.
const ENDING: Duration = Duration::from_secs(400);
/// Two TTLs, and what an election adds.
const EXPIRY: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    raise_descriptor_limit();
    let violations = LocalSet::new()
        .run_until(async {
            if let Some(restarts) = arguments.restarts {
                return restarts::play(restarts).await;
            }
            match (arguments.black_hole, arguments.crossed, arguments.impatient) {
                (Some(trials), ..) => black_hole::play(trials).await,
                (_, Some(rounds), _) => crossed::play(rounds, arguments.seed).await,
                (.., Some(rounds)) => impatient::play(rounds).await,
                (None, None, None) => play(&arguments).await,
            }
        })
        .await;
    if violations { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Plays, and says whether anything was violated.
async fn play(arguments: &Arguments) -> bool {
    let seed = arguments.seed.unwrap_or_else(|| fastrand::u32(..).into());
    let length = Duration::from_secs_f64(arguments.minutes * 60.0);
    let again = format!("{VARIABLE}={seed} scripts/chaos {}", arguments.minutes);
    println!("base seed {seed}; to repeat the plan: {again}");
    let mut rng = Rng::with_seed(seed);
    let (of_clients, of_servers) = (plan::of_clients(&mut rng, length), plan::of_servers(&mut rng, length));

    let mut cluster = Cluster::start().await;
    let servers = (0..3).map(|server| cluster.addr(server)).collect();
    let folder = tempfile::Builder::new().prefix("slotkeeper-chaos-").tempdir().unwrap();
    let stage = Rc::new(Stage::set(servers, folder.path()).await);
    let seats = (0..stage.seats.len()).map(|seat| {
        tokio::task::spawn_local(Rc::clone(&stage).occupy(seat, Rng::with_seed(seed ^ (seat as u64 + 1))))
    });
    let seats: Vec<_> = seats.collect();
    let watch = Rc::new(Watch::default());
    let watching = tokio::task::spawn_local(Rc::clone(&watch).run(Rc::clone(&stage)));
    let clients = tokio::task::spawn_local(faults::hurt_clients(Rc::clone(&stage), of_clients));
    faults::hurt_servers(&stage, &mut cluster, of_servers, length).await;
    clients.await.unwrap();
    stage.close();
    println!(
        "the faults are over: {} jobs so far, {} of them to be let to an end",
        stage.jobs.borrow().len(),
        stage.candidates(Target::Anybody).len()
    );

    let all_ended = async {
        for seat in seats {
            seat.await.unwrap();
        }
    };
    // Whoever has not ended by then is a violation of its own.
    let _ = timeout(ENDING, all_ended).await;
    watching.abort();
    let mut violations = leftovers(&stage).await;
    let mut verdict = verdict::judge(&stage);
    verdict.violations.append(&mut violations);
    watch.judge(&mut verdict);
    // The verdict comes last: of a long output its end is what gets kept.
    if !verdict.violations.is_empty() {
        std::fs::write(folder.path().join("events"), stage.events()).unwrap();
        println!("servers:\n{}", cluster.logs());
        println!("its logs, lives and events are kept in {}", folder.keep().display());
        println!("to repeat the plan: {again}");
    }
    print(&stage, &verdict);
    !verdict.violations.is_empty()
}

/// What is left that should not be.
async fn leftovers(stage: &Stage) -> Vec<String> {
    let mut found = Vec::new();
    let ours = stage.folder.display().to_string();
    // Of a killed agent the guard ends the command; an instant after the last life nothing is left.
    let gone = async {
        while !processes::mentioning(&ours).is_empty() {
            tokio::time::sleep(POLL).await;
        }
    };
    if timeout(EXPIRY, gone).await.is_err() {
        let left = processes::mentioning(&ours);
        found.push(format!(
            "processes are left: {:?}",
            left.iter().map(|pid| processes::command_line(*pid)).collect::<Vec<_>>()
        ));
        for pid in left {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    let expired = async {
        while sessions(stage).await.is_none_or(|left| !left.is_empty()) {
            tokio::time::sleep(POLL).await;
        }
    };
    if timeout(EXPIRY, expired).await.is_err() {
        found.push(format!("sessions are left: {:?}", sessions(stage).await));
    }
    for semaphore in &SEMAPHORES {
        let prefix = semaphore.prefix;
        // The dead that `.lock` still lists are in nobody's way.
        let mut last = Command::new(env!("CARGO_BIN_EXE_slotkeeper"));
        let all = semaphore.limit.to_string();
        last.args(["run", prefix, "--timeout", "60s"]);
        if !semaphore.is_lock {
            last.args(["-n", &all, "--slots", &all, "--format", "list"]);
        }
        last.args(["--http-addr", &stage.servers[0].to_string(), "--", "true"]);
        let status = last.status().await.unwrap();
        if !status.success() {
            found.push(format!("not all slots of {prefix} can be had in the end: {status}"));
        }
        let keys = faults::ask(stage, "GET", &format!("/v1/kv/{prefix}/?recurse&consistent"), "").await;
        let keys = keys.map_or(Value::Null, |answer| answer.json());
        let names: Vec<_> = keys.as_array().into_iter().flatten().map(|key| key["Key"].clone()).collect();
        if semaphore.is_lock {
            if !names.is_empty() {
                found.push(format!("left under {prefix}: {names:?}"));
            }
            continue;
        }
        let record = faults::ask(stage, "GET", &format!("/v1/kv/{prefix}/.lock?raw&consistent"), "").await;
        let record = record.map_or(Value::Null, |answer| answer.json());
        if names != [Value::from(format!("{prefix}/.lock"))]
            || record["Holders"].as_array().is_none_or(|holders| !holders.is_empty())
        {
            found.push(format!("left under {prefix}: {names:?}, {record}"));
        }
    }
    found
}

async fn sessions(stage: &Stage) -> Option<Vec<Value>> {
    let answer = faults::ask(stage, "GET", "/v1/session/list?consistent", "").await?;
    answer.json().as_array().cloned()
}

fn print(stage: &Stage, verdict: &Verdict) {
    println!("faults:");
    for (fault, (times, waiters)) in stage.counts.borrow().iter() {
        let of_waiters = if *waiters > 0 { format!(", {waiters} of a waiter") } else { String::new() };
        println!("{times:>6} {fault}{of_waiters}");
    }
    for line in &verdict.lines {
        println!("{line}");
    }
    for violation in &verdict.violations {
        println!("VIOLATION: {violation}");
    }
    for violation in &verdict.violations {
        println!("violated: {}", violation.lines().next().unwrap_or_default());
    }
    println!("verdict: {}", if verdict.violations.is_empty() { "nothing was violated" } else { "VIOLATED" });
}

/// Each job has a proxy with two sockets for each of its connections.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
}
