//! How answers change a machine. After each, [`Machine::drive`] decides what to do.

use super::{Context, InFlight, Machine, State, Timer};
use crate::SessionId;
use crate::backoff::jittered;
use crate::command::{Commit, Failure, FailureKind, Listing, Op, Reading};
use crate::notice::{LossReason, Notice};
use crate::plan::{self, Grant, Own, Want, Write};
use crate::sightings::Sight;
use crate::single::SingleKeyLock;
use crate::timing::{LOCK_DELAY_RETRY_WAIT, ROLL_CALL, WATCH_DELAY};
use crate::view::{self, Contender, Pair, View, contender_key, lock_key};
use std::time::Duration;

use super::known::Known;

impl Machine {
    /// The session has ended: what was seen and asked for in its name is void.
    pub(crate) fn session_gone(&mut self, reason: LossReason, cx: &mut Context<'_>) {
        self.lose(reason, cx);
        self.stop_watches(cx);
        self.known = Known::nothing();
        self.past.token = None;
        self.past.stopping = None;
        self.owed.offers.clear();
        self.looks = Default::default();
        self.set_finding(super::Finding::Nothing);
        if cx.agent.ending {
            self.stop_acquiring();
        }
        self.timers.clear([Timer::Retry, Timer::Yield, Timer::Refresh, Timer::Look, Timer::Again]);
        let is_answered = matches!(self.in_flight, InFlight::None | InFlight::CheckingSession);
        self.in_flight = if is_answered { InFlight::None } else { InFlight::Void };
    }

    /// A look at the session is over, and it has not ended.
    pub(crate) fn session_checked(&mut self) {
        if matches!(self.in_flight, InFlight::CheckingSession) {
            self.in_flight = InFlight::None;
            self.known.session_lives = true;
        }
    }

    pub(crate) fn listed(&mut self, answer: Result<Listing, Failure>, cx: &mut Context<'_>) {
        let InFlight::Reading { want: Want::All, .. } = std::mem::take(&mut self.in_flight) else { return };
        match answer {
            Ok(listing) if listing.filtered && self.state.leaves().is_none() => {
                // What is hidden would look as if it were gone: other waiters, live holders, the own contender key.
                self.failures.hidden = true;
                let text = plan::hidden_keys_error(&self.settings.prefix, "write");
                self.request_failed(Failure { kind: FailureKind::Denied, text }, cx);
                if self.holds() {
                    // Whether `.lock` still lists it, and whether an operator evicted it, is shown.
                    self.see(View::of_listing(&self.settings.prefix, listing), cx);
                } else {
                    self.known.want(Want::All);
                }
            }
            Ok(listing) => {
                // To leave takes no more than the own keys, and those that are hidden go with the session.
                self.failures.hidden = listing.filtered;
                self.read_succeeded(cx);
                self.see(View::of_listing(&self.settings.prefix, listing), cx);
            }
            Err(failure) => self.read_failed(Want::All, failure, cx),
        }
    }

    /// `.lock` was read before there was a session; or the key of a lock.
    pub(crate) fn lock_read(&mut self, answer: Result<Reading, Failure>, cx: &mut Context<'_>) {
        let InFlight::Reading { want, .. } = std::mem::take(&mut self.in_flight) else { return };
        match answer {
            Ok(Reading { pair, index }) => {
                self.read_succeeded(cx);
                let prefix = &self.settings.prefix;
                let view = if self.settings.is_lock() {
                    View::of_key(prefix, pair, index)
                } else {
                    View::of_some(prefix, pair, &[], index)
                };
                self.see(view, cx);
                self.observe_owner(cx);
            }
            Err(failure) => self.read_failed(want, failure, cx),
        }
    }

    /// The own contender key, `.lock`, and some contender keys were read.
    pub(crate) fn keys_read(&mut self, answer: Result<Vec<Reading>, Failure>, cx: &mut Context<'_>) {
        let InFlight::Reading { want: Want::Some(others), .. } = std::mem::take(&mut self.in_flight) else {
            return;
        };
        match (answer, cx.remembered) {
            (Ok(readings), Some(session)) => {
                self.read_succeeded(cx);
                let index = readings.iter().map(|reading| reading.index).max().unwrap_or_default();
                let sessions: Vec<_> = std::iter::once(session.clone()).chain(others).collect();
                let pairs = readings.into_iter().filter_map(|reading| reading.pair);
                self.see(View::of_some(&self.settings.prefix, pairs, &sessions, index), cx);
            }
            (Ok(_), None) => self.known.want(Want::All),
            (Err(failure), _) => self.read_failed(Want::Some(others), failure, cx),
        }
    }

    /// Takes in a view on which the next decision is made.
    fn see(&mut self, view: View, cx: &mut Context<'_>) {
        for one in &view.contenders {
            self.owed.see(&one.session, Some(one.modify_index));
        }
        if view.is_listed() {
            // What is still open is in the sightings, by which the next plan goes.
            self.owed.offers.clear();
            self.timers.clear([Timer::Refresh]);
        }
        self.known.see(view, cx.remembered, cx.now);
    }

    pub(crate) fn watched(&mut self, key: &str, answer: Result<Reading, Failure>, cx: &mut Context<'_>) {
        let index_of = |reading: &Reading| reading.pair.as_ref().map_or(0, |pair| pair.modify_index);
        let index = answer.as_ref().ok().map(index_of);
        let Some(changed) = self.watches.answered(key, index, cx.now, cx.rng) else { return };
        match answer {
            Ok(reading) => {
                self.request_succeeded(cx);
                self.watches.failing_since = None;
                if changed {
                    self.key_changed(key, reading, cx);
                } else if !self.known.wants_anything() {
                    self.known.decide_by_last();
                }
            }
            // It proves nothing and is asked for again. Only the strict rule has no patience with it.
            Err(failure) if failure.kind == FailureKind::Cut && !self.is_strict(cx) => {
                self.known.decide_by_last();
            }
            Err(failure) => {
                self.watches.failing_since.get_or_insert(cx.now);
                self.request_failed(failure, cx);
                // What changed meanwhile is not known.
                if !self.known.wants_anything() {
                    self.known.want(self.rereads());
                }
            }
        }
    }

    pub(super) fn rereads(&self) -> Want {
        if self.settings.is_lock() { Want::All } else { Want::Some(Vec::new()) }
    }

    /// Whether a slot is held by the guide's rule, to which any watch that ends without an answer has failed.
    fn is_strict(&self, cx: &Context<'_>) -> bool {
        cx.agent.watch_grace == Some(Duration::ZERO) && self.holds()
    }

    /// A watched key has changed, or is gone.
    fn key_changed(&mut self, key: &str, reading: Reading, cx: &mut Context<'_>) {
        let prefix = self.settings.prefix.clone();
        if self.settings.is_lock() {
            return self.known.want(Want::All);
        }
        if key.ends_with('/') {
            // Several observers see the same: they look at different instants. One for whom free slots were left may have gone.
            self.end_observation(reading.index);
            self.known.settled_at = None;
            self.timers.set(Timer::Again, cx.now + jittered(WATCH_DELAY, 0.9, cx.rng));
            return;
        }
        let view = View::of_some(&prefix, reading.pair, &[], reading.index);
        if key == lock_key(&prefix) {
            let listed = self.view().is_some_and(|last| last.is_listed() && last.has_foreign());
            // A server that lags behind may tell of a state that is known to be over.
            let is_news = view.lock_index() > self.view().map_or(0, View::lock_index);
            if let Some(last) = self.known.last.as_mut().filter(|_| is_news) {
                last.lock = view.lock;
            }
            return match self.state {
                // A release goes by it.
                State::Held(_) => self.known.decide_by_last(),
                // Beside foreign clients a waiter takes a free slot as soon as it is seen.
                State::Acquiring(_) if is_news && listed && cx.together.is_none() => {
                    self.known.decide_by_listing(cx.now);
                }
                State::Acquiring(_) => self.known.want(Want::All),
                State::Leaving { .. } if is_news => self.known.want(Want::Some(Vec::new())),
                State::Leaving { .. } | State::Ended(_) => {}
            };
        }
        let own = cx.session.filter(|session| contender_key(&prefix, session) == key);
        let Some(session) = own.cloned() else {
            if let Some(taker) = view.session_of(key) {
                self.owed.see(&taker, view.contenders.first().map(|one| one.modify_index));
            }
            let waits = self.state.acquiring().is_some();
            return if waits { self.known.want(Want::All) } else { self.known.decide_by_last() };
        };
        let answer = view.contender(&session).and_then(|own| self.wake_up(own, &session, cx));
        match answer.filter(|_| matches!(self.in_flight, InFlight::None)) {
            Some(write) => {
                self.timers.clear([Timer::Retry]);
                self.commit(write, cx);
            }
            None if view.contenders.is_empty() => self.known.want(Want::All),
            None => self.known.want(Want::Some(Vec::new())),
        }
    }

    /// What a waiter answers at once to what its contender key tells.
    fn wake_up(&self, own: &Contender, session: &SessionId, cx: &Context<'_>) -> Option<Write> {
        let waits = self.state.acquiring().is_some()
            && cx.lease_is_valid()
            && !cx.agent.ending
            && !cx.agent.session.is_resumed();
        let wall = cx.agent.wall.text(cx.now);
        plan::wake(own, self.me(session, &wall, cx)).filter(|_| waits)
    }

    pub(crate) fn committed(&mut self, answer: Result<Commit, Failure>, cx: &mut Context<'_>) {
        let InFlight::Committing { write, sent } = std::mem::take(&mut self.in_flight) else { return };
        match answer {
            Ok(Commit::Done { index, listing }) => {
                if write.pruned > 0 {
                    let took = cx.now.since(sent);
                    cx.notify(Notice::Pruned { name: self.name.clone(), holders: write.pruned, took });
                }
                self.commit_done(write, index, listing, cx);
            }
            Ok(Commit::Stale { steps }) => self.lost_race(&write, &steps, cx),
            Ok(Commit::Delayed { .. }) if self.settings.is_lock() => self.lock_delayed(cx),
            Ok(Commit::Delayed { steps }) => {
                // The session of a waiter that was to be offered slots has ended; or the own one.
                self.write_succeeded(cx);
                self.known.want(Want::All);
                self.delay_retry(cx);
                let own = cx.remembered.map(|session| contender_key(&self.settings.prefix, session));
                let is_own = |step: &usize| write.ops.get(*step).map(Op::key) == own.as_deref();
                if steps.iter().any(is_own) {
                    self.look_at_session(cx);
                }
            }
            Ok(Commit::SessionGone) => {
                // A server that has other data may go on answering renewals.
                self.delay_retry(cx);
                self.known.want(Want::All);
                self.look_at_session(cx);
            }
            Ok(Commit::Refused { why }) => {
                self.write_failed(Failure { kind: FailureKind::Rejected, text: why }, cx);
            }
            // The transaction may have been committed.
            Err(failure) => self.write_failed(failure, cx),
        }
    }

    /// A transaction was committed: what is known now was written or read by it.
    fn commit_done(&mut self, write: Write, index: u64, listing: Option<Listing>, cx: &mut Context<'_>) {
        self.write_succeeded(cx);
        self.contention.reset();
        let Some(session) = cx.remembered.cloned() else {
            self.note_offers(&write, index, cx);
            return self.watch_takers(cx);
        };
        let limit = |view: Option<&View>| view.and_then(View::record).map(|record| record.limit);
        let before = limit(self.view());
        let view = self.written(&write, index, listing, &session);
        let key = lock_key(&self.settings.prefix);
        let wrote = write.ops.iter().any(|op| matches!(op, Op::Cas { key: of, .. } if *of == key));
        let after = limit(Some(&view)).filter(|_| wrote);
        if let (Some(from), Some(to)) = (before, after)
            && from != to
        {
            cx.notify(Notice::LimitSet { name: self.name.clone(), from, to });
            self.reported.seen_limit = Some(to);
        }
        self.see(view, cx);
        self.note_offers(&write, index, cx);
        self.observe_owner(cx);
        match write.own {
            Own::Holds(Grant { token, indexes }) => {
                let has = self.view().map_or(0, |view| view.slots_of(&session)) == self.settings.slots;
                if (has || self.settings.is_lock()) && self.state.acquiring().is_some() {
                    self.begin(Grant { token: token.or(Some(index)), indexes }, cx);
                }
            }
            Own::Answers | Own::Nothing => {
                // What comes next is decided when those that were asked have had their time. Meanwhile the own key may tell of an offer.
                let answers = write.own == Own::Answers;
                if answers {
                    // Whoever has asked decides first.
                    self.timers.set(Timer::Again, cx.now + jittered(ROLL_CALL * 3, 0.5, cx.rng));
                }
                if answers || write.asks {
                    self.known.seen = None;
                    self.known.decided_by_listing = true;
                    if self.state.acquiring().is_some() {
                        let own = self.view().and_then(|view| plan::Watch::contender(view, &session));
                        let takers = self.owed.watches(&self.settings.prefix);
                        self.watch(own.into_iter().chain(takers).collect(), cx);
                    }
                }
            }
        }
    }

    /// Notes what a transaction leaves to be seen to.
    fn note_offers(&mut self, write: &Write, index: u64, cx: &Context<'_>) {
        self.owed.add(&write.offered, index, cx.now);
        for taker in &write.offered {
            self.known.sightings.note(Sight::Offer, taker, index, cx.now);
        }
        for waiter in &write.asked {
            self.known.sightings.note(Sight::Asked, waiter, index, cx.now);
        }
        if write.asks {
            self.timers.set(Timer::Again, cx.now + ROLL_CALL);
        }
    }

    /// The view after a committed transaction: what it listed, or the keys that it wrote or read. What it neither wrote nor read stands as
    /// it was known.
    fn written(&self, write: &Write, index: u64, listing: Option<Listing>, session: &SessionId) -> View {
        let (prefix, is_lock) = (&self.settings.prefix, self.settings.is_lock());
        let lists_all = write.ops.iter().any(|op| matches!(op, Op::List { prefix } if prefix.ends_with('/')));
        if let Some(listing) = listing.clone().filter(|_| lists_all) {
            return View::of_listing(prefix, listing);
        }
        let (lock, own) = (lock_key(prefix), contender_key(prefix, session));
        let single = self.view().and_then(View::single);
        let pair = |op: &Op| {
            let (key, value, flags, session) = match op {
                Op::Lock { key, value, flags, session } => (key, value, *flags, Some(session)),
                Op::Unlock { key, value, flags, .. } => (key, value, *flags, None),
                Op::Cas { key, value, flags, .. } if *key == own => (key, value, *flags, Some(session)),
                Op::Cas { key, value, flags, .. } if *key == lock => (key, value, *flags, None),
                Op::Cas { .. }
                | Op::Delete { .. }
                | Op::DeleteCas { .. }
                | Op::CheckIndex { .. }
                | Op::CheckNotExists { .. }
                | Op::CheckSession { .. }
                | Op::List { .. } => return None,
            };
            let acquires = |single: &SingleKeyLock| u64::from(single.owner.as_ref() != session);
            let times_locked = single.map_or(1, |single| single.times_locked + acquires(single));
            let created = if is_lock { single.map(|single| single.create_index) } else { self.known.arrival };
            let (key, value, session) = (key.clone(), value.clone(), session.cloned());
            let create_index = created.unwrap_or(index);
            Some(Pair { key, value, flags, session, times_locked, create_index, modify_index: index })
        };
        let mut pairs: Vec<Pair> = write.ops.iter().filter_map(pair).collect();
        if is_lock {
            return View::of_key(prefix, pairs.pop(), index);
        }
        let read = listing.map(|listing| listing.pairs).unwrap_or_default();
        pairs.retain(|pair| !read.iter().any(|read| read.key == pair.key));
        pairs.extend(read);
        let looked = write.ops.iter().filter(|op| matches!(op, Op::List { .. }));
        let looked: Vec<_> = looked.filter_map(|op| view::session_of(prefix, op.key())).collect();
        let is_known = |key: &str| {
            pairs.iter().any(|pair| pair.key == key) || write.ops.iter().any(|op| op.key() == key)
        };
        let (has_lock, has_own) = (is_known(&lock), is_known(&own));
        let mut view = View::of_some(prefix, pairs, &looked, index);
        if let Some(known) = self.view() {
            if !has_lock {
                view.lock.clone_from(&known.lock);
            }
            view = view.with_contender(known.contender(session).filter(|_| !has_own));
        }
        view
    }

    /// A check-and-set came too late.
    fn lost_race(&mut self, write: &Write, steps: &[usize], cx: &mut Context<'_>) {
        self.write_succeeded(cx);
        cx.notify(Notice::Conflict { name: self.name.clone() });
        if self.settings.is_lock() {
            // A lock's next attempt follows its release: no crowd tries in vain.
            self.contention.reset();
            return self.known.want(Want::All);
        }
        let lock = lock_key(&self.settings.prefix);
        let is_lock = |step: &usize| write.ops.get(*step).is_some_and(|op| op.key() == lock);
        let of_lock = steps.iter().all(is_lock);
        self.known.lost_race = self.state.acquiring().is_some();
        let joins = self.known.arrival.is_none() && self.state.acquiring().is_some();
        // One of those to whom slots were offered may be gone. A waiter whose write failed on `.lock` too reads that first: of a crowd,
        // another one has served all by then.
        let of_taker = if self.state.acquiring().is_some() { !steps.iter().any(is_lock) } else { !of_lock };
        let taker_is_gone = of_taker && !write.offered.is_empty();
        // What a client that has left does for others takes a listing.
        let own = cx.remembered.map(|session| contender_key(&self.settings.prefix, session));
        let writes_own = own.is_none_or(|own| write.ops.iter().any(|op| op.key() == own));
        let has_left = self.state.rests() || self.state.leaves().is_some() && !writes_own;
        let is_foreign = self.state.acquiring().is_some() && self.view().is_some_and(View::has_foreign);
        if is_foreign {
            // Those that it races wait no longer each time, and it would never win.
            self.contention.reset();
        }
        let lists = taker_is_gone || has_left || is_foreign;
        self.known.want(if lists { Want::All } else { Want::Some(Vec::new()) });
        if !joins {
            self.delay_retry(cx);
        }
    }

    /// The lock is free but in lock-delay, of which Consul does not say when it ends. The next attempt is made soon.
    fn lock_delayed(&mut self, cx: &mut Context<'_>) {
        self.write_succeeded(cx);
        self.observe_owner(cx);
        let next = cx.now + jittered(LOCK_DELAY_RETRY_WAIT, 0.2, cx.rng);
        self.known.decide_by_last();
        if self.known.delayed_until.replace(next).is_none() {
            cx.notify(Notice::LockDelayed { name: self.name.clone() });
        }
    }

    pub(super) fn look_at_session(&mut self, cx: &mut Context<'_>) {
        cx.checks_session = true;
        self.known.session_lives = false;
        self.in_flight = InFlight::CheckingSession;
    }
}
