//! What is checked of the whole: after every step, and at the end.

use super::*;
use crate::simulation::rules;

impl World {
    /// Nothing goes wrong any more and nobody comes any more: all are served, leave, and leave nothing behind.
    pub(in crate::simulation) fn come_to_rest(&mut self) {
        self.chaos = Chaos::CALM;
        self.open = false;
        for place in 0..self.agents.len() {
            self.agents[place].cut_until = self.now;
            let settled = self.agents[place].configuration.with_limit(self.game.limit);
            self.reload(place, settled);
        }
        // What is on its way arrives, and what was spoilt is mended.
        self.run(TTL);
        // Nobody waits for more than there is, or for another limit.
        self.by = None;
        self.resize(self.game.limit);
        self.check();
        // A session may have to run out, and every failed request be tried again: bounded by some TTLs a client. Where the one that
        // watched over all died with the holders, somebody looks within ten minutes.
        self.run(TTL * 30 + Duration::from_secs(1200));
        for (place, agent) in self.agents.iter().enumerate() {
            let phase: Vec<_> = agent.keeper.machines().map(|machine| machine.phase()).collect();
            assert!(agent.keeper.has_ended(), "seed {}: agent {place} was not served: {phase:?}", self.seed);
        }
        let waiting = self.foreigners.iter().filter(|foreigner| !foreigner.done).count();
        assert_eq!(waiting, 0, "seed {}: other clients were not served", self.seed);
        self.consul.store.tick(self.now);
        let keys = SEMAPHORES.into_iter().flat_map(|name| self.consul.list(name).pairs);
        let left: Vec<_> = keys.filter(|pair| !pair.key.ends_with("/.lock")).collect();
        assert!(left.is_empty(), "seed {}: contenders are left: {left:?}", self.seed);
        assert!(self.consul.store.sessions().found.is_empty(), "seed {}: sessions are left", self.seed);
        assert!(self.served > 0, "seed {}: nobody was served", self.seed);
        self.assert_next_one_finds_all_free();
    }

    /// What a crashed holder has left in the record is pruned by the next one that stays for long enough.
    fn assert_next_one_finds_all_free(&mut self) {
        let mut visitor = self.new_agent(0, None, false);
        visitor.work = visitor.work.max(self.game.prune_delay + TTL / 2);
        let mut wants = visitor.configuration.clone();
        if wants.terms.limit_policy == LimitPolicy::Refuse {
            wants = wants.with_limit(self.game.limit);
        }
        self.agents = vec![visitor];
        self.reload(0, wants.clone());
        self.run(TTL * 5);
        assert!(self.agents[0].keeper.has_ended(), "seed {}: the last one was not served", self.seed);
        if wants.terms.wait.is_some() {
            return;
        }
        for name in &wants.wants {
            let view = self.consul.view(name);
            if self.game.is_of_locks() {
                let owner = view.single().and_then(|single| single.owner.as_ref());
                assert_eq!(owner, None, "seed {}: the lock is left", self.seed);
                continue;
            }
            let record = view.record().expect("a record");
            assert!(record.holders.is_empty(), "seed {}: {record:?}", self.seed);
            let set = wants.terms.limit_policy == LimitPolicy::Set;
            assert!(!set || record.limit == wants.terms.limit, "seed {}: {record:?}", self.seed);
        }
    }

    pub(super) fn check(&mut self) {
        let index = self.consul.store.index();
        let changed = std::mem::replace(&mut self.checked, index) != index;
        let by = self.by.and_then(|life| self.clients.get(&life));
        for referee in &mut self.referees {
            let agents = self.agents.iter().filter(|agent| agent.occupies(referee.name, self.now));
            let foreigners = self.foreigners.iter().filter(|one| one.holds && referee.name == SEMAPHORES[0]);
            let slots = agents.map(|agent| agent.configuration.terms.slots);
            let believed = slots.chain(foreigners.map(|_| 1)).sum();
            let view = changed.then(|| self.consul.view(referee.name));
            referee.check(view, index, by, believed, self.now);
        }
        self.check_waits();
        self.check_locks();
        self.check_sessions();
        if changed {
            self.views = SEMAPHORES.map(|name| self.consul.view(name)).into();
        }
        if !self.views.is_empty() {
            // Also where Consul has not changed: some have to do something by then.
            self.check_traces();
        }
    }

    /// What an agent tells the world.
    pub(super) fn check_notice(&mut self, place: usize, notice: &Notice) {
        let (seed, agent) = (self.seed, &self.agents[place]);
        let mut referees = self.referees.iter_mut();
        let mut referee = |name: &Name| referees.find(|one| *one.name == **name).expect("a semaphore");
        if let Notice::Acquired { name, session, token, resumed, .. } = notice {
            referee(name).acquired(session.clone(), *token);
            // What an earlier process held is resumed also by an agent that ends: a workload may run on it, and is
            // stopped first. That process may have been configured otherwise, and have held one of them alone.
            let left_behind = *resumed && agent.ending.is_some();
            let all = !agent.configuration.together || agent.is_ready() || left_behind;
            assert!(all, "seed {seed}: {session} has {name} and not all that it takes together");
            // What it was given at that very instant it is told afterwards.
            let late = agent.ending.is_some_and(|since| since < self.now) && !left_behind;
            assert!(!late, "seed {seed}: {session} was about to go and was given {name}");
        } else if let Notice::SessionTaken { session } = notice {
            // Whoever is the only process of its session is told of no other, whatever an earlier one sent late.
            assert!(self.twins.contains(session), "seed {seed}: {session} was taken, by nobody");
        } else if let Notice::GaveUp { name, .. } = notice {
            let asked_at = *agent.asked_at.get(&**name).expect("one that it wants");
            let told_before = self.clients.get(&agent.life).is_some_and(Client::may_have_set);
            let has_set = told_before || asked_at > agent.configured_at;
            referee(name).gave_up(&agent.configuration.of(name), has_set, asked_at, self.now);
        } else if let Notice::LimitSet { .. } = notice {
            let client = self.clients.get_mut(&agent.life).expect("one that lives");
            client.sets += 1;
            // A write whose answer is lost may be done again, after somebody else's.
            let once = client.sets <= client.orders() * agent.configuration.wants.len();
            assert!(once || !self.game.chaos.is_prompt(), "seed {seed}: {client:?}");
        }
    }

    /// However many answers are lost, a process has one session that it does not know of besides its own, at most: each is
    /// looked for before the next one is created.
    fn check_sessions(&self) {
        // One that another process has resumed is that one's besides.
        for agent in self.agents.iter().filter(|_| self.game.chaos.twin == 0.0) {
            let sessions = self.clients.get(&agent.life).map(|client| &client.sessions);
            let living = sessions.into_iter().flatten().filter(|session| self.consul.has_session(session));
            let (seed, living) = (self.seed, living.count());
            assert!(living <= 2, "seed {seed}: an agent has {living} sessions");
        }
    }

    /// Nobody waits for longer than it said.
    fn check_waits(&self) {
        const SLACK: Duration = Duration::from_secs(2);
        for agent in self.agents.iter().filter(|_| self.game.chaos.is_prompt()) {
            for machine in agent.keeper.machines() {
                let asks =
                    matches!(machine.phase(), Phase::Starting | Phase::Waiting | Phase::Blocked { .. });
                let wait = machine.settings().wait.filter(|_| asks).unwrap_or(Duration::MAX);
                let waited =
                    self.now.since(machine.asked_at().max(agent.configured_at)).saturating_sub(SLACK);
                let (seed, phase) = (self.seed, machine.phase());
                assert!(waited <= wait, "seed {seed}: {phase:?} for {waited:?} and more, of {wait:?}");
            }
        }
    }

    /// A lock that nobody has, and Consul gives to anybody, is soon somebody's who wants it.
    fn check_locks(&mut self) {
        let Primitive::Lock { delay, .. } = self.game.primitive else { return };
        let view = self.consul.view(SEMAPHORES[0]);
        let free = view.single().is_none_or(|single| single.owner.is_none());
        let waits = |agent: &Agent| agent.phase(SEMAPHORES[0]) == Some(&Phase::Waiting);
        let wanted = free && self.agents.iter().any(waits);
        self.lock_idle_since = wanted.then(|| self.lock_idle_since.unwrap_or(self.now));
        let idle = self.lock_idle_since.map(|since| self.now.since(since)).unwrap_or_default();
        let calm = Chaos { reload: self.game.chaos.reload, ..Chaos::CALM } == self.game.chaos;
        let bound = match self.game.chaos.is_prompt() {
            true if calm => TTL / 20,
            // Those who have all come too late to know when the delay ends try now and then.
            true => delay + TTL / 6,
            false => delay + TTL * 6,
        };
        assert!(idle <= bound, "seed {}: the lock was idle for {idle:?}", self.seed);
    }

    /// What those have in Consul who do not hold all that they ask for.
    fn check_traces(&mut self) {
        let views = &self.views;
        let (seed, chaos) = (self.seed, self.game.chaos);
        let to_act = if chaos.is_prompt() { TTL / 5 } else { TTL * 6 };
        // One whom somebody else has written into `.lock` first has to see that, be it by its next listing; and so has
        // one that was configured otherwise before it was killed see what it has.
        let to_see = to_act.max(TTL);
        let to_go = if chaos.spoil > 0.0 { to_see } else { to_act };
        let to_choose = if chaos.spoil + chaos.reload > 0.0 { to_see } else { Duration::ZERO };
        for agent in &mut self.agents {
            let Some(session) = agent.keeper.session() else { continue };
            let named = || SEMAPHORES.into_iter().zip(views);
            let has = |view: &View| rules::slots_of(view, session) > 0;
            let waits = |view: &View| view.contender(session).is_some_and(|one| one.says_waiting());
            let together = agent.configuration.together;

            let gave_up = |name: &str| agent.phase(name) == Some(&Phase::GaveUp) && !agent.is_heir;
            let mut left = named().filter(|(_, view)| has(view) || view.contender(session).is_some());
            let left = left.find(|(name, _)| gave_up(name));
            assert!(left.is_none(), "seed {seed}: {session} gave up and has left {left:?}");

            // Who is told to leave keeps its slot until its workload has stopped, and no longer.
            let gone = named().find(|(name, view)| {
                let stops = agent.occupies(name, self.now) && !agent.believes(name);
                stops && !has(view) && !chaos.deceives()
            });
            assert!(gone.is_none(), "seed {seed}: {session} has yet to stop, without {gone:?}");
            for (name, view) in named() {
                if view.evicted_by(session).is_none() {
                    agent.evicted_since.remove(name);
                    continue;
                }
                let since = *agent.evicted_since.entry(name).or_insert(self.now);
                let long = self.now.since(since) > TO_STOP + to_act;
                assert!(!long, "seed {seed}: {session} was evicted from {name} and is there");
            }

            // Who takes slots together never has one while it stands in line for another.
            let both = together && views.iter().any(has) && views.iter().any(waits);
            agent.has_and_waits_since = both.then(|| agent.has_and_waits_since.unwrap_or(self.now));
            let long = agent.has_and_waits_since.is_some_and(|since| self.now.since(since) >= to_choose);
            assert!(!long, "seed {seed}: {session} has one and waits for another");

            // Where one semaphore keeps it out, it stands in nobody's way. Of what is no semaphore it may keep its
            // place.
            let kept_out = |name: &str| agent.is_kept_out(name);
            let goes = |name: &str| if kept_out(name) { chaos.spoil == 0.0 } else { together };
            let lingers = SEMAPHORES.into_iter().any(kept_out)
                && named().any(|(name, view)| goes(name) && (has(view) || waits(view)));
            agent.lingers_since = lingers.then(|| agent.lingers_since.unwrap_or(self.now));
            let long = agent.lingers_since.is_some_and(|since| self.now.since(since) > to_go);
            assert!(!long, "seed {seed}: {session} is kept out and stands in the way: {views:?}");
        }
    }
}
