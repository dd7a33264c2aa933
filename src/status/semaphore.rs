//! A semaphore, its holders and its queue.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::identity::IdentitySchema;
use super::{Check, Lease, Mode, Moments, State, seconds};
use slotkeeper_semaphore::{Identity, Moment, Wall};

/// One semaphore.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Semaphore {
    /// Its configured name.
    pub name: String,
    /// Its key prefix.
    #[serde(default)]
    #[schema(required = true)]
    pub prefix: String,
    /// Its state. On demand: `held` if a client holds a lease, `waiting` if clients only wait, else `idle`.
    pub state: State,
    /// The problem; missing if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub reason: Option<String>,
    /// The changed configuration that an automatic reload has not applied: an explicit reload applies it. Missing if there is
    /// none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub deferred: Option<String>,
    /// Whether readiness waits for it.
    #[serde(default)]
    #[schema(required = true)]
    pub required: bool,
    /// How it is acquired.
    #[serde(default)]
    #[schema(required = true)]
    pub mode: Mode,
    /// Slots that this workload needs.
    #[serde(default)]
    #[schema(required = true)]
    pub slots: u32,
    /// Since when it is held, in UTC; null if it is not.
    #[schema(required = true, format = DateTime)]
    pub held_since: Option<String>,
    /// Increases from grant to grant (the index of `.lock` at the grant); null if it is not held.
    #[schema(required = true)]
    pub fencing_token: Option<u64>,
    /// Its first slot; null if none is known.
    #[schema(required = true)]
    pub slot: Option<u32>,
    /// All its slots.
    #[serde(default)]
    #[schema(required = true)]
    pub slot_indexes: Vec<u32>,
    /// The time until the slot is no longer safe to use; null if it is not held.
    #[schema(required = true, minimum = 0)]
    pub lease_remaining_seconds: Option<f64>,
    /// The time that the agent has waited for it; null if it does not wait.
    #[schema(required = true, minimum = 0)]
    pub waiting_seconds: Option<f64>,
    /// The limit in force; null before the prefix was read, and if its `.lock` is no semaphore.
    #[schema(required = true)]
    pub limit: Option<u32>,
    /// The configured limit.
    #[serde(default)]
    #[schema(required = true)]
    pub configured_limit: u32,
    /// Slots taken by all holders; null as the limit is.
    #[schema(required = true)]
    pub slots_taken: Option<u32>,
    /// The number of holders; null as the limit is.
    #[schema(required = true)]
    pub holder_count: Option<u32>,
    /// The first 100 holders: this agent's, then the dead, then the others in the order of `.lock`.
    #[serde(default)]
    #[schema(required = true)]
    pub holders: Vec<Holder>,
    /// The number of live waiters; null before the prefix was read.
    #[schema(required = true)]
    pub queue_length: Option<u32>,
    /// The position of this workload among them, from 1; null if it does not wait.
    #[schema(required = true)]
    pub queue_position: Option<u32>,
    /// The first 20 waiters, in order.
    #[serde(default)]
    #[schema(required = true)]
    pub queue: Vec<Waiter>,
    /// The age of limit, holders and queue as they are shown; null before the prefix was read.
    #[schema(required = true, minimum = 0)]
    pub seen_seconds_ago: Option<f64>,
    /// The leases that clients hold or wait for, from the oldest on.
    #[serde(default)]
    #[schema(required = true)]
    pub leases: Vec<Lease>,
    /// The moments from which a report computes its dates and durations.
    #[serde(skip)]
    pub moments: Moments,
}

/// One holder of a semaphore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Holder {
    /// Its session.
    pub session: String,
    /// Its number of slots.
    #[serde(default)]
    #[schema(required = true)]
    pub slots: u32,
    /// Whether it is this agent.
    #[serde(default)]
    #[schema(required = true)]
    pub mine: bool,
    /// Whether it has a live contender key; null if that is unknown, since it acquired its slot after the last read of the
    /// prefix.
    #[schema(required = true)]
    pub alive: Option<bool>,
    /// Its identity as it wrote it; missing for a foreign client.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<IdentitySchema>)]
    pub who: Option<Identity>,
}

/// One waiter for a semaphore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Waiter {
    /// Its session.
    pub session: String,
    /// Slots that it needs.
    #[serde(default)]
    #[schema(required = true)]
    pub slots: u32,
    /// Whether it is this agent.
    #[serde(default)]
    #[schema(required = true)]
    pub mine: bool,
    /// Its identity as it wrote it; missing for a foreign client.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<IdentitySchema>)]
    pub who: Option<Identity>,
}

impl Semaphore {
    /// The number of holders beyond those that are listed.
    pub fn unlisted(&self) -> usize {
        self.holder_count.map_or(0, |all| (all as usize).saturating_sub(self.holders.len()))
    }

    pub(super) fn check(&self) -> Check {
        let name = format!("semaphore/{}", self.name);
        let mut detail = self.state.as_str().to_owned();
        if let (State::Waiting, Some(position), Some(length)) =
            (self.state, self.queue_position, self.queue_length)
        {
            detail.push_str(&format!(", {position} of {length} in the queue"));
        }
        if let Some(reason) = &self.reason {
            detail.push_str(&format!(": {reason}"));
        }
        Check { name, passed: self.state == State::Held, detail }
    }

    /// The report at that time: limit, holders and queue only once the whole prefix was read.
    pub(super) fn report(&self, lease_left: Option<Duration>, now: Moment, wall: Wall) -> Self {
        let Moments { held_since, asked_at, seen_at, .. } = self.moments;
        Self {
            held_since: held_since.map(|since| wall.text(since)),
            slot: self.slot_indexes.first().copied(),
            lease_remaining_seconds: held_since.and(lease_left).map(seconds),
            waiting_seconds: asked_at.map(|since| seconds(now.since(since))),
            limit: seen_at.and(self.limit),
            slots_taken: seen_at.and(self.slots_taken),
            holder_count: seen_at.and(self.holder_count),
            queue_length: seen_at.and(self.queue_length),
            seen_seconds_ago: seen_at.map(|at| seconds(now.since(at))),
            leases: self.leases.iter().map(|lease| lease.report(now, wall)).collect(),
            ..self.clone()
        }
    }
}
