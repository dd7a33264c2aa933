//! An agent of the model: a keeper, and its messages in flight.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::digest::digest;
use super::game::Player;
use slotkeeper_semaphore::{
    Command, Event, Form, Identity, Keeper, LimitPolicy, Moment, Name, OnLost, Phase, Primitive, Resume,
    SessionId, Settings, Start, Wall,
};

/// When a game begins.
pub(super) const START: Moment = Moment::from_boot(Duration::from_secs(1000));
/// No lease expires during a game.
pub(super) const TTL: Duration = Duration::from_secs(24 * 60 * 60);
/// A timer that is due within this time may fire before any other step.
const SOON: Duration = Duration::from_millis(500);

/// The subject of a request. At most one request of each subject is in flight.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum About {
    Session,
    /// The semaphore; for a transaction on several, the first.
    Semaphore(Name),
    /// The check that the semaphore is still held.
    Proof(Name),
    Key(String),
}

/// A request in flight, or its answer.
pub(super) struct Message {
    pub(super) request: Command,
    pub(super) answer: Option<Event>,
    /// The hash of the message, computed once: messages are large and are compared often.
    digest: u64,
}

/// The life cycle of a process.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Life {
    /// The process has sent nothing yet.
    New,
    Running,
    Draining,
    /// The process has crashed. It may have left a session and a state file.
    Crashed {
        session: Option<SessionId>,
        file: Option<Resume>,
    },
}

#[derive(Clone)]
pub(super) struct Agent {
    pub(super) keeper: Keeper,
    pub(super) player: Player,
    pub(super) life: Life,
    pub(super) messages: BTreeMap<About, Arc<Message>>,
    /// The hash of the agent; `None` after a change.
    pub(super) digest: Option<u64>,
}

impl Agent {
    pub(super) fn new(player: Player, limit: u32, resume: Option<Resume>, now: Moment) -> Self {
        let names = player.wants().iter().map(|name| Name::from(*name));
        let start = Start {
            ttl: TTL,
            watch_grace: None,
            who: Identity::default(),
            // The wall clock is so early that every date in the protocol is the first one.
            wall: Wall::new(SystemTime::UNIX_EPOCH - TTL * 365, START),
            seed: 0,
            resume,
            semaphores: names.clone().map(|name| (name.clone(), settings(&name, player, limit))).collect(),
            together: if player.together { names.collect() } else { Vec::new() },
        };
        let keeper = Keeper::new(start, now);
        Self { keeper, player, life: Life::New, messages: BTreeMap::new(), digest: None }
    }

    pub(super) fn is_alive(&self) -> bool {
        !self.is_crashed() && !self.has_ended()
    }

    pub(super) fn is_crashed(&self) -> bool {
        matches!(self.life, Life::Crashed { .. })
    }

    /// Whether the agent has sent nothing yet, and its first request is a write.
    pub(super) fn begins_by_a_write(&self) -> bool {
        let writes = |message: &Arc<Message>| matches!(message.request, Command::Commit { .. });
        self.life == Life::New && self.messages.values().any(writes)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.keeper.has_ended()
    }

    pub(super) fn phase(&self, name: &str) -> Option<Phase> {
        self.keeper.machine(name).map(|machine| machine.phase())
    }

    /// Whether the agent considers the semaphore held.
    pub(super) fn holds(&self, name: &str) -> bool {
        !self.is_crashed() && matches!(self.phase(name), Some(Phase::Held { .. }))
    }

    /// Whether the agent holds all its semaphores.
    pub(super) fn is_ready(&self) -> bool {
        self.player.wants().iter().all(|name| self.holds(name))
    }

    /// The time of the next timer.
    pub(super) fn deadline(&self) -> Option<Moment> {
        self.keeper.deadline().filter(|_| self.is_alive())
    }

    /// Whether the timer may fire before any other step.
    pub(super) fn is_due(&self, now: Moment) -> bool {
        self.deadline().is_some_and(|at| at <= now + SOON)
    }

    /// The content of the state file; `None` from the start of a drain.
    pub(super) fn file(&self) -> Option<Resume> {
        if self.life == Life::Draining {
            return None;
        }
        let session = self.keeper.session()?.clone();
        let token =
            |name| if let Some(Phase::Held { token, .. }) = self.phase(name) { Some(token) } else { None };
        let prefixes = self.player.wants().iter().map(|name| ((*name).to_owned(), token(name))).collect();
        Some(Resume { session, prefixes, locks: BTreeMap::new() })
    }

    /// Computes the hash after a change.
    pub(super) fn seal(&mut self, now: Moment) {
        self.keeper.reseed();
        let digest = if self.has_ended() {
            self.messages.clear();
            digest(&"ended", now)
        } else if self.is_crashed() {
            digest(&self.life, now)
        } else {
            digest(&(&self.keeper, self.is_due(now), &self.life, &self.messages), now)
        };
        self.digest = Some(digest);
    }
}

impl Message {
    pub(super) fn new(request: Command, answer: Option<Event>) -> Arc<Self> {
        let digest = digest(&(&request, &answer), START);
        Arc::new(Self { request, answer, digest })
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.digest.fmt(out)
    }
}

fn settings(name: &str, player: Player, limit: u32) -> Settings {
    Settings {
        primitive: Primitive::Semaphore,
        prefix: name.into(),
        limit,
        slots: player.slots,
        priority: player.priority,
        wait: None,
        on_lost: OnLost::Reacquire,
        limit_policy: LimitPolicy::Adopt,
        prune_delay: Duration::ZERO,
        form: Form::List,
        body: None,
    }
}
