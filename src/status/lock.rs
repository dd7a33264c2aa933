//! A single-key lock.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Check, Entry, Health, age};
use slotkeeper_semaphore::{Identity, Moment, Wall};

/// One single-key lock.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lock {
    /// What it has in common with a semaphore.
    #[serde(flatten)]
    pub entry: Entry,
    /// Its key.
    #[serde(default)]
    pub key: String,
    /// How often it was acquired since its key was created (Consul's LockIndex); null if there is no key, or it was not
    /// read yet.
    pub lock_index: Option<u64>,
    /// Its holder, which is the leader; null if it has none, or its key was not read yet.
    pub leader: Option<Leader>,
}

/// The holder of a lock.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Leader {
    /// Its session.
    pub session: String,
    /// Whether it is this agent's.
    #[serde(default)]
    pub mine: bool,
    /// Whether it is a foreign client.
    #[serde(default)]
    pub foreign: bool,
    /// Its health: `live`, since the lock is released when its session ends.
    #[serde(default)]
    pub health: Health,
    /// Since when it leads by its own time stamp, in UTC; null for a foreign client.
    pub since: Option<String>,
    /// The time since then.
    pub age_seconds: Option<f64>,
    /// Its identity as it wrote it; missing for a foreign client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub who: Option<Identity>,
}

impl Lock {
    pub(super) fn check(&self) -> Check {
        self.entry.check("lock", self.leader.as_ref().map(|leader| format!("held by {}", leader.session)))
    }

    pub(super) fn report(&self, lease_left: Option<Duration>, now: Moment, wall: Wall) -> Self {
        let mut report = Self { entry: self.entry.report(lease_left, now, wall), ..self.clone() };
        if let Some(leader) = &mut report.leader {
            leader.age_seconds = age(&leader.since, wall.at(now));
        }
        report
    }
}
