//! A single-key lock as the world may see it.

use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;

use super::identity::IdentitySchema;
use super::{Check, Lease, LeaseReport, Mode, Snapshot, State, seconds};
use slotkeeper_semaphore::{Identity, Moment, Wall};

/// One lock of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Its configured name.
    pub name: String,
    /// Its key.
    pub key: String,
    /// Whether readiness waits for it.
    pub required: bool,
    /// How it is taken.
    pub mode: Mode,
    /// Where it stands.
    pub state: State,
    /// What is wrong, if anything is.
    pub reason: Option<String>,
    /// What the configuration says otherwise by now, if an automatic reload has left it as it was.
    pub deferred: Option<String>,
    /// Since when it is held.
    pub held_since: Option<Moment>,
    /// The key's ModifyIndex at the grant.
    pub fencing_token: Option<u64>,
    /// How often the lock has been taken since its key was made: Consul's LockIndex.
    pub lock_index: Option<u64>,
    /// Who has it, as last seen.
    pub leader: Option<Leader>,
    /// Since when it is asked for, while it is not held.
    pub asked_at: Option<Moment>,
    /// Until when Consul gives it to nobody, as far as is known.
    pub delayed_until: Option<Moment>,
    /// When its key was looked at last; `None` where nothing is known of it.
    pub seen_at: Option<Moment>,
    /// What clients have of it, or wait for.
    pub leases: Vec<Lease>,
}

/// Who has a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Leader {
    /// The session.
    pub session: String,
    /// Whether it is this agent's.
    pub mine: bool,
    /// Who it says it is; missing for another kind of client.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<IdentitySchema>)]
    pub who: Option<Identity>,
}

impl Lock {
    pub(super) fn check(&self) -> Check {
        let mut detail = self.state.as_str().to_owned();
        if let (State::Waiting, Some(leader)) = (self.state, &self.leader) {
            detail.push_str(&format!(", {} has it", leader.session));
        }
        if let Some(reason) = &self.reason {
            detail.push_str(&format!(": {reason}"));
        }
        Check { name: format!("lock/{}", self.name), passed: self.state == State::Held, detail }
    }
}

/// One single-key lock.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Lock)]
pub struct LockReport<'a> {
    /// Its configured name.
    name: &'a str,
    /// Its key.
    key: &'a str,
    /// Where it stands.
    state: State,
    /// What is wrong; missing where nothing is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    reason: Option<&'a str>,
    /// What the configuration says otherwise by now, where an automatic reload has left it as it was: an explicit reload takes it
    /// over. Missing where there is nothing of the kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    deferred: Option<&'a str>,
    /// Whether readiness waits for it.
    required: bool,
    /// How it is taken.
    mode: Mode,
    /// Since when this agent has it, in UTC; null where it has not.
    #[schema(required = true, format = DateTime)]
    held_since: Option<String>,
    /// Its key's ModifyIndex at the grant, which grows from grant to grant; null where this agent has it not.
    #[schema(required = true)]
    fencing_token: Option<u64>,
    /// How often it has been taken since its key was made (Consul's LockIndex); null where there is no key, or nothing
    /// was seen.
    #[schema(required = true)]
    lock_index: Option<u64>,
    /// Until then it may be believed in; null where this agent has it not.
    #[schema(required = true, minimum = 0)]
    lease_remaining_seconds: Option<f64>,
    /// For how long it has been asked for; null where it is not.
    #[schema(required = true, minimum = 0)]
    waiting_seconds: Option<f64>,
    /// For how long Consul will give it to nobody, as far as is known: its last owner's session has ended; null otherwise.
    #[schema(required = true, minimum = 0)]
    delayed_seconds: Option<f64>,
    /// Who has it, which is who leads; null where nobody has it, or nothing was seen.
    #[schema(required = true)]
    leader: Option<&'a Leader>,
    /// How old the last look at its key is, which its watch has kept up with since; null before there was one.
    #[schema(required = true, minimum = 0)]
    seen_seconds_ago: Option<f64>,
    /// What clients have of it, or wait for.
    leases: Vec<LeaseReport<'a>>,
}

impl Snapshot {
    /// One lock, as the endpoint gives it.
    pub fn lock_report<'a>(&'a self, lock: &'a Lock, now: Moment, wall: Wall) -> LockReport<'a> {
        let delayed = lock.delayed_until.map(|until| until.since(now)).filter(|left| *left > Duration::ZERO);
        LockReport {
            name: &lock.name,
            key: &lock.key,
            state: lock.state,
            reason: lock.reason.as_deref(),
            deferred: lock.deferred.as_deref(),
            required: lock.required,
            mode: lock.mode,
            held_since: lock.held_since.map(|since| wall.text(since)),
            fencing_token: lock.fencing_token,
            lock_index: lock.lock_index,
            lease_remaining_seconds: lock.held_since.and_then(|_| self.lease_left(now)).map(seconds),
            waiting_seconds: lock.asked_at.map(|since| seconds(now.since(since))),
            delayed_seconds: delayed.map(seconds),
            leader: lock.leader.as_ref(),
            seen_seconds_ago: lock.seen_at.map(|at| seconds(now.since(at))),
            leases: lock.leases.iter().map(|lease| lease.report(now, wall)).collect(),
        }
    }
}
