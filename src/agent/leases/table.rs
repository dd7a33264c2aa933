//! What becomes of leases: pure, time comes in. The keepers that hold them, and whoever waits for an answer, are the
//! shell's; here is decided who may ask, how long each may live, and what is said of those that are gone.
//!
//! A lease is first waited for, then held, then left, and then gone; it never goes back.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::control::request::{Kind, NoLease, Refusal};
use slotkeeper_semaphore::{LossReason, Moment, Name, SessionId};

/// Ended leases of which it is remembered what became of them.
const MAX_REMEMBERED: usize = 1024;
/// A wait that the core has not ended by itself so long after its time is ended all the same: a request to Consul may be
/// under way for longer.
const WAIT_GRACE: Duration = Duration::from_secs(2);
/// What is tried once has this time to get an answer at all.
const TRY_ONCE_TIMEOUT: Duration = Duration::from_secs(10);
/// The least time for which a lease outlives its client's deadline: it may count from when it got the answer.
const MIN_MARGIN: Duration = Duration::from_secs(1);

/// What is said of one that an operator wanted out.
const EVICTED: NoLease = NoLease::Lost(LossReason::Evicted.as_str());

/// One lease, as the shell calls it. No two leases of a process have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::agent) struct Key(u64);

#[cfg(test)]
impl Key {
    /// One that nothing is behind.
    pub(in crate::agent) const fn numbered(number: u64) -> Self {
        Self(number)
    }
}

/// How many there may be.
#[derive(Clone, Copy, Debug)]
pub(in crate::agent) struct Bounds {
    /// That are waited for.
    pub(in crate::agent) waits: usize,
    /// In all: each one that is waited for may be granted.
    pub(in crate::agent) leases: usize,
}

/// What was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::agent) struct Granted {
    pub(in crate::agent) session: SessionId,
    pub(in crate::agent) token: u64,
    /// A lock's.
    pub(in crate::agent) lock_index: Option<u64>,
    pub(in crate::agent) indexes: Vec<u32>,
    pub(in crate::agent) since: Moment,
}

/// Where a lease stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::agent) enum Stage {
    /// Its client waits for it.
    Waiting,
    /// Its client has it.
    Held {
        /// What it has.
        granted: Granted,
        /// When the client said last that it needs it.
        renewed: Moment,
    },
    /// An operator wants it out. Its client learns of it at its next renewal, and may believe in it until then.
    Evicted {
        /// From here on its client does not believe in it any more.
        until: Moment,
    },
    /// It is being given back, or what is left of it.
    Leaving {
        /// What its client is told of it; `None`: it has never been told of it.
        fate: Option<NoLease>,
        /// Since when.
        since: Moment,
        /// What cannot be given back is left: the session is destroyed, or ends by itself.
        abandoned: bool,
    },
}

/// One lease.
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

/// What is due for a lease; the table has noted it already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::agent) enum Due {
    /// The wait is over, and is to be refused; then it is given back.
    Late,
    /// Its client has not renewed it: it is given back.
    Expired,
    /// It was evicted, and its client believes in it no more: it is given back.
    AssumedLost,
    /// It cannot be given back: the session is to be destroyed.
    Abandon,
    /// Not even that: the session has ended by itself by now.
    Forget,
}

/// All leases of an agent.
#[derive(Clone, Debug)]
pub(in crate::agent) struct Table {
    bounds: Bounds,
    /// Of the sessions; and the time that a client has from one renewal to the next.
    ttl: Duration,
    made: u64,
    leases: BTreeMap<Key, Lease>,
    /// Nothing is due before this.
    quiet_until: Option<Moment>,
    /// The last ones that their clients had and that are gone.
    ended: VecDeque<(String, NoLease)>,
}

impl Table {
    pub(in crate::agent) fn new(bounds: Bounds, ttl: Duration) -> Self {
        let (leases, ended) = (BTreeMap::new(), VecDeque::new());
        Self { bounds, ttl, made: 0, leases, quiet_until: None, ended }
    }

    /// Whether there is room for one more.
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

    /// Somebody waits for one from here on. `id` is nobody else's.
    ///
    /// # Errors
    ///
    /// There are as many as there may be.
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

    /// It is held; whether anybody waits for it still.
    pub(in crate::agent) fn granted(&mut self, key: Key, granted: Granted, now: Moment) -> bool {
        let lease = self.leases.get_mut(&key).filter(|lease| lease.stage == Stage::Waiting);
        let Some(lease) = lease else { return false };
        lease.stage = Stage::Held { granted, renewed: now };
        self.has_changed(key);
        true
    }

    /// Nobody waits for it any more; whether anybody did.
    pub(in crate::agent) fn refused(&mut self, key: Key, now: Moment) -> bool {
        self.leave(key, |stage| *stage == Stage::Waiting, None, now)
    }

    /// It was lost; whether it was held.
    pub(in crate::agent) fn lost(&mut self, key: Key, reason: LossReason, now: Moment) -> bool {
        self.leave(key, is_held, Some(NoLease::Lost(reason.as_str())), now)
    }

    /// An operator wants it out: it is kept for as long as its client may believe in it, while `lease_ends` says that the
    /// session surely lives. Whether it was held.
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

    /// It is given back since nobody needs it; whether it was held.
    pub(in crate::agent) fn released(&mut self, key: Key, now: Moment) -> bool {
        self.leave(key, is_held, Some(NoLease::Released), now)
    }

    /// Its client needs it further on.
    pub(in crate::agent) fn renewed(&mut self, key: Key, now: Moment) {
        let stage = self.leases.get_mut(&key).map(|lease| &mut lease.stage);
        if let Some(Stage::Held { renewed, .. }) = stage {
            *renewed = now.max(*renewed);
        }
    }

    /// Nothing of it is left; what became of it is remembered.
    pub(in crate::agent) fn gone(&mut self, key: Key) {
        let Some(lease) = self.leases.remove(&key) else { return };
        let fate = match lease.stage {
            Stage::Leaving { fate, .. } => fate,
            Stage::Evicted { .. } => Some(EVICTED),
            // Its keeper has ended without being told to: what was held is not any more.
            Stage::Held { .. } => Some(NoLease::Lost(LossReason::SessionGone.as_str())),
            Stage::Waiting => None,
        };
        let Some(fate) = fate else { return };
        if self.ended.len() >= MAX_REMEMBERED {
            self.ended.pop_front();
        }
        self.ended.push_back((lease.id, fate));
    }

    /// The lease that its client calls so, if it has been told of it and it is not gone.
    pub(in crate::agent) fn find(&self, id: &str) -> Option<Key> {
        let known = |lease: &Lease| match lease.stage {
            Stage::Waiting | Stage::Leaving { fate: None, .. } => false,
            Stage::Held { .. } | Stage::Evicted { .. } | Stage::Leaving { fate: Some(_), .. } => {
                lease.id == id
            }
        };
        self.leases.iter().find(|(_, lease)| known(lease)).map(|(key, _)| *key)
    }

    /// What has become of one that is gone.
    pub(in crate::agent) fn fate(&self, id: &str) -> NoLease {
        let ended = self.ended.iter().rev().find(|(ended, _)| ended == id);
        ended.map_or(NoLease::Unknown, |(_, fate)| *fate)
    }

    /// What is held, by one that is, for as long as `lease_ends` says that the session surely lives.
    ///
    /// # Errors
    ///
    /// What has become of one that is not.
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

    /// Until when one may be believed in that was renewed then.
    pub(in crate::agent) fn expires_at(&self, renewed: Moment, lease_ends: Moment) -> Moment {
        (renewed + self.ttl).min(lease_ends)
    }

    /// Does what is due at `now`, and says what the shell has to do of it.
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

    /// When [`Self::due`] is wanted next: not after something is due, and now and then before.
    pub(in crate::agent) fn deadline(&self) -> Option<Moment> {
        self.quiet_until
    }

    /// It may be due earlier than before. What is due later, since it was renewed or is gone, is found out when the time has
    /// come: else each renewal would cost a look at all.
    fn has_changed(&mut self, key: Key) {
        let due = self.leases.get(&key).map(|lease| self.due_at(lease));
        self.quiet_until = self.quiet_until.into_iter().chain(due).min();
    }

    /// What it is of has another name.
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

    /// When something is due for it. Where Consul answers nothing, its session has ended by itself after two TTLs at the
    /// latest; so long it is tried to give it back. From then on it is not renewed either, and so has ended after two
    /// more, whatever was answered.
    fn due_at(&self, lease: &Lease) -> Moment {
        match &lease.stage {
            Stage::Waiting => lease.until,
            Stage::Held { renewed, .. } => *renewed + self.ttl + self.margin(),
            Stage::Evicted { until } => *until,
            Stage::Leaving { since, abandoned: false, .. } => *since + self.ttl * 2,
            Stage::Leaving { since, abandoned: true, .. } => *since + self.ttl * 4,
        }
    }

    /// For how much longer than it was told a client may believe: it may count from when it got the answer.
    fn margin(&self) -> Duration {
        (self.ttl / 10).max(MIN_MARGIN)
    }

    /// Ends what is in one of those stages; whether it was.
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
