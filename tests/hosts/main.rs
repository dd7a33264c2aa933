//! What is prepared for hosts without Kubernetes: the examples for Nomad and Compose, and the notes of a release.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]
#![allow(clippy::print_stderr, reason = "a failing test shows its containers' logs")]

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

mod changelog;
mod compose;
mod nomad;

use std::time::Duration;

/// Waits until the condition holds.
fn wait_for(what: &str, condition: impl FnMut() -> bool) {
    support::wait::within(Duration::from_secs(120), what, condition);
}
