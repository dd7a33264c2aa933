//! How answers change a machine. After each, [`Machine::drive`] decides what to do.

use super::{Claim, Context, InFlight, Intent, Machine, State, Timer};
use crate::LockKeyState;
use crate::SessionId;
use crate::backoff::jittered;
use crate::command::{Commit, Failure, FailureKind, Listing, Op, Reading};
use crate::notice::{LossReason, Notice};
use crate::plan;
use crate::plan::{Refresh, Role, Write};
use crate::timing::{
    LOOKOUT_YIELD, MAX_FOLLOW_UPS, MAX_LIST_INTERVAL, MAX_NEWCOMER_YIELD, MAX_WRITES_WITHOUT_CROWD,
    NEWCOMER_YIELD_PER_WRITE, WATCH_WAIT, half,
};
use crate::view::View;
use std::time::Duration;

impl Machine {
    /// The session has ended: what was seen and asked for in its name is void.
    pub(crate) fn session_gone(&mut self, reason: LossReason, cx: &mut Context<'_>) {
        self.lose(reason, cx);
        self.stop_watches(cx);
        self.view = None;
        self.listed_at = None;
        self.arrival = None;
        self.lost_cas_race = false;
        (self.follows_up, self.confirmed) = (false, false);
        self.timers.clear(Timer::Yield);
        self.timers.clear(Timer::Refresh);
        self.token = None;
        self.stopping = None;
        self.claim = Claim::Unknown;
        if cx.ending {
            self.stop_acquiring();
        }
        self.refresh = None;
        self.timers.clear(Timer::Retry);
        self.in_flight = match self.in_flight {
            InFlight::None | InFlight::CheckingSession => InFlight::None,
            InFlight::Listing
            | InFlight::ReadingLock { .. }
            | InFlight::ReadingKeys { .. }
            | InFlight::Committing { .. }
            | InFlight::Void => InFlight::Void,
        };
    }

    /// A look at the session is over, and it has not ended.
    pub(crate) fn session_checked(&mut self) {
        if matches!(self.in_flight, InFlight::CheckingSession) {
            self.in_flight = InFlight::None;
            self.session_lives = true;
        }
    }

    pub(crate) fn listed(&mut self, answer: Result<Listing, Failure>, cx: &mut Context<'_>) {
        if !matches!(self.take_in_flight(), InFlight::Listing) {
            return;
        }
        match answer {
            Ok(listing) if listing.filtered && !matches!(self.intent(), Intent::Leave(_)) => {
                // What is hidden would look as if it were gone: other waiters, live holders, the own contender key.
                self.failures.listed(true);
                let text = plan::hidden_keys_error(&self.settings.prefix, "write");
                self.request_failed(Failure { kind: FailureKind::Denied, text }, cx);
                self.update_own_keys(listing, cx);
                self.resign(cx);
            }
            Ok(listing) => {
                // To leave takes no more than the own keys, and those that are hidden go with the session.
                self.failures.listed(listing.filtered);
                self.replace_view(View::of_listing(&self.settings.prefix, listing), cx);
            }
            Err(failure) => {
                // What passes is soon tried again, so that its end is seen.
                let passes = failure.kind.is_transient();
                self.read_failed(failure, cx);
                if passes {
                    self.refresh = Some(Refresh::Prefix);
                } else if self.refresh.is_none() {
                    self.list_later(cx);
                }
            }
        }
    }

    /// One that is not shown all cannot watch over all: whoever comes is not to rely on it.
    fn resign(&mut self, cx: &mut Context<'_>) {
        let (Some(mut view), Some(session)) = (self.view.take(), cx.session) else { return };
        view.hides_keys();
        let wall = cx.wall.text(cx.now);
        let write = plan::resign(&view, self.plan_input(session, &wall, cx));
        self.view = Some(view);
        if let Some(write) = write.filter(|_| !self.holds()) {
            self.commit(write, cx);
        }
    }

    /// What a holder learns of itself where not all is shown to it: whether `.lock` still names it, and whether an operator
    /// wants it out.
    fn update_own_keys(&mut self, listing: Listing, cx: &mut Context<'_>) {
        if !self.holds() {
            return;
        }
        let (Some(view), Some(session)) = (&mut self.view, cx.remembered) else { return };
        let (lock, own) = (view.lock_key(), view.contender_key(session));
        view.hides_keys();
        for pair in listing.pairs {
            if pair.key == lock {
                view.see_lock(Some(pair), listing.index);
            } else if pair.key == own {
                view.see_contender(session, Some(pair), listing.index);
            }
        }
        self.refresh = None;
        self.proved = self.is_removed_from_lock(cx.remembered);
        self.list_later(cx);
    }

    /// A holder goes by what it watches, and lists again in its time: it would see nothing at all otherwise.
    fn list_later(&mut self, cx: &mut Context<'_>) {
        if self.holds() {
            self.timers.set(Timer::Read, cx.now + jittered(half(cx.ttl), 0.3, cx.rng));
        }
    }

    /// Whether it believes that it holds, and has not its slots by `.lock`.
    fn is_removed_from_lock(&self, session: Option<&SessionId>) -> bool {
        let record = self.view.as_ref().and_then(View::record);
        let slots = session.zip(record).map_or(0, |(session, record)| record.slots_of(session));
        self.holds() && slots != self.settings.slots
    }

    /// Everything has been read, consistently.
    fn replace_view(&mut self, mut view: View, cx: &mut Context<'_>) {
        self.read_succeeded(cx);
        self.proved = true;
        self.refresh = None;
        self.timers.clear(Timer::Read);
        self.timers.clear(Timer::Refresh);
        self.lost_cas_race = false;
        self.listed_at = Some(cx.now);
        self.watches.proved(|key| Some(view.index_of(key)), cx.now, cx.rng);
        if let Some(before) = &self.view {
            view.follow(before);
        }
        self.view = Some(view);
        self.view_changed(false, cx);
    }

    pub(crate) fn lock_delay_read(&mut self, session: &SessionId, answer: Result<Option<Duration>, Failure>) {
        // Where it cannot be read the lock is tried now and then, which needs no more than that.
        self.lock_delay.learn(session, answer.unwrap_or_default());
    }

    pub(crate) fn lock_read(&mut self, answer: Result<Reading, Failure>, cx: &mut Context<'_>) {
        let (known_before, consistent) = match self.take_in_flight() {
            InFlight::ReadingLock { after, consistent } => (after, consistent),
            // Of a lock there is no more to read than its key.
            InFlight::Listing => match answer {
                Ok(Reading { pair, index }) => {
                    return self.replace_view(View::of_key(&self.settings.prefix, pair, index), cx);
                }
                Err(failure) => return self.read_failed(failure, cx),
            },
            InFlight::None
            | InFlight::CheckingSession
            | InFlight::ReadingKeys { .. }
            | InFlight::Committing { .. }
            | InFlight::Void => return,
        };
        match answer {
            Ok(reading) => {
                self.read_succeeded(cx);
                // What a watch has told meanwhile may ask for more than this.
                self.refresh = self.refresh.filter(|refresh| *refresh == Refresh::Prefix);
                if let (Some(view), Some(session)) = (&mut self.view, cx.remembered) {
                    self.proved = false;
                    let (lock, index) =
                        (view.lock_key(), reading.pair.as_ref().map_or(0, |pair| pair.modify_index));
                    self.watches.proved(|key| (key == lock).then_some(index), cx.now, cx.rng);
                    // What is known came of a watch then, and has not happened.
                    let denied = index < view.lock_index() && reading.pair.is_some();
                    view.see_lock(reading.pair, reading.index);
                    if consistent {
                        view.confirm_lock(known_before);
                    } else if view.was_granted(session) {
                        // It was asked of a server that does not know of the grant yet.
                        self.refresh = Some(Refresh::LockKeyConsistent);
                    }
                    if denied || !view.is_ordered() && !view.promote_to_head(session) {
                        self.refresh = Some(Refresh::Prefix);
                    }
                    let has_lookout =
                        view.record().filter(|record| record.has_lookout).map(|_| view.lock_index());
                    // Enough for that: who is in `.lock` no more has lost its slots, whatever its contender key says.
                    self.proved = consistent && !denied && self.is_removed_from_lock(cx.remembered);
                    // Whoever watches over all is about to give the slots that it sees free.
                    let trusts = has_lookout.filter(|index| self.trusted.replace(*index) != Some(*index));
                    self.timers
                        .set(Timer::Yield, trusts.map(|_| cx.now + jittered(LOOKOUT_YIELD, 0.5, cx.rng)));
                }
                self.view_changed(false, cx);
            }
            Err(failure) => self.read_failed(failure, cx),
        }
    }

    /// The own contender and `.lock` were read, and the contender of whoever it relies on.
    pub(crate) fn keys_read(&mut self, answer: Result<Vec<Reading>, Failure>, cx: &mut Context<'_>) {
        let InFlight::ReadingKeys { after, relies_on } = self.take_in_flight() else { return };
        let readings = match answer {
            Ok(readings) => readings,
            Err(failure) => return self.read_failed(failure, cx),
        };
        let mut readings = readings.into_iter();
        match (readings.next(), readings.next()) {
            (Some(own), Some(lock)) => {
                let other = relies_on.zip(readings.next());
                let behind = self.last_role.0 == Role::Behind;
                self.read_succeeded(cx);
                self.timers.clear(Timer::Read);
                let (Some(view), Some(session)) = (&mut self.view, cx.remembered) else { return };
                let (known, index) =
                    (view.lock_index(), lock.pair.as_ref().map_or(0, |pair| pair.modify_index));
                let denied = index < known && lock.pair.is_some();
                let held = matches!(self.state, State::Held(_));
                let has_lookout = view.has_lookout();
                // Where `.lock` has moved on, another one may watch over all by now. Where it names nobody, nobody does.
                let missing = match &other {
                    Some((_, read)) => read.pair.is_none(),
                    None => behind && has_lookout,
                };
                let gone = !held && (own.pair.is_none() || missing && (index == known || !has_lookout));
                // As where its watch tells of it.
                let own_index = own.pair.as_ref().map_or(0, |pair| pair.modify_index);
                let moved =
                    behind && view.has_foreign() && own_index != view.index_of(&view.contender_key(session));
                view.see_lock(lock.pair, lock.index);
                view.confirm_lock(after);
                view.see_contender(session, own.pair, own.index);
                if let Some((ahead, read)) = other.filter(|_| !has_lookout) {
                    let known = view.index_of(&view.contender_key(&ahead));
                    view.see_contender(&ahead, read.pair, read.index);
                    if view.index_of(&view.contender_key(&ahead)) != known {
                        view.invalidate_order();
                    }
                }
                let more = self.refresh.filter(|refresh| *refresh != Refresh::LockKey);
                self.refresh = (denied || gone || moved).then_some(Refresh::Prefix).or(more);
                (self.proved, self.confirmed) = (!denied, !denied);
                if behind {
                    // While others come and go, whoever watched over all may be among those who have gone.
                    let next = if index == known || !has_lookout {
                        MAX_LIST_INTERVAL.min(cx.ttl * 8)
                    } else {
                        cx.ttl * 2
                    };
                    let next = cx.now + jittered(next, 0.5, cx.rng);
                    // Where nobody does, all are listed in time.
                    let listed = self.listed_at.filter(|_| !has_lookout).map(|at| at + MAX_LIST_INTERVAL);
                    self.timers.set(Timer::Read, listed.map_or(next, |listed| next.min(listed)));
                }
                self.view_changed(false, cx);
            }
            // No answer to what was asked.
            (_, _) => self.refresh = Some(Refresh::Prefix),
        }
    }

    pub(crate) fn watched(&mut self, key: &str, answer: Result<Reading, Failure>, cx: &mut Context<'_>) {
        let known = self.view.as_ref().map_or(0, |view| view.index_of(key));
        let index_of = |reading: &Reading| reading.pair.as_ref().map_or(0, |pair| pair.modify_index);
        let told = answer.as_ref().map(index_of).map_err(|failure| failure.kind);
        let Some(was_there) = self.watches.answered(key, told, known, cx.now, cx.rng) else { return };
        let index = told.unwrap_or(known);
        match answer {
            Ok(reading) => {
                self.request_succeeded(cx);
                self.watch_failing_since = None;
                // An answer that was held up on its way may be as old as the last renewal.
                let in_time = was_there && cx.lease_is_renewed();
                if index != known {
                    self.key_changed(key, reading, index < known, in_time, cx);
                }
            }
            // It proves nothing and is asked for again. Only the strict rule has no patience with it.
            Err(failure) if failure.kind == FailureKind::Cut && !self.is_strict(cx) => {}
            Err(failure) => {
                self.watch_failing_since = self.watch_failing_since.or(Some(cx.now));
                self.request_failed(failure, cx);
                // What changed meanwhile is not known; the plan may go on from the view, a loss may not.
                self.proved = false;
            }
        }
    }

    /// Whether a slot is held by the guide's rule, to which any watch that ends without an answer has failed.
    fn is_strict(&self, cx: &Context<'_>) -> bool {
        cx.watch_grace == Some(Duration::ZERO) && self.holds()
    }

    /// A watched key has changed, or is gone. `in_time`: just now, as the watch was there when it did.
    fn key_changed(&mut self, key: &str, reading: Reading, older: bool, in_time: bool, cx: &mut Context<'_>) {
        let Some(view) = &mut self.view else { return };
        self.proved = false;
        if let Some(folder) = reading.pair.as_ref().filter(|_| key.ends_with('/')) {
            // What the names mean depends on who is in `.lock` by now.
            view.see_folder(folder);
            self.refresh = self.refresh.or(Some(Refresh::LockKey));
            return self.view_changed(in_time, cx);
        }
        match view.session_of(key) {
            _ if older && reading.pair.is_some() || self.watches.doubts(key) => {
                // Older than what is known already, or Consul was set back: only a consistent read tells. Nor is a watch
                // believed whose last change was denied.
                self.refresh = Some(Refresh::Prefix);
            }
            None => {
                view.see_lock(reading.pair, reading.index);
                if self.refresh == Some(Refresh::LockKey) {
                    // It was to be looked at, and here it is.
                    self.refresh = None;
                    self.timers.clear(Timer::Retry);
                }
            }
            Some(session) => {
                view.see_contender(&session, reading.pair, reading.index);
                let own = cx.session == Some(&session);
                let wants_slot = self.state.acquiring().is_some();
                if own && wants_slot && view.contender(&session).is_none() {
                    // It may have been let in before: only `.lock` as it is by now tells whether it is in it.
                    self.refresh = Some(Refresh::Prefix);
                } else if own && wants_slot && view.was_granted(&session) {
                    // Whatever it was about to look at. Where it was not seen in time, the slots may have been taken away since, or given to
                    // another one: `.lock` tells.
                    self.refresh = (!in_time).then_some(Refresh::LockKeyConsistent);
                    self.timers.clear(Timer::Retry);
                } else if own && wants_slot && view.is_listed() && view.has_foreign() {
                    // The first of ours beside clients of another kind has to know who stood ahead when it was told so, or that it is
                    // the first no more.
                    self.refresh = Some(Refresh::Prefix);
                } else if own && wants_slot && view.is_lookout(&session) {
                    // What it knows of `.lock` may be of when it came; or it is told, beside clients of another kind that it does not
                    // know of, that it was passed.
                    self.refresh = self.refresh.or(Some(Refresh::LockKey));
                }
                if self.last_role.0 == Role::Behind && !own {
                    view.invalidate_order();
                }
            }
        }
        self.view_changed(in_time, cx);
    }

    pub(crate) fn committed(&mut self, answer: Result<Commit, Failure>, cx: &mut Context<'_>) {
        let InFlight::Committing { write, sent } = self.take_in_flight() else { return };
        match answer {
            Ok(Commit::Done { index, listing }) => {
                self.write_succeeded(cx);
                self.contention.reset();
                self.lost_cas_race = false;
                self.proved = true;
                if self.settings.is_lock() {
                    // That it was taken proves that it was free, as the view has it.
                    self.observe_owner(false, cx);
                }
                let limit = |view: &View| view.record().map(|record| record.limit);
                let (mut listing, joined) = match listing {
                    Some(listing) if self.view.is_none() => (None, Some(listing)),
                    listing => (listing, None),
                };
                if let Some(read) = joined {
                    self.after_join(read, index, cx);
                }
                let mut was_attended = false;
                if let Some(view) = &mut self.view {
                    let before = limit(view);
                    was_attended = view.has_lookout();
                    view.apply(&write.ops, index);
                    // What is listed besides may be another's doing.
                    let after = limit(view);
                    if let Some(listing) = listing.take() {
                        self.listed_at = Some(cx.now);
                        self.follows_up = true;
                        let mut listed = View::of_listing(&self.settings.prefix, listing);
                        listed.follow(view);
                        *view = listed;
                        if view.has_dead() {
                            // A transaction does not say what it hides: only a listing proves that a holder is dead.
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
                let lets_go = was_attended && !self.view.as_ref().is_some_and(View::has_lookout);
                if write.joint && (lets_go || !self.is_held_by_view(cx.remembered)) {
                    // Who else has come to stand ahead meanwhile is not known, nor who relies on somebody that is named no more.
                    self.refresh = Some(Refresh::Prefix);
                } else if self.view.as_ref().is_some_and(View::has_foreign)
                    && self.is_held_by_view(cx.remembered)
                {
                    // Whoever is first in line now has to be told.
                    self.follows_up = true;
                } else if write.joint {
                    // It has taken only its own slots, and whoever stands behind it waits for it.
                    self.follows_up = true;
                }
                if write.pruned > 0 {
                    let took = cx.now.since(sent);
                    cx.notify(Notice::Pruned { name: self.name.clone(), holders: write.pruned, took });
                }
                self.view_changed(false, cx);
            }
            Ok(Commit::Stale { steps }) => {
                self.write_succeeded(cx);
                cx.notify(Notice::Conflict { name: self.name.clone() });
                if self.settings.is_lock() || self.lost_race_to_foreign(&write, &steps) {
                    // Another one has it, and is done with it when it is: no crowd tries in vain meanwhile. Clients of another kind, with
                    // whom the first of ours races for a slot, do not wait for longer each time; who did would never win.
                    self.contention.reset();
                }
                self.lost_cas_race =
                    !self.lost_cas_race && self.lost_race_as_newcomer(&write, &steps, cx.remembered);
                self.give_way(cx);
                // What a watch has asked for meanwhile, as by one that came ahead, is owed yet.
                if !self.lost_cas_race
                    && !matches!(self.refresh, Some(Refresh::Prefix | Refresh::LockKeyConsistent))
                {
                    self.refresh = self.refresh_after(&write, &steps, cx.remembered);
                }
                if !self.lost_cas_race && self.refresh.is_some() {
                    self.delay_retry(cx);
                }
            }
            // The waiter that was to be granted by name has died, and its contender key cannot be locked for a while: as if it
            // had left.
            Ok(Commit::Delayed { steps }) if !self.settings.is_lock() => {
                self.write_succeeded(cx);
                self.refresh = Some(Refresh::Prefix);
                self.delay_retry(cx);
                if self.locks_own(&write, &steps, cx.remembered) {
                    // The own key has a lock-delay because its session has ended: only the session can tell.
                    self.check_session = true;
                    self.in_flight = InFlight::CheckingSession;
                }
            }
            Ok(Commit::Delayed { .. }) => {
                self.write_succeeded(cx);
                // Consul says so: nobody has it.
                self.proved = true;
                self.observe_owner(false, cx);
                let left = self.lock_delay.refused(cx.now, cx.rng);
                if self.reported.is_first_delay() {
                    cx.notify(Notice::LockDelayed { name: self.name.clone(), left });
                }
            }
            Ok(Commit::SessionGone) => {
                // Renewals may go on being answered all the same, by a server that knows more or less.
                self.delay_retry(cx);
                self.refresh = Some(Refresh::Prefix);
                self.check_session = true;
                self.in_flight = InFlight::CheckingSession;
            }
            Ok(Commit::Refused { why }) => {
                self.write_failed(Failure { kind: FailureKind::Rejected, text: why }, cx);
                self.refresh = Some(Refresh::Prefix);
            }
            // Whether it was done is not known: read before anything else.
            Err(failure) => {
                self.write_failed(failure, cx);
                self.refresh = Some(Refresh::Prefix);
            }
        }
    }

    /// It has its contender, and `.lock` was read at the same instant.
    fn after_join(&mut self, read: Listing, index: u64, cx: &mut Context<'_>) {
        let prefix = self.settings.prefix.clone();
        let key = format!("{prefix}/.lock");
        let view = View::of_lock(&prefix, read.pairs.into_iter().find(|pair| pair.key == key), index);
        let held = view.record().is_some_and(|record| record.taken() > 0);
        // Beside clients of another kind each of ours looks after itself, as those do.
        let shared = view.record().is_some_and(|record| !record.ours && !record.has_lookout);
        // Where Consul has written little since `.lock` was written, and nobody holds, nobody else has come either.
        let since = index.saturating_sub(view.lock_index());
        let crowd = !shared && (held || since > MAX_WRITES_WITHOUT_CROWD);
        // Of those who come together the first one waits the least.
        let rank = u32::try_from(since).unwrap_or(u32::MAX);
        let patience = (NEWCOMER_YIELD_PER_WRITE * rank).min(MAX_NEWCOMER_YIELD);
        self.timers.set(Timer::Yield, crowd.then(|| cx.now + jittered(patience, 0.9, cx.rng)));
        self.refresh = (!crowd).then_some(Refresh::Prefix);
        self.view = Some(view);
    }

    /// A check-and-set came too late. While it waits for its next attempt somebody else may let it in; and one that has gone has
    /// only so many.
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

    /// Waits before the next attempt: others are at it too.
    fn delay_retry(&mut self, cx: &mut Context<'_>) {
        let pause = self.contention_delay(cx);
        self.timers.set(Timer::Retry, cx.now + pause);
    }

    /// What was under way; now nothing is.
    fn take_in_flight(&mut self) -> InFlight {
        std::mem::replace(&mut self.in_flight, InFlight::None)
    }

    fn is_held_by_view(&self, session: Option<&SessionId>) -> bool {
        let slots = self.settings.slots;
        session.zip(self.view.as_ref()).is_some_and(|(session, view)| view.holds(session, slots))
    }

    /// Whether one of those steps was to lock the own contender key.
    fn locks_own(&self, write: &Write, steps: &[usize], session: Option<&SessionId>) -> bool {
        let (Some(session), Some(view)) = (session, self.view.as_ref()) else { return false };
        let own = view.contender_key(session);
        steps.iter().any(|step| write.ops.get(*step).is_some_and(|op| op.key() == own))
    }

    /// Whether it has come anew, and was too late for nothing but `.lock`. Then it can go to the end of the line without
    /// another look: its next write tells what is there by then, and cannot come too late.
    fn lost_race_as_newcomer(&self, write: &Write, steps: &[usize], session: Option<&SessionId>) -> bool {
        let (Some(view), Some(session)) = (&self.view, session) else { return false };
        self.intent() == Intent::Hold
            && !write.joint
            && view.contender(session).is_none()
            && is_late_for_lock_alone(view, write, steps)
    }

    /// Whether it is the first of ours beside clients of another kind, and one of these was faster.
    fn lost_race_to_foreign(&self, write: &Write, steps: &[usize]) -> bool {
        let Some(view) = self.view.as_ref().filter(|view| view.has_foreign()) else { return false };
        self.intent() == Intent::Hold
            && self.last_role.0 == Role::Head
            && is_late_for_lock_alone(view, write, steps)
    }

    /// What has to be read where those steps of a transaction failed. That `.lock` has moved on says nothing of the
    /// contenders; but whoever is not in line yet has to know them.
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
            // Its watch was faster than the refusal.
            Some(stale) if stale.iter().all(|index| *index < view.lock_index()) => None,
            Some(_) => Some(Refresh::LockKey),
            None => Some(Refresh::Prefix),
        }
    }

    /// The view has changed; `in_time`: it shows what has happened just now.
    fn view_changed(&mut self, in_time: bool, cx: &mut Context<'_>) {
        self.check_nonce(cx);
        let (session, now) = (cx.remembered, cx.now);
        let Some(view) = &self.view else { return };
        if self.settings.is_lock() {
            return self.observe_owner(in_time, cx);
        }
        let contender = session.and_then(|session| view.contender(session));
        self.arrival = contender.filter(|one| one.says_waiting()).map(|one| one.create_index);
        let is_dead = |id: &&SessionId| view.is_missing(id) || view.is_complete() && !view.is_alive(id);
        let holders = view.record().map(|record| record.holders.as_slice()).unwrap_or_default();
        let dead: Vec<_> = holders.iter().filter(is_dead).cloned().collect();
        let since = std::mem::take(&mut self.dead_since);
        self.dead_since =
            dead.into_iter().map(|id| (id.clone(), since.get(&id).copied().unwrap_or(now))).collect();
        // Where there is no record yet, all slots are free.
        let missing = matches!(view.lock, LockKeyState::Missing);
        let free = view.record().map_or(missing, |record| record.limit > record.taken());
        let were_open = self.offers.are_open();
        self.offers.see(view, free, self.last_role.0 == Role::Head, now);
        // The turn of clients of another kind begins when they are known.
        let known = self.free_since.filter(|_| were_open || !self.offers.are_open());
        self.free_since = free.then(|| known.unwrap_or(now));
    }
}

/// Whether a write came too late for nothing but `.lock`.
fn is_late_for_lock_alone(view: &View, write: &Write, steps: &[usize]) -> bool {
    let lock = view.lock_key();
    let is_lock = |step: &usize| matches!(write.ops.get(*step), Some(Op::Cas { key, .. }) if *key == lock);
    steps.iter().all(is_lock)
}
