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
#[path = "../agent/consul.rs"]
mod consul;
#[allow(dead_code, reason = "the agent's tests use the rest")]
#[path = "../agent/http.rs"]
mod http;
#[allow(dead_code, reason = "the agent's tests use the rest")]
#[path = "../agent/operator.rs"]
mod operator;

mod agent;
mod contents;
mod copy_in;
mod podman;

use std::time::{Duration, Instant};

/// Containers start slowly on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until the condition holds.
#[allow(clippy::disallowed_methods, reason = "a test has no lease, and blocks nobody")]
fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < until, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
