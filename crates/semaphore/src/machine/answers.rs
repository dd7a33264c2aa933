//! What answers do to a machine. After each, [`Machine::drive`] decides.

use super::*;
use crate::Lock;

impl Machine {
    /// The session has ended: what was seen and asked for in its name is void.
    pub(crate) fn session_gone(&mut self, reason: LossReason, cx: &mut Context<'_>) {
        self.lose(reason, cx);
        self.stop_watches(cx);
        self.view = None;
        self.listed_at = None;
        self.arrival = None;
        self.crowded = false;
        (self.follows_up, self.confirmed) = (false, false);
        self.timers.clear(Timer::Patience);
        self.timers.clear(Timer::Show);
        self.token = None;
        self.stopping = None;
        self.claim = Claim::Unknown;
        if cx.ending {
            self.ask_no_more();
        }
        self.need = None;
        self.timers.clear(Timer::Retry);
        self.flight = match self.flight {
            Flight::None | Flight::Checking => Flight::None,
            Flight::Listing
            | Flight::Looking { .. }
            | Flight::Confirming { .. }
            | Flight::Committing { .. }
            | Flight::Void => Flight::Void,
        };
    }

    /// A look at the session is over, and it has not ended.
    pub(crate) fn session_checked(&mut self) {
        if matches!(self.flight, Flight::Checking) {
            self.flight = Flight::None;
            self.session_lives = true;
        }
    }

    pub(crate) fn listed(&mut self, answer: Result<Listing, Failure>, cx: &mut Context<'_>) {
        if !matches!(self.land(), Flight::Listing) {
            return;
        }
        match answer {
            Ok(listing) if listing.filtered && !matches!(self.intent(), Intent::Leave(_)) => {
                // What is hidden would look as if it were gone: other waiters, live holders, the own contender key.
                self.trouble.listed(true);
                let text = plan::hidden(&self.settings.prefix, "write");
                self.fails(Failure { kind: FailureKind::Denied, text }, cx);
                self.learn_of_itself(listing, cx);
                self.resign(cx);
            }
            Ok(listing) => {
                // To leave takes no more than the own keys, and those that are hidden go with the session.
                self.trouble.listed(listing.filtered);
                self.learn_all(View::of_listing(&self.settings.prefix, listing), cx);
            }
            Err(failure) => {
                // What passes is soon tried again, so that its end is seen.
                let passes = failure.kind.is_transient();
                self.read_fails(failure, cx);
                if passes {
                    self.need = Some(Need::List);
                } else if self.need.is_none() {
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
        let write = plan::resign(&view, self.me(session, &wall, cx));
        self.view = Some(view);
        if let Some(write) = write.filter(|_| !self.holds()) {
            self.commit(write, cx);
        }
    }

    /// What a holder learns of itself where not all is shown to it: whether `.lock` still names it, and whether an operator
    /// wants it out.
    fn learn_of_itself(&mut self, listing: Listing, cx: &mut Context<'_>) {
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
        self.need = None;
        self.proved = self.is_taken_out(cx.remembered);
        self.list_later(cx);
    }

    /// A holder goes by what it watches, and lists again in its time: it would see nothing at all otherwise.
    fn list_later(&mut self, cx: &mut Context<'_>) {
        if self.holds() {
            self.timers.set(Timer::Read, cx.now + jittered(half(cx.ttl), 0.3, cx.rng));
        }
    }

    /// Whether it believes that it holds, and has not its slots by `.lock`.
    fn is_taken_out(&self, session: Option<&SessionId>) -> bool {
        let record = self.view.as_ref().and_then(View::record);
        let slots = session.zip(record).map_or(0, |(session, record)| record.slots_of(session));
        self.holds() && slots != self.settings.slots
    }

    /// Everything has been read, consistently.
    fn learn_all(&mut self, mut view: View, cx: &mut Context<'_>) {
        self.read_works(cx);
        self.proved = true;
        self.need = None;
        self.timers.clear(Timer::Read);
        self.timers.clear(Timer::Show);
        self.crowded = false;
        self.listed_at = Some(cx.now);
        self.watches.proved(|key| Some(view.index_of(key)), cx.now, cx.rng);
        if let Some(before) = &self.view {
            view.follow(before);
        }
        self.view = Some(view);
        self.seen(false, cx);
    }

    pub(crate) fn delay_read(&mut self, session: &SessionId, answer: Result<Option<Duration>, Failure>) {
        // Where it cannot be read the lock is tried now and then, which needs no more than that.
        self.hindsight.learn(session, answer.unwrap_or_default());
    }

    pub(crate) fn looked(&mut self, answer: Result<Reading, Failure>, cx: &mut Context<'_>) {
        let (known_before, consistent) = match self.land() {
            Flight::Looking { after, consistent } => (after, consistent),
            // Of a lock there is no more to read than its key.
            Flight::Listing => match answer {
                Ok(Reading { pair, index }) => {
                    return self.learn_all(View::of_key(&self.settings.prefix, pair, index), cx);
                }
                Err(failure) => return self.read_fails(failure, cx),
            },
            Flight::None
            | Flight::Checking
            | Flight::Confirming { .. }
            | Flight::Committing { .. }
            | Flight::Void => return,
        };
        match answer {
            Ok(reading) => {
                self.read_works(cx);
                // What a watch has told meanwhile may ask for more than this.
                self.need = self.need.filter(|need| *need == Need::List);
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
                        self.need = Some(Need::Prove);
                    }
                    if denied || !view.is_ordered() && !view.take_lead(session) {
                        self.need = Some(Need::List);
                    }
                    let attended = view.record().filter(|record| record.attended).map(|_| view.lock_index());
                    // Enough for that: who is in `.lock` no more has lost its slots, whatever its contender key says.
                    self.proved = consistent && !denied && self.is_taken_out(cx.remembered);
                    // Whoever watches over all is about to give the slots that it sees free.
                    let trusts = attended.filter(|index| self.trusted.replace(*index) != Some(*index));
                    self.timers.set(Timer::Patience, trusts.map(|_| cx.now + jittered(TRUST, 0.5, cx.rng)));
                }
                self.seen(false, cx);
            }
            Err(failure) => self.read_fails(failure, cx),
        }
    }

    /// The own contender and `.lock` were read, and the contender of whoever it relies on.
    pub(crate) fn confirmed(&mut self, answer: Result<Vec<Reading>, Failure>, cx: &mut Context<'_>) {
        let Flight::Confirming { after, relies_on } = self.land() else { return };
        let readings = match answer {
            Ok(readings) => readings,
            Err(failure) => return self.read_fails(failure, cx),
        };
        let mut readings = readings.into_iter();
        match (readings.next(), readings.next()) {
            (Some(own), Some(lock)) => {
                let other = relies_on.zip(readings.next());
                let behind = self.stood.0 == Role::Behind;
                self.read_works(cx);
                self.timers.clear(Timer::Read);
                let (Some(view), Some(session)) = (&mut self.view, cx.remembered) else { return };
                let (known, index) =
                    (view.lock_index(), lock.pair.as_ref().map_or(0, |pair| pair.modify_index));
                let denied = index < known && lock.pair.is_some();
                let held = matches!(self.stay, Stay::Held(_));
                let attended = view.is_attended();
                // Where `.lock` has moved on, another one may watch over all by now. Where it names nobody, nobody does.
                let missing = match &other {
                    Some((_, read)) => read.pair.is_none(),
                    None => behind && attended,
                };
                let gone = !held && (own.pair.is_none() || missing && (index == known || !attended));
                // As where its watch tells of it.
                let own_index = own.pair.as_ref().map_or(0, |pair| pair.modify_index);
                let moved =
                    behind && view.has_foreign() && own_index != view.index_of(&view.contender_key(session));
                view.see_lock(lock.pair, lock.index);
                view.confirm_lock(after);
                view.see_contender(session, own.pair, own.index);
                if let Some((ahead, read)) = other.filter(|_| !attended) {
                    let known = view.index_of(&view.contender_key(&ahead));
                    view.see_contender(&ahead, read.pair, read.index);
                    if view.index_of(&view.contender_key(&ahead)) != known {
                        view.disorder();
                    }
                }
                let more = self.need.filter(|need| *need != Need::Look);
                self.need = (denied || gone || moved).then_some(Need::List).or(more);
                (self.proved, self.confirmed) = (!denied, !denied);
                if behind {
                    // While others come and go, whoever watched over all may be among those who have gone.
                    let next = if index == known || !attended { SELDOM.min(cx.ttl * 8) } else { cx.ttl * 2 };
                    let next = cx.now + jittered(next, 0.5, cx.rng);
                    // Where nobody does, all are listed in time.
                    let listed = self.listed_at.filter(|_| !attended).map(|at| at + SELDOM);
                    self.timers.set(Timer::Read, listed.map_or(next, |listed| next.min(listed)));
                }
                self.seen(false, cx);
            }
            // No answer to what was asked.
            (_, _) => self.need = Some(Need::List),
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
                self.works(cx);
                self.watch_failing_since = None;
                // An answer that was held up on its way may be as old as the last renewal.
                let in_time = was_there && cx.lease_is_renewed();
                if index != known {
                    self.news(key, reading, index < known, in_time, cx);
                }
            }
            // It proves nothing and is asked for again. Only the strict rule has no patience with it.
            Err(failure) if failure.kind == FailureKind::Cut && !self.is_strict(cx) => {}
            Err(failure) => {
                self.watch_failing_since = self.watch_failing_since.or(Some(cx.now));
                self.fails(failure, cx);
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
    fn news(&mut self, key: &str, reading: Reading, older: bool, in_time: bool, cx: &mut Context<'_>) {
        let Some(view) = &mut self.view else { return };
        self.proved = false;
        if let Some(folder) = reading.pair.as_ref().filter(|_| key.ends_with('/')) {
            // What the names mean depends on who is in `.lock` by now.
            view.see_folder(folder);
            self.need = self.need.or(Some(Need::Look));
            return self.seen(in_time, cx);
        }
        match view.session_of(key) {
            _ if older && reading.pair.is_some() || self.watches.doubts(key) => {
                // Older than what is known already, or Consul was set back: only a consistent read tells. Nor is a watch
                // believed whose last change was denied.
                self.need = Some(Need::List);
            }
            None => {
                view.see_lock(reading.pair, reading.index);
                if self.need == Some(Need::Look) {
                    // It was to be looked at, and here it is.
                    self.need = None;
                    self.timers.clear(Timer::Retry);
                }
            }
            Some(session) => {
                view.see_contender(&session, reading.pair, reading.index);
                let own = cx.session == Some(&session);
                let asks = self.stay.asking().is_some();
                if own && asks && view.contender(&session).is_none() {
                    // It may have been let in before: only `.lock` as it is by now tells whether it is in it.
                    self.need = Some(Need::List);
                } else if own && asks && view.was_granted(&session) {
                    // Whatever it was about to look at. Where it was not seen in time, the slots may have been taken away since, or given to
                    // another one: `.lock` tells.
                    self.need = (!in_time).then_some(Need::Prove);
                    self.timers.clear(Timer::Retry);
                } else if own && asks && view.is_listed() && view.has_foreign() {
                    // The first of ours beside clients of another kind has to know who stood ahead when it was told so, or that it is
                    // the first no more.
                    self.need = Some(Need::List);
                } else if own && asks && view.is_lookout(&session) {
                    // What it knows of `.lock` may be of when it came; or it is told, beside clients of another kind that it does not
                    // know of, that it was passed.
                    self.need = self.need.or(Some(Need::Look));
                }
                if self.stood.0 == Role::Behind && !own {
                    view.disorder();
                }
            }
        }
        self.seen(in_time, cx);
    }

    pub(crate) fn committed(&mut self, answer: Result<Commit, Failure>, cx: &mut Context<'_>) {
        let Flight::Committing { write, sent } = self.land() else { return };
        match answer {
            Ok(Commit::Done { index, listing }) => {
                self.write_works(cx);
                self.contention.reset();
                self.crowded = false;
                self.proved = true;
                if self.settings.is_lock() {
                    // That it was taken proves that it was free, as the view has it.
                    self.see_owner(false, cx);
                }
                let limit = |view: &View| view.record().map(|record| record.limit);
                let (mut listing, joined) = match listing {
                    Some(listing) if self.view.is_none() => (None, Some(listing)),
                    listing => (listing, None),
                };
                if let Some(read) = joined {
                    self.joined(read, index, cx);
                }
                let mut was_attended = false;
                if let Some(view) = &mut self.view {
                    let before = limit(view);
                    was_attended = view.is_attended();
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
                            self.need = Some(Need::List);
                        }
                        self.watches.proved(|key| Some(view.index_of(key)), cx.now, cx.rng);
                    }
                    if let (Some(from), Some(to)) = (before, after)
                        && from != to
                    {
                        cx.tell(Notice::LimitSet { name: self.name.clone(), from, to });
                        self.told.has_set_limit(to);
                    }
                }
                let lets_go = was_attended && !self.view.as_ref().is_some_and(View::is_attended);
                if write.joint && (lets_go || !self.is_in(cx.remembered)) {
                    // Who else has come to stand ahead meanwhile is not known, nor who relies on somebody that is named no more.
                    self.need = Some(Need::List);
                } else if self.view.as_ref().is_some_and(View::has_foreign) && self.is_in(cx.remembered) {
                    // Whoever is first in line now has to be told.
                    self.follows_up = true;
                } else if write.joint {
                    // It has taken only its own slots, and whoever stands behind it waits for it.
                    self.follows_up = true;
                }
                if write.pruned > 0 {
                    let took = cx.now.since(sent);
                    cx.tell(Notice::Pruned { name: self.name.clone(), holders: write.pruned, took });
                }
                self.seen(false, cx);
            }
            Ok(Commit::Stale { steps }) => {
                self.write_works(cx);
                cx.tell(Notice::Conflict { name: self.name.clone() });
                if self.settings.is_lock() || self.has_lost_race(&write, &steps) {
                    // Another one has it, and is done with it when it is: no crowd tries in vain meanwhile. Clients of another kind, with
                    // whom the first of ours races for a slot, do not wait for longer each time; who did would never win.
                    self.contention.reset();
                }
                self.crowded = !self.crowded && self.is_outrun(&write, &steps, cx.remembered);
                self.give_way(cx);
                // What a watch has asked for meanwhile, as by one that came ahead, is owed yet.
                if !self.crowded && !matches!(self.need, Some(Need::List | Need::Prove)) {
                    self.need = self.need_after(&write, &steps, cx.remembered);
                }
                if !self.crowded && self.need.is_some() {
                    self.pause(cx);
                }
            }
            // The waiter that was to be granted by name has died, and its contender key cannot be locked for a while: as if it
            // had left.
            Ok(Commit::Delayed { steps }) if !self.settings.is_lock() => {
                self.write_works(cx);
                self.need = Some(Need::List);
                self.pause(cx);
                if self.locks_own(&write, &steps, cx.remembered) {
                    // The own key has a lock-delay because its session has ended: only the session can tell.
                    self.check_session = true;
                    self.flight = Flight::Checking;
                }
            }
            Ok(Commit::Delayed { .. }) => {
                self.write_works(cx);
                // Consul says so: nobody has it.
                self.proved = true;
                self.see_owner(false, cx);
                let left = self.hindsight.refused(cx.now, cx.rng);
                if self.told.is_first_delay() {
                    cx.tell(Notice::Delayed { name: self.name.clone(), left });
                }
            }
            Ok(Commit::SessionGone) => {
                // Renewals may go on being answered all the same, by a server that knows more or less.
                self.pause(cx);
                self.need = Some(Need::List);
                self.check_session = true;
                self.flight = Flight::Checking;
            }
            Ok(Commit::Refused { why }) => {
                self.write_fails(Failure { kind: FailureKind::Rejected, text: why }, cx);
                self.need = Some(Need::List);
            }
            // Whether it was done is not known: read before anything else.
            Err(failure) => {
                self.write_fails(failure, cx);
                self.need = Some(Need::List);
            }
        }
    }

    /// It has its contender, and `.lock` was read at the same instant.
    fn joined(&mut self, read: Listing, index: u64, cx: &mut Context<'_>) {
        let prefix = self.settings.prefix.clone();
        let key = format!("{prefix}/.lock");
        let view = View::of_lock(&prefix, read.pairs.into_iter().find(|pair| pair.key == key), index);
        let held = view.record().is_some_and(|record| record.taken() > 0);
        // Beside clients of another kind each of ours looks after itself, as those do.
        let shared = view.record().is_some_and(|record| !record.ours && !record.attended);
        // Where Consul has written little since `.lock` was written, and nobody holds, nobody else has come either.
        let since = index.saturating_sub(view.lock_index());
        let crowd = !shared && (held || since > QUIET);
        // Of those who come together the first one waits the least.
        let rank = u32::try_from(since).unwrap_or(u32::MAX);
        let patience = (PER_WRITE * rank).min(PATIENCE);
        self.timers.set(Timer::Patience, crowd.then(|| cx.now + jittered(patience, 0.9, cx.rng)));
        self.need = (!crowd).then_some(Need::List);
        self.view = Some(view);
    }

    /// A check-and-set came too late. While it waits for its next attempt somebody else may let it in; and one that has gone has
    /// only so many.
    fn give_way(&mut self, cx: &mut Context<'_>) {
        let own = self.view.as_ref().zip(cx.session).and_then(|(view, session)| plan::own(view, session));
        match self.intent() {
            Intent::Hold if self.watches.is_idle() => {
                if let Some(own) = own {
                    self.watches.want(vec![own], POLL, &self.name, cx);
                }
            }
            Intent::Leave(_) if self.contention.failures() >= FOLLOW_UPS => self.follows_up = false,
            Intent::Hold | Intent::Leave(_) | Intent::Rest => {}
        }
    }

    /// Waits before the next attempt: others are at it too.
    fn pause(&mut self, cx: &mut Context<'_>) {
        let pause = self.contended(cx);
        self.timers.set(Timer::Retry, cx.now + pause);
    }

    /// What was under way; now nothing is.
    fn land(&mut self) -> Flight {
        std::mem::replace(&mut self.flight, Flight::None)
    }

    fn is_in(&self, session: Option<&SessionId>) -> bool {
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
    fn is_outrun(&self, write: &Write, steps: &[usize], session: Option<&SessionId>) -> bool {
        let (Some(view), Some(session)) = (&self.view, session) else { return false };
        self.intent() == Intent::Hold
            && !write.joint
            && view.contender(session).is_none()
            && is_late_for_lock_alone(view, write, steps)
    }

    /// Whether it is the first of ours beside clients of another kind, and one of these was faster.
    fn has_lost_race(&self, write: &Write, steps: &[usize]) -> bool {
        let Some(view) = self.view.as_ref().filter(|view| view.has_foreign()) else { return false };
        self.intent() == Intent::Hold
            && self.stood.0 == Role::Head
            && is_late_for_lock_alone(view, write, steps)
    }

    /// What has to be read where those steps of a transaction failed. That `.lock` has moved on says nothing of the
    /// contenders; but whoever is not in line yet has to know them.
    fn need_after(&self, write: &Write, steps: &[usize], session: Option<&SessionId>) -> Option<Need> {
        let Some(view) = &self.view else { return Some(Need::List) };
        let lock = view.lock_key();
        let stale = |step: &usize| match write.ops.get(*step) {
            Some(Op::Cas { key, index, .. }) if *key == lock => Some(*index),
            _ => None,
        };
        let stands = session.is_some_and(|session| view.contender(session).is_some());
        let stale: Option<Vec<u64>> = steps.iter().map(stale).collect();
        match stale.filter(|_| stands) {
            // Its watch was faster than the refusal.
            Some(stale) if stale.iter().all(|index| *index < view.lock_index()) => None,
            Some(_) => Some(Need::Look),
            None => Some(Need::List),
        }
    }

    /// The view has changed; `in_time`: it shows what has happened just now.
    fn seen(&mut self, in_time: bool, cx: &mut Context<'_>) {
        self.see_nonce(cx);
        let (session, now) = (cx.remembered, cx.now);
        let Some(view) = &self.view else { return };
        if self.settings.is_lock() {
            return self.see_owner(in_time, cx);
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
        let missing = matches!(view.lock, Lock::Missing);
        let free = view.record().map_or(missing, |record| record.limit > record.taken());
        let were_open = self.offers.are_open();
        self.offers.see(view, free, self.stood.0 == Role::Head, now);
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
