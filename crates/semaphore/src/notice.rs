//! Notices: changes that are worth a log line, a metric or a hook.

use std::time::Duration;

use super::command::{Failure, Name};
use super::obstacle::Obstacle;
use super::settings::LimitPolicy;
use super::{Identity, SessionId};

/// Why a slot was lost instead of released. The texts are label values of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LossReason {
    /// The session has ended.
    SessionGone,
    /// An operator evicted this client, or `.lock` was changed so that it no longer lists the session.
    Evicted,
    /// The contender key or the lock's key is gone, or another session has locked it.
    ContenderGone,
    /// No renewal was answered before the lease expired.
    LeaseExpired,
    /// The watch failed for longer than `session.watch_grace`.
    WatchFailed,
    /// Another slot of the acquire group was lost, or is not there after a restart.
    GroupLost,
}

impl LossReason {
    /// All reasons.
    pub const ALL: [Self; 6] = [
        Self::SessionGone,
        Self::Evicted,
        Self::ContenderGone,
        Self::LeaseExpired,
        Self::WatchFailed,
        Self::GroupLost,
    ];

    /// The value of the metric label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SessionGone => "session_gone",
            Self::Evicted => "evicted",
            Self::ContenderGone => "contender_gone",
            Self::LeaseExpired => "lease_expired",
            Self::WatchFailed => "watch_failed",
            Self::GroupLost => "group_lost",
        }
    }
}

/// The holder of a single-key lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// The session.
    pub session: SessionId,
    /// Whether it is this client's session.
    pub mine: bool,
    /// The identity in the lock's value; `None` for a foreign client.
    pub who: Option<Identity>,
}

/// A change worth a log line, a metric or a hook.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// A session was created or resumed.
    SessionStarted {
        /// The session.
        session: SessionId,
        /// Whether an earlier process of this agent created it.
        resumed: bool,
    },
    /// Consul has ended the session.
    SessionEnded {
        /// The session.
        session: SessionId,
    },
    /// A renewal was answered.
    Renewed {
        /// The time from sending it to its answer.
        took: Duration,
    },
    /// A renewal failed.
    RenewFailed {
        /// What failed.
        failure: Failure,
    },
    /// Requests about the session or a semaphore have begun to fail.
    Failing {
        /// The semaphore; `None` for the session.
        name: Option<Name>,
        /// What failed.
        failure: Failure,
    },
    /// Requests about the session or a semaphore succeed again after [`Notice::Failing`].
    Recovered {
        /// The semaphore; `None` for the session.
        name: Option<Name>,
    },
    /// The client waits in the queue, or is about to join it.
    Waiting {
        /// The semaphore or lock.
        name: Name,
        /// This client's position in the queue, from 1; `None` if the queue was not listed yet and `.lock` does not name the client.
        position: Option<u32>,
        /// The number of slots that holders have.
        taken: u32,
        /// The limit in force.
        limit: u32,
    },
    /// A single-key lock has another holder, or none.
    Leader {
        /// The lock.
        name: Name,
        /// The holder; `None` while the lock is free.
        leader: Option<Leader>,
    },
    /// The lock is free but in lock-delay.
    LockDelayed {
        /// The lock.
        name: Name,
    },
    /// The slot was acquired.
    Acquired {
        /// The semaphore or lock.
        name: Name,
        /// The session that holds it.
        session: SessionId,
        /// The fencing token: `.lock`'s index at the grant.
        token: u64,
        /// The slot indexes.
        indexes: Vec<u32>,
        /// Whether an earlier process of this agent held the slot, and it was held without interruption.
        resumed: bool,
        /// The time from the request to holding.
        took: Duration,
        /// The time from seeing a free slot to holding it; `None` if the client did not wait.
        handoff: Option<Duration>,
    },
    /// The slot was lost.
    Lost {
        /// The semaphore or lock.
        name: Name,
        /// The session that held it.
        session: SessionId,
        /// The fencing token under which it was held.
        token: u64,
        /// The slot indexes.
        indexes: Vec<u32>,
        /// The reason.
        reason: LossReason,
        /// The time for which the slot was held.
        held: Duration,
    },
    /// An operator has evicted this client. If it holds a slot, [`Notice::Lost`] follows.
    Evicted {
        /// The semaphore or lock.
        name: Name,
        /// The operator, as text that is safe to print.
        by: String,
        /// Whether the client holds a slot.
        held: bool,
    },
    /// The slot was released.
    Released {
        /// The semaphore or lock.
        name: Name,
        /// The session that held it.
        session: SessionId,
        /// The time for which the slot was held.
        held: Duration,
    },
    /// The slot cannot be acquired until a person acts.
    Blocked {
        /// The semaphore or lock.
        name: Name,
        /// What is wrong, and what to do.
        obstacle: Obstacle,
    },
    /// No slot was acquired within `wait`.
    TimedOut {
        /// The semaphore or lock.
        name: Name,
        /// Whether Consul answered any request.
        reached: bool,
        /// What fails at the end, if anything does.
        failure: Option<Failure>,
        /// What a person would have to fix, if it is known.
        obstacle: Option<Obstacle>,
    },
    /// The stored limit differs from the configured one, and governs.
    LimitDiffers {
        /// The semaphore or lock.
        name: Name,
        /// The policy. Under `set` the configured limit was written and has been changed since.
        policy: LimitPolicy,
        /// The stored limit.
        stored: u32,
        /// The configured limit.
        configured: u32,
    },
    /// The record is in format `map`, the configured format is `list`.
    FormDiffers {
        /// The semaphore or lock.
        name: Name,
    },
    /// Another client or an operator has changed the stored limit. Omitted where another notice says so.
    LimitChanged {
        /// The semaphore or lock.
        name: Name,
        /// The limit before.
        from: u32,
        /// The limit now.
        to: u32,
    },
    /// This client has changed the stored limit, for all participants.
    LimitSet {
        /// The semaphore or lock.
        name: Name,
        /// The limit before.
        from: u32,
        /// The limit now.
        to: u32,
    },
    /// Dead holders were pruned from `.lock`.
    Pruned {
        /// The semaphore or lock.
        name: Name,
        /// The number of holders.
        holders: u32,
        /// The time that the transaction took.
        took: Duration,
    },
    /// A check-and-set lost against another client.
    Conflict {
        /// The semaphore or lock.
        name: Name,
    },
    /// A semaphore that was removed from the configuration has been released.
    Removed {
        /// The semaphore or lock.
        name: Name,
    },
}

impl Notice {
    /// The name of the notice's semaphore or lock; `None` for a notice about the session.
    pub fn name_mut(&mut self) -> Option<&mut Name> {
        match self {
            Self::SessionStarted { .. }
            | Self::SessionEnded { .. }
            | Self::Renewed { .. }
            | Self::RenewFailed { .. } => None,
            Self::Failing { name, .. } | Self::Recovered { name } => name.as_mut(),
            Self::Waiting { name, .. }
            | Self::Leader { name, .. }
            | Self::LockDelayed { name }
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
