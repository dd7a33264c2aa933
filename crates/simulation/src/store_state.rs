//! The keys of one semaphore in the store, decoded once and updated key by key, since many clients change one key at a time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use super::consul::pair;
use super::rules::Sight;
use slotkeeper_consul_dev::store::kv::Entry as Stored;
use slotkeeper_semaphore::contender::Entry;
use slotkeeper_semaphore::{Contender, LockKeyState, Primitive, Record, SessionId, View};

/// The change of one key.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) before: Option<Arc<Stored>>,
    pub(super) after: Option<Arc<Stored>>,
}

impl Change {
    pub(super) fn key(&self) -> &str {
        self.after.as_ref().or(self.before.as_ref()).map(|entry| entry.key.as_str()).unwrap_or_default()
    }
}

/// The changes between two lists of all keys, each in the order of the keys.
pub(super) fn changes(before: &[Arc<Stored>], after: &[Arc<Stored>]) -> Vec<Change> {
    let (mut before, mut after) = (before.iter().peekable(), after.iter().peekable());
    let mut changes = Vec::new();
    loop {
        let order = match (before.peek(), after.peek()) {
            (None, None) => return changes,
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some(old), Some(new)) => {
                if Arc::ptr_eq(old, new) {
                    before.next();
                    after.next();
                    continue;
                }
                old.key.cmp(&new.key)
            }
        };
        let old = if order.is_le() { before.next() } else { None };
        let new = if order.is_ge() { after.next() } else { None };
        changes.push(Change { before: old.cloned(), after: new.cloned() });
    }
}

/// A position in the queue: the priority, the index of creation, and the session.
type Place = (Reverse<i32>, u64, SessionId);

/// The content of the coordinating key: `.lock`, or the key of a lock.
#[derive(Debug)]
pub(super) struct Coordinate {
    pub(super) lock: LockKeyState,
    slots: HashMap<SessionId, u32>,
}

impl Coordinate {
    fn new(lock: LockKeyState) -> Self {
        let mut slots = HashMap::new();
        if let LockKeyState::Record { record, .. } = &lock {
            for holder in &record.holders {
                *slots.entry(holder.clone()).or_default() += 1;
            }
        }
        Self { lock, slots }
    }
}

/// A change, decoded.
#[derive(Clone, Debug)]
pub(super) enum Decoded {
    Lock {
        lock: Arc<Coordinate>,
        before: Option<SessionId>,
        after: Option<SessionId>,
    },
    Contender {
        session: SessionId,
        now: Option<Arc<Contender>>,
        before: Option<SessionId>,
        after: Option<SessionId>,
    },
}

/// The state of one semaphore.
#[derive(Clone)]
pub(super) struct StoreState {
    name: &'static str,
    is_lock: bool,
    coordinate: Arc<Coordinate>,
    contenders: HashMap<SessionId, Arc<Contender>>,
    /// The queue.
    queue: BTreeMap<Place, Arc<Contender>>,
    /// The number of keys that each session has locked.
    alive: HashMap<SessionId, usize>,
}

impl StoreState {
    pub(super) fn new(name: &'static str, primitive: Primitive) -> Self {
        Self {
            name,
            is_lock: matches!(primitive, Primitive::Lock { .. }),
            coordinate: Arc::new(Coordinate::new(LockKeyState::Missing)),
            contenders: HashMap::new(),
            queue: BTreeMap::new(),
            alive: HashMap::new(),
        }
    }

    /// Decodes a change; `None` for a key of another semaphore.
    pub(super) fn decode(&self, change: &Change) -> Option<Decoded> {
        let key = change.key();
        let owner = |entry: &Option<Arc<Stored>>| Some(SessionId::from(entry.as_ref()?.session.as_deref()?));
        let (before, after) = (owner(&change.before), owner(&change.after));
        if self.is_lock {
            let found = change.after.as_deref().map(pair);
            let index = found.as_ref().map_or(0, |pair| pair.modify_index);
            let lock = (key == self.name).then(|| View::of_key(self.name, found, index).lock)?;
            return Some(Decoded::Lock { lock: Arc::new(Coordinate::new(lock)), before, after });
        }
        let name = key.strip_prefix(self.name)?.strip_prefix('/')?;
        let mut view = View::new(self.name, change.after.as_deref().map(pair).into_iter().collect(), 0);
        Some(if name == ".lock" {
            Decoded::Lock { lock: Arc::new(Coordinate::new(view.lock)), before, after }
        } else {
            let (session, now) = (SessionId::from(name), view.contenders.pop().map(Arc::new));
            Decoded::Contender { session, now, before, after }
        })
    }

    /// Applies a change. Returns the sessions that it concerns.
    pub(super) fn apply(&mut self, change: &Decoded) -> Vec<SessionId> {
        let mut concerned = Vec::new();
        let (before, after) = match change {
            Decoded::Lock { lock, before, after } => {
                let old = std::mem::replace(&mut self.coordinate, Arc::clone(lock));
                let moved = old.slots.keys().filter(|session| !lock.slots.contains_key(*session));
                let moved = moved.chain(lock.slots.keys().filter(|one| !old.slots.contains_key(*one)));
                for session in moved {
                    self.place(session);
                    concerned.push(session.clone());
                }
                (before, after)
            }
            Decoded::Contender { session, now, before, after } => {
                let old = match now {
                    Some(now) => self.contenders.insert(session.clone(), Arc::clone(now)),
                    None => self.contenders.remove(session),
                };
                old.map(|old| self.queue.remove(&place_of(&old)));
                self.place(session);
                concerned.push(session.clone());
                (before, after)
            }
        };
        concerned.extend(before.iter().chain(after).cloned());
        if let Some(session) = before {
            let keys = self.alive.get_mut(session).expect("a session with a locked key");
            *keys -= 1;
            if *keys == 0 {
                self.alive.remove(session);
            }
        }
        if let Some(session) = after {
            *self.alive.entry(session.clone()).or_default() += 1;
        }
        concerned
    }

    /// Adds a waiter to the queue, or removes a contender that does not wait.
    fn place(&mut self, session: &SessionId) {
        let Some(one) = self.contenders.get(session) else { return };
        let stands = !one.says_held() && !one.is_evicted() && self.slots_of(session) == 0;
        if stands {
            self.queue.insert(place_of(one), Arc::clone(one));
        } else {
            self.queue.remove(&place_of(one));
        }
    }

    pub(super) fn lock(&self) -> &LockKeyState {
        &self.coordinate.lock
    }

    /// The index of the last change of the coordinating key; 0 if it is missing.
    pub(super) fn lock_index(&self) -> u64 {
        match self.lock() {
            LockKeyState::Missing => 0,
            LockKeyState::Single(single) => single.index,
            LockKeyState::Record { index, .. } | LockKeyState::Conflict { index, .. } => *index,
        }
    }

    /// Whether the session has locked any key of the semaphore.
    pub(super) fn is_alive(&self, session: &SessionId) -> bool {
        self.alive.contains_key(session)
    }

    /// All contenders.
    pub(super) fn contenders(&self) -> impl Iterator<Item = &Contender> {
        self.contenders.values().map(Arc::as_ref)
    }

    /// The holders, with the slots of each.
    pub(super) fn holders(&self) -> impl Iterator<Item = (&SessionId, u32)> {
        self.coordinate.slots.iter().map(|(holder, slots)| (holder, *slots))
    }

    /// The dead holders.
    pub(super) fn dead(&self) -> impl Iterator<Item = &SessionId> {
        self.coordinate.slots.keys().filter(|holder| !self.is_alive(holder))
    }

    /// The entry of a session.
    pub(super) fn entry_of(&self, session: &SessionId) -> Option<&Entry> {
        let own = if let LockKeyState::Single(single) = self.lock() { Some(single) } else { None };
        let own = own.filter(|single| single.owner.as_ref() == Some(session));
        let contender = self.contender(session).and_then(|one| one.entry.as_ref());
        contender.or_else(|| own.and_then(|single| single.entry.as_ref()))
    }
}

/// The holders, the handoff list and the contenders' entries, with shortened session IDs.
impl fmt::Debug for StoreState {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn short(session: &SessionId) -> &str {
            session.as_str().get(..8).unwrap_or(session.as_str())
        }
        match self.lock() {
            LockKeyState::Record { record, index } => {
                let [holders, next] = [&record.holders[..], record.next()].map(|them| them.iter().map(short));
                let (holders, next): (Vec<_>, Vec<_>) = (holders.collect(), next.collect());
                write!(out, "{} of {} at {index}: {holders:?}, next {next:?}", self.name, record.limit)?;
            }
            other @ (LockKeyState::Missing | LockKeyState::Single(_) | LockKeyState::Conflict { .. }) => {
                write!(out, "{}: {other:?}", self.name)?;
            }
        }
        let mut contenders: Vec<_> = self.contenders.values().map(Arc::as_ref).collect();
        contenders.sort_by_key(|one| one.create_index);
        for Contender { session, create_index, modify_index, flags: _, entry } in contenders {
            let state = entry.as_ref().map(|entry| (entry.state, entry.slots, entry.priority));
            let asked = if entry.as_ref().is_some_and(|entry| entry.asked) { " asked" } else { "" };
            write!(out, "; {} of {create_index} at {modify_index}: {state:?}{asked}", short(session))?;
        }
        Ok(())
    }
}

impl Sight for StoreState {
    fn record(&self) -> Option<&Record> {
        if let LockKeyState::Record { record, .. } = self.lock() { Some(record) } else { None }
    }

    fn contender(&self, session: &SessionId) -> Option<&Contender> {
        self.contenders.get(session).map(Arc::as_ref)
    }

    fn queue(&self) -> impl Iterator<Item = &Contender> {
        self.queue.values().map(Arc::as_ref)
    }

    fn slots_of(&self, session: &SessionId) -> u32 {
        if let LockKeyState::Single(single) = self.lock() {
            return (single.owner.as_ref() == Some(session)).into();
        }
        self.coordinate.slots.get(session).copied().unwrap_or_default()
    }

    fn lock_index(&self) -> u64 {
        self.lock_index()
    }
}

fn place_of(one: &Contender) -> Place {
    (Reverse(one.priority()), one.create_index, one.session.clone())
}
