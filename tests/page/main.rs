//! The status page in a real browser, before real agents on a real Consul. Pictures of what it shows are kept in
//! `target/page`.

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
#[allow(dead_code, reason = "another test binary's, of which this one uses a part")]
mod consul;
#[path = "../support/agent/http.rs"]
#[allow(dead_code, reason = "see above")]
mod http;
#[path = "../support/agent/operator.rs"]
#[allow(dead_code, reason = "see above")]
mod operator;
#[path = "../support/agent/process.rs"]
#[allow(dead_code, reason = "see above")]
mod process;

mod browser;
mod clocks;
mod commands;
mod connection;
mod hostile;
mod lists;
mod places;
mod served;
mod shown;

use std::time::Duration;

/// For sessions that run out, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until the condition holds.
fn wait_for(what: &str, condition: impl FnMut() -> bool) {
    support::wait::within(PATIENCE, what, condition);
}
