//! The state machine of one semaphore or lock: observations go in, commands come out.
//!
//! Each decision is made on one view, which was read or written at one instant, and is used once. A watch only wakes the machine. So a lost
//! answer, a restart and an operator's edit are all handled the same way: read, plan.

use std::time::Duration;

use super::backoff::Backoff;
use super::command::{Command, Name, Op, Part};
use super::failing::Failing;
use super::plan::{Own, Want, Write};
use super::settings::{LimitPolicy, Settings};
use super::single::SingleKeyLock;
use super::view::View;
use super::{Moment, SessionId};
use crate::timing::{
    LATE_WRITE, MAX_CAS_RIVALS, MAX_LIST_INTERVAL, REFRESH_PER_PARTICIPANT, RELEASE_STEP, TRY_ONCE_TIMEOUT,
};

mod answers;
mod context;
mod drive;
mod evicted;
mod failures;
mod known;
mod looks;
mod report;
mod rounds;
mod state;
mod timers;
mod watches;

pub(super) use context::{Agent, Context};
use failures::Failures;
use known::Known;
use looks::{Looks, Owed};
use report::Reported;
pub use state::Phase;
use state::{Finding, LeaveReason, State};
use timers::{Timer, Timers};
use watches::Watches;

/// The one request under way, besides the watches.
#[derive(Clone, Debug, Default)]
enum InFlight {
    #[default]
    None,
    /// These keys are being read. `look`: to see whether all is well; a wait that ends meanwhile does not wait for it for long.
    Reading {
        want: Want,
        look: bool,
    },
    /// The session is being renewed, to see whether it lives.
    CheckingSession,
    Committing {
        write: Write,
        sent: Moment,
    },
    /// The session it was sent for has ended: its answer says nothing.
    Void,
}

/// What the agent is to do about a slot that an earlier process left, or that was lost while its workload may run.
#[derive(Clone, Debug, Default)]
struct Past {
    /// The token of a slot that an earlier process left in `.lock`.
    token: Option<u64>,
    /// The operator that evicted the slot, until it is acquired again.
    evicted_by: Option<String>,
    /// The token of the lost slot, while its workload is being stopped and no other client can acquire it: the slot was
    /// evicted, or its lease has expired.
    stopping: Option<u64>,
}

/// One semaphore or lock of one agent.
#[derive(Clone, Debug)]
pub struct Machine {
    name: Name,
    settings: Settings,
    /// The configured limit is still to be written (policy `set`).
    set_limit: bool,
    state: State,
    known: Known,
    in_flight: InFlight,
    timers: Timers,
    watches: Watches,
    past: Past,
    owed: Owed,
    looks: Looks,
    reported: Reported,
    failures: Failures,
    contention: Backoff,
}

impl Machine {
    /// `token` is that of the slot which an earlier process may have left.
    pub(super) fn new(name: Name, settings: Settings, token: Option<u64>, now: Moment) -> Self {
        Self {
            name,
            set_limit: settings.limit_policy == LimitPolicy::Set,
            settings,
            state: State::begin(now),
            known: Known::nothing(),
            in_flight: InFlight::None,
            timers: Timers::default(),
            watches: Watches::default(),
            past: Past { token, ..Past::default() },
            owed: Owed::default(),
            looks: Looks::default(),
            reported: Reported::default(),
            failures: Failures::default(),
            contention: Backoff::default(),
        }
    }

    /// A machine that lists the keys before it enqueues.
    pub(super) fn that_lists_first(mut self) -> Self {
        self.known.want(Want::All);
        self
    }

    /// How the shell and the core call it.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// What is wanted of it.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The state, for the agent.
    pub fn phase(&self) -> Phase {
        self.state.phase()
    }

    /// What was last seen; `None` before the first look and after the session ended.
    pub fn view(&self) -> Option<&View> {
        self.known.last.as_ref()
    }

    /// When everything under the prefix was looked at last. Single keys may be known as they were later.
    pub fn listed_at(&self) -> Option<Moment> {
        self.known.listed_at
    }

    /// The single-key lock as it was last seen, if this is a lock and its key exists.
    pub fn single(&self) -> Option<&SingleKeyLock> {
        self.view().and_then(View::single)
    }

    /// Whether Consul refused the free lock, which is in lock-delay.
    pub fn is_delayed(&self) -> bool {
        self.known.delayed_until.is_some()
    }

    /// What fails at present, if anything does: what was tried, on what, what came back.
    pub fn failure(&self) -> Option<&str> {
        self.failures.failing.as_ref().map(|failing| failing.failure.text.as_str())
    }

    /// The same, while anything is to be asked.
    pub fn failing(&self) -> Option<&Failing> {
        self.failures.failing.as_ref().filter(|_| !self.state.rests())
    }

    /// Since when the slot is being asked for; `None` where it is held, or not asked for.
    pub fn asked_at(&self) -> Option<Moment> {
        self.state.acquiring().map(|acquiring| acquiring.since)
    }

    /// Whether nothing of it is in Consul any more and nothing is asked for.
    pub fn is_gone(&self) -> bool {
        self.state.rests() && matches!(self.in_flight, InFlight::None)
    }

    /// Whether slots that it offered are not accepted yet. Until then it sees to it that somebody takes them.
    pub fn owes(&self) -> bool {
        let tends = self.timers.is_set(Timer::Again) || self.known.want == Some(Want::All) || !self.is_gone();
        self.owed.deadline().is_some() || self.state.rests() && tends
    }

    /// These offers: the takers, each with the index that its contender key has until it accepts.
    pub fn open_offers(&self) -> impl Iterator<Item = (&SessionId, u64)> {
        self.owed.offers.iter().map(|(taker, (index, _))| (taker, *index))
    }

    /// Takes over changed settings. The prefix and the slots stay: another prefix is another semaphore.
    pub(super) fn reconfigure(&mut self, settings: Settings, now: Moment) {
        let sets = settings.limit_policy == LimitPolicy::Set;
        let anew = self.settings.limit_policy != LimitPolicy::Set || settings.limit != self.settings.limit;
        self.set_limit = sets && (anew || self.set_limit);
        // A difference is reported again.
        self.reported.limit = None;
        if matches!(self.state, State::Ended(LeaveReason::TimedOut)) && settings.wait != self.settings.wait {
            self.reacquire(now);
        }
        if self.settings != settings {
            // The same keys may now lead elsewhere.
            self.known.want(Want::Some(Vec::new()));
            self.known.settled_at = None;
            self.looks = Looks::default();
            self.timers.clear([Timer::Look, Timer::LastLook]);
        }
        self.settings = settings;
    }

    /// A machine that removes what an earlier process left under a prefix that is not configured any more.
    pub(super) fn clearing(name: Name, settings: Settings, now: Moment) -> Self {
        let mut machine = Self::new(name, settings, None, now);
        machine.state.start_leaving(LeaveReason::Released);
        machine.known.want(Want::All);
        machine.timers.set(Timer::LookAgain, now + LATE_WRITE);
        machine
    }

    /// Whether it has yet to look again for what an earlier process left.
    pub(super) fn looks_again(&self) -> bool {
        self.timers.is_set(Timer::LookAgain)
    }

    /// Cancels the second look: another machine of the same prefix takes it over, or the session ends.
    pub(super) fn look_no_more(&mut self) {
        self.timers.clear([Timer::LookAgain]);
    }

    /// Leaves everything as it is: the session is about to be destroyed.
    pub(super) fn abandon(&mut self, cx: &mut Context<'_>) {
        self.stop_watches(cx);
        self.state = State::Ended(LeaveReason::Abandoned);
        self.in_flight = InFlight::None;
        (self.owed, self.known) = (Owed::default(), Known::default());
    }

    /// Lists the keys soon, for a reader of the status. The pause grows with the participants and with the agent's semaphores.
    /// So all agents together list a semaphore about twice a second, and an agent lists no more often than that.
    pub(super) fn refresh_soon(&mut self, semaphores: u32, now: Moment) {
        let Some(view) = self.view().filter(|_| self.state.asks()) else { return };
        let holders = view.record().map_or(0, super::Record::taken);
        let known = u32::try_from(view.contenders.len()).unwrap_or(u32::MAX).max(view.waiting()).max(holders);
        let begun = self.state.slot().map(|slot| slot.since).or(self.asked_at());
        let since = self.listed_at().or(begun).unwrap_or(now);
        let pace = REFRESH_PER_PARTICIPANT
            .saturating_mul(known.saturating_mul(semaphores))
            .clamp(REFRESH_PER_PARTICIPANT, MAX_LIST_INTERVAL);
        if !self.settings.is_lock() {
            self.timers.set_once(Timer::Refresh, || (since + pace).max(now));
        }
    }

    /// Forgets the other participants: another machine of this agent knows them.
    pub(super) fn forget_others(&mut self, session: &SessionId) {
        if self.is_quiet() && self.holds() && !self.settings.is_lock() {
            self.known.forget_others(session);
        }
    }

    /// Whether no answer is awaited and no view is to be decided upon: what was found last is what is known.
    fn is_quiet(&self) -> bool {
        matches!(self.in_flight, InFlight::None) && !self.known.wants_anything()
    }

    /// Whether slots are wanted, at once or after a release.
    pub(super) fn wants_slot(&self) -> bool {
        self.state.asks() || self.state.leaves() == Some(LeaveReason::Requeue)
    }

    /// Whether the slots are held and the agent was notified.
    pub fn holds(&self) -> bool {
        matches!(self.state, State::Held(_))
    }

    /// Whether the slots are there, even if the agent is not notified because other members of the acquire group lack theirs.
    pub(super) fn has(&self) -> bool {
        self.holds() || matches!(self.state.finding(), Finding::Slots(_))
    }

    /// Whether the session has slots that are to stay, reported or not.
    pub(super) fn has_slots(&self) -> bool {
        self.state.slot().is_some()
            || matches!(self.state.finding(), Finding::Slots(_) | Finding::SlotsUnproved(_))
            || self.past.token.is_some()
    }

    /// Whether it is known for sure to hold nothing.
    pub(super) fn holds_nothing(&self) -> bool {
        self.state.waits()
            && !matches!(self.state.finding(), Finding::Slots(_) | Finding::SlotsUnproved(_))
            && self.is_quiet()
    }

    /// Whether the machine is blocked.
    pub(super) fn is_blocked(&self) -> bool {
        self.state.acquiring().is_some_and(|acquiring| acquiring.obstacle().is_some())
    }

    /// Whether the client holds or waits, and does not leave.
    pub(super) fn is_queued_or_holding(&self) -> bool {
        self.state.asks() && (self.has() || self.arrival().is_some())
    }

    /// The index of the contender key at which the client joined the queue.
    pub(super) fn arrival(&self) -> Option<u64> {
        self.known.arrival
    }

    /// Whether it would write what the acquire group is to write with it. A proposal does not outlast the view on which it was made.
    pub(super) fn has_proposal(&self) -> bool {
        self.is_quiet() && matches!(self.state.finding(), Finding::Proposal(_))
    }

    /// Takes the offer up: these steps are on their way.
    pub(super) fn take_proposal(&mut self, now: Moment) -> Option<Vec<Op>> {
        let finding = &mut self.state.acquiring_mut()?.finding;
        let Finding::Proposal(write) = std::mem::replace(finding, Finding::Nothing) else { return None };
        let ops = write.ops.clone();
        self.past.token = None;
        self.in_flight = InFlight::Committing { write, sent: now };
        Some(ops)
    }

    /// How many steps of a transaction under way are its own.
    pub(super) fn steps_under_way(&self) -> usize {
        if let InFlight::Committing { write, .. } = &self.in_flight { write.ops.len() } else { 0 }
    }

    /// Holds from now on what was found, and goes on.
    pub(super) fn begin_holding(&mut self, cx: &mut Context<'_>) {
        if let Finding::Slots(grant) = self.state.finding().clone() {
            self.hold(grant, cx);
            if !self.known.wants_anything() {
                self.known.decide_by_last();
            }
        }
        self.drive(cx);
    }

    /// The token of a slot that an earlier process held, and that was not looked at yet.
    pub(super) fn remembered(&self) -> Option<u64> {
        self.past.token
    }

    /// Leaves, in whatever state. Holders that one write served may all leave now: one writes after the other.
    pub(super) fn leave(&mut self, now: Moment) {
        if !self.wants_slot() {
            return;
        }
        let own = self.state.slot().and_then(|slot| self.view()?.entry_of(&slot.session));
        let others =
            self.view().and_then(View::record).is_some_and(|record| record.taken() > self.settings.slots);
        let turn = own.filter(|_| others).and_then(|own| {
            (own.indexes.first()? / self.settings.slots.max(1)).checked_rem(own.beside?.min(MAX_CAS_RIVALS))
        });
        self.start_leaving(LeaveReason::Released);
        self.timers.set(Timer::Retry, turn.filter(|turn| *turn > 0).map(|turn| now + RELEASE_STEP * turn));
    }

    /// Gives up slots that are not held. A slot of an earlier process is looked at first, as a workload may run on it.
    pub(super) fn stop_acquiring(&mut self) {
        if self.state.acquiring().is_some() && self.past.token.is_none() {
            self.start_leaving(LeaveReason::Released);
        }
    }

    fn start_leaving(&mut self, reason: LeaveReason) {
        self.known.prepare_to_leave(&self.watches);
        self.looks = Looks::default();
        self.state.start_leaving(reason);
        self.timers.clear([Timer::Retry, Timer::Look, Timer::Yield, Timer::Again]);
    }

    fn reacquire(&mut self, now: Moment) {
        self.state = State::begin(now);
        self.past = Past::default();
        self.known.yields_over = false;
        self.known.want(Want::Some(Vec::new()));
    }

    /// When [`Self::drive`] has something to do without an answer.
    pub(super) fn timers(&self, watch_grace: Option<Duration>) -> impl Iterator<Item = Moment> {
        let derived = [self.times_out_at(), self.watch_fails_at(watch_grace), self.owed.deadline()];
        derived.into_iter().flatten().chain(self.timers.iter()).chain(self.watches.timers())
    }

    fn times_out_at(&self) -> Option<Moment> {
        let wait = if self.settings.try_once() { Some(TRY_ONCE_TIMEOUT) } else { self.settings.wait };
        let ends = self.asked_at()? + wait?;
        Some(self.timers.at(Timer::Decide).map_or(ends, |decided| decided.max(ends)))
    }

    fn watch_fails_at(&self, grace: Option<Duration>) -> Option<Moment> {
        let since = self.watches.failing_since.filter(|_| self.holds())?;
        grace.map(|grace| since + grace)
    }

    fn stop_watches(&mut self, cx: &mut Context<'_>) {
        self.watch(Vec::new(), cx);
        self.timers.clear([Timer::Look]);
    }

    fn set_finding(&mut self, finding: Finding) {
        if let Some(acquiring) = self.state.acquiring_mut() {
            acquiring.finding = finding;
        }
    }

    fn commit(&mut self, write: Write, cx: &mut Context<'_>) {
        // An earlier process's token belongs to a slot that is found, not to one that is acquired.
        let claims =
            self.settings.is_lock() && matches!(&write.own, Own::Holds(grant) if grant.token.is_some());
        self.past.token = self.past.token.take().filter(|_| claims);
        let ops = write.ops.clone();
        self.in_flight = InFlight::Committing { write, sent: cx.now };
        cx.out.push_back(Command::Commit { parts: vec![Part { name: self.name.clone(), ops }] });
    }
}
