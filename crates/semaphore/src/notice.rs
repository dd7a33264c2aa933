//! What the core tells the shell of: changes that are worth a log line, a metric or a hook.

use std::time::Duration;

use super::command::{Failure, Name};
use super::settings::LimitPolicy;
use super::{Identity, SessionId};

/// Why a slot is held no longer, without having been given back. The texts are label values of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LossReason {
    /// The session has ended.
    SessionGone,
    /// Another process has resumed our session, and has what it had.
    SessionTaken,
    /// An operator told us to leave; or somebody took us out of `.lock`, or wrote something else there.
    Evicted,
    /// Our contender entry is gone, or no longer ours.
    ContenderGone,
    /// No renewal was answered in time.
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

/// Who has a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// The session.
    pub session: SessionId,
    /// Whether it is our own.
    pub mine: bool,
    /// Who it says it is; `None` for another kind of client.
    pub who: Option<Identity>,
}

/// A change worth a log line, a metric or a hook.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// A session was created, or taken up again.
    SessionStarted {
        /// Which.
        session: SessionId,
        /// Whether it is one of an earlier process of ours.
        resumed: bool,
    },
    /// The session has ended without us.
    SessionEnded {
        /// Which.
        session: SessionId,
    },
    /// Another process has resumed the session: it is that one's from here on, and so are the files.
    SessionTaken {
        /// Which.
        session: SessionId,
    },
    /// Sessions were found, and destroyed, whose creation had got no answer.
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
    /// They work again.
    Recovered {
        /// The semaphore; `None` for the session.
        name: Option<Name>,
    },
    /// In line, or about to be.
    Waiting {
        /// Which semaphore.
        name: Name,
        /// Own place in line, from 1.
        position: u32,
        /// Slots taken.
        taken: u32,
        /// The limit in force.
        limit: u32,
    },
    /// Another one has a lock now, or nobody.
    Leader {
        /// Which lock.
        name: Name,
        /// Who has it.
        leader: Option<Leader>,
    },
    /// Nobody has the lock, and for some time yet Consul gives it to nobody.
    LockDelayed {
        /// Which lock.
        name: Name,
        /// How long that is; `None` where it is not known, since it began before anybody here looked.
        left: Option<Duration>,
    },
    /// The slot is held.
    Acquired {
        /// Which semaphore.
        name: Name,
        /// The session that holds it.
        session: SessionId,
        /// The fencing token: `.lock`'s index at the grant.
        token: u64,
        /// The numbers of the slots.
        indexes: Vec<u32>,
        /// Whether it is a slot that an earlier process of ours held, and that has been ours all along.
        resumed: bool,
        /// From asking to holding.
        took: Duration,
        /// From seeing room to holding, for one that had to wait.
        handoff: Option<Duration>,
    },
    /// The slot is held no longer, and was not given back.
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
    /// An operator has told it to leave. Where it holds, [`Notice::Lost`] follows.
    Evicted {
        /// Which semaphore.
        name: Name,
        /// Who.
        by: String,
        /// Whether it holds.
        held: bool,
    },
    /// The slot was given back.
    Released {
        /// Which semaphore.
        name: Name,
        /// The session that held it.
        session: SessionId,
        /// How long it was held.
        held: Duration,
    },
    /// The slot cannot be asked for until somebody mends something.
    Blocked {
        /// Which semaphore.
        name: Name,
        /// What is wrong and what to do.
        why: String,
    },
    /// The bound on waiting has passed.
    TimedOut {
        /// Which semaphore.
        name: Name,
        /// Whether Consul ever answered anything.
        reached: bool,
        /// What failed last, if anything did.
        failure: Option<String>,
    },
    /// The stored limit differs from the configured one, and governs.
    LimitDiffers {
        /// Which semaphore.
        name: Name,
        /// By which policy: under `set`, ours has been written and somebody has changed it since.
        policy: LimitPolicy,
        /// The stored one.
        stored: u32,
        /// The configured one.
        configured: u32,
    },
    /// The record is a map, and the configuration would have made it a list.
    FormDiffers {
        /// Which semaphore.
        name: Name,
    },
    /// Somebody has changed the stored limit. Where that is told by another notice already, this one is not.
    LimitChanged {
        /// Which semaphore.
        name: Name,
        /// The limit before.
        from: u32,
        /// The limit now.
        to: u32,
    },
    /// We have written another limit, for everybody.
    LimitSet {
        /// Which semaphore.
        name: Name,
        /// The limit before.
        from: u32,
        /// The limit now.
        to: u32,
    },
    /// Dead holders were taken out of `.lock`.
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
    /// A removed semaphore has been left.
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
