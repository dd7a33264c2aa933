//! The context that a keeper passes to a machine: the shared state of the agent, and the queue for commands.

use std::collections::VecDeque;
use std::time::Duration;

use crate::command::Command;
use crate::notice::Notice;
use crate::plan::GroupMember;
use crate::session::Session;
use crate::{Identity, Moment, SessionId, Wall};

/// What all semaphores of an agent share.
#[derive(Clone, Debug)]
pub(crate) struct Agent {
    pub(crate) session: Session,
    pub(crate) who: Identity,
    pub(crate) wall: Wall,
    pub(crate) watch_grace: Option<Duration>,
    /// The prefixes under which slots are held.
    pub(crate) held: Vec<String>,
    /// Nothing is asked for that is not held.
    pub(crate) ending: bool,
    /// Whether Consul has answered anything yet.
    pub(crate) reached: bool,
}

/// The input of every step.
pub(crate) struct Context<'a> {
    pub(crate) agent: &'a Agent,
    /// The session, once it is known to live or have lived.
    pub(crate) session: Option<&'a SessionId>,
    /// The session, even if it is only remembered from an earlier process. Leaving uses this one.
    pub(crate) remembered: Option<&'a SessionId>,
    pub(crate) now: Moment,
    /// The acquire group of this semaphore.
    pub(crate) together: Option<GroupMember<'a>>,
    /// A workload runs on the slots.
    pub(crate) occupied: bool,
    /// Whether the machine asks for a proof that the session lives.
    pub(crate) checks_session: bool,
    pub(crate) rng: &'a mut fastrand::Rng,
    pub(crate) out: &'a mut VecDeque<Command>,
}

impl Context<'_> {
    pub(super) fn lease_is_valid(&self) -> bool {
        self.agent.session.lease().is_some_and(|lease| lease.is_valid(self.now))
    }

    /// Whether the lease is as young as a holder's: what begins under it survives as long an outage as what has been held for
    /// a while.
    pub(super) fn lease_is_fresh(&self) -> bool {
        self.agent.session.lease().is_some_and(|lease| self.now < lease.fresh_until())
    }

    pub(super) fn notify(&mut self, notice: Notice) {
        self.out.push_back(Command::Notify(notice));
    }
}
