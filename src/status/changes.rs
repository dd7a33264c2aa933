//! Recent changes, for the event stream of an agent.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use super::Kind;
use slotkeeper_semaphore::{Moment, Wall};

/// Identifies a change or snapshot: later ones have higher numbers, and no two lives of agents are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Id {
    life: u64,
    number: u64,
}

impl Id {
    /// The first id of a life.
    pub fn first(life: u64) -> Self {
        Self { life, number: 1 }
    }

    /// The next id.
    #[must_use]
    pub fn next(self) -> Self {
        Self { number: self.number + 1, ..self }
    }

    /// Whether this is earlier than `other` in the same life; false for another life.
    pub fn is_before(self, other: Self) -> bool {
        self.life == other.life && self.number < other.number
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{}", self.life, self.number)
    }
}

/// The text is not an id of this format.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("this names no event")]
pub struct NoId;

impl FromStr for Id {
    type Err = NoId;

    fn from_str(text: &str) -> Result<Self, NoId> {
        let (life, number) = text.split_once('-').ok_or(NoId)?;
        let life = u64::from_str_radix(life, 16).map_err(|_| NoId)?;
        Ok(Self { life, number: number.parse().map_err(|_| NoId)? })
    }
}

/// The names of events: of changes, and of hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// Every required slot is held.
    Ready,
    /// A required slot is no longer held.
    NotReady,
    /// The agent drains: it releases everything.
    Draining,
    /// A session was created, or resumed.
    SessionStarted,
    /// The session has ended, not by this agent.
    SessionEnded,
    /// Requests have begun to fail.
    Failing,
    /// Requests succeed again.
    Recovered,
    /// The agent waits in the queue.
    Waiting,
    /// A slot or lock is held.
    Acquired,
    /// The slot or lock was lost.
    Lost,
    /// An operator evicts it.
    Evicted,
    /// The slot or lock was released.
    Released,
    /// The acquisition is blocked until a problem is fixed.
    Blocked,
    /// The wait timed out.
    TimedOut,
    /// The lock has another holder, or none.
    LeaderChanged,
    /// The lock is free but in lock-delay.
    Delayed,
    /// The limit has changed, or differs from the configured one.
    Limit,
    /// Dead holders were pruned.
    Pruned,
    /// A client has not renewed its lease.
    LeaseExpired,
    /// The entry was removed from the configuration.
    Removed,
}

impl Event {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::NotReady => "not_ready",
            Self::Draining => "draining",
            Self::SessionStarted => "session_started",
            Self::SessionEnded => "session_ended",
            Self::Failing => "failing",
            Self::Recovered => "recovered",
            Self::Waiting => "waiting",
            Self::Acquired => "acquired",
            Self::Lost => "lost",
            Self::Evicted => "evicted",
            Self::Released => "released",
            Self::Blocked => "blocked",
            Self::TimedOut => "timed_out",
            Self::LeaderChanged => "leader_changed",
            Self::Delayed => "delayed",
            Self::Limit => "limit",
            Self::Pruned => "pruned",
            Self::LeaseExpired => "lease_expired",
            Self::Removed => "removed",
        }
    }
}

/// The semaphore or lock that an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// Its kind.
    pub kind: Kind,
    /// Its configured name.
    pub name: String,
    /// The prefix of a semaphore, or the key of a lock.
    pub key: String,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its id.
    pub id: Id,
    /// Its time.
    pub at: Moment,
    /// Its name.
    pub event: Event,
    /// Its semaphore or lock; `None` for the agent or its session.
    pub subject: Option<Subject>,
    /// Details for people.
    pub detail: Option<String>,
}

impl Change {
    /// The change as it is sent.
    pub fn report(&self, wall: Wall) -> ChangeReport<'_> {
        let of_kind = |kind| self.subject.as_ref().filter(|one| one.kind == kind).map(|one| one.key.as_str());
        ChangeReport {
            at: wall.text(self.at),
            event: self.event,
            kind: self.subject.as_ref().map(|one| one.kind),
            name: self.subject.as_ref().map(|one| one.name.as_str()),
            prefix: of_kind(Kind::Semaphore),
            key: of_kind(Kind::Lock),
            detail: self.detail.as_deref(),
        }
    }
}

/// A change, as `/v1/events` sends it.
#[derive(Debug, Serialize)]
pub struct ChangeReport<'a> {
    /// Its time, in UTC.
    at: String,
    /// Its name.
    event: Event,
    /// The kind of what it is about; missing if that is the agent or its session.
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<Kind>,
    /// The configured name of the semaphore or lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    /// The semaphore's key prefix.
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix: Option<&'a str>,
    /// The lock's key.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    /// Details for people. The wording may change.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'a str>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_round_trips_and_no_other_text_is_one() {
        let id = Id::first(7).next();
        assert_eq!(id.to_string().parse(), Ok(id));
        assert!(Id::first(7).is_before(id) && !id.is_before(id) && !Id::first(8).is_before(id));
        for text in ["", "-", "7", "x-1", "7-", "7-x", "7-18446744073709551616", "\u{202e}7-1"] {
            assert_eq!(text.parse::<Id>(), Err(NoId), "{text:?}");
        }
    }
}
