//! A semaphore, its holders and its queue.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Check, Entry, Health, age};
use slotkeeper_semaphore::{Identity, Moment, Wall};

/// What to do about clients that wait for slots of each other.
pub const RING_ADVICE: &str =
    "end one of the two, and let each acquire both with `acquire: together` or one `slotkeeper run --config`";

/// One semaphore.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Semaphore {
    /// What it has in common with a lock.
    #[serde(flatten)]
    pub entry: Entry,
    /// Its key prefix.
    #[serde(default)]
    pub prefix: String,
    /// Slots that this workload needs.
    #[serde(default)]
    pub slots: u32,
    /// The indexes of the slots that it holds.
    #[serde(default)]
    pub slot_indexes: Vec<u32>,
    /// The limit in force; null before the prefix was read, and if its `.lock` is no semaphore.
    pub limit: Option<u32>,
    /// The configured limit.
    #[serde(default)]
    pub configured_limit: u32,
    /// Slots taken by all holders; null as the limit is.
    pub slots_taken: Option<u32>,
    /// The number of holders; null as the limit is.
    pub holder_count: Option<u32>,
    /// The first 100 holders: this agent's, then the dead, then the others in the order of `.lock`.
    #[serde(default)]
    pub holders: Vec<Holder>,
    /// The number of live waiters; null before the prefix was read.
    pub queue_length: Option<u32>,
    /// The position of this workload among them, from 1; null if it does not wait. While `queue_length` is null, more waiters may be
    /// ahead.
    pub position: Option<u32>,
    /// The first 20 waiters, in order.
    #[serde(default)]
    pub queue: Vec<Waiter>,
}

/// One holder of a semaphore.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Holder {
    /// Its session.
    pub session: String,
    /// Its number of slots.
    #[serde(default)]
    pub slots: u32,
    /// Whether it is this agent.
    #[serde(default)]
    pub mine: bool,
    /// Whether it is a foreign client; null if that is unknown, since its contender key is not known.
    pub foreign: Option<bool>,
    /// Its health.
    #[serde(default)]
    pub health: Health,
    /// Since when it holds its slots by its own time stamp, in UTC; null for a foreign client, and until it is known.
    pub since: Option<String>,
    /// The time since then.
    pub age_seconds: Option<f64>,
    /// Its identity as it wrote it; missing for a foreign client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub who: Option<Identity>,
}

/// One waiter for a semaphore.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Waiter {
    /// Its session.
    pub session: String,
    /// Its position in the queue, from 1.
    #[serde(default)]
    pub position: u32,
    /// Slots that it needs.
    #[serde(default)]
    pub slots: u32,
    /// Whether it is this agent.
    #[serde(default)]
    pub mine: bool,
    /// Whether it is a foreign client.
    #[serde(default)]
    pub foreign: bool,
    /// Its health.
    #[serde(default)]
    pub health: Health,
    /// Since when it waits by its own time stamp, in UTC; null for a foreign client.
    pub since: Option<String>,
    /// The time since then.
    pub age_seconds: Option<f64>,
    /// Its identity as it wrote it; missing for a foreign client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub who: Option<Identity>,
}

impl Semaphore {
    /// The number of holders beyond those that are listed.
    pub fn unlisted(&self) -> usize {
        self.holder_count.map_or(0, |all| (all as usize).saturating_sub(self.holders.len()))
    }

    pub(super) fn check(&self) -> Check {
        let place = self.position.zip(self.queue_length);
        self.entry.check(
            "semaphore",
            place.map(|(position, length)| format!("{position} of {length} in the queue")),
        )
    }

    /// The report at that time: limit, holders and queue only once the whole prefix was read.
    pub(super) fn report(&self, lease_left: Option<Duration>, now: Moment, wall: Wall) -> Self {
        let seen_at = self.entry.moments.seen_at;
        let mut report = Self {
            entry: self.entry.report(lease_left, now, wall),
            limit: seen_at.and(self.limit),
            slots_taken: seen_at.and(self.slots_taken),
            holder_count: seen_at.and(self.holder_count),
            queue_length: seen_at.and(self.queue_length),
            ..self.clone()
        };
        let date = wall.at(now);
        for holder in &mut report.holders {
            holder.age_seconds = age(&holder.since, date);
        }
        for waiter in &mut report.queue {
            waiter.age_seconds = age(&waiter.since, date);
        }
        report
    }
}
