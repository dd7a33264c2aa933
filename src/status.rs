//! The status of an agent: what the endpoints, the files, the metrics and the command line read.

mod agent;
pub(crate) mod changes;
mod configuration;
mod consul;
mod entry;
mod lease;
mod lock;
mod moments;
mod participant;
pub(crate) mod readiness;
mod semaphore;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::schema_version::SchemaVersion;
use slotkeeper_semaphore::{Identity, Moment, Wall};

pub use agent::{Agent, Check, Session};
pub use changes::{Change, Event, Id, Subject};
use configuration::ConfigurationReport;
pub use configuration::{Configuration, LastReload, ReloadSignals, SignalAnswer, pid_namespace};
pub use consul::{Address, AddressState, ConsulReport};
pub use entry::Entry;
pub use lease::{Lease, Mode};
pub use lock::{Leader, Lock};
pub use moments::Moments;
use participant::age;
pub use participant::{Health, Kind, date};
pub use semaphore::{Holder, RING_ADVICE, Semaphore, Waiter};

/// The whole status: the document of `/v1/status`, which the command line also parses from agents of other versions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The version of this document's schema.
    #[serde(default)]
    schema_version: SchemaVersion,
    /// The agent.
    pub agent: Agent,
    /// The configuration in force.
    #[serde(default)]
    configuration: ConfigurationReport,
    /// The connection to Consul.
    #[serde(default)]
    pub consul: ConsulReport,
    /// The session of all slots; null before there is one.
    pub session: Option<Session>,
    /// The semaphores, in the configuration's order.
    #[serde(default)]
    pub semaphores: Vec<Semaphore>,
    /// The locks, in the configuration's order.
    #[serde(default)]
    pub locks: Vec<Lock>,
}

impl Status {
    /// The reloads by SIGHUP; `None` if the process passes SIGHUP on to its command.
    pub fn reload_signals(&self) -> Option<&ReloadSignals> {
        self.configuration.signals.as_ref()
    }
}

/// The state of an agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// It has not read Consul yet.
    Starting,
    /// It acquires and holds slots.
    Running,
    /// It releases everything.
    Draining,
    /// An unknown value, of an agent of another version.
    #[default]
    #[serde(other)]
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
    /// Its id, which follows those of its changes.
    pub id: Id,
    /// The last changes, the oldest first.
    pub changes: Arc<VecDeque<Change>>,
    /// The agent's identity.
    pub who: Identity,
    /// The agent's state.
    pub stage: Stage,
    /// The start of its process.
    pub started_at: Moment,
    /// Whether all required slots were held at some time.
    pub started_up: bool,
    /// The configuration in force.
    pub configuration: Configuration,
    /// The connection to Consul.
    pub consul: ConsulReport,
    /// The session, once there is one.
    pub session: Option<Session>,
    /// The semaphores, in the order of the configuration. Unchanged ones are shared with the snapshot before.
    pub semaphores: Vec<Arc<Semaphore>>,
    /// The locks, in the order of the configuration.
    pub locks: Vec<Arc<Lock>>,
}

/// The states a semaphore can be in, as the status spells them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// On demand: no active lease.
    Idle,
    /// Configured, and not applied by the agent yet; `reason` says why.
    Pending,
    /// Not read yet, or the last known state is unreliable.
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
    TimedOut,
    /// Lost, and not acquired again.
    Lost,
    /// Released.
    Released,
    /// An unknown value, of an agent of another version.
    #[default]
    #[serde(other)]
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
            Self::TimedOut => "timed_out",
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

    /// The checks of readiness, for a lease with at least this time left.
    pub fn checks(&self, now: Moment, lease_left: Duration) -> Vec<Check> {
        let mut checks = vec![Check {
            name: "agent".into(),
            passed: self.stage == Stage::Running,
            detail: self.stage.as_str().to_owned(),
        }];
        let semaphores = self.semaphores.iter().filter(|one| one.entry.required).map(|one| one.check());
        let locks = self.locks.iter().filter(|one| one.entry.required).map(|one| one.check());
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

    /// The document of `/v1/status`.
    pub fn report(&self, now: Moment, wall: Wall) -> Status {
        let checks = self.checks(now, Duration::ZERO);
        let session = self.session.as_ref().map(|session| session.report(now, wall));
        Status {
            schema_version: SchemaVersion::default(),
            agent: Agent {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                who: self.who.clone(),
                state: self.stage,
                ready: checks.iter().all(|check| check.passed),
                checks,
                started_at: wall.text(self.started_at),
                now: wall.text(now),
            },
            configuration: self.configuration.report(wall),
            consul: self.consul.clone(),
            session,
            semaphores: self.semaphores.iter().map(|one| self.semaphore_report(one, now, wall)).collect(),
            locks: self.locks.iter().map(|one| self.lock_report(one, now, wall)).collect(),
        }
    }

    /// A semaphore as the status shows it.
    pub fn semaphore_report(&self, semaphore: &Semaphore, now: Moment, wall: Wall) -> Semaphore {
        semaphore.report(self.lease_left(now), now, wall)
    }

    /// A lock as the status shows it.
    pub fn lock_report(&self, lock: &Lock, now: Moment, wall: Wall) -> Lock {
        lock.report(self.lease_left(now), now, wall)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_of_another_version_is_read_as_far_as_it_is_known() {
        let text = r#"{"agent":{"version":"9.0.0","state":"dozing","ready":true,"mood":"good"},"future":[1],
            "configuration":{"source":"git"},"consul":{"addresses":[{"address":"a","state":"lukewarm"},{"host":"b"}]},
            "semaphores":[{"name":"w","state":"borrowed","mode":"shared","tags":["x"],"limit":3}]}"#;
        let status: Status = serde_json::from_str(text).unwrap();
        assert_eq!((status.agent.state, status.session, status.locks.len()), (Stage::Unknown, None, 0));
        let semaphore = &status.semaphores[0];
        assert_eq!((semaphore.entry.state, semaphore.entry.mode), (State::Unknown, Mode::Unknown));
        assert_eq!((semaphore.limit, semaphore.slots_taken, semaphore.holders.len()), (Some(3), None, 0));
        assert_eq!(status.consul.addresses.len(), 2);
    }

    #[test]
    fn a_state_that_was_not_set_is_unknown_and_does_not_break_the_report() {
        let report = serde_json::to_value((Semaphore::default(), Lock::default(), Lease::default())).unwrap();
        assert_eq!((&report[0]["state"], &report[0]["mode"]), (&"unknown".into(), &"unknown".into()));
        assert_eq!((&report[1]["state"], &report[2]["state"]), (&"unknown".into(), &"unknown".into()));
    }
}
