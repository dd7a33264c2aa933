//! The timer table of a machine: what is due, and when.

use crate::Moment;

/// What there is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// Nothing is sent before.
    Retry,
    /// When to do what any client could have done.
    Tidy,
    /// The plan is made again, although nothing has changed.
    Recheck,
    /// Until when free slots are left to other newcomers, or to the lookout.
    Yield,
    /// What is known is read again at the latest then, whatever the watches tell.
    Read,
    /// When to list the keys for a reader of the status.
    Refresh,
    /// Everything is looked at once more: a request of an earlier process may be carried out late.
    LookAgain,
}

/// When each is due, if it is set.
#[derive(Clone, Debug, Default)]
pub(super) struct Timers([Option<Moment>; 7]);

impl Timers {
    /// When it is due.
    pub(super) fn at(&self, timer: Timer) -> Option<Moment> {
        self.0[timer as usize]
    }

    pub(super) fn is_set(&self, timer: Timer) -> bool {
        self.at(timer).is_some()
    }

    pub(super) fn is_due(&self, timer: Timer, now: Moment) -> bool {
        self.at(timer).is_some_and(|at| at <= now)
    }

    /// Sets it, whatever it was; to nothing, clears it.
    pub(super) fn set(&mut self, timer: Timer, at: impl Into<Option<Moment>>) {
        self.0[timer as usize] = at.into();
    }

    /// Sets it where it is not set.
    pub(super) fn set_once(&mut self, timer: Timer, at: impl FnOnce() -> Moment) {
        self.0[timer as usize].get_or_insert_with(at);
    }

    pub(super) fn clear(&mut self, timer: Timer) {
        self.set(timer, None);
    }

    /// When any of them is due.
    pub(super) fn iter(&self) -> impl Iterator<Item = Moment> {
        self.0.iter().flatten().copied()
    }
}
