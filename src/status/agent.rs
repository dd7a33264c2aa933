//! The agent itself and its session.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Stage, seconds};
use slotkeeper_semaphore::Moment;

/// The agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Agent {
    /// Its version.
    pub version: String,
    /// Its state.
    #[serde(default)]
    #[schema(required = true)]
    pub state: Stage,
    /// Whether every required slot is held with a fresh lease.
    pub ready: bool,
    /// The checks of readiness, as `/readyz?verbose` lists them.
    #[serde(default)]
    #[schema(required = true)]
    pub checks: Vec<Check>,
    /// The start of its process, in UTC.
    #[serde(default)]
    #[schema(required = true, format = DateTime)]
    pub started_at: String,
    /// The time of this report, in UTC.
    #[serde(default)]
    #[schema(required = true, format = DateTime)]
    pub now: String,
}

/// One check of readiness.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Check {
    /// What is checked.
    pub name: String,
    /// Whether it passed.
    pub passed: bool,
    /// Its state, in a few words.
    pub detail: String,
}

/// A session in Consul.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Session {
    /// Its id.
    pub id: String,
    /// Its configured name.
    #[serde(default)]
    #[schema(required = true)]
    pub name: String,
    /// Its TTL in Consul.
    #[serde(default)]
    #[schema(required = true)]
    pub ttl_seconds: f64,
    /// The time left until the slots of this session are no longer safe to use.
    #[serde(default)]
    #[schema(required = true, minimum = 0)]
    pub lease_remaining_seconds: f64,
    /// The end of the lease on the agent's clock; `None` in a status that was parsed.
    #[serde(skip)]
    pub lease_ends: Option<Moment>,
}

impl Session {
    pub(super) fn report(&self, now: Moment) -> Self {
        let left = self.lease_ends.map(|ends| ends.since(now)).unwrap_or_default();
        Self { lease_remaining_seconds: seconds(left), ..self.clone() }
    }
}
