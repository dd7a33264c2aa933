//! The state: keys, sessions and lock-delays under one growing index. No I/O, and time is a parameter.

use std::collections::HashMap;
use std::sync::Arc;

use uuid::Uuid;

use slotkeeper_semaphore::Moment;

pub mod kv;
pub mod session;
#[cfg(test)]
mod tests;
pub mod txn;

use kv::{At, Entry, Keys, Write};
use session::{Behavior, Request, Rules, Session, SessionError, SessionId, Sessions};
use txn::LockError;

/// The first entry of Consul's log is its own, so no write of a client has the index 1.
const FIRST_INDEX: u64 = 1;

/// The result of a read, and the mark that a blocking read waits on.
#[derive(Debug)]
pub struct Read<T> {
    /// The index of the answer, for the client's next blocking query.
    pub index: u64,
    /// Changes exactly when the result does. The index of a missing key or session is that of its whole table, which other
    /// writes change too.
    pub stamp: u64,
    pub found: T,
}

/// The state of one server.
#[derive(Clone, Debug)]
pub struct Store {
    index: u64,
    keys: Keys,
    sessions: Sessions,
    /// The keys in lock-delay, and when it ends.
    delays: HashMap<String, Moment>,
}

impl Store {
    /// An empty store of the node `node`.
    pub fn new(node: String, rules: Rules) -> Self {
        Self {
            index: FIRST_INDEX,
            keys: Keys::default(),
            sessions: Sessions::new(node, rules),
            delays: HashMap::new(),
        }
    }

    /// The index of the latest write.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Adds a node to the catalogue.
    pub fn register(&mut self, node: &str) {
        self.sessions.register(node);
    }

    /// Does what is due: ends expired sessions and lock-delays, and removes old tombstones.
    pub fn tick(&mut self, now: Moment) {
        for id in self.sessions.expired(now) {
            self.destroy_session(&id, now);
        }
        self.delays.retain(|_, until| *until > now);
        if self.keys.next_reap().is_some_and(|due| due <= now) {
            let at = self.next(now);
            self.keys.reap(at);
        }
    }

    /// When [`Store::tick`] next makes a change that a reader sees.
    pub fn next_deadline(&self) -> Option<Moment> {
        self.sessions.next_expiry().into_iter().chain(self.keys.next_reap()).min()
    }

    pub fn key(&self, key: &str) -> Read<Option<Arc<Entry>>> {
        let found = self.keys.get(key).cloned();
        let index = found.as_ref().map_or(self.keys.index(), |entry| entry.modify_index);
        Read { index, stamp: self.keys.index_of(key), found }
    }

    pub fn list(&self, prefix: &str) -> Read<Vec<Arc<Entry>>> {
        let below = self.keys.index_below(prefix);
        let index = if below == 0 { self.keys.index() } else { below };
        // Any write wakes the read of an empty list: Consul has no index for a prefix without keys.
        Read { index, stamp: index, found: self.keys.list(prefix).cloned().collect() }
    }

    pub fn set(&mut self, write: Write, now: Moment) {
        let at = self.next(now);
        self.keys.set(write, at);
    }

    pub fn cas(&mut self, write: Write, expected: u64, now: Moment) -> bool {
        let at = self.next(now);
        self.keys.cas(write, expected, at).is_some()
    }

    /// Locks the key. Returns whether `session` holds it now; false for another holder and for a lock-delay.
    pub fn lock(&mut self, write: Write, session: &str, now: Moment) -> Result<bool, LockError> {
        if self.lock_is_delayed(&write.key, now) {
            return Ok(false);
        }
        self.may_lock(session)?;
        let at = self.next(now);
        Ok(self.keys.lock(write, session, at).is_some())
    }

    /// Releases the key. Returns whether `session` held it.
    pub fn unlock(&mut self, write: Write, session: &str, now: Moment) -> Result<bool, LockError> {
        if session.is_empty() {
            return Err(LockError::NoSession);
        }
        let at = self.next(now);
        Ok(self.keys.unlock(write, session, at).is_some())
    }

    pub fn delete(&mut self, key: &str, now: Moment) {
        let at = self.next(now);
        self.keys.delete(key, at);
    }

    pub fn delete_cas(&mut self, key: &str, expected: u64, now: Moment) -> bool {
        let at = self.next(now);
        self.keys.delete_cas(key, expected, at)
    }

    pub fn delete_tree(&mut self, prefix: &str, now: Moment) {
        let at = self.next(now);
        self.keys.delete_tree(prefix, at);
    }

    pub fn session(&self, id: &SessionId) -> Read<Option<Arc<Session>>> {
        let found = self.sessions.get(id).cloned();
        let stamp = found.as_ref().map_or(0, |session| session.create_index);
        Read { index: self.sessions.index(), stamp, found }
    }

    /// The result of a read of a session whose ID is invalid.
    pub fn no_session(&self) -> Read<Option<Arc<Session>>> {
        Read { index: self.sessions.index(), stamp: 0, found: None }
    }

    pub fn sessions(&self) -> Read<Vec<Arc<Session>>> {
        let index = self.sessions.index();
        Read { index, stamp: index, found: self.sessions.list().cloned().collect() }
    }

    /// Creates a session. The caller chooses its ID.
    pub fn create_session(&mut self, id: Uuid, asked: Request, now: Moment) -> Result<(), SessionError> {
        let at = self.next(now);
        self.sessions.create(id, asked, at.index, now)
    }

    pub fn renew_session(&mut self, id: &SessionId, now: Moment) -> Option<Arc<Session>> {
        self.sessions.renew(id, now)
    }

    /// Ends a session and releases its keys, whose lock-delay begins. The end of a missing session is no error.
    pub fn destroy_session(&mut self, id: &SessionId, now: Moment) {
        let at = self.next(now);
        let Some(session) = self.sessions.remove(id, at.index) else { return };
        let delay = session.lock_delay();
        for entry in self.keys.held_by(id) {
            match session.behavior {
                Behavior::Release => self.keys.release(&entry, at),
                Behavior::Delete => self.keys.delete(&entry.key, at),
            }
            if !delay.is_zero() {
                self.delays.insert(entry.key.clone(), now + delay);
            }
        }
    }

    fn lock_is_delayed(&self, key: &str, now: Moment) -> bool {
        self.delays.get(key).is_some_and(|until| *until > now)
    }

    fn may_lock(&self, session: &str) -> Result<(), LockError> {
        if session.is_empty() {
            return Err(LockError::NoSession);
        }
        let id = SessionId::parse(session)
            .map_err(|fault| LockError::Id { session: session.to_owned(), fault })?;
        match self.sessions.get(&id) {
            Some(_) => Ok(()),
            None => Err(LockError::Unknown(session.to_owned())),
        }
    }

    /// Each write takes an index, also a write without a change.
    fn next(&mut self, now: Moment) -> At {
        self.index += 1;
        At { index: self.index, now }
    }
}
