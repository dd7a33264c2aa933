//! What goes wrong: crashes, pauses, partitions, and what operators do.

use super::*;

/// What goes wrong, each as the chance of it in one of the moments when it may.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::simulation) struct Chaos {
    /// A request, or its answer, is lost.
    pub(in crate::simulation) lost: f64,
    /// In a tenth of a second an agent is killed.
    pub(in crate::simulation) crash: f64,
    /// An agent stands still for less than the lease's margin.
    pub(in crate::simulation) pause: f64,
    /// An agent is cut off from Consul for up to three TTLs.
    pub(in crate::simulation) cut: f64,
    /// In a tenth of a second an operator deletes a contender, destroys a session or takes a holder out. Whoever has
    /// it so learns of it only afterwards, so that what agents believe says nothing then.
    pub(in crate::simulation) meddle: f64,
    /// In a tenth of a second an operator sets another limit.
    pub(in crate::simulation) resize: f64,
}

impl Chaos {
    pub(in crate::simulation) const CALM: Self =
        Self { lost: 0.0, crash: 0.0, pause: 0.0, cut: 0.0, meddle: 0.0, resize: 0.0 };
}

impl World {
    pub(super) fn go_wrong(&mut self) {
        self.later(Duration::from_millis(100), Coming::Chaos);
        if self.rng.f64() < self.chaos.meddle {
            self.meddle();
        }
        if self.rng.f64() < self.chaos.resize {
            let limit = self.rng.u32(1..=self.game.limit * 2);
            self.resize(limit);
        }
        for place in 0..self.agents.len() {
            if self.rng.f64() < self.chaos.crash {
                // Half of them come back with their state file.
                let resume = self.agents[place].state().filter(|_| self.rng.bool());
                self.agents[place] = self.new_agent(place, resume);
                self.act(place);
            }
            if self.rng.f64() < self.chaos.pause {
                let pause = Duration::from_millis(self.rng.u64(1..999));
                self.agents[place].paused_until = self.now + pause;
            }
            if self.rng.f64() < self.chaos.cut / 10.0 {
                self.agents[place].cut_until = self.now + TTL.mul_f64(self.rng.f64() * 3.0);
            }
        }
    }

    fn meddle(&mut self) {
        let name = self.rng.choice(SEMAPHORES).expect("some");
        let pairs = self.consul.list(name).pairs;
        let Some(victim) = self.rng.choice(&pairs).cloned() else { return };
        match victim.session {
            Some(session) if self.rng.bool() => self.consul.destroy(&session, self.now),
            Some(_) => self.consul.store.delete(&victim.key, self.now),
            None => self.consul.store.set(emptied(&victim), self.now),
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
}

/// A record from which an operator has taken everybody out.
fn emptied(pair: &Pair) -> Write {
    let mut record = Record::decode(&pair.value, pair.flags).expect("a record");
    record.holders.clear();
    Write { key: pair.key.clone(), value: record.encode().into(), flags: pair.flags }
}
