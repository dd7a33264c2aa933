//! What clients take on demand, as the world may see it.

use serde::Serialize;
use utoipa::ToSchema;

use super::{State, seconds};
use slotkeeper_semaphore::{Moment, Wall};

/// How a semaphore or lock is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
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

impl Lease {
    /// Whether it is held, and may be believed in.
    pub fn is_held(&self, now: Moment) -> bool {
        self.state == State::Held && self.expires_at.is_some_and(|at| now < at)
    }

    pub(super) fn report(&self, now: Moment, wall: Wall) -> LeaseReport<'_> {
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

/// A lease of a client's. Its id is not shown, since whoever knows that can give the lease back.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LeaseStatus)]
pub(super) struct LeaseReport<'a> {
    /// Its own session; null before there is one.
    #[schema(required = true)]
    session: Option<&'a str>,
    /// `waiting`, `held` or `leaving`.
    state: State,
    /// The number of its first slot, of a lock 0; null where it holds none.
    #[schema(required = true)]
    slot: Option<u32>,
    /// The numbers of all its slots.
    slot_indexes: &'a [u32],
    /// Grows from grant to grant; null where it is not held.
    #[schema(required = true)]
    fencing_token: Option<u64>,
    /// Since when it is held, in UTC; null where it is not.
    #[schema(required = true, format = DateTime)]
    held_since: Option<String>,
    /// Until then its client may believe in it; null where it is not held.
    #[schema(required = true, minimum = 0)]
    expires_in_seconds: Option<f64>,
    /// For how long its client has waited; null where it does not.
    #[schema(required = true, minimum = 0)]
    waiting_seconds: Option<f64>,
}
