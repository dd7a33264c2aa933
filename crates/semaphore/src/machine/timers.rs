//! The timers of a machine.

use crate::Moment;

/// The timers, each with what is due at its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// When to retry after a failure. Nothing is sent before.
    Retry,
    /// When to plan again, by a new reading, although nothing has changed.
    Again,
    /// When to stop leaving it to other clients to act.
    Yield,
    /// When to look, whatever the watches tell.
    Look,
    /// When to look for the last time before the wait ends.
    LastLook,
    /// Until when a wait lasts that ended during such a look.
    Decide,
    /// When to list the keys for a reader of the status.
    Refresh,
    /// When to list once more, since Consul may execute a request of an earlier process late.
    LookAgain,
}

/// The time of each timer that is set.
#[derive(Clone, Debug, Default)]
pub(super) struct Timers([Option<Moment>; Timer::LookAgain as usize + 1]);

impl Timers {
    /// The time of the timer, if it is set.
    pub(super) fn at(&self, timer: Timer) -> Option<Moment> {
        self.0[timer as usize]
    }

    pub(super) fn is_set(&self, timer: Timer) -> bool {
        self.at(timer).is_some()
    }

    /// Whether the timer is due. Then it is cleared.
    pub(super) fn take_due(&mut self, timer: Timer, now: Moment) -> bool {
        self.0[timer as usize].take_if(|at| *at <= now).is_some()
    }

    /// Sets the timer; `None` clears it.
    pub(super) fn set(&mut self, timer: Timer, at: impl Into<Option<Moment>>) {
        self.0[timer as usize] = at.into();
    }

    /// Sets the timer unless it is set.
    pub(super) fn set_once(&mut self, timer: Timer, at: impl FnOnce() -> Moment) {
        self.0[timer as usize].get_or_insert_with(at);
    }

    pub(super) fn clear<const N: usize>(&mut self, timers: [Timer; N]) {
        timers.into_iter().for_each(|timer| self.set(timer, None));
    }

    /// The times of all timers that are set.
    pub(super) fn iter(&self) -> impl Iterator<Item = Moment> {
        self.0.iter().flatten().copied()
    }
}
