//! Leases: what clients take and give back at the control endpoints. Each has a session and a keeper of its own, so that
//! one of them can end, or be lost, without the others.
//!
//! [`table`] decides; here are the keepers, and those who wait for answers.

mod agenda;
mod limits;
mod table;

use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::oneshot;
use tracing::{debug, warn};
use uuid::Uuid;

use super::driver::{Driver, Owner, Requests};
use super::labels::{self, Entry};
use crate::control::request::{Grant, Kind, NoLease, Refusal, Released};
use slotkeeper_consul::{Client, SessionSpec};
use slotkeeper_semaphore::{
    self, Event, Failure, Keeper, Machine, Moment, Name, Notice, OnLost, Phase, Settings,
};

use agenda::Agenda;
use limits::Limits;
pub(super) use table::{Bounds, Key, Lease, Stage};
use table::{Due, Granted, Table};

/// A client that was content to wait for less than this is not told that Consul is away.
const SILENCE: Duration = Duration::from_secs(1);
/// Whoever gives a lease back is told after this long that Consul has not answered yet.
const RELEASE: Duration = Duration::from_secs(10);

type GrantReply = oneshot::Sender<Result<Grant, Refusal>>;
type HeldReply = oneshot::Sender<Result<Grant, NoLease>>;
type ReleaseReply = oneshot::Sender<Result<Released, NoLease>>;

/// One who wants a lease.
pub(super) struct Wanted {
    /// Of what kind of thing.
    pub(super) kind: Kind,
    /// The configured name of that.
    pub(super) name: Name,
    /// How long it waits.
    pub(super) wait: Duration,
    /// Says that it has got its answer; closes without a word when it has gone away before.
    pub(super) present: oneshot::Receiver<()>,
    /// Where the answer goes.
    pub(super) reply: GrantReply,
}

/// A lease's keeper, and who waits for an answer about it.
struct Running {
    /// How the core calls what it is of.
    id: Name,
    driver: Driver,
    /// Of the client that waits for it.
    reply: Option<GrantReply>,
}

/// All leases of an agent.
pub(super) struct Leases {
    table: Table,
    running: BTreeMap<Key, Running>,
    /// Those of each semaphore and lock, as the core calls it.
    of: BTreeMap<Name, BTreeSet<Key>>,
    /// Of those of one semaphore that are held, the one that knows for all who else takes part.
    knows: BTreeMap<Name, Key>,
    agenda: Agenda,
    /// Those who give one back, each with when it is told that this takes long.
    releases: Vec<(Key, Moment, ReleaseReply)>,
    /// Those of which something fails.
    failing: BTreeSet<Key>,
    /// The semaphores and locks of whose leases the world has not seen all.
    unshown: BTreeSet<Name>,
    /// Those who wait, each until it has gone away or has got its answer.
    absent: FuturesUnordered<BoxFuture<'static, Option<Key>>>,
    limits: Limits,
    /// The names of those that were forgotten, and nobody has been told of yet.
    swept: Vec<Name>,
    /// What clients are about to be told.
    answers: Vec<(GrantReply, Result<Grant, Refusal>)>,
    /// Consul has answered one of them.
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

    /// Begins to ask for a lease on these terms; `keeper` makes what asks.
    pub(super) fn acquire(
        &mut self,
        wanted: Wanted,
        terms: Settings,
        keeper: impl FnOnce(Name, Settings) -> Keeper,
        now: Moment,
    ) {
        let Wanted { kind, name, wait, present, reply } = wanted;
        // One that is lost is lost for its client, who knows nothing of another one.
        let terms = Settings { wait: Some(wait), on_lost: OnLost::Exit, ..terms };
        // Nobody is told of it before it is granted.
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

    /// The lease as it is; `renews`: its client needs it further on.
    pub(super) fn show(&mut self, id: &str, renews: bool, reply: HeldReply, now: Moment) {
        let found = self.table.find(id).ok_or_else(|| self.table.fate(id));
        let answer = found.and_then(|key| {
            let grant = self.grant(key, now)?;
            if !renews {
                return Ok(grant);
            }
            self.table.renewed(key, now);
            self.unshown.extend(self.running.get(&key).map(|running| Name::clone(&running.id)));
            self.grant(key, now)
        });
        tell(reply, answer);
    }

    /// Gives a lease back.
    pub(super) fn release(&mut self, id: &str, reply: ReleaseReply, now: Moment) {
        let Some(key) = self.table.find(id) else {
            let answer = match self.table.fate(id) {
                NoLease::Unknown => Err(NoLease::Unknown),
                // Nothing of it is left, which is what is wanted.
                NoLease::Released | NoLease::Expired | NoLease::Lost(_) => Ok(Released::Done),
            };
            return tell(reply, answer);
        };
        self.releases.push((key, now + RELEASE, reply));
        if self.table.released(key, now) {
            self.leave(key, now);
        }
    }

    /// The next client that has gone away without its answer; `None` where nobody waits any more.
    pub(super) async fn absent(&mut self) -> Option<Key> {
        loop {
            if let Some(gone) = self.absent.next().await? {
                return Some(gone);
            }
        }
    }

    /// A client has gone away, be it that its lease was granted in the same instant and nobody knows of it.
    pub(super) fn client_gone(&mut self, key: Key, now: Moment) {
        if self.table.refused(key, now) || self.table.released(key, now) {
            debug!("whoever waited for a lease has gone away");
            self.leave(key, now);
        }
    }

    /// A lease whose keeper may have decided something, to be [carried out](Self::carry_out).
    pub(super) fn next_touched(&mut self) -> Option<Key> {
        self.agenda.next_touched()
    }

    /// Carries out what a lease's keeper has decided; gives back what it has to tell.
    pub(super) fn carry_out(
        &mut self,
        key: Key,
        client: &Client,
        spec: &SessionSpec,
        requests: &mut Requests,
        now: Moment,
    ) -> Vec<Notice> {
        let Some(Running { id, driver, .. }) = self.running.get_mut(&key) else { return Vec::new() };
        if !self.unshown.contains(id) {
            self.unshown.insert(Name::clone(id));
        }
        let notices = driver.carry_out(client, spec, requests, now);
        self.agenda.carried_out(key, driver.keeper.deadline());
        if driver.keeper.failures().next().is_some() {
            self.failing.insert(key);
        } else {
            self.failing.remove(&key);
        }
        notices.into_iter().filter_map(|notice| self.limits.noticed(&driver.keeper, notice)).collect()
    }

    /// Forgets what is known of those of which nothing is lent any more and which are not `configured`.
    pub(super) fn forget_limits(&mut self, configured: &BTreeSet<Name>) {
        let lent = self.running.values().flat_map(|running| running.driver.keeper.machines());
        let lent: BTreeSet<_> = lent.map(Machine::name).collect();
        self.limits.retain(|id| configured.contains(id) || lent.contains(id));
    }

    /// Consul is asked at another address, which may belong to another cluster.
    pub(super) fn change_cluster(&mut self, now: Moment) {
        for (key, running) in &mut self.running {
            running.driver.keeper.change_cluster(now);
            self.agenda.touch(*key);
        }
    }

    /// Tells a keeper what came of a request. One that is gone wanted nothing of it any more.
    pub(super) fn answered(&mut self, key: Key, event: Event, now: Moment) {
        if let Some(running) = self.running.get_mut(&key) {
            running.driver.answered(event, now);
            self.reached |= running.driver.keeper.has_reached_consul();
            self.agenda.touch(key);
        }
    }

    /// What a lease's keeper has told, for its client.
    pub(super) fn noticed(&mut self, key: Key, notice: &Notice, now: Moment) {
        match notice {
            Notice::Acquired { session, token, indexes, .. } => {
                let keeper = self.running.get(&key).map(|running| &running.driver.keeper);
                let single = keeper.and_then(|keeper| keeper.machines().find_map(Machine::single));
                let (session, token, indexes) = (session.clone(), *token, indexes.clone());
                let lock_index = single.map(|single| single.times_locked);
                let granted = Granted { session, token, lock_index, indexes, since: now };
                self.granted(key, granted, now);
                self.share_what_is_known(key);
            }
            Notice::Evicted { by, .. } => self.refuse(key, Refusal::Evicted(by.clone()), now),
            Notice::Lost { reason, .. } => {
                if self.keeps(key) {
                    return;
                }
                if self.table.lost(key, *reason, now) {
                    self.leave(key, now);
                }
            }
            Notice::GaveUp { reached, trouble, .. } => {
                let waited = self.table.get(key).map(|lease| now.since(lease.asked_at())).unwrap_or_default();
                self.refuse(key, in_vain(*reached, trouble, waited), now);
            }
            Notice::Blocked { why, .. } => self.refuse(key, Refusal::Blocked(why.clone()), now),
            Notice::SessionStarted { .. }
            | Notice::SessionEnded { .. }
            | Notice::SessionsCleared { .. }
            | Notice::SessionTaken { .. }
            | Notice::Renewed { .. }
            | Notice::RenewFailed { .. }
            | Notice::Trouble { .. }
            | Notice::TroubleOver { .. }
            | Notice::Waiting { .. }
            | Notice::Leader { .. }
            | Notice::Delayed { .. }
            | Notice::Released { .. }
            | Notice::LimitDiffers { .. }
            | Notice::FormDiffers { .. }
            | Notice::LimitChanged { .. }
            | Notice::LimitSet { .. }
            | Notice::Pruned { .. }
            | Notice::Conflict { .. }
            | Notice::Removed { .. } => {}
        }
    }

    /// One that has just been granted knows who else takes part, or another one of the same semaphore does. For both of them one is
    /// enough: hundreds that each knew of all the others would fill the memory. One that is amid something keeps what it knows, which
    /// costs memory and nothing else.
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

    /// Lets the keepers do what is due.
    pub(super) fn tick(&mut self, now: Moment) {
        for key in self.agenda.due(now) {
            if let Some(running) = self.running.get_mut(&key) {
                running.driver.keeper.tick(now);
                self.agenda.touch(key);
            }
        }
    }

    /// Somebody wants to know how things stand. Of the leases of one semaphore one looks for all: the one that has seen the latest.
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
                running.driver.keeper.show(now);
                self.agenda.touch(key);
            }
        }
    }

    /// Ends what has lasted long enough; the names of those that their clients did not renew.
    pub(super) fn end_overdue(&mut self, now: Moment) -> Vec<Name> {
        let (mut expired, mut forgotten) = (Vec::new(), Vec::new());
        for (key, due) in self.table.due(now) {
            let Some(lease) = self.table.get(key) else { continue };
            let (name, waited) = (lease.name().clone(), now.since(lease.asked_at()));
            let keeper = self.running.get(&key).map(|running| &running.driver.keeper);
            match due {
                Due::Late => {
                    let (reached, trouble) = keeper.map_or((false, None), standing);
                    self.answer(key, Err(in_vain(reached, &trouble, waited)));
                    self.leave(key, now);
                }
                Due::Expired => {
                    let session = keeper.and_then(Keeper::session).map(ToString::to_string);
                    warn!(semaphore = %name, session, "a lease was not renewed in time by its client, and is given back");
                    self.leave(key, now);
                    expired.push(name);
                }
                Due::Believed => self.leave(key, now),
                Due::Abandon => {
                    if let Some(running) = self.running.get_mut(&key) {
                        running.driver.keeper.abandon(now);
                        self.agenda.touch(key);
                    }
                }
                Due::Forget => {
                    let session = keeper.and_then(Keeper::session).map(ToString::to_string);
                    warn!(
                        semaphore = %name, session,
                        "a lease could not be given back in time, and its session has ended by its TTL meanwhile"
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

    /// Forgets those of which nothing is left; their names. Sessions of theirs that may still be created are looked for by
    /// `heir`.
    pub(super) fn sweep(&mut self, heir: &mut Keeper, now: Moment) -> Vec<Name> {
        let mut ended = Vec::new();
        for key in self.agenda.take_carried_out() {
            let Some(running) = self.running.get_mut(&key) else { continue };
            if running.driver.keeper.has_ended() {
                ended.push(key);
                if running.driver.keeper.unanswered().next().is_some() {
                    heir.take_over_unanswered(&mut running.driver.keeper, now);
                }
            }
        }
        let ended: Vec<_> = ended.into_iter().filter_map(|key| self.remove(key)).collect();
        std::mem::take(&mut self.swept).into_iter().chain(ended).collect()
    }

    /// Ends all waits.
    pub(super) fn ask_no_more(&mut self, now: Moment) {
        for key in self.keys() {
            self.refuse(key, Refusal::Draining, now);
        }
    }

    /// Ends all waits and gives everything back.
    pub(super) fn drain(&mut self, now: Moment) {
        self.ask_no_more(now);
        for key in self.keys() {
            self.table.released(key, now);
            self.leave(key, now);
        }
    }

    /// Leaves what could not be given back, and destroys the sessions.
    pub(super) fn abandon(&mut self, now: Moment) {
        for (key, running) in &mut self.running {
            running.driver.keeper.abandon(now);
            self.agenda.touch(*key);
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

    /// What fails of any lease.
    pub(super) fn failures(&self) -> impl Iterator<Item = &Failure> {
        let failing = self.failing.iter().filter_map(|key| self.running.get(key));
        failing.flat_map(|running| running.driver.keeper.failures())
    }

    /// The leases of one semaphore or lock, as the core calls it.
    pub(super) fn of(&self, id: &str) -> impl Iterator<Item = (&Lease, &Keeper)> {
        self.of.get(id).into_iter().flatten().filter_map(|key| self.with_keeper(*key))
    }

    /// One lease of each semaphore and lock of which something is lent, with its terms.
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

    /// How many there are of such a name, or at such a prefix or key.
    pub(super) fn count(
        &self,
        is_named: impl Fn(&str) -> bool,
        is_meant: impl Fn(&Settings) -> bool,
    ) -> usize {
        let is_there = |keeper: &Keeper| keeper.machines().any(|machine| is_meant(machine.settings()));
        self.iter().filter(|(lease, keeper)| is_named(lease.name()) || is_there(keeper)).count()
    }

    /// Gives the leases the new names of what they are of.
    pub(super) fn rename<'e>(&mut self, renamed: impl Iterator<Item = Entry<'e>>) {
        let names: BTreeMap<Name, Name> = renamed.map(|entry| (entry.id(), entry.name.into())).collect();
        for (key, running) in &self.running {
            let name = running.driver.keeper.machines().find_map(|machine| names.get(machine.name()));
            if let Some(name) = name {
                self.table.rename(*key, Name::clone(name));
            }
        }
    }

    /// What it is of, by its name.
    pub(super) fn name_of(&self, key: Key) -> Option<Name> {
        self.table.get(key).map(|lease| Name::clone(lease.name()))
    }

    /// Whether there is one of that name, of whatever kind.
    pub(super) fn any_of(&self, name: &str) -> bool {
        self.table.iter().any(|(_, lease)| **lease.name() == *name)
    }

    /// Whether a client has one.
    pub(super) fn any_held(&self) -> bool {
        self.table
            .iter()
            .any(|(_, lease)| matches!(lease.stage(), Stage::Held { .. } | Stage::Evicted { .. }))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Whether Consul has answered any of them.
    pub(super) fn have_reached_consul(&self) -> bool {
        self.reached
    }

    /// Until when a client may believe in what it has, which it renewed then.
    pub(super) fn expires_at(&self, renewed: Moment, keeper: &Keeper) -> Option<Moment> {
        keeper.lease().map(|lease| self.table.expires_at(renewed, lease.ends()))
    }

    fn granted(&mut self, key: Key, granted: Granted, now: Moment) {
        if !self.table.granted(key, granted, now) {
            // Its client has gone, and so does it.
            return self.leave(key, now);
        }
        let grant = self.grant(key, now);
        let is_lost = grant.is_err();
        if !self.answer(key, grant.map_err(|_lost| Refusal::Timeout)) || is_lost {
            debug!("a lease was granted to somebody who has gone away, or too late, and is given back");
            self.table.released(key, now);
            self.leave(key, now);
        }
    }

    /// Whether it was evicted, and is kept for as long as its client believes in it.
    fn keeps(&mut self, key: Key) -> bool {
        let keeper = self.running.get(&key).map(|running| &running.driver.keeper);
        let evicted = |machine: &Machine| machine.evicted_by().is_some() && machine.withheld().is_some();
        let lease = keeper.filter(|keeper| keeper.machines().any(evicted)).and_then(Keeper::lease);
        lease.is_some_and(|lease| self.table.evicted(key, lease.ends()))
    }

    fn refuse(&mut self, key: Key, refusal: Refusal, now: Moment) {
        if self.table.refused(key, now) {
            self.answer(key, Err(refusal));
            self.leave(key, now);
        }
    }

    /// What the client of one that is held is told of it.
    fn grant(&self, key: Key, now: Moment) -> Result<Grant, NoLease> {
        let lease = self.running.get(&key).and_then(|running| running.driver.keeper.lease());
        let lease_ends = lease.map_or(now, slotkeeper_semaphore::Lease::ends);
        let (lease, granted, expires_in) = self.table.held(key, lease_ends, now)?;
        Ok(Grant {
            lease: lease.id().to_owned(),
            kind: lease.kind(),
            name: lease.name().to_string(),
            session: granted.session.to_string(),
            fencing_token: granted.token,
            lock_index: granted.lock_index,
            slot_indexes: granted.indexes.clone(),
            expires_in,
        })
    }

    /// Answers who waits for it; whether anybody has taken the answer.
    fn answer(&mut self, key: Key, answer: Result<Grant, Refusal>) -> bool {
        let reply = self.running.get_mut(&key).and_then(|running| running.reply.take());
        let reply = reply.filter(|reply| !reply.is_closed());
        let is_there = reply.is_some();
        self.answers.extend(reply.map(|reply| (reply, answer)));
        is_there
    }

    /// The semaphores and locks of whose leases something has changed since this was last asked.
    pub(super) fn take_unshown(&mut self) -> BTreeSet<Name> {
        std::mem::take(&mut self.unshown)
    }

    /// Whether answers wait for what they say to be seen.
    pub(super) fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Gives the answers, once the world can see what they say.
    pub(super) fn give_answers(&mut self) {
        for (reply, answer) in self.answers.drain(..) {
            // One that has gone away since is seen to go.
            let _ = reply.send(answer);
        }
    }

    /// Has the keeper give back what it holds, and destroy its session.
    fn leave(&mut self, key: Key, now: Moment) {
        if let Some(running) = self.running.get_mut(&key) {
            running.driver.keeper.drain(now);
            self.agenda.touch(key);
        }
    }

    /// Nothing of it is left, as far as we can know.
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

/// Whoever has gone away needs no answer.
pub(super) fn tell<T>(reply: oneshot::Sender<T>, answer: T) {
    let _ = reply.send(answer);
}

/// How a keeper of one stands: whether Consul has answered, and what fails.
fn standing(keeper: &Keeper) -> (bool, Option<String>) {
    let machines = keeper.machines().filter_map(Machine::trouble);
    let trouble = machines.chain(keeper.trouble()).next().map(str::to_owned);
    (keeper.machines().any(|machine| machine.view().is_some()), trouble)
}

/// Why a wait has ended without a lease.
fn in_vain(reached: bool, trouble: &Option<String>, waited: Duration) -> Refusal {
    match trouble {
        // Whether there is room is not known, whatever Consul has answered before.
        Some(trouble) => Refusal::Unavailable(trouble.clone()),
        // So short a silence says nothing about Consul.
        None if reached || waited < SILENCE => Refusal::Timeout,
        None => Refusal::Unavailable("Consul has not answered in the time given".into()),
    }
}
