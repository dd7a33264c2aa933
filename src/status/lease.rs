//! The leases of an on-demand semaphore or lock.

use serde::{Deserialize, Serialize};

use super::{Moments, State};
use crate::duration::seconds;
use slotkeeper_semaphore::{Moment, Wall};

/// How a semaphore or lock is acquired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lease {
    /// Its own session; null before it has one.
    pub session: Option<String>,
    /// `waiting`, `held` or `leaving`.
    pub state: State,
    /// The indexes of its slots; `[0]` for a lock, empty if it is not held.
    #[serde(default)]
    pub slot_indexes: Vec<u32>,
    /// Increases from grant to grant; null if it is not held.
    pub fencing_token: Option<u64>,
    /// Since when its client holds it, or waits for it, in UTC; null while it leaves.
    pub since: Option<String>,
    /// The time since then.
    pub age_seconds: Option<f64>,
    /// The time until the lease expires; null if it is not held.
    pub expires_in_seconds: Option<f64>,
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
        let since = self.moments.since();
        Self {
            since: since.map(|since| wall.text(since)),
            age_seconds: since.map(|since| seconds(now.since(since))),
            expires_in_seconds: self.moments.expires_at.map(|at| seconds(at.since(now))),
            ..self.clone()
        }
    }
}
