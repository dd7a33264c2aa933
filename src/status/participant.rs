//! What is known of any participant: its health, and since when it holds or waits.

use std::time::SystemTime;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};

/// The kinds of entries, and of leases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Slots of a semaphore.
    #[default]
    Semaphore,
    /// A single-key lock.
    Lock,
}

impl Kind {
    /// Skips a field, whatever kind an agent of another version has there.
    pub(super) fn ignored<'de, D: Deserializer<'de>>(field: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(field).map(|_| Self::default())
    }

    /// Its word in texts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Semaphore => "semaphore",
            Self::Lock => "lock",
        }
    }
}

/// The health of a holder or waiter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// Its session exists, and its keys are locked.
    Live,
    /// It has no locked key, or its session has ended: its slots are reclaimed soon.
    Dead,
    /// Unknown: it acquired its slot after the last read of the prefix, or its key or session is hidden from the token.
    #[default]
    #[serde(other)]
    Unknown,
}

impl Health {
    /// Of a holder, by whether it is known to live.
    pub fn of(lives: Option<bool>) -> Self {
        match lives {
            Some(true) => Self::Live,
            Some(false) => Self::Dead,
            None => Self::Unknown,
        }
    }
}

/// A participant's own time stamp, if it is a date. Any client may have written it.
pub fn date(text: &str) -> Option<SystemTime> {
    humantime::parse_rfc3339(text).ok()
}

/// Seconds since a participant's own time stamp. Its clock may be ahead of this one.
pub(super) fn age(since: &Option<String>, now: SystemTime) -> Option<f64> {
    let since = date(since.as_deref()?)?;
    Some(now.duration_since(since).map_or(0.0, crate::duration::seconds))
}
