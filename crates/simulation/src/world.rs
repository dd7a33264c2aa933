//! The scheduler: one queue of things to come, played in order of their time.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::agent::{Agent, Stopping};
use super::configuration::Configuration;
use super::consul::{Consul, SEMAPHORES, TTL, patience, unanswered};
use super::earlier_version::EarlierClient;
use super::foreign::{Foreign, Habit};
use super::intervals;
use super::referee::{Client, Referee};
use super::rules::Sight;
use super::store_state::{Change, changes};
use slotkeeper_consul_dev::store::kv::{Entry, Write};
use slotkeeper_semaphore::{
    Command, Commit, Event, FailureKind, Form, LimitPolicy, LossReason, Moment, Name, Notice, Op, Pair,
    Phase, Primitive, Record, Resume, SessionId, View, plan,
};
use waits::{Waiting, Waits};

mod chaos;
mod checks;
mod promises;
mod waits;

pub(super) use chaos::Chaos;

/// When a game begins.
const START: Moment = Moment::from_boot(Duration::from_secs(1000));
/// The longest that a workload takes to stop whose slot an operator wants.
const TO_STOP: Duration = Duration::from_secs(3);

/// Who plays, and for what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Game {
    /// What all of them want: slots of semaphores, or a lock.
    pub(super) primitive: Primitive,
    /// Agents at a time.
    pub(super) agents: usize,
    /// Slotkeepers of the version before at a time.
    pub(super) earlier_clients: usize,
    /// Other clients at a time.
    pub(super) foreigners: usize,
    /// Those that look only now and then whether there is room.
    pub(super) pollers: usize,
    /// Those that stand in line and never act.
    pub(super) idlers: usize,
    pub(super) limit: u32,
    pub(super) form: Form,
    /// Some agents want several slots.
    pub(super) weights: bool,
    /// Some agents have a priority.
    pub(super) priorities: bool,
    /// There are two semaphores, and most agents want both together; one takes them one by one.
    pub(super) groups: bool,
    /// Agents have another limit in their configuration, or another policy where it differs from the one in force.
    pub(super) policies: bool,
    /// Some agents wait for so long only, or try once.
    pub(super) waits: bool,
    /// How long a dead holder's slot rests.
    pub(super) prune_delay: Duration,
    /// How many TTLs after its last renewal a session ends: one is the earliest that Consul promises.
    pub(super) lasts: u32,
    pub(super) watches: Watches,
    /// All agents come at one instant. As often as that, all that hold leave at one; when all have left, all come again.
    pub(super) storm: Option<Duration>,
    pub(super) chaos: Chaos,
}

/// What becomes of the answers to agents' watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watches {
    /// They are late and lost as any other's, and what they did not tell is found by a listing.
    Usual,
    /// Each arrives, be it late, and nobody lists for want of news.
    Arrive,
    /// None tells anything new, so that all is found by listings.
    Never,
}

impl Watches {
    /// Whether agents list now and then although nothing was told.
    pub(super) fn slow_reconcile(self) -> bool {
        self != Self::Arrive
    }
}

impl Game {
    /// How often something may go wrong.
    pub(super) fn tick(self) -> Duration {
        if self.watches == Watches::Never { Duration::from_secs(1) } else { Duration::from_millis(100) }
    }

    /// How long is played.
    pub(super) fn time(self) -> Duration {
        if self.watches == Watches::Never { intervals::OTHERS * 2 } else { Duration::from_secs(40) }
    }

    pub(super) fn is_of_locks(self) -> bool {
        matches!(self.primitive, Primitive::Lock { .. })
    }
}

/// Something to come. Those that concern an agent name the life they belong to.
#[derive(Debug)]
enum Coming {
    /// A request reaches Consul.
    Request { agent: usize, life: u64, command: Command, watch: u64 },
    /// An answer, or the end of waiting for one, reaches the agent.
    Answer { agent: usize, life: u64, event: Event, watch: u64 },
    /// Another client's next step.
    Foreign { place: usize, timer: u64 },
    /// The next step of a slotkeeper of the version before.
    EarlierClient { place: usize, timer: u64 },
    /// The session of a process that was killed ends.
    Expire { session: SessionId },
    /// All agents come again.
    Wave,
    /// An agent's timer.
    Timer { agent: usize, timer: u64 },
    /// A blocking read's wait is over.
    WaitOver { number: u64 },
    /// Something may go wrong.
    Chaos,
    /// What an operator has planned reaches Consul, if it is not too late.
    Tidy { ops: Vec<Op> },
    /// The workload has stopped that ran on a slot which was lost.
    Stopped { agent: usize, life: u64, name: Name, number: u64 },
    /// An operator mends a `.lock`.
    Mend { name: &'static str },
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
    earlier_clients: Vec<EarlierClient>,
    foreigners: Vec<Foreign>,
    lives: u64,
    /// Those who write, each by its life.
    clients: HashMap<u64, Client>,
    /// Sessions that two processes had at once.
    twins: HashSet<SessionId>,
    /// Whose transaction the present step is.
    by: Option<u64>,
    referees: Vec<Referee>,
    served: u64,
    /// Since when a slot and a waiter have stood side by side.
    owed_since: Option<Moment>,
    /// The same, while somebody looks out.
    neglected_since: Option<Moment>,
    /// Since when nobody has had a lock that somebody waits for.
    lock_idle_since: Option<Moment>,
    /// The store's index when it was last looked at.
    seen: u64,
    /// What lay in it then.
    stored: Vec<Arc<Entry>>,
    /// Agents that something has become of in the present step.
    touched: BTreeSet<usize>,
    /// The slots that each agent takes for its own, of each semaphore.
    occupied: Vec<[u32; SEMAPHORES.len()]>,
    /// Every step is printed.
    traced: bool,
    /// New agents take the place of those that have left.
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
            consul: Consul::new(TTL, game.lasts, game.primitive),
            waits: Waits::default(),
            agents: Vec::new(),
            earlier_clients: Vec::new(),
            foreigners: Vec::new(),
            lives: 0,
            clients: HashMap::new(),
            twins: HashSet::new(),
            by: None,
            referees: SEMAPHORES.map(|name| Referee::new(seed, name, game)).into(),
            served: 0,
            owed_since: None,
            neglected_since: None,
            lock_idle_since: None,
            seen: 0,
            stored: Vec::new(),
            touched: BTreeSet::new(),
            occupied: vec![[0; SEMAPHORES.len()]; game.agents],
            traced: std::env::var_os("SLOTKEEPER_SIM_TRACE").is_some(),
            open: true,
        };
        for place in 0..game.agents {
            let agent = world.new_agent(place, None, false);
            world.agents.push(agent);
            world.act(place);
        }
        for place in 0..game.earlier_clients {
            let earlier_client = world.new_earlier_client();
            world.earlier_clients.push(earlier_client);
            let wait = Duration::from_millis(world.rng.u64(..100));
            world.earlier_client_later(place, wait);
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

    /// A process that is started again with its state file mostly has the configuration that it had.
    fn new_agent(&mut self, place: usize, resume: Option<Resume>, contested: bool) -> Agent {
        let changes = self.chaos.reload > 0.0 && self.rng.bool();
        let before = self.agents.get(place).filter(|_| resume.is_some() && !changes);
        let configuration = match before {
            Some(before) => before.configuration.clone(),
            // Two that took one after the other could wait for each other for ever.
            None => Configuration::new(self.game, place == 0 && !changes, &mut self.rng),
        };
        self.agent_of(configuration, resume, contested)
    }

    /// `contested`: the process may still run whose session is resumed.
    fn agent_of(&mut self, configuration: Configuration, resume: Option<Resume>, contested: bool) -> Agent {
        self.lives += 1;
        let client = self.clients.entry(self.lives).or_default();
        client.may(&configuration);
        client.sessions.extend(resume.iter().map(|resume| resume.session.clone()));
        let slow_reconcile = self.game.watches.slow_reconcile();
        Agent::new(self.lives, configuration, (resume, contested), slow_reconcile, &mut self.rng, self.now)
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

    /// A request of the agent's, or its answer, takes that long.
    fn takes(&mut self, place: usize, time: Duration) {
        let agent = &mut self.agents[place];
        agent.answered_by = agent.answered_by.max(self.now + time);
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
            Coming::EarlierClient { place, timer } if self.earlier_clients[place].timer == timer => {
                self.earlier_client(place);
            }
            Coming::Foreign { .. } | Coming::EarlierClient { .. } => {}
            Coming::Expire { session } => self.consul.destroy(&session, self.now),
            Coming::Wave => self.wave(),
            Coming::Chaos => self.go_wrong(),
            Coming::Tidy { ops } => drop(self.consul.commit(&ops, self.now)),
            Coming::Mend { name } => self.mend(name),
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

    fn request(&mut self, agent: usize, life: u64, command: Command, watch: u64) {
        let id = Uuid::from_u128(self.rng.u128(..));
        match command {
            Command::Commit { .. } => self.by = Some(life),
            Command::CreateSession { .. } => {
                self.clients.entry(life).or_default().sessions.insert(id.to_string().into());
            }
            Command::RenewSession { .. }
            | Command::ClearSessions { .. }
            | Command::DestroySession { .. }
            | Command::List { .. }
            | Command::ReadLock { .. }
            | Command::ReadKeys { .. }
            | Command::ReadLockDelay { .. }
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

    /// A blocking read begins to wait.
    fn wait(&mut self, wait: Duration, waiting: Waiting) {
        self.number += 1;
        let number = self.number;
        self.later(wait, Coming::WaitOver { number });
        self.waits.begin(number, waiting, &self.consul, self.game.watches);
    }

    /// The answer travels back, or is lost, and then the waiting for it ends.
    fn answer(&mut self, agent: usize, life: u64, command: &Command, event: Event, watch: u64) {
        let cut = if self.agents[agent].life == life { self.cut(agent) } else { Duration::ZERO };
        let (after, event) =
            if self.is_lost(command, cut) { self.lost(command) } else { (cut + self.delay(), event) };
        let unheard = matches!(event, Event::Watched(_, _, Err(_)));
        if self.agents[agent].life == life && !unheard {
            self.takes(agent, after);
        }
        self.later(after, Coming::Answer { agent, life, event, watch });
    }

    /// For how long an agent is cut off yet.
    fn cut(&self, agent: usize) -> Duration {
        self.agents[agent].cut_until.since(self.now)
    }

    /// Whether a request or an answer is lost, where nothing passes for that long. A watch that is to arrive does so then.
    fn is_lost(&mut self, command: &Command, cut: Duration) -> bool {
        let arrives = self.game.watches == Watches::Arrive && matches!(command, Command::Watch { .. });
        !arrives && (!cut.is_zero() || self.rng.f64() < self.chaos.lost)
    }

    /// When and how a request without an answer ends: with its time, or, of a watch, where what lies between cuts it off.
    fn lost(&mut self, command: &Command) -> (Duration, Event) {
        let (after, mut event) = (patience(command), unanswered(command));
        if let Event::Watched(_, _, Err(failure)) = &mut event
            && self.rng.bool()
        {
            failure.kind = FailureKind::Cut;
            return (after.mul_f64(self.rng.f64()), event);
        }
        (after, event)
    }

    fn foreign(&mut self, place: usize) {
        let after = self.foreigners[place].step(&mut self.consul, &mut self.rng, !self.open, self.now);
        if self.foreigners[place].done {
            if !self.open {
                return;
            }
            self.foreigners[place] = self.foreigners[place].next(&mut self.rng);
        }
        self.foreign_later(place, after);
    }

    fn foreign_later(&mut self, place: usize, after: Duration) {
        // The latest is the one that counts.
        self.foreigners[place].timer = self.number + 1;
        self.later(after, Coming::Foreign { place, timer: self.number + 1 });
    }

    fn earlier_client(&mut self, place: usize) {
        let after = self.earlier_clients[place].step(&mut self.consul, &mut self.rng, self.now);
        if self.earlier_clients[place].done {
            if !self.open {
                return;
            }
            self.earlier_clients[place] = self.new_earlier_client();
            self.served += 1;
        }
        self.earlier_client_later(place, after);
    }

    fn new_earlier_client(&mut self) -> EarlierClient {
        let deaf = self.game.watches == Watches::Never;
        EarlierClient::new(self.game.limit, deaf, &mut self.rng, self.now)
    }

    fn earlier_client_later(&mut self, place: usize, after: Duration) {
        self.earlier_clients[place].timer = self.number + 1;
        self.later(after, Coming::EarlierClient { place, timer: self.number + 1 });
    }

    /// Clients that wait for a change hear of it.
    fn tell_others(&mut self) {
        for place in 0..self.foreigners.len() {
            if self.foreigners[place].hears() {
                let after = Duration::from_millis(self.rng.u64(1..40));
                self.foreign_later(place, after);
            }
        }
        for place in 0..self.earlier_clients.len() {
            if self.earlier_clients[place].hears(&self.consul) {
                let after = Duration::from_micros(self.rng.u64(200..5000));
                self.earlier_client_later(place, after);
            }
        }
    }

    /// All agents come at once.
    fn wave(&mut self) {
        if !self.open {
            return;
        }
        for place in 0..self.agents.len() {
            self.agents[place] = self.new_agent(place, None, false);
            self.act(place);
        }
    }

    /// The next instant at which all that hold leave.
    fn next_wave(&self, every: Duration) -> Moment {
        let since = self.now.since(START).as_nanos();
        START + every * u32::try_from(since / every.as_nanos() + 1).expect("a short game")
    }

    fn wake(&mut self, waiting: Waiting) {
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

    /// Looks at what has changed in the store: who waits for it is told, and the referees judge it.
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
        self.tell_others();
        self.judge(&changes, index);
    }

    /// Carries out what the agent's keeper has decided, and lets its workload live.
    fn act(&mut self, place: usize) {
        self.touched.insert(place);
        while let Some(command) = self.agents[place].keeper.next_command() {
            match command {
                Command::Notify(notice) => self.told(place, &notice),
                Command::StopWatch { key, .. } => {
                    self.agents[place].watches.remove(&key);
                }
                command @ (Command::CreateSession { .. }
                | Command::ClearSessions { .. }
                | Command::RenewSession { .. }
                | Command::DestroySession { .. }
                | Command::List { .. }
                | Command::ReadLock { .. }
                | Command::ReadKeys { .. }
                | Command::ReadLockDelay { .. }
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
            if agent.ending.is_none() && self.game.storm.is_none() && self.rng.bool() {
                let to_stop = TO_STOP.mul_f64(self.rng.f64());
                self.end(place, to_stop);
                return self.act(place);
            }
            agent.draining = true;
            // Whoever stops an agent has stopped its workload.
            agent.stopping.clear();
            agent.keeper.drain(self.now);
            return self.act(place);
        }
        let wakes = [agent.keeper.deadline(), agent.leaves_at.filter(|_| !agent.draining)]
            .into_iter()
            .flatten()
            .min();
        if agent.keeper.has_ended() {
            match self.game.storm {
                _ if !self.open => {}
                None => {
                    self.agents[place] = self.new_agent(place, None, false);
                    self.act(place);
                }
                Some(every) if self.agents.iter().all(|agent| agent.keeper.has_ended()) => {
                    let next = self.next_wave(every);
                    self.later(next.since(self.now), Coming::Wave);
                }
                Some(_) => {}
            }
        } else if let Some(at) = wakes {
            // The latest is the one that counts.
            self.number += 1;
            let timer = self.number;
            agent.timer = timer;
            self.later(at.since(self.now), Coming::Timer { agent: place, timer });
        }
    }

    /// It is going to drain after that long.
    fn end(&mut self, place: usize, after: Duration) {
        let agent = &mut self.agents[place];
        agent.ending = Some(self.now);
        agent.leaves_at = Some(self.now + after);
        agent.keeper.stop_acquiring(self.now);
    }

    fn send(&mut self, place: usize, command: Command) {
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
        let delay = cut + self.delay();
        self.takes(place, delay);
        self.later(delay, Coming::Request { agent: place, life, command, watch });
    }

    fn told(&mut self, place: usize, notice: &Notice) {
        if std::env::var_os("SLOTKEEPER_SIM_TRACE").is_some() {
            eprintln!("{:?} agent {place} tells {notice:?}", self.now.since_boot());
        }
        self.check_notice(place, notice);
        let agent = &mut self.agents[place];
        if let Notice::Lost { name, .. }
        | Notice::Released { name, .. }
        | Notice::Evicted { name, held: false, .. } = notice
        {
            agent.asks_again(name, self.now);
        }
        self.workload_told(place, notice);
        let agent = &mut self.agents[place];
        if matches!(notice, Notice::Acquired { .. }) && place % 2 == 1 {
            // As of the leases of one agent, of which one knows for all who else takes part.
            agent.keeper.forget_others();
        }
        if let Notice::TimedOut { .. } = notice {
            // One that needs all that it asked for goes at once; else the rest of it may go on for a while.
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
            // The work was stopped, and begins again with the next slot.
            agent.leaves_at = None;
        } else if agent.leaves_at.is_none() {
            let work = agent.work;
            let leaves_at = self.game.storm.map_or(self.now + work, |every| self.next_wave(every));
            self.agents[place].leaves_at = Some(leaves_at);
            self.served += 1;
        }
    }

    /// A workload takes its time to stop, also where the lease has run out.
    fn workload_told(&mut self, place: usize, notice: &Notice) {
        let agent = &mut self.agents[place];
        if let Notice::Acquired { name, .. } = notice {
            agent.stopping.remove(name);
        } else if let Notice::Lost { name, session, reason: LossReason::LeaseExpired, .. } = notice {
            self.stop(place, name, session.clone(), TTL, false);
        } else if let Notice::Evicted { name, held, .. } = notice {
            if let Some(stopping) = agent.stopping.get_mut(name) {
                stopping.evicted = self.consul.view(name).slots_of(&stopping.session) > 0;
            } else if let Some(session) = agent.keeper.session().filter(|_| *held).cloned() {
                self.stop(place, name, session, TO_STOP, true);
            }
        }
    }

    fn stop(&mut self, place: usize, name: &Name, session: SessionId, longest: Duration, evicted: bool) {
        self.number += 1;
        let (number, agent) = (self.number, &mut self.agents[place]);
        agent.stopping.insert(name.clone(), Stopping { session, number, evicted });
        let (life, name, agent) = (agent.life, name.clone(), place);
        let stops = longest.mul_f64(self.rng.f64());
        self.later(stops, Coming::Stopped { agent, life, name, number });
    }
}

fn watched(event: &Event) -> Option<&String> {
    if let Event::Watched(_, key, _) = event { Some(key) } else { None }
}
