//! Faults: crashes, pauses, partitions, and the actions of operators.

use super::*;
use slotkeeper_semaphore::Listing;
use slotkeeper_semaphore::record::{LOCK_FLAGS, SEMAPHORE_FLAGS};

/// The faults of a game, each with its chance. The chance of most faults is for one [`Game::tick`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Chaos {
    /// A request, or its answer, is lost.
    pub(crate) lost: f64,
    /// An agent is killed.
    pub(crate) crash: f64,
    /// An agent is killed at an exact step: after it requested a listing or `.lock`, when such an answer or that of a transaction
    /// reaches it, or when its transaction was applied and the answer is in flight.
    pub(crate) dies: f64,
    /// A node dies: all holders are killed together with the first waiters, and other agents come in their stead.
    pub(crate) node: f64,
    /// A foreign client is killed; its session ends within a TTL.
    pub(crate) expire: f64,
    /// An agent pauses for less than the lease's margin.
    pub(crate) pause: f64,
    /// An agent is stopped for up to three TTLs, and continued.
    pub(crate) stop: f64,
    /// The requests of an agent, and their answers, take up to three seconds each for up to three TTLs.
    pub(crate) slow: f64,
    /// An agent is cut off from Consul for up to three TTLs.
    pub(crate) cut: f64,
    /// An operator deletes a contender key, destroys a session or removes a holder. The agent learns of it later, so the slots that
    /// agents consider held prove nothing then.
    pub(crate) meddle: f64,
    /// An operator evicts a participant.
    pub(crate) evict: f64,
    /// An operator sets another limit.
    pub(crate) resize: f64,
    /// An operator prunes dead holders, or destroys an unused semaphore.
    pub(crate) tidy: f64,
    /// An operator writes an invalid value to `.lock` or deletes it, and fixes it later.
    pub(crate) spoil: f64,
    /// An agent reloads a changed configuration. A killed agent may also restart with a changed configuration.
    pub(crate) reload: f64,
}

impl Chaos {
    pub(crate) const CALM: Self = Self {
        lost: 0.0,
        crash: 0.0,
        dies: 0.0,
        node: 0.0,
        expire: 0.0,
        pause: 0.0,
        stop: 0.0,
        slow: 0.0,
        cut: 0.0,
        meddle: 0.0,
        evict: 0.0,
        resize: 0.0,
        tidy: 0.0,
        spoil: 0.0,
        reload: 0.0,
    };

    /// Whether every process runs, and every answer arrives without delay.
    pub(crate) fn is_prompt(self) -> bool {
        let people = Self {
            meddle: self.meddle,
            evict: self.evict,
            resize: self.resize,
            tidy: self.tidy,
            spoil: self.spoil,
            ..Self::CALM
        };
        self == Self { reload: self.reload, ..people }
    }

    /// Whether operators take slots from agents without notice. The slots that agents consider held prove nothing then.
    pub(crate) fn deceives(self) -> bool {
        self.meddle > 0.0 || self.spoil > 0.0
    }
}

impl World {
    pub(super) fn go_wrong(&mut self) {
        self.later(self.game.tick(), Coming::Chaos);
        // Checks with a deadline cover all agents at every tick.
        self.touched.extend(0..self.agents.len());
        self.check_promises();
        if self.happens(self.chaos.meddle) {
            self.meddle();
            // The checks see each fault on its own: the result of one fault is the start of the next.
            self.see();
            self.check();
        }
        if self.happens(self.chaos.evict) {
            self.evict();
        }
        if self.happens(self.chaos.resize) {
            let limit = self.rng.u32(1..=self.game.limit * 2);
            // Of two semaphores one may suffice for an acquire group and the other not.
            let which = if self.game.groups { self.rng.usize(..=SEMAPHORES.len()) } else { SEMAPHORES.len() };
            self.resize(SEMAPHORES.get(which).map_or(&SEMAPHORES[..], std::slice::from_ref), limit);
        }
        if self.happens(self.chaos.tidy) {
            self.tidy();
        }
        if self.happens(self.chaos.spoil) {
            self.spoil();
        }
        if self.happens(self.chaos.node) {
            self.kill_node();
        }
        self.kill_others();
        for place in 0..self.agents.len() {
            if self.happens(self.chaos.reload) && self.agents[place].paused_until <= self.now {
                let configuration = self.agents[place].configuration.reloaded(self.game, &mut self.rng);
                self.reload(place, configuration);
            }
            if self.happens(self.chaos.crash) {
                self.crash(place);
            }
            // Two pauses in a row could exceed the margin between the end of a lease and the end of the session.
            if self.happens(self.chaos.pause) && self.agents[place].paused_until <= self.now {
                let pause = Duration::from_millis(self.rng.u64(1..999));
                self.agents[place].paused_until = self.now + pause;
            }
            if self.happens(self.chaos.stop / 10.0) && self.agents[place].paused_until <= self.now {
                self.agents[place].paused_until = self.now + TTL.mul_f64(self.rng.f64() * 3.0);
                self.agents[place].stopped = true;
            }
            if self.happens(self.chaos.slow / 10.0) {
                self.agents[place].slow_until = self.now + TTL.mul_f64(self.rng.f64() * 3.0);
            }
            if self.happens(self.chaos.cut / 10.0) {
                self.agents[place].cut_until = self.now + TTL.mul_f64(self.rng.f64() * 3.0);
            }
        }
    }

    /// Kills an agent's process, and starts another one in its stead.
    pub(super) fn crash(&mut self, place: usize) {
        if self.agents[place].is_gone() {
            return;
        }
        // Half of the agents restart with their state file.
        let resume = self.agents[place].state().filter(|_| self.rng.bool());
        self.agents[place] = self.new_agent(place, resume);
        self.act(place);
    }

    /// Kills all holders and some of the first waiters at one instant, unless the last ones may still have sessions.
    fn kill_node(&mut self) {
        if self.node_died.is_some_and(|at| self.now.since(at) < TTL * 4) {
            return;
        }
        self.node_died = Some(self.now);
        let state = &self.referees[0].after;
        let waiters: Vec<_> = state.queue().map(|one| one.session.clone()).collect();
        let waiters = &waiters[..self.rng.usize(..=waiters.len())];
        let dead: HashSet<_> = state.holders().map(|(holder, _)| holder).chain(waiters).cloned().collect();
        for place in 0..self.agents.len() {
            if self.agents[place].keeper.session().is_some_and(|session| dead.contains(session)) {
                self.agents[place] = self.new_agent(place, None);
                self.act(place);
            }
        }
    }

    /// Kills the first waiters, or stops them for ever, which is the same to all others; and the holders too where a node dies.
    pub(crate) fn strike(&mut self, waiters: usize, holders: bool) {
        let state = &self.referees[0].after;
        let holders = state.holders().filter(|_| holders).map(|(holder, _)| holder);
        let dead: HashSet<_> =
            state.queue().take(waiters).map(|one| &one.session).chain(holders).cloned().collect();
        for agent in &mut self.agents {
            if agent.keeper.session().is_some_and(|session| dead.contains(session)) {
                (agent.stopped, agent.paused_until) = (true, self.now + Duration::from_secs(1_000_000));
            }
        }
    }

    /// Plays until all agents that live have been served. Returns the time from the beginning of the game.
    pub(crate) fn run_until_served(&mut self) -> Duration {
        while !self.agents.iter().all(|agent| agent.is_gone() || agent.stopped) {
            self.run(Duration::from_millis(10));
            assert!(self.now.since(START) < Duration::from_secs(600), "seed {}: not served", self.seed);
        }
        self.now.since(START)
    }

    /// Plays until an agent that lives holds a slot. Returns the time from the beginning of the game.
    pub(crate) fn run_until_holds(&mut self) -> Duration {
        while !self.agents.iter().any(|agent| !agent.stopped && agent.is_ready()) {
            self.run(Duration::from_millis(10));
            assert!(self.now.since(START) < Duration::from_secs(600), "seed {}: not served", self.seed);
        }
        self.now.since(START)
    }

    /// Since when a holder has been dead.
    pub(crate) fn holder_died(&self) -> Option<Duration> {
        let referee = &self.referees[0];
        referee.dead_for(self.now).map(|dead| self.now.since(START).saturating_sub(dead))
    }

    /// The transactions that Consul has committed, and those that it has refused because a key had changed.
    pub(crate) fn transactions(&self) -> (u32, u32) {
        self.transactions
    }

    /// Kills processes of foreign clients.
    fn kill_others(&mut self) {
        for place in 0..self.foreigners.len() {
            if self.happens(self.chaos.expire) {
                let session = self.foreigners[place].session();
                self.foreigners[place] = self.foreigners[place].next(&mut self.rng);
                self.expire(session);
                self.foreign_later(place, Duration::ZERO);
            }
        }
    }

    fn expire(&mut self, session: SessionId) {
        let after = TTL.mul_f64(self.rng.f64());
        self.later(after, Coming::Expire { session });
    }

    /// Whether a fault happens. A chance of 0 draws no random number, so the rest of the game stays the same.
    pub(super) fn happens(&mut self, chance: f64) -> bool {
        chance > 0.0 && self.rng.f64() < chance
    }

    /// An operator plans an eviction by a read; the transaction arrives later.
    fn evict(&mut self) {
        let name = self.rng.choice(SEMAPHORES).expect("some");
        let view = self.consul.view(name);
        let Some(stay) = self.participant(&view) else { return };
        if let Some(plan::Write { ops, .. }) = plan::request_eviction(&view, &stay, "an operator") {
            let after = self.delay();
            self.later(after, Coming::OperatorWrite { ops });
        }
    }

    fn participant(&mut self, view: &View) -> Option<plan::Membership> {
        let owner = view.single().and_then(|single| single.owner.as_ref());
        let holders = view.record().map(|record| record.holders.as_slice()).unwrap_or_default();
        let contenders = view.contenders.iter().map(|one| &one.session);
        let sessions: Vec<_> = contenders.chain(holders).chain(owner).collect();
        plan::Membership::of(view, self.rng.choice(sessions)?)
    }

    /// Forces an eviction.
    fn force_eviction(&mut self) {
        let name = self.rng.choice(SEMAPHORES).expect("some");
        let view = self.consul.view(name);
        let Some(stay) = self.participant(&view) else { return };
        if let Some(write) = plan::force_eviction(&view, &stay, "", self.now) {
            let commit = self.consul.commit(&write.ops, self.now);
            assert!(
                matches!(commit, Commit::Done { .. }),
                "no write comes between the read and the transaction"
            );
            let left = plan::Membership::of(&self.consul.view(name), &stay.session);
            assert_eq!(left, None, "seed {}: the participant was evicted and is still there", self.seed);
        }
    }

    fn meddle(&mut self) {
        if self.rng.u32(..3) == 0 {
            return self.force_eviction();
        }
        let name = self.rng.choice(SEMAPHORES).expect("some");
        let mut pairs = self.consul.list(name).pairs;
        pairs.extend(self.consul.read(name).pair);
        let Some(victim) = self.rng.choice(&pairs).cloned() else { return };
        match victim.session {
            Some(session) if self.rng.bool() => self.consul.destroy(&session, self.now),
            Some(_) => self.consul.store.delete(&victim.key, self.now),
            None if self.game.is_of_locks() || !victim.key.ends_with("/.lock") => {
                self.consul.store.delete(&victim.key, self.now);
            }
            None => self.consul.store.set(emptied(&victim), self.now),
        }
    }

    /// Reloads an agent's configuration, like a SIGHUP.
    pub(super) fn reload(&mut self, place: usize, configuration: Configuration) {
        // A timer that was due earlier, for example in a pause, acts by the previous configuration.
        self.agents[place].keeper.tick(self.now);
        self.act(place);
        let agent = &mut self.agents[place];
        if agent.draining || agent.ending.is_some() {
            return;
        }
        self.clients.entry(agent.life).or_default().may(&configuration);
        agent.configuration = configuration;
        agent.configured_at = self.now;
        for name in agent.configuration.wants.clone() {
            if agent.phase(name) == Some(Phase::TimedOut) {
                agent.requests_again(name, self.now);
            }
        }
        for name in agent.configuration.wants.clone() {
            agent.keeper.reconfigure(&Name::from(name), agent.configuration.of(name), self.now);
        }
        self.act(place);
    }

    /// Writes an invalid `.lock`, or deletes it.
    fn spoil(&mut self) {
        let name = SEMAPHORES[self.rng.usize(..if self.game.groups { SEMAPHORES.len() } else { 1 })];
        let key = format!("{name}/.lock");
        let Listing { pairs, .. } = self.consul.list(name);
        let sessions: Vec<_> = pairs.iter().filter_map(|pair| pair.session.clone()).collect();
        let found = pairs.iter().find(|pair| pair.key == key);
        match invalid_lock(found, &sessions, &mut self.rng) {
            Some((value, flags)) => {
                self.consul.store.set(Write { key, value: value.into(), flags }, self.now);
            }
            None => self.consul.store.delete(&key, self.now),
        }
        let after = Duration::from_millis(self.rng.u64(..5000));
        self.later(after, Coming::Fix { name });
    }

    /// An operator writes a record without holders, or deletes `.lock`.
    pub(super) fn fix(&mut self, name: &'static str) {
        let key = format!("{name}/.lock");
        if self.rng.bool() {
            self.consul.store.delete(&key, self.now);
        } else {
            let record = Record::new(self.game.form, self.game.limit);
            let (value, flags) = (record.encode().into(), record.flags());
            self.consul.store.set(Write { key, value, flags }, self.now);
        }
    }

    /// An operator changes the limit, sometimes to less than the held slots.
    pub(super) fn resize(&mut self, names: &[&str], limit: u32) {
        for name in names {
            if let Ok(Some(write)) = plan::set_limit(&self.consul.view(name), limit, "", self.now) {
                let commit = self.consul.commit(&write.ops, self.now);
                assert!(
                    matches!(commit, Commit::Done { .. }),
                    "no write comes between the read and the transaction"
                );
            }
        }
    }

    /// An operator plans a prune or a destruction by a read; the transaction arrives later.
    fn tidy(&mut self) {
        for name in SEMAPHORES {
            let view = self.consul.view(name);
            let whom = view.record().iter().flat_map(|record| record.holders.iter().cloned()).collect();
            let write = if self.rng.bool() {
                plan::prune(&view, &whom, "", self.now)
            } else {
                plan::destroy(&view, view.lock_index(), &|_| None)
            };
            if let Ok(Some(plan::Write { ops, .. })) = write {
                let after = self.delay();
                self.later(after, Coming::OperatorWrite { ops });
            }
        }
    }
}

/// A record from which an operator removed all holders.
fn emptied(pair: &Pair) -> Write {
    let mut record = Record::decode(&pair.value, pair.flags).expect("a record");
    record.holders.clear();
    Write { key: pair.key.clone(), value: record.encode().into(), flags: pair.flags }
}

/// An invalid value for `.lock`; `None`: the key is deleted.
fn invalid_lock(
    found: Option<&Pair>,
    sessions: &[SessionId],
    rng: &mut fastrand::Rng,
) -> Option<(Vec<u8>, u64)> {
    const TEXTS: [&str; 7] = [
        "",
        "null",
        "[]",
        r#"{"Limit":2}"#,
        r#"{"Limit":-1,"Holders":[]}"#,
        r#"{"Limit":1,"limit":2,"Holders":[]}"#,
        r#"{"Limit":2,"Holders":[1,""]}"#,
    ];
    let any_of = |most: usize, rng: &mut fastrand::Rng| -> Vec<String> {
        let one = |rng: &mut fastrand::Rng| match rng.choice(sessions).filter(|_| rng.u32(..3) > 0) {
            Some(session) => session.to_string(),
            None => Uuid::from_u128(rng.u128(..)).to_string(),
        };
        (0..rng.usize(..most)).map(|_| one(rng)).collect()
    };
    let found = found.map_or((Vec::new(), 0), |pair| (pair.value.clone(), pair.flags));
    let limit = [0, 1, 3, u32::MAX][rng.usize(..4)];
    let holders = any_of(8, rng);
    let holders = if rng.u32(..4) > 0 {
        format!("{holders:?}")
    } else {
        let map: Vec<_> = holders.iter().map(|holder| format!("{holder:?}:true")).collect();
        format!("{{{}}}", map.join(","))
    };
    let record = |next: &str| format!(r#"{{"Limit":{limit},"Holders":{holders}{next}}}"#).into_bytes();
    let odd = [LOCK_FLAGS, SEMAPHORE_FLAGS, rng.u64(..)][rng.usize(..3)];
    Some(match rng.u32(..8) {
        0 => (std::iter::repeat_with(|| rng.u8(..)).take(40).collect(), 0),
        1 => (TEXTS[rng.usize(..TEXTS.len())].into(), 0),
        2 => (found.0, odd),
        3 => (found.0[..found.0.len() / 2].to_vec(), found.1),
        4 => (record(""), 0),
        5 => (record(r#","Next":[1,{}]"#), 0),
        6 => (record(&format!(r#","Next":{:?}"#, any_of(60, rng))), 0),
        _ => return None,
    })
}
