//! The input and output of the core: closed sets, so that no case is forgotten on either side.

use std::sync::Arc;
use std::time::Duration;

use super::notice::Notice;
use super::view::Pair;
use super::{Moment, SessionId};

/// The name of a semaphore or lock between caller and core. It never changes while the semaphore exists.
pub type Name = Arc<str>;

/// One step of a transaction. Consul does all steps or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Write the key and lock it with the session. Consul refuses this if another session has the lock, or the session has ended.
    Lock {
        /// The full key.
        key: String,
        /// The new value.
        value: Vec<u8>,
        /// The key's flags.
        flags: u64,
        /// The locking session.
        session: SessionId,
    },
    /// Write the key and unlock it. Consul refuses this if the session does not have the lock.
    Unlock {
        /// The full key.
        key: String,
        /// The new value.
        value: Vec<u8>,
        /// The key's flags.
        flags: u64,
        /// The session that has the lock.
        session: SessionId,
    },
    /// Write the key if its `ModifyIndex` is `index`. 0 creates the key, and fails if it exists.
    Cas {
        /// The full key.
        key: String,
        /// The new value.
        value: Vec<u8>,
        /// The key's flags.
        flags: u64,
        /// The `ModifyIndex` that the key must still have.
        index: u64,
    },
    /// Delete the key.
    Delete {
        /// The full key.
        key: String,
    },
    /// Delete the key if its `ModifyIndex` is `index`.
    DeleteCas {
        /// The full key.
        key: String,
        /// The `ModifyIndex` that the key must still have.
        index: u64,
    },
    /// Fail unless the key's `ModifyIndex` is `index`.
    CheckIndex {
        /// The full key.
        key: String,
        /// The `ModifyIndex` that the key must still have.
        index: u64,
    },
    /// Read all keys below the prefix, as they are after the steps before this one.
    List {
        /// The prefix of the keys.
        prefix: String,
    },
    /// Fail if the key exists.
    CheckNotExists {
        /// The full key.
        key: String,
    },
    /// Fail unless the session has the key locked.
    CheckSession {
        /// The full key.
        key: String,
        /// The session.
        session: SessionId,
    },
}

impl Op {
    /// The key of this step; of [`Op::List`], the prefix.
    pub fn key(&self) -> &str {
        match self {
            Self::Lock { key, .. }
            | Self::Unlock { key, .. }
            | Self::Cas { key, .. }
            | Self::Delete { key }
            | Self::DeleteCas { key, .. }
            | Self::CheckIndex { key, .. }
            | Self::CheckNotExists { key }
            | Self::CheckSession { key, .. }
            | Self::List { prefix: key } => key,
        }
    }
}

/// What a transaction does to one semaphore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The semaphore or lock.
    pub name: Name,
    /// The steps.
    pub ops: Vec<Op>,
}

/// What the caller must do.
///
/// The caller begins commands in their order, and waits for no answer between them. Each command is answered by exactly one
/// [`Event`], also where the request failed: the core waits for it. Only [`Command::Notify`] and [`Command::StopWatch`] have no
/// answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Create a session with the TTL, behaviour and lock-delay of the settings → [`Event::SessionCreated`].
    CreateSession,
    /// Renew the session → [`Event::SessionRenewed`].
    RenewSession {
        /// The session to renew.
        session: SessionId,
        /// The time at which the command was returned. The lease counts from here, and the answer names the attempt by it.
        sent: Moment,
        /// The caller must give up the attempt after this long and answer with a failure.
        timeout: Duration,
    },
    /// Destroy the session → [`Event::SessionDestroyed`].
    DestroySession {
        /// The session to destroy.
        session: SessionId,
    },
    /// List all keys of the semaphore with Consul's `consistent` mode → [`Event::Listed`].
    List {
        /// The semaphore or lock.
        name: Name,
    },
    /// Read the `.lock` key of the semaphore → [`Event::LockRead`].
    ReadLock {
        /// The semaphore or lock.
        name: Name,
        /// The full key.
        key: String,
        /// Whether the read must use the `consistent` mode, because the core may conclude from it that a slot is lost.
        consistent: bool,
    },
    /// Read these keys of the semaphore in one transaction → [`Event::KeysRead`].
    ReadKeys {
        /// The semaphore or lock.
        name: Name,
        /// The full keys.
        keys: Vec<String>,
    },
    /// Start a blocking query that is answered once the key has changed since index `after` → [`Event::Watched`].
    Watch {
        /// The semaphore or lock.
        name: Name,
        /// The full key. A semaphore has at most one watch of a key. A key that ends in a slash is a folder: the caller must
        /// watch the keys below it, and answer with [`Pair::of_folder`].
        key: String,
        /// The index of the last answer. 0 is answered at once.
        after: u64,
        /// Consul must answer after this long at the latest.
        wait: Duration,
    },
    /// Cancel the watch of the key. The caller must not answer that watch any more.
    StopWatch {
        /// The semaphore or lock.
        name: Name,
        /// The full key.
        key: String,
    },
    /// Commit the parts as one transaction → [`Event::Committed`].
    Commit {
        /// The parts, each of a different semaphore. Only an acquire group has more than one.
        parts: Vec<Part>,
    },
    /// Report a change: log it, count it, run a hook.
    Notify(Notice),
}

/// What the caller passes to the core: the answer to a command.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Answers [`Command::CreateSession`].
    SessionCreated(Result<SessionId, Failure>),
    /// Answers the [`Command::RenewSession`] with this `sent`. The TTL is that of Consul's answer.
    SessionRenewed(Moment, Result<Duration, Failure>),
    /// Answers [`Command::DestroySession`].
    SessionDestroyed(Result<(), Failure>),
    /// Answers [`Command::List`].
    Listed(Name, Result<Listing, Failure>),
    /// Answers [`Command::ReadLock`].
    LockRead(Name, Result<Reading, Failure>),
    /// Answers [`Command::ReadKeys`]: one reading a key, in the order of the command.
    KeysRead(Name, Result<Vec<Reading>, Failure>),
    /// Answers [`Command::Watch`] of that key.
    Watched(Name, String, Result<Reading, Failure>),
    /// Answers [`Command::Commit`] of those semaphores.
    Committed(Vec<Name>, Result<Commit, Failure>),
}

impl Event {
    /// Whether Consul answered. A refusal is an answer too.
    pub fn is_answer(&self) -> bool {
        let failure = match self {
            Self::SessionCreated(answer) => answer.as_ref().err(),
            Self::SessionRenewed(_, answer) => answer.as_ref().err(),
            Self::SessionDestroyed(answer) => answer.as_ref().err(),
            Self::Listed(_, answer) => answer.as_ref().err(),
            Self::LockRead(_, answer) | Self::Watched(_, _, answer) => answer.as_ref().err(),
            Self::KeysRead(_, answer) => answer.as_ref().err(),
            Self::Committed(_, answer) => answer.as_ref().err(),
        };
        let is_of_others = |kind| matches!(kind, FailureKind::NotConsul | FailureKind::NoToken);
        failure.is_none_or(|failure| !failure.kind.is_transient() && !is_of_others(failure.kind))
    }
}

/// All keys under a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The keys.
    pub pairs: Vec<Pair>,
    /// The index of the answer.
    pub index: u64,
    /// Whether Consul left out keys that the token may not read (`X-Consul-Results-Filtered-By-ACLs`). Such a key looks as if it
    /// did not exist.
    pub filtered: bool,
}

/// The state of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The key; `None` if it does not exist.
    pub pair: Option<Pair>,
    /// The index of the answer.
    pub index: u64,
}

/// Consul's answer to a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Commit {
    /// All steps are done.
    Done {
        /// The `ModifyIndex` of the changed keys.
        index: u64,
        /// The result of [`Op::List`], if the transaction has that step.
        listing: Option<Listing>,
    },
    /// Nothing was done: a key has changed since the transaction was planned.
    Stale {
        /// The steps that failed, counted from 0.
        steps: Vec<usize>,
    },
    /// Nothing was done: a key to lock is free but in lock-delay. Its last holder lost it with its session, and Consul refuses
    /// it until the lock-delay of that session is over.
    Delayed {
        /// The steps that lock such a key, counted from 0.
        steps: Vec<usize>,
    },
    /// Nothing was done: the session has ended.
    SessionGone,
    /// Nothing was done, for another reason.
    Refused {
        /// Consul's words.
        why: String,
    },
}

/// A failed request. A failed write may have been done all the same, so the core reads before it does anything else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The kind.
    pub kind: FailureKind,
    /// What was tried, on what, and what came back; text for logs and the status.
    pub text: String,
}

/// The kinds of failure between which the core distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// The object does not exist. A session that does not exist has ended.
    NotFound,
    /// The token does not allow it.
    Denied,
    /// Consul's servers have no leader.
    NoLeader,
    /// No connection to Consul, or its answer was lost.
    Unavailable,
    /// Consul refused the request by its rate limit, and did nothing.
    RateLimited,
    /// A proxy ended a blocking query after it had waited. This says nothing about Consul or the key.
    Cut,
    /// Consul accepts no key of this name.
    InvalidKey,
    /// The token cannot be read, so nothing was sent.
    NoToken,
    /// Consul does not know a name in the settings: a datacenter, a node or a check of the session.
    Misconfigured,
    /// The server cannot be talked to: it has another protocol, or a certificate that is not trusted.
    Mismatch,
    /// An answer that Consul does not give.
    NotConsul,
    /// Any other answer.
    Rejected,
}

impl FailureKind {
    /// The kinds with which a renewal can fail, so that the series of each exists from the start.
    pub const OF_RENEWALS: [Self; 6] =
        [Self::NotFound, Self::Denied, Self::NoLeader, Self::Unavailable, Self::RateLimited, Self::Rejected];

    /// Whether a retry can succeed: Consul has not decided, or its decision is not known.
    pub fn is_transient(self) -> bool {
        matches!(self, Self::NoLeader | Self::Unavailable | Self::RateLimited | Self::Mismatch)
    }

    /// The value of the metric label. Kinds that differ only in what to do about them share one.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::Denied | Self::NoToken => "denied",
            Self::NoLeader => "no_leader",
            Self::Unavailable | Self::Mismatch => "unavailable",
            Self::RateLimited => "rate_limited",
            Self::Cut => "cut",
            Self::InvalidKey => "invalid_key",
            Self::Rejected | Self::Misconfigured | Self::NotConsul => "rejected",
        }
    }
}
