//! What has happened lately, for those who follow an agent as it goes.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use slotkeeper_semaphore::{Moment, Wall};

/// Names something that an agent has told: later ones have higher numbers, and no two lives of agents are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Id {
    life: u64,
    number: u64,
}

impl Id {
    /// The first one of a life.
    pub fn first(life: u64) -> Self {
        Self { life, number: 1 }
    }

    /// The one after this.
    #[must_use]
    pub fn next(self) -> Self {
        Self { number: self.number + 1, ..self }
    }

    /// Whether it was told before that one, in the same life; of another life nothing counts as told.
    pub fn is_before(self, other: Self) -> bool {
        self.life == other.life && self.number < other.number
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{}", self.life, self.number)
    }
}

/// It is not one of ours.
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

/// The sorts of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// Every required slot is held.
    Ready,
    /// One is not any more.
    NotReady,
    /// Everything is being given back.
    Draining,
    /// A session was created, or taken up again.
    SessionStarted,
    /// The session has ended without us.
    SessionEnded,
    /// Requests have begun to fail.
    Trouble,
    /// They work again.
    TroubleOver,
    /// In line.
    Waiting,
    /// A slot or lock is held.
    Acquired,
    /// It is held no longer, and was not given back.
    Lost,
    /// An operator has told it to leave.
    Evicted,
    /// It was given back.
    Released,
    /// It cannot be had until somebody mends something.
    Blocked,
    /// The bound on waiting has passed.
    GaveUp,
    /// Another one has the lock now, or nobody.
    LeaderChanged,
    /// Consul gives the lock to nobody for a while.
    Delayed,
    /// The limit is another one, or differs from the configured one.
    Limit,
    /// Dead holders were taken out.
    Pruned,
    /// A client has not renewed its lease.
    LeaseExpired,
    /// The configuration asks for it no longer.
    Removed,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Names it.
    pub id: Id,
    /// When it was seen.
    pub at: Moment,
    /// What it is.
    pub what: What,
    /// Of which semaphore or lock, by its configured name; `None` where it is of the agent or its session.
    pub name: Option<String>,
    /// More of it, for people.
    pub detail: Option<String>,
}

impl Change {
    /// The change as it is told.
    pub fn report(&self, wall: Wall) -> ChangeReport<'_> {
        let Self { at, what, name, detail, .. } = self;
        ChangeReport { at: wall.text(*at), what: *what, name: name.as_deref(), detail: detail.as_deref() }
    }
}

/// A change, with its date.
#[derive(Debug, Serialize)]
pub struct ChangeReport<'a> {
    at: String,
    what: What,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'a str>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_comes_back_as_it_was_told_and_nothing_else_is_one() {
        let id = Id::first(7).next();
        assert_eq!(id.to_string().parse(), Ok(id));
        assert!(Id::first(7).is_before(id) && !id.is_before(id) && !Id::first(8).is_before(id));
        for text in ["", "-", "7", "x-1", "7-", "7-x", "7-18446744073709551616", "\u{202e}7-1"] {
            assert_eq!(text.parse::<Id>(), Err(NoId), "{text:?}");
        }
    }
}
