//! A single-key lock.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::identity::IdentitySchema;
use super::{Check, Lease, Mode, Moments, State, seconds};
use slotkeeper_semaphore::{Identity, Moment, Wall};

/// One single-key lock.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Lock {
    /// Its configured name.
    pub name: String,
    /// Its key.
    #[serde(default)]
    #[schema(required = true)]
    pub key: String,
    /// Its state.
    pub state: State,
    /// The problem; missing if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub reason: Option<String>,
    /// The changed configuration that an automatic reload has not applied: an explicit reload applies it. Missing if there is
    /// none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub deferred: Option<String>,
    /// Whether readiness waits for it.
    #[serde(default)]
    #[schema(required = true)]
    pub required: bool,
    /// How it is acquired.
    #[serde(default)]
    #[schema(required = true)]
    pub mode: Mode,
    /// Since when this agent holds it, in UTC; null if it does not.
    #[schema(required = true, format = DateTime)]
    pub held_since: Option<String>,
    /// Its key's ModifyIndex at the grant, which increases from grant to grant; null if this agent does not hold it.
    #[schema(required = true)]
    pub fencing_token: Option<u64>,
    /// How often it was acquired since its key was created (Consul's LockIndex); null if there is no key, or it was not
    /// read yet.
    #[schema(required = true)]
    pub lock_index: Option<u64>,
    /// The time until it is no longer safe to use; null if this agent does not hold it.
    #[schema(required = true, minimum = 0)]
    pub lease_remaining_seconds: Option<f64>,
    /// The time that the agent has waited for it; null if it does not wait.
    #[schema(required = true, minimum = 0)]
    pub waiting_seconds: Option<f64>,
    /// The rest of its lock-delay, as far as known, after the end of its last holder's session; null otherwise.
    #[schema(required = true, minimum = 0)]
    pub delayed_seconds: Option<f64>,
    /// Its holder, which is the leader; null if it has none, or its key was not read yet.
    #[schema(required = true)]
    pub leader: Option<Leader>,
    /// The age of the last read of its key, kept current by its watch; null before the first.
    #[schema(required = true, minimum = 0)]
    pub seen_seconds_ago: Option<f64>,
    /// The leases that clients hold or wait for.
    #[serde(default)]
    #[schema(required = true)]
    pub leases: Vec<Lease>,
    /// The moments from which a report computes its dates and durations.
    #[serde(skip)]
    pub moments: Moments,
}

/// The holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Leader {
    /// Its session.
    pub session: String,
    /// Whether it is this agent's.
    #[serde(default)]
    #[schema(required = true)]
    pub mine: bool,
    /// Its identity as it wrote it; missing for a foreign client.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<IdentitySchema>)]
    pub who: Option<Identity>,
}

impl Lock {
    pub(super) fn check(&self) -> Check {
        let mut detail = self.state.as_str().to_owned();
        if let (State::Waiting, Some(leader)) = (self.state, &self.leader) {
            detail.push_str(&format!(", held by {}", leader.session));
        }
        if let Some(reason) = &self.reason {
            detail.push_str(&format!(": {reason}"));
        }
        Check { name: format!("lock/{}", self.name), passed: self.state == State::Held, detail }
    }

    pub(super) fn report(&self, lease_left: Option<Duration>, now: Moment, wall: Wall) -> Self {
        let Moments { held_since, asked_at, seen_at, delayed_until, .. } = self.moments;
        let delayed = delayed_until.map(|until| until.since(now)).filter(|left| *left > Duration::ZERO);
        Self {
            held_since: held_since.map(|since| wall.text(since)),
            lease_remaining_seconds: held_since.and(lease_left).map(seconds),
            waiting_seconds: asked_at.map(|since| seconds(now.since(since))),
            delayed_seconds: delayed.map(seconds),
            seen_seconds_ago: seen_at.map(|at| seconds(now.since(at))),
            leases: self.leases.iter().map(|lease| lease.report(now, wall)).collect(),
            ..self.clone()
        }
    }
}
