//! What is checked of the whole: after every step, and at the end.

use super::*;

impl World {
    /// Nothing goes wrong any more and nobody comes any more: all are served, leave, and leave nothing behind.
    pub(in crate::simulation) fn come_to_rest(&mut self) {
        self.chaos = Chaos::CALM;
        self.open = false;
        // Nobody waits for more than there is.
        self.resize(self.game.limit);
        for agent in &mut self.agents {
            agent.cut_until = self.now;
        }
        // A session may have to run out, and every failed request be tried again: bounded by some TTLs a client.
        self.run(TTL * 30);
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

    /// What a crashed holder has left in the record is pruned by the next one that comes.
    fn assert_next_one_finds_all_free(&mut self) {
        let visitor = self.new_agent(0, None);
        self.agents = vec![visitor];
        self.act(0);
        self.run(TTL * 5);
        assert!(self.agents[0].keeper.has_ended(), "seed {}: the last one was not served", self.seed);
        for name in &self.agents[0].wants {
            let view = self.consul.view(name);
            let record = view.record().expect("a record");
            assert!(record.holders.is_empty(), "seed {}: {record:?}", self.seed);
        }
    }

    pub(super) fn check(&mut self) {
        let index = self.consul.store.index();
        let changed = std::mem::replace(&mut self.checked, index) != index;
        for referee in &mut self.referees {
            let agents = self.agents.iter().filter(|agent| agent.believes(referee.name));
            let foreigners = self.foreigners.iter().filter(|one| one.holds && referee.name == SEMAPHORES[0]);
            let believed = agents.map(|agent| agent.slots).chain(foreigners.map(|_| 1)).sum();
            referee.check(changed.then(|| self.consul.view(referee.name)), believed, self.now);
        }
        if changed {
            self.check_parties();
        }
    }

    /// Who takes slots together never has one while it stands in line for another.
    fn check_parties(&self) {
        let views = SEMAPHORES.map(|name| self.consul.view(name));
        for session in
            self.agents.iter().filter(|agent| agent.together).filter_map(|agent| agent.keeper.session())
        {
            let has = |view: &View| view.record().is_some_and(|record| record.slots_of(session) > 0);
            let waits = |view: &View| view.contender(session).is_some_and(|one| one.says_waiting());
            let both = views.iter().any(has) && views.iter().any(waits);
            assert!(!both, "seed {}: {session} has one and waits for another", self.seed);
        }
    }
}
