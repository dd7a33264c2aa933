//! The input and output of the core: closed sets, so that no case is forgotten on either side.

use std::sync::Arc;
use std::time::Duration;

use super::notice::Notice;
use super::view::Pair;
use super::{Moment, SessionId};

/// The name by which the caller and the core refer to a semaphore. It never changes while the semaphore exists.
pub type Name = Arc<str>;

/// One step of a transaction. All of a transaction's steps are done, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Write the key and have the session lock it; refused where another session has, or where the session has ended.
    Lock {
        /// The full key.
        key: String,
        /// The value.
        value: Vec<u8>,
        /// The flags.
        flags: u64,
        /// The locking session.
        session: SessionId,
    },
    /// Write the key and have the session unlock it; refused where it has not locked it.
    Unlock {
        /// The full key.
        key: String,
        /// The value.
        value: Vec<u8>,
        /// The flags.
        flags: u64,
        /// The session.
        session: SessionId,
    },
    /// Write the key if its last change was at `index`; 0 creates it.
    Cas {
        /// The full key.
        key: String,
        /// The value.
        value: Vec<u8>,
        /// The flags.
        flags: u64,
        /// The index that it must still have.
        index: u64,
    },
    /// Delete the key.
    Delete {
        /// The full key.
        key: String,
    },
    /// Delete the key if its last change was at `index`.
    DeleteCas {
        /// The full key.
        key: String,
        /// The index that it must still have.
        index: u64,
    },
    /// Fail unless the key's last change was at `index`.
    CheckIndex {
        /// The full key.
        key: String,
        /// The index that it must still have.
        index: u64,
    },
    /// Read all keys that begin so, as they are once the steps before are done.
    List {
        /// How they begin.
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
    /// The key that it is about, or how the keys begin.
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
    /// Which semaphore.
    pub name: Name,
    /// The steps.
    pub ops: Vec<Op>,
}

/// What the caller is to do. Each but [`Command::Notify`] and [`Command::StopWatch`] is answered by exactly one [`Event`].
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Create a session → [`Event::SessionCreated`].
    CreateSession {
        /// The end of its name, which no other session's name has.
        mark: String,
    },
    /// Look for sessions whose names end so, and destroy them → [`Event::SessionsCleared`].
    ClearSessions {
        /// The ends of their names.
        marks: Vec<String>,
    },
    /// Renew it → [`Event::SessionRenewed`].
    RenewSession {
        /// Which.
        session: SessionId,
        /// When it is sent. It identifies the attempt among those in flight, and the lease that it earns counts from here.
        sent: Moment,
        /// The attempt is given up after this long.
        timeout: Duration,
    },
    /// Destroy it → [`Event::SessionDestroyed`].
    DestroySession {
        /// Which.
        session: SessionId,
    },
    /// List the semaphore's keys, consistently → [`Event::Listed`].
    List {
        /// Which semaphore.
        name: Name,
    },
    /// Read the semaphore's `.lock` alone → [`Event::LockRead`].
    ReadLock {
        /// Which semaphore.
        name: Name,
        /// The full key.
        key: String,
        /// Whether the read must be consistent, because a loss may be concluded from it.
        consistent: bool,
    },
    /// Read these keys of the semaphore at one instant, consistently → [`Event::KeysRead`].
    ReadKeys {
        /// Which semaphore.
        name: Name,
        /// The full keys.
        keys: Vec<String>,
    },
    /// Read how long Consul keeps a lock from everybody once this session has ended with it → [`Event::LockDelayRead`].
    ReadLockDelay {
        /// For which lock.
        name: Name,
        /// The session that has it.
        session: SessionId,
    },
    /// Wait until the key has changed since `after` → [`Event::Watched`].
    Watch {
        /// Which semaphore.
        name: Name,
        /// The full key. No other watch of the semaphore has it. One that ends in a slash is a folder: what changes is
        /// which keys lie in it, and what they hold; [`Pair::of_folder`] is what its read brings.
        key: String,
        /// The index of what is known; 0 answers at once.
        after: u64,
        /// The server answers after this long at the latest.
        wait: Duration,
    },
    /// Give up the watch of the key that is under way; its event does not come any more.
    StopWatch {
        /// Which semaphore.
        name: Name,
        /// The full key.
        key: String,
    },
    /// Commit the parts as one transaction → [`Event::Committed`].
    Commit {
        /// Its parts, each of another semaphore. Mostly there is one.
        parts: Vec<Part>,
    },
    /// Report a change: log it, count it, run a hook.
    Notify(Notice),
}

/// What the caller has observed.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Answers [`Command::CreateSession`].
    SessionCreated(Result<SessionId, NotCreated>),
    /// Answers [`Command::ClearSessions`] with those of the marks that were found, and whose sessions are destroyed.
    SessionsCleared(Result<Vec<String>, Failure>),
    /// Answers the [`Command::RenewSession`] that was sent then with the TTL that the session really has.
    SessionRenewed(Moment, Result<Duration, Failure>),
    /// Answers [`Command::DestroySession`].
    SessionDestroyed(Result<(), Failure>),
    /// Answers [`Command::List`].
    Listed(Name, Result<Listing, Failure>),
    /// Answers [`Command::ReadLock`].
    LockRead(Name, Result<Reading, Failure>),
    /// Answers [`Command::ReadKeys`] of those keys, in their order.
    KeysRead(Name, Result<Vec<Reading>, Failure>),
    /// Answers [`Command::ReadLockDelay`] of that session with its lock-delay; `None` where it has ended.
    LockDelayRead(Name, SessionId, Result<Option<Duration>, Failure>),
    /// Answers [`Command::Watch`] of that key.
    Watched(Name, String, Result<Reading, Failure>),
    /// Answers [`Command::Commit`] of those semaphores.
    Committed(Vec<Name>, Result<Commit, Failure>),
}

impl Event {
    /// Whether Consul has answered, be it with a refusal.
    pub fn is_answer(&self) -> bool {
        let failure = match self {
            Self::SessionCreated(answer) => answer.as_ref().err().map(|not| &not.failure),
            Self::SessionsCleared(answer) => answer.as_ref().err(),
            Self::SessionRenewed(_, answer) => answer.as_ref().err(),
            Self::SessionDestroyed(answer) => answer.as_ref().err(),
            Self::Listed(_, answer) => answer.as_ref().err(),
            Self::LockRead(_, answer) | Self::Watched(_, _, answer) => answer.as_ref().err(),
            Self::KeysRead(_, answer) => answer.as_ref().err(),
            Self::LockDelayRead(.., answer) => answer.as_ref().err(),
            Self::Committed(_, answer) => answer.as_ref().err(),
        };
        failure.is_none_or(|failure| !failure.kind.is_transient())
    }
}

/// A session was not created, as far as is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotCreated {
    /// Consul may have created it, or may do so still: its answer was lost.
    pub in_doubt: bool,
    /// What failed.
    pub failure: Failure,
}

/// All keys under a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The keys.
    pub pairs: Vec<Pair>,
    /// The index of the answer.
    pub index: u64,
    /// Whether Consul said that it left out keys which the token may not read: such a key looks as if it did not exist.
    pub filtered: bool,
}

/// One key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The key; `None` where it does not exist.
    pub pair: Option<Pair>,
    /// The index of the answer.
    pub index: u64,
}

/// How a transaction that Consul decided ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Commit {
    /// Done.
    Done {
        /// The index that the changed keys have got.
        index: u64,
        /// What [`Op::List`] has read, where that was among the steps.
        listing: Option<Listing>,
    },
    /// Nothing was done: what it was made from has changed since.
    Stale {
        /// The steps that failed, counted from 0.
        steps: Vec<usize>,
    },
    /// Nothing was done: nobody has a key locked that was to be, but whoever had it last lost it with its session, and
    /// Consul gives it to nobody before that session's lock-delay is over.
    Delayed {
        /// The steps that were to lock such a key, counted from 0.
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

/// A request that brought no answer to go on with. What a failed write did is not known, so whatever the core does
/// next begins with a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What sort.
    pub kind: FailureKind,
    /// What was tried, on what, what came back; for people.
    pub text: String,
}

/// The sorts of failure that are acted upon differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// What was asked for does not exist (a session: it has ended).
    NotFound,
    /// The token does not allow it.
    Denied,
    /// Consul's servers have no leader now.
    NoLeader,
    /// Consul is away, or the answer was lost.
    Unavailable,
    /// Consul wants fewer requests, and did nothing.
    RateLimited,
    /// A watch was cut off by what lies between, after it had waited. That proves nothing, neither of Consul nor of the key.
    Cut,
    /// Consul takes no key of that name.
    InvalidKey,
    /// Consul answered something that is none of these.
    Rejected,
}

impl FailureKind {
    /// Those in which a renewal ends, so that every series can exist from the start.
    pub const OF_RENEWALS: [Self; 6] =
        [Self::NotFound, Self::Denied, Self::NoLeader, Self::Unavailable, Self::RateLimited, Self::Rejected];

    /// Whether Consul has decided nothing: it passes, or was done all the same.
    pub fn is_transient(self) -> bool {
        match self {
            Self::NoLeader | Self::Unavailable | Self::RateLimited => true,
            Self::NotFound | Self::Denied | Self::Cut | Self::InvalidKey | Self::Rejected => false,
        }
    }

    /// The label value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::Denied => "denied",
            Self::NoLeader => "no_leader",
            Self::Unavailable => "unavailable",
            Self::RateLimited => "rate_limited",
            Self::Cut => "cut",
            Self::InvalidKey => "invalid_key",
            Self::Rejected => "rejected",
        }
    }
}
