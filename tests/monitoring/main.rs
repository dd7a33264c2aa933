//! What Prometheus and Grafana make of the metrics: the dashboard and the rules of the chart, on a real Prometheus that
//! scrapes real agents on a real Consul.

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

mod alarms;
mod dashboard;
mod exposition;
mod fleet;
mod prometheus;
mod rules;
mod series;
mod textfile;

use std::path::{Path, PathBuf};
use std::time::Duration;

/// For scrapes, evaluations and sessions that run out, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until the condition holds.
fn wait_for(what: &str, condition: impl FnMut() -> bool) {
    support::wait::within(PATIENCE, what, condition);
}

/// A file of the repository.
fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Words that begin so, as names of metrics do.
fn words<'a>(text: &'a str, prefix: &str) -> Vec<&'a str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with(prefix)).collect()
}
