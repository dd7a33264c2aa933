//! One agent of the model: a keeper, and what it has on its way.

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
/// No lease ends while a game lasts.
pub(super) const TTL: Duration = Duration::from_secs(24 * 60 * 60);
/// A timer that is due within this may fire before anything else happens.
const SOON: Duration = Duration::from_millis(500);

/// What a request is about. Of each there is one on its way at most.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum About {
    Session,
    /// The semaphore, of several in one transaction the first.
    Semaphore(Name),
    /// That it is held yet.
    Proof(Name),
    Key(String),
}

/// A request on its way, or its answer.
pub(super) struct Message {
    pub(super) request: Command,
    pub(super) answer: Option<Event>,
    /// What tells it from others: there is much in it, and it is looked at often.
    digest: u64,
}

/// What has become of a process.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Life {
    /// It has not sent anything yet.
    New,
    Running,
    Draining,
    /// It has crashed, and left a session and perhaps a state file.
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
    /// What tells it from others; `None` until it is looked at again.
    pub(super) digest: Option<u64>,
}

impl Agent {
    pub(super) fn new(player: Player, limit: u32, resume: Option<Resume>, now: Moment) -> Self {
        let names = player.wants().iter().map(|name| Name::from(*name));
        let start = Start {
            ttl: TTL,
            watch_grace: None,
            who: Identity::default(),
            // So long ago that no date is ever other than the first.
            wall: Wall::new(SystemTime::UNIX_EPOCH - TTL * 365, START),
            seed: 0,
            nonce: 0,
            resume,
            contested: false,
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

    /// Whether it has not been heard of, and the first that is to be is a write.
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

    /// Whether it takes slots of the semaphore for its own.
    pub(super) fn believes(&self, name: &str) -> bool {
        !self.is_crashed() && matches!(self.phase(name), Some(Phase::Held { .. }))
    }

    /// Whether it has all that it wants.
    pub(super) fn is_ready(&self) -> bool {
        self.player.wants().iter().all(|name| self.believes(name))
    }

    /// When its timer fires.
    pub(super) fn deadline(&self) -> Option<Moment> {
        self.keeper.deadline().filter(|_| self.is_alive())
    }

    /// Whether its timer may fire before anything else happens.
    pub(super) fn is_due(&self, now: Moment) -> bool {
        self.deadline().is_some_and(|at| at <= now + SOON)
    }

    /// What its state file holds; there is none from the beginning of a drain on.
    pub(super) fn file(&self) -> Option<Resume> {
        if self.life == Life::Draining {
            return None;
        }
        let session = self.keeper.session()?.clone();
        let token =
            |name| if let Some(Phase::Held { token, .. }) = self.phase(name) { Some(token) } else { None };
        let prefixes = self.player.wants().iter().map(|name| ((*name).to_owned(), token(name))).collect();
        Some(Resume { session, prefixes, locks: BTreeMap::new(), nonces: Vec::new() })
    }

    /// Notes what it has become.
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
