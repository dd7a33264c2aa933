//! The units of packaging/systemd under a real systemd, as process 1 of namespaces, with a real Consul.
//!
//! The root that it boots is made by scripts/systemd-root.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]
#![allow(clippy::print_stderr, reason = "a failing test shows its machine's journal")]

#[path = "../support/mod.rs"]
mod support;

#[allow(dead_code, reason = "the agent's tests use the rest")]
#[path = "../support/agent/consul.rs"]
mod consul;
#[allow(dead_code, reason = "the agent's tests use the rest")]
#[path = "../support/agent/http.rs"]
mod http;
#[allow(dead_code, reason = "the agent's tests use the rest")]
#[path = "../support/agent/operator.rs"]
mod operator;

mod gate;
mod job;
mod life;
mod machine;
mod package;
mod page;
mod unit;

use std::time::Duration;

/// Machines start slowly where several tests share a processor.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Waits until the condition holds.
fn wait_for(what: &str, condition: impl FnMut() -> bool) {
    support::wait::within(MAX_WAIT, what, condition);
}
