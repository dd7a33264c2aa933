//! One agent's whole core: the session, and a machine for each semaphore that hangs on it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::command::{Command, Event, Name, Notice};
use super::machine::{Context, Machine};
use super::session::{Change, Session};
use super::settings::Settings;
use super::{Identity, Lease, Moment, SessionId, Wall};

/// What an earlier process of the same agent left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resume {
    /// Its session.
    pub session: SessionId,
    /// The fencing tokens of the slots that it held.
    pub tokens: BTreeMap<Name, u64>,
}

/// What a keeper begins with.
#[derive(Clone, Debug)]
pub struct Start {
    /// The session's TTL.
    pub ttl: Duration,
    /// How long a failing watch is tolerated while a slot is held; `None`: to the lease's end.
    pub watch_grace: Option<Duration>,
    /// Who it is, for people.
    pub who: Identity,
    /// For dates that people read.
    pub wall: Wall,
    /// Where all chance comes from.
    pub seed: u64,
    /// What was left behind by an earlier process.
    pub resume: Option<Resume>,
}

/// Takes [`Event`]s in and gives [`Command`]s out. Time moves only by the `now` that it is given.
#[derive(Debug)]
pub struct Keeper {
    start: Start,
    session: Session,
    machines: BTreeMap<Name, Machine>,
    /// Taken out of the configuration, and to be forgotten once gone.
    removed: Vec<Name>,
    draining: bool,
    settled_at: Moment,
    rng: fastrand::Rng,
    out: VecDeque<Command>,
}

impl Keeper {
    /// A keeper of no semaphore yet.
    pub fn new(mut start: Start, now: Moment) -> Self {
        let resume = start.resume.take();
        let session = Session::new(start.ttl, resume.as_ref().map(|resume| resume.session.clone()), now);
        start.resume = resume;
        Self {
            rng: fastrand::Rng::with_seed(start.seed),
            start,
            session,
            machines: BTreeMap::new(),
            removed: Vec::new(),
            draining: false,
            settled_at: now,
            out: VecDeque::new(),
        }
    }

    /// Begins to ask for a slot of the semaphore. A name that is there already is left as it is.
    pub fn add(&mut self, name: Name, settings: Settings, now: Moment) {
        let token = self.start.resume.as_ref().and_then(|resume| resume.tokens.get(&name)).copied();
        self.machines.entry(name.clone()).or_insert_with(|| Machine::new(name, settings, token, now));
        self.settle(now);
    }

    /// Takes over changed settings; prefix and slots must be the same.
    pub fn reconfigure(&mut self, name: &Name, settings: Settings, now: Moment) {
        if let Some(machine) = self.machines.get_mut(name) {
            machine.reconfigure(settings, now);
        }
        self.settle(now);
    }

    /// Gives the slot back and forgets the semaphore; [`Notice::Removed`] tells when.
    pub fn remove(&mut self, name: &Name, now: Moment) {
        if !self.removed.contains(name) {
            self.removed.push(name.clone());
        }
        self.with(name, now, |machine, cx| machine.leave(cx));
        self.settle(now);
    }

    /// Gives everything back, then destroys the session; [`Keeper::has_ended`] tells when that is done.
    pub fn drain(&mut self, now: Moment) {
        self.draining = true;
        for name in self.names() {
            self.with(&name, now, |machine, cx| machine.leave(cx));
        }
        self.settle(now);
    }

    /// Whether a drain is complete.
    pub fn has_ended(&self) -> bool {
        self.session.has_ended()
    }

    /// Takes in what was observed.
    pub fn handle(&mut self, event: Event, now: Moment) {
        match event {
            Event::SessionCreated(answer) => {
                let change = self.session.created(answer, now, &mut self.rng, &mut self.out);
                self.session_changed(&change, now);
            }
            Event::SessionRenewed(answer) => {
                let change = self.session.renewed(answer, now, &mut self.rng, &mut self.out);
                self.session_changed(&change, now);
            }
            Event::SessionDestroyed(answer) => {
                self.session.destroyed(answer, now, &mut self.rng, &mut self.out);
            }
            Event::Listed(name, answer) => {
                self.with(&name, now, |machine, cx| machine.listed(answer, cx));
            }
            Event::Watched(name, answer) => {
                self.with(&name, now, |machine, cx| machine.watched(answer, cx));
            }
            Event::Committed(name, answer) => {
                self.with(&name, now, |machine, cx| machine.committed(answer, cx));
            }
        }
        self.settle(now);
    }

    /// Does what is due at `now`.
    pub fn tick(&mut self, now: Moment) {
        self.settle(now);
    }

    /// When [`Keeper::tick`] is wanted next.
    pub fn deadline(&self) -> Option<Moment> {
        let grace = self.start.watch_grace;
        let machines = self.machines.values().flat_map(|machine| machine.timers(grace));
        let lease = self.session.lease().map(Lease::ends);
        let timers = machines.chain(lease).chain(self.session.deadline());
        // What was due by then has been looked at; if it was not done, it waits for an answer and not for the clock.
        timers.filter(|at| *at > self.settled_at).min()
    }

    /// The next thing to do.
    pub fn next_command(&mut self) -> Option<Command> {
        self.out.pop_front()
    }

    /// The semaphores.
    pub fn machines(&self) -> impl Iterator<Item = &Machine> {
        self.machines.values()
    }

    /// One semaphore.
    pub fn machine(&self, name: &str) -> Option<&Machine> {
        self.machines.get(name)
    }

    /// The session, once it is known to live.
    pub fn session(&self) -> Option<&SessionId> {
        self.session.id()
    }

    /// The session's lease, valid or run out.
    pub fn lease(&self) -> Option<Lease> {
        self.session.lease()
    }

    fn names(&self) -> Vec<Name> {
        self.machines.keys().cloned().collect()
    }

    fn session_changed(&mut self, change: &Change, now: Moment) {
        for name in self.names() {
            self.with(&name, now, |machine, cx| match change {
                Change::Gone => machine.session_gone(cx),
                Change::Proved | Change::Unproved => machine.session_checked(),
                Change::None => {}
            });
        }
    }

    /// Lets everything act on what has become of the state.
    fn settle(&mut self, now: Moment) {
        self.settled_at = now;
        for name in self.names() {
            self.with(&name, now, Machine::drive);
            let wants_check = self.machines.get_mut(&name).is_some_and(Machine::take_check_session);
            if wants_check {
                self.session.check(now);
            }
        }
        let (machines, out) = (&mut self.machines, &mut self.out);
        self.removed.retain(|name| {
            let gone = machines.get(name).is_none_or(Machine::is_gone);
            if gone && machines.remove(name).is_some() {
                out.push_back(Command::Tell(Notice::Removed { name: name.clone() }));
            }
            !gone
        });
        if self.draining && self.machines.values().all(Machine::is_gone) {
            self.session.end(now);
        }
        self.session.act(now, &mut self.out);
    }

    fn with<T>(
        &mut self,
        name: &Name,
        now: Moment,
        act: impl FnOnce(&mut Machine, &mut Context<'_>) -> T,
    ) -> Option<T> {
        let machine = self.machines.get_mut(name)?;
        // Leaving goes by a session that is only remembered; everything else by one that was seen alive.
        let session = if self.draining { self.session.remembered() } else { self.session.id() };
        let mut cx = Context {
            session,
            lease: self.session.lease(),
            now,
            who: &self.start.who,
            wall: self.start.wall,
            ttl: self.start.ttl,
            watch_grace: self.start.watch_grace,
            rng: &mut self.rng,
            out: &mut self.out,
        };
        Some(act(machine, &mut cx))
    }
}
