//! What the world may see of an agent: a leaf that the endpoints, the files and the metrics read from.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::semaphore::{Identity, Moment, Wall};

/// What an agent is doing as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
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
    /// What it is doing.
    pub stage: Stage,
    /// When its process began.
    pub started_at: Moment,
    /// Whether all required slots have been held at some time.
    pub started_up: bool,
    /// The session, once there is one.
    pub session: Option<Session>,
    /// The semaphores, in the order of the configuration.
    pub semaphores: Vec<Semaphore>,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Taken on demand, and nobody wants it.
    Idle,
    /// Nothing is known yet, or not any more.
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
#[derive(Clone, Debug, PartialEq)]
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
    /// Slots that this workload takes.
    pub slots: u32,
    /// Since when it is held.
    pub held_since: Option<Moment>,
    /// `.lock`'s index at the grant.
    pub fencing_token: Option<u64>,
    /// The numbers of the slots that are held.
    pub indexes: Vec<u32>,
    /// The limit in force: the stored one, or before it is known the configured one.
    pub limit: u32,
    /// The configured limit.
    pub configured_limit: u32,
    /// Slots taken by anybody.
    pub taken: u32,
    /// Who takes them, in the record's order.
    pub holders: Vec<Holder>,
    /// Live contenders that hold nothing.
    pub waiters: u32,
    /// The own place among them, from 1.
    pub position: Option<u32>,
    /// Since when the slot is asked for, while it is not held.
    pub asked_at: Option<Moment>,
    /// When limit, holders and queue were looked at last, all together; `None` where nothing is known of them.
    pub seen_at: Option<Moment>,
    /// The leases, from the oldest on. What stands above of a slot that is held or waited for stands there of each.
    pub leases: Vec<Lease>,
}

/// How a semaphore is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// By the agent, for as long as it runs.
    Hold,
    /// By clients, each with a lease.
    OnDemand,
}

/// A lease, for those who only look: its id is not among it, since whoever knows that can give the lease back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Its session, once there is one.
    pub session: Option<String>,
    /// `Waiting`, `Held` or `Leaving`.
    pub state: State,
    /// The numbers of the slots that are held.
    pub indexes: Vec<u32>,
    /// The fencing token.
    pub fencing_token: Option<u64>,
    /// Since when it is held.
    pub held_since: Option<Moment>,
    /// Until when it may be believed in, unless it is renewed.
    pub expires_at: Option<Moment>,
    /// Since when it is waited for, while it is not held.
    pub asked_at: Option<Moment>,
}

/// One holder of a semaphore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// Its session.
    pub session: String,
    /// Slots that it takes.
    pub slots: u32,
    /// Whether it is this agent.
    pub mine: bool,
    /// Whether it has a live contender entry; `None` where it came in since everything was looked at last, so that this
    /// is not known.
    pub alive: Option<bool>,
    /// Who it says it is; missing for another kind of client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub who: Option<Identity>,
}

/// One thing that readiness depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
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
        self.checks(now).iter().all(|check| check.passed)
    }

    /// What readiness consists of.
    pub fn checks(&self, now: Moment) -> Vec<Check> {
        let mut checks = vec![Check {
            name: "agent".into(),
            passed: self.stage == Stage::Running,
            detail: match self.stage {
                Stage::Starting => "starting".into(),
                Stage::Running => "running".into(),
                Stage::Draining => "draining".into(),
            },
        }];
        let required: Vec<_> = self.semaphores.iter().filter(|semaphore| semaphore.required).collect();
        if !required.is_empty() {
            checks.push(self.lease_check(now));
        }
        checks.extend(required.into_iter().map(Semaphore::check));
        checks
    }

    fn lease_check(&self, now: Moment) -> Check {
        let left = self.session.as_ref().map(|session| session.lease_ends.since(now));
        let (passed, detail) = match left {
            None => (false, "no session".to_owned()),
            Some(Duration::ZERO) => (false, "the lease has run out".to_owned()),
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
        Report {
            agent: AgentReport {
                version: env!("CARGO_PKG_VERSION"),
                state: self.stage,
                ready: self.is_ready(now),
                started_at: wall.text(self.started_at),
            },
            session: self.session.as_ref().map(|session| SessionReport {
                id: &session.id,
                name: &session.name,
                ttl_seconds: session.ttl.as_secs_f64(),
                lease_remaining_seconds: seconds(session.lease_ends.since(now)),
            }),
            semaphores: self.semaphores.iter().map(|one| self.semaphore_report(one, now, wall)).collect(),
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
            required: semaphore.required,
            mode: semaphore.mode,
            slots: semaphore.slots,
            held_since: semaphore.held_since.map(|since| wall.text(since)),
            fencing_token: semaphore.fencing_token,
            slot: semaphore.indexes.first().copied(),
            slot_indexes: &semaphore.indexes,
            lease_remaining_seconds: semaphore.held_since.and_then(|_| self.lease_left(now)).map(seconds),
            waiting_seconds: semaphore.asked_at.map(|since| seconds(now.since(since))),
            limit: semaphore.seen_at.map(|_| semaphore.limit),
            configured_limit: semaphore.configured_limit,
            slots_taken: semaphore.seen_at.map(|_| semaphore.taken),
            holders: &semaphore.holders,
            queue_length: semaphore.seen_at.map(|_| semaphore.waiters),
            queue_position: semaphore.position,
            seen_seconds_ago: semaphore.seen_at.map(|at| seconds(now.since(at))),
            leases: semaphore.leases.iter().map(|lease| lease.report(now, wall)).collect(),
        }
    }

    /// What the readiness file holds: the session, and for each held semaphore its fencing token and the slot's number.
    /// Leases are their clients'.
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
        serde_json::json!({
            "session": self.session.as_ref().map(|session| &session.id),
            "semaphores": semaphores,
        })
    }
}

impl Lease {
    /// Whether it is held, and may be believed in.
    pub fn is_held(&self, now: Moment) -> bool {
        self.state == State::Held && self.expires_at.is_some_and(|at| now < at)
    }

    fn report(&self, now: Moment, wall: Wall) -> LeaseReport<'_> {
        LeaseReport {
            session: self.session.as_deref(),
            state: self.state,
            slot: self.indexes.first().copied(),
            slot_indexes: &self.indexes,
            fencing_token: self.fencing_token,
            held_since: self.held_since.map(|since| wall.text(since)),
            expires_in_seconds: self.expires_at.map(|at| seconds(at.since(now))),
            waiting_seconds: self.asked_at.map(|since| seconds(now.since(since))),
        }
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

/// The JSON of `/v1/status`.
#[derive(Debug, Serialize)]
pub struct Report<'a> {
    agent: AgentReport,
    session: Option<SessionReport<'a>>,
    semaphores: Vec<SemaphoreReport<'a>>,
}

#[derive(Debug, Serialize)]
struct AgentReport {
    version: &'static str,
    state: Stage,
    ready: bool,
    started_at: String,
}

#[derive(Debug, Serialize)]
struct SessionReport<'a> {
    id: &'a str,
    name: &'a str,
    ttl_seconds: f64,
    lease_remaining_seconds: f64,
}

/// The JSON of `/v1/semaphores/{name}`.
#[derive(Debug, Serialize)]
pub struct SemaphoreReport<'a> {
    name: &'a str,
    prefix: &'a str,
    state: State,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    required: bool,
    mode: Mode,
    slots: u32,
    held_since: Option<String>,
    fencing_token: Option<u64>,
    slot: Option<u32>,
    slot_indexes: &'a [u32],
    lease_remaining_seconds: Option<f64>,
    waiting_seconds: Option<f64>,
    limit: Option<u32>,
    configured_limit: u32,
    slots_taken: Option<u32>,
    holders: &'a [Holder],
    queue_length: Option<u32>,
    queue_position: Option<u32>,
    seen_seconds_ago: Option<f64>,
    leases: Vec<LeaseReport<'a>>,
}

#[derive(Debug, Serialize)]
struct LeaseReport<'a> {
    session: Option<&'a str>,
    state: State,
    slot: Option<u32>,
    slot_indexes: &'a [u32],
    fencing_token: Option<u64>,
    held_since: Option<String>,
    expires_in_seconds: Option<f64>,
    waiting_seconds: Option<f64>,
}
