//! `cargo bench --bench queue`: what clients of one semaphore cost, in a queue, at rest, and where others die; beside
//! `consul lock -n` and beside the least that a handoff can cost, on one machine in one run.
//!
//! A life is: enter, wait, hold for a time, leave. All clients of a play begin at once. They are processes of `slotkeeper
//! run` or of `consul lock`, each of which runs a command that notes when it begins and ends. So the start and the end of
//! processes are part of the figures. Very many clients are agents in this process, on one thread. The load of this process
//! (of which the proxy is a part), of Consul and of the machine is printed too: where no core was left, a figure is the
//! machine's own.
//!
//! Consul runs at its default limits. The proxy spreads what passes over as many addresses as it takes to stay below its
//! limit of connections.
//!
//! It prints figures and asserts none of them, but it fails where more slots were held at once than there are, where a play
//! hung, or where Consul left requests unanswered.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a benchmark that cannot go on says so"
)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "its result is what it prints")]
#![allow(clippy::disallowed_methods, reason = "it measures, and holds no lease of its own")]

#[path = "../../tests/support/mod.rs"]
mod support;

mod agents;
mod arguments;
mod commands;
mod connections;
mod crowds;
mod deaths;
mod desk;
mod entries;
mod fair;
mod floor;
mod in_process;
mod latencies;
mod leases;
mod line;
mod load;
mod play;
mod plot;
mod point;
mod queue;
mod rest;
mod server;
mod table;
mod tap;
mod trips;
mod turns;
mod work;

use std::process::ExitCode;
use std::time::Duration;

use arguments::{Arguments, Part, Role};
use clap::Parser;
use futures_util::StreamExt;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook_tokio::Signals;
use slotkeeper::internals::clock;

fn main() -> ExitCode {
    let began = clock::now();
    let arguments = Arguments::parse();
    if let Some(Role::Work { nanoseconds, notes }) = &arguments.role {
        work::work(began, Duration::from_nanos(*nanoseconds), notes);
        return ExitCode::SUCCESS;
    }
    raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let faults = runtime.block_on(async {
        // Whoever interrupts it finds no client left behind that is stopped and would not end by itself.
        let mut signals = Signals::new([SIGINT, SIGTERM]).unwrap();
        tokio::select! {
            faults = measure(&arguments) => faults,
            _ = signals.next() => vec!["interrupted".to_owned()],
        }
    });
    for fault in &faults {
        eprintln!("FAULT: {fault}");
    }
    if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs the parts that are wanted, and says what was wrong.
async fn measure(arguments: &Arguments) -> Vec<String> {
    let mut faults = Vec::new();
    let seed = arguments.seed();
    println!("to draw the same: --seed {seed}");
    if arguments.plays(Part::Queue) {
        let (plays, wrong) = queue::measure(arguments, seed).await;
        faults.extend(wrong);
        if let Some(file) = &arguments.svg {
            std::fs::write(file, plot::draw(&plays)).unwrap();
        }
    }
    if arguments.plays(Part::Rest) {
        faults.extend(rest::measure(arguments).await);
    }
    if arguments.plays(Part::Connections) {
        connections::measure(arguments).await;
    }
    if arguments.plays(Part::Leases) {
        faults.extend(leases::measure().await);
    }
    if arguments.plays(Part::Deaths) {
        faults.extend(crowds::measure(arguments).await);
        faults.extend(deaths::measure(arguments).await);
    }
    if arguments.plays(Part::Entries) {
        faults.extend(entries::measure(arguments).await);
    }
    if arguments.plays(Part::Trips) {
        faults.extend(trips::measure(arguments).await);
    }
    if arguments.plays(Part::Fair) && !arguments.no_peer {
        faults.extend(fair::measure(arguments).await);
    }
    faults
}

/// Each agent in this process takes a timer and up to four connections, and each connection two more in the proxy.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
}
