//! The requests of the control endpoints to the agent, and its answers: the border between HTTP and the loop.

use std::fmt;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

pub use crate::config::Kind;
pub use crate::reload_report::Reloaded;

/// The length of the request queue. The agent takes each request at once; when the queue is full, a request is refused.
const QUEUE: usize = 64;

/// A request. If its reply channel is closed, the request must leave nothing behind.
#[derive(Debug)]
pub enum Request {
    /// Release everything and end. A repeated request changes nothing.
    Drain,
    /// Reload the configuration and apply all of it.
    Reload {
        /// The reply channel.
        reply: oneshot::Sender<Result<Reloaded, NoReload>>,
    },
    /// Acquire a lease.
    Acquire {
        /// The kind.
        kind: Kind,
        /// The configured name.
        name: String,
        /// The longest wait; zero tries once.
        wait: Duration,
        /// Confirms that the client has received its answer, as far as that is known here. It closes without a message if the
        /// client disconnected before: then the wait ends, and a slot that was acquired meanwhile is released.
        present: oneshot::Receiver<()>,
        /// The reply channel.
        reply: oneshot::Sender<Result<Grant, Refusal>>,
    },
    /// Renew a lease.
    Renew {
        /// The lease's id.
        lease: String,
        /// The reply channel, for the lease as it is now.
        reply: oneshot::Sender<Result<Grant, NoLease>>,
    },
    /// Show a lease without renewing it.
    Show {
        /// The lease's id.
        lease: String,
        /// The reply channel.
        reply: oneshot::Sender<Result<Grant, NoLease>>,
    },
    /// Release a lease. One that was released already, or lost, is no error.
    Release {
        /// The lease's id.
        lease: String,
        /// The reply channel, for the outcome.
        reply: oneshot::Sender<Result<Released, NoLease>>,
    },
}

impl Request {
    /// Whether the request concerns a single lease, and nothing else of the agent.
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
    /// Its id, with which any client can renew and release it.
    pub lease: String,
    /// The kind.
    pub kind: Kind,
    /// The configured name.
    pub name: String,
    /// The semaphore's prefix, or the lock's key.
    pub key: String,
    /// The lease's own Consul session.
    pub session: String,
    /// Increases from grant to grant.
    pub fencing_token: u64,
    /// For a lock, how often it was acquired since its key was created: Consul's LockIndex.
    pub lock_index: Option<u64>,
    /// Its slot indexes; `[0]` for a lock. The first is the lease's slot.
    pub slot_indexes: Vec<u32>,
    /// When the lease expires unless it is renewed; it is released afterwards.
    pub expires_in: Duration,
    /// The agent ends.
    pub draining: Option<Draining>,
}

/// The end of the agent. It grants nothing new and takes no lease from its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draining {
    /// When it ends at the latest. `None`: it waits for its workload first.
    pub ends_in: Option<Duration>,
}

/// Why no lease is granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The agent has none of that name.
    UnknownName {
        /// The names that it has.
        known: Vec<String>,
    },
    /// The agent itself holds the semaphore or lock (`mode: hold`).
    NotOnDemand,
    /// Timed out: no slot was free within the wait.
    Timeout,
    /// An operator evicted the waiter: the operator's name.
    Evicted(String),
    /// Blocked: what the problem is, and how to fix it.
    Blocked(String),
    /// The agent has not applied the entry yet: the reason.
    Pending(String),
    /// Consul did not respond within the wait: what was tried, what came back.
    Unavailable(String),
    /// The agent is ending.
    Draining,
    /// The limit of waiting clients is reached.
    TooManyWaits(usize),
    /// The limit of leases is reached.
    TooManyLeases(usize),
}

/// Why a lease cannot be renewed, shown or released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoLease {
    /// Unknown: released long ago, or a lease of an earlier agent, or of another one.
    Unknown,
    /// It was released.
    Released,
    /// It was not renewed in time, and was released.
    Expired,
    /// It was lost, with a [`slotkeeper_semaphore::LossReason`]. Another client may hold the slot.
    Lost(&'static str),
}

/// Why a reload has changed nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoReload {
    /// The configuration is invalid or cannot be read: what was tried, what came back.
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

/// The outcome of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// The slot is released.
    Done,
    /// Consul has not answered yet; the agent retries.
    UnderWay,
}

/// The two ends of the request queue.
pub fn requests() -> (mpsc::Sender<Request>, mpsc::Receiver<Request>) {
    mpsc::channel(QUEUE)
}
