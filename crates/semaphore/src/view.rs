//! What was read of a semaphore or lock at one instant: `.lock` and contender keys, with their indexes.
//!
//! A view is replaced as a whole by the next one. [`Scope`] says which keys it has. Only a view of all keys shows who waits and which
//! holders are dead.

use std::collections::{BTreeMap, BTreeSet};

use super::SessionId;
use super::command::{Listing, Op};
use super::contender::{Entry, WaiterState};
use super::record::{NotASemaphore, Record, count};
use super::single::SingleKeyLock;

/// The last part of the coordinating key.
const LOCK: &str = ".lock";

/// One key as Consul lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The full key.
    pub key: String,
    /// Its value, decoded from base64.
    pub value: Vec<u8>,
    /// Its flags.
    pub flags: u64,
    /// The session that has it locked.
    pub session: Option<SessionId>,
    /// How often it has been locked.
    pub times_locked: u64,
    /// The index of the write that created it.
    pub create_index: u64,
    /// The index of the last write that changed it.
    pub modify_index: u64,
}

impl Pair {
    /// What a read of a folder brings, a key that ends in a slash: the index of the last change below it.
    pub fn of_folder(folder: &str, keys: impl IntoIterator<Item = String>, index: u64) -> Self {
        let names = keys.into_iter().filter_map(|key| key.strip_prefix(folder).map(str::to_owned));
        let value = names.collect::<Vec<_>>().join("\n").into_bytes();
        let (key, session) = (folder.to_owned(), None);
        Self { key, value, flags: 0, session, times_locked: 0, create_index: 0, modify_index: index }
    }
}

/// What lies under the key that all go by: a semaphore's `<prefix>/.lock`, or a single-key lock's own.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum LockKeyState {
    /// Nothing: the first client that writes creates it.
    #[default]
    Missing,
    /// A single-key lock, where that is looked for.
    Single(Box<SingleKeyLock>),
    /// A semaphore's record.
    Record {
        /// The decoded record.
        record: Record,
        /// The index of its last change, for check-and-set and as the fencing token of the grants of that change.
        index: u64,
    },
    /// Something else, which is left alone.
    Conflict {
        /// What it is.
        found: NotASemaphore,
        /// The session that has it locked.
        owner: Option<SessionId>,
        /// The index of its last change.
        index: u64,
    },
}

/// A live contender: a key under the prefix that a session has locked.
#[derive(Clone, Debug, PartialEq)]
pub struct Contender {
    /// Its session.
    pub session: SessionId,
    /// Its position among contenders of the same priority.
    pub create_index: u64,
    /// The index of its last change.
    pub modify_index: u64,
    /// The flags of its key.
    pub flags: u64,
    /// Our decoded value; `None` for another client's.
    pub entry: Option<Entry>,
}

/// A key under the prefix that the session of its name has not locked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stray {
    /// The full key.
    pub key: String,
    /// The index of its last change, for a guarded delete.
    pub index: u64,
    /// The session that has it locked.
    pub by: Option<SessionId>,
}

impl Stray {
    /// The step that deletes it.
    pub(crate) fn delete(&self) -> Op {
        Op::DeleteCas { key: self.key.clone(), index: self.index }
    }
}

/// The keys that a view is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Scope {
    /// The key of a single-key lock.
    Single,
    /// `.lock`, and the contender keys that were asked for.
    #[default]
    Some,
    /// All keys below the prefix.
    All {
        /// Keys were left out that the token may not read.
        filtered: bool,
    },
    /// All contender keys as they were, and `.lock` as it has become since.
    Past,
}

/// What was read of a semaphore or lock.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    prefix: String,
    scope: Scope,
    /// The coordinating key.
    pub lock: LockKeyState,
    /// The live contenders under their own session's name, in order of arrival.
    pub contenders: Vec<Contender>,
    /// Slotkeeper contender keys that have stayed after their sessions (session behaviour `release`), to be deleted.
    pub leftovers: Vec<Stray>,
    /// Keys that bear a name which may be a session's, and by which this session cannot enter.
    occupied: Vec<Stray>,
    /// Every session on any key. The guide and Go's client take a holder for alive by these, whatever its key is called, so we do too.
    alive: BTreeSet<SessionId>,
    /// Sessions whose contender keys were asked for and do not exist.
    missing: BTreeSet<SessionId>,
    /// The index of the answer.
    index: u64,
}

impl View {
    fn of(prefix: &str, scope: Scope, pairs: impl IntoIterator<Item = Pair>, index: u64) -> Self {
        let mut view = Self { prefix: prefix.to_owned(), scope, index, ..Self::default() };
        for pair in pairs {
            view.add(pair);
        }
        view.contenders.sort_by_key(|contender| contender.create_index);
        view
    }

    /// Makes a view of all keys below `<prefix>/`. Keys that do not lie there are passed over: `<prefix>-2/…` belongs to another
    /// semaphore.
    pub fn new(prefix: &str, pairs: Vec<Pair>, index: u64) -> Self {
        Self::of(prefix, Scope::All { filtered: false }, pairs, index)
    }

    /// Makes a view of a listing of `<prefix>/`, of which keys may be hidden.
    pub fn of_listing(prefix: &str, listing: Listing) -> Self {
        let Listing { pairs, index, filtered } = listing;
        Self::of(prefix, Scope::All { filtered }, pairs, index)
    }

    /// Makes a view of some keys of a semaphore as they were at one instant: `.lock`, and the contender keys of these sessions.
    pub fn of_some(
        prefix: &str,
        pairs: impl IntoIterator<Item = Pair>,
        of: &[SessionId],
        index: u64,
    ) -> Self {
        let mut view = Self::of(prefix, Scope::Some, pairs, index);
        view.missing = of.iter().filter(|session| !view.alive.contains(session)).cloned().collect();
        view
    }

    /// Makes a view of a single-key lock, of a read of its key.
    pub fn of_key(key: &str, pair: Option<Pair>, index: u64) -> Self {
        let mut view = Self::of(key, Scope::Single, None, index);
        if let Some(pair) = pair.filter(|pair| pair.key == key) {
            view.lock = LockKeyState::Single(Box::new(SingleKeyLock::of(pair)));
        }
        view
    }

    fn add(&mut self, pair: Pair) {
        let Some(name) = name_of(&self.prefix, &pair.key).map(str::to_owned) else { return };
        let Pair { key, value, flags, session, create_index, modify_index, .. } = pair;
        self.alive.extend(session.clone());
        if name == LOCK {
            // One with unknown fields is never deleted as a leftover.
            let index = modify_index;
            self.lock = match Record::decode(&value, flags) {
                Ok(record) => LockKeyState::Record { record, index },
                Err(found) => LockKeyState::Conflict { found, owner: session, index },
            };
            return;
        }
        let entry = Entry::decode(&value);
        if let Some(session) = session.clone().filter(|session| session.as_str() == name) {
            self.contenders.push(Contender { session, create_index, modify_index, flags, entry });
            return;
        }
        let stray = Stray { key, index: modify_index, by: session };
        if entry.is_some() && stray.by.is_none() {
            self.leftovers.push(stray.clone());
        }
        // No session's id has a slash.
        if !name.contains('/') {
            self.occupied.push(stray);
        }
    }

    /// The semaphore's prefix, without a slash at its end; of a single-key lock, its key.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The key that all go by.
    pub fn lock_key(&self) -> String {
        if self.scope == Scope::Single { self.prefix.clone() } else { lock_key(&self.prefix) }
    }

    /// The key of a session's contender entry.
    pub fn contender_key(&self, session: &SessionId) -> String {
        contender_key(&self.prefix, session)
    }

    /// The session whose contender key this is.
    pub fn session_of(&self, key: &str) -> Option<SessionId> {
        session_of(&self.prefix, key)
    }

    /// The index of the answer that the view is of.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Whether the view has all keys below the prefix, except those that are hidden.
    pub fn is_listed(&self) -> bool {
        matches!(self.scope, Scope::All { .. } | Scope::Past)
    }

    /// Whether nothing is left out of what was to be read: all keys below the prefix, or the key of a lock.
    pub(crate) fn shows_all(&self) -> bool {
        matches!(self.scope, Scope::All { .. } | Scope::Single)
    }

    /// Whether `.lock` alone is as it is now, beside contender keys as they were.
    pub(crate) fn is_past(&self) -> bool {
        self.scope == Scope::Past
    }

    /// Whether the listing left out keys that the token may not read. A holder without a visible contender key may live, and waiters may
    /// be missing: by such a view no holder is pruned and nothing is granted or destroyed.
    pub fn is_filtered(&self) -> bool {
        self.scope == Scope::All { filtered: true }
    }

    /// The single-key lock, if this is one and its key exists.
    pub fn single(&self) -> Option<&SingleKeyLock> {
        if let LockKeyState::Single(single) = &self.lock { Some(single) } else { None }
    }

    /// Whether the session has the single-key lock.
    pub fn is_owner(&self, session: &SessionId) -> bool {
        self.single().is_some_and(|single| single.owner.as_ref() == Some(session))
    }

    /// What a session says of itself there: in its contender, or in the lock that it has.
    pub fn entry_of(&self, session: &SessionId) -> Option<&Entry> {
        let own = self.single().filter(|_| self.is_owner(session));
        let contender = self.contender(session).and_then(|one| one.entry.as_ref());
        contender.or_else(|| own.and_then(|single| single.entry.as_ref()))
    }

    /// The operator that evicted the session.
    pub fn evicted_by(&self, session: &SessionId) -> Option<&str> {
        self.entry_of(session)?.evicted_by.as_deref()
    }

    /// The record, if there is one.
    pub fn record(&self) -> Option<&Record> {
        if let LockKeyState::Record { record, .. } = &self.lock { Some(record) } else { None }
    }

    /// The index for a check-and-set of `.lock`; 0 creates it.
    pub fn lock_index(&self) -> u64 {
        match &self.lock {
            LockKeyState::Record { index, .. } | LockKeyState::Conflict { index, .. } => *index,
            LockKeyState::Single(single) => single.index,
            LockKeyState::Missing => 0,
        }
    }

    /// A session's own contender entry, where it still has it.
    pub fn contender(&self, session: &SessionId) -> Option<&Contender> {
        self.contenders.iter().find(|contender| contender.session == *session)
    }

    /// The slots that the session has in `.lock`.
    pub fn slots_of(&self, session: &SessionId) -> u32 {
        self.record().map_or(0, |record| record.slots_of(session))
    }

    /// What lies under a session's contender key, where the session has not locked it.
    pub fn in_place_of(&self, session: &SessionId) -> Option<&Stray> {
        let key = self.contender_key(session);
        self.occupied.iter().find(|one| one.key == key)
    }

    /// Whether a holder is alive. `None` if that is unknown.
    pub fn lives(&self, session: &SessionId) -> Option<bool> {
        let lives = self.alive.contains(session);
        (lives || self.scope == Scope::All { filtered: false }).then_some(lives)
    }

    /// Whether a holder's contender key was asked for alone and does not exist. A listing tells whether the holder lives by another key.
    pub(crate) fn is_missing(&self, session: &SessionId) -> bool {
        self.missing.contains(session)
    }

    /// The sessions in `.lock`.
    pub(crate) fn holders(&self) -> BTreeSet<&SessionId> {
        self.record().into_iter().flat_map(|record| &record.holders).collect()
    }

    /// The holders that are known to be dead.
    pub(crate) fn dead(&self) -> BTreeSet<&SessionId> {
        self.holders().into_iter().filter(|holder| self.lives(holder) == Some(false)).collect()
    }

    /// Whether foreign clients take part, as far as is known.
    pub fn has_foreign(&self) -> bool {
        self.contenders.iter().any(|one| one.entry.is_none())
    }

    /// The slot indexes of all holders, as far as they are known: by `.lock`, or else by the contender keys.
    pub(crate) fn indexes(&self) -> BTreeMap<&SessionId, Vec<u32>> {
        let of = |holder: &SessionId| {
            let told = self.record().map(|record| record.indexes_of(holder)).filter(|told| !told.is_empty());
            told.or_else(|| Some(self.entry_of(holder)?.indexes.clone())).unwrap_or_default()
        };
        self.holders().into_iter().map(|holder| (holder, of(holder))).collect()
    }

    /// The waiters, by priority and then arrival. A contender whose slots were taken from it is no waiter before it has noticed. Nor is a
    /// contender that an operator evicted: it is about to leave, and who offers it a slot by its name would overwrite the mark.
    pub fn waiters(&self) -> Vec<&Contender> {
        let holders = self.holders();
        let in_line =
            |one: &&Contender| !one.says_held() && !one.is_evicted() && !holders.contains(&one.session);
        let mut waiters: Vec<_> = self.contenders.iter().filter(in_line).collect();
        waiters.sort_by_key(|one| (std::cmp::Reverse(one.priority()), one.create_index));
        waiters
    }

    /// The number of known waiters, including all that `.lock` tells of.
    pub fn waiting(&self) -> u32 {
        let told = self.record().and_then(|record| record.hints.as_ref()).map_or(0, |hints| hints.waiting);
        let listed = count(self.waiters().len());
        if self.is_listed() { listed } else { told.max(listed) }
    }

    /// A session's position in the queue, from 1. Without a listing: its position among the waiters that `.lock` names, or right behind
    /// those that it counts, although there may be others between.
    pub fn position(&self, session: &SessionId) -> Option<u32> {
        let behind = || Some(self.record()?.hints.as_ref()?.waiting.saturating_add(1));
        self.known_position(session).or_else(|| behind().filter(|_| !self.is_listed()))
    }

    /// The same where all waiters ahead are counted: the queue was listed, or `.lock` names the session.
    pub(crate) fn known_position(&self, session: &SessionId) -> Option<u32> {
        let mut line: Vec<_> = if self.is_listed() {
            self.waiters().into_iter().map(|one| &one.session).collect()
        } else {
            self.record()?.next().iter().collect()
        };
        line.dedup();
        Some(count(line.into_iter().position(|one| one == session)? + 1))
    }

    /// The same view with what a later one shows of `.lock` and of some contender keys, for people.
    pub(crate) fn updated(mut self, later: &Self) -> Self {
        self.lock = later.lock.clone();
        let seen = |session: &SessionId| later.contender(session).is_some() || later.is_missing(session);
        self.contenders.retain(|one| !seen(&one.session));
        self.contenders.extend(later.contenders.iter().cloned());
        self.contenders.sort_by_key(|contender| contender.create_index);
        self.alive.retain(|session| !later.is_missing(session));
        self.alive.extend(later.alive.iter().cloned());
        self.index = self.index.max(later.index);
        self
    }

    /// The same view as one of some keys, of which none is known to be missing.
    pub(crate) fn of_few(mut self) -> Self {
        if self.scope != Scope::Single {
            self.scope = Scope::Some;
        }
        self
    }

    /// The same view as one of the past, of which `.lock` alone is as it is now; `None` if a holder is not known from then.
    pub(crate) fn of_past(mut self) -> Option<Self> {
        let knows = |holder: &SessionId| {
            self.contender(holder)
                .is_some_and(|one| one.entry.as_ref().is_none_or(|entry| !entry.indexes.is_empty()))
        };
        if !self.is_listed() || self.is_filtered() || !self.record()?.holders.iter().all(knows) {
            return None;
        }
        self.scope = Scope::Past;
        Some(self)
    }

    /// The same view without the other participants.
    pub(crate) fn of_own(mut self, session: &SessionId) -> Self {
        self.contenders.retain(|one| one.session == *session);
        self.alive.retain(|one| one == session);
        (self.leftovers, self.occupied) = (Vec::new(), Vec::new());
        self.of_few()
    }

    /// The same view with a contender that is known from before.
    pub(crate) fn with_contender(mut self, one: Option<&Contender>) -> Self {
        self.alive.extend(one.map(|one| one.session.clone()));
        self.contenders.extend(one.cloned());
        self
    }
}

/// The coordinating key of a semaphore.
pub(crate) fn lock_key(prefix: &str) -> String {
    format!("{prefix}/{LOCK}")
}

/// The last part of a key below the prefix.
fn name_of<'a>(prefix: &str, key: &'a str) -> Option<&'a str> {
    key.strip_prefix(prefix)?.strip_prefix('/')
}

/// The session whose contender key this is.
pub(crate) fn session_of(prefix: &str, key: &str) -> Option<SessionId> {
    name_of(prefix, key).filter(|name| *name != LOCK).map(SessionId::from)
}

/// The contender key of a session.
pub(crate) fn contender_key(prefix: &str, session: &SessionId) -> String {
    format!("{prefix}/{session}")
}

impl Contender {
    /// Whether its own value says that it holds, or is offered, slots; another client's says nothing.
    pub fn says_held(&self) -> bool {
        self.state().is_some_and(|state| state != WaiterState::Waiting)
    }

    /// Whether it is asked for a sign of life.
    pub fn is_asked(&self) -> bool {
        self.entry.as_ref().is_some_and(|entry| entry.asked)
    }

    /// Whether its own value says that it waits.
    pub fn says_waiting(&self) -> bool {
        self.state() == Some(WaiterState::Waiting)
    }

    /// The state that its own value tells.
    pub fn state(&self) -> Option<WaiterState> {
        self.entry.as_ref().map(|entry| entry.state)
    }

    /// Whether it was evicted.
    pub fn is_evicted(&self) -> bool {
        self.entry.as_ref().is_some_and(|entry| entry.evicted_by.is_some())
    }

    /// Its priority. A foreign client has that of clients that configure none.
    pub fn priority(&self) -> i32 {
        self.entry.as_ref().map_or(0, |entry| entry.priority)
    }
}

#[cfg(test)]
pub(crate) mod tests;
