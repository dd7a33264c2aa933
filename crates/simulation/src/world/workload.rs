//! The workloads of the agents: notices start and stop them.

use super::*;

impl World {
    pub(super) fn notice(&mut self, place: usize, notice: &Notice) {
        if std::env::var_os("SLOTKEEPER_SIM_TRACE").is_some() {
            eprintln!("{:?} agent {place} reports {notice:?}", self.now.since_boot());
        }
        self.check_notice(place, notice);
        let agent = &mut self.agents[place];
        if let Notice::Lost { name, .. }
        | Notice::Released { name, .. }
        | Notice::Evicted { name, held: false, .. } = notice
        {
            agent.requests_again(name, self.now);
        }
        self.workload_notice(place, notice);
        let agent = &mut self.agents[place];
        if matches!(notice, Notice::Acquired { .. }) && place % 2 == 1 {
            // Leases of one agent share their knowledge of other participants, so all but one of them forget it.
            agent.keeper.forget_others();
        }
        if let Notice::TimedOut { .. } = notice {
            // An acquire group leaves at once. Otherwise the agent may keep its other slots for some time.
            let rest = if agent.configuration.together { Duration::ZERO } else { agent.work };
            agent.leaves_at = Some(agent.leaves_at.unwrap_or(self.now + rest));
            agent.gave_up = true;
            if self.rng.bool() {
                let rest = agent.leaves_at.map(|at| at.since(self.now));
                self.end(place, rest.unwrap_or_default());
            }
        }
        let agent = &mut self.agents[place];
        if agent.gave_up || agent.ending.is_some() {
            return;
        }
        if !agent.is_ready() {
            // The workload was stopped, and starts again with the next slot.
            agent.leaves_at = None;
        } else if agent.leaves_at.is_none() {
            let work = agent.work;
            let leaves_at = self.game.storm.map_or(self.now + work, |every| self.next_wave(every));
            self.agents[place].leaves_at = Some(leaves_at);
            self.served += 1;
        }
    }

    /// Starts to stop the workload, which takes some time, also after the lease has expired.
    pub(super) fn workload_notice(&mut self, place: usize, notice: &Notice) {
        let agent = &mut self.agents[place];
        if let Notice::Acquired { name, .. } = notice {
            agent.stopping.remove(name);
        } else if let Notice::Lost { name, session, reason: LossReason::LeaseExpired, .. } = notice {
            self.stop(place, name, session.clone(), TTL, false);
        } else if let Notice::Lost { name, session, reason: LossReason::GroupLost, .. } = notice {
            self.stop(place, name, session.clone(), TO_STOP, true);
        } else if let Notice::Evicted { name, held, .. } = notice {
            if let Some(stopping) = agent.stopping.get_mut(name) {
                stopping.evicted = self.consul.view(name).slots_of(&stopping.session) > 0;
            } else if let Some(session) = agent.keeper.session().filter(|_| *held).cloned() {
                self.stop(place, name, session, TO_STOP, true);
            }
        }
    }

    pub(super) fn stop(
        &mut self,
        place: usize,
        name: &Name,
        session: SessionId,
        longest: Duration,
        evicted: bool,
    ) {
        self.number += 1;
        let (number, agent) = (self.number, &mut self.agents[place]);
        agent.stopping.insert(name.clone(), Stopping { session, number, evicted });
        let (life, name, agent) = (agent.life, name.clone(), place);
        let stops = longest.mul_f64(self.rng.f64());
        self.later(stops, Coming::Stopped { agent, life, name, number });
    }

    /// Announces that the agent drains after this time.
    pub(super) fn end(&mut self, place: usize, after: Duration) {
        let agent = &mut self.agents[place];
        agent.ending = Some(self.now);
        agent.leaves_at = Some(self.now + after);
        agent.keeper.stop_acquiring(self.now);
    }
}
