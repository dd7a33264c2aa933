//! The agent's status, computed from the core.

mod lent;
mod lock;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use self::lent::Lent;
use super::labels::Labels;
use super::leases::Leases;
use super::translate;
use crate::config::{self, Mode};
use crate::control::request::Kind;
use crate::status::{
    self, Configuration, Health, Holder, LastReload, Moments, RING_ADVICE, Semaphore, Session, Snapshot,
    Stage, State, Waiter,
};
use slotkeeper_consul::{self, Client};
use slotkeeper_semaphore::{
    Contender, Identity, Keeper, LockKeyState, Machine, Moment, Name, Phase, SessionId, View, contender,
    printable,
};

/// The most holders in the status. The limit keeps it readable, and keeps a record with many entries from delaying the loop,
/// which also renews the session.
const MAX_HOLDERS: usize = 100;
/// The most waiters in the status.
const MAX_WAITERS: usize = 20;
/// The most bytes of a session id, which is untrusted input.
const MAX_SESSION_BYTES: usize = 64;

/// The configured entries.
pub(super) struct Entries<'a> {
    pub(super) config: &'a config::Config,
    /// The configured names of the keeper's machines.
    pub(super) labels: &'a Labels,
    /// The entries that are not applied yet, each with the reason.
    pub(super) pending: &'a BTreeMap<Name, String>,
    /// The changes that a reload has not applied.
    pub(super) deferred: &'a BTreeMap<Name, String>,
}

/// The parts of the last snapshot that are reusable.
pub(super) struct Before<'a> {
    /// The last snapshot.
    pub(super) shown: &'a Snapshot,
    /// The semaphores and locks with a changed lease; `None` if anything else may have changed too.
    pub(super) changed: Option<&'a BTreeSet<Name>>,
}

impl Before<'_> {
    fn semaphore(&self, place: usize, prefix: &str, id: &Name) -> Option<Arc<Semaphore>> {
        let shown = self.shown.semaphores.get(place).filter(|one| one.prefix == prefix)?;
        self.is_unchanged(id).then(|| Arc::clone(shown))
    }

    fn lock(&self, place: usize, key: &str, id: &Name) -> Option<Arc<status::Lock>> {
        let shown = self.shown.locks.get(place).filter(|one| one.key == key)?;
        self.is_unchanged(id).then(|| Arc::clone(shown))
    }

    fn is_unchanged(&self, id: &Name) -> bool {
        self.changed.is_some_and(|changed| !changed.contains(id))
    }
}

pub(super) fn snapshot(
    keeper: &Keeper,
    leases: &Leases,
    entries: &Entries<'_>,
    before: &Before<'_>,
    stage: Stage,
    started_at: Moment,
) -> Snapshot {
    let Entries { config, labels, pending, deferred } = *entries;
    let id = before.shown.id;
    let session = keeper.session().zip(keeper.lease()).map(|(id, lease)| Session {
        id: id.to_string(),
        name: translate::session_title(config),
        ttl_seconds: lease.ttl().as_secs_f64(),
        lease_ends: Some(lease.ends()),
        ..Session::default()
    });
    let semaphores = config.semaphores.iter().enumerate().map(|(place, wanted)| {
        let id = wanted.entry.id();
        if let Some(shown) = before.semaphore(place, &wanted.entry.key, &id) {
            return shown;
        }
        let configured = translate::semaphore_status(wanted);
        let mut semaphore = match (pending.get(&id), wanted.entry.mode, keeper.machine(&id)) {
            (None, Mode::Hold, Some(machine)) => semaphore(configured, machine, keeper, labels),
            (None, Mode::OnDemand, _) => lent::semaphore(configured, leases),
            // Without a machine it is not held either.
            (reason, ..) => {
                let entry = not_applied(configured.entry, &wanted.entry, reason, leases);
                Semaphore { entry, ..configured }
            }
        };
        semaphore.entry.deferred = deferred.get(&id).cloned();
        Arc::new(semaphore)
    });
    let locks = config.locks.iter().enumerate().map(|(place, wanted)| {
        let id = wanted.id();
        if let Some(shown) = before.lock(place, &wanted.key, &id) {
            return shown;
        }
        let configured = translate::lock_status(wanted);
        let mut lock = match (pending.get(&id), wanted.mode, keeper.machine(&id)) {
            (None, Mode::Hold, Some(machine)) => lock::held(configured, machine, keeper),
            (None, Mode::OnDemand, _) => lock::lent(configured, leases),
            (reason, ..) => {
                let entry = not_applied(configured.entry, wanted, reason, leases);
                status::Lock { entry, ..configured }
            }
        };
        lock.entry.deferred = deferred.get(&id).cloned();
        Arc::new(lock)
    });
    let (mut semaphores, mut locks): (Vec<_>, Vec<_>) = (semaphores.collect(), locks.collect());
    // Those with leases that are no longer configured, even if another entry has their name by now.
    let (shown, shown_locks): (BTreeSet<_>, BTreeSet<_>) = (
        config.semaphores.iter().map(|one| one.entry.key.as_str()).collect(),
        config.locks.iter().map(|one| one.key.as_str()).collect(),
    );
    for (lease, settings) in leases.one_of_each() {
        let (prefix, slots, configured_limit) = (&settings.prefix, settings.slots, settings.limit);
        let entry = status::Entry {
            kind: lease.kind(),
            name: lease.name().to_string(),
            mode: status::Mode::OnDemand,
            ..status::Entry::default()
        };
        match lease.kind() {
            Kind::Semaphore if !shown.contains(prefix.as_str()) => {
                let prefix = prefix.clone();
                let had = Semaphore { entry, prefix, slots, configured_limit, ..Semaphore::default() };
                semaphores.push(Arc::new(lent::semaphore(had, leases)));
            }
            Kind::Lock if !shown_locks.contains(prefix.as_str()) => {
                let had = status::Lock { entry, key: prefix.clone(), ..status::Lock::default() };
                locks.push(Arc::new(lock::lent(had, leases)));
            }
            Kind::Semaphore | Kind::Lock => {}
        }
    }
    let (started_up, changes, consul) = (false, Arc::default(), status::ConsulReport::default());
    let configuration = Configuration { loaded_at: started_at, last_reload: LastReload::None, signals: None };
    let who = keeper.who().clone();
    Snapshot {
        id,
        changes,
        who,
        stage,
        started_at,
        started_up,
        configuration,
        consul,
        session,
        semaphores,
        locks,
    }
}

/// The states of Consul's addresses.
pub(super) fn addresses(client: &Client) -> Vec<status::Address> {
    let shown = |(address, state): (String, slotkeeper_consul::AddressState)| {
        use status::AddressState as Shown;
        let (state, reason) = match state {
            slotkeeper_consul::AddressState::Used => (Shown::Used, None),
            slotkeeper_consul::AddressState::Unknown => (Shown::Unknown, None),
            slotkeeper_consul::AddressState::Failed(why) => (Shown::Failed, Some(why)),
        };
        status::Address { address, state, reason }
    };
    client.addresses().into_iter().map(shown).collect()
}

/// A machine's state, with the reason if it is blocked or evicted.
struct WaiterState {
    state: State,
    why: Option<String>,
}

impl WaiterState {
    fn of(machine: &Machine) -> Self {
        let (state, why) = match machine.phase() {
            Phase::Starting => (State::Starting, None),
            Phase::Waiting => (State::Waiting, None),
            Phase::Held { .. } => (State::Held, None),
            Phase::Blocked { obstacle, .. } => (State::Blocked, Some(obstacle.why)),
            Phase::Leaving => (State::Leaving, None),
            Phase::TimedOut => (State::TimedOut, None),
            Phase::Lost => (State::Lost, None),
            Phase::Released => (State::Released, None),
        };
        let evicted = machine.evicted_by().map(|by| match machine.withheld() {
            Some(_) => {
                format!("evicted by {by}; the slot is released when the workload has had its time to stop")
            }
            None => format!("evicted by {by}"),
        });
        Self { state, why: why.or(evicted) }
    }

    /// Whether it is no longer acquired and so no longer read: its last view would be shown for ever.
    fn rests(&self) -> bool {
        matches!(self.state, State::TimedOut | State::Lost | State::Released)
    }

    /// The part that semaphores and locks have in common.
    fn entry(&self, configured: status::Entry, machine: &Machine, reason: Option<String>) -> status::Entry {
        let held =
            if let Phase::Held { since, token, .. } = machine.phase() { Some((since, token)) } else { None };
        status::Entry {
            state: self.state,
            reason,
            fencing_token: held.map(|(_, token)| token),
            moments: Moments {
                held_since: held.map(|(since, _)| since),
                asked_at: machine.asked_at(),
                seen_at: machine.listed_at().filter(|_| !self.rests()),
                ..Moments::default()
            },
            ..configured
        }
    }
}

/// A configured entry that the agent has not applied yet.
fn not_applied(
    configured: status::Entry,
    wanted: &config::Entry,
    reason: Option<&String>,
    leases: &Leases,
) -> status::Entry {
    let leases = Lent::of(wanted.kind, &wanted.key, leases).shown;
    status::Entry { state: State::Pending, reason: reason.cloned(), leases, ..configured }
}

/// The failure of a request for it, or for its session.
fn failure(machine: &Machine, keeper: &Keeper) -> Option<String> {
    machine.failure().or(keeper.failure()).map(str::to_owned)
}

/// A semaphore that the agent acquires itself.
fn semaphore(configured: Semaphore, machine: &Machine, keeper: &Keeper, labels: &Labels) -> Semaphore {
    let slots = configured.slots;
    let me = keeper.session();
    let waiter = WaiterState::of(machine);
    let slot_indexes = if let Phase::Held { indexes, .. } = machine.phase() { indexes } else { Vec::new() };
    let view = machine.view().filter(|_| !waiter.rests());
    let waiting = waiter.state == State::Waiting;
    let reason = waiter
        .why
        .clone()
        .or_else(|| view.filter(|_| waiting).and_then(|view| never_fits(view, slots)))
        .or_else(|| view.filter(|_| waiting).and_then(|view| ring(view, keeper, labels)))
        .or_else(|| failure(machine, keeper))
        .or_else(|| missing_members(&keeper.blocking_members(machine.name()), labels).filter(|_| waiting))
        .or_else(|| view.zip(me).filter(|_| waiting).and_then(|(view, me)| group_ahead(view, me, slots)));
    Semaphore {
        entry: waiter.entry(configured.entry, machine, reason),
        slot_indexes,
        limit: view.and_then(|view| limit(view, configured.configured_limit)),
        slots_taken: view.and_then(taken),
        holders: view.map(|view| holders(view, |one| Some(one) == me, keeper.who())).unwrap_or_default(),
        holder_count: view.and_then(holder_count),
        queue_length: view.map(View::waiting),
        queue: view.map(|view| queue(view, |one| Some(one) == me, keeper.who())).unwrap_or_default(),
        position: view.zip(me).filter(|_| waiting).and_then(|(view, me)| view.position(me)),
        ..configured
    }
}

/// The limit in force: the stored one, or the configured one if nothing is stored. `None` if the record's key has another
/// content.
fn limit(view: &View, configured: u32) -> Option<u32> {
    match &view.lock {
        LockKeyState::Record { record, .. } => Some(record.limit),
        LockKeyState::Missing => Some(configured),
        LockKeyState::Conflict { .. } | LockKeyState::Single(_) => None,
    }
}

/// The slots in use; `None` as for the limit.
fn taken(view: &View) -> Option<u32> {
    match &view.lock {
        LockKeyState::Record { record, .. } => Some(record.taken()),
        LockKeyState::Missing => Some(0),
        LockKeyState::Conflict { .. } | LockKeyState::Single(_) => None,
    }
}

/// Why a member of an acquire group waits although a slot is free.
fn missing_members(blocking: &[&Name], labels: &Labels) -> Option<String> {
    let names: Vec<_> = blocking.iter().map(|id| labels.title(id).to_string()).collect();
    (!names.is_empty())
        .then(|| format!("a slot is free, but its acquire group waits for {}", names.join(", ")))
}

/// Why slots stay free while a later waiter needs them.
fn group_ahead(view: &View, me: &SessionId, slots: u32) -> Option<String> {
    let free = view.record().is_some_and(|record| record.limit.saturating_sub(record.taken()) >= slots);
    let waiters = view.waiters();
    let mut ahead = waiters.iter().take_while(|one| one.session != *me);
    let group = ahead.any(|one| one.entry.as_ref().is_some_and(|entry| !entry.together.is_empty()));
    (free && group).then(|| {
        "free slots are left to a waiter ahead, which acquires them together with slots of other semaphores"
            .to_owned()
    })
}

/// That a holder of the semaphore waits for another slot, which this agent holds.
fn ring(view: &View, keeper: &Keeper, labels: &Labels) -> Option<String> {
    let record = view.record()?;
    keeper.machines().filter(|machine| machine.holds()).find_map(|held| {
        let view = held.view()?;
        let holders = record.holders.iter().take(MAX_HOLDERS);
        let mut contenders = holders.filter_map(|holder| view.contender(holder));
        let waiter = contenders.find(|one| {
            one.says_waiting() && view.record().is_none_or(|record| record.slots_of(&one.session) == 0)
        })?;
        let who = waiter.entry.as_ref().and_then(|entry| entry.who.in_words());
        let who = who.unwrap_or_else(|| format!("session {}", shown_session(&waiter.session)));
        let held = labels.title(held.name());
        Some(format!("ring: {who} holds a slot and waits for {held}, which is held here: {RING_ADVICE}"))
    })
}

/// The waiter stays in the queue, so that a higher limit serves it.
pub(super) fn never_fits(view: &View, slots: u32) -> Option<String> {
    let (limit, prefix) = (view.record()?.limit, view.prefix());
    (limit < slots).then(|| {
        format!(
            "the limit in force is {limit} and this workload takes {slots}: raise the limit by slotkeeper set-limit {prefix} \
             {slots}, or lower `slots`"
        )
    })
}

fn queue(view: &View, is_mine: impl Fn(&SessionId) -> bool, me: &Identity) -> Vec<Waiter> {
    let shown = |(position, one): (u32, &Contender)| {
        let mine = is_mine(&one.session);
        let entry = one.entry.as_ref();
        let who = if mine { Some(me.clone()) } else { entry.map(|entry| entry.who.shown()) };
        Waiter {
            session: shown_session(&one.session),
            position,
            slots: entry.map_or(1, |entry| entry.slots),
            mine,
            foreign: entry.is_none(),
            health: Health::Live,
            since: entry.and_then(since),
            age_seconds: None,
            who,
        }
    };
    (1..).zip(view.waiters()).take(MAX_WAITERS).map(shown).collect()
}

/// This agent's holders first, then the dead, then the others, each in the record's order: so a record with many entries hides
/// neither.
fn holders(view: &View, is_mine: impl Fn(&SessionId) -> bool, me: &Identity) -> Vec<Holder> {
    let Some(record) = view.record() else { return Vec::new() };
    let contenders: BTreeMap<_, _> = view.contenders.iter().map(|one| (&one.session, one)).collect();
    // A holder of several slots is listed as often, and shown at its first entry.
    let mut slots: BTreeMap<&SessionId, u32> = BTreeMap::new();
    let mut sessions = Vec::new();
    for session in &record.holders {
        let slots = slots.entry(session).or_default();
        if *slots == 0 {
            sessions.push(session);
        }
        *slots += 1;
    }
    sessions.sort_by_cached_key(|session| (!is_mine(session), view.lives(session) != Some(false)));
    sessions.truncate(MAX_HOLDERS);
    let holder = |session: &SessionId| {
        let mine = is_mine(session);
        let contender = contenders.get(session);
        let entry = contender.and_then(|one| one.entry.as_ref());
        // A holder that another client granted its slot writes its key later, but this agent's identity is known before.
        let who = if mine { Some(me.clone()) } else { entry.map(|entry| entry.who.shown()) };
        let slots = slots.get(session).copied().unwrap_or_default();
        Holder {
            session: shown_session(session),
            slots,
            mine,
            foreign: if mine { Some(false) } else { contender.map(|_| entry.is_none()) },
            health: Health::of(view.lives(session)),
            // A new holder may not have written its key yet, whose date is then that of its wait.
            since: entry.filter(|entry| entry.state == contender::WaiterState::Held).and_then(since),
            age_seconds: None,
            who,
        }
    };
    sessions.into_iter().map(holder).collect()
}

/// A participant's own time stamp, if it is a date.
fn since(entry: &contender::Entry) -> Option<String> {
    status::date(&entry.since).map(|_| entry.since.clone())
}

/// The number of holders; `None` as for the limit.
fn holder_count(view: &View) -> Option<u32> {
    taken(view)?;
    let holders: BTreeSet<_> = view.record().into_iter().flat_map(|record| &record.holders).collect();
    Some(u32::try_from(holders.len()).unwrap_or(u32::MAX))
}

fn shown_session(session: &SessionId) -> String {
    printable(session.as_str(), MAX_SESSION_BYTES)
}
