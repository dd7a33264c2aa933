//! How a machine decides, and does what was decided.

use super::{Context, Finding, InFlight, LeaveReason, Machine, Phase, State, Timer, rounds};
use crate::backoff::jittered;
use crate::command::Command;
use crate::line;
use crate::notice::{LossReason, Notice};
use crate::plan::{self, Grant, Leave, Me, Memory, Next, Plan, Standing, Want, Watch, Write};
use crate::settings::OnLost;
use crate::timing::{
    LOOK_GRACE, LOOK_WINDOW, MAX_CONFIRM_INTERVAL, MAX_CROWD_YIELD, MAX_NEWCOMER_YIELD,
    NEWCOMER_YIELD_PER_WRITE, WATCH_DELAY,
};
use crate::view::{View, contender_key, lock_key};
use crate::{Moment, Obstacle, SessionId};

use super::state::{Acquiring, Slot};

impl Machine {
    /// Does whatever the present state asks for.
    pub(crate) fn drive(&mut self, cx: &mut Context<'_>) {
        self.wake(cx);
        self.begin_proved(cx);
        let step = cx.together.map(|together| (together.step, together.prefixes.len()));
        if self.known.planned_for != step && self.state.acquiring().is_some() {
            // What was proposed was for another step of the group.
            self.known.planned_for = step;
            if matches!(self.state.finding(), Finding::Proposal(_)) {
                self.set_finding(Finding::Nothing);
                self.known.want(Want::All);
            } else if !self.known.wants_anything() {
                self.known.want(self.looks_at(cx));
            }
        }
        let held = std::mem::replace(&mut self.known.planned_holding, cx.agent.held.len());
        let has_ring = |view: &View| line::has_ring(view, &cx.agent.held);
        if held != cx.agent.held.len()
            && self.state.acquiring().is_some()
            && self.view().is_some_and(has_ring)
        {
            self.known.want(Want::All);
        }
        if self.holds() && !cx.lease_is_valid() {
            self.lose(LossReason::LeaseExpired, cx);
        } else if self.watch_fails_at(cx.agent.watch_grace).is_some_and(|at| at <= cx.now) {
            self.lose(LossReason::WatchFailed, cx);
        }
        // A wait ends in time although a look is under way.
        let looks = matches!(self.in_flight, InFlight::Reading { look: true, .. });
        if !looks && !matches!(self.in_flight, InFlight::None) {
            return;
        }
        if self.times_out_at().is_some_and(|at| at <= cx.now) {
            self.time_out(cx);
        }
        if looks || self.timers.is_set(Timer::Retry) && !self.timers.take_due(Timer::Retry, cx.now) {
            return;
        }
        let session = match self.state {
            State::Acquiring(_) | State::Held(_) => cx.session,
            State::Leaving { .. } => cx.remembered,
            State::Ended(_) => return self.tend(cx),
        };
        let Some(session) = session.cloned() else {
            return self.without_session(cx);
        };
        match self.state.leaves() {
            // What is left in `.lock` keeps others out until the workload has ended.
            Some(_) if cx.occupied || self.withheld().is_some() => {}
            Some(LeaveReason::Released) if self.is_kept_out(cx) => self.abandon(cx),
            // A lease that ran out says that nothing is known; all waits until it is renewed, and begins with a read.
            None if !cx.lease_is_valid() => self.known.want(Want::All),
            Some(_) | None => self.decide(&session, cx),
        }
    }

    /// Turns timers that are due into what they are for.
    fn wake(&mut self, cx: &mut Context<'_>) {
        if self.state.rests() && self.timers.take_due(Timer::LookAgain, cx.now) {
            self.state.start_leaving(LeaveReason::Released);
            self.known.want(Want::All);
        }
        if self.state.asks() && self.timers.take_due(Timer::Refresh, cx.now) {
            self.known.want(Want::All);
        }
        if self.timers.take_due(Timer::Again, cx.now) {
            if self.known.decided_by_listing || self.state.rests() {
                self.known.want(Want::All);
            } else if !self.holds() {
                self.known.want(self.looks_at(cx));
            } else if self.misses_waiters(cx.now) {
                self.known.want(self.rereads());
            } else if !self.known.wants_anything() {
                // Its watches begin at what it knows.
                self.known.decide_by_last();
            }
        }
        let acts = self.timers.at(Timer::Yield).is_some_and(|at| at <= cx.now) && !self.known.yields_over;
        self.known.yields_over |= acts;
        if self.timers.take_due(Timer::LastLook, cx.now) || acts {
            self.known.want(self.looks_at(cx));
        }
        if self.timers.take_due(Timer::Look, cx.now) {
            if self.holds() {
                self.known.confirms = true;
                let lists = self.settings.is_lock() || self.failures.hidden;
                self.known.want(if lists { Want::All } else { self.looks_at(cx) });
            } else {
                self.begin_look();
                self.known.want(self.looks_at(cx));
            }
        }
        if self.owed.deadline().is_some_and(|until| until <= cx.now) {
            // A client that has left has nothing else to do, and owes them until it has looked.
            let rests = self.state.rests();
            if rests && self.known.want != Some(Want::All) && self.owed.gives_up() {
                self.timers.clear([Timer::Again]);
                self.owed.offers.clear();
            } else {
                if !rests {
                    self.owed.offers.clear();
                }
                self.known.want(Want::All);
            }
        }
        if self.watches.timers().any(|until| until <= cx.now) && !self.known.wants_anything() {
            self.known.decide_by_last();
        }
    }

    /// Whether a holder may not know of those that have come since the grant: it watches `.lock` only where it knows of some.
    fn misses_waiters(&self, now: Moment) -> bool {
        let settled = self.state.slot().is_some_and(|slot| slot.since + WATCH_DELAY <= now);
        let shared = |view: &View| {
            view.record().is_some_and(plan::is_watched_by_holders) && !self.watches.follows(&view.lock_key())
        };
        settled && self.view().is_some_and(shared)
    }

    /// The keys that tell a waiter whether all is well.
    fn looks_at(&self, cx: &Context<'_>) -> Want {
        let record = self.view().and_then(View::record);
        let looks = record.zip(cx.session).map(|(record, own)| plan::looks(record, own));
        Want::Some(looks.unwrap_or_default())
    }

    fn decide(&mut self, session: &SessionId, cx: &mut Context<'_>) {
        if let Some(want) = self.known.want.take() {
            return self.read(want, session, cx);
        }
        let Some(view) = self.known.seen.take() else { return };
        self.known.decided_by_listing = view.is_listed();
        self.set_finding(Finding::Nothing);
        let wall = cx.agent.wall.text(cx.now);
        let me = self.me(session, &wall, cx);
        let leaves = self.state.leaves();
        match leaves {
            None => {
                let plan = plan::hold(&view, me, self.memory(cx));
                self.follow(plan, &view, session, cx);
            }
            Some(reason) => match plan::leave(&view, me, &self.known.sightings) {
                Leave::Read(want) => self.read(want, session, cx),
                Leave::Write(write) => self.commit(write, cx),
                Leave::Gone => self.gone(reason, cx),
            },
        }
        self.known.confirms = false;
        let keeps = cx.occupied || self.withheld().is_some();
        if leaves != self.state.leaves() && matches!(self.in_flight, InFlight::None) && !keeps {
            // The plan ended the acquisition. The remaining keys are removed at once.
            self.decide(session, cx);
        }
    }

    pub(super) fn me<'a>(&'a self, session: &'a SessionId, wall: &'a str, cx: &'a Context<'_>) -> Me<'a> {
        Me {
            session,
            settings: &self.settings,
            who: &cx.agent.who,
            now: cx.now,
            wall,
            together: cx.together,
            holds: &cx.agent.held,
            had: self.state.slot().is_some() || cx.agent.session.is_resumed(),
        }
    }

    fn memory(&self, cx: &Context<'_>) -> Memory<'_> {
        Memory {
            sightings: &self.known.sightings,
            set_limit: self.set_limit,
            yields_until: self.timers.at(Timer::Yield),
            ends_soon: self.times_out_at().is_some_and(|ends| ends.since(cx.now) <= LOOK_WINDOW / 2),
            lost_race: self.known.lost_race,
            settled_at: self.known.settled_at,
            delayed_until: self.known.delayed_until,
            held_since: self.state.slot().map(|slot| slot.since),
            confirms: self.known.confirms,
        }
    }

    /// Sends a read of what a plan has to know.
    fn read(&mut self, want: Want, session: &SessionId, cx: &mut Context<'_>) {
        let name = self.name.clone();
        let look = self.state.waits() && matches!(want, Want::Some(_));
        let prefix = &self.settings.prefix;
        cx.out.push_back(match &want {
            _ if self.settings.is_lock() => Command::ReadLock { name, key: prefix.clone(), consistent: true },
            Want::All => Command::List { name },
            Want::Some(others) => {
                let keys = std::iter::once(session).chain(others).map(|one| contender_key(prefix, one));
                Command::ReadKeys { name, keys: std::iter::once(lock_key(prefix)).chain(keys).collect() }
            }
        });
        if look {
            let decided = self.times_out_at().map(|ends| ends + LOOK_GRACE);
            self.timers.set_once(Timer::Decide, || decided.unwrap_or(cx.now));
        }
        self.in_flight = InFlight::Reading { want, look };
    }

    /// Before there is a session, `.lock` can be read.
    fn read_ahead(&mut self, cx: &mut Context<'_>) {
        let reads = self.view().is_none() && self.known.want == Some(Want::Some(Vec::new()));
        if reads && !self.settings.is_lock() && cx.together.is_none() && cx.remembered.is_none() {
            self.known.want.take();
            let (name, key) = (self.name.clone(), lock_key(&self.settings.prefix));
            cx.out.push_back(Command::ReadLock { name, key, consistent: false });
            // It holds up no end of the wait.
            self.in_flight = InFlight::Reading { want: Want::Some(Vec::new()), look: true };
        }
    }

    /// Follows a plan to hold: settles a loss, then the standing, then the next step.
    fn follow(&mut self, plan: Plan, view: &View, session: &SessionId, cx: &mut Context<'_>) {
        let Plan { standing, next, again } = plan;
        self.report_limit(view, matches!(standing, Standing::Blocked(_)), cx);
        if let Standing::Evicted(by) = standing {
            return self.handle_eviction(by, view, session, cx);
        }
        let holds = matches!(standing, Standing::Holds(_));
        // A lock that an earlier process held may have its workload still.
        if cx.agent.ending && !self.holds() && !holds && !view.is_owner(session) {
            return self.start_leaving(LeaveReason::Released);
        }
        if self.holds() && !holds {
            // A lock has none.
            if view.contender(session).is_none() && !self.known.session_lives {
                // The likely cause of a missing contender key is that the session has ended.
                self.look_at_session(cx);
                return self.known.want(Want::All);
            }
            if !view.is_listed() && !self.settings.is_lock() {
                return self.known.want(Want::All);
            }
            self.conclude_loss(view, session, cx);
            if !self.state.asks() {
                return;
            }
        }
        self.timers.set(Timer::Again, again);
        match standing {
            Standing::Holds(grant) if !self.holds() => {
                // What a holder writes has time until it holds.
                if !self.begin(grant, cx) && !matches!(next, Next::Wait(_)) {
                    return;
                }
            }
            Standing::Waits { room: false } if self.settings.try_once() && matches!(next, Next::Wait(_)) => {
                return self.time_out(cx);
            }
            Standing::Blocked(obstacle) => {
                self.report_blocked(obstacle, cx);
                if self.settings.try_once() {
                    return self.time_out(cx);
                }
            }
            Standing::Waits { room } => {
                self.note_room(room, cx.now);
                let rests = matches!(next, Next::Wait(_) | Next::Write(Write { joint: true, .. }));
                if rests && !self.state.waits() {
                    self.report_waiting(view, session, cx);
                }
            }
            Standing::Holds(_) | Standing::Evicted(_) => {}
        }
        self.act(next, view, session, cx);
    }

    /// The client has its slots. Returns whether they are held from here on.
    pub(super) fn begin(&mut self, grant: Grant, cx: &mut Context<'_>) -> bool {
        if !cx.lease_is_fresh() {
            // A waiter renews less often than a holder: a hold that begins under an old lease would end early in an outage.
            self.note_room(true, cx.now);
            self.set_finding(Finding::SlotsUnproved(grant));
            return false;
        }
        if cx.together.is_some() {
            self.set_finding(Finding::Slots(grant));
            return false;
        }
        self.hold(grant, cx);
        true
    }

    /// Reads, writes or waits.
    fn act(&mut self, next: Next, view: &View, session: &SessionId, cx: &mut Context<'_>) {
        let mut watches = match next {
            Next::Read(want) => return self.read(want, session, cx),
            Next::Write(write) if !write.joint => return self.commit(write, cx),
            Next::Write(write) => {
                self.set_finding(Finding::Proposal(write));
                plan::changes(view, session)
            }
            Next::Wait(watches) => watches,
            Next::Yield(watches) => {
                let rank = u32::try_from(view.index().saturating_sub(view.lock_index())).unwrap_or(u32::MAX);
                let most = if self.known.lost_race { MAX_CROWD_YIELD } else { MAX_NEWCOMER_YIELD };
                // A timer of this instant would never be due.
                let longest = NEWCOMER_YIELD_PER_WRITE.saturating_mul(rank.max(1)).min(most);
                let until = cx.now + jittered(longest, 0.9, cx.rng);
                self.timers.set_once(Timer::Yield, || until);
                watches
            }
        };
        if self.failures.of_writes {
            self.write_succeeded(cx);
        }
        if view.is_listed() {
            self.known.settled_at = Some(view.lock_index());
        }
        if !self.holds() {
            self.timers.clear([Timer::Decide]);
            if self.times_out_at().is_some_and(|at| at <= cx.now) {
                return self.time_out(cx);
            }
            if self.known.arrival.is_some() && !self.settings.is_lock() {
                self.plan_looks(view, session, cx);
            }
        } else if !self.timers.is_set(Timer::Look) {
            let next = if self.settings.is_lock() {
                cx.now + jittered(MAX_CONFIRM_INTERVAL, 0.3, cx.rng)
            } else {
                rounds::next(&cx.agent.who, cx.now)
            };
            self.timers.set(Timer::Look, next);
        }
        watches.extend(self.observation(view).filter(|_| !self.holds()));
        watches.extend(self.owed.watches(view.prefix()));
        self.watch(watches, cx);
    }

    pub(super) fn watch(&mut self, watches: Vec<Watch>, cx: &mut Context<'_>) {
        self.watches.want(watches, &self.name, cx);
    }

    pub(super) fn hold(&mut self, grant: Grant, cx: &mut Context<'_>) {
        let Some(acquiring) = self.state.acquiring().cloned() else { return };
        let Some(session) = cx.session.cloned() else { return };
        let Grant { token, indexes } = grant;
        let stored = token.unwrap_or_default();
        // A slot of an earlier process has been held all along: its token still orders the holders rightly.
        let resumed = self.past.token.take().filter(|token| *token <= stored);
        let entry = self.view().and_then(|view| view.entry_of(&session));
        let since = resumed.and_then(|_| cx.agent.wall.moment(&entry?.since));
        let (token, since) = (resumed.unwrap_or(stored), since.unwrap_or(cx.now).min(cx.now));
        self.timers.clear([Timer::Yield, Timer::Look, Timer::LastLook, Timer::Decide]);
        self.known.begin_anew();
        self.looks = Default::default();
        self.past = Default::default();
        self.watches.failing_since = None;
        self.state = State::Held(Slot { since, session: session.clone(), token, indexes: indexes.clone() });
        let took = cx.now.since(acquiring.since);
        // A waiter that was offered its slots has seen the release and the offer at once.
        let handoff = acquiring.waited.then(|| cx.now.since(acquiring.room_since.unwrap_or(cx.now)));
        let (name, resumed) = (self.name.clone(), resumed.is_some());
        cx.notify(Notice::Acquired { name, session, token, indexes, resumed, took, handoff });
    }

    fn report_waiting(&mut self, view: &View, session: &SessionId, cx: &mut Context<'_>) {
        if let Some(acquiring) = self.state.acquiring_mut() {
            acquiring.phase = Phase::Waiting;
            acquiring.waited = true;
        }
        if self.settings.is_lock() {
            // The owner is reported when it is seen. Other waiters of a lock are unknown.
            return;
        }
        let (taken, limit) =
            view.record().map_or((0, self.settings.limit), |record| (record.taken(), record.limit));
        let position = view.known_position(session);
        cx.notify(Notice::Waiting { name: self.name.clone(), position, taken, limit });
    }

    fn report_blocked(&mut self, obstacle: Obstacle, cx: &mut Context<'_>) {
        let is_news = |acquiring: &&mut Acquiring| acquiring.obstacle() != Some(&obstacle);
        if let Some(acquiring) = self.state.acquiring_mut().filter(is_news) {
            cx.notify(Notice::Blocked { name: self.name.clone(), obstacle: obstacle.clone() });
            acquiring.phase = Phase::Blocked { obstacle, since: cx.now };
        }
    }

    pub(crate) fn lose(&mut self, reason: LossReason, cx: &mut Context<'_>) {
        if !self.state.asks() {
            // A slot that is being released ends the same way if it is lost.
            return;
        }
        let Some(slot) = self.state.take_slot(cx.now) else { return };
        let token = self.report_lost(slot, reason, cx);
        if matches!(reason, LossReason::LeaseExpired | LossReason::WatchFailed) {
            self.known.want(Want::All);
            self.past.stopping = Some(token).filter(|_| !cx.occupied);
        }
        self.timers.clear([Timer::Look]);
        match self.settings.on_lost {
            OnLost::Reacquire if !cx.occupied && !cx.agent.ending => self.known.want(Want::Some(Vec::new())),
            OnLost::Reacquire | OnLost::Exit => self.start_leaving(LeaveReason::Lost),
        }
    }

    /// Reports the loss of a slot. Returns its token.
    pub(super) fn report_lost(&mut self, slot: Slot, reason: LossReason, cx: &mut Context<'_>) -> u64 {
        let Slot { since, session, token, indexes } = slot;
        let (name, held) = (self.name.clone(), cx.now.since(since));
        cx.notify(Notice::Lost { name, session, token, indexes, reason, held });
        self.watches.failing_since = None;
        token
    }

    pub(super) fn time_out(&mut self, cx: &mut Context<'_>) {
        let failure = self.failures.failing.as_ref().map(|failing| &failing.failure);
        let failure = failure.or(cx.agent.session.failing().map(|failing| &failing.failure)).cloned();
        let obstacle = self.state.acquiring().and_then(Acquiring::obstacle).cloned();
        cx.notify(Notice::TimedOut { name: self.name.clone(), reached: cx.agent.reached, failure, obstacle });
        self.start_leaving(LeaveReason::TimedOut);
    }

    pub(super) fn gone(&mut self, reason: LeaveReason, cx: &mut Context<'_>) {
        if let Some(Slot { since, session, .. }) = self.state.slot() {
            let (session, held) = (session.clone(), cx.now.since(*since));
            cx.notify(Notice::Released { name: self.name.clone(), session, held });
        }
        self.stop_watches(cx);
        self.timers.clear([Timer::Again]);
        self.known.want.take();
        self.past.stopping = None;
        if reason == LeaveReason::Requeue && !cx.agent.ending {
            return self.reacquire(cx.now);
        }
        self.state = State::Ended(reason);
        self.watch_takers(cx);
    }

    /// Without a session only dead keys can remain in Consul.
    pub(super) fn without_session(&mut self, cx: &mut Context<'_>) {
        match self.state {
            State::Leaving { reason, .. } => self.gone(reason, cx),
            State::Acquiring(ref mut acquiring) if acquiring.phase == Phase::Waiting => {
                acquiring.phase = Phase::Starting;
            }
            State::Acquiring(_) => self.read_ahead(cx),
            State::Held(_) | State::Ended(_) => {}
        }
    }

    /// Notes since when there has been room for the slots.
    fn note_room(&mut self, room: bool, now: Moment) {
        let Some(acquiring) = self.state.acquiring_mut() else { return };
        acquiring.room_since = room.then_some(acquiring.room_since.unwrap_or(now));
    }

    /// A renewal was answered since the slots were found.
    fn begin_proved(&mut self, cx: &mut Context<'_>) {
        if let Finding::SlotsUnproved(grant) = self.state.finding().clone()
            && cx.lease_is_fresh()
        {
            self.set_finding(Finding::Nothing);
            self.begin(grant, cx);
            self.known.decide_by_last();
        }
    }
}
