//! `cargo bench --bench queue`: whole lives of many clients in line for one semaphore, beside `consul lock -n` and beside
//! the least that a handoff can cost, in one run on one Consul.
//!
//! A life is: enter, wait, hold for a fixed time, leave. All clients of a play begin at once. slotkeeper's clients are
//! the agent itself, many in this process on one thread; the peer's are processes. The peer's makespan thus includes the
//! start of its processes, and in return they have all cores, where the agents share one. How busy this process was, of
//! which the proxy is a part, is printed too: where it had no core left, a figure is the harness' own.
//!
//! It prints figures and asserts none of them, but it fails where more slots were held at once than there are.

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

mod arguments;
mod floor;
mod latencies;
mod ours;
mod play;
mod plot;
mod table;
mod theirs;

use arguments::Arguments;
use clap::Parser;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::consul::Consul;
use support::proxy::Proxy;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments = Arguments::parse();
    raise_descriptor_limit();
    let consul = Consul::start().await;
    let proxy = Proxy::start_apart(consul.addr());
    let floor = floor::measure(proxy.addr(), play::pace(arguments.hold)).await;
    let mut plays = Vec::new();
    for &clients in &arguments.n {
        plays.push(ours::play(&proxy, clients, arguments.hold).await);
        if !arguments.no_peer && clients <= theirs::MOST {
            plays.push(theirs::play(&proxy, clients, arguments.hold).await);
        }
    }
    table::print(&plays, &floor, arguments.hold);
    if arguments.breakdown {
        table::print_breakdown(&plays);
    }
    if let Some(file) = &arguments.svg {
        std::fs::write(file, plot::draw(&plays)).unwrap();
    }
    for play in plays {
        let peak = play.peak();
        assert!(peak <= play::LIMIT, "{peak} slots were held at once, of {} in all", play::LIMIT);
    }
}

/// Each agent takes a timer and up to four connections, and each connection two more in the proxy.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
}
