//! What goes wrong: crashes, pauses, partitions, and what operators do.

use super::*;
use slotkeeper_semaphore::Listing;
use slotkeeper_semaphore::record::{LOCK_FLAGS, SEMAPHORE_FLAGS};

/// What goes wrong, each as the chance of it in one of the moments when it may: of most, once in a tenth of a second, or
/// where games are long, in a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Chaos {
    /// A request, or its answer, is lost.
    pub(crate) lost: f64,
    /// An agent is killed.
    pub(crate) crash: f64,
    /// An agent is killed exactly when it has sent for a listing or for `.lock`, when one of these or the answer to a transaction
    /// reaches it, or when its transaction was carried out and the answer is on its way.
    pub(crate) dies: f64,
    /// A client of another kind is killed; within a TTL its session ends.
    pub(crate) expire: f64,
    /// An agent's files are deleted while it runs, and another process resumes its session.
    pub(crate) twin: f64,
    /// An agent stands still for less than the lease's margin.
    pub(crate) pause: f64,
    /// An agent is cut off from Consul for up to three TTLs.
    pub(crate) cut: f64,
    /// An operator deletes a contender, destroys a session or takes a holder out. Whoever has
    /// it so learns of it only afterwards, so that what agents believe says nothing then.
    pub(crate) meddle: f64,
    /// An operator evicts somebody.
    pub(crate) evict: f64,
    /// An operator sets another limit.
    pub(crate) resize: f64,
    /// An operator drops the dead, or destroys what nobody uses.
    pub(crate) tidy: f64,
    /// Somebody writes nonsense under `.lock` or deletes it; after a while it is mended.
    pub(crate) spoil: f64,
    /// An agent reads its configuration again, and that has changed. Also whoever was killed
    /// may come back with another one.
    pub(crate) reload: f64,
}

impl Chaos {
    pub(crate) const CALM: Self = Self {
        lost: 0.0,
        crash: 0.0,
        dies: 0.0,
        expire: 0.0,
        twin: 0.0,
        pause: 0.0,
        cut: 0.0,
        meddle: 0.0,
        evict: 0.0,
        resize: 0.0,
        tidy: 0.0,
        spoil: 0.0,
        reload: 0.0,
    };

    /// Whether every process runs, and every answer comes at once.
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

    /// Whether people change what agents hold behind their backs: what those believe says nothing then.
    pub(crate) fn deceives(self) -> bool {
        self.meddle > 0.0 || self.spoil > 0.0
    }
}

impl World {
    pub(super) fn go_wrong(&mut self) {
        self.later(self.game.tick(), Coming::Chaos);
        // Of some, something is to have become by now.
        self.touched.extend(0..self.agents.len());
        if self.happens(self.chaos.meddle) {
            self.meddle();
            // Each is looked at by itself: what one does is another one's beginning.
            self.see();
            self.check();
        }
        if self.happens(self.chaos.evict) {
            self.evict();
        }
        if self.happens(self.chaos.resize) {
            let limit = self.rng.u32(1..=self.game.limit * 2);
            self.resize(limit);
        }
        if self.happens(self.chaos.tidy) {
            self.tidy();
        }
        if self.happens(self.chaos.spoil) {
            self.spoil();
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
            if self.happens(self.chaos.twin) {
                self.twin(place);
            }
            // Pauses that add up would be longer than what a lease leaves to Consul's end of the session.
            if self.happens(self.chaos.pause) && self.agents[place].paused_until <= self.now {
                let pause = Duration::from_millis(self.rng.u64(1..999));
                self.agents[place].paused_until = self.now + pause;
            }
            if self.happens(self.chaos.cut / 10.0) {
                self.agents[place].cut_until = self.now + TTL.mul_f64(self.rng.f64() * 3.0);
            }
        }
    }

    /// An agent's process is killed, and another one begins in its place.
    pub(super) fn crash(&mut self, place: usize) {
        if self.agents[place].keeper.has_ended() {
            return;
        }
        // Half of them come back with their state file.
        let resume = self.agents[place].state().filter(|_| self.rng.bool());
        let contested = self.agents[place].keeper.is_contested();
        self.agents[place] = self.new_agent(place, resume, contested);
        self.act(place);
    }

    /// Processes of other kinds are killed.
    fn kill_others(&mut self) {
        for place in 0..self.foreigners.len() {
            if self.happens(self.chaos.expire) {
                let session = self.foreigners[place].session();
                self.foreigners[place] = self.foreigners[place].next(&mut self.rng);
                self.expire(session);
                self.foreign_later(place, Duration::ZERO);
            }
        }
        for place in 0..self.earlier_clients.len() {
            if self.happens(self.chaos.crash) {
                let session = self.earlier_clients[place].session();
                self.earlier_clients[place] = self.new_earlier_client();
                self.expire(session);
                self.earlier_client_later(place, Duration::ZERO);
            }
        }
    }

    fn expire(&mut self, session: SessionId) {
        let after = TTL.mul_f64(self.rng.f64());
        self.later(after, Coming::Expire { session });
    }

    /// The next agent's process gives way to one that resumes this one's session, and this one runs on.
    fn twin(&mut self, place: usize) {
        let Some(resume) = self.agents[place].state() else { return };
        let Configuration { wants, together, .. } = &self.agents[place].configuration;
        if wants.len() > 1 && !together {
            // Two that take one after the other could wait for each other for ever.
            return;
        }
        let (other, contested) = ((place + 1) % self.agents.len(), true);
        let configuration = self.agents[place].configuration.clone();
        self.twins.insert(resume.session.clone());
        for agent in &mut self.agents {
            // The files are the new one's.
            agent.has_files &= agent.keeper.session() != Some(&resume.session);
        }
        self.agents[other] = self.agent_of(configuration, Some(resume), contested);
        self.act(other);
    }

    /// What cannot happen leaves the rest of the game as it is.
    pub(super) fn happens(&mut self, chance: f64) -> bool {
        chance > 0.0 && self.rng.f64() < chance
    }

    /// Somebody means to ask somebody to leave, by what it sees.
    fn evict(&mut self) {
        let name = self.rng.choice(SEMAPHORES).expect("some");
        let view = self.consul.view(name);
        let Some(stay) = self.participant(&view) else { return };
        if let Some(plan::Write { ops, .. }) = plan::request_eviction(&view, &stay, "an operator") {
            let after = self.delay();
            self.later(after, Coming::Tidy { ops });
        }
    }

    fn participant(&mut self, view: &View) -> Option<plan::Membership> {
        // Another waiter becomes the lookout by the same transaction, which is the largest that an eviction can be.
        let lookout = view.record().filter(|record| record.has_lookout).and_then(|record| record.next.last());
        if let Some(lookout) = lookout.filter(|_| view.has_foreign()) {
            return plan::Membership::of(view, lookout);
        }
        let owner = view.single().and_then(|single| single.owner.as_ref());
        let holders = view.record().map(|record| record.holders.as_slice()).unwrap_or_default();
        let contenders = view.contenders.iter().map(|one| &one.session);
        let sessions: Vec<_> = contenders.chain(holders).chain(owner).collect();
        plan::Membership::of(view, self.rng.choice(sessions)?)
    }

    /// Takes somebody out without asking.
    fn take_out(&mut self) {
        let name = self.rng.choice(SEMAPHORES).expect("some");
        let view = self.consul.view(name);
        let Some(stay) = self.participant(&view) else { return };
        if let Some(write) = plan::force_eviction(&view, &stay, "", self.now) {
            let commit = self.consul.commit(&write.ops, self.now);
            assert!(matches!(commit, Commit::Done { .. }), "read and written in one step");
            let left = plan::Membership::of(&self.consul.view(name), &stay.session);
            assert_eq!(left, None, "seed {}: it is out", self.seed);
        }
    }

    fn meddle(&mut self) {
        if self.rng.u32(..3) == 0 {
            return self.take_out();
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

    /// As after a SIGHUP.
    pub(super) fn reload(&mut self, place: usize, configuration: Configuration) {
        // What was due before, as of one that was paused, is judged by what it was told before.
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
                agent.asks_again(name, self.now);
            }
        }
        for name in agent.configuration.wants.clone() {
            agent.keeper.reconfigure(&Name::from(name), agent.configuration.of(name), self.now);
        }
        self.act(place);
    }

    /// Somebody takes `.lock` for something else.
    fn spoil(&mut self) {
        let name = SEMAPHORES[self.rng.usize(..if self.game.groups { SEMAPHORES.len() } else { 1 })];
        let key = format!("{name}/.lock");
        let Listing { pairs, .. } = self.consul.list(name);
        let sessions: Vec<_> = pairs.iter().filter_map(|pair| pair.session.clone()).collect();
        let found = pairs.iter().find(|pair| pair.key == key);
        match nonsense(found, &sessions, &mut self.rng) {
            Some((value, flags)) => {
                self.consul.store.set(Write { key, value: value.into(), flags }, self.now);
            }
            None => self.consul.store.delete(&key, self.now),
        }
        let after = Duration::from_millis(self.rng.u64(..5000));
        self.later(after, Coming::Mend { name });
    }

    /// An operator writes a record in which nobody holds, or deletes what is there.
    pub(super) fn mend(&mut self, name: &'static str) {
        let key = format!("{name}/.lock");
        if self.rng.bool() {
            self.consul.store.delete(&key, self.now);
        } else {
            let record = Record::new(self.game.form, self.game.limit);
            let (value, flags) = (record.encode().into(), record.flags());
            self.consul.store.set(Write { key, value, flags }, self.now);
        }
    }

    /// An operator changes the limit, now and then below what is held.
    pub(super) fn resize(&mut self, limit: u32) {
        for name in SEMAPHORES {
            if let Ok(Some(write)) = plan::set_limit(&self.consul.view(name), limit, "", self.now) {
                let commit = self.consul.commit(&write.ops, self.now);
                assert!(matches!(commit, Commit::Done { .. }), "read and written in one step");
            }
        }
    }

    /// An operator looks, and means to prune or to destroy by what it saw.
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
                self.later(after, Coming::Tidy { ops });
            }
        }
    }
}

/// A record from which an operator has taken everybody out.
fn emptied(pair: &Pair) -> Write {
    let mut record = Record::decode(&pair.value, pair.flags).expect("a record");
    record.holders.clear();
    Write { key: pair.key.clone(), value: record.encode().into(), flags: pair.flags }
}

/// What may come to stand under `.lock`; `None`: nothing.
fn nonsense(found: Option<&Pair>, sessions: &[SessionId], rng: &mut fastrand::Rng) -> Option<(Vec<u8>, u64)> {
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
