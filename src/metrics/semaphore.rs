//! The metrics with the label `semaphore`: of semaphores, and of locks, which appear as semaphores with a limit of 1.

use prometheus::{GaugeVec, HistogramVec, IntCounterVec, IntGaugeVec};

use super::make::Maker;
use super::{NO_SLOT, REQUEST_BUCKETS};
use slotkeeper_semaphore::LossReason;

const SEMAPHORE: &[&str] = &["semaphore"];
/// A free slot, a short queue, minutes, half an hour, and the six hours of the alert `SlotkeeperStuckQueue`.
const ACQUIRE_BUCKETS: &[f64] = &[0.1, 10.0, 120.0, 1800.0, 21_600.0];
/// Two writes to a near Consul, to a far one, the half second that the protocol promises, and what is too slow.
const HANDOFF_BUCKETS: &[f64] = &[0.01, 0.05, 0.5, 5.0, 30.0];
/// From a short step to a day's work.
const HOLD_BUCKETS: &[f64] = &[1.0, 60.0, 900.0, 7200.0, 86_400.0];

#[derive(Debug)]
pub(super) struct SemaphoreMetrics {
    pub(super) slot_held: IntGaugeVec,
    pub(super) holders: IntGaugeVec,
    pub(super) limit: IntGaugeVec,
    pub(super) limit_mismatch: IntGaugeVec,
    pub(super) waiters: IntGaugeVec,
    pub(super) queue_position: IntGaugeVec,
    pub(super) slot_index: IntGaugeVec,
    pub(super) slots: IntGaugeVec,
    pub(super) blocked: IntGaugeVec,
    pub(super) leases: IntGaugeVec,
    pub(super) lease_waiters: IntGaugeVec,
    pub(super) fencing_token: GaugeVec,
    pub(super) waiting_since: GaugeVec,
    pub(super) held_since: GaugeVec,
    pub(super) last_seen: GaugeVec,
    pub(super) leases_expired: IntCounterVec,
    pub(super) pruned_holders: IntCounterVec,
    pub(super) cas_conflicts: IntCounterVec,
    pub(super) leader_changes: IntCounterVec,
    pub(super) slots_lost: IntCounterVec,
    pub(super) acquire_duration: HistogramVec,
    pub(super) handoff_duration: HistogramVec,
    pub(super) hold_duration: HistogramVec,
    pub(super) prune_duration: HistogramVec,
}

impl SemaphoreMetrics {
    #[rustfmt::skip] // A line for each metric, as in docs/metrics.md.
    pub(super) fn register(make: &Maker) -> prometheus::Result<Self> {
        let gauge = |name, help| make.gauges(name, help, SEMAPHORE);
        let float = |name, help| make.float_gauges(name, help, SEMAPHORE);
        let counter = |name, help| make.counters(name, help, SEMAPHORE);
        let histogram = |name, help, buckets| make.histograms(name, help, SEMAPHORE, buckets);
        Ok(Self {
            slot_held: gauge("slot_held", "Whether the slot or lock is held with a fresh lease (1) or not (0); in mode on_demand, the number of leases held")?,
            holders: gauge("holders", "Slots taken by live and dead holders together, by the last reading of .lock; for a lock, 1 while it has a holder")?,
            limit: gauge("limit", "The limit in force; 1 for a lock")?,
            limit_mismatch: gauge("limit_mismatch", "Whether the stored limit differs from the configured one (1) or not (0)")?,
            waiters: gauge("waiters", "Live waiters, by the last reading of the semaphore")?,
            queue_position: gauge("queue_position", "Position in the queue, from 1; 0 when not waiting")?,
            slot_index: gauge("slot_index", "Index of the slot held, from 0 and below the limit, the first of several; 0 for a lock; -1 when none is held")?,
            slots: gauge("slots", "Slots that the holder takes at once; of several leases, those of the oldest; 1 for a lock")?,
            blocked: gauge("blocked", "Whether the semaphore or lock is blocked (1) or not (0); the status says why")?,
            leases: gauge("leases", "Leases of a semaphore or lock that clients hold; only in mode on_demand")?,
            lease_waiters: gauge("lease_waiters", "Clients that wait for a lease of a semaphore or lock; only in mode on_demand")?,
            fencing_token: float("fencing_token", "ModifyIndex of .lock or of the lock's key when the slot was acquired; 0 when none is held")?,
            waiting_since: float("waiting_since_timestamp_seconds", "Start of the current wait for a slot or lock, of several waits the oldest, as Unix time; 0 when not waiting")?,
            held_since: float("held_since_timestamp_seconds", "Time at which the slot or lock was acquired, of several slots the oldest, as Unix time; 0 when none is held")?,
            last_seen: float("last_seen_timestamp_seconds", "Time of the last reading of the semaphore or lock, as Unix time; 0 before the first")?,
            leases_expired: counter("leases_expired_total", "Leases that expired because their clients did not renew them in time; only in mode on_demand")?,
            pruned_holders: counter("pruned_holders_total", "Dead holders that this agent pruned from .lock")?,
            cas_conflicts: counter("cas_conflicts_total", "Check-and-set writes of a semaphore or lock that lost against another client")?,
            leader_changes: counter("leader_changes_total", "Changes of a lock's holder, those to this agent included")?,
            slots_lost: make.counters("slots_lost_total", "Slots and locks lost without a release", &["semaphore", "reason"])?,
            acquire_duration: histogram("acquire_duration_seconds", "Time from the request for a slot or lock to its acquisition", ACQUIRE_BUCKETS)?,
            handoff_duration: histogram("handoff_duration_seconds", "Time from seeing a free slot or lock to its acquisition", HANDOFF_BUCKETS)?,
            hold_duration: histogram("hold_duration_seconds", "Time for which a slot or lock was held, until its release or loss", HOLD_BUCKETS)?,
            prune_duration: histogram("prune_duration_seconds", "Duration of a transaction that pruned dead holders", REQUEST_BUCKETS)?,
        })
    }

    /// Creates every series of a semaphore. `lends`: it has leases.
    pub(super) fn add_semaphore(&self, name: &str, lends: bool) {
        let labels = &[name];
        for gauge in [&self.limit, &self.limit_mismatch, &self.waiters, &self.queue_position, &self.slots] {
            gauge.with_label_values(labels);
        }
        self.pruned_holders.with_label_values(labels);
        self.prune_duration.with_label_values(labels);
        self.add_common(name, lends);
    }

    /// Creates every series of a lock. It has none of a queue, since Consul does not report the waiters of a lock. Without leases, the
    /// agent follows who holds it.
    pub(super) fn add_lock(&self, name: &str, lends: bool) {
        let labels = &[name];
        for gauge in [&self.limit, &self.slots] {
            gauge.with_label_values(labels).set(1);
        }
        if !lends {
            self.leader_changes.with_label_values(labels);
        }
        self.add_common(name, lends);
    }

    fn add_common(&self, name: &str, lends: bool) {
        let labels = &[name];
        for gauge in [&self.slot_held, &self.holders, &self.blocked] {
            gauge.with_label_values(labels);
        }
        self.slot_index.with_label_values(labels).set(NO_SLOT);
        for gauge in self.float_gauges() {
            gauge.with_label_values(labels);
        }
        self.cas_conflicts.with_label_values(labels);
        for reason in LossReason::ALL {
            self.slots_lost.with_label_values(&[name, reason.as_str()]);
        }
        for histogram in [&self.acquire_duration, &self.handoff_duration, &self.hold_duration] {
            histogram.with_label_values(labels);
        }
        if lends {
            self.leases.with_label_values(labels);
            self.lease_waiters.with_label_values(labels);
            self.leases_expired.with_label_values(labels);
        }
    }

    /// Removes the series of a semaphore or lock.
    pub(super) fn remove(&self, name: &str) {
        let labels = &[name];
        // A series that does not exist need not be removed.
        for gauge in self.int_gauges() {
            let _ = gauge.remove_label_values(labels);
        }
        for gauge in self.float_gauges() {
            let _ = gauge.remove_label_values(labels);
        }
        for histogram in self.histograms() {
            let _ = histogram.remove_label_values(labels);
        }
        for counter in self.counters() {
            let _ = counter.remove_label_values(labels);
        }
        for reason in LossReason::ALL {
            let _ = self.slots_lost.remove_label_values(&[name, reason.as_str()]);
        }
    }

    fn counters(&self) -> [&IntCounterVec; 4] {
        [&self.pruned_holders, &self.cas_conflicts, &self.leader_changes, &self.leases_expired]
    }

    fn int_gauges(&self) -> [&IntGaugeVec; 11] {
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
        [&self.fencing_token, &self.waiting_since, &self.held_since, &self.last_seen]
    }

    fn histograms(&self) -> [&HistogramVec; 4] {
        [&self.acquire_duration, &self.handoff_duration, &self.hold_duration, &self.prune_duration]
    }
}
