//! What is checked of the whole: after every step, and at the end.

use super::*;
use crate::intervals::OTHERS;
use crate::store_state::StoreState;
use slotkeeper_semaphore::{Contender, LockKeyState};

impl World {
    /// Nothing goes wrong any more and nobody comes any more: all are served, leave, and leave nothing behind.
    pub(crate) fn come_to_rest(&mut self) {
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
        self.see();
        self.check();
        // A session may have to run out, and every failed request be tried again: bounded by some TTLs a client.
        let unaware = if self.game.watches == Watches::Never { OTHERS } else { Duration::ZERO };
        let clients = self.agents.len() + self.foreigners.len() + self.earlier_clients.len();
        // Where the one that watched over all died with the holders, somebody looks within ten minutes.
        let end = self.now
            + TTL * 30
            + Duration::from_secs(1200)
            + unaware * u32::try_from(clients).expect("not many");
        while self.now < end && !self.have_all_ended() {
            self.run(TTL);
            self.rescue();
        }
        // What those have left who were killed ends by itself.
        self.run(TTL * (self.game.lasts + 2));
        for (place, agent) in self.agents.iter().enumerate() {
            let phase: Vec<_> = agent.keeper.machines().map(|machine| machine.phase()).collect();
            assert!(agent.keeper.has_ended(), "seed {}: agent {place} was not served: {phase:?}", self.seed);
        }
        let waiting =
            self.foreigners.iter().map(|one| one.done).chain(self.earlier_clients.iter().map(|one| one.done));
        let waiting = waiting.filter(|done| !done).count();
        assert_eq!(waiting, 0, "seed {}: other clients were not served", self.seed);
        self.consul.tick(self.now);
        let keys = SEMAPHORES.into_iter().flat_map(|name| self.consul.list(name).pairs);
        // What foreign contenders were offered stands there until the next one of ours writes.
        let stays = |key: &str| key.ends_with("/.lock") || key.ends_with("/.offered");
        let left: Vec<_> = keys.filter(|pair| !stays(&pair.key)).collect();
        assert!(left.is_empty(), "seed {}: contenders are left: {left:?}", self.seed);
        assert!(self.consul.store.sessions().found.is_empty(), "seed {}: sessions are left", self.seed);
        assert!(self.served > 0, "seed {}: nobody was served", self.seed);
        self.assert_next_one_finds_all_free();
    }

    fn have_all_ended(&self) -> bool {
        self.agents.iter().all(|agent| agent.keeper.has_ended())
            && self.foreigners.iter().all(|one| one.done)
            && self.earlier_clients.iter().all(|one| one.done)
    }

    /// What a crashed holder has left in the record is pruned by the next one that stays for long enough.
    fn assert_next_one_finds_all_free(&mut self) {
        let mut visitor = self.new_agent(0, None, false);
        visitor.work = visitor.work.max(self.game.prune_delay + TTL / 2);
        let mut wants = visitor.configuration.clone();
        if wants.terms.limit_policy == LimitPolicy::Refuse {
            wants = wants.with_limit(self.game.limit);
        }
        self.agents[0] = visitor;
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

    /// What has changed in the store is looked at by itself.
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
            let foreigners = self.foreigners.iter().map(|one| one.holds);
            let others =
                foreigners.chain(self.earlier_clients.iter().map(|one| one.holds)).filter(|holds| *holds);
            let others = if which == 0 { others.count() as u32 } else { 0 };
            let believed: u32 = self.occupied.iter().map(|slots| slots[which]).sum();
            referee.check(believed + others, self.now);
        }
        self.check_locks();
        self.check_promises();
    }

    /// Of one agent that something has become of, or of whom something is to be by now.
    pub(super) fn check_agent(&mut self, place: usize) {
        let agent = &self.agents[place];
        self.occupied[place] = SEMAPHORES
            .map(|name| if agent.occupies(name, self.now) { agent.configuration.terms.slots } else { 0 });
        self.check_waits(place);
        self.check_sessions(place);
        self.check_traces(place);
        self.check_let_in(place);
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
        } else if let Notice::TimedOut { name, .. } = notice {
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
    fn check_sessions(&self, place: usize) {
        if self.game.chaos.twin > 0.0 {
            // One that another process has resumed is that one's besides.
            return;
        }
        let sessions = self.clients.get(&self.agents[place].life).map(|client| &client.sessions);
        let sessions = sessions.filter(|sessions| sessions.len() > 2);
        let living = sessions.into_iter().flatten().filter(|session| self.consul.has_session(session));
        let (seed, living) = (self.seed, living.count());
        assert!(living <= 2, "seed {seed}: an agent has {living} sessions");
    }

    /// Nobody waits for longer than it said.
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
            assert!(waited <= wait, "seed {seed}: {phase:?} for {waited:?} and more, of {wait:?}");
        }
    }

    /// A lock that nobody has, and Consul gives to anybody, is soon somebody's who wants it.
    fn check_locks(&mut self) {
        let Primitive::Lock { delay, .. } = self.game.primitive else { return };
        let free =
            !matches!(self.referees[0].after.lock(), LockKeyState::Single(single) if single.owner.is_some());
        let waits = |agent: &Agent| agent.phase(SEMAPHORES[0]) == Some(Phase::Waiting);
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
    fn check_traces(&mut self, place: usize) {
        let (seed, chaos, now) = (self.seed, self.game.chaos, self.now);
        let to_act = if chaos.is_prompt() { TTL / 5 } else { TTL * 6 };
        // One whom somebody else has written into `.lock` first has to see that, be it by its next listing; and so has
        // one that was configured otherwise before it was killed see what it has.
        let to_see = to_act.max(TTL);
        let to_go = if chaos.spoil > 0.0 { to_see } else { to_act };
        let to_choose = if chaos.spoil + chaos.reload > 0.0 { to_see } else { Duration::ZERO };
        let to_notice = [false, true].map(|holds| self.to_notice(holds));
        let pictures = || self.referees.iter().map(|referee| (referee.name, &referee.after));
        let agent = &mut self.agents[place];
        let Some(session) = agent.keeper.session().cloned() else { return };
        let has = |picture: &StoreState| picture.slots_of(&session) > 0;
        let waits = |picture: &StoreState| picture.contender(&session).is_some_and(Contender::says_waiting);
        let together = agent.configuration.together;

        let gave_up = |name: &str| agent.phase(name) == Some(Phase::TimedOut) && !agent.is_heir;
        let left =
            pictures().find(|(name, one)| (has(one) || one.contender(&session).is_some()) && gave_up(name));
        assert!(left.is_none(), "seed {seed}: {session} gave up and has left {left:?}");

        // Who is told to leave keeps its slot until its workload has stopped, and no longer.
        let gone = pictures().find(|(name, picture)| {
            let stops = agent.occupies(name, now) && !agent.believes(name);
            stops && !has(picture) && !chaos.deceives()
        });
        assert!(gone.is_none(), "seed {seed}: {session} has yet to stop, without {gone:?}");
        for (name, picture) in pictures() {
            if picture.entry_of(&session).is_none_or(|entry| entry.evicted_by.is_none()) {
                agent.evicted_since.remove(name);
                continue;
            }
            let since = *agent.evicted_since.entry(name).or_insert(now);
            let believes = agent.believes(name);
            // That a watch was lost is seen up to three TTLs later, and another cut may take the next one with it.
            let to_watch_anew = if chaos.cut > 0.0 && !believes { TTL * 3 } else { Duration::ZERO };
            let to_notice = to_notice[usize::from(believes)] + to_watch_anew;
            let long = now.since(since) > TO_STOP + to_act + to_notice;
            assert!(!long, "seed {seed}: {session} was evicted from {name} and is there");
        }

        // Who takes slots together never has one while it stands in line for another.
        let both = together && pictures().any(|(_, one)| has(one)) && pictures().any(|(_, one)| waits(one));
        agent.has_and_waits_since = both.then(|| agent.has_and_waits_since.unwrap_or(now));
        let long = agent.has_and_waits_since.is_some_and(|since| now.since(since) >= to_choose);
        assert!(!long, "seed {seed}: {session} has one and waits for another");

        // Where one semaphore keeps it out, it stands in nobody's way. Of what is no semaphore it may keep its place.
        let kept_out = |name: &str| agent.is_kept_out(name);
        let goes = |name: &str| if kept_out(name) { chaos.spoil == 0.0 } else { together };
        let lingers = SEMAPHORES.into_iter().any(kept_out)
            && pictures().any(|(name, one)| goes(name) && (has(one) || waits(one)));
        agent.lingers_since = lingers.then(|| agent.lingers_since.unwrap_or(now));
        let long = agent.lingers_since.is_some_and(|since| now.since(since) > to_go);
        assert!(
            !long,
            "seed {seed}: {session} is kept out and stands in the way: {:?}",
            self.referees[0].after
        );
    }
}
