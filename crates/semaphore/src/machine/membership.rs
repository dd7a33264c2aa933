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
    GaveUp,
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
    Leave(Farewell),
    /// Nothing: it is gone.
    Rest,
}

/// Why it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Farewell {
    Released,
    GaveUp,
    Lost,
    /// It asks again, together with the others of its party.
    Again,
}

/// One stay.
#[derive(Clone, Debug)]
pub(super) enum Stay {
    /// The slot is asked for.
    Asking(Asking),
    /// It is held.
    Held(Slot),
    /// What is there of it is being taken away, a slot that was held among it.
    Leaving { farewell: Farewell, slot: Option<Slot> },
    /// Nothing is there any more.
    Over(End),
}

/// How it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Released,
    GaveUp,
    Lost,
    /// It was left as it was, for the session's end to take away.
    Abandoned,
}

/// What belongs to one that is asked for.
#[derive(Clone, Debug)]
pub(super) struct Asking {
    /// Since when.
    pub(super) since: Moment,
    pub(super) keeps_out: KeepsOut,
    /// Since when the slots have been there for it.
    pub(super) room_since: Option<Moment>,
    /// It has stood in line.
    pub(super) waited: bool,
    pub(super) finds: Finds,
}

/// What keeps it out, for the world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeepsOut {
    /// Nobody knows yet.
    Unknown,
    /// Others.
    Others,
    /// What somebody has to mend.
    Fault(String),
}

/// What has been found for one that is not told yet that it holds.
#[derive(Clone, Debug)]
pub(super) enum Finds {
    Nothing,
    /// This is to be committed as soon as all others of the party can.
    Offer(Write),
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

impl Stay {
    /// One that is asked for from now on.
    pub(super) fn begin(now: Moment) -> Self {
        let (keeps_out, finds) = (KeepsOut::Unknown, Finds::Nothing);
        Self::Asking(Asking { since: now, keeps_out, room_since: None, waited: false, finds })
    }

    /// One that only goes.
    pub(super) fn departing() -> Self {
        Self::Leaving { farewell: Farewell::Released, slot: None }
    }

    pub(super) fn phase(&self) -> Phase {
        match self {
            Self::Asking(Asking { keeps_out, .. }) => match keeps_out {
                KeepsOut::Unknown => Phase::Starting,
                KeepsOut::Others => Phase::Waiting,
                KeepsOut::Fault(why) => Phase::Blocked { why: why.clone() },
            },
            Self::Held(Slot { since, token, indexes, .. }) => {
                Phase::Held { since: *since, token: *token, indexes: indexes.clone() }
            }
            Self::Leaving { .. } | Self::Over(End::Abandoned) => Phase::Leaving,
            Self::Over(End::Released) => Phase::Released,
            Self::Over(End::GaveUp) => Phase::GaveUp,
            Self::Over(End::Lost) => Phase::Lost,
        }
    }

    pub(super) fn intent(&self) -> Intent {
        match self {
            Self::Asking(_) | Self::Held(_) => Intent::Hold,
            Self::Leaving { farewell, .. } => Intent::Leave(*farewell),
            Self::Over(_) => Intent::Rest,
        }
    }

    /// What is held, or being given back.
    pub(super) fn slot(&self) -> Option<&Slot> {
        match self {
            Self::Held(slot) => Some(slot),
            Self::Leaving { slot, .. } => slot.as_ref(),
            Self::Asking(_) | Self::Over(_) => None,
        }
    }

    pub(super) fn asking(&self) -> Option<&Asking> {
        if let Self::Asking(asking) = self { Some(asking) } else { None }
    }

    pub(super) fn asking_mut(&mut self) -> Option<&mut Asking> {
        if let Self::Asking(asking) = self { Some(asking) } else { None }
    }

    /// Whether it stands in line, as far as the world knows.
    pub(super) fn waits(&self) -> bool {
        self.asking().is_some_and(|asking| asking.keeps_out == KeepsOut::Others)
    }

    /// What was found, where it is asked for.
    pub(super) fn finds(&self) -> &Finds {
        self.asking().map_or(&Finds::Nothing, |asking| &asking.finds)
    }

    /// Goes on by going, with what was held.
    pub(super) fn depart(&mut self, farewell: Farewell) {
        let slot = match std::mem::replace(self, Self::Over(End::Released)) {
            Self::Held(slot) => Some(slot),
            Self::Leaving { slot, .. } => slot,
            Self::Asking(_) | Self::Over(_) => None,
        };
        *self = Self::Leaving { farewell, slot };
    }

    /// Takes what is held away; from here on it is asked for.
    pub(super) fn take_slot(&mut self, now: Moment) -> Option<Slot> {
        if !matches!(self, Self::Held(_)) {
            return None;
        }
        match std::mem::replace(self, Self::begin(now)) {
            Self::Held(slot) => Some(slot),
            Self::Asking(_) | Self::Leaving { .. } | Self::Over(_) => None,
        }
    }
}

impl Asking {
    /// The slots are there for it from now on, if they were not.
    pub(super) fn finds_room(&mut self, now: Moment) {
        self.room_since.get_or_insert(now);
    }
}
