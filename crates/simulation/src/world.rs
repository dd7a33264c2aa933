//! The scheduler: one queue of future steps, played in order of their time.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::agent::{Agent, Stopping};
use super::configuration::Configuration;
use super::consul::{Consul, SEMAPHORES, TTL, patience, unanswered};
use super::foreign::{Foreign, Habit};
use super::intervals;
use super::referee::{Client, Referee};
use super::rules::Sight;
use super::store_state::{Change, changes};
use promises::Promises;
use slotkeeper_consul_dev::store::kv::{Entry, Write};
use slotkeeper_semaphore::{
    Command, Commit, Event, FailureKind, Form, LimitPolicy, LossReason, Moment, Name, Notice, Op, Pair,
    Phase, Primitive, Record, Resume, SessionId, View, plan,
};
use waits::{Waiting, Waits};

mod chaos;
mod checks;
mod network;
mod other_clients;
mod promises;
mod waits;
mod workload;

pub(super) use chaos::Chaos;

/// When a game begins.
const START: Moment = Moment::from_boot(Duration::from_secs(1000));
/// The maximum time that a workload takes to stop after an eviction.
const TO_STOP: Duration = Duration::from_secs(3);

/// The participants of a game, and the rules of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Game {
    /// The primitive that all participants use.
    pub(super) primitive: Primitive,
    /// The number of agents at a time.
    pub(super) agents: usize,
    /// The number of foreign clients at a time.
    pub(super) foreigners: usize,
    /// The number of foreign clients that poll for a free slot.
    pub(super) pollers: usize,
    /// The number of foreign clients that wait in the queue and never act.
    pub(super) idlers: usize,
    pub(super) limit: u32,
    pub(super) form: Form,
    /// Some agents acquire several slots.
    pub(super) weights: bool,
    /// Some agents have a priority.
    pub(super) priorities: bool,
    /// There are two semaphores. Most agents acquire both as an acquire group; one agent acquires them one by one.
    pub(super) groups: bool,
    /// Some agents have a different limit or a different limit policy in their configuration.
    pub(super) policies: bool,
    /// Some agents have a maximum wait, or try once.
    pub(super) waits: bool,
    /// The lock-delay of all sessions.
    pub(super) lock_delay: Duration,
    /// The prune delay: the time before a dead holder may be pruned.
    pub(super) prune_delay: Duration,
    /// The number of TTLs between the last renewal of a session and its end. Consul promises at least one.
    pub(super) lasts: u32,
    pub(super) watches: Watches,
    /// All agents start at one instant. At this interval, all holders leave at one instant; when all agents have left, all start
    /// again.
    pub(super) storm: Option<Duration>,
    /// Each agent runs one command of about this length, under a guard, and no other agent comes in its stead.
    pub(super) run: Option<Duration>,
    pub(super) chaos: Chaos,
}

/// What happens to the answers to agents' watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watches {
    /// They are delayed and lost like any other answer. A listing finds what they did not report.
    Usual,
    /// Every answer arrives, though it may be late. Agents also list at intervals of half a TTL and more.
    Arrive,
    /// No answer reports a change, so that listings find everything.
    Never,
}

impl Game {
    /// The interval at which faults may happen.
    pub(super) fn tick(self) -> Duration {
        if self.watches == Watches::Never { Duration::from_secs(1) } else { Duration::from_millis(100) }
    }

    /// The length of the game.
    pub(super) fn time(self) -> Duration {
        match self.watches {
            Watches::Never => intervals::OTHERS * 2,
            Watches::Usual | Watches::Arrive if self.chaos.node > 0.0 => TTL * 20,
            Watches::Usual | Watches::Arrive => Duration::from_secs(40),
        }
    }

    pub(super) fn is_of_locks(self) -> bool {
        matches!(self.primitive, Primitive::Lock { .. })
    }
}

/// A future step. A step of an agent names the life that it belongs to.
#[derive(Debug)]
enum Coming {
    /// A request reaches Consul.
    Request { agent: usize, life: u64, command: Command, watch: u64 },
    /// An answer, or its time-out, reaches the agent.
    Answer { agent: usize, life: u64, event: Event, watch: u64 },
    /// The next step of a foreign client.
    Foreign { place: usize, timer: u64 },
    /// The session of a process that was killed ends.
    Expire { session: SessionId },
    /// All agents start again.
    Wave,
    /// An agent's timer.
    Timer { agent: usize, timer: u64 },
    /// The wait of a blocking read ends.
    WaitOver { number: u64 },
    /// Faults may happen.
    Chaos,
    /// The transaction that an operator planned reaches Consul, unless it is outdated.
    OperatorWrite { ops: Vec<Op> },
    /// A workload has stopped after its slot was lost.
    Stopped { agent: usize, life: u64, name: Name, number: u64 },
    /// An operator fixes an invalid `.lock`.
    Fix { name: &'static str },
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
    waits: Waits,
    agents: Vec<Agent>,
    foreigners: Vec<Foreign>,
    lives: u64,
    /// The clients that write, by life.
    clients: HashMap<u64, Client>,
    /// The life whose transaction the current step is.
    by: Option<u64>,
    referees: Vec<Referee>,
    served: u64,
    promises: [Promises; SEMAPHORES.len()],
    /// The transactions that Consul has committed, and those that it has refused because a key had changed.
    transactions: (u32, u32),
    /// When a node died last.
    node_died: Option<Moment>,
    /// Since when a lock has been free while an agent waits for it.
    lock_idle_since: Option<Moment>,
    /// The store's index at the last check.
    seen: u64,
    /// The store's entries at the last check.
    stored: Vec<Arc<Entry>>,
    /// The agents that changed in the current step.
    touched: BTreeSet<usize>,
    /// The slots that each agent considers held, by semaphore.
    occupied: Vec<[u32; SEMAPHORES.len()]>,
    /// Every step is printed.
    traced: bool,
    /// New agents replace the agents that have left.
    open: bool,
}

impl World {
    pub(super) fn new(seed: u64, game: Game) -> Self {
        let mut world = Self {
            seed,
            rng: fastrand::Rng::with_seed(seed),
            game,
            chaos: game.chaos,
            now: START,
            queue: BinaryHeap::new(),
            coming: HashMap::new(),
            number: 0,
            consul: Consul::new(TTL, game.lasts, game.primitive, game.lock_delay),
            waits: Waits::default(),
            agents: Vec::new(),
            foreigners: Vec::new(),
            lives: 0,
            clients: HashMap::new(),
            by: None,
            referees: SEMAPHORES.map(|name| Referee::new(seed, name, game)).into(),
            served: 0,
            promises: Default::default(),
            transactions: (0, 0),
            node_died: None,
            lock_idle_since: None,
            seen: 0,
            stored: Vec::new(),
            touched: BTreeSet::new(),
            occupied: vec![[0; SEMAPHORES.len()]; game.agents],
            traced: std::env::var_os("SLOTKEEPER_SIM_TRACE").is_some(),
            open: game.run.is_none(),
        };
        for place in 0..game.agents {
            let agent = world.new_agent(place, None);
            world.agents.push(agent);
            world.act(place);
        }
        let habits =
            [(Habit::Waits, game.foreigners), (Habit::Polls, game.pollers), (Habit::Idles, game.idlers)];
        let habits = habits.into_iter().flat_map(|(habit, times)| std::iter::repeat_n(habit, times));
        for (place, habit) in habits.enumerate() {
            world.foreigners.push(Foreign::new(game.form, game.limit, habit, &mut world.rng));
            let wait = Duration::from_millis(world.rng.u64(..100));
            world.foreign_later(place, wait);
        }
        world.later(game.tick(), Coming::Chaos);
        world
    }

    /// Plays for this time.
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

    /// A process that restarts with its state file usually has the same configuration as before.
    fn new_agent(&mut self, place: usize, resume: Option<Resume>) -> Agent {
        let changes = self.chaos.reload > 0.0 && self.rng.bool();
        let before = self.agents.get(place).filter(|_| resume.is_some() && !changes);
        let configuration = match before {
            Some(before) => before.configuration.clone(),
            // Two agents that acquire both semaphores one by one could deadlock.
            None => Configuration::new(self.game, place == 0 && !changes, &mut self.rng),
        };
        self.lives += 1;
        let client = self.clients.entry(self.lives).or_default();
        client.may(&configuration);
        client.sessions.extend(resume.iter().map(|resume| resume.session.clone()));
        let mut agent = Agent::new(self.lives, configuration, resume, &mut self.rng, self.now);
        if let Some(run) = self.game.run {
            (agent.work, agent.guarded) = (run.mul_f64(0.9 + 0.2 * self.rng.f64()), true);
        }
        agent
    }

    fn later(&mut self, after: Duration, coming: Coming) {
        self.number += 1;
        self.queue.push(Reverse((self.now + after, self.number)));
        self.coming.insert(self.number, coming);
    }

    fn play(&mut self, coming: Coming) {
        self.by = None;
        self.come(coming);
        self.consul.tick(self.now);
        self.see();
    }

    fn come(&mut self, coming: Coming) {
        if self.traced {
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
                let decides = matches!(event, Event::Listed(..) | Event::LockRead(..) | Event::Committed(..));
                if decides && self.happens(self.chaos.dies) {
                    return self.crash(agent);
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
                if let Some(waiting) = self.waits.end(number) {
                    self.wake(waiting);
                }
            }
            Coming::Foreign { place, timer } if self.foreigners[place].timer == timer => self.foreign(place),
            Coming::Foreign { .. } => {}
            Coming::Expire { session } => self.consul.destroy(&session, self.now),
            Coming::Wave => self.wave(),
            Coming::Chaos => self.go_wrong(),
            Coming::OperatorWrite { ops } => drop(self.consul.commit(&ops, self.now)),
            Coming::Fix { name } => self.fix(name),
            Coming::Stopped { agent, life, name, number } => {
                let this = |stopping: &Stopping| stopping.number == number;
                if self.agents[agent].life != life
                    || !self.agents[agent].stopping.get(&name).is_some_and(this)
                {
                    return;
                }
                let pause = self.agents[agent].paused_until.since(self.now);
                if !pause.is_zero() {
                    return self.later(pause, Coming::Stopped { agent, life, name, number });
                }
                self.agents[agent].stopping.remove(&name);
                self.agents[agent].keeper.workload_stopped(&name, self.now);
                self.act(agent);
            }
        }
    }

    /// Starts all agents at once.
    fn wave(&mut self) {
        if !self.open {
            return;
        }
        for place in 0..self.agents.len() {
            self.agents[place] = self.new_agent(place, None);
            self.act(place);
        }
    }

    /// The next instant at which all holders leave.
    fn next_wave(&self, every: Duration) -> Moment {
        let since = self.now.since(START).as_nanos();
        START + every * u32::try_from(since / every.as_nanos() + 1).expect("a short game")
    }

    /// Passes the changes of the store to the blocking reads that wait for them, and to the referees.
    fn see(&mut self) {
        let index = self.consul.store.index();
        if std::mem::replace(&mut self.seen, index) == index {
            return;
        }
        let stored = self.consul.all();
        let changes = changes(&self.stored, &stored);
        self.stored = stored;
        for waiting in self.waits.changed(&changes, &self.consul) {
            self.wake(waiting);
        }
        self.wake_others();
        self.judge(&changes, index);
    }

    /// Executes the commands of the agent's keeper, and advances its workload.
    fn act(&mut self, place: usize) {
        self.touched.insert(place);
        self.agents[place].stopped &= self.agents[place].paused_until > self.now;
        while let Some(command) = self.agents[place].keeper.next_command() {
            match command {
                Command::Notify(notice) => self.notice(place, &notice),
                Command::StopWatch { key, .. } => {
                    self.agents[place].watches.remove(&key);
                }
                command @ (Command::CreateSession
                | Command::RenewSession { .. }
                | Command::DestroySession { .. }
                | Command::List { .. }
                | Command::ReadLock { .. }
                | Command::ReadKeys { .. }
                | Command::Watch { .. }
                | Command::Commit { .. }) => {
                    let reads = matches!(command, Command::List { .. } | Command::ReadLock { .. });
                    self.send(place, command);
                    if reads && self.happens(self.chaos.dies) {
                        return self.crash(place);
                    }
                }
            }
        }
        let agent = &mut self.agents[place];
        if agent.leaves_at.is_some_and(|at| at <= self.now) && !agent.draining {
            let ends = self.game.storm.is_none() && self.game.run.is_none();
            if agent.ending.is_none() && ends && self.rng.bool() {
                let to_stop = TO_STOP.mul_f64(self.rng.f64());
                self.end(place, to_stop);
                return self.act(place);
            }
            agent.draining = true;
            // An agent is stopped after its workload.
            agent.stopping.clear();
            agent.keeper.drain(self.now);
            return self.act(place);
        }
        let wakes = [agent.keeper.deadline(), agent.leaves_at.filter(|_| !agent.draining)]
            .into_iter()
            .flatten()
            .min();
        if agent.dies_while_it_owes() {
            // Nothing reaches it any more.
            agent.life = 0;
        }
        if agent.is_gone() {
            match self.game.storm {
                _ if !self.open => {}
                None => {
                    self.agents[place] = self.new_agent(place, None);
                    self.act(place);
                }
                Some(every) if self.agents.iter().all(Agent::is_gone) => {
                    let next = self.next_wave(every);
                    self.later(next.since(self.now), Coming::Wave);
                }
                Some(_) => {}
            }
        } else if let Some(at) = wakes {
            // Only the latest timer is valid.
            self.number += 1;
            let timer = self.number;
            agent.timer = timer;
            self.later(at.since(self.now), Coming::Timer { agent: place, timer });
        }
    }
}

fn watched(event: &Event) -> Option<&String> {
    if let Event::Watched(_, key, _) = event { Some(key) } else { None }
}
