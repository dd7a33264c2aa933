//! How a machine executes a plan, and reports the outcome.

use super::{
    Acquiring, Context, EndReason, Finding, InFlight, Intent, LeaveReason, Machine, Slot, State, Timer,
    WaitCause, rounds,
};
use crate::backoff::jittered;
use crate::notice::{LossReason, Notice};
use crate::plan;
use crate::plan::{Plan, PlanInput, PlanOutcome, Refresh, Role};
use crate::settings::OnLost;
use crate::timing::{MAX_CLEANUP_DELAY, MAX_CONFIRM_INTERVAL, MAX_LIST_INTERVAL, WATCH_WAIT, half};
use crate::view::{LockKeyState, View};
use crate::{Moment, Obstacle, SessionId};

impl Machine {
    pub(super) fn decide(&mut self, session: &SessionId, cx: &mut Context<'_>) {
        // A doubted view still shows the world what was last seen.
        let due = self.timers.is_due(Timer::Read, cx.now);
        let view = match (self.refresh, self.view.as_ref()) {
            (Some(refresh @ (Refresh::LockKey | Refresh::LockKeyConsistent)), Some(view)) => {
                return self.read(refresh, view.lock_key(), view.latest(), cx);
            }
            (None, Some(_)) if !due => self.view.take(),
            // Only a listing tells that no key is hidden any more.
            (None, Some(_)) if self.own_keys_suffice(cx) => {
                let Some(view) = self.view.take() else { return };
                self.read_keys(&view, session, cx);
                self.view = Some(view);
                return;
            }
            (None, None) if self.intent() == Intent::Hold => return self.join(session, cx),
            (_, _) => None,
        };
        let Some(mut view) = view else { return self.list(cx) };
        self.offers.tell(&mut view, cx.now);
        let wall = cx.wall.text(cx.now);
        let input = self.plan_input(session, &wall, cx);
        let intent = self.intent();
        match intent {
            Intent::Hold => {
                let plan = plan::hold(&view, input, cx.now);
                self.apply_plan(&view, session, plan, cx);
            }
            Intent::Leave(reason) => match plan::leave(&view, input, cx.now) {
                Plan { refresh: Some(refresh), .. } => {
                    self.read(refresh, view.lock_key(), view.latest(), cx);
                }
                Plan { write: Some(write), .. } => self.commit(write, cx),
                Plan { write: None, .. } if self.proved => self.gone(reason, cx),
                Plan { write: None, .. } => self.list(cx),
            },
            Intent::Rest => {}
        }
        self.view = Some(view);
        self.confirmed = false;
        let keeps = cx.occupied || self.withheld().is_some();
        if intent != self.intent() && matches!(self.in_flight, InFlight::None) && !keeps {
            // The plan ended the acquisition. The remaining keys are removed at once.
            self.decide(session, cx);
        }
    }

    /// Enqueues by one write if that is enough, else lists first.
    fn join(&mut self, session: &SessionId, cx: &mut Context<'_>) {
        let wall = cx.wall.text(cx.now);
        match plan::join(&self.settings.prefix, self.plan_input(session, &wall, cx)) {
            Some(write) => self.commit(write, cx),
            None => self.list(cx),
        }
    }

    /// The input of a plan.
    pub(super) fn plan_input<'a>(
        &'a self,
        session: &'a SessionId,
        wall: &'a str,
        cx: &'a Context<'_>,
    ) -> PlanInput<'a> {
        PlanInput {
            session,
            settings: &self.settings,
            who: cx.who,
            wall,
            set_limit: self.set_limit,
            dead_since: &self.dead_since,
            lost_cas_race: self.lost_cas_race,
            yield_until: self.timers.at(Timer::Yield),
            follows_up: self.follows_up,
            confirmed: self.confirmed,
            free_since: self.free_since,
            last_role: self.last_role,
            delayed_until: self.delayed_until,
            held: self.state.slot().map(|slot| slot.indexes.as_slice()),
            together: cx.together,
            holds: cx.holds,
            resumed: cx.resumed,
        }
    }

    /// Executes a plan to hold: settles a loss, then the outcome, then what the plan reads or writes.
    fn apply_plan(&mut self, view: &View, session: &SessionId, plan: Plan, cx: &mut Context<'_>) {
        self.timers.set(Timer::Recheck, plan.recheck);
        if self.last_role.0 != plan.role {
            self.last_role = (plan.role, cx.now);
            self.look_anew();
        }
        self.report_limit(view, matches!(plan.outcome, PlanOutcome::Blocked(_)), cx);
        if let PlanOutcome::Evicted(by) = plan.outcome {
            return self.handle_eviction(by, view, session, cx);
        }
        if cx.ending && !self.holds() && plan.outcome != PlanOutcome::Holding {
            return self.start_leaving(LeaveReason::Released);
        }
        let contender_exists = view.contender(session).is_some();
        self.session_lives &= !contender_exists;
        if self.holds() && plan.outcome != PlanOutcome::Holding {
            // The likely cause of a missing contender key is that the session has ended.
            if !self.proved || !contender_exists && !self.session_lives {
                return self.verify(view, session, cx);
            }
            self.conclude_loss(view, session, cx);
            if self.intent() != Intent::Hold {
                return;
            }
        }
        match plan.outcome {
            PlanOutcome::Holding if !self.holds() => self.acquire(view, session, plan, cx),
            PlanOutcome::NotHolding { room: false } if self.settings.try_once() && plan.refresh.is_none() => {
                // Whether there is room is known only after the refresh.
                self.time_out(cx);
            }
            PlanOutcome::Blocked(obstacle) => {
                self.report_blocked(obstacle, plan.watch, cx);
                if self.intent() == Intent::Hold {
                    if let Some(refresh) = plan.refresh {
                        self.read(refresh, view.lock_key(), view.latest(), cx);
                    } else if let Some(write) = plan.write {
                        self.commit(write, cx);
                    }
                }
            }
            PlanOutcome::NotHolding { room } => {
                self.note_room(room, cx.now);
                self.execute(view, session, plan, cx);
            }
            PlanOutcome::Holding | PlanOutcome::Evicted(_) => self.execute(view, session, plan, cx),
        }
    }

    /// A consistent read shows that the slots are no longer held.
    fn conclude_loss(&mut self, view: &View, session: &SessionId, cx: &mut Context<'_>) {
        let was_listed = match &view.lock {
            LockKeyState::Record { record, .. } => record.slots_of(session) == self.settings.slots,
            // An eviction deletes no `.lock` and no key of a lock.
            LockKeyState::Missing => true,
            LockKeyState::Single(_) | LockKeyState::Conflict { .. } => false,
        };
        let contender_gone = was_listed && view.contender(session).is_none();
        self.lose(if contender_gone { LossReason::ContenderGone } else { LossReason::Evicted }, cx);
    }

    /// The view shows slots that the machine does not report as held yet.
    fn acquire(&mut self, view: &View, session: &SessionId, plan: Plan, cx: &mut Context<'_>) {
        if !cx.lease_is_fresh() {
            // A waiter renews less often than a holder: a hold that begins under an old lease would end early in an outage.
            self.set_finding(Finding::SlotsUnproved);
            self.note_room(true, cx.now);
            self.watch(plan.watch, cx);
        } else if cx.resumed && self.needs_token(cx) {
            // The token of an earlier process's grant is unknown. Read `.lock` for it: another process of the same session
            // may have reported a higher token than the known index.
            self.read_keys(view, session, cx);
        } else if cx.together.is_some() {
            self.set_finding(Finding::Slots);
            self.watch(plan.watch, cx);
        } else {
            self.hold(view, session, cx);
            self.execute(view, session, plan, cx);
        }
    }

    /// Reads or writes what a plan asks for. Without either, the machine waits for the plan's watches.
    fn execute(&mut self, view: &View, session: &SessionId, plan: Plan, cx: &mut Context<'_>) {
        if let Some(refresh) = plan.refresh {
            return self.read(refresh, view.lock_key(), view.latest(), cx);
        }
        if plan.write.is_none() && self.failures.is_of_writes() {
            self.write_succeeded(cx);
        }
        match plan.write {
            Some(write) if write.joint => self.set_finding(Finding::Proposal(write)),
            Some(write) if !write.tidy => return self.commit(write, cx),
            Some(write) => match self.timers.at(Timer::Tidy) {
                Some(at) if at <= cx.now => return self.commit(write, cx),
                Some(_) => {}
                None => {
                    // A client whose wait is about to end may be the only one that knows of it.
                    let left = self.times_out_at().map(|ends| ends.since(cx.now) / 2);
                    let longest = left.map_or(MAX_CLEANUP_DELAY, |left| left.min(MAX_CLEANUP_DELAY));
                    self.timers.set(Timer::Tidy, cx.now + jittered(longest, 0.9, cx.rng));
                }
            },
            None => {
                self.timers.clear(Timer::Tidy);
                self.timers.clear(Timer::Decide);
                self.follows_up = false;
            }
        }
        // A newcomer that has found free slots and yields to others does not wait for a slot yet.
        let yields = self.timers.is_set(Timer::Yield);
        let is_reported = |acquiring: &Acquiring| {
            acquiring.cause == WaitCause::Queue || yields && acquiring.room_since.is_some()
        };
        if self.state.acquiring().is_some_and(|acquiring| !is_reported(acquiring)) {
            self.report_waiting(view, session, cx);
        }
        self.watch(plan.watch, cx);
    }

    /// Watches the keys, and sees to it that everything is listed now and then, whatever they tell.
    pub(super) fn watch(&mut self, keys: Vec<plan::Watch>, cx: &mut Context<'_>) {
        self.watches.want(keys, WATCH_WAIT, &self.name, cx);
        if self.timers.is_set(Timer::Read) {
            return;
        }
        let list = match self.last_role.0 {
            // Of a lock there is nothing that could be read together with others.
            Role::Holding if self.holds() && self.settings.is_lock() => MAX_CONFIRM_INTERVAL,
            Role::Holding if self.holds() => {
                return self.timers.set(Timer::Read, rounds::next(cx.who, cx.now));
            }
            Role::Head | Role::Entering | Role::Holding => half(cx.ttl),
            Role::Behind if self.relies(cx) => {
                let look = self.next_look(false, cx);
                return self.timers.set(Timer::Read, look);
            }
            Role::Behind if self.listed_at.is_none() => cx.ttl * 2,
            Role::Behind => MAX_LIST_INTERVAL,
        };
        let share = if self.last_role.0 == Role::Behind { 0.5 } else { 0.3 };
        self.timers.set(Timer::Read, cx.now + jittered(list, share, cx.rng));
    }

    /// Before a loss is concluded from what a watch brought: a consistent read of `.lock`, and where the contender key is
    /// missing a look at the session first, which is the likely cause, and then at everything.
    fn verify(&mut self, view: &View, session: &SessionId, cx: &mut Context<'_>) {
        if view.contender(session).is_none() {
            self.check_session = true;
            self.in_flight = InFlight::CheckingSession;
            self.refresh = Some(Refresh::Prefix);
        } else {
            self.read(Refresh::LockKeyConsistent, view.lock_key(), view.latest(), cx);
        }
    }

    fn needs_token(&self, cx: &Context<'_>) -> bool {
        !self.confirmed && self.token.is_none() && cx.together.is_none() && !self.settings.is_lock()
    }

    pub(super) fn hold(&mut self, view: &View, session: &SessionId, cx: &mut Context<'_>) {
        let Some(Acquiring { since: asked_at, room_since, waited, .. }) = self.state.acquiring().cloned()
        else {
            return;
        };
        // A grant that was seen on our own contender has that index on `.lock` too.
        let contender = view.contender(session);
        let granted = contender.filter(|_| view.was_granted(session)).map(|one| one.modify_index);
        let stored = granted.unwrap_or(view.lock_index());
        // A slot of an earlier process has been held all along: its token still orders the holders rightly.
        let resumed = self.token.take().filter(|token| *token <= stored);
        let entry = view.entry_of(session);
        let indexes = entry.map(|entry| entry.indexes.clone()).unwrap_or_default();
        let since = resumed.and_then(|_| cx.wall.moment(&entry?.since));
        let (token, since) = (resumed.unwrap_or(stored), since.unwrap_or(cx.now).min(cx.now));
        self.timers.clear(Timer::Yield);
        self.stopping = None;
        // Its watch begins anew.
        self.watch_failing_since = None;
        self.state = State::Held(Slot { since, session: session.clone(), token, indexes: indexes.clone() });
        let took = cx.now.since(asked_at);
        // A waiter that was granted its slots by a handoff has seen the release and the grant at once.
        let handoff = waited.then(|| cx.now.since(room_since.unwrap_or(cx.now)));
        let (name, session) = (self.name.clone(), session.clone());
        cx.notify(Notice::Acquired {
            name,
            session,
            token,
            indexes,
            resumed: resumed.is_some(),
            took,
            handoff,
        });
    }

    fn report_waiting(&mut self, view: &View, session: &SessionId, cx: &mut Context<'_>) {
        if let Some(acquiring) = self.state.acquiring_mut() {
            acquiring.cause = WaitCause::Queue;
            acquiring.waited = true;
        }
        if self.settings.is_lock() {
            // The owner is reported when it is seen. Other waiters of a lock are unknown.
            return;
        }
        let (taken, limit) =
            view.record().map_or((0, self.settings.limit), |record| (record.taken(), record.limit));
        // A newcomer reports the position that it will have.
        let ahead = view.waiters().into_iter().filter(|one| one.priority() >= self.settings.priority).count();
        let coming = u32::try_from(ahead).unwrap_or(u32::MAX).saturating_add(1);
        let position = view.knows_position(session).then(|| view.position(session).unwrap_or(coming));
        cx.notify(Notice::Waiting { name: self.name.clone(), position, taken, limit });
    }

    fn report_blocked(&mut self, obstacle: Obstacle, keys: Vec<plan::Watch>, cx: &mut Context<'_>) {
        let is_known = |cause: &WaitCause| match cause {
            WaitCause::Fault { obstacle: known, .. } => *known == obstacle,
            WaitCause::Unknown | WaitCause::Queue => false,
        };
        if let Some(acquiring) = self.state.acquiring_mut().filter(|acquiring| !is_known(&acquiring.cause)) {
            cx.notify(Notice::Blocked { name: self.name.clone(), obstacle: obstacle.clone() });
            acquiring.cause = WaitCause::Fault { obstacle, since: cx.now };
        }
        if self.settings.try_once() {
            return self.time_out(cx);
        }
        self.watch(keys, cx);
    }

    pub(crate) fn lose(&mut self, reason: LossReason, cx: &mut Context<'_>) {
        if self.intent() != Intent::Hold {
            // A slot that is being released ends the same way if it is lost.
            return;
        }
        let Some(slot) = self.state.take_slot(cx.now) else { return };
        let token = self.report_lost(slot, reason, cx);
        if matches!(reason, LossReason::LeaseExpired | LossReason::WatchFailed) {
            self.refresh = Some(Refresh::Prefix);
            self.stopping = Some(token).filter(|_| !cx.occupied);
        }
        match self.settings.on_lost {
            OnLost::Reacquire if !cx.occupied && !cx.ending => self.reacquire(cx.now),
            OnLost::Reacquire | OnLost::Exit => self.start_leaving(LeaveReason::Lost),
        }
    }

    /// Reports the loss of a slot. Returns its token.
    pub(super) fn report_lost(&mut self, slot: Slot, reason: LossReason, cx: &mut Context<'_>) -> u64 {
        let Slot { since, session, token, indexes } = slot;
        let (name, held) = (self.name.clone(), cx.now.since(since));
        cx.notify(Notice::Lost { name, session, token, indexes, reason, held });
        self.watch_failing_since = None;
        token
    }

    pub(super) fn time_out(&mut self, cx: &mut Context<'_>) {
        let failure = self.failures.current().map(|failing| &failing.failure).or(cx.session_failure).cloned();
        let obstacle = match self.state.acquiring().map(|acquiring| &acquiring.cause) {
            Some(WaitCause::Fault { obstacle, .. }) => Some(obstacle.clone()),
            Some(WaitCause::Unknown | WaitCause::Queue) | None => None,
        };
        cx.notify(Notice::TimedOut { name: self.name.clone(), reached: cx.reached, failure, obstacle });
        self.start_leaving(LeaveReason::TimedOut);
    }

    fn gone(&mut self, reason: LeaveReason, cx: &mut Context<'_>) {
        if let Some(Slot { since, session, .. }) = self.state.slot() {
            let (session, held) = (session.clone(), cx.now.since(*since));
            cx.notify(Notice::Released { name: self.name.clone(), session, held });
        }
        self.stop_watches(cx);
        self.stopping = None;
        self.state = State::Ended(match reason {
            LeaveReason::Requeue if !cx.ending => return self.reacquire(cx.now),
            LeaveReason::Released | LeaveReason::Requeue => EndReason::Released,
            LeaveReason::TimedOut => EndReason::TimedOut,
            LeaveReason::Lost => EndReason::Lost,
        });
    }

    /// Without a session only dead keys can remain in Consul.
    pub(super) fn without_session(&mut self, cx: &mut Context<'_>) {
        match &mut self.state {
            State::Leaving { reason, .. } => {
                let reason = *reason;
                self.gone(reason, cx);
            }
            State::Acquiring(acquiring) if acquiring.cause == WaitCause::Queue => {
                acquiring.cause = WaitCause::Unknown;
            }
            State::Acquiring(_) | State::Held(_) | State::Ended(_) => {}
        }
    }

    /// Notes since when there has been room for the slots.
    fn note_room(&mut self, room: bool, now: Moment) {
        let Some(acquiring) = self.state.acquiring_mut() else { return };
        if room {
            acquiring.finds_room(now);
        } else {
            acquiring.room_since = None;
        }
    }
}
