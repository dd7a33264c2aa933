//! The container image, built by the Dockerfile and run as restricted as Kubernetes does it, against a real Consul.
//!
//! What stands in for the official Rust image is made by scripts/rust-image.

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

mod agent;
mod contents;
mod copy_in;
mod podman;

use std::time::Duration;

/// Containers start slowly on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until the condition holds.
fn wait_for(what: &str, condition: impl FnMut() -> bool) {
    support::wait::within(PATIENCE, what, condition);
}
