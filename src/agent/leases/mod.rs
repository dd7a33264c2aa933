//! Leases of the control endpoints' clients. Each has a session and a keeper of its own, so that a lease can end, or be lost,
//! without the others.
//!
//! [`table`] decides, [`clients`] takes requests and replies; this module has the keepers.

mod agenda;
mod clients;
mod limits;
mod table;

use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;

use super::driver::{Driver, Requests};
use crate::about::{About, log_about};
use crate::config::Entry;
use crate::control::request::{Grant, Refusal, Released};
use crate::log_events::{LEASE_EXPIRED, LEASE_NOT_RELEASED};
use crate::session_node::Sessions;
use crate::status::{self, Subject};
use slotkeeper_consul::Client;
use slotkeeper_semaphore::{self, Event, Failure, Keeper, Machine, Moment, Name, Notice, Phase, Settings};

use agenda::Agenda;
use clients::{GrantReply, ReleaseReply, consul_state, wait_refusal};
pub(super) use clients::{Wanted, tell};
use limits::Limits;
pub(super) use table::{Bounds, Key, Lease, Stage};
use table::{Due, Granted, Table};

/// A lease's keeper, and the reply to its request.
struct Running {
    /// The core's name of its semaphore or lock.
    id: Name,
    driver: Driver,
    /// While the client waits.
    reply: Option<GrantReply>,
}

/// All leases of an agent.
pub(super) struct Leases {
    table: Table,
    running: BTreeMap<Key, Running>,
    /// By the core's name of the semaphore or lock.
    of: BTreeMap<Name, BTreeSet<Key>>,
    /// Of the held leases of one semaphore, the one that keeps the list of participants.
    knows: BTreeMap<Name, Key>,
    agenda: Agenda,
    /// Releases without a reply, each with the time of the reply that Consul has not answered yet.
    releases: Vec<(Key, Moment, ReleaseReply)>,
    /// Leases with a failing request.
    failing: BTreeSet<Key>,
    /// Semaphores and locks with lease changes that no snapshot contains yet.
    unshown: BTreeSet<Name>,
    /// Waiting clients, each until it has disconnected or has its answer.
    absent: FuturesUnordered<BoxFuture<'static, Option<Key>>>,
    limits: Limits,
    /// Names of forgotten leases, for the next sweep.
    swept: Vec<Name>,
    /// Answers that wait for the next snapshot.
    answers: Vec<(GrantReply, Result<Grant, Refusal>)>,
    /// Consul has answered a request of a lease.
    reached: bool,
}

impl Leases {
    pub(super) fn new(bounds: Bounds, ttl: Duration) -> Self {
        Self {
            table: Table::new(bounds, ttl),
            running: BTreeMap::new(),
            of: BTreeMap::new(),
            knows: BTreeMap::new(),
            agenda: Agenda::default(),
            releases: Vec::new(),
            failing: BTreeSet::new(),
            unshown: BTreeSet::new(),
            absent: FuturesUnordered::new(),
            limits: Limits::default(),
            swept: Vec::new(),
            answers: Vec::new(),
            reached: false,
        }
    }

    /// A lease whose keeper may have commands for [`Self::carry_out`].
    pub(super) fn next_touched(&mut self) -> Option<Key> {
        self.agenda.next_touched()
    }

    /// Executes the commands of a lease's keeper. Returns its notices.
    pub(super) fn carry_out(
        &mut self,
        key: Key,
        client: &Client,
        sessions: &Sessions,
        requests: &mut Requests,
        now: Moment,
    ) -> Vec<Notice> {
        let Some(Running { id, driver, .. }) = self.running.get_mut(&key) else { return Vec::new() };
        if !self.unshown.contains(id) {
            self.unshown.insert(Name::clone(id));
        }
        let notices = driver.carry_out(client, sessions, requests, now);
        self.agenda.carried_out(key, driver.keeper.deadline());
        if driver.keeper.failures().next().is_some() {
            self.failing.insert(key);
        } else {
            self.failing.remove(&key);
        }
        notices.into_iter().filter_map(|notice| self.limits.noticed(&driver.keeper, notice)).collect()
    }

    /// Forgets the limits of semaphores without leases that are not `configured`.
    pub(super) fn forget_limits(&mut self, configured: &BTreeSet<Name>) {
        let lent = self.running.values().flat_map(|running| running.driver.keeper.machines());
        let lent: BTreeSet<_> = lent.map(Machine::name).collect();
        self.limits.retain(|id| configured.contains(id) || lent.contains(id));
    }

    /// The agent uses another address of Consul, which may belong to another cluster.
    pub(super) fn change_cluster(&mut self, now: Moment) {
        for (key, running) in &mut self.running {
            running.driver.keeper.change_cluster(now);
            self.agenda.touch(*key);
        }
    }

    /// Passes the outcome of a request to a lease's keeper, unless the lease has ended.
    pub(super) fn answered(&mut self, key: Key, event: Event, now: Moment) {
        if let Some(running) = self.running.get_mut(&key) {
            running.driver.answered(event, now);
            self.reached |= running.driver.keeper.has_reached_consul();
            self.agenda.touch(key);
        }
    }

    /// Handles a notice of a lease's keeper, for the client.
    pub(super) fn noticed(&mut self, key: Key, notice: &Notice, now: Moment) {
        let running = self.running.get(&key).map(|running| &running.driver.keeper);
        if let Notice::Acquired { session, token, indexes, .. } = notice {
            let single = running.and_then(|keeper| keeper.machines().find_map(Machine::single));
            let (session, token, indexes) = (session.clone(), *token, indexes.clone());
            let lock_index = single.map(|single| single.times_locked);
            let granted = Granted { session, token, lock_index, indexes, since: now };
            self.granted(key, granted, now);
            self.share_what_is_known(key);
        } else if let Notice::Evicted { by, .. } = notice {
            self.refuse(key, Refusal::Evicted(by.clone()), now);
        } else if let Notice::Lost { reason, .. } = notice {
            if !self.keeps(key) && self.table.lost(key, *reason, now) {
                self.leave(key, now);
            }
        } else if let Notice::TimedOut { reached, failure, .. } = notice {
            let trouble = failure.as_ref().map(|failure| failure.text.as_str());
            let waited = self.table.get(key).map(|lease| now.since(lease.asked_at())).unwrap_or_default();
            self.refuse(key, wait_refusal(running, *reached, trouble, waited), now);
        } else if let Notice::Blocked { obstacle, .. } = notice {
            self.refuse(key, Refusal::Blocked(obstacle.why.clone()), now);
        }
    }

    /// Of the leases of one semaphore only the one with the freshest list of participants keeps it: hundreds of lists of hundreds of
    /// participants would fill the memory. A keeper with a request under way keeps its list, which costs memory and nothing else.
    fn share_what_is_known(&mut self, key: Key) {
        let freshness = |key: Key| {
            let machine = self.running.get(&key)?.driver.keeper.machines().next()?;
            Some((machine.view()?.lock_index(), machine.listed_at()?))
        };
        let Some(id) = self.running.get(&key).map(|running| Name::clone(&running.id)) else { return };
        let before = self.knows.get(&id).copied().filter(|before| *before != key);
        let (known, own) = (before.and_then(freshness), freshness(key));
        let forgets = if own > known { self.knows.insert(id, key) } else { Some(key) };
        if let Some(running) = forgets.and_then(|key| self.running.get_mut(&key)) {
            running.driver.keeper.forget_others();
        }
    }

    /// Passes the time to the keepers that are due.
    pub(super) fn tick(&mut self, now: Moment) {
        for key in self.agenda.due(now) {
            if let Some(running) = self.running.get_mut(&key) {
                running.driver.keeper.tick(now);
                self.agenda.touch(key);
            }
        }
    }

    /// A client reads the status. Of the leases of one semaphore only the one with the freshest view reads Consul again.
    pub(super) fn look(&mut self, now: Moment) {
        for keys in self.of.values() {
            let seen = |key: &Key| {
                let machine = self.running.get(key)?.driver.keeper.machines().next()?;
                let looks = matches!(machine.phase(), Phase::Held { .. } | Phase::Waiting);
                let view = machine.view().filter(|_| looks)?;
                Some((machine.listed_at().is_some(), view.lock_index(), machine.listed_at(), *key))
            };
            let Some((.., key)) = keys.iter().filter_map(seen).max() else { continue };
            if let Some(running) = self.running.get_mut(&key) {
                running.driver.keeper.refresh_soon(now);
                self.agenda.touch(key);
            }
        }
    }

    /// Ends leases that are due. Returns the names of those that their clients have not renewed.
    pub(super) fn end_overdue(&mut self, now: Moment) -> Vec<Subject> {
        let (mut expired, mut forgotten) = (Vec::new(), Vec::new());
        for (key, due) in self.table.due(now) {
            let Some(lease) = self.table.get(key) else { continue };
            let waited = now.since(lease.asked_at());
            let keeper = self.running.get(&key).map(|running| &running.driver.keeper);
            let subject = || {
                let machine = keeper.and_then(|keeper| keeper.machines().next());
                let place = machine.map(|one| one.settings().prefix.clone()).unwrap_or_default();
                Subject { kind: lease.kind(), name: lease.name().to_string(), key: place }
            };
            match due {
                Due::Late => {
                    let (reached, trouble) = keeper.map_or((false, None), consul_state);
                    let refusal = wait_refusal(keeper, reached, trouble.as_deref(), waited);
                    self.answer(key, Err(refusal));
                    self.leave(key, now);
                }
                Due::Expired => {
                    let session = keeper.and_then(Keeper::session).map(ToString::to_string);
                    let subject = subject();
                    let about = About::new(Some(status::Event::LeaseExpired), Some(&subject));
                    log_about!(warn, about, session, "{LEASE_EXPIRED}; releasing the slot");
                    self.leave(key, now);
                    expired.push(subject);
                }
                Due::AssumedLost => self.leave(key, now),
                Due::Abandon => {
                    if let Some(running) = self.running.get_mut(&key) {
                        running.driver.keeper.abandon(now);
                        self.agenda.touch(key);
                    }
                }
                Due::Forget => {
                    let session = keeper.and_then(Keeper::session).map(ToString::to_string);
                    log_about!(
                        warn,
                        &subject(),
                        session,
                        "{LEASE_NOT_RELEASED}; its session has ended by its TTL"
                    );
                    forgotten.extend(self.remove(key));
                }
            }
        }
        self.swept.append(&mut forgotten);
        for (.., reply) in self.releases.extract_if(.., |(_, at, _)| *at <= now) {
            tell(reply, Ok(Released::UnderWay));
        }
        expired
    }

    /// Removes ended leases. Returns their names.
    pub(super) fn sweep(&mut self) -> Vec<Name> {
        let mut names = std::mem::take(&mut self.swept);
        for key in self.agenda.take_carried_out() {
            if self.running.get(&key).is_some_and(|running| running.driver.keeper.has_ended()) {
                names.extend(self.remove(key));
            }
        }
        names
    }

    /// Releases everything, since no client is left.
    pub(super) fn drain(&mut self, now: Moment) {
        for key in self.keys() {
            self.table.released(key, now);
            self.leave(key, now);
        }
    }

    /// Abandons what could not be released, and destroys the sessions. What clients may still use stays.
    pub(super) fn abandon(&mut self, now: Moment) {
        for (key, running) in &mut self.running {
            if self.table.get(*key).is_some_and(|lease| matches!(lease.stage(), Stage::Leaving { .. })) {
                running.driver.keeper.abandon(now);
                self.agenda.touch(*key);
            }
        }
    }

    /// When something is due next.
    pub(super) fn deadline(&self) -> Option<Moment> {
        let touched =
            self.agenda.touched().filter_map(|key| self.running.get(&key)?.driver.keeper.deadline());
        let keepers = touched.chain(self.agenda.deadline());
        let releases = self.releases.iter().map(|(_, at, _)| *at);
        keepers.chain(releases).chain(self.table.deadline()).min()
    }

    pub(super) fn is_running(&self, key: Key) -> bool {
        self.running.contains_key(&key)
    }

    fn keys(&self) -> Vec<Key> {
        self.running.keys().copied().collect()
    }

    /// Each lease with its keeper.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Lease, &Keeper)> {
        self.running.keys().filter_map(|key| self.with_keeper(*key))
    }

    /// Current failures of all leases.
    pub(super) fn failures(&self) -> impl Iterator<Item = &Failure> {
        let failing = self.failing.iter().filter_map(|key| self.running.get(key));
        failing.flat_map(|running| running.driver.keeper.failures())
    }

    /// The leases of one semaphore or lock, by the core's name.
    pub(super) fn of(&self, id: &str) -> impl Iterator<Item = (&Lease, &Keeper)> {
        self.of.get(id).into_iter().flatten().filter_map(|key| self.with_keeper(*key))
    }

    /// One lease of each semaphore and lock that has any, with its settings.
    pub(super) fn one_of_each(&self) -> impl Iterator<Item = (&Lease, &Settings)> {
        self.of.values().filter_map(|keys| {
            keys.iter().find_map(|key| {
                let (lease, keeper) = self.with_keeper(*key)?;
                Some((lease, keeper.machines().next()?.settings()))
            })
        })
    }

    fn with_keeper(&self, key: Key) -> Option<(&Lease, &Keeper)> {
        Some((self.table.get(key)?, &self.running.get(&key)?.driver.keeper))
    }

    /// The number of leases of such a name, or at such a prefix or key.
    pub(super) fn count(
        &self,
        is_named: impl Fn(&str) -> bool,
        is_meant: impl Fn(&Settings) -> bool,
    ) -> usize {
        let is_there = |keeper: &Keeper| keeper.machines().any(|machine| is_meant(machine.settings()));
        self.iter().filter(|(lease, keeper)| is_named(lease.name()) || is_there(keeper)).count()
    }

    /// Gives the leases the new names of their semaphores and locks.
    pub(super) fn rename<'e>(&mut self, renamed: impl Iterator<Item = &'e Entry>) {
        let names: BTreeMap<Name, Name> =
            renamed.map(|entry| (entry.id(), entry.name.as_str().into())).collect();
        for (key, running) in &self.running {
            let name = running.driver.keeper.machines().find_map(|machine| names.get(machine.name()));
            if let Some(name) = name {
                self.table.rename(*key, Name::clone(name));
            }
        }
    }

    /// The configured name of its semaphore or lock.
    pub(super) fn name_of(&self, key: Key) -> Option<Name> {
        self.table.get(key).map(|lease| Name::clone(lease.name()))
    }

    /// Whether there is a lease of that name, of any kind.
    pub(super) fn any_of(&self, name: &str) -> bool {
        self.table.iter().any(|(_, lease)| **lease.name() == *name)
    }

    /// The leases that their clients may use: when each expires.
    pub(super) fn out(&self) -> Vec<Moment> {
        let expires = |(lease, keeper): (&Lease, &Keeper)| match lease.stage() {
            Stage::Held { renewed, .. } => self.expires_at(*renewed, keeper).or(Some(*renewed)),
            Stage::Evicted { until } => Some(*until),
            Stage::Waiting | Stage::Leaving { .. } => None,
        };
        self.iter().filter_map(expires).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Whether Consul has answered a request of a lease.
    pub(super) fn have_reached_consul(&self) -> bool {
        self.reached
    }

    /// When a lease expires that was renewed then.
    pub(super) fn expires_at(&self, renewed: Moment, keeper: &Keeper) -> Option<Moment> {
        keeper.lease().map(|lease| self.table.expires_at(renewed, lease.ends()))
    }

    /// Whether the lease was evicted, and is kept until its client knows that it has expired.
    fn keeps(&mut self, key: Key) -> bool {
        let keeper = self.running.get(&key).map(|running| &running.driver.keeper);
        let evicted = |machine: &Machine| machine.evicted_by().is_some() && machine.withheld().is_some();
        let lease = keeper.filter(|keeper| keeper.machines().any(evicted)).and_then(Keeper::lease);
        lease.is_some_and(|lease| self.table.evicted(key, lease.ends()))
    }

    /// Semaphores and locks with lease changes since the last call.
    pub(super) fn take_unshown(&mut self) -> BTreeSet<Name> {
        std::mem::take(&mut self.unshown)
    }

    /// Has the keeper release its slot and destroy its session.
    fn leave(&mut self, key: Key, now: Moment) {
        if let Some(running) = self.running.get_mut(&key) {
            running.driver.keeper.drain(now);
            self.agenda.touch(key);
        }
    }

    /// Removes a lease. Returns its name.
    fn remove(&mut self, key: Key) -> Option<Name> {
        let name = self.table.get(key)?.name().clone();
        let Running { id, .. } = self.running.remove(&key)?;
        for (.., reply) in self.releases.extract_if(.., |(of, ..)| *of == key) {
            tell(reply, Ok(Released::Done));
        }
        self.failing.remove(&key);
        self.unshown.insert(Name::clone(&id));
        if let btree_map::Entry::Occupied(mut of) = self.of.entry(id) {
            of.get_mut().remove(&key);
            if of.get().is_empty() {
                of.remove();
            }
        }
        self.knows.retain(|_, knows| *knows != key);
        self.agenda.forget(key);
        self.table.gone(key);
        Some(name)
    }
}
