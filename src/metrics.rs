//! The Prometheus metrics. Every series exists from the start, so that a dashboard tells "none yet" from "no data".
//! No session id, pod name or error text is a label value.

mod gauges;
mod make;
mod process;
mod text;

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus::{Gauge, GaugeVec, Histogram, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Registry};

use make::{Maker, buckets, opts};
use process::Process;
use text::encode;
pub use text::openmetrics;

use crate::status::Snapshot;
use slotkeeper_semaphore::{FailureKind, LossReason, Moment, Notice, Wall};

/// Slots are numbered from 0.
const NO_SLOT: i64 = -1;
const SEMAPHORE: &[&str] = &["semaphore"];
/// From a local answer to a Consul in trouble.
const REQUEST_BUCKETS: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// From a free slot to a long queue: milliseconds to hours.
const ACQUIRE_BUCKETS: &[f64] =
    &[0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 43_200.0];
/// From a short step to a day's work.
const HOLD_BUCKETS: &[f64] = &[0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 43_200.0, 86_400.0];

/// All metrics of one agent.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// The semaphores and locks that have series. A scrape that goes by an older picture must not bring back those of one
    /// that was removed.
    present: Mutex<BTreeSet<String>>,
    slot_held: IntGaugeVec,
    holders: IntGaugeVec,
    limit: IntGaugeVec,
    limit_mismatch: IntGaugeVec,
    waiters: IntGaugeVec,
    queue_position: IntGaugeVec,
    fencing_token: GaugeVec,
    slot_index: IntGaugeVec,
    slots: IntGaugeVec,
    blocked: IntGaugeVec,
    waiting_since: GaugeVec,
    held_since: GaugeVec,
    seen: GaugeVec,
    leases: IntGaugeVec,
    lease_waiters: IntGaugeVec,
    leases_expired: IntCounterVec,
    acquire_duration: HistogramVec,
    handoff_duration: HistogramVec,
    hold_duration: HistogramVec,
    pruned_holders: IntCounterVec,
    prune_duration: HistogramVec,
    slots_lost: IntCounterVec,
    cas_conflicts: IntCounterVec,
    leader_changes: IntCounterVec,
    renew_duration: Histogram,
    renew_failures: IntCounterVec,
    session_expiry: Gauge,
    session_ttl: Gauge,
    consul_requests: IntCounterVec,
    consul_request_duration: HistogramVec,
    ready: IntGauge,
    reload_successful: IntGauge,
}

impl Metrics {
    /// Metrics with every series that does not hang on a semaphore. `operations` and `codes` are the label values of
    /// the Consul client.
    ///
    /// # Errors
    ///
    /// Two metrics of one name: a programming error that every start would show.
    pub fn new(operations: &[&str], codes: &[&str]) -> prometheus::Result<Self> {
        let made = Maker { registry: Registry::new() };
        let metrics = Self {
            slot_held: made.gauges(
                "slot_held",
                "Whether the slot is held with a fresh lease (1) or not (0); on demand, by how many clients",
            )?,
            holders: made.gauges("holders", "Slots taken by anybody, as last seen in .lock")?,
            limit: made.gauges("limit", "The limit in force")?,
            limit_mismatch: made
                .gauges("limit_mismatch", "Whether the stored limit differs from the configured one (1)")?,
            waiters: made.gauges("waiters", "Live contenders that hold no slot, as last seen")?,
            queue_position: made
                .gauges("queue_position", "Own place among the waiters, from 1; 0 when not waiting")?,
            fencing_token: made.floats(
                "fencing_token",
                "ModifyIndex at the grant of the slot held, of .lock or of the lock's key; 0 when none is",
            )?,
            slot_index: made.gauges(
                "slot_index",
                "Number of the slot held, from 0 and below the limit, the first of several; -1 when none is",
            )?,
            slots: made.gauges("slots", "Slots of the limit that whoever holds takes at once; of several leases, the one held longest")?,
            blocked: made.gauges(
                "blocked",
                "Whether the agent is kept out until somebody mends what its status says (1)",
            )?,
            waiting_since: made.floats(
                "waiting_since_timestamp_seconds",
                "Since when a slot is asked for that is not held, the longest of several, as Unix time; 0 while none is",
            )?,
            held_since: made.floats(
                "held_since_timestamp_seconds",
                "Since when the slot is held, the longest of several, as Unix time; 0 while none is",
            )?,
            seen: made.floats(
                "seen_timestamp_seconds",
                "When holders, limit and waiters were looked at last, all together, as Unix time; 0 where nothing is known",
            )?,
            leases: made.gauges("leases", "Leases that clients have, of a semaphore taken on demand")?,
            lease_waiters: made.gauges("lease_waiters", "Clients that wait for a lease")?,
            leases_expired: made.counters(
                "leases_expired_total",
                "Leases that were given back because their clients had not renewed them in time",
                SEMAPHORE,
            )?,
            acquire_duration: made.histograms(
                "acquire_duration_seconds",
                "Time from asking for a slot to holding it",
                SEMAPHORE,
                ACQUIRE_BUCKETS,
            )?,
            handoff_duration: made.histograms(
                "handoff_duration_seconds",
                "Time from seeing a slot come free to holding it",
                SEMAPHORE,
                REQUEST_BUCKETS,
            )?,
            hold_duration: made.histograms(
                "hold_duration_seconds",
                "Time for which a slot was held, until it was given back or lost",
                SEMAPHORE,
                HOLD_BUCKETS,
            )?,
            pruned_holders: made.counters(
                "pruned_holders_total",
                "Holders without a live session that this agent took out of .lock",
                SEMAPHORE,
            )?,
            prune_duration: made.histograms(
                "prune_duration_seconds",
                "Time that a transaction which pruned took",
                SEMAPHORE,
                REQUEST_BUCKETS,
            )?,
            slots_lost: made.counters(
                "slots_lost_total",
                "Slots held no longer without having been given back",
                &["semaphore", "reason"],
            )?,
            cas_conflicts: made.counters(
                "cas_conflicts_total",
                "Check-and-set writes that lost against another client",
                SEMAPHORE,
            )?,
            leader_changes: made.counters(
                "leader_changes_total",
                "Times that a lock was seen to have another owner than before, ourselves included",
                SEMAPHORE,
            )?,
            renew_duration: made.registered(Histogram::with_opts(buckets(
                "session_renew_duration_seconds",
                "Time that an answered session renewal took",
                REQUEST_BUCKETS,
            ))?)?,
            renew_failures: made.counters(
                "session_renew_failures_total",
                "Session renewals that failed",
                &["reason"],
            )?,
            session_expiry: made.registered(Gauge::with_opts(opts(
                "session_expiry_timestamp_seconds",
                "When the lease ends unless it is renewed, as Unix time; 0 without a session",
            ))?)?,
            session_ttl: made.registered(Gauge::with_opts(opts(
                "session_ttl_seconds",
                "TTL of the session, by which its lease is renewed; 0 without one",
            ))?)?,
            consul_requests: made.counters(
                "consul_requests_total",
                "Requests to Consul by operation and outcome",
                &["operation", "code"],
            )?,
            consul_request_duration: made.histograms(
                "consul_request_duration_seconds",
                "Time that requests to Consul took; a kv_watch waits for a change",
                &["operation"],
                REQUEST_BUCKETS,
            )?,
            ready: made.registered(IntGauge::with_opts(opts(
                "ready",
                "Whether every required slot is held with a fresh lease (1) or not (0)",
            ))?)?,
            reload_successful: made.registered(IntGauge::with_opts(opts(
                "config_last_reload_successful",
                "Whether the last reload of the configuration succeeded (1) or not (0)",
            ))?)?,
            present: Mutex::default(),
            registry: made.registry,
        };
        metrics.begin(operations, codes)?;
        Ok(metrics)
    }

    fn begin(&self, operations: &[&str], codes: &[&str]) -> prometheus::Result<()> {
        self.reload_successful.set(1);
        for reason in FailureKind::OF_RENEWALS {
            self.renew_failures.with_label_values(&[reason.as_str()]);
        }
        for operation in operations {
            self.consul_request_duration.with_label_values(&[operation]);
            for code in codes {
                self.consul_requests.with_label_values(&[operation, code]);
            }
        }
        let build =
            IntGaugeVec::new(opts("build_info", "What is running; always 1"), &["version", "revision"])?;
        let revision = option_env!("SLOTKEEPER_REVISION").unwrap_or("unknown");
        build.with_label_values(&[env!("CARGO_PKG_VERSION"), revision]).set(1);
        self.registry.register(Box::new(build))?;
        self.registry.register(Box::new(Process::of_this()))
    }

    /// Makes every series of a semaphore.
    pub fn add_semaphore(&self, name: &str) {
        self.present().insert(name.to_owned());
        let labels = &[name];
        for gauge in self.semaphore_gauges() {
            gauge.with_label_values(labels);
        }
        self.slot_index.with_label_values(labels).set(NO_SLOT);
        for gauge in self.float_gauges() {
            gauge.with_label_values(labels);
        }
        for histogram in self.semaphore_histograms() {
            histogram.with_label_values(labels);
        }
        for counter in self.semaphore_counters() {
            counter.with_label_values(labels);
        }
        for reason in LossReason::ALL {
            self.slots_lost.with_label_values(&[name, reason.as_str()]);
        }
    }

    /// Makes every series of a single-key lock: a slot that only one can have, of whose queue Consul tells nothing.
    /// `follows`: who has it is seen all the time, and not only while somebody asks for it.
    pub fn add_lock(&self, name: &str, follows: bool) {
        self.present().insert(name.to_owned());
        let labels = &[name];
        for gauge in [&self.slot_held, &self.holders, &self.blocked, &self.leases, &self.lease_waiters] {
            gauge.with_label_values(labels);
        }
        for gauge in [&self.limit, &self.slots] {
            gauge.with_label_values(labels).set(1);
        }
        self.slot_index.with_label_values(labels).set(NO_SLOT);
        for gauge in self.float_gauges() {
            gauge.with_label_values(labels);
        }
        for histogram in [&self.acquire_duration, &self.handoff_duration, &self.hold_duration] {
            histogram.with_label_values(labels);
        }
        for counter in [&self.cas_conflicts, &self.leases_expired] {
            counter.with_label_values(labels);
        }
        if follows {
            self.leader_changes.with_label_values(labels);
        }
        for reason in LossReason::ALL {
            self.slots_lost.with_label_values(&[name, reason.as_str()]);
        }
    }

    /// Ends the series of a semaphore or lock that was removed from the configuration.
    pub fn remove_semaphore(&self, name: &str) {
        let mut present = self.present();
        present.remove(name);
        let labels = &[name];
        // What is not there need not be removed.
        for gauge in self.semaphore_gauges() {
            let _ = gauge.remove_label_values(labels);
        }
        for gauge in self.float_gauges() {
            let _ = gauge.remove_label_values(labels);
        }
        for histogram in self.semaphore_histograms() {
            let _ = histogram.remove_label_values(labels);
        }
        let _ = self.leader_changes.remove_label_values(labels);
        for counter in self.semaphore_counters() {
            let _ = counter.remove_label_values(labels);
        }
        for reason in LossReason::ALL {
            let _ = self.slots_lost.remove_label_values(&[name, reason.as_str()]);
        }
    }

    /// Counts a change.
    pub fn observe(&self, notice: &Notice) {
        match notice {
            Notice::Renewed { took } => self.renew_duration.observe(secs(*took)),
            Notice::RenewFailed { failure } => {
                self.renew_failures.with_label_values(&[failure.kind.as_str()]).inc();
            }
            // It was counted when it was acquired.
            Notice::Acquired { resumed: true, .. } => {}
            Notice::Acquired { name, took, handoff, .. } => {
                self.acquire_duration.with_label_values(&[&**name]).observe(secs(*took));
                if let Some(handoff) = handoff {
                    self.handoff_duration.with_label_values(&[&**name]).observe(secs(*handoff));
                }
            }
            Notice::Lost { name, reason, held, .. } => {
                self.slots_lost.with_label_values(&[&**name, reason.as_str()]).inc();
                self.hold_duration.with_label_values(&[&**name]).observe(secs(*held));
            }
            Notice::Released { name, held, .. } => {
                self.hold_duration.with_label_values(&[&**name]).observe(secs(*held));
            }
            Notice::Pruned { name, holders, took } => {
                self.pruned_holders.with_label_values(&[&**name]).inc_by((*holders).into());
                self.prune_duration.with_label_values(&[&**name]).observe(secs(*took));
            }
            Notice::Conflict { name } => self.cas_conflicts.with_label_values(&[&**name]).inc(),
            Notice::Leader { leader: None, .. } => {}
            Notice::Leader { name, .. } => self.leader_changes.with_label_values(&[&**name]).inc(),
            Notice::SessionStarted { .. }
            | Notice::SessionEnded { .. }
            | Notice::SessionsCleared { .. }
            | Notice::SessionTaken { .. }
            | Notice::Failing { .. }
            | Notice::Recovered { .. }
            | Notice::Waiting { .. }
            | Notice::LockDelayed { .. }
            | Notice::Blocked { .. }
            | Notice::TimedOut { .. }
            | Notice::Evicted { .. }
            | Notice::LimitDiffers { .. }
            | Notice::FormDiffers { .. }
            | Notice::LimitChanged { .. }
            | Notice::LimitSet { .. }
            // Its name may be that of another one by now.
            | Notice::Removed { .. } => {}
        }
    }

    /// Counts a lease that its client has not renewed in time.
    pub fn lease_expired(&self, name: &str) {
        self.leases_expired.with_label_values(&[name]).inc();
    }

    /// Counts a request to Consul.
    pub fn consul_request(&self, operation: &str, code: &str, took: Duration) {
        self.consul_requests.with_label_values(&[operation, code]).inc();
        self.consul_request_duration.with_label_values(&[operation]).observe(secs(took));
    }

    /// Says how the last reload went.
    pub fn reloaded(&self, successfully: bool) {
        self.reload_successful.set(successfully.into());
    }

    /// All metrics in Prometheus' text format, with the gauges as they are at `now`.
    ///
    /// # Errors
    ///
    /// A metric that cannot be written, which is a programming error.
    pub fn text(&self, snapshot: &Snapshot, now: Moment, wall: Wall) -> prometheus::Result<String> {
        self.set_gauges(snapshot, now, wall);
        encode(&self.registry.gather())
    }

    fn present(&self) -> MutexGuard<'_, BTreeSet<String>> {
        // Whoever had it and panicked has left a set all the same.
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn semaphore_counters(&self) -> [&IntCounterVec; 3] {
        [&self.pruned_holders, &self.cas_conflicts, &self.leases_expired]
    }

    fn semaphore_gauges(&self) -> [&IntGaugeVec; 11] {
        [
            &self.slot_held,
            &self.holders,
            &self.limit,
            &self.limit_mismatch,
            &self.waiters,
            &self.queue_position,
            &self.slot_index,
            &self.slots,
            &self.blocked,
            &self.leases,
            &self.lease_waiters,
        ]
    }

    fn float_gauges(&self) -> [&GaugeVec; 4] {
        [&self.fencing_token, &self.waiting_since, &self.held_since, &self.seen]
    }

    fn semaphore_histograms(&self) -> [&HistogramVec; 4] {
        [&self.acquire_duration, &self.handoff_duration, &self.hold_duration, &self.prune_duration]
    }
}

fn secs(time: Duration) -> f64 {
    time.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_series_exists_from_the_start_and_goes_with_its_semaphore() {
        let metrics = Metrics::new(&["txn"], &["200", "timeout"]).unwrap();
        metrics.add_semaphore("s");
        let text = encode(&metrics.registry.gather()).unwrap();
        for series in [
            "slotkeeper_slot_held{semaphore=\"s\"} 0",
            "slotkeeper_slot_index{semaphore=\"s\"} -1",
            "slotkeeper_slots_lost_total{reason=\"lease_expired\",semaphore=\"s\"} 0",
            "slotkeeper_pruned_holders_total{semaphore=\"s\"} 0",
            "slotkeeper_prune_duration_seconds_count{semaphore=\"s\"} 0",
            "slotkeeper_blocked{semaphore=\"s\"} 0",
            "slotkeeper_waiting_since_timestamp_seconds{semaphore=\"s\"} 0",
            "slotkeeper_held_since_timestamp_seconds{semaphore=\"s\"} 0",
            "slotkeeper_seen_timestamp_seconds{semaphore=\"s\"} 0",
            "slotkeeper_leases{semaphore=\"s\"} 0",
            "slotkeeper_lease_waiters{semaphore=\"s\"} 0",
            "slotkeeper_leases_expired_total{semaphore=\"s\"} 0",
            "slotkeeper_session_ttl_seconds 0",
            "slotkeeper_session_renew_duration_seconds_count 0",
            "slotkeeper_session_renew_failures_total{reason=\"denied\"} 0",
            "slotkeeper_consul_requests_total{code=\"timeout\",operation=\"txn\"} 0",
            "slotkeeper_consul_request_duration_seconds_count{operation=\"txn\"} 0",
            "slotkeeper_config_last_reload_successful 1",
            "slotkeeper_build_info{",
            "process_resident_memory_bytes",
        ] {
            assert!(text.contains(series), "{series} is missing in\n{text}");
        }
        let cpu = text.lines().find_map(|line| line.strip_prefix("process_cpu_seconds_total ")).unwrap();
        let cpu: f64 = cpu.parse().unwrap();
        assert!(cpu > 0.0 && cpu.fract() > 0.0, "not in whole seconds: {cpu}");
        metrics.remove_semaphore("s");
        assert!(!encode(&metrics.registry.gather()).unwrap().contains("semaphore=\"s\""));
    }
}
