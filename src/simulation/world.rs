//! The scheduler: one queue of things to come, played in order of their time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use uuid::Uuid;

use super::agent::Agent;
use super::consul::{Consul, SEMAPHORES, TTL, patience, unanswered};
use super::foreign::Foreign;
use super::referee::Referee;
use super::rules;
use crate::embedded::store::kv::Write;
use crate::semaphore::{Command, Commit, Event, Form, Moment, Notice, Pair, Record, Resume, plan};

/// Who plays, and for what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Game {
    /// Agents at a time.
    pub(super) agents: usize,
    /// Other clients at a time.
    pub(super) foreigners: usize,
    pub(super) limit: u32,
    pub(super) form: Form,
    /// Some agents want several slots.
    pub(super) weights: bool,
    /// Some agents have a priority.
    pub(super) priorities: bool,
    /// There are two semaphores, and most agents want both together; one takes them one by one.
    pub(super) parties: bool,
    pub(super) chaos: Chaos,
}

/// What goes wrong, each as the chance of it in one of the moments when it may.
#[derive(Clone, Copy, Debug, PartialEq)]
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
    /// In a tenth of a second an operator sets another limit.
    pub(super) resize: f64,
}

impl Chaos {
    pub(super) const CALM: Self =
        Self { lost: 0.0, crash: 0.0, pause: 0.0, cut: 0.0, meddle: 0.0, resize: 0.0 };
}

/// A free slot and a waiter that fits meet within this where nothing goes wrong, but for clients of other kinds that
/// are left their turn.
const IDLE_IN_CALM: Duration = Duration::from_millis(500);
/// Where anything goes wrong: a head that is cut off keeps its place until its session ends, answers are waited for,
/// and what was not told is found by the next listing.
const IDLE: Duration = Duration::from_secs(60);

/// Something to come. Those that concern an agent name the life they belong to.
#[derive(Debug)]
enum Coming {
    /// A request reaches Consul.
    Request { agent: usize, life: u64, command: Command, watch: u64 },
    /// An answer, or the end of waiting for one, reaches the agent.
    Answer { agent: usize, life: u64, event: Event, watch: u64 },
    /// Another client's next step.
    Foreign { place: usize },
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
}

pub(super) struct World {
    seed: u64,
    rng: fastrand::Rng,
    game: Game,
    chaos: Chaos,
    now: Moment,
    queue: BinaryHeap<Reverse<(Moment, u64)>>,
    coming: HashMap<u64, Coming>,
    number: u64,
    consul: Consul,
    waiting: HashMap<u64, Waiting>,
    agents: Vec<Agent>,
    foreigners: Vec<Foreign>,
    lives: u64,
    referees: Vec<Referee>,
    served: u64,
    /// The store's index at the last check.
    checked: u64,
    /// New agents take the place of those that have left.
    open: bool,
}

impl World {
    pub(super) fn new(seed: u64, game: Game) -> Self {
        let calm = game.chaos == Chaos::CALM;
        let idle = if calm { IDLE_IN_CALM } else { IDLE };
        let mut world = Self {
            seed,
            rng: fastrand::Rng::with_seed(seed),
            game,
            chaos: game.chaos,
            now: Moment::from_boot(Duration::from_secs(1000)),
            queue: BinaryHeap::new(),
            coming: HashMap::new(),
            number: 0,
            consul: Consul::new(TTL),
            waiting: HashMap::new(),
            agents: Vec::new(),
            foreigners: Vec::new(),
            lives: 0,
            referees: SEMAPHORES.map(|name| Referee::new(seed, name, idle, game.chaos.meddle > 0.0)).into(),
            served: 0,
            checked: 0,
            open: true,
        };
        for place in 0..game.agents {
            let agent = world.new_agent(place, None);
            world.agents.push(agent);
            world.act(place);
        }
        for place in 0..game.foreigners {
            world.foreigners.push(Foreign::new(game.form, game.limit, &mut world.rng));
            let wait = Duration::from_millis(world.rng.u64(..100));
            world.later(wait, Coming::Foreign { place });
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

    fn new_agent(&mut self, place: usize, resume: Option<Resume>) -> Agent {
        self.lives += 1;
        let resume = resume.map(|resume| (resume, &self.agents[place]));
        Agent::new(self.lives, self.game, place == 0, resume, &mut self.rng, self.now)
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
        if std::env::var_os("SLOTKEEPER_SIM_TRACE").is_some() {
            eprintln!("{:?} {coming:?}", self.now.since_boot());
        }
        match coming {
            Coming::Request { agent, life, command, watch } => self.request(agent, life, command, watch),
            Coming::Answer { agent, life, event, watch } => {
                let called_off = |key| self.agents[agent].watches.get(key) != Some(&watch);
                if self.agents[agent].life != life || watched(&event).is_some_and(called_off) {
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
            Coming::Foreign { place } => self.foreign(place),
            Coming::Chaos => self.go_wrong(),
        }
        self.wake_changed();
    }

    fn request(&mut self, agent: usize, life: u64, command: Command, watch: u64) {
        let id = Uuid::from_u128(self.rng.u128(..));
        match self.consul.serve(&command, id, self.now) {
            Some(event) => self.answer(agent, life, &command, event, watch),
            None => {
                let Command::Watch { wait, .. } = command else { unreachable!("only a watch waits") };
                self.number += 1;
                let number = self.number;
                self.later(wait, Coming::WaitOver { number });
                self.waiting.insert(number, Waiting { agent, life, command, watch });
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
        self.later(after, Coming::Answer { agent, life, event, watch });
    }

    fn foreign(&mut self, place: usize) {
        let after = self.foreigners[place].step(&mut self.consul, &mut self.rng, self.now);
        if self.foreigners[place].done {
            if !self.open {
                return;
            }
            self.foreigners[place] = Foreign::new(self.game.form, self.game.limit, &mut self.rng);
        }
        self.later(after, Coming::Foreign { place });
    }

    fn wake(&mut self, waiting: Waiting) {
        let Waiting { agent, life, command, watch } = waiting;
        let Command::Watch { name, key, .. } = &command else { return };
        let event = Event::Watched(name.clone(), key.clone(), Ok(self.consul.read(key)));
        self.answer(agent, life, &command, event, watch);
    }

    fn wake_changed(&mut self) {
        self.consul.store.tick(self.now);
        let has_changed = |waiting: &Waiting| {
            let Command::Watch { key, after, .. } = &waiting.command else { return false };
            self.consul.store.key(key).index > *after
        };
        let mut changed: Vec<_> = self
            .waiting
            .iter()
            .filter(|(_, waiting)| has_changed(waiting))
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
                Command::StopWatch { key, .. } => {
                    self.agents[place].watches.remove(&key);
                }
                command @ (Command::CreateSession
                | Command::RenewSession { .. }
                | Command::DestroySession { .. }
                | Command::List { .. }
                | Command::Look { .. }
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
                self.agents[place] = self.new_agent(place, None);
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
        self.number += 1;
        let watch = self.number;
        let agent = &mut self.agents[place];
        if let Command::Watch { key, .. } = &command {
            agent.watches.insert(key.clone(), watch);
        }
        let (life, cut) = (agent.life, agent.cut_until > self.now);
        if cut || self.rng.f64() < self.chaos.lost {
            let (after, event) = (patience(&command), unanswered(&command));
            return self.later(after, Coming::Answer { agent: place, life, event, watch });
        }
        let delay = self.delay();
        self.later(delay, Coming::Request { agent: place, life, command, watch });
    }

    fn told(&mut self, place: usize, notice: &Notice) {
        if let Notice::Acquired { name, session, token, .. } = notice {
            let referee = self.referees.iter_mut().find(|referee| *referee.name == **name);
            referee.expect("a semaphore").acquired(session.clone(), *token);
        }
        let agent = &mut self.agents[place];
        if !agent.is_ready() {
            // The work was stopped, and begins again with the next slot.
            agent.leaves_at = None;
        } else if agent.leaves_at.is_none() {
            agent.leaves_at = Some(self.now + agent.work);
            self.served += 1;
        }
    }

    fn go_wrong(&mut self) {
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
    fn resize(&mut self, limit: u32) {
        for name in SEMAPHORES {
            if let Ok(Some(write)) = plan::set_limit(&self.consul.view(name), limit, "", self.now) {
                let commit = self.consul.commit(&write.ops, self.now);
                assert!(matches!(commit, Commit::Done { .. }), "read and written in one step");
            }
        }
    }

    fn check(&mut self) {
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

    fn check_parties(&self) {
        let views = SEMAPHORES.map(|name| self.consul.view(name));
        let parties = self.agents.iter().filter(|agent| agent.together);
        for session in parties.filter_map(|agent| agent.keeper.session()) {
            if let Err(broken) = rules::together(&views, session) {
                panic!("seed {}: {broken}", self.seed);
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

fn watched(event: &Event) -> Option<&String> {
    if let Event::Watched(_, key, _) = event { Some(key) } else { None }
}
