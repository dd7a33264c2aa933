//! The status of an agent: what the endpoints, the files, the metrics and the command line read.

mod agent;
mod changes;
mod configuration;
mod consul;
mod identity;
mod lease;
mod lock;
mod moments;
mod semaphore;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use slotkeeper_semaphore::{Moment, Wall};

pub use agent::{Agent, Check, Session};
pub use changes::{Change, Id, What};
use configuration::ConfigurationReport;
pub use configuration::{Configuration, LastReload};
use consul::ConsulReport;
pub use consul::{Address, AddressState};
pub use lease::{Lease, Mode};
pub use lock::{Leader, Lock};
pub use moments::Moments;
use moments::seconds;
pub use semaphore::{Holder, Semaphore, Waiter};

/// The whole status: what `/v1/status` answers and the command line reads, be it from an agent of another version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// The agent.
    pub agent: Agent,
    /// The configuration in force.
    #[serde(default)]
    #[schema(required = true)]
    configuration: ConfigurationReport,
    /// How Consul is reached.
    #[serde(default)]
    #[schema(required = true)]
    consul: ConsulReport,
    /// The session that all slots belong to; null before there is one.
    #[schema(required = true)]
    pub session: Option<Session>,
    /// The semaphores, in the configuration's order.
    #[serde(default)]
    #[schema(required = true)]
    pub semaphores: Vec<Semaphore>,
    /// The locks, in the configuration's order.
    #[serde(default)]
    #[schema(required = true)]
    pub locks: Vec<Lock>,
}

/// What an agent is doing as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// It has not read Consul yet.
    Starting,
    /// It acquires and holds slots.
    Running,
    /// It releases everything.
    Draining,
    /// Of an agent of another version: none that this version knows.
    #[default]
    #[serde(other, skip_serializing)]
    Unknown,
}

impl Stage {
    /// Its name in the status.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Draining => "draining",
            Self::Unknown => "unknown",
        }
    }
}

/// An agent at one instant. Its readiness is computed with the time, so that an expired lease is never reported as
/// fresh, even by an agent that has not noticed yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Identifies the snapshot among the changes: it follows all of those that it has.
    pub id: Id,
    /// The last changes, from the oldest on.
    pub changes: Arc<VecDeque<Change>>,
    /// What it is doing.
    pub stage: Stage,
    /// When its process began.
    pub started_at: Moment,
    /// Whether all required slots have been held at some time.
    pub started_up: bool,
    /// The configuration in force.
    pub configuration: Configuration,
    /// Consul's addresses, in the order of the configuration.
    pub consul: Vec<Address>,
    /// The session, once there is one.
    pub session: Option<Session>,
    /// The semaphores, in the order of the configuration. What has not changed is shared with the snapshot before.
    pub semaphores: Vec<Arc<Semaphore>>,
    /// The locks, in the same.
    pub locks: Vec<Arc<Lock>>,
}

/// The states a semaphore can be in, as the status spells them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// On demand: no active lease.
    Idle,
    /// Configured, and not applied by the agent yet; `reason` says why.
    Pending,
    /// Nothing is known yet, or what was seen last cannot be relied on.
    Starting,
    /// In the queue.
    Waiting,
    /// Held.
    Held,
    /// Cannot proceed until a problem is fixed; `reason` says which.
    Blocked,
    /// Being released.
    Leaving,
    /// The wait timed out.
    GaveUp,
    /// Lost, and not acquired again.
    Lost,
    /// Released.
    Released,
    /// Of an agent of another version: none that this version knows.
    #[default]
    #[serde(other, skip_serializing)]
    Unknown,
}

impl State {
    /// Its name in the status.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Pending => "pending",
            Self::Starting => "starting",
            Self::Waiting => "waiting",
            Self::Held => "held",
            Self::Blocked => "blocked",
            Self::Leaving => "leaving",
            Self::GaveUp => "gave_up",
            Self::Lost => "lost",
            Self::Released => "released",
            Self::Unknown => "unknown",
        }
    }
}

impl Snapshot {
    /// Every required slot is held, its lease is fresh, and nothing is being released.
    pub fn is_ready(&self, now: Moment) -> bool {
        self.checks(now, Duration::ZERO).iter().all(|check| check.passed)
    }

    /// What readiness consists of, where the lease is to have at least so much left.
    pub fn checks(&self, now: Moment, lease_left: Duration) -> Vec<Check> {
        let mut checks = vec![Check {
            name: "agent".into(),
            passed: self.stage == Stage::Running,
            detail: self.stage.as_str().to_owned(),
        }];
        let semaphores = self.semaphores.iter().filter(|semaphore| semaphore.required).map(|one| one.check());
        let locks = self.locks.iter().filter(|lock| lock.required).map(|one| one.check());
        let required: Vec<_> = semaphores.chain(locks).collect();
        if !required.is_empty() {
            checks.push(self.lease_check(now, lease_left));
        }
        checks.extend(required);
        checks
    }

    fn lease_check(&self, now: Moment, least: Duration) -> Check {
        let (passed, detail) = match self.lease_left(now) {
            None => (false, "no session".to_owned()),
            Some(Duration::ZERO) => (false, "the lease has expired".to_owned()),
            Some(left) if left < least => (
                false,
                format!(
                    "{:.1} s left, fewer than the {} s asked for",
                    left.as_secs_f64(),
                    least.as_secs_f64()
                ),
            ),
            Some(left) => (true, format!("{} s left", left.as_secs())),
        };
        Check { name: "lease".into(), passed, detail }
    }

    /// The lease time left; zero once the lease has expired.
    pub fn lease_left(&self, now: Moment) -> Option<Duration> {
        Some(self.session.as_ref()?.lease_ends?.since(now))
    }

    /// The status as `/v1/status` has it.
    pub fn report(&self, now: Moment, wall: Wall) -> Status {
        let checks = self.checks(now, Duration::ZERO);
        let session = self.session.as_ref().map(|session| session.report(now));
        Status {
            agent: Agent {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                state: self.stage,
                ready: checks.iter().all(|check| check.passed),
                checks,
                started_at: wall.text(self.started_at),
                now: wall.text(now),
            },
            configuration: self.configuration.report(wall),
            consul: ConsulReport { addresses: self.consul.clone() },
            session,
            semaphores: self.semaphores.iter().map(|one| self.semaphore_report(one, now, wall)).collect(),
            locks: self.locks.iter().map(|one| self.lock_report(one, now, wall)).collect(),
        }
    }

    /// A semaphore as `/v1/semaphores/{name}` has it.
    pub fn semaphore_report(&self, semaphore: &Semaphore, now: Moment, wall: Wall) -> Semaphore {
        semaphore.report(self.lease_left(now), now, wall)
    }

    /// A lock as `/v1/locks/{name}` has it.
    pub fn lock_report(&self, lock: &Lock, now: Moment, wall: Wall) -> Lock {
        lock.report(self.lease_left(now), now, wall)
    }

    /// What the readiness file holds: the session, for each held semaphore its fencing token and the slot's number, and
    /// for each held lock its fencing token and LockIndex. Leases are their clients'.
    pub fn file(&self) -> serde_json::Value {
        let own = self.semaphores.iter().filter(|semaphore| semaphore.mode == Mode::Hold);
        let held = own.filter(|semaphore| semaphore.state == State::Held);
        let semaphores: BTreeMap<_, _> = held
            .map(|semaphore| {
                let held = serde_json::json!({
                    "fencing_token": semaphore.fencing_token,
                    "slot": semaphore.slot_indexes.first(),
                    "slot_indexes": semaphore.slot_indexes,
                });
                (semaphore.name.as_str(), held)
            })
            .collect();
        let own = self.locks.iter().filter(|lock| lock.mode == Mode::Hold);
        let held = own.filter(|lock| lock.state == State::Held);
        let locks: BTreeMap<_, _> = held
            .map(|lock| {
                let held = serde_json::json!({
                    "fencing_token": lock.fencing_token,
                    "lock_index": lock.lock_index,
                });
                (lock.name.as_str(), held)
            })
            .collect();
        serde_json::json!({
            "session": self.session.as_ref().map(|session| &session.id),
            "semaphores": semaphores,
            "locks": locks,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_of_another_version_is_read_as_far_as_it_is_known() {
        let text = r#"{"agent":{"version":"9.0.0","state":"dozing","ready":true,"mood":"good"},"future":[1],
            "consul":{"addresses":[{"address":"a","state":"lukewarm"}]},
            "semaphores":[{"name":"w","state":"borrowed","mode":"shared","tags":["x"],"limit":3}]}"#;
        let status: Status = serde_json::from_str(text).unwrap();
        assert_eq!((status.agent.state, status.session, status.locks.len()), (Stage::Unknown, None, 0));
        let semaphore = &status.semaphores[0];
        assert_eq!((semaphore.state, semaphore.mode), (State::Unknown, Mode::Unknown));
        assert_eq!((semaphore.limit, semaphore.slots_taken, semaphore.holders.len()), (Some(3), None, 0));
    }
}
