//! The core of one agent: its session, and a machine for each semaphore.

use std::collections::{BTreeSet, VecDeque};

use super::command::{Command, Commit, Event, Failure, Name, Part};
use super::failing::Failing;
use super::group::{AcquireGroup, GroupAction, Machines};
use super::machine::{Agent, Context, Machine};
use super::notice::{LossReason, Notice};
use super::session::{Change, Session, Turn};
use super::settings::Settings;
use super::{Identity, Lease, Moment, SessionId};

mod start;

pub use start::{Resume, Start};

/// The core of one agent: it is passed [`Event`]s and returns [`Command`]s. Time moves only by the `now` that it is passed.
///
/// Execute all commands of [`Keeper::next_command`] after each call, report each answer by [`Keeper::handle`], and call
/// [`Keeper::tick`] at [`Keeper::deadline`].
#[derive(Clone, Debug)]
pub struct Keeper {
    agent: Agent,
    machines: Machines,
    group: AcquireGroup,
    /// Semaphores whose slots a workload uses: these are not released.
    occupied: BTreeSet<Name>,
    /// Taken out of the configuration, and to be forgotten once gone.
    removed: Vec<Name>,
    draining: bool,
    settled_at: Moment,
    rng: fastrand::Rng,
    out: VecDeque<Command>,
}

impl Keeper {
    /// A keeper that begins to ask for the semaphores. What an earlier process left under other prefixes is cleared
    /// away, while its session lives.
    pub fn new(start: Start, now: Moment) -> Self {
        let left = start.resume.map(|Resume { session, prefixes, locks }| (Some(session), prefixes, locks));
        let (session, mut prefixes, mut locks) = left.unwrap_or_default();
        let mut machines = Machines::new();
        for (name, settings) in start.semaphores {
            let left = if settings.is_lock() { &mut locks } else { &mut prefixes };
            let token = left.remove(&settings.prefix).flatten();
            let machine = Machine::new(name.clone(), settings, token, now);
            machines.entry(name).or_insert_with(|| Box::new(machine));
        }
        let prefixes = prefixes.into_keys().map(Settings::of_prefix);
        // What became of the key of a lock that is left has been said by a configuration that is gone: it is left there.
        let locks = locks.into_keys().map(|key| Settings::of_lock(key, true));
        let mut removed = Vec::new();
        for left in prefixes.chain(locks) {
            // No configured name has a blank.
            let what = if left.is_lock() { "lock left behind" } else { "left behind" };
            let name = Name::from(format!("{what}: {}", left.prefix));
            removed.push(name.clone());
            let machine = Machine::clearing(name.clone(), left, now);
            machines.entry(name).or_insert_with(|| Box::new(machine));
        }
        let agent = Agent {
            session: Session::new(start.ttl, session, now),
            who: start.who,
            wall: start.wall,
            watch_grace: start.watch_grace,
            held: Vec::new(),
            ending: false,
            reached: false,
        };
        let mut keeper = Self {
            agent,
            machines,
            group: AcquireGroup::of(start.together),
            occupied: BTreeSet::new(),
            removed,
            draining: false,
            settled_at: now,
            rng: fastrand::Rng::with_seed(start.seed),
            out: VecDeque::new(),
        };
        keeper.tick(now);
        keeper
    }

    /// Begins to acquire one more semaphore. A name that is there already is left as it is.
    pub fn add(&mut self, name: Name, settings: Settings, now: Moment) {
        // The session may have been in that queue before, and be named there still.
        let was_there = self.agent.session.id().is_some();
        self.machines.entry(name).or_insert_with_key(|name| {
            let machine = Machine::new(name.clone(), settings, None, now);
            Box::new(if was_there { machine.that_lists_first() } else { machine })
        });
        self.tick(now);
    }

    /// Takes over changed settings; prefix and slots must be the same.
    pub fn reconfigure(&mut self, name: &Name, settings: Settings, now: Moment) {
        if let Some(machine) = self.machines.get_mut(name) {
            machine.reconfigure(settings, now);
        }
        self.tick(now);
    }

    /// Releases the slot and forgets the semaphore; [`Notice::Removed`] reports when. The semaphore leaves its acquire group,
    /// also where it is added again.
    pub fn remove(&mut self, name: &Name, now: Moment) {
        self.group.forget(name);
        if !self.removed.contains(name) {
            self.removed.push(name.clone());
        }
        self.with(name, now, |machine, _| machine.leave(now));
        self.tick(now);
    }

    /// Sets the semaphores whose slots a workload uses. A slot can be lost meanwhile, but none is released before the workload has
    /// ended: the next holder would run beside it. A lost slot is not acquired again.
    pub fn set_occupied(&mut self, names: BTreeSet<Name>, now: Moment) {
        self.occupied = names;
        self.tick(now);
    }

    /// Counts the slots on which a workload runs as lost: the workload is being stopped because no renewal was answered.
    pub fn lose_occupied(&mut self, now: Moment) {
        let names = self.occupied.iter().cloned().collect();
        self.each(names, now, |machine, cx| machine.lose(LossReason::LeaseExpired, cx));
        self.tick(now);
    }

    /// The workload on a slot that was evicted has stopped, or has had its time: the slot is released.
    pub fn workload_stopped(&mut self, name: &Name, now: Moment) {
        self.with(name, now, |machine, _| machine.workload_stopped());
        self.tick(now);
    }

    /// Prepares a drain: slots that are held stay held until the workload has stopped, and no slot is acquired.
    pub fn stop_acquiring(&mut self, now: Moment) {
        self.agent.ending = true;
        self.each(self.names(), now, |machine, _| machine.stop_acquiring());
        self.tick(now);
    }

    /// Releases all slots, then destroys the session; [`Keeper::has_ended`] says when that is done.
    pub fn drain(&mut self, now: Moment) {
        (self.agent.ending, self.draining) = (true, true);
        self.each(self.names(), now, |machine, _| {
            machine.leave(now);
            machine.workload_stopped();
        });
        self.tick(now);
    }

    /// Ends a drain that does not complete: a slot that could not be released stays in `.lock`, but the session is destroyed,
    /// so that other clients can prune it at once.
    pub fn abandon(&mut self, now: Moment) {
        self.each(self.names(), now, Machine::abandon);
        self.tick(now);
    }

    /// Whether a drain is complete.
    pub fn has_ended(&self) -> bool {
        self.agent.session.has_ended()
    }

    /// Consul is asked at another address from here on, which may belong to another cluster: nothing counts that was learnt
    /// before, and a new session is made there.
    pub fn change_cluster(&mut self, now: Moment) {
        self.each(self.names(), now, |machine, cx| machine.session_gone(LossReason::SessionGone, cx));
        self.agent.session.leave(now);
        self.tick(now);
    }

    /// Handles an answer of Consul.
    pub fn handle(&mut self, event: Event, now: Moment) {
        self.agent.reached |= event.is_answer();
        let mut turn = Turn { now, rng: &mut self.rng, out: &mut self.out };
        match event {
            Event::SessionCreated(answer) => {
                let change = self.agent.session.created(answer, &mut turn);
                self.session_changed(&change, now);
            }
            Event::SessionRenewed(sent, answer) => {
                let change = self.agent.session.renewed(sent, answer, &mut turn);
                self.session_changed(&change, now);
            }
            Event::SessionDestroyed(answer) => self.agent.session.destroyed(answer, &mut turn),
            Event::Listed(name, answer) => self.with(&name, now, |one, cx| one.listed(answer, cx)),
            Event::LockRead(name, answer) => self.with(&name, now, |one, cx| one.lock_read(answer, cx)),
            Event::KeysRead(name, answer) => self.with(&name, now, |one, cx| one.keys_read(answer, cx)),
            Event::Watched(name, key, answer) => {
                self.with(&name, now, |one, cx| one.watched(&key, answer, cx));
            }
            Event::Committed(names, answer) => self.committed(&names, &answer, now),
        }
        self.tick(now);
    }

    /// When [`Keeper::tick`] is wanted next.
    pub fn deadline(&self) -> Option<Moment> {
        let machines = self.machines.values().flat_map(|machine| machine.timers(self.agent.watch_grace));
        let lease = self.agent.session.lease().map(Lease::ends);
        let timers =
            machines.chain(lease).chain(self.agent.session.deadline(self.wants_session(), self.has_slots()));
        // What was due by then has been looked at; if it was not done, it waits for an answer and not for the clock.
        timers.filter(|at| *at > self.settled_at).min()
    }

    /// The next command to execute; `None` until the next event or tick.
    pub fn next_command(&mut self) -> Option<Command> {
        self.out.pop_front()
    }

    /// Lists all keys soon, so that a status is current.
    pub fn refresh_soon(&mut self, now: Moment) {
        let semaphores = u32::try_from(self.machines.len()).unwrap_or(u32::MAX);
        for machine in self.machines.values_mut() {
            machine.refresh_soon(semaphores, now);
        }
        self.tick(now);
    }

    /// Forgets other participants, which another keeper of this agent knows. What holding the slots needs stays.
    pub fn forget_others(&mut self) {
        let Some(session) = self.agent.session.id() else { return };
        for machine in self.machines.values_mut() {
            machine.forget_others(session);
        }
    }

    /// The semaphores.
    pub fn machines(&self) -> impl Iterator<Item = &Machine> {
        self.machines.values().map(Box::as_ref)
    }

    /// The machine of one semaphore.
    pub fn machine(&self, name: &str) -> Option<&Machine> {
        self.machines.get(name).map(Box::as_ref)
    }

    /// The session, once it is known to live.
    pub fn session(&self) -> Option<&SessionId> {
        self.agent.session.id()
    }

    /// The identity in its contender keys.
    pub fn who(&self) -> &Identity {
        &self.agent.who
    }

    /// Whether Consul has answered anything yet.
    pub fn has_reached_consul(&self) -> bool {
        self.agent.reached
    }

    /// The other semaphores of the acquire group for which this one waits, although its own slot is free.
    pub fn blocking_members(&self, name: &Name) -> Vec<&Name> {
        self.group.blocking_members(name, &self.machines)
    }

    /// The failure of the session's last request: what was tried, on what, what came back.
    pub fn failure(&self) -> Option<&str> {
        self.agent.session.failing().map(|failing| failing.failure.text.as_str())
    }

    /// What fails at present about the session, if anything does.
    pub fn failing(&self) -> Option<&Failing> {
        self.agent.session.failing()
    }

    /// All that fails at present, of the session and of each semaphore.
    pub fn failures(&self) -> impl Iterator<Item = &Failure> {
        let wants_slot = self.wants_session() || !self.agent.session.is_none();
        let session = self.agent.session.failing().filter(|_| wants_slot);
        let failing = session.into_iter().chain(self.machines().filter_map(Machine::failing));
        failing.map(|failing| &failing.failure)
    }

    /// The session's lease, valid or run out.
    pub fn lease(&self) -> Option<Lease> {
        self.agent.session.lease()
    }

    /// Begins chance anew, so that what comes next follows from the rest of the state alone.
    /// For model checks.
    #[doc(hidden)]
    pub fn reseed(&mut self) {
        self.rng = fastrand::Rng::with_seed(0);
    }

    /// Passes each semaphore of a transaction its part of the answer.
    fn committed(&mut self, names: &[Name], answer: &Result<Commit, Failure>, now: Moment) {
        let mut before = 0;
        for name in names {
            let part = before..before + self.machine(name).map_or(0, Machine::steps_under_way);
            let mut own = answer.clone();
            if let Ok(Commit::Stale { steps } | Commit::Delayed { steps }) = &mut own {
                steps.retain(|step| part.contains(step));
                steps.iter_mut().for_each(|step| *step -= part.start);
            }
            before = part.end;
            self.with(name, now, |machine, cx| machine.committed(own, cx));
        }
    }

    fn act_together(&mut self, now: Moment) {
        match self.group.next_action(&self.machines) {
            GroupAction::None => {}
            GroupAction::Commit(names) => {
                let part = |name: Name| {
                    let ops = self.machines.get_mut(&name)?.take_proposal(now)?;
                    Some(Part { name, ops })
                };
                let parts = names.into_iter().filter_map(part).collect();
                self.out.push_back(Command::Commit { parts });
            }
            GroupAction::Begin(names) => self.each(names, now, Machine::begin_holding),
            GroupAction::Release(names) => self.each(names, now, Machine::release_with_group),
        }
    }

    fn names(&self) -> Vec<Name> {
        self.machines.keys().cloned().collect()
    }

    fn session_changed(&mut self, change: &Change, now: Moment) {
        self.each(self.names(), now, |machine, cx| match change {
            Change::Gone => machine.session_gone(LossReason::SessionGone, cx),
            Change::Checked => machine.session_checked(),
            Change::None => {}
        });
    }

    /// A semaphore that is added again takes over what its clearing machine finds.
    fn leave_to_others(&mut self, now: Moment) {
        let prefix_of = |one: &Machine| one.settings().prefix.clone();
        let has_other = |one: &&Machine| {
            self.machines().any(|other| other.name() != one.name() && prefix_of(other) == prefix_of(one))
        };
        let looks = self.machines().filter(|one| one.looks_again()).filter(has_other);
        let names = looks.map(|one| one.name().clone()).collect();
        self.each(names, now, |machine, _| machine.look_no_more());
    }

    /// Does what is due at `now`, and lets everything act on what has become of the state.
    pub fn tick(&mut self, now: Moment) {
        self.settled_at = now;
        self.leave_to_others(now);
        self.group.look(&self.machines);
        let held = self.machines.values().filter(|machine| machine.holds());
        self.agent.held = held.map(|machine| machine.settings().prefix.clone()).collect();
        self.each(self.names(), now, Machine::drive);
        self.act_together(now);
        let (machines, out, draining) = (&mut self.machines, &mut self.out, self.draining);
        self.removed.retain(|name| {
            let is_gone = |one: &Machine| one.is_gone() && !one.owes() && (draining || !one.looks_again());
            let gone = machines.get(name).is_none_or(|one| is_gone(one));
            if gone && machines.remove(name).is_some() {
                out.push_back(Command::Notify(Notice::Removed { name: name.clone() }));
            }
            !gone
        });
        // A drain needs no new session. It lasts until the slots that were offered meanwhile are in use.
        let mut machines = self.machines.values();
        if self.draining && (self.agent.session.is_none() || machines.all(|one| one.is_gone() && !one.owes()))
        {
            self.agent.session.end(now);
        }
        let (wanted, holding) = (self.wants_session(), self.has_slots());
        self.agent.session.act(wanted, holding, &mut Turn { now, rng: &mut self.rng, out: &mut self.out });
    }

    /// Whether there is anything that would hang on a new session. What is only to be left has nothing in Consul once the
    /// old one is gone.
    fn wants_session(&self) -> bool {
        self.machines().any(Machine::wants_slot)
    }

    /// Whether the session has slots that are to last: then it is renewed as often as a holder's.
    fn has_slots(&self) -> bool {
        self.machines().any(Machine::has_slots)
    }

    fn each(&mut self, names: Vec<Name>, now: Moment, mut act: impl FnMut(&mut Machine, &mut Context<'_>)) {
        for name in names {
            self.with(&name, now, &mut act);
        }
    }

    fn with(&mut self, name: &Name, now: Moment, act: impl FnOnce(&mut Machine, &mut Context<'_>)) {
        let Some(machine) = self.machines.get_mut(name) else { return };
        let mut cx = Context {
            agent: &self.agent,
            session: self.agent.session.id(),
            remembered: self.agent.session.remembered(),
            now,
            together: self.group.of_member(name),
            occupied: self.occupied.contains(name),
            checks_session: false,
            rng: &mut self.rng,
            out: &mut self.out,
        };
        act(machine, &mut cx);
        if cx.checks_session {
            self.agent.session.check(now);
        }
    }
}

#[cfg(test)]
mod tests;
