//! Notices: changes that are worth a log line, a metric or a hook.

use std::time::Duration;

use super::command::{Failure, Name};
use super::settings::LimitPolicy;
use super::{Identity, SessionId};

/// Why a slot was lost instead of released. The texts are label values of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LossReason {
    /// The session has ended.
    SessionGone,
    /// Another process has resumed the session, and has its slots.
    SessionTaken,
    /// An operator evicted this client, or `.lock` was changed so that it no longer lists the session.
    Evicted,
    /// The contender key is gone, or another session has locked it.
    ContenderGone,
    /// No renewal was answered before the lease expired.
    LeaseExpired,
    /// The watch failed for longer than `session.watch_grace`.
    WatchFailed,
}

impl LossReason {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::SessionGone,
        Self::SessionTaken,
        Self::Evicted,
        Self::ContenderGone,
        Self::LeaseExpired,
        Self::WatchFailed,
    ];

    /// The label value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SessionGone => "session_gone",
            Self::SessionTaken => "session_taken",
            Self::Evicted => "evicted",
            Self::ContenderGone => "contender_gone",
            Self::LeaseExpired => "lease_expired",
            Self::WatchFailed => "watch_failed",
        }
    }
}

/// The holder of a single-key lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// The session.
    pub session: SessionId,
    /// Whether it is our own.
    pub mine: bool,
    /// The identity in its value; `None` for a foreign client.
    pub who: Option<Identity>,
}

/// A change worth a log line, a metric or a hook.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// A session was created or resumed.
    SessionStarted {
        /// Which.
        session: SessionId,
        /// Whether an earlier process of this agent created it.
        resumed: bool,
    },
    /// Consul has ended the session.
    SessionEnded {
        /// Which.
        session: SessionId,
    },
    /// Another process has resumed the session. From here on the session and the state files are that process's.
    SessionTaken {
        /// Which.
        session: SessionId,
    },
    /// Sessions were found and destroyed whose creation was never answered.
    SessionsCleared {
        /// How many.
        sessions: u32,
    },
    /// A renewal was answered.
    Renewed {
        /// How long it took.
        took: Duration,
    },
    /// A renewal failed.
    RenewFailed {
        /// In what way.
        failure: Failure,
    },
    /// Requests about the session or a semaphore have begun to fail.
    Failing {
        /// The semaphore; `None` for the session.
        name: Option<Name>,
        /// In what way.
        failure: Failure,
    },
    /// Requests about the session or a semaphore succeed again after [`Notice::Failing`].
    Recovered {
        /// The semaphore; `None` for the session.
        name: Option<Name>,
    },
    /// The client waits in the queue, or is about to join it.
    Waiting {
        /// Which semaphore.
        name: Name,
        /// The own position in the queue, from 1.
        position: u32,
        /// Slots taken.
        taken: u32,
        /// The limit in force.
        limit: u32,
    },
    /// A single-key lock has another holder, or none.
    Leader {
        /// Which lock.
        name: Name,
        /// The holder; `None` while the lock is free.
        leader: Option<Leader>,
    },
    /// The lock is free but in lock-delay.
    LockDelayed {
        /// Which lock.
        name: Name,
        /// The time left; `None` if the lock-delay began before this client watched the lock.
        left: Option<Duration>,
    },
    /// The slot was acquired.
    Acquired {
        /// Which semaphore.
        name: Name,
        /// The session that holds it.
        session: SessionId,
        /// The fencing token: `.lock`'s index at the grant.
        token: u64,
        /// The numbers of the slots.
        indexes: Vec<u32>,
        /// Whether an earlier process of this agent held the slot, and it was held without interruption.
        resumed: bool,
        /// From the request to holding.
        took: Duration,
        /// From seeing a free slot to holding it; `None` if the client did not have to wait.
        handoff: Option<Duration>,
    },
    /// The slot was lost.
    Lost {
        /// Which semaphore.
        name: Name,
        /// The session that held it.
        session: SessionId,
        /// The fencing token under which it was held.
        token: u64,
        /// The numbers of the slots.
        indexes: Vec<u32>,
        /// Why.
        reason: LossReason,
        /// How long it was held.
        held: Duration,
    },
    /// An operator has evicted this client. If it holds a slot, [`Notice::Lost`] follows.
    Evicted {
        /// Which semaphore.
        name: Name,
        /// The operator, as text that is safe to print.
        by: String,
        /// Whether the client holds a slot.
        held: bool,
    },
    /// The slot was released.
    Released {
        /// Which semaphore.
        name: Name,
        /// The session that held it.
        session: SessionId,
        /// How long it was held.
        held: Duration,
    },
    /// The slot cannot be acquired until a person acts.
    Blocked {
        /// Which semaphore.
        name: Name,
        /// What is wrong and what to do.
        why: String,
    },
    /// No slot was acquired within `wait`.
    TimedOut {
        /// Which semaphore.
        name: Name,
        /// Whether Consul answered any request.
        reached: bool,
        /// What failed last, if anything did.
        failure: Option<String>,
    },
    /// The stored limit differs from the configured one, and governs.
    LimitDiffers {
        /// Which semaphore.
        name: Name,
        /// The policy. Under `set` the configured limit was written and has been changed since.
        policy: LimitPolicy,
        /// The stored one.
        stored: u32,
        /// The configured one.
        configured: u32,
    },
    /// The record is in format `map`, the configured format is `list`.
    FormDiffers {
        /// Which semaphore.
        name: Name,
    },
    /// Another client or an operator has changed the stored limit. Omitted where another notice says so.
    LimitChanged {
        /// Which semaphore.
        name: Name,
        /// The limit before.
        from: u32,
        /// The limit now.
        to: u32,
    },
    /// This client has changed the stored limit, for all participants.
    LimitSet {
        /// Which semaphore.
        name: Name,
        /// The limit before.
        from: u32,
        /// The limit now.
        to: u32,
    },
    /// Dead holders were pruned from `.lock`.
    Pruned {
        /// Which semaphore.
        name: Name,
        /// How many.
        holders: u32,
        /// How long the transaction took.
        took: Duration,
    },
    /// A check-and-set lost against another client.
    Conflict {
        /// Which semaphore.
        name: Name,
    },
    /// A semaphore that was removed from the configuration has been released.
    Removed {
        /// Which semaphore.
        name: Name,
    },
}

impl Notice {
    /// The name of the semaphore or lock that it is about, if it is about one.
    pub fn name_mut(&mut self) -> Option<&mut Name> {
        match self {
            Self::SessionStarted { .. }
            | Self::SessionEnded { .. }
            | Self::SessionTaken { .. }
            | Self::SessionsCleared { .. }
            | Self::Renewed { .. }
            | Self::RenewFailed { .. } => None,
            Self::Failing { name, .. } | Self::Recovered { name } => name.as_mut(),
            Self::Waiting { name, .. }
            | Self::Leader { name, .. }
            | Self::LockDelayed { name, .. }
            | Self::Acquired { name, .. }
            | Self::Lost { name, .. }
            | Self::Evicted { name, .. }
            | Self::Released { name, .. }
            | Self::Blocked { name, .. }
            | Self::TimedOut { name, .. }
            | Self::LimitDiffers { name, .. }
            | Self::FormDiffers { name }
            | Self::LimitChanged { name, .. }
            | Self::LimitSet { name, .. }
            | Self::Pruned { name, .. }
            | Self::Conflict { name }
            | Self::Removed { name } => Some(name),
        }
    }
}
