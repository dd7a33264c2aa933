//! The clients' side of leases: their requests, and the replies to them.

use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use tokio::sync::oneshot;
use tracing::debug;
use uuid::Uuid;

use super::table::{Granted, Key};
use super::{Leases, Running};
use crate::agent::driver::{Driver, Owner};
use crate::agent::labels;
use crate::agent::snapshot::never_fits;
use crate::control::request::{Grant, Kind, NoLease, Refusal, Released};
use crate::log_events::{LEASE_CLIENT_GONE, LEASE_UNCLAIMED};
use slotkeeper_semaphore::{self, Keeper, Machine, Moment, Name, OnLost, Settings};

/// A shorter wait without an answer says nothing about Consul.
const MIN_CONCLUSIVE_WAIT: Duration = Duration::from_secs(1);
/// The reply to a release says after this time that Consul has not answered yet.
const RELEASE_REPLY_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) type GrantReply = oneshot::Sender<Result<Grant, Refusal>>;
pub(super) type ReleaseReply = oneshot::Sender<Result<Released, NoLease>>;

/// A request for a lease.
pub(in crate::agent) struct Wanted {
    pub(in crate::agent) kind: Kind,
    /// The configured name.
    pub(in crate::agent) name: Name,
    pub(in crate::agent) wait: Duration,
    /// Resolves when the client has got its answer. Closes if the client disconnects before.
    pub(in crate::agent) present: oneshot::Receiver<()>,
    pub(in crate::agent) reply: GrantReply,
}

impl Leases {
    /// Requests a lease with these settings. `keeper` creates its keeper.
    pub(in crate::agent) fn acquire(
        &mut self,
        wanted: Wanted,
        terms: Settings,
        keeper: impl FnOnce(Name, Settings) -> Keeper,
        now: Moment,
    ) {
        let Wanted { kind, name, wait, present, reply } = wanted;
        // A lost slot is not acquired again: the client knows nothing of another one.
        let terms = Settings { wait: Some(wait), on_lost: OnLost::Exit, ..terms };
        // The client learns the id with the grant.
        let id = Uuid::new_v4().to_string();
        match self.table.open(id, (kind, name), wait, now) {
            Ok(key) => {
                let id = labels::id(kind, &terms.prefix);
                let terms = self.limits.settings(&id, terms);
                let driver = Driver::new(Owner::Lease(key), keeper(Name::clone(&id), terms));
                self.of.entry(Name::clone(&id)).or_default().insert(key);
                self.running.insert(key, Running { id, driver, reply: Some(reply) });
                self.agenda.touch(key);
                self.absent.push(present.map(move |got_it| got_it.is_err().then_some(key)).boxed());
            }
            Err(refusal) => tell(reply, Err(refusal)),
        }
    }

    /// The lease. `renews`: its client renews it.
    pub(in crate::agent) fn show(&mut self, id: &str, renews: bool, now: Moment) -> Result<Grant, NoLease> {
        let key = self.table.find(id).ok_or_else(|| self.table.fate(id))?;
        let grant = self.grant(key, now)?;
        if !renews {
            return Ok(grant);
        }
        self.table.renewed(key, now);
        self.unshown.extend(self.running.get(&key).map(|running| Name::clone(&running.id)));
        self.grant(key, now)
    }

    /// Releases a lease.
    pub(in crate::agent) fn release(&mut self, id: &str, reply: ReleaseReply, now: Moment) {
        let Some(key) = self.table.find(id) else {
            let answer = match self.table.fate(id) {
                NoLease::Unknown => Err(NoLease::Unknown),
                // It has ended already.
                NoLease::Released | NoLease::Expired | NoLease::Lost(_) => Ok(Released::Done),
            };
            return tell(reply, answer);
        };
        self.releases.push((key, now + RELEASE_REPLY_TIMEOUT, reply));
        if self.table.released(key, now) {
            self.leave(key, now);
        }
    }

    /// The next client that has disconnected without its answer. `None`: no client waits.
    pub(in crate::agent) async fn absent(&mut self) -> Option<Key> {
        loop {
            if let Some(gone) = self.absent.next().await? {
                return Some(gone);
            }
        }
    }

    /// The client has disconnected, also where its lease was granted in the same instant.
    pub(in crate::agent) fn client_gone(&mut self, key: Key, now: Moment) {
        if self.table.refused(key, now) || self.table.released(key, now) {
            debug!("{LEASE_CLIENT_GONE}");
            self.leave(key, now);
        }
    }

    /// Ends all waits.
    pub(in crate::agent) fn ask_no_more(&mut self, now: Moment) {
        for key in self.keys() {
            self.refuse(key, Refusal::Draining, now);
        }
    }

    pub(super) fn granted(&mut self, key: Key, granted: Granted, now: Moment) {
        if !self.table.granted(key, granted, now) {
            // The client has disconnected.
            return self.leave(key, now);
        }
        let grant = self.grant(key, now);
        let is_lost = grant.is_err();
        if !self.answer(key, grant.map_err(|_lost| Refusal::Timeout)) || is_lost {
            debug!("{LEASE_UNCLAIMED}; releasing the slot");
            self.table.released(key, now);
            self.leave(key, now);
        }
    }

    pub(super) fn refuse(&mut self, key: Key, refusal: Refusal, now: Moment) {
        if self.table.refused(key, now) {
            self.answer(key, Err(refusal));
            self.leave(key, now);
        }
    }

    /// The grant of a held lease, for its client.
    fn grant(&self, key: Key, now: Moment) -> Result<Grant, NoLease> {
        let keeper = self.running.get(&key).map(|running| &running.driver.keeper);
        let lease = keeper.and_then(Keeper::lease);
        let machine = keeper.and_then(|keeper| keeper.machines().next());
        let lease_ends = lease.map_or(now, slotkeeper_semaphore::Lease::ends);
        let (lease, granted, expires_in) = self.table.held(key, lease_ends, now)?;
        Ok(Grant {
            lease: lease.id().to_owned(),
            kind: lease.kind(),
            name: lease.name().to_string(),
            key: machine.map(|one| one.settings().prefix.clone()).unwrap_or_default(),
            session: granted.session.to_string(),
            fencing_token: granted.token,
            lock_index: granted.lock_index,
            slot_indexes: granted.indexes.clone(),
            expires_in,
            draining: None,
        })
    }

    /// Answers the waiting request. Returns whether its client is there.
    pub(super) fn answer(&mut self, key: Key, answer: Result<Grant, Refusal>) -> bool {
        let reply = self.running.get_mut(&key).and_then(|running| running.reply.take());
        let reply = reply.filter(|reply| !reply.is_closed());
        let is_there = reply.is_some();
        self.answers.extend(reply.map(|reply| (reply, answer)));
        is_there
    }

    /// Whether answers wait for the next snapshot.
    pub(in crate::agent) fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Sends the answers, after a snapshot that shows them.
    pub(in crate::agent) fn give_answers(&mut self) {
        for (reply, answer) in self.answers.drain(..) {
            // A disconnect is noticed by `absent`.
            let _ = reply.send(answer);
        }
    }
}

/// Sends a reply. A client that has disconnected needs none.
pub(in crate::agent) fn tell<T>(reply: oneshot::Sender<T>, answer: T) {
    let _ = reply.send(answer);
}

/// Whether Consul has answered a keeper, and its current failure.
pub(super) fn consul_state(keeper: &Keeper) -> (bool, Option<String>) {
    let machines = keeper.machines().filter_map(Machine::failure);
    let trouble = machines.chain(keeper.failure()).next().map(str::to_owned);
    (keeper.machines().any(|machine| machine.view().is_some()), trouble)
}

/// The refusal of a request whose wait has timed out.
pub(super) fn wait_refusal(
    keeper: Option<&Keeper>,
    reached: bool,
    trouble: Option<&str>,
    waited: Duration,
) -> Refusal {
    let never_fits = || {
        let machine = keeper?.machines().next()?;
        never_fits(machine.view()?, machine.settings().slots)
    };
    match trouble {
        // Whether a slot is free is not known, whatever Consul has answered before.
        Some(trouble) => Refusal::Unavailable(trouble.to_owned()),
        // So short a wait says nothing about Consul.
        None if reached || waited < MIN_CONCLUSIVE_WAIT => {
            never_fits().map_or(Refusal::Timeout, Refusal::Blocked)
        }
        None => Refusal::Unavailable("timed out waiting for Consul".into()),
    }
}
