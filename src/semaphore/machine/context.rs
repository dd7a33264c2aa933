//! What a semaphore's machine knows of the rest of its agent, and where it puts what it decides.

use std::collections::VecDeque;
use std::time::Duration;

use crate::semaphore::command::{Command, Failure};
use crate::semaphore::notice::Notice;
use crate::semaphore::plan::Together;
use crate::semaphore::{Identity, Lease, Moment, SessionId, Wall};

/// What every step is given.
pub(in crate::semaphore) struct Context<'a> {
    /// The session, once it is known to live or have lived.
    pub(in crate::semaphore) session: Option<&'a SessionId>,
    /// The session even where it is only remembered from an earlier process: what leaving goes by.
    pub(in crate::semaphore) remembered: Option<&'a SessionId>,
    /// The process's own nonce.
    pub(in crate::semaphore) nonce: &'a str,
    /// Those of the processes before it.
    pub(in crate::semaphore) past: &'a [String],
    /// Whether an earlier process has made the session.
    pub(in crate::semaphore) resumed: bool,
    /// For how long that one may believe that it has what the session has, where it may still run.
    pub(in crate::semaphore) contested: Option<Duration>,
    /// Whether Consul has answered anything yet.
    pub(in crate::semaphore) reached: bool,
    /// What is wrong with the session, if anything is.
    pub(in crate::semaphore) trouble: Option<&'a Failure>,
    pub(in crate::semaphore) lease: Option<Lease>,
    pub(in crate::semaphore) now: Moment,
    pub(in crate::semaphore) who: &'a Identity,
    pub(in crate::semaphore) wall: Wall,
    pub(in crate::semaphore) ttl: Duration,
    pub(in crate::semaphore) watch_grace: Option<Duration>,
    /// The party that this semaphore is a member of.
    pub(in crate::semaphore) together: Option<Together<'a>>,
    /// The prefixes under which slots are held.
    pub(in crate::semaphore) holds: &'a [String],
    /// Nothing is asked for that is not held.
    pub(in crate::semaphore) ending: bool,
    /// A workload runs on the slots.
    pub(in crate::semaphore) occupied: bool,
    pub(in crate::semaphore) rng: &'a mut fastrand::Rng,
    pub(in crate::semaphore) out: &'a mut VecDeque<Command>,
}

impl Context<'_> {
    pub(super) fn lease_is_valid(&self) -> bool {
        self.lease.is_some_and(|lease| lease.is_valid(self.now))
    }

    /// Whether the lease is as young as a holder's: what begins under it survives as long an outage as what has been held for
    /// a while.
    pub(super) fn lease_is_fresh(&self) -> bool {
        self.lease.is_some_and(|lease| self.now < lease.fresh_until())
    }

    /// Whether no renewal is overdue, so that Consul has answered a short while ago.
    pub(super) fn lease_is_renewed(&self) -> bool {
        self.lease.is_some_and(|lease| !lease.is_overdue(self.now))
    }

    pub(super) fn tell(&mut self, notice: Notice) {
        self.out.push_back(Command::Tell(notice));
    }
}
