//! One stay of a slot, from the asking to the end: where it stands, with what belongs to that.

use crate::plan::Write;
use crate::{Moment, SessionId};

/// Where a semaphore stands, for the world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing is known yet, or not any more: no session, or no answer.
    Starting,
    /// In line.
    Waiting,
    /// Held.
    Held {
        /// Since when.
        since: Moment,
        /// `.lock`'s index at the grant.
        token: u64,
        /// The numbers of its slots, each from 0 and below the limit, and no other holder's. None where another
        /// program has overwritten them.
        indexes: Vec<u32>,
    },
    /// Kept out until somebody mends something.
    Blocked {
        /// What is wrong and what to do.
        why: String,
    },
    /// Being given back.
    Leaving,
    /// The bound on waiting has passed.
    TimedOut,
    /// Lost, with `on_lost: exit`: it is not asked for again.
    Lost,
    /// Given back.
    Released,
}

/// What a machine works towards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Intent {
    /// To hold.
    Hold,
    /// To be gone, and why.
    Leave(LeaveReason),
    /// Nothing: it is gone.
    Rest,
}

/// Why it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaveReason {
    Released,
    TimedOut,
    Lost,
    /// It asks again, together with the others of its party.
    Requeue,
}

/// One stay.
#[derive(Clone, Debug)]
pub(super) enum State {
    /// The slot is asked for.
    Acquiring(Acquiring),
    /// It is held.
    Held(Slot),
    /// What is there of it is being taken away, a slot that was held among it.
    Leaving { reason: LeaveReason, slot: Option<Slot> },
    /// Nothing is there any more.
    Ended(EndReason),
}

/// How it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndReason {
    Released,
    TimedOut,
    Lost,
    /// It was left as it was, for the session's end to take away.
    Abandoned,
}

/// What belongs to one that is asked for.
#[derive(Clone, Debug)]
pub(super) struct Acquiring {
    /// Since when.
    pub(super) since: Moment,
    pub(super) cause: WaitCause,
    /// Since when the slots have been there for it.
    pub(super) room_since: Option<Moment>,
    /// It has stood in line.
    pub(super) waited: bool,
    pub(super) finding: Finding,
}

/// What keeps it out, for the world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WaitCause {
    /// Nobody knows yet.
    Unknown,
    /// Other waiters and holders.
    Queue,
    /// What somebody has to mend.
    Fault(String),
}

/// What has been found for one that is not told yet that it holds.
#[derive(Clone, Debug)]
pub(super) enum Finding {
    Nothing,
    /// This is to be committed as soon as all others of the party can.
    Proposal(Write),
    /// The slots are there, but not known yet to be so for all others of the party.
    Slots,
    /// The slots are there, and it waits for a renewal before it tells so.
    SlotsUnproved,
}

/// A slot that was granted.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) since: Moment,
    pub(super) session: SessionId,
    pub(super) token: u64,
    pub(super) indexes: Vec<u32>,
}

impl State {
    /// One that is asked for from now on.
    pub(super) fn begin(now: Moment) -> Self {
        let (cause, finding) = (WaitCause::Unknown, Finding::Nothing);
        Self::Acquiring(Acquiring { since: now, cause, room_since: None, waited: false, finding })
    }

    /// One that only goes.
    pub(super) fn leaving() -> Self {
        Self::Leaving { reason: LeaveReason::Released, slot: None }
    }

    pub(super) fn phase(&self) -> Phase {
        match self {
            Self::Acquiring(Acquiring { cause, .. }) => match cause {
                WaitCause::Unknown => Phase::Starting,
                WaitCause::Queue => Phase::Waiting,
                WaitCause::Fault(why) => Phase::Blocked { why: why.clone() },
            },
            Self::Held(Slot { since, token, indexes, .. }) => {
                Phase::Held { since: *since, token: *token, indexes: indexes.clone() }
            }
            Self::Leaving { .. } | Self::Ended(EndReason::Abandoned) => Phase::Leaving,
            Self::Ended(EndReason::Released) => Phase::Released,
            Self::Ended(EndReason::TimedOut) => Phase::TimedOut,
            Self::Ended(EndReason::Lost) => Phase::Lost,
        }
    }

    pub(super) fn intent(&self) -> Intent {
        match self {
            Self::Acquiring(_) | Self::Held(_) => Intent::Hold,
            Self::Leaving { reason, .. } => Intent::Leave(*reason),
            Self::Ended(_) => Intent::Rest,
        }
    }

    /// What is held, or being given back.
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

    /// Whether it stands in line, as far as the world knows.
    pub(super) fn waits(&self) -> bool {
        self.acquiring().is_some_and(|acquiring| acquiring.cause == WaitCause::Queue)
    }

    /// What was found, where it is asked for.
    pub(super) fn finding(&self) -> &Finding {
        self.acquiring().map_or(&Finding::Nothing, |acquiring| &acquiring.finding)
    }

    /// Goes on by going, with what was held.
    pub(super) fn start_leaving(&mut self, reason: LeaveReason) {
        let slot = match std::mem::replace(self, Self::Ended(EndReason::Released)) {
            Self::Held(slot) => Some(slot),
            Self::Leaving { slot, .. } => slot,
            Self::Acquiring(_) | Self::Ended(_) => None,
        };
        *self = Self::Leaving { reason, slot };
    }

    /// Takes what is held away; from here on it is asked for.
    pub(super) fn take_slot(&mut self, now: Moment) -> Option<Slot> {
        if !matches!(self, Self::Held(_)) {
            return None;
        }
        match std::mem::replace(self, Self::begin(now)) {
            Self::Held(slot) => Some(slot),
            Self::Acquiring(_) | Self::Leaving { .. } | Self::Ended(_) => None,
        }
    }
}

impl Acquiring {
    /// The slots are there for it from now on, if they were not.
    pub(super) fn finds_room(&mut self, now: Moment) {
        self.room_since.get_or_insert(now);
    }
}
