//! How the answer to a transaction changes a machine. After it, [`Machine::drive`] decides what to do.

use super::{Context, InFlight, Intent, Machine, Timer};
use crate::SessionId;
use crate::backoff::jittered;
use crate::command::{Commit, Failure, FailureKind, Listing, Op};
use crate::notice::Notice;
use crate::plan;
use crate::plan::{Refresh, Role, Write};
use crate::timing::{
    LOCK_DELAY_RETRY_WAIT, MAX_FOLLOW_UPS, MAX_NEWCOMER_YIELD, MAX_WRITES_WITHOUT_CROWD,
    NEWCOMER_YIELD_PER_WRITE, WATCH_WAIT,
};
use crate::view::View;

impl Machine {
    pub(crate) fn committed(&mut self, answer: Result<Commit, Failure>, cx: &mut Context<'_>) {
        let InFlight::Committing { write, sent } = self.take_in_flight() else { return };
        match answer {
            Ok(Commit::Done { index, listing }) => {
                self.commit_done(&write, index, listing, cx);
                if write.pruned > 0 {
                    let took = cx.now.since(sent);
                    cx.notify(Notice::Pruned { name: self.name.clone(), holders: write.pruned, took });
                }
                self.view_changed(cx);
            }
            Ok(Commit::Stale { steps }) => self.lost_race(&write, &steps, cx),
            Ok(Commit::Delayed { .. }) if self.settings.is_lock() => self.lock_delayed(cx),
            Ok(Commit::Delayed { steps }) => self.handoff_delayed(&write, &steps, cx),
            Ok(Commit::SessionGone) => {
                // A server that has other data may go on answering renewals.
                self.delay_retry(cx);
                self.refresh = Some(Refresh::Prefix);
                self.look_at_session();
            }
            Ok(Commit::Refused { why }) => {
                self.write_failed(Failure { kind: FailureKind::Rejected, text: why }, cx);
                self.refresh = Some(Refresh::Prefix);
            }
            Err(failure) => {
                // The transaction may have been committed.
                self.write_failed(failure, cx);
                self.refresh = Some(Refresh::Prefix);
            }
        }
    }

    /// Brings the view to where the committed transaction has taken it, and decides what to look at after it.
    fn commit_done(&mut self, write: &Write, index: u64, listing: Option<Listing>, cx: &mut Context<'_>) {
        self.write_succeeded(cx);
        self.contention.reset();
        self.lost_cas_race = false;
        self.proved = true;
        if self.settings.is_lock() {
            // The lock was free until now, as the view still has it.
            self.observe_owner(cx);
        }
        let listing = match listing {
            Some(read) if self.view.is_none() => {
                self.after_join(read, index, cx);
                None
            }
            listing => listing,
        };
        let had_lookout = self.view.as_ref().is_some_and(View::has_lookout);
        self.apply_commit(write, index, listing, cx);
        let has_lookout = self.view.as_ref().is_some_and(View::has_lookout);
        let is_held = self.is_held_by_view(cx.remembered);
        if write.joint && (had_lookout && !has_lookout || !is_held) {
            // Unknown: new waiters ahead, and waiters that rely on a lookout that is named no more.
            self.refresh = Some(Refresh::Prefix);
        } else if write.joint || is_held && self.view.as_ref().is_some_and(View::has_foreign) {
            // A joint write grants the own slots alone, and the waiters behind rely on this client for theirs. Beside
            // foreign clients the new head of the queue has to be told.
            self.follows_up = true;
        }
    }

    fn apply_commit(&mut self, write: &Write, index: u64, listing: Option<Listing>, cx: &mut Context<'_>) {
        let Some(view) = &mut self.view else { return };
        let limit = |view: &View| view.record().map(|record| record.limit);
        let before = limit(view);
        view.apply(&write.ops, index);
        // The limit of the listing may be another client's change.
        let after = limit(view);
        if let Some(listing) = listing {
            self.listed_at = Some(cx.now);
            self.follows_up = true;
            let mut listed = View::of_listing(&self.settings.prefix, listing);
            listed.follow(view);
            *view = listed;
            if view.has_dead() {
                // A transaction does not say which keys it hides: only a listing proves that a holder is dead.
                self.refresh = Some(Refresh::Prefix);
            }
            self.watches.proved(|key| Some(view.index_of(key)), cx.now, cx.rng);
        }
        if let (Some(from), Some(to)) = (before, after)
            && from != to
        {
            cx.notify(Notice::LimitSet { name: self.name.clone(), from, to });
            self.reported.note_limit_set(to);
        }
    }

    /// A check-and-set came too late.
    fn lost_race(&mut self, write: &Write, steps: &[usize], cx: &mut Context<'_>) {
        self.write_succeeded(cx);
        cx.notify(Notice::Conflict { name: self.name.clone() });
        if self.settings.is_lock() || self.lost_race_to_foreign(write, steps) {
            // A lock's next attempt follows its release: no crowd tries in vain. A client that races foreign clients must
            // not wait longer each time, or it never wins.
            self.contention.reset();
        }
        self.lost_cas_race = !self.lost_cas_race && self.lost_race_as_newcomer(write, steps, cx.remembered);
        self.give_way(cx);
        if self.lost_cas_race {
            return;
        }
        // A watch may have asked for more in the meantime.
        if !matches!(self.refresh, Some(Refresh::Prefix | Refresh::LockKeyConsistent)) {
            self.refresh = self.refresh_after(write, steps, cx.remembered);
        }
        if self.refresh.is_some() {
            self.delay_retry(cx);
        }
    }

    /// The contender key of a waiter that was to be granted its slots is in lock-delay: its session has ended.
    fn handoff_delayed(&mut self, write: &Write, steps: &[usize], cx: &mut Context<'_>) {
        self.write_succeeded(cx);
        self.refresh = Some(Refresh::Prefix);
        self.delay_retry(cx);
        if self.locks_own(write, steps, cx.remembered) {
            // Only the session tells whether the own contender key is in lock-delay because the session has ended.
            self.look_at_session();
        }
    }

    /// The lock is free but in lock-delay, of which Consul does not say when it ends. The next attempt is made soon.
    fn lock_delayed(&mut self, cx: &mut Context<'_>) {
        self.write_succeeded(cx);
        self.proved = true;
        self.observe_owner(cx);
        let next = cx.now + jittered(LOCK_DELAY_RETRY_WAIT, 0.2, cx.rng);
        if self.delayed_until.replace(next).is_none() {
            cx.notify(Notice::LockDelayed { name: self.name.clone() });
        }
    }

    /// The contender key exists, and `.lock` was read at the same instant.
    fn after_join(&mut self, read: Listing, index: u64, cx: &mut Context<'_>) {
        let prefix = self.settings.prefix.clone();
        let key = format!("{prefix}/.lock");
        let view = View::of_lock(&prefix, read.pairs.into_iter().find(|pair| pair.key == key), index);
        let held = view.record().is_some_and(|record| record.taken() > 0);
        // Beside foreign clients each slotkeeper client acts for itself, as those do.
        let shared = view.record().is_some_and(|record| !record.ours && !record.has_lookout);
        // There is no crowd without a holder if Consul has written little since `.lock` was written.
        let since = index.saturating_sub(view.lock_index());
        let crowd = !shared && (held || since > MAX_WRITES_WITHOUT_CROWD);
        // Of newcomers that arrive together, the first waits the least.
        let rank = u32::try_from(since).unwrap_or(u32::MAX);
        let longest = (NEWCOMER_YIELD_PER_WRITE * rank).min(MAX_NEWCOMER_YIELD);
        self.timers.set(Timer::Yield, crowd.then(|| cx.now + jittered(longest, 0.9, cx.rng)));
        self.refresh = (!crowd).then_some(Refresh::Prefix);
        self.view = Some(view);
    }

    /// Watches the own contender key until the next attempt, because another client may grant the slots meanwhile. A client
    /// that leaves has a limited number of attempts.
    fn give_way(&mut self, cx: &mut Context<'_>) {
        let own = self.view.as_ref().zip(cx.session).and_then(|(view, session)| plan::own(view, session));
        match self.intent() {
            Intent::Hold if self.watches.is_idle() => {
                if let Some(own) = own {
                    self.watches.want(vec![own], WATCH_WAIT, &self.name, cx);
                }
            }
            Intent::Leave(_) if self.contention.failures() >= MAX_FOLLOW_UPS => self.follows_up = false,
            Intent::Hold | Intent::Leave(_) | Intent::Rest => {}
        }
    }

    /// Waits before the next attempt, as other clients are writing too.
    fn delay_retry(&mut self, cx: &mut Context<'_>) {
        let pause = self.contention_delay(cx);
        self.timers.set(Timer::Retry, cx.now + pause);
    }

    fn look_at_session(&mut self) {
        self.check_session = true;
        self.in_flight = InFlight::CheckingSession;
    }

    fn is_held_by_view(&self, session: Option<&SessionId>) -> bool {
        let slots = self.settings.slots;
        session.zip(self.view.as_ref()).is_some_and(|(session, view)| view.holds(session, slots))
    }

    /// Whether one of these steps locks the own contender key.
    fn locks_own(&self, write: &Write, steps: &[usize], session: Option<&SessionId>) -> bool {
        let (Some(session), Some(view)) = (session, self.view.as_ref()) else { return false };
        let own = view.contender_key(session);
        steps.iter().any(|step| write.ops.get(*step).is_some_and(|op| op.key() == own))
    }

    /// Whether a newcomer was too late for `.lock` alone. Then it can enqueue at the end without another read: its next write
    /// lists what is there, and cannot come too late.
    fn lost_race_as_newcomer(&self, write: &Write, steps: &[usize], session: Option<&SessionId>) -> bool {
        let (Some(view), Some(session)) = (&self.view, session) else { return false };
        self.intent() == Intent::Hold
            && !write.joint
            && view.contender(session).is_none()
            && is_late_for_lock_alone(view, write, steps)
    }

    /// Whether the first slotkeeper client of the queue lost a slot to a foreign client.
    fn lost_race_to_foreign(&self, write: &Write, steps: &[usize]) -> bool {
        let Some(view) = self.view.as_ref().filter(|view| view.has_foreign()) else { return false };
        self.intent() == Intent::Hold
            && self.last_role.0 == Role::Head
            && is_late_for_lock_alone(view, write, steps)
    }

    /// What to read after these steps of a transaction failed. A change of `.lock` does not concern the contender keys, but a
    /// newcomer has to know them.
    fn refresh_after(&self, write: &Write, steps: &[usize], session: Option<&SessionId>) -> Option<Refresh> {
        let Some(view) = &self.view else { return Some(Refresh::Prefix) };
        let lock = view.lock_key();
        let stale = |step: &usize| match write.ops.get(*step) {
            Some(Op::Cas { key, index, .. }) if *key == lock => Some(*index),
            _ => None,
        };
        let is_queued_or_holding = session.is_some_and(|session| view.contender(session).is_some());
        let stale: Option<Vec<u64>> = steps.iter().map(stale).collect();
        match stale.filter(|_| is_queued_or_holding) {
            // The watch of `.lock` has shown the newer index already.
            Some(stale) if stale.iter().all(|index| *index < view.lock_index()) => None,
            Some(_) => Some(Refresh::LockKey),
            None => Some(Refresh::Prefix),
        }
    }
}

/// Whether a write came too late for nothing but `.lock`.
fn is_late_for_lock_alone(view: &View, write: &Write, steps: &[usize]) -> bool {
    let lock = view.lock_key();
    let is_lock = |step: &usize| matches!(write.ops.get(*step), Some(Op::Cas { key, .. }) if *key == lock);
    steps.iter().all(is_lock)
}
