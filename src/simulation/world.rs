//! The scheduler: one queue of things to come, played in order of their time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use uuid::Uuid;

use super::agent::{Agent, NAME};
use super::consul::{Consul, TTL, patience, unanswered};
use crate::embedded::store::kv::Write;
use crate::semaphore::{Command, Event, Moment, Notice, Pair, Record, Resume, SessionId, View};

/// What goes wrong, each as the chance of it in one of the moments when it may.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chaos {
    /// A request, or its answer, is lost.
    pub(super) lost: f64,
    /// In a tenth of a second an agent is killed.
    pub(super) crash: f64,
    /// An agent stands still for less than the lease's margin.
    pub(super) pause: f64,
    /// An agent is cut off from Consul for up to three TTLs.
    pub(super) cut: f64,
    /// In a tenth of a second an operator deletes a contender, destroys a session or takes a holder out. Whoever has
    /// it so learns of it only afterwards, so that what agents believe says nothing then.
    pub(super) meddle: f64,
}

impl Chaos {
    pub(super) const CALM: Self = Self { lost: 0.0, crash: 0.0, pause: 0.0, cut: 0.0, meddle: 0.0 };
}

/// Something to come. Those that concern an agent name the life they belong to.
#[derive(Debug)]
enum Coming {
    /// A request reaches Consul.
    Request { agent: usize, life: u64, command: Command, watch: u64 },
    /// An answer, or the end of waiting for one, reaches the agent.
    Answer { agent: usize, life: u64, event: Event, watch: Option<u64> },
    /// An agent's timer.
    Timer { agent: usize, timer: u64 },
    /// A blocking read's wait is over.
    WaitOver { number: u64 },
    /// Something may go wrong.
    Chaos,
}

/// A blocking read that waits.
struct Waiting {
    agent: usize,
    life: u64,
    command: Command,
    watch: u64,
    after: u64,
}

pub(super) struct World {
    seed: u64,
    rng: fastrand::Rng,
    chaos: Chaos,
    /// Operators meddle or have meddled.
    meddled: bool,
    limit: u32,
    now: Moment,
    queue: BinaryHeap<Reverse<(Moment, u64)>>,
    coming: HashMap<u64, Coming>,
    number: u64,
    consul: Consul,
    waiting: HashMap<u64, Waiting>,
    agents: Vec<Agent>,
    lives: u64,
    /// The fencing token under which each session holds.
    tokens: HashMap<SessionId, u64>,
    /// The last token that each session was told.
    told: HashMap<SessionId, u64>,
    /// Holdings that have ended: the index at which they did, and their token.
    ended: Vec<(u64, u64)>,
    served: u64,
    /// New agents take the place of those that have left.
    open: bool,
}

impl World {
    pub(super) fn new(seed: u64, chaos: Chaos, clients: usize, limit: u32) -> Self {
        let mut world = Self {
            seed,
            rng: fastrand::Rng::with_seed(seed),
            chaos,
            meddled: chaos.meddle > 0.0,
            limit,
            now: Moment::from_boot(Duration::from_secs(1000)),
            queue: BinaryHeap::new(),
            coming: HashMap::new(),
            number: 0,
            consul: Consul::new(),
            waiting: HashMap::new(),
            agents: Vec::new(),
            lives: 0,
            tokens: HashMap::new(),
            told: HashMap::new(),
            ended: Vec::new(),
            served: 0,
            open: true,
        };
        for place in 0..clients {
            let agent = world.new_agent(None);
            world.agents.push(agent);
            world.act(place);
        }
        world.later(Duration::from_millis(100), Coming::Chaos);
        world
    }

    /// Plays for that long.
    pub(super) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(Reverse((at, number))) =
            self.queue.peek().copied().filter(|Reverse((at, _))| *at <= end)
        {
            self.queue.pop();
            self.now = at;
            if let Some(coming) = self.coming.remove(&number) {
                self.play(coming);
                self.check();
            }
        }
        self.now = end;
    }

    /// Nothing goes wrong any more and nobody comes any more: all are served, leave, and leave nothing behind.
    pub(super) fn come_to_rest(&mut self) {
        self.chaos = Chaos::CALM;
        self.open = false;
        for agent in &mut self.agents {
            agent.cut_until = self.now;
        }
        // A session may have to run out, and every failed request be tried again: bounded by some TTLs a client.
        self.run(TTL * 30);
        for (place, agent) in self.agents.iter().enumerate() {
            let phase = agent.keeper.machine(NAME).map(|machine| machine.phase().clone());
            assert!(agent.keeper.has_ended(), "seed {}: agent {place} was not served: {phase:?}", self.seed);
        }
        self.consul.store.tick(self.now);
        let keys: Vec<Pair> = self.consul.list().pairs;
        let left: Vec<_> = keys.iter().filter(|pair| !pair.key.ends_with("/.lock")).collect();
        assert!(left.is_empty(), "seed {}: contenders are left: {left:?}", self.seed);
        assert!(self.consul.store.sessions().found.is_empty(), "seed {}: sessions are left", self.seed);
        assert!(self.served > 0, "seed {}: nobody was served", self.seed);
        self.assert_next_one_finds_all_free();
    }

    /// What a crashed holder has left in the record is pruned by the next one that comes.
    fn assert_next_one_finds_all_free(&mut self) {
        let visitor = self.new_agent(None);
        self.agents = vec![visitor];
        self.act(0);
        self.run(TTL * 5);
        assert!(self.agents[0].keeper.has_ended(), "seed {}: the last one was not served", self.seed);
        let view = View::new("sim", self.consul.list().pairs, 0);
        let record = view.record().expect("a record");
        assert!(record.holders.is_empty(), "seed {}: {record:?}", self.seed);
    }

    fn new_agent(&mut self, resume: Option<Resume>) -> Agent {
        self.lives += 1;
        Agent::new(self.lives, self.limit, resume, &mut self.rng, self.now)
    }

    fn later(&mut self, after: Duration, coming: Coming) {
        self.number += 1;
        self.queue.push(Reverse((self.now + after, self.number)));
        self.coming.insert(self.number, coming);
    }

    fn delay(&mut self) -> Duration {
        // Mostly near; now and then an answer takes long, up to beyond what is waited for.
        let micros = if self.chaos.lost > 0.0 && self.rng.u32(..50) == 0 { 4_000_000 } else { 5_000 };
        Duration::from_micros(self.rng.u64(200..micros))
    }

    fn play(&mut self, coming: Coming) {
        match coming {
            Coming::Request { agent, life, command, watch } => self.request(agent, life, command, watch),
            Coming::Answer { agent, life, event, watch } => {
                if self.agents[agent].life != life
                    || watch.is_some_and(|watch| watch != self.agents[agent].watch)
                {
                    return;
                }
                let pause = self.agents[agent].paused_until.since(self.now);
                if !pause.is_zero() {
                    return self.later(pause, Coming::Answer { agent, life, event, watch });
                }
                self.agents[agent].keeper.handle(event, self.now);
                self.act(agent);
            }
            Coming::Timer { agent, timer } => {
                if self.agents[agent].timer != timer {
                    return;
                }
                let pause = self.agents[agent].paused_until.since(self.now);
                if !pause.is_zero() {
                    return self.later(pause, Coming::Timer { agent, timer });
                }
                self.agents[agent].keeper.tick(self.now);
                self.act(agent);
            }
            Coming::WaitOver { number } => {
                if let Some(waiting) = self.waiting.remove(&number) {
                    self.wake(waiting);
                }
            }
            Coming::Chaos => self.go_wrong(),
        }
        self.wake_changed();
    }

    fn request(&mut self, agent: usize, life: u64, command: Command, watch: u64) {
        let id = Uuid::from_u128(self.rng.u128(..));
        match self.consul.serve(&command, id, self.now) {
            Some(event) => self.answer(agent, life, &command, event, watch),
            None => {
                let Command::Watch { after, wait, .. } = command else { unreachable!("only a watch waits") };
                self.number += 1;
                let number = self.number;
                self.later(wait, Coming::WaitOver { number });
                self.waiting.insert(number, Waiting { agent, life, command, watch, after });
            }
        }
    }

    /// The answer travels back, or is lost, and then the waiting for it ends.
    fn answer(&mut self, agent: usize, life: u64, command: &Command, event: Event, watch: u64) {
        let cut = self.agents[agent].life == life && self.agents[agent].cut_until > self.now;
        let (after, event) = if cut || self.rng.f64() < self.chaos.lost {
            (patience(command), unanswered(command))
        } else {
            (self.delay(), event)
        };
        let watch = is_watch(command).then_some(watch);
        self.later(after, Coming::Answer { agent, life, event, watch });
    }

    fn wake(&mut self, waiting: Waiting) {
        let Waiting { agent, life, command, watch, .. } = waiting;
        let Command::Watch { name, .. } = &command else { return };
        let event = Event::Watched(name.clone(), Ok(self.consul.list()));
        self.answer(agent, life, &command, event, watch);
    }

    fn wake_changed(&mut self) {
        self.consul.store.tick(self.now);
        let index = self.consul.list().index;
        let mut changed: Vec<_> = self
            .waiting
            .iter()
            .filter(|(_, waiting)| waiting.after != index)
            .map(|(number, _)| *number)
            .collect();
        changed.sort_unstable();
        for number in changed {
            if let Some(waiting) = self.waiting.remove(&number) {
                self.wake(waiting);
            }
        }
    }

    /// Carries out what the agent's keeper has decided, and lets its workload live.
    fn act(&mut self, place: usize) {
        while let Some(command) = self.agents[place].keeper.next_command() {
            match command {
                Command::Tell(notice) => self.told(place, &notice),
                Command::StopWatch { .. } => self.agents[place].watch += 1,
                command @ (Command::CreateSession
                | Command::RenewSession { .. }
                | Command::DestroySession { .. }
                | Command::List { .. }
                | Command::Watch { .. }
                | Command::Commit { .. }) => self.send(place, command),
            }
        }
        let agent = &mut self.agents[place];
        if agent.leaves_at.is_some_and(|at| at <= self.now) && !agent.draining {
            agent.draining = true;
            agent.keeper.drain(self.now);
            return self.act(place);
        }
        let wakes = [agent.keeper.deadline(), agent.leaves_at.filter(|_| !agent.draining)]
            .into_iter()
            .flatten()
            .min();
        if agent.keeper.has_ended() {
            if self.open {
                self.agents[place] = self.new_agent(None);
                self.act(place);
            }
        } else if let Some(at) = wakes {
            // The latest is the one that counts.
            self.number += 1;
            let timer = self.number;
            agent.timer = timer;
            self.later(at.since(self.now), Coming::Timer { agent: place, timer });
        }
    }

    fn send(&mut self, place: usize, command: Command) {
        let agent = &mut self.agents[place];
        if is_watch(&command) {
            agent.watch += 1;
        }
        let (life, watch, cut) = (agent.life, agent.watch, agent.cut_until > self.now);
        if cut || self.rng.f64() < self.chaos.lost {
            let (after, event) = (patience(&command), unanswered(&command));
            let watch = is_watch(&command).then_some(watch);
            return self.later(after, Coming::Answer { agent: place, life, event, watch });
        }
        let delay = self.delay();
        self.later(delay, Coming::Request { agent: place, life, command, watch });
    }

    fn told(&mut self, place: usize, notice: &Notice) {
        let seed = self.seed;
        let session = self.agents[place].keeper.session().cloned();
        let agent = &mut self.agents[place];
        if let Notice::Acquired { token, .. } = notice {
            let session = session.expect("a session");
            // An answer may come long after the grant: what counts is what had ended by the grant.
            let before = self.ended.iter().filter(|(end, _)| end <= token);
            let highest = before.map(|(_, token)| *token).max();
            assert!(highest.is_none_or(|highest| highest < *token), "seed {seed}: {token} after {highest:?}");
            let told = self.told.insert(session.clone(), *token);
            assert!(told.is_none_or(|told| told <= *token), "seed {seed}: {token} after {told:?}");
            self.tokens.insert(session, *token);
            agent.leaves_at = Some(self.now + agent.work);
            self.served += 1;
        }
        if let Notice::Lost { .. } = notice {
            // The work was stopped, and begins again with the next slot.
            agent.leaves_at = None;
        }
    }

    fn go_wrong(&mut self) {
        self.later(Duration::from_millis(100), Coming::Chaos);
        if self.rng.f64() < self.chaos.meddle {
            self.meddle();
        }
        for place in 0..self.agents.len() {
            if self.rng.f64() < self.chaos.crash {
                // Half of them come back with their state file.
                let resume = self.agents[place].state().filter(|_| self.rng.bool());
                self.agents[place] = self.new_agent(resume);
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
        let pairs = self.consul.list().pairs;
        let Some(victim) = self.rng.choice(&pairs).cloned() else { return };
        match victim.session {
            Some(session) if self.rng.bool() => self.consul.destroy(&session, self.now),
            Some(_) => self.consul.store.delete(&victim.key, self.now),
            None => self.consul.store.set(emptied(&victim), self.now),
        }
    }

    fn check(&mut self) {
        let believers = self.agents.iter().filter(|agent| agent.believes());
        let slots: u32 = believers.map(|agent| agent.slots).sum();
        assert!(
            self.meddled || slots <= self.limit,
            "seed {}: {slots} slots are believed to be held",
            self.seed
        );
        let view = View::new("sim", self.consul.list().pairs, 0);
        if let Some(record) = view.record() {
            assert!(record.taken() <= self.limit, "seed {}: {record:?}", self.seed);
            let (tokens, ended, index) = (&mut self.tokens, &mut self.ended, view.lock_index());
            tokens.retain(|session, token| {
                let holds = record.slots_of(session) > 0;
                if !holds {
                    ended.push((index, *token));
                }
                holds
            });
        }
    }
}

/// A record from which an operator has taken everybody out.
fn emptied(pair: &Pair) -> Write {
    let mut record = Record::decode(&pair.value, pair.flags).expect("a record");
    record.holders.clear();
    Write { key: pair.key.clone(), value: record.encode().into(), flags: pair.flags }
}

fn is_watch(command: &Command) -> bool {
    matches!(command, Command::Watch { .. })
}
