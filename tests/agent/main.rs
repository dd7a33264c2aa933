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

#[path = "../support/agent/consul.rs"]
mod consul;
#[path = "../support/agent/guide.rs"]
mod guide;
#[path = "../support/agent/http.rs"]
mod http;
#[path = "../support/agent/operator.rs"]
mod operator;
#[path = "../support/agent/process.rs"]
mod process;
#[path = "../support/agent/stub.rs"]
mod stub;
#[path = "../support/agent/terminal.rs"]
mod terminal;

mod acl;
mod addresses;
mod beside;
mod bounds;
mod cluster;
mod connections;
mod control;
mod cron;
mod crossed;
mod crowd;
mod cuts;
mod disk;
mod docs;
mod doctor;
mod drain;
mod endpoints;
mod events;
mod evict;
mod examples;
mod files;
mod foreign;
mod hold;
mod hooks;
mod hostile;
mod identity;
mod impatient;
mod impostor;
mod inspect;
mod interrupt;
mod leases;
mod list;
mod listing;
mod lock;
mod login;
mod logs;
mod loss;
mod manual;
mod module_graph;
mod names;
mod openapi;
mod outage;
mod page;
mod polls;
mod prune;
mod queue;
mod readme;
mod reload;
mod removed;
mod restart;
mod restarts;
mod run;
mod schemas;
mod service_manager;
mod session_node;
mod session_settings;
mod sessions;
mod set_limit;
mod shell;
mod steps;
mod termination;
mod together;
mod token;
mod troubleshooting;
mod unanswered;
mod watches;

use std::time::Duration;

/// Long enough for a session's TTL of 20 s to pass twice, or for thirty agents to come and go, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until the condition holds.
fn wait_for(what: &str, condition: impl FnMut() -> bool) {
    support::wait::within(PATIENCE, what, condition);
}
