//! Checks of the whole world: after every step, and at the end.

use super::*;
use crate::intervals::OTHERS;
use crate::store_state::StoreState;
use slotkeeper_semaphore::{Contender, LockKeyState};

impl World {
    /// Ends all faults and arrivals. Every participant must then be served, leave, and leave no key.
    pub(crate) fn come_to_rest(&mut self) {
        self.chaos = Chaos::CALM;
        self.open = false;
        for place in 0..self.agents.len() {
            let agent = &mut self.agents[place];
            // What has been delayed by a pause arrives when it would have.
            agent.answered_by = agent.answered_by.max(agent.paused_until);
            (agent.cut_until, agent.slow_until, agent.paused_until) = (self.now, self.now, self.now);
            let settled = self.agents[place].configuration.with_limit(self.game.limit);
            self.reload(place, settled);
        }
        // Messages in flight arrive, and invalid values are fixed.
        self.run(TTL);
        // The limit suffices for every waiter, and matches every configuration.
        self.by = None;
        self.resize(&SEMAPHORES, self.game.limit);
        self.see();
        self.check();
        // A session may have to expire, and failed requests are retried: that takes at most a few TTLs a client.
        let unaware = if self.game.watches == Watches::Never { OTHERS } else { Duration::ZERO };
        let clients = self.agents.len() + self.foreigners.len();
        let end = self.now
            + TTL * 30
            + Duration::from_secs(1200)
            + unaware * u32::try_from(clients).expect("not many");
        while self.now < end && !self.have_all_ended() {
            self.run(TTL);
        }
        // The sessions of killed processes expire.
        self.run(TTL * (self.game.lasts + 2));
        for (place, agent) in self.agents.iter().enumerate() {
            let phase: Vec<_> = agent.keeper.machines().map(|machine| machine.phase()).collect();
            assert!(agent.is_gone(), "seed {}: agent {place} was not served: {phase:?}", self.seed);
        }
        let waiting = self.foreigners.iter().filter(|one| !one.done).count();
        assert_eq!(waiting, 0, "seed {}: other clients were not served", self.seed);
        self.consul.tick(self.now);
        let keys = SEMAPHORES.into_iter().flat_map(|name| self.consul.list(name).pairs);
        let left: Vec<_> = keys.filter(|pair| !pair.key.ends_with("/.lock")).collect();
        assert!(left.is_empty(), "seed {}: contenders are left: {left:?}", self.seed);
        assert!(self.consul.store.sessions().found.is_empty(), "seed {}: sessions are left", self.seed);
        assert!(self.served > 0, "seed {}: no agent was served", self.seed);
        self.assert_next_agent_finds_all_free();
    }

    fn have_all_ended(&self) -> bool {
        self.agents.iter().all(Agent::is_gone) && self.foreigners.iter().all(|one| one.done)
    }

    /// The next holder that stays longer than the prune delay prunes what a crashed holder left in the record.
    fn assert_next_agent_finds_all_free(&mut self) {
        let mut visitor = self.new_agent(0, None);
        visitor.work = visitor.work.max(self.game.prune_delay + TTL / 2);
        let mut wants = visitor.configuration.clone();
        if wants.terms.limit_policy == LimitPolicy::Refuse {
            wants = wants.with_limit(self.game.limit);
        }
        self.agents[0] = visitor;
        self.reload(0, wants.clone());
        self.run(TTL * 5);
        assert!(self.agents[0].is_gone(), "seed {}: the last agent was not served", self.seed);
        if wants.terms.wait.is_some() {
            return;
        }
        for name in &wants.wants {
            let view = self.consul.view(name);
            if self.game.is_of_locks() {
                let owner = view.single().and_then(|single| single.owner.as_ref());
                assert_eq!(owner, None, "seed {}: the lock is still held", self.seed);
                continue;
            }
            let record = view.record().expect("a record");
            assert!(record.holders.is_empty(), "seed {}: {record:?}", self.seed);
            let set = wants.terms.limit_policy == LimitPolicy::Set;
            assert!(!set || record.limit == wants.terms.limit, "seed {}: {record:?}", self.seed);
        }
    }

    /// Passes the changes of the store to the referees.
    pub(super) fn judge(&mut self, changes: &[Change], index: u64) {
        let by = self.by.and_then(|life| self.clients.get(&life));
        let now = self.now;
        let learn = |referee: &mut Referee| referee.learn(changes, by, index, now);
        let concerned: HashSet<_> = self.referees.iter_mut().flat_map(learn).collect();
        for (place, agent) in self.agents.iter().enumerate() {
            if agent.keeper.session().is_some_and(|session| concerned.contains(session)) {
                self.touched.insert(place);
            }
        }
        self.note_promises();
    }

    /// After every step.
    pub(super) fn check(&mut self) {
        let stops = |(_, agent): &(usize, &Agent)| !agent.stopping.is_empty();
        let stopping: Vec<_> = self.agents.iter().enumerate().filter(stops).map(|(place, _)| place).collect();
        self.touched.extend(stopping);
        for place in std::mem::take(&mut self.touched) {
            self.check_agent(place);
        }
        for (which, referee) in self.referees.iter_mut().enumerate() {
            let others = self.foreigners.iter().filter(|one| one.holds);
            let others = if which == 0 { others.count() as u32 } else { 0 };
            let held: u32 = self.occupied.iter().map(|slots| slots[which]).sum();
            referee.check(held + others, self.now);
        }
        self.check_locks();
    }

    /// Checks an agent that has changed, or that has a check with a deadline.
    pub(super) fn check_agent(&mut self, place: usize) {
        let agent = &self.agents[place];
        self.occupied[place] = SEMAPHORES
            .map(|name| if agent.occupies(name, self.now) { agent.configuration.terms.slots } else { 0 });
        self.check_waits(place);
        self.check_traces(place);
    }

    /// Checks a notice of an agent.
    pub(super) fn check_notice(&mut self, place: usize, notice: &Notice) {
        let (seed, agent) = (self.seed, &self.agents[place]);
        let mut referees = self.referees.iter_mut();
        let mut referee = |name: &Name| referees.find(|one| *one.name == **name).expect("a semaphore");
        if let Notice::Acquired { name, session, token, resumed, .. } = notice {
            referee(name).acquired(session.clone(), *token);
            // An agent that ends also resumes the slots of an earlier process: a workload may run on them, and is stopped first.
            // That process may have had another configuration, and held one slot alone.
            let left_behind = *resumed && agent.ending.is_some();
            let all = !agent.configuration.together || agent.is_ready() || left_behind;
            assert!(all, "seed {seed}: {session} acquired {name} without the rest of its acquire group");
            // The notice of a slot that was acquired at that instant comes later.
            let late = agent.ending.is_some_and(|since| since < self.now) && !left_behind;
            assert!(!late, "seed {seed}: {session} acquired {name} while it was ending");
        } else if let Notice::TimedOut { name, .. } = notice {
            let asked_at = *agent.asked_at.get(&**name).expect("a configured semaphore");
            let told_before = self.clients.get(&agent.life).is_some_and(Client::may_have_set);
            let has_set = told_before || asked_at > agent.configured_at;
            referee(name).timed_out(&agent.configuration.of(name), has_set, asked_at, self.now);
        } else if let Notice::LimitSet { .. } = notice {
            let client = self.clients.get_mut(&agent.life).expect("a live client");
            client.sets += 1;
            // A write whose answer is lost may be repeated, after a write of another client.
            let once = client.sets <= client.orders() * agent.configuration.wants.len();
            assert!(once || !self.game.chaos.is_prompt(), "seed {seed}: {client:?}");
        }
    }

    /// No agent waits longer than its configured wait.
    fn check_waits(&self, place: usize) {
        const SLACK: Duration = Duration::from_secs(2);
        if !self.game.chaos.is_prompt() {
            return;
        }
        let agent = &self.agents[place];
        for machine in agent.keeper.machines() {
            let Some(asked_at) = machine.asked_at() else { continue };
            let wait = machine.settings().wait.unwrap_or(Duration::MAX);
            let waited = self.now.since(asked_at.max(agent.configured_at)).saturating_sub(SLACK);
            let (seed, phase) = (self.seed, machine.phase());
            assert!(waited <= wait, "seed {seed}: {phase:?} for more than {waited:?}; the wait is {wait:?}");
        }
    }

    /// A free lock outside its lock-delay is soon acquired by an agent that waits for it.
    fn check_locks(&mut self) {
        if !self.game.is_of_locks() {
            return;
        }
        let delay = self.game.lock_delay;
        let free =
            !matches!(self.referees[0].after.lock(), LockKeyState::Single(single) if single.owner.is_some());
        let waits = |agent: &Agent| agent.phase(SEMAPHORES[0]) == Some(Phase::Waiting);
        let wanted = free && self.agents.iter().any(waits);
        self.lock_idle_since = wanted.then(|| self.lock_idle_since.unwrap_or(self.now));
        let idle = self.lock_idle_since.map(|since| self.now.since(since)).unwrap_or_default();
        let calm = Chaos { reload: self.game.chaos.reload, ..Chaos::CALM } == self.game.chaos;
        let bound = match self.game.chaos.is_prompt() {
            true if calm => TTL / 20,
            // The waiters try about once a second.
            true => delay + TTL / 6,
            false => delay + TTL * 6,
        };
        assert!(idle <= bound, "seed {}: the lock was idle for {idle:?}", self.seed);
    }

    /// Checks the keys of an agent that does not hold all its semaphores.
    fn check_traces(&mut self, place: usize) {
        let (seed, chaos, now) = (self.seed, self.game.chaos, self.now);
        let to_act = if chaos.is_prompt() { TTL / 5 } else { TTL * 6 };
        // An agent that another client wrote into `.lock` has to see that first, at the latest by its next listing. So has an agent
        // whose configuration was different before it was killed.
        let to_see = to_act.max(TTL);
        let to_go = if chaos.spoil > 0.0 { to_see } else { to_act };
        let to_choose = if chaos.spoil + chaos.reload > 0.0 { to_see } else { Duration::ZERO };
        let to_notice = [false, true].map(|holds| self.to_notice(holds));
        let states = || self.referees.iter().map(|referee| (referee.name, &referee.after));
        let agent = &mut self.agents[place];
        let Some(session) = agent.keeper.session().cloned() else { return };
        let has = |state: &StoreState| state.slots_of(&session) > 0;
        let waits = |state: &StoreState| state.contender(&session).is_some_and(Contender::says_waiting);
        let together = agent.configuration.together;

        let gave_up = |name: &str| agent.phase(name) == Some(Phase::TimedOut) && !agent.is_heir;
        let left =
            states().find(|(name, one)| (has(one) || one.contender(&session).is_some()) && gave_up(name));
        assert!(left.is_none(), "seed {seed}: {session} timed out and left {left:?}");

        // An evicted holder keeps its slot until its workload has stopped, and no longer.
        let gone = states().find(|(name, state)| {
            let stops = agent.occupies(name, now) && !agent.holds(name);
            stops && !has(state) && !chaos.deceives()
        });
        assert!(
            gone.is_none(),
            "seed {seed}: the workload of {session} still stops, but the slot is gone: {gone:?}"
        );
        for (name, state) in states() {
            if state.entry_of(&session).is_none_or(|entry| entry.evicted_by.is_none()) {
                agent.evicted_since.remove(name);
                continue;
            }
            let since = *agent.evicted_since.entry(name).or_insert(now);
            let is_held = agent.holds(name);
            // An agent notices a lost watch up to three TTLs later, and another partition may break the next watch.
            let to_watch_anew = if chaos.cut > 0.0 && !is_held { TTL * 3 } else { Duration::ZERO };
            let to_notice = to_notice[usize::from(is_held)] + to_watch_anew;
            let long = now.since(since) > TO_STOP + to_act + to_notice;
            assert!(!long, "seed {seed}: {session} was evicted from {name} and has not left");
        }

        // An acquire group never holds one slot while it waits for another.
        let both = together && states().any(|(_, one)| has(one)) && states().any(|(_, one)| waits(one));
        agent.has_and_waits_since = both.then(|| agent.has_and_waits_since.unwrap_or(now));
        let long = agent.has_and_waits_since.is_some_and(|since| now.since(since) >= to_choose);
        assert!(!long, "seed {seed}: {session} holds one slot of its acquire group and waits for another");

        // An agent that is blocked by one semaphore blocks no other participant. It may keep its contender key at a semaphore whose
        // `.lock` is invalid.
        let is_short = |name: &str| {
            let limit = |record: &Record| record.limit < agent.configuration.terms.slots;
            // A holder that `.lock` does not name any more has to notice that first.
            let wants = agent.configuration.wants.contains(&name)
                && together
                && !agent.draining
                && agent.ending.is_none()
                && !agent.holds(name);
            wants
                && states().any(|(of, state)| of == name && !has(state) && state.record().is_some_and(limit))
        };
        let is_blocked = |name: &str| agent.is_blocked(name) || is_short(name);
        let goes = |name: &str| if is_blocked(name) { chaos.spoil == 0.0 } else { together };
        let lingers = SEMAPHORES.into_iter().any(is_blocked)
            && states().any(|(name, one)| goes(name) && (has(one) || waits(one)));
        agent.lingers_since = lingers.then(|| agent.lingers_since.unwrap_or(now));
        let long = agent.lingers_since.is_some_and(|since| now.since(since) > to_go);
        assert!(!long, "seed {seed}: {session} is blocked and keeps its keys: {:?}", self.referees[0].after);
    }
}
