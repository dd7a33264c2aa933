//! The Helm chart: rendered by the real engine, validated, and what it renders *run* against a real Consul, so that a
//! wrong flag, path or variable in a template is a failing test.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]
#![allow(clippy::print_stderr, reason = "a failing test shows its pods' logs")]
#![allow(clippy::disallowed_methods, reason = "a kubelet's time is its own")]

use std::time::Duration;

#[allow(dead_code, reason = "the agent's tests use all of it")]
#[path = "../support/agent/consul.rs"]
mod consul;
mod consumer;
mod endings;
mod failure;
mod helm;
mod hook;
#[allow(dead_code, reason = "the agent's tests use all of it")]
#[path = "../support/agent/http.rs"]
mod http;
mod kubelet;
mod kustomize;
mod monitoring;
mod network;
mod on_demand;
#[allow(dead_code, reason = "the agent's tests use all of it")]
#[path = "../support/agent/operator.rs"]
mod operator;
mod page;
mod reload;
mod scene;
mod secured;
mod sidecar;
#[path = "../support/mod.rs"]
mod support;
mod values;
mod wrapped;
mod wrapper;

/// The binary under test.
const BINARY: &str = env!("CARGO_BIN_EXE_slotkeeper");
/// The longest that anything is waited for.
const PATIENCE: Duration = Duration::from_secs(150);

/// Waits for a condition.
fn wait_for(what: &str, condition: impl FnMut() -> bool) {
    support::wait::within(PATIENCE, what, condition);
}
