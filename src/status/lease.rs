//! The leases of an on-demand semaphore or lock.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Moments, State, seconds};
use slotkeeper_semaphore::{Moment, Wall};

/// How a semaphore or lock is acquired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// By the agent, for as long as it runs.
    Hold,
    /// By clients, each with a lease.
    OnDemand,
    /// An unknown value, of an agent of another version.
    #[default]
    #[serde(other)]
    Unknown,
}

/// A client's lease. Its id is not shown, since a client that knows the id can release the lease.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = LeaseStatus)]
pub struct Lease {
    /// Its own session; null before it has one.
    #[schema(required = true)]
    pub session: Option<String>,
    /// `waiting`, `held` or `leaving`.
    pub state: State,
    /// Its first slot, 0 for a lock; null if it holds none.
    #[schema(required = true)]
    pub slot: Option<u32>,
    /// All its slots.
    #[serde(default)]
    #[schema(required = true)]
    pub slot_indexes: Vec<u32>,
    /// Increases from grant to grant; null if it is not held.
    #[schema(required = true)]
    pub fencing_token: Option<u64>,
    /// The time of the grant, in UTC; null if it is not held.
    #[schema(required = true, format = DateTime)]
    pub held_since: Option<String>,
    /// The time until the lease expires; null if it is not held.
    #[schema(required = true, minimum = 0)]
    pub expires_in_seconds: Option<f64>,
    /// The time that its client has waited; null if it does not wait.
    #[schema(required = true, minimum = 0)]
    pub waiting_seconds: Option<f64>,
    /// The moments from which a report computes its dates and durations.
    #[serde(skip)]
    pub moments: Moments,
}

impl Lease {
    /// Whether it is held and has not expired.
    pub fn is_held(&self, now: Moment) -> bool {
        self.state == State::Held && self.moments.expires_at.is_some_and(|at| now < at)
    }

    pub(super) fn report(&self, now: Moment, wall: Wall) -> Self {
        let Moments { held_since, expires_at, asked_at, .. } = self.moments;
        Self {
            slot: self.slot_indexes.first().copied(),
            held_since: held_since.map(|since| wall.text(since)),
            expires_in_seconds: expires_at.map(|at| seconds(at.since(now))),
            waiting_seconds: asked_at.map(|since| seconds(now.since(since))),
            ..self.clone()
        }
    }
}
