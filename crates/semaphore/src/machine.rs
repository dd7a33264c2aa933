//! The state machine of one semaphore: observations go in, commands come out.
//!
//! A slot that is held is never concluded from a write that was sent. It is read from the view, which a committed transaction
//! updates. So a lost answer, a restart and an operator's edit are all handled the same way: read again, plan again.

use crate::timing::{
    CAS_RETRY_WAIT, LATE_WRITE, MAX_LIST_INTERVAL, REFRESH_PER_PARTICIPANT, TRY_ONCE_TIMEOUT,
};
use std::collections::BTreeMap;
use std::time::Duration;

use super::backoff::{Backoff, jittered};
use super::command::{Command, FailureKind, Name, Op};
use super::failing::Failing;
use super::notice::LossReason;
use super::plan::{self, Refresh, Role, Write};
use super::settings::{LimitPolicy, Settings};
use super::single::SingleKeyLock;
use super::view::View;
use super::{Moment, SessionId};

mod answers;
mod committed;
mod context;
mod decide;
mod evicted;
mod failures;
mod membership;
mod offers;
mod reported;
mod requests;
mod rounds;
mod timers;
mod watches;

pub(super) use context::Context;
use failures::Failures;
pub use membership::Phase;
use membership::{Acquiring, EndReason, Finding, Intent, LeaveReason, Slot, State, WaitCause};
use offers::Offers;
use reported::Reported;
use timers::{Timer, Timers};
use watches::Watches;

/// The one request under way, besides the watches.
#[derive(Clone, Debug)]
enum InFlight {
    None,
    Listing,
    /// `.lock` is being read.
    ReadingLock {
        /// The index of the latest change that was known before.
        after: u64,
        /// Whether the read proves anything.
        consistent: bool,
    },
    /// The own contender key and `.lock` are being read, and the contender key of the client that a waiter relies on.
    ReadingKeys {
        /// The index of the latest change that was known before.
        after: u64,
        relies_on: Option<SessionId>,
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

/// One semaphore of one agent.
#[derive(Clone, Debug)]
pub struct Machine {
    name: Name,
    settings: Settings,
    state: State,
    view: Option<View>,
    /// What must be read again, consistently, before anything is decided by the view.
    refresh: Option<Refresh>,
    /// The view is that of a consistent read or an own commit, which a loss can be concluded from.
    proved: bool,
    in_flight: InFlight,
    timers: Timers,
    watches: Watches,
    watch_failing_since: Option<Moment>,
    /// The role of the last plan, and since when the client has had it.
    last_role: (Role, Moment),
    free_since: Option<Moment>,
    offers: Offers,
    /// The index of the contender key at which the client enqueued.
    arrival: Option<u64>,
    /// The last check-and-set that was to acquire the slots came too late.
    lost_cas_race: bool,
    /// The index of the last `.lock` that was seen to be attended when it was read.
    trusted: Option<u64>,
    /// How many times the client, as a waiter behind others, has read the keys that it relies on.
    looks: u32,
    /// The last transaction listed the keys: the next plan follows at once.
    follows_up: bool,
    /// The own contender and `.lock` have just been read.
    confirmed: bool,
    dead_since: BTreeMap<SessionId, Moment>,
    /// Consul refused the free lock, which is in lock-delay: when to try again.
    delayed_until: Option<Moment>,
    /// The configured limit is still to be written (policy `set`).
    set_limit: bool,
    reported: Reported,
    /// When everything was listed last.
    listed_at: Option<Moment>,
    /// The token of a slot that an earlier process left in `.lock`.
    token: Option<u64>,
    /// The operator that evicted the slot, until it is acquired again.
    evicted_by: Option<String>,
    /// The token of the lost slot, while its workload is being stopped and no other client can acquire it: the slot was
    /// evicted, or its lease has expired.
    stopping: Option<u64>,
    check_session: bool,
    /// The session was looked at since the contender was seen to be gone, and lives.
    session_lives: bool,
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
            view: None,
            refresh: None,
            proved: false,
            in_flight: InFlight::None,
            timers: Timers::default(),
            watches: Watches::default(),
            watch_failing_since: None,
            last_role: (Role::default(), now),
            free_since: None,
            offers: Offers::default(),
            arrival: None,
            lost_cas_race: false,
            trusted: None,
            looks: 0,
            follows_up: false,
            confirmed: false,
            dead_since: BTreeMap::new(),
            delayed_until: None,
            reported: Reported::default(),
            listed_at: None,
            token,
            evicted_by: None,
            stopping: None,
            check_session: false,
            session_lives: false,
            failures: Failures::default(),
            contention: Backoff::new(CAS_RETRY_WAIT.0, CAS_RETRY_WAIT.1),
        }
    }

    /// A machine that lists the keys before it enqueues.
    pub(super) fn that_lists_first(self) -> Self {
        Self { refresh: Some(Refresh::Prefix), ..self }
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
        self.view.as_ref()
    }

    /// When everything under the prefix was looked at last. Single keys may be known as they were later.
    pub fn listed_at(&self) -> Option<Moment> {
        self.listed_at.filter(|_| self.view.is_some())
    }

    /// The single-key lock as it was last seen, if this is a lock and its key exists.
    pub fn single(&self) -> Option<&SingleKeyLock> {
        self.view.as_ref().and_then(View::single)
    }

    /// Whether Consul refused the free lock, which is in lock-delay.
    pub fn is_delayed(&self) -> bool {
        self.delayed_until.is_some()
    }

    /// What fails at present, if anything does: what was tried, on what, what came back.
    pub fn failure(&self) -> Option<&str> {
        self.failures.current().map(|failing| failing.failure.text.as_str())
    }

    /// The same, while anything is to be asked.
    pub fn failing(&self) -> Option<&Failing> {
        self.failures.current().filter(|_| self.intent() != Intent::Rest)
    }

    /// Since when the slot is being asked for; `None` where it is held, or not asked for.
    pub fn asked_at(&self) -> Option<Moment> {
        self.state.acquiring().map(|acquiring| acquiring.since)
    }

    /// Whether nothing of it is in Consul any more and nothing is asked for.
    pub fn is_gone(&self) -> bool {
        self.intent() == Intent::Rest && matches!(self.in_flight, InFlight::None)
    }

    /// Whether the session ought to be proved alive now; asked once.
    pub(super) fn take_check_session(&mut self) -> bool {
        std::mem::take(&mut self.check_session)
    }

    /// Takes over changed settings. The prefix and the slots stay: another prefix is another semaphore.
    pub(super) fn reconfigure(&mut self, settings: Settings, now: Moment) {
        let sets = settings.limit_policy == LimitPolicy::Set;
        let anew = self.settings.limit_policy != LimitPolicy::Set || settings.limit != self.settings.limit;
        self.set_limit = sets && (anew || self.set_limit);
        self.reported.forget_limit();
        if matches!(self.state, State::Ended(EndReason::TimedOut)) && settings.wait != self.settings.wait {
            self.reacquire(now);
        }
        if self.arrival.is_some() && settings.wait != self.settings.wait {
            // A shorter wait has its last look earlier.
            self.timers.clear(Timer::Read);
        }
        self.settings = settings;
        // The same view may now lead elsewhere.
        self.timers.clear(Timer::Tidy);
    }

    /// A machine that removes what an earlier process left under a prefix that is not configured any more.
    pub(super) fn clearing(name: Name, settings: Settings, now: Moment) -> Self {
        let mut machine = Self::new(name, settings, None, now);
        machine.state = State::leaving();
        machine.timers.set(Timer::LookAgain, now + LATE_WRITE);
        machine
    }

    /// Whether it has yet to look again for what an earlier process left.
    pub(super) fn looks_again(&self) -> bool {
        self.timers.is_set(Timer::LookAgain)
    }

    /// Cancels the second look: another machine of the same prefix takes it over, or the session ends.
    pub(super) fn look_no_more(&mut self) {
        self.timers.clear(Timer::LookAgain);
    }

    /// Leaves everything as it is: the session is about to be destroyed.
    pub(super) fn abandon(&mut self, cx: &mut Context<'_>) {
        self.stop_watches(cx);
        self.state = State::Ended(EndReason::Abandoned);
        self.in_flight = InFlight::None;
    }

    /// Lists the keys soon, for a reader of the status. The pause grows with the participants and with the agent's semaphores.
    /// So all agents together list a semaphore about twice a second, and an agent lists no more often than that.
    pub(super) fn refresh_soon(&mut self, semaphores: u32, now: Moment) {
        let Some(view) = self.view.as_ref().filter(|_| self.intent() == Intent::Hold) else { return };
        let holders = view.record().map_or(0, super::Record::taken);
        let known = u32::try_from(view.contenders.len()).unwrap_or(u32::MAX).max(view.waiting()).max(holders);
        let begun = self.state.slot().map(|slot| slot.since).or(self.asked_at());
        let since = self.listed_at.or(begun).unwrap_or(now);
        let pace = REFRESH_PER_PARTICIPANT
            .saturating_mul(known.saturating_mul(semaphores))
            .clamp(REFRESH_PER_PARTICIPANT, MAX_LIST_INTERVAL);
        if !self.settings.is_lock() {
            self.timers.set_once(Timer::Refresh, || (since + pace).max(now));
        }
    }

    /// Forgets the other participants: another machine of this agent knows them. Beside foreign clients each machine has to
    /// know them itself.
    pub(super) fn forget_others(&mut self, session: &SessionId) {
        let rests = matches!(self.in_flight, InFlight::None) && self.refresh.is_none() && !self.follows_up;
        let quiet = rests && self.holds() && !self.settings.is_lock();
        if let Some(view) =
            self.view.as_mut().filter(|view| quiet && !view.has_foreign() && !view.is_filtered())
        {
            view.forget_others(session);
            self.listed_at = None;
        }
    }

    /// Whether slots are wanted, at once or after a release.
    pub(super) fn wants_slot(&self) -> bool {
        matches!(self.intent(), Intent::Hold | Intent::Leave(LeaveReason::Requeue))
    }

    /// Whether the slots are held and the agent was notified.
    pub fn holds(&self) -> bool {
        matches!(self.state, State::Held(_))
    }

    fn intent(&self) -> Intent {
        self.state.intent()
    }

    /// Whether the slots are there, even if the agent is not notified because other members of the acquire group lack theirs.
    pub(super) fn has(&self) -> bool {
        self.holds() || matches!(self.state.finding(), Finding::Slots)
    }

    /// Whether the session has slots that are to stay, reported or not.
    pub(super) fn has_slots(&self) -> bool {
        self.state.slot().is_some()
            || matches!(self.state.finding(), Finding::Slots | Finding::SlotsUnproved)
            || self.token.is_some()
    }

    /// Whether it is known for sure to hold nothing.
    pub(super) fn holds_nothing(&self) -> bool {
        self.state.waits()
            && !matches!(self.state.finding(), Finding::Slots | Finding::SlotsUnproved)
            && self.refresh.is_none()
            && matches!(self.in_flight, InFlight::None)
    }

    /// Whether the machine is blocked.
    pub(super) fn is_blocked(&self) -> bool {
        self.state.acquiring().is_some_and(|acquiring| matches!(acquiring.cause, WaitCause::Fault { .. }))
    }

    /// Whether the client holds or waits, and does not leave.
    pub(super) fn is_queued_or_holding(&self) -> bool {
        self.intent() == Intent::Hold && (self.has() || self.arrival.is_some())
    }

    /// The index of the contender key at which the client enqueued.
    pub(super) fn arrival(&self) -> Option<u64> {
        self.arrival
    }

    pub(super) fn has_proposal(&self) -> bool {
        matches!(self.state.finding(), Finding::Proposal(_))
    }

    /// Takes the offer up: these steps are on their way.
    pub(super) fn take_proposal(&mut self, now: Moment) -> Option<Vec<Op>> {
        let finding = &mut self.state.acquiring_mut()?.finding;
        let Finding::Proposal(write) = std::mem::replace(finding, Finding::Nothing) else { return None };
        let ops = write.ops.clone();
        self.token = None;
        self.in_flight = InFlight::Committing { write, sent: now };
        Some(ops)
    }

    /// How many steps of a transaction under way are its own.
    pub(super) fn steps_under_way(&self) -> usize {
        if let InFlight::Committing { write, .. } = &self.in_flight { write.ops.len() } else { 0 }
    }

    /// Holds from now on what was found.
    pub(super) fn begin_holding(&mut self, cx: &mut Context<'_>) {
        if !matches!(self.state.finding(), Finding::Slots) {
            return;
        }
        if let (Some(session), Some(view)) = (cx.session, self.view.take()) {
            self.hold(&view, session, cx);
            self.view = Some(view);
        }
    }

    /// The token of a slot that an earlier process held, and that was not looked at yet.
    pub(super) fn remembered(&self) -> Option<u64> {
        self.token
    }

    /// Leaves, in whatever state.
    pub(super) fn leave(&mut self) {
        if self.wants_slot() {
            self.start_leaving(LeaveReason::Released);
        }
    }

    /// Gives up slots that are not held. A slot of an earlier process is looked at first, as a workload may run on it.
    pub(super) fn stop_acquiring(&mut self) {
        if self.state.acquiring().is_some() && self.token.is_none() {
            self.start_leaving(LeaveReason::Released);
        }
    }

    fn start_leaving(&mut self, reason: LeaveReason) {
        if self.holds() && !self.is_alone() {
            // Only `.lock` names the next waiters. The last foreign contender's offers are deleted with its key.
            let offered = self.view.as_ref().is_some_and(View::has_stored_offers);
            let refresh = if offered { Refresh::Prefix } else { Refresh::LockKey };
            self.refresh = self.refresh.or(Some(refresh));
        } else if self.arrival.is_some() && self.must_list_to_leave() {
            self.refresh = Some(Refresh::Prefix);
        }
        self.state.start_leaving(reason);
        self.timers.clear(Timer::Retry);
        // The watches go on: that of `.lock` shows at once when another client was faster.
        self.timers.clear(Timer::Read);
    }

    /// Whether others may wait for what it does there besides waiting.
    fn must_list_to_leave(&self) -> bool {
        let own = self.arrival.and_then(|arrival| {
            let view = self.view.as_ref()?;
            let own = view.contenders.iter().find(|one| one.create_index == arrival)?;
            Some(plan::must_list_to_leave(view, &own.session, &self.settings))
        });
        own.unwrap_or_default()
    }

    /// Whether no other client took part at the last listing.
    fn is_alone(&self) -> bool {
        let Some(view) = self.view.as_ref().filter(|view| view.is_complete()) else { return false };
        let others = |record: &super::Record| {
            record.taken() > self.settings.slots || record.has_lookout || !record.next.is_empty()
        };
        self.settings.is_lock() || view.contenders.len() == 1 && !view.record().is_some_and(others)
    }

    fn reacquire(&mut self, now: Moment) {
        self.state = State::begin(now);
        self.evicted_by = None;
        self.token = None;
        // A waiter that enqueued meanwhile changed no watched key, and is ahead now.
        self.refresh = Some(Refresh::Prefix);
    }

    /// When [`Self::drive`] has something to do without an answer.
    pub(super) fn timers(&self, watch_grace: Option<Duration>) -> impl Iterator<Item = Moment> {
        let derived = [self.times_out_at(), self.watch_fails_at(watch_grace)];
        derived.into_iter().flatten().chain(self.timers.iter()).chain(self.watches.timers())
    }

    fn times_out_at(&self) -> Option<Moment> {
        let wait = if self.settings.try_once() { Some(TRY_ONCE_TIMEOUT) } else { self.settings.wait };
        let ends = self.asked_at()? + wait?;
        Some(self.timers.at(Timer::Decide).map_or(ends, |decided| decided.max(ends)))
    }

    fn watch_fails_at(&self, grace: Option<Duration>) -> Option<Moment> {
        let since = self.watch_failing_since.filter(|_| self.holds())?;
        grace.map(|grace| since + grace)
    }

    /// Does whatever the present state asks for.
    pub(super) fn drive(&mut self, cx: &mut Context<'_>) {
        if self.intent() == Intent::Rest && self.timers.is_due(Timer::LookAgain, cx.now) {
            self.timers.clear(Timer::LookAgain);
            self.state = State::leaving();
            self.refresh = Some(Refresh::Prefix);
            self.proved = false;
        }
        self.set_finding(Finding::Nothing);
        if self.holds() {
            if !cx.lease_is_valid() {
                self.lose(LossReason::LeaseExpired, cx);
            } else if self.watch_fails_at(cx.watch_grace).is_some_and(|at| at <= cx.now) {
                self.lose(LossReason::WatchFailed, cx);
            }
        }
        // A wait ends in time although a look is under way.
        let looks = matches!(self.in_flight, InFlight::ReadingKeys { .. });
        if !looks && !matches!(self.in_flight, InFlight::None) {
            return;
        }
        if self.times_out_at().is_some_and(|at| at <= cx.now) {
            self.time_out(cx);
        }
        if looks {
            return;
        }
        let session = match self.intent() {
            Intent::Hold | Intent::Rest => cx.session,
            Intent::Leave(_) => cx.remembered,
        };
        let Some(session) = session.cloned() else {
            return self.without_session(cx);
        };
        if self.timers.at(Timer::Retry).is_some_and(|at| cx.now < at) {
            return;
        }
        self.timers.clear(Timer::Retry);
        if self.timers.is_due(Timer::Refresh, cx.now) && self.intent() == Intent::Hold {
            self.refresh = Some(Refresh::Prefix);
        }
        match self.intent() {
            Intent::Rest => {}
            // What is left in `.lock` keeps others out until the workload has ended.
            Intent::Leave(_) if cx.occupied || self.withheld().is_some() => {}
            // A lease that ran out says that nothing is known; all waits until it is renewed, and begins with a read.
            Intent::Hold if !cx.lease_is_valid() => self.refresh = Some(Refresh::Prefix),
            Intent::Hold | Intent::Leave(_) => self.decide(&session, cx),
        }
    }

    fn set_finding(&mut self, finding: Finding) {
        if let Some(acquiring) = self.state.acquiring_mut() {
            acquiring.finding = finding;
        }
    }

    fn stop_watches(&mut self, cx: &mut Context<'_>) {
        self.watches.want(Vec::new(), Duration::ZERO, &self.name, cx);
        self.watch_failing_since = None;
        self.look_anew();
    }
}
