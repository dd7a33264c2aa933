//! What is known of a semaphore: `.lock` and the contender keys, with their indexes.
//!
//! A view begins as a listing of all keys below the prefix. From then on own commits and reads of single keys update it, so some keys
//! are known better than others: [`View::is_complete`] says whether it is still known of every holder in `.lock` whether it lives.

use std::collections::{BTreeMap, BTreeSet};

use super::SessionId;
use super::command::Listing;
use super::contender::{Entry, WaiterState};
use super::offered::Offers;
use super::record::{NotASemaphore, Record};
use super::single::SingleKeyLock;

mod queue;
#[cfg(test)]
pub(crate) mod tests;
mod update;

/// The last part of the coordinating key.
const LOCK: &str = ".lock";

/// The last part of the key that says what foreign contenders were offered.
const OFFERED: &str = ".offered";

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
    /// What a read of a folder brings, a key that ends in a slash: the names of the keys in it, in the place of a value, and the
    /// index of the last change below it.
    pub fn of_folder(folder: &str, keys: impl IntoIterator<Item = String>, index: u64) -> Self {
        let names = keys.into_iter().filter_map(|key| key.strip_prefix(folder).map(str::to_owned));
        let value = names.collect::<Vec<_>>().join("\n").into_bytes();
        Self {
            key: folder.to_owned(),
            value,
            flags: 0,
            session: None,
            times_locked: 0,
            create_index: 0,
            modify_index: index,
        }
    }
}

/// What lies under the key that all go by: a semaphore's `<prefix>/.lock`, or a single-key lock's own.
#[derive(Clone, Debug, PartialEq)]
pub enum LockKeyState {
    /// Nothing: the first client that writes creates it.
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
    /// Our decoded value; `None` for another client's.
    pub entry: Option<Entry>,
}

/// A slotkeeper contender key that has stayed after its session (session behaviour `release`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// The full key.
    pub key: String,
    /// The index of its last change, for a guarded delete.
    pub index: u64,
}

/// A key under the prefix that the session of its name has not locked, so that this session cannot enter by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Occupied {
    /// The full key.
    pub key: String,
    /// The index of its last change, for a guarded delete.
    pub index: u64,
    /// The session that has it locked.
    pub by: Option<SessionId>,
}

/// What is known of a semaphore.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    prefix: String,
    /// It is of a single-key lock, which has nothing but its key.
    single: bool,
    /// The coordinating key.
    pub lock: LockKeyState,
    /// The live contenders under their own session's name, in order of arrival.
    pub contenders: Vec<Contender>,
    /// Slotkeeper contender keys to be deleted.
    pub leftovers: Vec<Leftover>,
    /// Keys that bear a name which may be a session's, and that this session has not locked.
    occupied: Vec<Occupied>,
    /// Sessions that have left `.lock`, and the index by which they had.
    left: BTreeMap<SessionId, u64>,
    /// Slotkeeper contenders that have left since the listing.
    gone: BTreeSet<SessionId>,
    /// What foreign contenders were offered, as far as is known here.
    pub(super) offers: Offers,
    /// The same as others have stored it, and the index of that.
    pub(super) offered: (Offers, u64),
    /// Every session on any listed key. The guide and Go's client take a holder for alive by these, whatever its key
    /// is called, so we do too.
    alive: BTreeSet<SessionId>,
    /// Sessions whose contender key was missing after the listing, with the index of that answer.
    missing: BTreeMap<SessionId, u64>,
    /// The index up to which the view knows all participants of `.lock`. `None`: it does not know the waiters either.
    known: Option<u64>,
    /// An index at which `.lock` is known to have stood as it is known.
    lock_stood: u64,
    /// Whether the keys were listed once, so that the queue is known as it was then.
    listed: bool,
    /// Whether the order is as listed: no waiter ahead has moved since.
    ordered: bool,
    /// The index of `.lock` when everything was listed.
    listed_lock: u64,
    /// Every `.lock` since the listing was without slotkeeper's marks: a foreign client wrote it, or takes part.
    unmarked: bool,
    /// The index of the last read of everything, or of the names of all keys.
    folder_index: u64,
    /// The names of all keys, where they were read after everything was listed.
    names: Option<BTreeSet<String>>,
    /// Whether keys were left out of the listing which the token may not read.
    filtered: bool,
}

impl View {
    /// Makes a view of a listing of `<prefix>/`. Keys that do not lie there are passed over: `<prefix>-2/…` belongs to
    /// another semaphore.
    pub fn new(prefix: &str, pairs: Vec<Pair>, index: u64) -> Self {
        let mut view = Self {
            prefix: prefix.to_owned(),
            single: false,
            lock: LockKeyState::Missing,
            contenders: Vec::new(),
            leftovers: Vec::new(),
            occupied: Vec::new(),
            left: BTreeMap::new(),
            gone: BTreeSet::new(),
            offers: Offers::new(),
            offered: (Offers::new(), 0),
            alive: BTreeSet::new(),
            missing: BTreeMap::new(),
            known: Some(index),
            lock_stood: 0,
            listed: true,
            ordered: true,
            listed_lock: 0,
            unmarked: true,
            folder_index: index,
            names: None,
            filtered: false,
        };
        for pair in pairs {
            view.add(pair);
        }
        view.sort();
        view.listed_lock = view.lock_index();
        // All keys of one listing belong together, whatever its index says.
        view.known = view.known.max(Some(view.lock_index()));
        view.confirm_lock(view.latest());
        view
    }

    /// Makes a view of a listing of `<prefix>/`, of which keys may be hidden.
    pub fn of_listing(prefix: &str, listing: Listing) -> Self {
        let Listing { pairs, index, filtered } = listing;
        Self { filtered, ..Self::new(prefix, pairs, index) }
    }

    /// Makes a view of a semaphore of which only `.lock` is known, as it was at that index.
    pub fn of_lock(prefix: &str, lock: Option<Pair>, index: u64) -> Self {
        let mut view = Self::new(prefix, lock.into_iter().collect(), index);
        (view.known, view.listed, view.folder_index) = (None, false, 0);
        view.confirm_lock(index);
        view
    }

    /// Makes a view of a single-key lock, of a read of its key.
    pub fn of_key(key: &str, pair: Option<Pair>, index: u64) -> Self {
        let mut view = Self { single: true, ..Self::new(key, Vec::new(), index) };
        view.see_lock(pair, index);
        view
    }

    /// The semaphore's prefix, without a slash at its end; of a single-key lock, its key.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The key that all go by.
    pub fn lock_key(&self) -> String {
        if self.single { self.prefix.clone() } else { format!("{}/{LOCK}", self.prefix) }
    }

    /// The key that says what foreign contenders were offered.
    pub fn offered_key(&self) -> String {
        format!("{}/{OFFERED}", self.prefix)
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

    /// Whether a session is the lookout by its own contender key.
    pub fn is_lookout(&self, session: &SessionId) -> bool {
        self.entry_of(session).is_some_and(Entry::is_lookout)
    }

    /// The key of a session's contender entry.
    pub fn contender_key(&self, session: &SessionId) -> String {
        format!("{}/{session}", self.prefix)
    }

    /// The record, if there is one.
    pub fn record(&self) -> Option<&Record> {
        match &self.lock {
            LockKeyState::Record { record, .. } => Some(record),
            LockKeyState::Missing | LockKeyState::Conflict { .. } | LockKeyState::Single(_) => None,
        }
    }

    /// The index for a check-and-set of `.lock`; 0 creates it.
    pub fn lock_index(&self) -> u64 {
        match &self.lock {
            LockKeyState::Record { index, .. } | LockKeyState::Conflict { index, .. } => *index,
            LockKeyState::Single(single) => single.index,
            LockKeyState::Missing => 0,
        }
    }

    /// Whether the view knows of every holder whether it lives, and the index of every slot. Waiters that enqueued at the end
    /// since the listing may be unknown.
    pub fn is_complete(&self) -> bool {
        self.knows_holders() && self.missing.is_empty() && self.names.is_none()
    }

    /// Whether the view knows all holders of `.lock`, and no key is hidden.
    fn knows_holders(&self) -> bool {
        !self.filtered && self.known.is_some_and(|known| self.lock_index() <= known)
    }

    /// Whether it is stored what foreign contenders were offered, as far as is known.
    pub fn has_stored_offers(&self) -> bool {
        self.offered.1 > 0 && !self.is_filtered()
    }

    /// Whether the listing left out keys that the token may not read. A holder without a visible contender key may live, and
    /// waiters may be missing: by such a view no holder is pruned and nothing is granted or destroyed.
    pub fn is_filtered(&self) -> bool {
        self.filtered
    }

    /// A later listing has left out keys which the token may not read.
    pub fn hides_keys(&mut self) {
        self.filtered = true;
    }

    /// Whether some holder in `.lock` looks dead.
    pub fn has_dead(&self) -> bool {
        let holders = self.record().map(|record| record.holders.as_slice()).unwrap_or_default();
        holders.iter().any(|holder| !self.is_alive(holder))
    }

    /// Whether `.lock` says that there is a lookout.
    pub fn has_lookout(&self) -> bool {
        self.record().is_some_and(|record| record.has_lookout)
    }

    /// Whether the keys were listed once. Otherwise the view knows only the participants that concern this client.
    pub fn is_listed(&self) -> bool {
        self.listed
    }

    /// The key by which all keys below the prefix are watched at once.
    pub fn folder_key(&self) -> String {
        format!("{}/", self.prefix)
    }

    /// The index of the last read of everything, or of all names.
    pub fn folder_index(&self) -> u64 {
        self.folder_index
    }

    /// Whether foreign clients take part, as far as is known.
    pub fn has_foreign(&self) -> bool {
        self.contenders.iter().any(|one| one.entry.is_none())
    }

    /// Whether every slotkeeper client that got ahead of this one since the listing had to change its contender key. A client
    /// that listed before this one enqueued is too late, because `.lock` has changed since.
    pub fn is_surely_listed(&self, session: &SessionId) -> bool {
        let came = self.contender(session).map(|one| one.create_index);
        self.listed && self.unmarked && came.is_some_and(|came| came < self.listed_lock)
    }

    /// Whether the order is as listed: no waiter ahead has moved since.
    pub fn is_ordered(&self) -> bool {
        self.ordered
    }

    /// A session's own contender entry, where it still has it.
    pub fn contender(&self, session: &SessionId) -> Option<&Contender> {
        self.contenders.iter().find(|contender| contender.session == *session)
    }

    /// Whether the session has any key under the prefix, as far as is known.
    pub fn is_alive(&self, session: &SessionId) -> bool {
        self.alive.contains(session)
    }

    /// Whether a holder is alive. `None` if that is unknown, as of a holder since the last listing.
    pub fn lives(&self, session: &SessionId) -> Option<bool> {
        match (self.is_missing(session), self.is_alive(session)) {
            (true, _) => Some(false),
            (false, true) => Some(true),
            (false, false) => self.knows_holders().then_some(false),
        }
    }

    /// Whether its contender was seen to be missing since the listing.
    pub fn is_missing(&self, session: &SessionId) -> bool {
        self.missing.contains_key(session) || self.is_unnamed(session)
    }

    /// Whether its contender was not among the names that were read last, and it is not known to live by a key of another name.
    fn is_unnamed(&self, session: &SessionId) -> bool {
        let elsewhere = || self.alive.contains(session) && self.contender(session).is_none();
        self.names.as_ref().is_some_and(|names| !names.contains(session.as_str())) && !elsewhere()
    }

    /// Whether the session was granted its slots by a write later than the known `.lock`. A transaction that writes `held` into
    /// a contender key also writes the session into `.lock`, or checks that it is listed.
    pub fn was_granted(&self, session: &SessionId) -> bool {
        self.contender(session).is_some_and(|one| one.says_held() && one.modify_index > self.lock_stood)
    }

    /// The index of the latest change that is known.
    pub fn latest(&self) -> u64 {
        let contenders = self.contenders.iter().map(|one| one.modify_index);
        contenders.max().unwrap_or(0).max(self.lock_index())
    }

    /// Whether the session holds that many slots, its contender alive.
    pub fn holds(&self, session: &SessionId, slots: u32) -> bool {
        let in_record = || self.record().is_some_and(|record| record.slots_of(session) == slots);
        self.contender(session).is_some_and(|one| {
            // The client that granted the slots by name may have known of fewer.
            let granted = one.entry.as_ref().filter(|_| self.was_granted(session));
            granted.map_or_else(in_record, |entry| entry.slots == slots)
        })
    }

    /// The index of what is known of a key; 0 where nothing is.
    pub fn index_of(&self, key: &str) -> u64 {
        if key == self.lock_key() {
            return self.lock_index();
        }
        if key.ends_with('/') {
            return self.folder_index;
        }
        let occupied = || self.occupied.iter().find(|one| one.key == key).map_or(0, |one| one.index);
        self.owner(key).map_or_else(occupied, |one| one.modify_index)
    }

    /// What lies under a session's contender key, where the session has not locked it.
    pub fn in_place_of(&self, session: &SessionId) -> Option<&Occupied> {
        let key = self.contender_key(session);
        self.occupied.iter().find(|one| one.key == key)
    }

    /// The session whose contender key this is.
    pub fn session_of(&self, key: &str) -> Option<SessionId> {
        let name = key.strip_prefix(&self.prefix).and_then(|key| key.strip_prefix('/'))?;
        (name != LOCK).then(|| name.into())
    }

    fn owner(&self, key: &str) -> Option<&Contender> {
        let name = key.strip_prefix(&self.prefix).and_then(|key| key.strip_prefix('/'))?;
        self.contenders.iter().find(|one| one.session.as_str() == name)
    }
}

impl Contender {
    /// Whether its own value says that it holds; another client's says nothing.
    pub fn says_held(&self) -> bool {
        self.entry.as_ref().is_some_and(|entry| entry.state == WaiterState::Held)
    }

    /// Whether its own value says that it waits.
    pub fn says_waiting(&self) -> bool {
        self.entry.as_ref().is_some_and(|entry| entry.state == WaiterState::Waiting)
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
