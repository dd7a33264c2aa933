//! The real binary with real signals, on a real Consul.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]
#![allow(clippy::print_stderr, reason = "a failing test shows its agents' logs")]

#[path = "../support/mod.rs"]
mod support;

mod acl;
mod addresses;
mod beside;
mod bounds;
mod cluster;
mod connections;
mod consul;
mod control;
mod crowd;
mod cuts;
mod disk;
mod docs;
mod drain;
mod endpoints;
mod events;
mod evict;
mod examples;
mod files;
mod foreign;
mod guide;
mod hold;
mod hooks;
mod hostile;
mod http;
mod impostor;
mod inspect;
mod interrupt;
mod leases;
mod listing;
mod lock;
mod login;
mod loss;
mod manual;
mod names;
mod openapi;
mod operator;
mod outage;
mod page;
mod polls;
mod process;
mod prune;
mod queue;
mod readme;
mod reload;
mod removed;
mod restart;
mod run;
mod session_settings;
mod sessions;
mod set_limit;
mod shell;
mod steps;
mod stub;
mod terminal;
mod termination;
mod together;
mod token;
mod unanswered;
mod watches;

use std::time::Duration;

/// Long enough for a session's TTL of 20 s to pass twice, or for thirty agents to come and go, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until the condition holds.
fn wait_for(what: &str, condition: impl FnMut() -> bool) {
    support::wait::within(PATIENCE, what, condition);
}
