//! The part of the status that semaphores and locks have in common.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Check, Kind, Lease, Mode, Moments, State};
use crate::duration::seconds;
use slotkeeper_semaphore::{Moment, Wall};

/// What a semaphore and a lock have in common.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Its kind. It is not parsed: the kinds are in different lists.
    #[serde(default, deserialize_with = "Kind::ignored")]
    pub kind: Kind,
    /// Its configured name.
    pub name: String,
    /// Its state. On demand: `held` if a client holds a lease, `waiting` if clients only wait, else `idle`.
    pub state: State,
    /// The problem; missing if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The changed configuration that an automatic reload has not applied: an explicit reload applies it. Missing if there is
    /// none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deferred: Option<String>,
    /// Whether readiness waits for it.
    #[serde(default)]
    pub required: bool,
    /// How it is acquired.
    #[serde(default)]
    pub mode: Mode,
    /// Since when this agent holds it, or waits for it while it does not hold it, in UTC; null if it does neither.
    pub since: Option<String>,
    /// The time since then.
    pub age_seconds: Option<f64>,
    /// Increases from grant to grant: the index at the grant of a semaphore's `.lock`, or the ModifyIndex of a lock's key. Null
    /// if this agent does not hold it.
    pub fencing_token: Option<u64>,
    /// The time until it is no longer safe to use; null if this agent does not hold it.
    pub expires_in_seconds: Option<f64>,
    /// The age of limit, holders and queue as they are shown, or of the last read of a lock's key, which its watch keeps
    /// current; null before the prefix or key was read.
    pub seen_seconds_ago: Option<f64>,
    /// The leases that clients hold or wait for, from the oldest on.
    #[serde(default)]
    pub leases: Vec<Lease>,
    /// The moments from which a report computes its dates and durations.
    #[serde(skip)]
    pub moments: Moments,
}

impl Entry {
    /// The problem, and the changed configuration that is not applied.
    pub fn remarks(&self) -> impl Iterator<Item = &String> {
        self.reason.iter().chain(&self.deferred)
    }

    /// The check of readiness; `waits` says what a waiter waits for.
    pub(super) fn check(&self, kind: &str, waits: Option<String>) -> Check {
        let mut detail = self.state.as_str().to_owned();
        if let Some(waits) = waits.filter(|_| self.state == State::Waiting) {
            detail.push_str(&format!(", {waits}"));
        }
        if let Some(reason) = &self.reason {
            detail.push_str(&format!(": {reason}"));
        }
        Check { name: format!("{kind}/{}", self.name), passed: self.state == State::Held, detail }
    }

    /// The report at that time.
    pub(super) fn report(&self, lease_left: Option<Duration>, now: Moment, wall: Wall) -> Self {
        let Moments { held_since, seen_at, .. } = self.moments;
        let since = self.moments.since();
        Self {
            since: since.map(|since| wall.text(since)),
            age_seconds: since.map(|since| seconds(now.since(since))),
            expires_in_seconds: held_since.and(lease_left).map(seconds),
            seen_seconds_ago: seen_at.map(|at| seconds(now.since(at))),
            leases: self.leases.iter().map(|lease| lease.report(now, wall)).collect(),
            ..self.clone()
        }
    }
}
