//! What the world may see of an agent: a leaf that the endpoints, the files and the metrics read from.

mod changes;
mod configuration;
mod consul;
mod identity;
mod lease;
mod lock;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;

use slotkeeper_semaphore::{Identity, Moment, Wall};

pub use changes::{Change, Id, What};
use configuration::ConfigurationReport;
pub use configuration::{Configuration, LastReload};
use consul::ConsulReport;
pub use consul::{Address, AddressState};
use identity::IdentitySchema;
use lease::LeaseReport;
pub use lease::{Lease, Mode};
pub use lock::{Leader, Lock, LockReport};

/// What an agent is doing as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// It has not looked around yet.
    Starting,
    /// It asks for slots and holds them.
    Running,
    /// It gives everything back.
    Draining,
}

/// An agent at one instant. Whether it is ready is asked of it with the time, so that a lease which has run out is
/// never reported as fresh, even by an agent that has not noticed yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Names it, among the changes as well: it was told after all of those that it has.
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

/// The session of an agent.
#[derive(Clone, Debug, PartialEq)]
pub struct Session {
    /// Its id.
    pub id: String,
    /// Its configured name.
    pub name: String,
    /// Its TTL.
    pub ttl: Duration,
    /// The instant from which nothing that hangs on it may be believed.
    pub lease_ends: Moment,
}

/// The states a semaphore can be in, as the status spells them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Taken on demand, and nobody wants it.
    Idle,
    /// Configured, and not taken over by the agent yet; `reason` says what is in the way.
    Pending,
    /// Nothing is known yet, or what was seen last cannot be relied on.
    Starting,
    /// In line.
    Waiting,
    /// Held.
    Held,
    /// Kept out until somebody mends something; `reason` says what.
    Blocked,
    /// Being given back.
    Leaving,
    /// The bound on waiting has passed.
    GaveUp,
    /// Lost, and not asked for again.
    Lost,
    /// Given back.
    Released,
}

impl State {
    /// The spelling in the status.
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
        }
    }
}

/// One semaphore of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Semaphore {
    /// Its configured name.
    pub name: String,
    /// Its key prefix.
    pub prefix: String,
    /// Whether readiness waits for it.
    pub required: bool,
    /// How it is taken.
    pub mode: Mode,
    /// Where it stands. On demand: `Held` where a client has a lease, `Waiting` where one waits for it, or `Idle`.
    pub state: State,
    /// What is wrong, if anything is.
    pub reason: Option<String>,
    /// What the configuration says otherwise by now, if an automatic reload has left it as it was.
    pub deferred: Option<String>,
    /// Slots that this workload takes.
    pub slots: u32,
    /// Since when it is held.
    pub held_since: Option<Moment>,
    /// `.lock`'s index at the grant.
    pub fencing_token: Option<u64>,
    /// The numbers of the slots that are held.
    pub indexes: Vec<u32>,
    /// The limit in force; `None` where it is not known.
    pub limit: Option<u32>,
    /// The configured limit.
    pub configured_limit: u32,
    /// Slots taken by anybody; `None` where that is not known.
    pub taken: Option<u32>,
    /// Who takes them, the first of them: our own, then the dead, then the others in the record's order.
    pub holders: Vec<Holder>,
    /// How many there are in all.
    pub holder_count: u32,
    /// Live contenders that hold nothing.
    pub waiters: u32,
    /// The first of them, in order.
    pub queue: Vec<Waiter>,
    /// The own place among them, from 1.
    pub position: Option<u32>,
    /// Since when the slot is asked for, while it is not held.
    pub asked_at: Option<Moment>,
    /// When limit, holders and queue were looked at last, all together; `None` where nothing is known of them.
    pub seen_at: Option<Moment>,
    /// The leases, from the oldest on. What stands above of a slot that is held or waited for stands there of each.
    pub leases: Vec<Lease>,
}

/// One holder of a semaphore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Holder {
    /// Its session.
    pub session: String,
    /// Slots that it takes.
    pub slots: u32,
    /// Whether it is this agent.
    pub mine: bool,
    /// Whether it has a live contender entry; nothing (null) where it came in since everything was looked at last, so that this
    /// is not known.
    #[schema(required = true)]
    pub alive: Option<bool>,
    /// Who it says it is; missing for another kind of client.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<IdentitySchema>)]
    pub who: Option<Identity>,
}

/// One in line for a semaphore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Waiter {
    /// Its session.
    pub session: String,
    /// Slots that it wants.
    pub slots: u32,
    /// Whether it is this agent.
    pub mine: bool,
    /// Who it says it is; missing for another kind of client.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<IdentitySchema>)]
    pub who: Option<Identity>,
}

/// One thing that readiness depends on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Check {
    /// What is checked.
    pub name: String,
    /// Whether it is as it should be.
    pub passed: bool,
    /// How it stands, in a few words.
    pub detail: String,
}

impl Snapshot {
    /// Every required slot is held, its lease is fresh, and nothing is being given back.
    pub fn is_ready(&self, now: Moment) -> bool {
        self.checks(now, Duration::ZERO).iter().all(|check| check.passed)
    }

    /// What readiness consists of, where the lease is to have at least so much left.
    pub fn checks(&self, now: Moment, lease_left: Duration) -> Vec<Check> {
        let mut checks = vec![Check {
            name: "agent".into(),
            passed: self.stage == Stage::Running,
            detail: match self.stage {
                Stage::Starting => "starting".into(),
                Stage::Running => "running".into(),
                Stage::Draining => "draining".into(),
            },
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
        let left = self.session.as_ref().map(|session| session.lease_ends.since(now));
        let (passed, detail) = match left {
            None => (false, "no session".to_owned()),
            Some(Duration::ZERO) => (false, "the lease has run out".to_owned()),
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

    /// The lease time left; zero once it has run out.
    pub fn lease_left(&self, now: Moment) -> Option<Duration> {
        self.session.as_ref().map(|session| session.lease_ends.since(now))
    }

    /// The status as the endpoint gives it.
    pub fn report(&self, now: Moment, wall: Wall) -> Report<'_> {
        let checks = self.checks(now, Duration::ZERO);
        Report {
            agent: AgentReport {
                version: env!("CARGO_PKG_VERSION"),
                state: self.stage,
                ready: checks.iter().all(|check| check.passed),
                checks,
                started_at: wall.text(self.started_at),
                now: wall.text(now),
            },
            configuration: self.configuration.report(wall),
            consul: ConsulReport { addresses: &self.consul },
            session: self.session.as_ref().map(|session| SessionReport {
                id: &session.id,
                name: &session.name,
                ttl_seconds: session.ttl.as_secs_f64(),
                lease_remaining_seconds: seconds(session.lease_ends.since(now)),
            }),
            semaphores: self.semaphores.iter().map(|one| self.semaphore_report(one, now, wall)).collect(),
            locks: self.locks.iter().map(|one| self.lock_report(one, now, wall)).collect(),
        }
    }

    /// One semaphore of the same.
    pub fn semaphore_report<'a>(
        &'a self,
        semaphore: &'a Semaphore,
        now: Moment,
        wall: Wall,
    ) -> SemaphoreReport<'a> {
        SemaphoreReport {
            name: &semaphore.name,
            prefix: &semaphore.prefix,
            state: semaphore.state,
            reason: semaphore.reason.as_deref(),
            deferred: semaphore.deferred.as_deref(),
            required: semaphore.required,
            mode: semaphore.mode,
            slots: semaphore.slots,
            held_since: semaphore.held_since.map(|since| wall.text(since)),
            fencing_token: semaphore.fencing_token,
            slot: semaphore.indexes.first().copied(),
            slot_indexes: &semaphore.indexes,
            lease_remaining_seconds: semaphore.held_since.and_then(|_| self.lease_left(now)).map(seconds),
            waiting_seconds: semaphore.asked_at.map(|since| seconds(now.since(since))),
            limit: semaphore.seen_at.and(semaphore.limit),
            configured_limit: semaphore.configured_limit,
            slots_taken: semaphore.seen_at.and(semaphore.taken),
            holder_count: semaphore.seen_at.and(semaphore.taken).map(|_| semaphore.holder_count),
            holders: &semaphore.holders,
            queue_length: semaphore.seen_at.map(|_| semaphore.waiters),
            queue_position: semaphore.position,
            queue: &semaphore.queue,
            seen_seconds_ago: semaphore.seen_at.map(|at| seconds(now.since(at))),
            leases: semaphore.leases.iter().map(|lease| lease.report(now, wall)).collect(),
        }
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
                    "slot": semaphore.indexes.first(),
                    "slot_indexes": semaphore.indexes,
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

impl Semaphore {
    fn check(&self) -> Check {
        let name = format!("semaphore/{}", self.name);
        let mut detail = self.state.as_str().to_owned();
        if let (State::Waiting, Some(position)) = (self.state, self.position) {
            detail.push_str(&format!(", {position} of {} in line", self.waiters));
        }
        if let Some(reason) = &self.reason {
            detail.push_str(&format!(": {reason}"));
        }
        Check { name, passed: self.state == State::Held, detail }
    }
}

/// To the millisecond: more is noise.
fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1000.0).round() / 1000.0
}

/// The whole status.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Status)]
pub struct Report<'a> {
    agent: AgentReport,
    /// The configuration in force.
    configuration: ConfigurationReport,
    /// How Consul is reached.
    consul: ConsulReport<'a>,
    /// The session that all slots belong to; null before there is one.
    #[schema(required = true)]
    session: Option<SessionReport<'a>>,
    /// The semaphores, in the configuration's order.
    semaphores: Vec<SemaphoreReport<'a>>,
    /// The locks, in the configuration's order.
    locks: Vec<LockReport<'a>>,
}

/// The agent.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Agent)]
struct AgentReport {
    /// Its version.
    version: &'static str,
    /// What it is doing as a whole.
    state: Stage,
    /// Whether every required slot is held with a fresh lease.
    ready: bool,
    /// What that consists of, as `/readyz?verbose` lists it.
    checks: Vec<Check>,
    /// When its process began, in UTC.
    #[schema(format = DateTime)]
    started_at: String,
    /// When this was said, in UTC.
    #[schema(format = DateTime)]
    now: String,
}

/// A session in Consul.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Session)]
struct SessionReport<'a> {
    /// Its id.
    id: &'a str,
    /// Its configured name.
    name: &'a str,
    /// Its TTL in Consul.
    ttl_seconds: f64,
    /// Until then what hangs on it may be believed.
    #[schema(minimum = 0)]
    lease_remaining_seconds: f64,
}

/// One semaphore.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Semaphore)]
pub struct SemaphoreReport<'a> {
    /// Its configured name.
    name: &'a str,
    /// Its key prefix.
    prefix: &'a str,
    /// Where it stands.
    state: State,
    /// What is wrong; missing where nothing is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    reason: Option<&'a str>,
    /// What the configuration says otherwise by now, where an automatic reload has left it as it was: an explicit reload takes it
    /// over. Missing where there is nothing of the kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    deferred: Option<&'a str>,
    /// Whether readiness waits for it.
    required: bool,
    /// How it is taken.
    mode: Mode,
    /// Slots that this workload takes.
    slots: u32,
    /// Since when it is held, in UTC; null where it is not.
    #[schema(required = true, format = DateTime)]
    held_since: Option<String>,
    /// Grows from grant to grant; null where it is not held.
    #[schema(required = true)]
    fencing_token: Option<u64>,
    /// The number of its first slot; null where none is known.
    #[schema(required = true)]
    slot: Option<u32>,
    /// The numbers of all its slots.
    slot_indexes: &'a [u32],
    /// Until then the slot may be believed in; null where it is not held.
    #[schema(required = true, minimum = 0)]
    lease_remaining_seconds: Option<f64>,
    /// For how long it has been asked for; null where it is not.
    #[schema(required = true, minimum = 0)]
    waiting_seconds: Option<f64>,
    /// The limit in force; null before anything was seen, and where what lies there is no semaphore.
    #[schema(required = true)]
    limit: Option<u32>,
    /// The configured limit.
    configured_limit: u32,
    /// Slots taken by anybody; null as the limit is.
    #[schema(required = true)]
    slots_taken: Option<u32>,
    /// How many hold them; null as the limit is.
    #[schema(required = true)]
    holder_count: Option<u32>,
    /// The first 100 of these: this agent's, then the dead, then the others in the record's order.
    holders: &'a [Holder],
    /// How many wait; null before anything was seen.
    #[schema(required = true)]
    queue_length: Option<u32>,
    /// The own place among them, from 1; null where this workload does not wait.
    #[schema(required = true)]
    queue_position: Option<u32>,
    /// The first 20 in line, in order.
    queue: &'a [Waiter],
    /// How old this picture of limit, holders and queue is; null before there is one.
    #[schema(required = true, minimum = 0)]
    seen_seconds_ago: Option<f64>,
    /// What clients have of it, or wait for.
    leases: Vec<LeaseReport<'a>>,
}
