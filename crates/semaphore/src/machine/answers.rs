//! How the answers to reads and watches change a machine. After each, [`Machine::drive`] decides what to do.

use super::{Context, InFlight, Intent, Machine, State, Timer};
use crate::LockKeyState;
use crate::SessionId;
use crate::backoff::jittered;
use crate::command::{Failure, FailureKind, Listing, Reading};
use crate::notice::LossReason;
use crate::plan;
use crate::plan::{Refresh, Role};
use crate::timing::{LOOKOUT_YIELD, MAX_LIST_INTERVAL, half};
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

    /// A client that may not see all keys cannot be the lookout. No newcomer may rely on it.
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

    /// A holder goes by its watches, and lists again later.
    fn list_later(&mut self, cx: &mut Context<'_>) {
        if self.holds() {
            self.timers.set(Timer::Read, cx.now + jittered(half(cx.ttl), 0.3, cx.rng));
        }
    }

    /// Whether the machine holds, but `.lock` does not list its slots.
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
        self.view_changed(cx);
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
            Ok(reading) => self.see_lock_read(reading, known_before, consistent, cx),
            Err(failure) => self.read_failed(failure, cx),
        }
    }

    /// `.lock` was read by itself. `known_before`: the latest index that was known when the read was sent.
    fn see_lock_read(&mut self, reading: Reading, known_before: u64, consistent: bool, cx: &mut Context<'_>) {
        self.read_succeeded(cx);
        // A watch may have asked for a listing in the meantime.
        self.refresh = self.refresh.filter(|refresh| *refresh == Refresh::Prefix);
        if let (Some(view), Some(session)) = (&mut self.view, cx.remembered) {
            self.proved = false;
            let (lock, index) = (view.lock_key(), reading.pair.as_ref().map_or(0, |pair| pair.modify_index));
            self.watches.proved(|key| (key == lock).then_some(index), cx.now, cx.rng);
            // Then the known `.lock` is a watch's that was never written.
            let denied = index < view.lock_index() && reading.pair.is_some();
            view.see_lock(reading.pair, reading.index);
            if consistent {
                view.confirm_lock(known_before);
            } else if view.was_granted(session) {
                // The server that answered does not know of the grant yet.
                self.refresh = Some(Refresh::LockKeyConsistent);
            }
            if denied || !view.is_ordered() && !view.promote_to_head(session) {
                self.refresh = Some(Refresh::Prefix);
            }
            let lookout_at = view.has_lookout().then_some(view.lock_index());
            // A holder that is not in `.lock` has lost its slots, whatever its contender key says.
            self.proved = consistent && !denied && self.is_removed_from_lock(cx.remembered);
            // A lookout is about to grant the slots that are seen free.
            let trusts = lookout_at.filter(|index| self.trusted.replace(*index) != Some(*index));
            self.timers.set(Timer::Yield, trusts.map(|_| cx.now + jittered(LOOKOUT_YIELD, 0.5, cx.rng)));
        }
        self.view_changed(cx);
    }

    /// The own contender key and `.lock` were read, and the contender key of the client that this one relies on.
    pub(crate) fn keys_read(&mut self, answer: Result<Vec<Reading>, Failure>, cx: &mut Context<'_>) {
        let InFlight::ReadingKeys { after, relies_on } = self.take_in_flight() else { return };
        self.timers.clear(Timer::Decide);
        let readings = match answer {
            Ok(readings) => readings,
            Err(failure) => return self.read_failed(failure, cx),
        };
        let mut readings = readings.into_iter();
        match (readings.next(), readings.next()) {
            (Some(own), Some(lock)) => {
                let other = relies_on.zip(readings.next());
                self.see_keys(own, lock, other, after, cx);
            }
            // The answer lacks a key that was asked for.
            (_, _) => self.refresh = Some(Refresh::Prefix),
        }
    }

    fn see_keys(
        &mut self,
        own: Reading,
        lock: Reading,
        other: Option<(SessionId, Reading)>,
        after: u64,
        cx: &mut Context<'_>,
    ) {
        let behind = self.last_role.0 == Role::Behind;
        self.read_succeeded(cx);
        self.timers.clear(Timer::Read);
        let (Some(view), Some(session)) = (&mut self.view, cx.remembered) else { return };
        let (known, index) = (view.lock_index(), lock.pair.as_ref().map_or(0, |pair| pair.modify_index));
        let denied = index < known && lock.pair.is_some();
        let held = matches!(self.state, State::Held(_));
        let has_lookout = view.has_lookout();
        // If `.lock` names none, there is none.
        let missing = match &other {
            Some((_, read)) => read.pair.is_none(),
            None => behind && has_lookout,
        };
        let own_gone = own.pair.is_none();
        // The watch of the own contender key leads to the same.
        let own_index = own.pair.as_ref().map_or(0, |pair| pair.modify_index);
        let moved = behind && view.has_foreign() && own_index != view.index_of(&view.contender_key(session));
        view.see_lock(lock.pair, lock.index);
        // Another client may be the lookout by now.
        let names = |ahead: &SessionId| view.relies_on(session) == Some(ahead);
        let stands = index == known || !has_lookout || other.as_ref().is_some_and(|(ahead, _)| names(ahead));
        let gone = !held && (own_gone || missing && stands);
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
        if gone {
            self.decide_soon();
        }
        if behind {
            self.look_again_later(has_lookout && index != known, has_lookout, cx);
        }
        self.view_changed(cx);
    }

    /// When a waiter that is not the head reads the keys again that it relies on.
    fn look_again_later(&mut self, changes: bool, has_lookout: bool, cx: &mut Context<'_>) {
        self.looks += 1;
        let next = self.next_look(changes, cx);
        // Without a lookout everything is listed in time.
        let listed = self.listed_at.filter(|_| !has_lookout).map(|at| at + MAX_LIST_INTERVAL);
        self.timers.set(Timer::Read, listed.map_or(next, |listed| next.min(listed)));
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
            // What the names mean depends on the present holders.
            view.see_folder(folder);
            self.refresh = self.refresh.or(Some(Refresh::LockKey));
            return self.view_changed(cx);
        }
        match view.session_of(key) {
            _ if older && reading.pair.is_some() || self.watches.doubts(key) => {
                // The answer is old, or Consul was restored from a backup, or a consistent read has denied the watch's last
                // change. Only a consistent read tells.
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
                if own {
                    self.own_contender_changed(&session, in_time);
                } else if self.last_role.0 == Role::Behind {
                    view.invalidate_order();
                }
            }
        }
        self.view_changed(cx);
    }

    /// Decides what a client that acquires has to read after a change of its contender key.
    fn own_contender_changed(&mut self, session: &SessionId, in_time: bool) {
        let Some(view) = self.view.as_ref().filter(|_| self.state.acquiring().is_some()) else { return };
        if view.contender(session).is_none() {
            // The slots may have been granted before: only the present `.lock` tells.
            self.refresh = Some(Refresh::Prefix);
        } else if view.was_granted(session) {
            // The grant replaces any earlier reason to read. Seen late, the slots may have been lost since: `.lock` tells.
            self.refresh = (!in_time).then_some(Refresh::LockKeyConsistent);
            self.timers.clear(Timer::Retry);
        } else if view.is_listed() && view.has_foreign() {
            // Beside foreign clients the head has to know which waiters are ahead now.
            self.refresh = Some(Refresh::Prefix);
        } else if view.is_lookout(session) {
            // The known `.lock` may be as old as the contender key, or unknown foreign clients have passed this waiter.
            self.refresh = self.refresh.or(Some(Refresh::LockKey));
        }
    }

    /// The request that was under way. After this none is.
    pub(super) fn take_in_flight(&mut self) -> InFlight {
        std::mem::replace(&mut self.in_flight, InFlight::None)
    }

    /// The view has changed.
    pub(super) fn view_changed(&mut self, cx: &mut Context<'_>) {
        let (session, now) = (cx.remembered, cx.now);
        let Some(view) = &self.view else { return };
        if self.settings.is_lock() {
            return self.observe_owner(cx);
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
        // The turn of foreign clients begins when they are known.
        let known = self.free_since.filter(|_| were_open || !self.offers.are_open());
        self.free_since = free.then(|| known.unwrap_or(now));
    }
}
