//! What the control endpoints ask of the agent, and what it answers: the border between HTTP and the loop.

use std::fmt;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

pub use crate::reload_report::Reloaded;

/// Requests that may wait for the agent, which takes each at once. One that finds no room is refused.
const QUEUE: usize = 64;

/// What a lease is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A semaphore: a slot.
    Semaphore,
    /// A single-key lock.
    Lock,
}

/// One request. Where its answer is not waited for any more, nothing of it may be left behind.
#[derive(Debug)]
pub enum Request {
    /// The workload is done: everything is given back, and the agent ends. Said again it changes nothing.
    Drain,
    /// The configuration is to be read again, and all of it taken over.
    Reload {
        /// Where the answer goes.
        reply: oneshot::Sender<Result<Reloaded, NoReload>>,
    },
    /// A lease is wanted.
    Acquire {
        /// Of what.
        kind: Kind,
        /// Its configured name.
        name: String,
        /// How long to wait for it; zero tries once.
        wait: Duration,
        /// Says that the client has got its answer, as far as can be known here; closes without a word when it has gone
        /// away before. Then the wait ends, and what was granted meanwhile is given back.
        present: oneshot::Receiver<()>,
        /// Where the answer goes.
        reply: oneshot::Sender<Result<Grant, Refusal>>,
    },
    /// The client still needs its lease.
    Renew {
        /// Which.
        lease: String,
        /// Where the answer goes: the lease as it is now.
        reply: oneshot::Sender<Result<Grant, NoLease>>,
    },
    /// How does a lease stand? Renews nothing.
    Show {
        /// Which.
        lease: String,
        /// Where the answer goes.
        reply: oneshot::Sender<Result<Grant, NoLease>>,
    },
    /// The client needs it no longer. One that was released already, or lost, is no error.
    Release {
        /// Which.
        lease: String,
        /// Where the answer goes, once it is known what has become of it.
        reply: oneshot::Sender<Result<Released, NoLease>>,
    },
}

impl Request {
    /// Whether it is about one lease, and nothing else of the agent.
    pub fn is_of_a_lease(&self) -> bool {
        match self {
            Self::Acquire { .. } | Self::Renew { .. } | Self::Show { .. } | Self::Release { .. } => true,
            Self::Drain | Self::Reload { .. } => false,
        }
    }
}

/// A lease that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Its id, which whoever knows it can renew and release.
    pub lease: String,
    /// Of what kind of thing.
    pub kind: Kind,
    /// The configured name of that.
    pub name: String,
    /// The Consul session that holds it: its own.
    pub session: String,
    /// Grows from grant to grant.
    pub fencing_token: u64,
    /// Of a lock, how often it has been taken since its key was made: Consul's LockIndex.
    pub lock_index: Option<u64>,
    /// The numbers of its slots; of a lock `[0]`. The first is the lease's own.
    pub slot_indexes: Vec<u32>,
    /// Until when it may be believed in: unless it is renewed before, it is given back afterwards.
    pub expires_in: Duration,
}

/// Why there is no lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The agent has none of that name.
    UnknownName {
        /// Those that it has.
        known: Vec<String>,
    },
    /// The agent holds it itself (`mode: hold`).
    NotOnDemand,
    /// None was free in the time given.
    Timeout,
    /// An operator has taken it out of the line: who.
    Evicted(String),
    /// Kept out until somebody mends something: what, and how.
    Blocked(String),
    /// The entry is configured, and the agent has not taken it over yet: what is in the way.
    Pending(String),
    /// Consul did not answer in the time given: what was tried, what came back.
    Unavailable(String),
    /// The agent is ending.
    Draining,
    /// So many clients wait already, which is the bound.
    TooManyWaits(usize),
    /// There are so many leases already, which is the bound.
    TooManyLeases(usize),
}

/// Why a lease cannot be renewed, shown or released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoLease {
    /// Nobody here knows it: released long ago, of an agent before this one, or of another.
    Unknown,
    /// It was released.
    Released,
    /// It was not renewed in time, and was given back.
    Expired,
    /// It was lost, for a reason as [`slotkeeper_semaphore::LossReason`] spells them. Somebody else may have it.
    Lost(&'static str),
}

/// Why a reload has changed nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoReload {
    /// The configuration is wrong or cannot be read: what was tried, what came back.
    Refused(String),
    /// The agent is ending.
    Draining,
}

impl fmt::Display for NoReload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) => write!(f, "nothing is changed: {why}"),
            Self::Draining => f.write_str("nothing is changed: the agent is ending"),
        }
    }
}

/// What has become of a lease that was released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// It is given back.
    Done,
    /// Consul has not answered yet; the agent goes on trying.
    UnderWay,
}

/// Where requests go in, and where the agent takes them.
pub fn requests() -> (mpsc::Sender<Request>, mpsc::Receiver<Request>) {
    mpsc::channel(QUEUE)
}
