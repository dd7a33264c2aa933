//! The states of leases: how many there may be, how long each lasts, and what its client learns of its end. Pure: keepers and
//! replies belong to the parent module.
//!
//! A lease is waiting, then held, then leaving, then gone. It never goes back.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::control::request::{Kind, NoLease, Refusal};
use slotkeeper_semaphore::{LossReason, Moment, Name, SessionId, TRY_ONCE_TIMEOUT};

/// Ended leases whose outcome is remembered.
const MAX_REMEMBERED: usize = 1024;
/// A wait ends at the latest this long after its time: a request to Consul may take longer.
const WAIT_GRACE: Duration = Duration::from_secs(2);
/// A lease lasts at least this much longer than its client knows: the client may count from when it got the answer.
const MIN_MARGIN: Duration = Duration::from_secs(1);

/// The outcome of an evicted lease.
const EVICTED: NoLease = NoLease::Lost(LossReason::Evicted.as_str());

/// The number of a lease, unique in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::agent) struct Key(u64);

#[cfg(test)]
impl Key {
    pub(in crate::agent) const fn numbered(number: u64) -> Self {
        Self(number)
    }
}

/// The limits of leases.
#[derive(Clone, Copy, Debug)]
pub(in crate::agent) struct Bounds {
    /// Waiting requests.
    pub(in crate::agent) waits: usize,
    /// Leases and waiting requests together: each request may be granted.
    pub(in crate::agent) leases: usize,
}

/// What was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::agent) struct Granted {
    pub(in crate::agent) session: SessionId,
    pub(in crate::agent) token: u64,
    /// Of a lock.
    pub(in crate::agent) lock_index: Option<u64>,
    pub(in crate::agent) indexes: Vec<u32>,
    pub(in crate::agent) since: Moment,
}

/// The state of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::agent) enum Stage {
    /// Its client waits for it.
    Waiting,
    /// Its client has it.
    Held {
        granted: Granted,
        /// The last renewal by the client.
        renewed: Moment,
    },
    /// An operator has evicted it. The client learns that at its next renewal, and may use the slot until then.
    Evicted {
        /// From here on the client knows that its lease has expired.
        until: Moment,
    },
    /// It is being released.
    Leaving {
        /// The outcome for its client. `None`: the client never had it.
        fate: Option<NoLease>,
        since: Moment,
        /// What cannot be released is left: the session is destroyed, or ends by its TTL.
        abandoned: bool,
    },
}

#[derive(Clone, Debug)]
pub(in crate::agent) struct Lease {
    id: String,
    kind: Kind,
    name: Name,
    asked_at: Moment,
    /// The end of a wait.
    until: Moment,
    stage: Stage,
}

impl Lease {
    pub(in crate::agent) fn id(&self) -> &str {
        &self.id
    }

    pub(in crate::agent) fn kind(&self) -> Kind {
        self.kind
    }

    pub(in crate::agent) fn name(&self) -> &Name {
        &self.name
    }

    pub(in crate::agent) fn asked_at(&self) -> Moment {
        self.asked_at
    }

    pub(in crate::agent) fn stage(&self) -> &Stage {
        &self.stage
    }
}

/// What is due for a lease. The table has changed its state already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::agent) enum Due {
    /// The wait timed out: refuse it, and release what there is.
    Late,
    /// The client has not renewed it: release it.
    Expired,
    /// It was evicted, and the client knows by now that it has expired: release it.
    AssumedLost,
    /// It could not be released: destroy the session.
    Abandon,
    /// The session could not be destroyed, and has ended by its TTL by now.
    Forget,
}

/// All leases of an agent.
#[derive(Clone, Debug)]
pub(in crate::agent) struct Table {
    bounds: Bounds,
    /// The TTL of the sessions, within which a client renews its lease.
    ttl: Duration,
    made: u64,
    leases: BTreeMap<Key, Lease>,
    /// Nothing is due before this.
    quiet_until: Option<Moment>,
    /// The outcomes of the last leases that clients had.
    ended: VecDeque<(String, NoLease)>,
}

impl Table {
    pub(in crate::agent) fn new(bounds: Bounds, ttl: Duration) -> Self {
        let (leases, ended) = (BTreeMap::new(), VecDeque::new());
        Self { bounds, ttl, made: 0, leases, quiet_until: None, ended }
    }

    /// Whether another request fits the limits.
    pub(in crate::agent) fn room(&self) -> Result<(), Refusal> {
        let waits = self.leases.values().filter(|lease| lease.stage == Stage::Waiting).count();
        if self.leases.len() >= self.bounds.leases {
            Err(Refusal::TooManyLeases(self.bounds.leases))
        } else if waits >= self.bounds.waits {
            Err(Refusal::TooManyWaits(self.bounds.waits))
        } else {
            Ok(())
        }
    }

    /// Adds a waiting request. `id` is unique.
    ///
    /// # Errors
    ///
    /// A limit is reached.
    pub(in crate::agent) fn open(
        &mut self,
        id: String,
        (kind, name): (Kind, Name),
        wait: Duration,
        now: Moment,
    ) -> Result<Key, Refusal> {
        self.room()?;
        let key = Key(self.made);
        self.made += 1;
        let until = now + if wait.is_zero() { TRY_ONCE_TIMEOUT } else { wait } + WAIT_GRACE;
        self.leases.insert(key, Lease { id, kind, name, asked_at: now, until, stage: Stage::Waiting });
        self.has_changed(key);
        Ok(key)
    }

    /// The lease is held. Returns whether its request was still waiting.
    pub(in crate::agent) fn granted(&mut self, key: Key, granted: Granted, now: Moment) -> bool {
        let lease = self.leases.get_mut(&key).filter(|lease| lease.stage == Stage::Waiting);
        let Some(lease) = lease else { return false };
        lease.stage = Stage::Held { granted, renewed: now };
        self.has_changed(key);
        true
    }

    /// The request does not wait any more. Returns whether it did.
    pub(in crate::agent) fn refused(&mut self, key: Key, now: Moment) -> bool {
        self.leave(key, |stage| *stage == Stage::Waiting, None, now)
    }

    /// The slot was lost. Returns whether the lease was held.
    pub(in crate::agent) fn lost(&mut self, key: Key, reason: LossReason, now: Moment) -> bool {
        self.leave(key, is_held, Some(NoLease::Lost(reason.as_str())), now)
    }

    /// An operator has evicted it: it is kept until the client knows that it has expired, and at most as long as the session
    /// surely lives (`lease_ends`). Returns whether it was held.
    pub(in crate::agent) fn evicted(&mut self, key: Key, lease_ends: Moment) -> bool {
        let Some(Stage::Held { renewed, .. }) = self.leases.get(&key).map(|lease| &lease.stage) else {
            return false;
        };
        let until = self.expires_at(*renewed, lease_ends) + self.margin();
        if let Some(lease) = self.leases.get_mut(&key) {
            lease.stage = Stage::Evicted { until };
        }
        self.has_changed(key);
        true
    }

    /// The client releases it. Returns whether it was held.
    pub(in crate::agent) fn released(&mut self, key: Key, now: Moment) -> bool {
        self.leave(key, is_held, Some(NoLease::Released), now)
    }

    /// The client renews it.
    pub(in crate::agent) fn renewed(&mut self, key: Key, now: Moment) {
        let stage = self.leases.get_mut(&key).map(|lease| &mut lease.stage);
        if let Some(Stage::Held { renewed, .. }) = stage {
            *renewed = now.max(*renewed);
        }
    }

    /// Removes the lease, and remembers its outcome.
    pub(in crate::agent) fn gone(&mut self, key: Key) {
        let Some(lease) = self.leases.remove(&key) else { return };
        let fate = match lease.stage {
            Stage::Leaving { fate, .. } => fate,
            Stage::Evicted { .. } => Some(EVICTED),
            // Its keeper has ended by itself: the slot is not held any more.
            Stage::Held { .. } => Some(NoLease::Lost(LossReason::SessionGone.as_str())),
            Stage::Waiting => None,
        };
        let Some(fate) = fate else { return };
        if self.ended.len() >= MAX_REMEMBERED {
            self.ended.pop_front();
        }
        self.ended.push_back((lease.id, fate));
    }

    /// The lease of this id, if its client has had it and it is not gone.
    pub(in crate::agent) fn find(&self, id: &str) -> Option<Key> {
        let known = |lease: &Lease| match lease.stage {
            Stage::Waiting | Stage::Leaving { fate: None, .. } => false,
            Stage::Held { .. } | Stage::Evicted { .. } | Stage::Leaving { fate: Some(_), .. } => {
                lease.id == id
            }
        };
        self.leases.iter().find(|(_, lease)| known(lease)).map(|(key, _)| *key)
    }

    /// The outcome of a lease that is gone.
    pub(in crate::agent) fn fate(&self, id: &str) -> NoLease {
        let ended = self.ended.iter().rev().find(|(ended, _)| ended == id);
        ended.map_or(NoLease::Unknown, |(_, fate)| *fate)
    }

    /// A held lease, while the session surely lives (`lease_ends`).
    ///
    /// # Errors
    ///
    /// The outcome of a lease that is not held.
    pub(in crate::agent) fn held(
        &self,
        key: Key,
        lease_ends: Moment,
        now: Moment,
    ) -> Result<(&Lease, &Granted, Duration), NoLease> {
        let lease = self.leases.get(&key).ok_or(NoLease::Unknown)?;
        match &lease.stage {
            Stage::Held { .. } if lease_ends <= now => Err(NoLease::Lost(LossReason::LeaseExpired.as_str())),
            Stage::Held { granted, renewed } => {
                Ok((lease, granted, self.expires_at(*renewed, lease_ends).since(now)))
            }
            Stage::Evicted { .. } => Err(EVICTED),
            Stage::Leaving { fate, .. } => Err(fate.unwrap_or(NoLease::Unknown)),
            Stage::Waiting => Err(NoLease::Unknown),
        }
    }

    /// When a lease expires that was renewed then.
    pub(in crate::agent) fn expires_at(&self, renewed: Moment, lease_ends: Moment) -> Moment {
        (renewed + self.ttl).min(lease_ends)
    }

    /// Changes the states of leases that are due at `now`. Returns what the caller has to do.
    pub(in crate::agent) fn due(&mut self, now: Moment) -> Vec<(Key, Due)> {
        let mut all = Vec::new();
        if self.quiet_until.is_none_or(|until| now < until) {
            return all;
        }
        let due: Vec<Key> =
            self.leases.iter().filter(|(_, lease)| self.due_at(lease) <= now).map(|(key, _)| *key).collect();
        for key in due {
            let Some(lease) = self.leases.get_mut(&key) else { continue };
            let (stage, due) = match &lease.stage {
                Stage::Waiting => (Stage::Leaving { fate: None, since: now, abandoned: false }, Due::Late),
                Stage::Held { .. } => {
                    let fate = Some(NoLease::Expired);
                    (Stage::Leaving { fate, since: now, abandoned: false }, Due::Expired)
                }
                Stage::Evicted { .. } => {
                    let fate = Some(EVICTED);
                    (Stage::Leaving { fate, since: now, abandoned: false }, Due::AssumedLost)
                }
                Stage::Leaving { fate, since, abandoned: false } => {
                    (Stage::Leaving { fate: *fate, since: *since, abandoned: true }, Due::Abandon)
                }
                stage @ Stage::Leaving { abandoned: true, .. } => (stage.clone(), Due::Forget),
            };
            lease.stage = stage;
            all.push((key, due));
        }
        self.quiet_until = self.leases.values().map(|lease| self.due_at(lease)).min();
        all
    }

    /// When to call [`Self::due`] next. That may be before something is due.
    pub(in crate::agent) fn deadline(&self) -> Option<Moment> {
        self.quiet_until
    }

    /// The lease may be due earlier than before. That one is due later is found when the time has come: otherwise each renewal
    /// would cost a pass over all leases.
    fn has_changed(&mut self, key: Key) {
        let due = self.leases.get(&key).map(|lease| self.due_at(lease));
        self.quiet_until = self.quiet_until.into_iter().chain(due).min();
    }

    /// Its semaphore or lock has another name.
    pub(in crate::agent) fn rename(&mut self, key: Key, name: Name) {
        if let Some(lease) = self.leases.get_mut(&key) {
            lease.name = name;
        }
    }

    pub(in crate::agent) fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    pub(in crate::agent) fn iter(&self) -> impl Iterator<Item = (Key, &Lease)> {
        self.leases.iter().map(|(key, lease)| (*key, lease))
    }

    pub(in crate::agent) fn get(&self, key: Key) -> Option<&Lease> {
        self.leases.get(&key)
    }

    /// When something is due for the lease. The release is retried for two TTLs: without an answer of Consul the session has
    /// ended by then. From then on it is not renewed, so that it has ended after two more TTLs in any case.
    fn due_at(&self, lease: &Lease) -> Moment {
        match &lease.stage {
            Stage::Waiting => lease.until,
            Stage::Held { renewed, .. } => *renewed + self.ttl + self.margin(),
            Stage::Evicted { until } => *until,
            Stage::Leaving { since, abandoned: false, .. } => *since + self.ttl * 2,
            Stage::Leaving { since, abandoned: true, .. } => *since + self.ttl * 4,
        }
    }

    /// A client may count its time from when it got the answer.
    fn margin(&self) -> Duration {
        (self.ttl / 10).max(MIN_MARGIN)
    }

    /// Moves a lease in one of these states to leaving. Returns whether it was in one.
    fn leave(&mut self, key: Key, from: impl Fn(&Stage) -> bool, fate: Option<NoLease>, now: Moment) -> bool {
        let Some(lease) = self.leases.get_mut(&key).filter(|lease| from(&lease.stage)) else { return false };
        lease.stage = Stage::Leaving { fate, since: now, abandoned: false };
        self.has_changed(key);
        true
    }
}

fn is_held(stage: &Stage) -> bool {
    matches!(stage, Stage::Held { .. } | Stage::Evicted { .. })
}

#[cfg(test)]
mod tests;
