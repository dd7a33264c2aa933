//! The requests of a machine, besides its watches: reads, and transactions.

use std::time::Duration;

use super::{Context, InFlight, Intent, Machine, Timer};
use crate::backoff::jittered;
use crate::command::{Command, Part};
use crate::plan::{Refresh, Role, Write};
use crate::record::Record;
use crate::timing::{
    FIRST_LOOK, LAST_LOOK, LOOK_GRACE, LOOK_WINDOW, MAX_CAS_RETRY_WAIT, MAX_CAS_RIVALS, MAX_LIST_INTERVAL,
};
use crate::view::View;
use crate::{Moment, SessionId};

impl Machine {
    /// Reads all there is: of a lock, its key.
    pub(super) fn list(&mut self, cx: &mut Context<'_>) {
        self.in_flight = InFlight::Listing;
        let name = self.name.clone();
        cx.out.push_back(if self.settings.is_lock() {
            Command::ReadLock { name, key: self.settings.prefix.clone(), consistent: true }
        } else {
            Command::List { name }
        });
    }

    /// Reads what a plan has to know. `lock` is the coordinating key, `after` the latest index that is known.
    pub(super) fn read(&mut self, refresh: Refresh, lock: String, after: u64, cx: &mut Context<'_>) {
        let consistent = match refresh {
            Refresh::Prefix => return self.list(cx),
            Refresh::LockKey => false,
            Refresh::LockKeyConsistent => true,
        };
        self.in_flight = InFlight::ReadingLock { after, consistent };
        cx.out.push_back(Command::ReadLock { name: self.name.clone(), key: lock, consistent });
    }

    /// Whether the client is a waiter that relies on the lookout, or without one on the waiter ahead.
    pub(super) fn relies(&self, cx: &Context<'_>) -> bool {
        let follows = self.arrival.is_some() && self.last_role.0 == Role::Behind && cx.together.is_none();
        follows && !self.failures.hides_keys() && self.intent() == Intent::Hold
    }

    /// Whether a read of the own contender key, `.lock` and the contender key that the client relies on is enough. Without a lookout
    /// the keys are listed from time to time.
    pub(super) fn own_keys_suffice(&self, cx: &Context<'_>) -> bool {
        if self.holds() {
            return !self.failures.hides_keys();
        }
        let listed = || self.listed_at.is_some_and(|at| cx.now < at + MAX_LIST_INTERVAL / 2);
        self.relies(cx) && (self.view.as_ref().is_some_and(View::has_lookout) || listed())
    }

    /// Reads what tells whether it still holds; or whether it was let in, and those on whom it relies are still there.
    pub(super) fn read_keys(&mut self, view: &View, session: &SessionId, cx: &mut Context<'_>) {
        if self.settings.is_lock() {
            return self.list(cx);
        }
        let behind = self.last_role.0 == Role::Behind;
        let relies_on = view.relies_on(session).filter(|_| behind && !self.holds()).cloned();
        let other = relies_on.as_ref().map(|other| view.contender_key(other));
        let keys = [view.contender_key(session), view.lock_key()].into_iter().chain(other).collect();
        self.in_flight = InFlight::ReadingKeys { after: view.latest(), relies_on };
        cx.out.push_back(Command::ReadKeys { name: self.name.clone(), keys });
        self.decide_soon();
    }

    /// The present look, and what follows from it, decides a wait that ends meanwhile.
    pub(super) fn decide_soon(&mut self) {
        self.timers.clear(Timer::Decide);
        let decided = self.times_out_at().map(|ends| ends + LOOK_GRACE);
        self.timers.set(Timer::Decide, decided);
    }

    /// Forgets when the keys were to be read again: the client relies on others from here on.
    pub(super) fn look_anew(&mut self) {
        self.looks = 0;
        self.timers.clear(Timer::Read);
    }

    /// When a waiter that is not the head reads the keys again that it relies on: soon after it joined, when each session that had
    /// ceased to be renewed before has ended, from then on rarely, and before its wait ends. `changes`: clients come and go, and
    /// the lookout may be one of those that left.
    pub(super) fn next_look(&mut self, changes: bool, cx: &mut Context<'_>) -> Moment {
        let left = self.times_out_at().map_or(Duration::MAX, |ends| ends.since(cx.now));
        let next = match self.looks {
            // The clients of a crowd, which may give up together, look at different instants.
            0 => jittered(FIRST_LOOK.min(left / 4 * 3), 0.5, cx.rng),
            1 => cx.ttl * 2,
            _ if changes => jittered(cx.ttl * 2, 0.5, cx.rng),
            _ => jittered(MAX_LIST_INTERVAL.min(cx.ttl * 8), 0.5, cx.rng),
        };
        let last = if left > LOOK_WINDOW { left - jittered(LAST_LOOK, 0.5, cx.rng) } else { next };
        cx.now + last.min(next)
    }

    /// How long to wait after a check-and-set that came too late: longer if more clients may be writing. Holders that were
    /// granted their slots together may leave together.
    pub(super) fn contention_delay(&mut self, cx: &mut Context<'_>) -> Duration {
        let taken = self.view.as_ref().and_then(View::record).map_or(1, Record::taken);
        let own = self.view.as_ref().zip(cx.remembered).and_then(|(view, session)| view.entry_of(session));
        let beside = own.and_then(|entry| entry.beside).unwrap_or(1).min(MAX_CAS_RIVALS);
        let others = f64::from(taken.clamp(1, MAX_CAS_RIVALS)).sqrt().max(f64::from(beside));
        let longest = self.contention.next(cx.rng).mul_f64(others);
        jittered(longest.min(MAX_CAS_RETRY_WAIT), 0.9, cx.rng)
    }

    pub(super) fn commit(&mut self, write: Write, cx: &mut Context<'_>) {
        self.timers.clear(Timer::Tidy);
        // An earlier process's token belongs to a slot that is found, not to one that is acquired.
        self.token = None;
        let ops = write.ops.clone();
        self.in_flight = InFlight::Committing { write, sent: cx.now };
        cx.out.push_back(Command::Commit { parts: vec![Part { name: self.name.clone(), ops }] });
    }
}
