//! The agent itself and its session.

use serde::{Deserialize, Serialize};

use super::Stage;
use crate::duration::seconds;
use slotkeeper_semaphore::{Identity, Moment, Wall};

/// The agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Agent {
    /// Its version.
    pub version: String,
    /// Its identity, as its contender keys show it.
    #[serde(default)]
    pub who: Identity,
    /// Its state.
    #[serde(default)]
    pub state: Stage,
    /// Whether every required slot is held with a fresh lease.
    pub ready: bool,
    /// The checks of readiness, as `/readyz?verbose` lists them.
    #[serde(default)]
    pub checks: Vec<Check>,
    /// The start of its process, in UTC.
    #[serde(default)]
    pub started_at: String,
    /// The time of this report, in UTC.
    #[serde(default)]
    pub now: String,
}

/// One check of readiness.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// What is checked.
    pub name: String,
    /// Whether it passed.
    pub passed: bool,
    /// Its state, in a few words.
    pub detail: String,
}

/// A session in Consul.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// Its id.
    pub id: String,
    /// Its configured name.
    #[serde(default)]
    pub name: String,
    /// Its TTL in Consul.
    #[serde(default)]
    pub ttl_seconds: f64,
    /// The time left until the slots of this session are no longer safe to use.
    #[serde(default)]
    pub expires_in_seconds: f64,
    /// When the agent created it, in UTC; null if it was resumed.
    pub since: Option<String>,
    /// The time since then.
    pub age_seconds: Option<f64>,
    /// When the agent created it, on the agent's clock.
    #[serde(skip)]
    pub created_at: Option<Moment>,
    /// The end of the lease on the agent's clock; `None` in a status that was parsed.
    #[serde(skip)]
    pub lease_ends: Option<Moment>,
}

impl Session {
    pub(super) fn report(&self, now: Moment, wall: Wall) -> Self {
        let left = self.lease_ends.map(|ends| ends.since(now)).unwrap_or_default();
        Self {
            expires_in_seconds: seconds(left),
            since: self.created_at.map(|since| wall.text(since)),
            age_seconds: self.created_at.map(|since| seconds(now.since(since))),
            ..self.clone()
        }
    }
}
