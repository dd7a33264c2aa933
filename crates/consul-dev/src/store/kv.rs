//! The key/value table: entries, tombstones of deleted keys, and the effect of each verb.
//!
//! All changes are made of three mutations that can be undone, so that transactions are atomic.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::session::SessionId;
use slotkeeper_semaphore::Moment;

/// How long a deleted key is remembered, as in Consul's `tombstone_ttl`.
const TOMBSTONE_TTL: Duration = Duration::from_secs(15 * 60);

/// A key and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub key: String,
    pub value: Bytes,
    pub flags: u64,
    /// The number of locks since the last plain write, which resets it.
    pub lock_index: u64,
    /// The session that holds the key.
    pub session: Option<String>,
    pub create_index: u64,
    pub modify_index: u64,
}

impl Entry {
    /// Whether a write of `self` over `old` changes nothing that a reader sees.
    fn repeats(&self, old: &Self) -> bool {
        self.value == old.value
            && self.flags == old.flags
            && self.lock_index == old.lock_index
            && self.session == old.session
    }
}

/// The write of a client.
#[derive(Clone, Debug)]
pub struct Write {
    pub key: String,
    pub value: Bytes,
    pub flags: u64,
}

/// A deleted key: the lists that contained it changed at `index`.
#[derive(Clone, Copy, Debug)]
struct Tombstone {
    index: u64,
    reaped: Moment,
}

/// The undo of one mutation.
#[derive(Clone, Debug)]
enum Undo {
    Entry(String, Option<Arc<Entry>>),
    Tombstone(String, Option<Tombstone>),
    Index(u64),
}

/// The index and the time at which a write applies.
#[derive(Clone, Copy, Debug)]
pub struct At {
    pub index: u64,
    pub now: Moment,
}

/// The table.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    entries: BTreeMap<String, Arc<Entry>>,
    tombstones: BTreeMap<String, Tombstone>,
    /// At the latest when the first tombstone is due. Without it each request would read all tombstones.
    next_reap: Option<Moment>,
    index: u64,
    journal: Option<Vec<Undo>>,
}

impl Keys {
    /// The index of the latest change to any key.
    pub fn index(&self) -> u64 {
        self.index
    }

    pub fn get(&self, key: &str) -> Option<&Arc<Entry>> {
        self.entries.get(key)
    }

    pub fn list<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a Arc<Entry>> {
        below(&self.entries, prefix).map(|(_, entry)| entry)
    }

    /// The index of the last change of this key, also of its deletion; 0 if none is known.
    pub fn index_of(&self, key: &str) -> u64 {
        let living = self.get(key).map_or(0, |entry| entry.modify_index);
        living.max(self.tombstones.get(key).map_or(0, |stone| stone.index))
    }

    /// The index of the last change below `prefix`; 0 if none is known.
    pub fn index_below(&self, prefix: &str) -> u64 {
        if prefix.is_empty() {
            return self.index;
        }
        let living = self.list(prefix).map(|entry| entry.modify_index).max();
        let dead = below(&self.tombstones, prefix).map(|(_, stone)| stone.index).max();
        living.max(dead).unwrap_or(0)
    }

    /// A plain write. It keeps the holder and resets the number of locks, as in Consul.
    pub fn set(&mut self, write: Write, at: At) -> Arc<Entry> {
        let holder = self.get(&write.key).and_then(|old| old.session.clone());
        self.put(write, 0, holder, at)
    }

    /// A write that requires the index `expected`; 0: the key does not exist.
    pub fn cas(&mut self, write: Write, expected: u64, at: At) -> Option<Arc<Entry>> {
        let current = self.get(&write.key).map_or(0, |entry| entry.modify_index);
        (current == expected).then(|| self.set(write, at))
    }

    /// A write that makes `session` the holder. Nothing changes if there is another holder.
    pub fn lock(&mut self, write: Write, session: &str, at: At) -> Option<Arc<Entry>> {
        let lock_index = match self.get(&write.key) {
            None => 1,
            Some(old) => match old.session.as_deref() {
                None => old.lock_index + 1,
                Some(holder) if holder == session => old.lock_index,
                Some(_) => return None,
            },
        };
        Some(self.put(write, lock_index, Some(session.to_owned()), at))
    }

    /// A write that releases the key. Nothing changes if `session` is not the holder.
    pub fn unlock(&mut self, write: Write, session: &str, at: At) -> Option<Arc<Entry>> {
        let old = self.get(&write.key).filter(|old| old.session.as_deref() == Some(session))?;
        let lock_index = old.lock_index;
        Some(self.put(write, lock_index, None, at))
    }

    pub fn delete(&mut self, key: &str, at: At) {
        if self.entries.contains_key(key) {
            self.place(key, None);
            self.bury(key, at);
        }
    }

    /// Deletes the key if its index is `expected`. Returns whether the key does not exist now.
    pub fn delete_cas(&mut self, key: &str, expected: u64, at: At) -> bool {
        let gone = self.get(key).is_none_or(|entry| entry.modify_index == expected);
        if gone {
            self.delete(key, at);
        }
        gone
    }

    pub fn delete_tree(&mut self, prefix: &str, at: At) {
        let keys: Vec<String> = self.list(prefix).map(|entry| entry.key.clone()).collect();
        for key in &keys {
            self.place(key, None);
        }
        // The whole tree has one tombstone. The root needs none, since its index is that of the table.
        if !keys.is_empty() {
            if prefix.is_empty() { self.advance(at.index) } else { self.bury(prefix, at) }
        }
    }

    pub fn held_by(&self, session: &SessionId) -> Vec<Arc<Entry>> {
        let holder = |entry: &Entry| entry.session.as_deref().and_then(|id| SessionId::parse(id).ok());
        self.entries.values().filter(|entry| holder(entry).as_ref() == Some(session)).cloned().collect()
    }

    /// Releases the key and changes nothing else.
    pub fn release(&mut self, entry: &Entry, at: At) {
        let Entry { key, value, flags, .. } = entry.clone();
        self.put(Write { key, value, flags }, entry.lock_index, None, at);
    }

    /// The earliest time at which [`Keys::reap`] removes a tombstone.
    pub fn next_reap(&self) -> Option<Moment> {
        self.next_reap
    }

    /// Removes old tombstones. The index of a prefix may decrease, as in Consul.
    pub fn reap(&mut self, at: At) {
        let before = self.tombstones.len();
        self.tombstones.retain(|_, stone| stone.reaped > at.now);
        self.next_reap = self.tombstones.values().map(|stone| stone.reaped).min();
        if self.tombstones.len() < before {
            self.advance(at.index);
        }
    }

    /// Begins a transaction: the changes that follow can be undone.
    pub fn begin(&mut self) {
        self.journal = Some(vec![Undo::Index(self.index)]);
    }

    /// Keeps the changes since [`Keys::begin`].
    pub fn commit(&mut self) {
        self.journal = None;
    }

    /// Undoes the changes since [`Keys::begin`].
    pub fn roll_back(&mut self) {
        for undo in self.journal.take().into_iter().flatten().rev() {
            match undo {
                Undo::Entry(key, old) => drop(exchange(&mut self.entries, &key, old)),
                Undo::Tombstone(key, old) => drop(exchange(&mut self.tombstones, &key, old)),
                Undo::Index(old) => self.index = old,
            }
        }
    }

    fn put(&mut self, write: Write, lock_index: u64, session: Option<String>, at: At) -> Arc<Entry> {
        let old = self.get(&write.key).cloned();
        let Write { key, value, flags } = write;
        let create_index = old.as_ref().map_or(at.index, |old| old.create_index);
        let modify_index = at.index;
        let new = Entry { key, value, flags, lock_index, session, create_index, modify_index };
        // An identical write changes no index and wakes no reader.
        if let Some(old) = old.filter(|old| new.repeats(old)) {
            return old;
        }
        let new = Arc::new(new);
        self.place(&new.key, Some(Arc::clone(&new)));
        self.advance(at.index);
        new
    }

    fn place(&mut self, key: &str, entry: Option<Arc<Entry>>) {
        let old = exchange(&mut self.entries, key, entry);
        self.note(|| Undo::Entry(key.to_owned(), old));
    }

    fn bury(&mut self, key: &str, at: At) {
        let stone = Tombstone { index: at.index, reaped: at.now + TOMBSTONE_TTL };
        self.next_reap.get_or_insert(stone.reaped);
        let old = exchange(&mut self.tombstones, key, Some(stone));
        self.note(|| Undo::Tombstone(key.to_owned(), old));
        self.advance(at.index);
    }

    /// The index of the table needs no undo of its own: the first entry of the journal contains it.
    fn advance(&mut self, index: u64) {
        self.index = index;
    }

    fn note(&mut self, undo: impl FnOnce() -> Undo) {
        if let Some(journal) = &mut self.journal {
            journal.push(undo());
        }
    }
}

fn below<'a, T>(
    table: &'a BTreeMap<String, T>,
    prefix: &'a str,
) -> impl Iterator<Item = (&'a String, &'a T)> {
    table
        .range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
        .take_while(move |(key, _)| key.starts_with(prefix))
}

fn exchange<T>(table: &mut BTreeMap<String, T>, key: &str, new: Option<T>) -> Option<T> {
    match new {
        Some(new) => table.insert(key.to_owned(), new),
        None => table.remove(key),
    }
}
