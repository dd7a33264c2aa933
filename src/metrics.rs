//! The Prometheus metrics. The series of a semaphore exist as soon as it is configured, so that a dashboard tells "none yet" from
//! "no data". Those of requests to Consul appear with the first request of their kind.
//! No session id, pod name or error text is a label value.

mod agent;
mod gauges;
mod make;
mod process;
mod semaphore;
mod text;
mod textfile;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus::Registry;
use slotkeeper_consul::{Code, Observer, Operation, Tried};

use agent::AgentMetrics;
use make::Maker;
use semaphore::SemaphoreMetrics;
use text::encode;
pub use text::openmetrics;
pub use textfile::Run;

use crate::status::Snapshot;
use slotkeeper_semaphore::{Moment, Notice, Wall};

/// The value of `slot_index` while no slot is held.
const NO_SLOT: i64 = -1;
/// A near Consul, a far one, an overloaded one. Every bucket is a series, and each operation has these.
const REQUEST_BUCKETS: &[f64] = &[0.01, 0.1, 1.0];
/// All metrics of one agent.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// The semaphores and locks that have series. A scrape that goes by an older status must not bring back the series of a
    /// semaphore that was removed. The value: whether there are series of leases. Locked while series are made, removed and
    /// read: a scrape shows all of a semaphore or none.
    present: Mutex<BTreeMap<String, bool>>,
    semaphores: SemaphoreMetrics,
    agent: AgentMetrics,
}

impl Metrics {
    /// Registers all metrics.
    ///
    /// # Errors
    ///
    /// Two metrics have the same name: a programming error that every start would show.
    pub fn new() -> prometheus::Result<Self> {
        let make = Maker::default();
        let (semaphores, agent) = (SemaphoreMetrics::register(&make)?, AgentMetrics::register(&make)?);
        Ok(Self { registry: make.registry, present: Mutex::default(), semaphores, agent })
    }

    /// Creates every series of a semaphore. `lends`: in mode `on_demand`, with series of leases.
    pub fn add_semaphore(&self, name: &str, lends: bool) {
        let mut present = self.present();
        add(&mut present, name, lends);
        self.semaphores.add_semaphore(name, lends);
    }

    /// Creates every series of a lock. `lends`: in mode `on_demand`, with series of leases.
    pub fn add_lock(&self, name: &str, lends: bool) {
        let mut present = self.present();
        add(&mut present, name, lends);
        self.semaphores.add_lock(name, lends);
    }

    /// Removes the series of a semaphore or lock that was removed from the configuration.
    pub fn remove_semaphore(&self, name: &str) {
        let mut present = self.present();
        present.remove(name);
        self.semaphores.remove(name);
    }

    /// Counts what a notice reports.
    pub fn observe(&self, notice: &Notice) {
        if let Notice::Renewed { took } = notice {
            self.agent.renew_duration.observe(secs(*took));
        } else if let Notice::RenewFailed { failure } = notice {
            self.agent.renew_failures.with_label_values(&[failure.kind.as_str()]).inc();
        } else if let Notice::Acquired { name, took, handoff, resumed: false, .. } = notice {
            // A resumed slot was counted when it was acquired.
            self.semaphores.acquire_duration.with_label_values(&[&**name]).observe(secs(*took));
            if let Some(handoff) = handoff {
                self.semaphores.handoff_duration.with_label_values(&[&**name]).observe(secs(*handoff));
            }
        } else if let Notice::Lost { name, reason, held, .. } = notice {
            self.semaphores.slots_lost.with_label_values(&[&**name, reason.as_str()]).inc();
            self.semaphores.hold_duration.with_label_values(&[&**name]).observe(secs(*held));
        } else if let Notice::Released { name, held, .. } = notice {
            self.semaphores.hold_duration.with_label_values(&[&**name]).observe(secs(*held));
        } else if let Notice::Pruned { name, holders, took } = notice {
            self.semaphores.pruned_holders.with_label_values(&[&**name]).inc_by((*holders).into());
            self.semaphores.prune_duration.with_label_values(&[&**name]).observe(secs(*took));
        } else if let Notice::Conflict { name } = notice {
            self.semaphores.cas_conflicts.with_label_values(&[&**name]).inc();
        } else if let Notice::Leader { name, leader: Some(_) } = notice {
            self.semaphores.leader_changes.with_label_values(&[&**name]).inc();
        }
    }

    /// Counts a lease that expired because its client did not renew it in time.
    pub fn lease_expired(&self, name: &str) {
        self.semaphores.leases_expired.with_label_values(&[name]).inc();
    }

    /// Records the outcome of the last reload.
    pub fn reloaded(&self, successfully: bool) {
        self.agent.reload_successful.set(successfully.into());
    }

    /// All metrics in Prometheus' text format, with the gauges as they are at `now`.
    ///
    /// # Errors
    ///
    /// A metric cannot be encoded: a programming error.
    pub fn text(&self, snapshot: &Snapshot, now: Moment, wall: Wall) -> prometheus::Result<String> {
        let families = {
            let present = self.present();
            self.set_gauges(snapshot, &present, now, wall);
            self.registry.gather()
        };
        encode(&families)
    }

    fn present(&self) -> MutexGuard<'_, BTreeMap<String, bool>> {
        // A panic while the lock was held leaves a valid map.
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The series of leases stay until the name is removed: an earlier entry of that name may have leases left.
fn add(present: &mut BTreeMap<String, bool>, name: &str, lends: bool) {
    *present.entry(name.to_owned()).or_default() |= lends;
}

/// Counts the requests to Consul.
impl Observer for Metrics {
    fn finished(&self, tried: &Tried, code: Code, took: Duration) {
        let label = tried.operation.label();
        self.agent.consul_requests.with_label_values(&[label, code.as_str()]).inc();
        // A watch waits for a change: its duration says nothing about Consul.
        if tried.operation != Operation::KvWatch {
            self.agent.consul_request_duration.with_label_values(&[label]).observe(secs(took));
        }
    }
}

/// As Unix time; 0 for none.
fn date(at: Option<Moment>, wall: Wall) -> f64 {
    let at = at.and_then(|at| wall.at(at).duration_since(std::time::UNIX_EPOCH).ok());
    at.map_or(0.0, secs)
}

fn secs(time: Duration) -> f64 {
    time.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_series_of_a_semaphore_exist_until_it_is_removed() {
        let metrics = Metrics::new().unwrap();
        metrics.add_semaphore("s", true);
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
            "slotkeeper_last_seen_timestamp_seconds{semaphore=\"s\"} 0",
            "slotkeeper_leases{semaphore=\"s\"} 0",
            "slotkeeper_lease_waiters{semaphore=\"s\"} 0",
            "slotkeeper_leases_expired_total{semaphore=\"s\"} 0",
            "slotkeeper_session_ttl_seconds 0",
            "slotkeeper_session_renew_duration_seconds_count 0",
            "slotkeeper_session_renew_failures_total{reason=\"denied\"} 0",
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

    #[test]
    fn the_series_of_a_request_appear_with_its_first_use() {
        let metrics = Metrics::new().unwrap();
        let requests = || {
            let text = encode(&metrics.registry.gather()).unwrap();
            let lines = text.lines().filter(|line| line.starts_with("slotkeeper_consul_request"));
            lines.map(str::to_owned).filter(|line| !line.contains("_bucket{")).collect::<Vec<_>>()
        };
        assert!(requests().is_empty(), "{:?}", requests());
        let tried = Tried { operation: Operation::Txn, target: String::new(), address: "".into() };
        metrics.finished(&tried, Code::Timeout, Duration::from_secs(2));
        assert_eq!(
            requests(),
            [
                "slotkeeper_consul_request_duration_seconds_sum{operation=\"txn\"} 2",
                "slotkeeper_consul_request_duration_seconds_count{operation=\"txn\"} 1",
                "slotkeeper_consul_requests_total{code=\"timeout\",operation=\"txn\"} 1",
            ]
        );
    }
}
