//! Requests and answers between the agents and Consul, with delays, losses and partitions.

use super::*;

impl World {
    pub(super) fn send(&mut self, place: usize, command: Command) {
        self.number += 1;
        let watch = self.number;
        let agent = &mut self.agents[place];
        if let Command::Watch { key, .. } = &command {
            agent.watches.insert(key.clone(), watch);
        }
        let life = agent.life;
        let cut = self.cut(place);
        if self.is_lost(&command, cut) {
            let (after, event) = self.lost(&command);
            if !matches!(command, Command::Watch { .. }) {
                self.takes(place, after);
            }
            return self.later(after, Coming::Answer { agent: place, life, event, watch });
        }
        let delay = cut + self.delay() + self.lag(place);
        self.takes(place, delay);
        self.later(delay, Coming::Request { agent: place, life, command, watch });
    }

    pub(super) fn request(&mut self, agent: usize, life: u64, command: Command, watch: u64) {
        let id = Uuid::from_u128(self.rng.u128(..));
        match command {
            Command::Commit { .. } => self.by = Some(life),
            Command::CreateSession => {
                self.clients.entry(life).or_default().sessions.insert(id.to_string().into());
            }
            Command::RenewSession { .. }
            | Command::DestroySession { .. }
            | Command::List { .. }
            | Command::ReadLock { .. }
            | Command::ReadKeys { .. }
            | Command::Watch { .. }
            | Command::StopWatch { .. }
            | Command::Notify(_) => {}
        }
        if let (Command::Watch { key, after, wait, .. }, Watches::Never) = (&command, self.game.watches) {
            let known = (self.consul.index_of(key) == *after).then(|| self.consul.read(key));
            let wait = *wait;
            return self.wait(wait, Waiting { agent, life, command, watch, known });
        }
        match self.consul.serve(&command, id, self.now) {
            Some(event) => {
                let done = matches!(event, Event::Committed(_, Ok(Commit::Done { .. })));
                let refused = matches!(event, Event::Committed(_, Ok(Commit::Stale { .. })));
                self.transactions.0 += u32::from(done);
                self.transactions.1 += u32::from(refused);
                if done && self.agents[agent].life == life && self.happens(self.chaos.dies) {
                    return self.crash(agent);
                }
                self.answer(agent, life, &command, event, watch);
            }
            None => {
                let Command::Watch { wait, .. } = command else { unreachable!("only a watch waits") };
                self.wait(wait, Waiting { agent, life, command, watch, known: None });
            }
        }
    }

    /// Starts the wait of a blocking read.
    pub(super) fn wait(&mut self, wait: Duration, waiting: Waiting) {
        self.number += 1;
        let number = self.number;
        self.later(wait, Coming::WaitOver { number });
        self.waits.begin(number, waiting, &self.consul, self.game.watches);
    }

    pub(super) fn wake(&mut self, waiting: Waiting) {
        let Waiting { agent, life, command, watch, known } = waiting;
        let Command::Watch { name, key, wait, .. } = &command else { return };
        if self.game.watches == Watches::Never && (known.is_none() || self.rng.u32(..8) == 0) {
            let (after, event) = self.lost(&command);
            return self.later(after.saturating_sub(*wait), Coming::Answer { agent, life, event, watch });
        }
        let reading = known.unwrap_or_else(|| self.consul.read(key));
        let event = Event::Watched(name.clone(), key.clone(), Ok(reading));
        self.answer(agent, life, &command, event, watch);
    }

    /// Sends an answer to the agent. If the answer is lost, the request times out.
    pub(super) fn answer(&mut self, agent: usize, life: u64, command: &Command, event: Event, watch: u64) {
        let cut = if self.agents[agent].life == life { self.cut(agent) } else { Duration::ZERO };
        let (after, event) = if self.is_lost(command, cut) {
            self.lost(command)
        } else {
            (cut + self.delay() + self.lag(agent), event)
        };
        let unheard = matches!(event, Event::Watched(_, _, Err(_)));
        if self.agents[agent].life == life && !unheard {
            self.takes(agent, after);
        }
        self.later(after, Coming::Answer { agent, life, event, watch });
    }

    /// The remaining time of an agent's partition.
    pub(super) fn cut(&self, agent: usize) -> Duration {
        self.agents[agent].cut_until.since(self.now)
    }

    /// Whether a request or an answer is lost. `cut`: the remaining time of the partition; with [`Watches::Arrive`] a watch arrives
    /// after it.
    pub(super) fn is_lost(&mut self, command: &Command, cut: Duration) -> bool {
        let arrives = self.game.watches == Watches::Arrive && matches!(command, Command::Watch { .. });
        !arrives && (!cut.is_zero() || self.rng.f64() < self.chaos.lost)
    }

    /// When and how a request without an answer ends: by its time-out, or for a watch also by a cut connection.
    pub(super) fn lost(&mut self, command: &Command) -> (Duration, Event) {
        let (after, mut event) = (patience(command), unanswered(command));
        if let Event::Watched(_, _, Err(failure)) = &mut event
            && self.rng.bool()
        {
            failure.kind = FailureKind::Cut;
            return (after.mul_f64(self.rng.f64()), event);
        }
        (after, event)
    }

    pub(super) fn delay(&mut self) -> Duration {
        // Most delays are short. Some answers take longer than the time-out of their request.
        let micros = if self.chaos.lost > 0.0 && self.rng.u32(..50) == 0 { 4_000_000 } else { 5_000 };
        Duration::from_micros(self.rng.u64(200..micros))
    }

    /// The additional delay of a slow client.
    fn lag(&mut self, place: usize) -> Duration {
        if self.agents[place].slow_until <= self.now {
            return Duration::ZERO;
        }
        Duration::from_millis(self.rng.u64(..3000))
    }

    /// Records the time that a request of the agent, or its answer, takes.
    pub(super) fn takes(&mut self, place: usize, time: Duration) {
        let agent = &mut self.agents[place];
        // Usual delays count as none.
        let late = time > Duration::from_millis(5);
        agent.answered_by = agent.answered_by.max(if late { self.now + time } else { self.now });
    }
}
