//! The metrics of the agent itself: its session, its requests to Consul, its configuration.

use prometheus::{Gauge, Histogram, HistogramVec, IntCounterVec, IntGauge};

use super::REQUEST_BUCKETS;
use super::make::Maker;
use super::process::Process;
use slotkeeper_semaphore::FailureKind;

/// A write to Consul: on this machine, nearby, far away, overloaded.
const RENEW_BUCKETS: &[f64] = &[0.005, 0.025, 0.1, 1.0, 5.0];

#[derive(Debug)]
pub(super) struct AgentMetrics {
    pub(super) renew_duration: Histogram,
    pub(super) renew_failures: IntCounterVec,
    pub(super) session_expiry: Gauge,
    pub(super) session_ttl: Gauge,
    pub(super) consul_requests: IntCounterVec,
    pub(super) consul_request_duration: HistogramVec,
    pub(super) ready: IntGauge,
    pub(super) reload_successful: IntGauge,
}

impl AgentMetrics {
    #[rustfmt::skip] // A line for each metric, as in docs/metrics.md.
    pub(super) fn register(make: &Maker) -> prometheus::Result<Self> {
        let operation: &[&str] = &["operation"];
        let metrics = Self {
            renew_duration: make.histogram("session_renew_duration_seconds", "Duration of a session renewal that was answered", RENEW_BUCKETS)?,
            renew_failures: make.counters("session_renew_failures_total", "Session renewals that failed", &["reason"])?,
            session_expiry: make.float_gauge("session_expiry_timestamp_seconds", "Time at which the lease expires unless it is renewed, as Unix time; 0 without a session")?,
            session_ttl: make.float_gauge("session_ttl_seconds", "TTL of the session, by which its lease is renewed; 0 without one")?,
            consul_requests: make.counters("consul_requests_total", "Requests to Consul by operation and outcome; a series appears with the first", &["operation", "code"])?,
            consul_request_duration: make.histograms("consul_request_duration_seconds", "Duration of requests to Consul, without kv_watch, which waits for a change", operation, REQUEST_BUCKETS)?,
            ready: make.gauge("ready", "Whether every required slot is held with a fresh lease (1) or not (0)")?,
            reload_successful: make.gauge("config_last_reload_successful", "Whether the last reload of the configuration succeeded (1) or not (0)")?,
        };
        let build = make.gauges("build_info", "Version and revision of the running program; always 1", &["version", "revision"])?;
        let revision = option_env!("BUILD_REVISION").unwrap_or("unknown");
        build.with_label_values(&[env!("CARGO_PKG_VERSION"), revision]).set(1);
        make.registry.register(Box::new(Process::of_this()))?;
        metrics.initialise();
        Ok(metrics)
    }

    /// Creates the series that an alert or a dashboard reads before the first event. The series of requests to Consul appear with
    /// their first request.
    fn initialise(&self) {
        self.reload_successful.set(1);
        for reason in FailureKind::OF_RENEWALS {
            self.renew_failures.with_label_values(&[reason.as_str()]);
        }
    }
}
