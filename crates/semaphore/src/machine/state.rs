//! The states of a machine, from the first request for the slot to its end, each with its own data.

use crate::plan::{Grant, Write};
use crate::{Moment, Obstacle, SessionId};

/// The state of a semaphore or lock, as it is reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing is known: no session, or no answer yet.
    Starting,
    /// The client waits in the queue.
    Waiting,
    /// The slots are held.
    Held {
        /// Since when.
        since: Moment,
        /// `.lock`'s index at the grant.
        token: u64,
        /// The numbers of its slots, each from 0 and below the limit, and no other holder's. None where another
        /// program has overwritten them.
        indexes: Vec<u32>,
    },
    /// The slot cannot be acquired until a person acts.
    Blocked {
        /// What is wrong and what to do.
        obstacle: Obstacle,
        /// Since when it is known.
        since: Moment,
    },
    /// The slot is being released, or the client leaves the queue.
    Leaving,
    /// No slot was acquired within `wait`.
    TimedOut,
    /// The slot was lost, with `on_lost: exit`: it is not acquired again.
    Lost,
    /// The slot was released.
    Released,
}

/// Why the client leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaveReason {
    Released,
    TimedOut,
    Lost,
    /// It joins the queue again, together with the rest of its acquire group.
    Requeue,
    /// The keys are left for the end of the session to remove.
    Abandoned,
}

/// The state of a machine.
#[derive(Clone, Debug)]
pub(super) enum State {
    /// The client acquires the slot.
    Acquiring(Acquiring),
    /// It is held.
    Held(Slot),
    /// The client deletes its contender key, and releases the slot that it held.
    Leaving { reason: LeaveReason, slot: Option<Slot> },
    /// Nothing of the client is left in Consul.
    Ended(LeaveReason),
}

/// The data of a machine that acquires its slot.
#[derive(Clone, Debug)]
pub(super) struct Acquiring {
    /// Since when.
    pub(super) since: Moment,
    /// How it is reported: it starts, waits or is blocked.
    pub(super) phase: Phase,
    /// Since when its slots have been free.
    pub(super) room_since: Option<Moment>,
    /// Whether it has waited in the queue.
    pub(super) waited: bool,
    pub(super) finding: Finding,
}

/// What was found for a slot that is not reported as held yet.
#[derive(Clone, Debug)]
pub(super) enum Finding {
    Nothing,
    /// A write that is committed as soon as the whole acquire group can.
    Proposal(Write),
    /// The client has its slots, but they are not known to be there for the whole acquire group.
    Slots(Grant),
    /// The client has its slots, and they are reported after the next renewal.
    SlotsUnproved(Grant),
}

/// A slot that was granted.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) since: Moment,
    pub(super) session: SessionId,
    pub(super) token: u64,
    pub(super) indexes: Vec<u32>,
}

impl Acquiring {
    /// What a person has to fix.
    pub(super) fn obstacle(&self) -> Option<&Obstacle> {
        if let Phase::Blocked { obstacle, .. } = &self.phase { Some(obstacle) } else { None }
    }
}

impl State {
    /// Begins to acquire the slot.
    pub(super) fn begin(now: Moment) -> Self {
        let (phase, finding) = (Phase::Starting, Finding::Nothing);
        Self::Acquiring(Acquiring { since: now, phase, room_since: None, waited: false, finding })
    }

    pub(super) fn phase(&self) -> Phase {
        match self {
            Self::Acquiring(acquiring) => acquiring.phase.clone(),
            Self::Held(Slot { since, token, indexes, .. }) => {
                Phase::Held { since: *since, token: *token, indexes: indexes.clone() }
            }
            Self::Leaving { .. } | Self::Ended(LeaveReason::Abandoned) => Phase::Leaving,
            Self::Ended(LeaveReason::Released | LeaveReason::Requeue) => Phase::Released,
            Self::Ended(LeaveReason::TimedOut) => Phase::TimedOut,
            Self::Ended(LeaveReason::Lost) => Phase::Lost,
        }
    }

    /// Whether the client works towards holding the slot.
    pub(super) fn asks(&self) -> bool {
        matches!(self, Self::Acquiring(_) | Self::Held(_))
    }

    /// Why it leaves, if it does.
    pub(super) fn leaves(&self) -> Option<LeaveReason> {
        if let Self::Leaving { reason, .. } = self { Some(*reason) } else { None }
    }

    /// Whether it has left.
    pub(super) fn rests(&self) -> bool {
        matches!(self, Self::Ended(_))
    }

    /// The slot that is held or being released.
    pub(super) fn slot(&self) -> Option<&Slot> {
        match self {
            Self::Held(slot) => Some(slot),
            Self::Leaving { slot, .. } => slot.as_ref(),
            Self::Acquiring(_) | Self::Ended(_) => None,
        }
    }

    pub(super) fn acquiring(&self) -> Option<&Acquiring> {
        if let Self::Acquiring(acquiring) = self { Some(acquiring) } else { None }
    }

    pub(super) fn acquiring_mut(&mut self) -> Option<&mut Acquiring> {
        if let Self::Acquiring(acquiring) = self { Some(acquiring) } else { None }
    }

    /// Whether it is reported as waiting.
    pub(super) fn waits(&self) -> bool {
        self.acquiring().is_some_and(|acquiring| acquiring.phase == Phase::Waiting)
    }

    /// What was found, where it is asked for.
    pub(super) fn finding(&self) -> &Finding {
        self.acquiring().map_or(&Finding::Nothing, |acquiring| &acquiring.finding)
    }

    /// Starts to leave, with the slot that was held.
    pub(super) fn start_leaving(&mut self, reason: LeaveReason) {
        *self = Self::Leaving { reason, slot: self.slot().cloned() };
    }

    /// Takes the slot that is held; from here on it is acquired again.
    pub(super) fn take_slot(&mut self, now: Moment) -> Option<Slot> {
        let Self::Held(slot) = self else { return None };
        let slot = slot.clone();
        *self = Self::begin(now);
        Some(slot)
    }
}
