//! One state of a game: Consul, the agents, and all messages in flight.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::agent::{About, Agent, Life, Message, START, TTL};
use super::digest::digest;
use super::game::Game;
use crate::consul::{Consul, unanswered};
use crate::intervals::OTHERS;
use judge::Judge;
use slotkeeper_semaphore::{Command, Commit, Event, Moment, Name, Primitive, View};

mod judge;
mod show;
mod turns;

/// The maximum time that a free slot waits after a crash or a loss: several agents may have to find it by a listing, at the
/// interval of listings.
const OVERDUE: Duration = Duration::from_secs(150).saturating_add(OTHERS.saturating_mul(2));
/// The same without faults, when only timers are left: the lookout looks at short intervals only while there are many changes.
const PROMPT: Duration = Duration::from_secs(2);

/// A step of a game.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    /// A request reaches Consul, which answers.
    Serve(usize, About),
    /// The answer reaches the agent.
    Answer(usize, About),
    /// The request times out. If it has not reached Consul yet, it may still do so.
    Lose(usize, About),
    /// A request that has timed out reaches Consul.
    Arrive(usize),
    /// A request that has timed out is lost.
    Vanish(usize),
    /// An agent's timer fires.
    Fire(usize),
    /// Time passes until the next timer.
    Wait,
    /// An agent starts to drain.
    Leave(usize),
    Crash(usize),
    /// A crashed agent restarts with its state file.
    Return(usize),
    /// The session of a crashed agent ends.
    Expire(usize),
    /// One more agent joins after all others have left but a dead holder remains. It must find all slots free.
    Visit,
}

#[derive(Clone)]
pub(super) struct State {
    consul: Arc<Consul>,
    /// The content of each semaphore in Consul.
    views: Vec<Arc<View>>,
    /// The hash of the views.
    seen: u64,
    agents: Vec<Arc<Agent>>,
    /// The requests that have timed out and may still arrive.
    strays: Vec<Command>,
    now: Moment,
    /// The number of the last session.
    sessions: u128,
    crashes: u32,
    losses: u32,
    quits: u32,
    lulls: u32,
    prompt: bool,
    visited: bool,
    judge: Judge,
    digest: u64,
}

impl State {
    pub(super) fn new(game: &Game) -> Self {
        let now = START;
        let mut state = Self {
            consul: Arc::new(Consul::new(TTL, 1, Primitive::Semaphore, TTL)),
            views: game.semaphores().iter().map(|name| Arc::new(View::new(name, Vec::new(), 0))).collect(),
            seen: 0,
            agents: Vec::new(),
            strays: Vec::new(),
            now,
            sessions: 0,
            crashes: game.crashes,
            losses: game.losses,
            quits: game.quits,
            lulls: game.lulls,
            prompt: game.prompt,
            visited: false,
            judge: Judge::default(),
            digest: 0,
        };
        for player in game.players {
            state.agents.push(Arc::new(Agent::new(*player, game.limit, None, now)));
            state.act(state.agents.len() - 1);
            if state.agents.len() <= game.settled {
                state.settle(game);
            }
        }
        state.seal();
        state
    }

    /// Plays all messages in flight, in order.
    fn settle(&mut self, game: &Game) {
        let comes =
            |action: &Action| matches!(action, Action::Serve(..) | Action::Answer(..) | Action::Fire(_));
        while let Some(action) = self.actions(game).into_iter().find(comes) {
            self.play(game, &action);
        }
    }

    pub(super) fn play(&mut self, game: &Game, action: &Action) {
        let began = self.now;
        self.begin_step();
        match action {
            Action::Serve(place, about) => {
                let message = self.agents[*place].messages.get(about).expect("a request");
                let request = message.request.clone();
                self.begin(*place);
                let before = self.views.clone();
                let event = self.serve(&request).expect("news");
                self.check_newcomer(*place, &before);
                if self.prompt && !matches!(request, Command::Commit { .. }) {
                    self.agent(*place).messages.remove(about);
                    self.hear(*place, event);
                } else {
                    let answer = Message::new(request, Some(event));
                    self.agent(*place).messages.insert(about.clone(), answer);
                }
            }
            Action::Answer(place, about) => {
                let message = self.agent(*place).messages.remove(about).expect("an answer");
                self.hear(*place, message.answer.clone().expect("an answer"));
            }
            Action::Lose(place, about) => {
                self.losses -= 1;
                self.begin(*place);
                let message = self.agent(*place).messages.remove(about).expect("a request");
                self.stray(&message);
                self.hear(*place, unanswered(&message.request));
            }
            Action::Arrive(place) => {
                let stray = self.strays.remove(*place);
                self.serve(&stray);
            }
            Action::Vanish(place) => {
                self.strays.remove(*place);
            }
            Action::Fire(place) => {
                let at = self.agents[*place].deadline().expect("a timer");
                self.now = self.now.max(at);
                let now = self.now;
                self.agent(*place).keeper.tick(now);
                self.act(*place);
            }
            Action::Wait => {
                self.lulls = self.lulls.saturating_sub(1);
                self.now = self.agents.iter().filter_map(|agent| agent.deadline()).min().expect("a timer");
                self.waited(game);
            }
            Action::Leave(place) => {
                if !self.agents[*place].is_ready() {
                    self.quits -= 1;
                }
                let now = self.now;
                self.agent(*place).life = Life::Draining;
                self.agent(*place).keeper.drain(now);
                self.act(*place);
            }
            Action::Crash(place) => {
                self.crashes -= 1;
                let agent = self.agent(*place);
                let (session, file) = (agent.keeper.session().cloned(), agent.file());
                agent.life = Life::Crashed { session, file };
                for message in std::mem::take(&mut agent.messages).values() {
                    self.stray(message);
                }
            }
            Action::Return(place) => {
                let agent = &self.agents[*place];
                let Life::Crashed { file: Some(file), .. } = &agent.life else { unreachable!("no file") };
                let agent = Agent::new(agent.player, game.limit, Some(file.clone()), self.now);
                self.agents[*place] = Arc::new(Agent { life: Life::Running, ..agent });
                self.act(*place);
            }
            Action::Expire(place) => {
                let Life::Crashed { session: Some(session), .. } = self.agents[*place].life.clone() else {
                    unreachable!("no session");
                };
                self.change(|consul, now| consul.destroy(&session, now));
            }
            Action::Visit => {
                self.visited = true;
                self.agents.push(Arc::new(Agent::new(game.visitor(), game.limit, None, self.now)));
                self.act(self.agents.len() - 1);
            }
        }
        if self.now != began {
            for place in 0..self.agents.len() {
                self.agent(place);
            }
        }
        self.note_owed();
        self.seal();
    }

    /// An agent, for a change.
    fn agent(&mut self, place: usize) -> &mut Agent {
        let agent = Arc::make_mut(&mut self.agents[place]);
        agent.digest = None;
        agent
    }

    /// Records that the agent has sent a request.
    fn begin(&mut self, place: usize) {
        if self.agents[place].life == Life::New {
            self.agent(place).life = Life::Running;
        }
    }

    fn hear(&mut self, place: usize, event: Event) {
        let now = self.now;
        self.agent(place).keeper.handle(event, now);
        self.act(place);
    }

    /// Executes the commands of the agent's keeper.
    fn act(&mut self, place: usize) {
        while let Some(command) = self.agent(place).keeper.next_command() {
            let about = match &command {
                Command::Notify(notice) => {
                    self.check_token(notice);
                    continue;
                }
                Command::StopWatch { key, .. } => {
                    self.agent(place).messages.remove(&About::Key(key.clone()));
                    continue;
                }
                Command::DestroySession { .. } if !self.prompt => About::Session,
                Command::CreateSession | Command::RenewSession { .. } | Command::DestroySession { .. } => {
                    let event = self.serve(&command).expect("an answer");
                    let now = self.now;
                    self.agent(place).keeper.handle(event, now);
                    continue;
                }
                Command::List { name } | Command::ReadLock { name, .. } => {
                    About::Semaphore(Name::clone(name))
                }
                Command::ReadKeys { name, .. } => About::Proof(Name::clone(name)),
                Command::Commit { parts } => About::Semaphore(Name::clone(&parts[0].name)),
                Command::Watch { key, .. } => About::Key(key.clone()),
            };
            let before = self.agent(place).messages.insert(about, Message::new(command, None));
            assert!(before.is_none(), "while {before:?} was on its way");
        }
    }

    /// Records a request that has timed out. It matters only if it may still change the state.
    fn stray(&mut self, message: &Message) {
        let changes = matches!(message.request, Command::Commit { .. } | Command::DestroySession { .. });
        if changes && message.answer.is_none() {
            self.strays.push(message.request.clone());
        }
    }

    fn serve(&mut self, command: &Command) -> Option<Event> {
        if matches!(command, Command::CreateSession) {
            self.sessions += 1;
        }
        let id = Uuid::from_u128(self.sessions);
        let consul = Arc::clone(&self.consul);
        let event = self.change(|consul, now| consul.serve(command, id, now));
        if let Some(Event::Committed(_, Ok(Commit::Stale { .. } | Commit::SessionGone))) = &event {
            // A failed transaction moves the index, but no client can see that.
            self.consul = consul;
        }
        event
    }

    /// Changes Consul, and records the effect on the semaphores.
    fn change<T>(&mut self, act: impl FnOnce(&mut Consul, Moment) -> T) -> T {
        let consul = Arc::make_mut(&mut self.consul);
        let index = consul.store.index();
        // Time stands still for Consul: no session expires by itself in a game.
        let done = act(consul, START);
        if consul.store.index() != index {
            self.changed();
        }
        done
    }

    /// Computes the hash of the state.
    fn seal(&mut self) {
        for agent in &mut self.agents {
            if agent.digest.is_none() {
                Arc::make_mut(agent).seal(self.now);
            }
        }
        let agents: Vec<_> = self.agents.iter().map(|agent| agent.digest).collect();
        let left = (self.crashes, self.losses, self.quits, self.lulls, self.visited);
        let sessions = self.agents.iter().filter_map(|agent| agent.keeper.session());
        let living: Vec<_> = sessions.map(|session| self.consul.has_session(session)).collect();
        let consul = (self.seen, self.consul.store.index(), living);
        self.digest = digest(&(consul, agents, &self.strays, left, self.judged()), self.now);
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.digest.hash(hasher);
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}
