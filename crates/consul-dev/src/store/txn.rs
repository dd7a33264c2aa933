//! Transactions: all operations are applied, or none is and each fault is reported.

use std::sync::Arc;

use super::Store;
use super::kv::{At, Entry, Write};
use super::session::NotAnId;
use slotkeeper_semaphore::Moment;

/// One operation.
#[derive(Clone, Debug)]
pub enum Op {
    Set(Write),
    Cas(Write, u64),
    Lock(Write, String),
    Unlock(Write, String),
    Get(String),
    GetTree(String),
    Delete(String),
    DeleteCas(String, u64),
    DeleteTree(String),
    CheckSession(String, String),
    CheckIndex(String, u64),
    CheckNotExists(String),
    /// Refused before any operation is checked.
    Refused(OpError),
    /// Refused when the operation is applied.
    Fails(OpError),
}

impl Op {
    /// Whether a transaction with this operation is a write, which takes an entry of Consul's log.
    pub fn writes(&self) -> bool {
        match self {
            Self::Set(_)
            | Self::Cas(..)
            | Self::Lock(..)
            | Self::Unlock(..)
            | Self::Delete(_)
            | Self::DeleteCas(..)
            | Self::DeleteTree(_) => true,
            Self::Get(_)
            | Self::GetTree(_)
            | Self::CheckSession(..)
            | Self::CheckIndex(..)
            | Self::CheckNotExists(_)
            | Self::Refused(_)
            | Self::Fails(_) => false,
        }
    }

    /// The write of the operation, if it has a value.
    pub fn written(&self) -> Option<&Write> {
        match self {
            Self::Set(write) | Self::Cas(write, _) | Self::Lock(write, _) | Self::Unlock(write, _) => {
                Some(write)
            }
            Self::Get(_)
            | Self::GetTree(_)
            | Self::Delete(_)
            | Self::DeleteCas(..)
            | Self::DeleteTree(_)
            | Self::CheckSession(..)
            | Self::CheckIndex(..)
            | Self::CheckNotExists(_)
            | Self::Refused(_)
            | Self::Fails(_) => None,
        }
    }

    /// Whether the operation lacks its key. Only a deletion may have an empty key: that of the whole store.
    fn lacks_key(&self) -> bool {
        match self {
            Self::Set(write) | Self::Cas(write, _) | Self::Lock(write, _) | Self::Unlock(write, _) => {
                write.key.is_empty()
            }
            Self::Get(key)
            | Self::GetTree(key)
            | Self::Delete(key)
            | Self::DeleteCas(key, _)
            | Self::CheckSession(key, _)
            | Self::CheckIndex(key, _)
            | Self::CheckNotExists(key) => key.is_empty(),
            Self::DeleteTree(_) | Self::Refused(_) | Self::Fails(_) => false,
        }
    }
}

/// Why an operation, and so its transaction, is not applied. The texts are Consul's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpError {
    #[error("Must provide key")]
    NoKey,
    #[error("unknown KV verb {0:?}")]
    UnknownVerb(String),
    #[error("unknown KV operation: {0}")]
    UnknownOperation(String),
    #[error("failed to lock key {0:?} due to lock delay")]
    LockDelay(String),
    #[error("failed to set key {0:?}, index is stale")]
    SetStale(String),
    #[error("failed to delete key {0:?}, index is stale")]
    DeleteStale(String),
    #[error("failed to lock key {0:?}, lock is already held")]
    Held(String),
    #[error("failed to unlock key {0:?}, lock isn't held, or is held by another session")]
    NotHeld(String),
    #[error("key {0:?} doesn't exist")]
    Missing(String),
    #[error("key {0:?} exists")]
    Exists(String),
    #[error("failed to check session, key {0:?} doesn't exist")]
    SessionOfMissing(String),
    #[error("failed session check for key {key:?}, current session {current:?} != {expected:?}")]
    OtherSession { key: String, current: String, expected: String },
    #[error("failed to check index, key {0:?} doesn't exist")]
    IndexOfMissing(String),
    #[error("failed index check for key {key:?}, current modify index {current} != {expected}")]
    OtherIndex { key: String, current: u64, expected: u64 },
    #[error(transparent)]
    Session(#[from] LockError),
}

/// Why the request for a lock is invalid. The texts are Consul's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LockError {
    #[error("missing session")]
    NoSession,
    #[error("invalid session {0:?}")]
    Unknown(String),
    #[error("failed session lookup: index error: {fault}")]
    Id { session: String, fault: NotAnId },
}

impl OpError {
    /// Whether it is detected before any operation is checked.
    pub fn is_found_at_once(&self) -> bool {
        match self {
            Self::NoKey | Self::UnknownOperation(_) | Self::LockDelay(_) => true,
            Self::UnknownVerb(_)
            | Self::SetStale(_)
            | Self::DeleteStale(_)
            | Self::Held(_)
            | Self::NotHeld(_)
            | Self::Missing(_)
            | Self::Exists(_)
            | Self::SessionOfMissing(_)
            | Self::OtherSession { .. }
            | Self::IndexOfMissing(_)
            | Self::OtherIndex { .. }
            | Self::Session(_) => false,
        }
    }
}

/// The result of an operation: the entry that it read or wrote.
#[derive(Clone, Debug)]
pub struct Found {
    pub entry: Arc<Entry>,
    /// Whether the answer shows the value. Only that of a read does.
    pub with_value: bool,
}

/// Why a transaction is refused: the positions of the operations, and the reasons.
pub type Faults = Vec<(usize, OpError)>;

impl Store {
    /// Applies all of `ops`, or none.
    pub fn txn(&mut self, ops: Vec<Op>, now: Moment) -> Result<Vec<Found>, Faults> {
        let refused = |(at, op)| self.refuses(op, now).map(|error| (at, error));
        let faults: Faults = ops.iter().enumerate().filter_map(refused).collect();
        if !faults.is_empty() {
            return Err(faults);
        }
        let writes = ops.iter().any(Op::writes);
        let at = if writes { self.next(now) } else { At { index: self.index(), now } };
        self.keys.begin();
        let mut found = Vec::new();
        let mut faults = Faults::new();
        for (position, op) in ops.into_iter().enumerate() {
            match self.apply(op, at) {
                Ok(some) => found.extend(some),
                Err(error) => faults.push((position, error)),
            }
        }
        if faults.is_empty() {
            self.keys.commit();
            Ok(found)
        } else {
            self.keys.roll_back();
            Err(faults)
        }
    }

    /// The faults that the leader detects before it applies any operation.
    fn refuses(&self, op: &Op, now: Moment) -> Option<OpError> {
        if op.lacks_key() {
            return Some(OpError::NoKey);
        }
        if let Op::Refused(error) = op {
            return Some(error.clone());
        }
        if let Op::Lock(write, _) = op
            && self.lock_is_delayed(&write.key, now)
        {
            return Some(OpError::LockDelay(write.key.clone()));
        }
        None
    }

    fn apply(&mut self, op: Op, at: At) -> Result<Vec<Found>, OpError> {
        let written = |entry| vec![Found { entry, with_value: false }];
        match op {
            Op::Set(write) => Ok(written(self.keys.set(write, at))),
            Op::Cas(write, expected) => {
                let key = write.key.clone();
                self.keys.cas(write, expected, at).map(written).ok_or(OpError::SetStale(key))
            }
            Op::Lock(write, session) => {
                self.may_lock(&session)?;
                let key = write.key.clone();
                self.keys.lock(write, &session, at).map(written).ok_or(OpError::Held(key))
            }
            Op::Unlock(write, session) => {
                if session.is_empty() {
                    return Err(LockError::NoSession.into());
                }
                let key = write.key.clone();
                self.keys.unlock(write, &session, at).map(written).ok_or(OpError::NotHeld(key))
            }
            Op::Delete(key) => {
                self.keys.delete(&key, at);
                Ok(Vec::new())
            }
            Op::DeleteCas(key, expected) => match self.keys.delete_cas(&key, expected, at) {
                true => Ok(Vec::new()),
                false => Err(OpError::DeleteStale(key)),
            },
            Op::DeleteTree(prefix) => {
                self.keys.delete_tree(&prefix, at);
                Ok(Vec::new())
            }
            Op::Get(key) => match self.keys.get(&key) {
                Some(entry) => Ok(vec![Found { entry: Arc::clone(entry), with_value: true }]),
                None => Err(OpError::Missing(key)),
            },
            Op::GetTree(prefix) => {
                let shown = |entry: &Arc<Entry>| Found { entry: Arc::clone(entry), with_value: true };
                Ok(self.keys.list(&prefix).map(shown).collect())
            }
            Op::CheckSession(key, expected) => self.check_session(key, expected).map(written),
            Op::CheckIndex(key, expected) => self.check_index(key, expected).map(written),
            Op::CheckNotExists(key) => match self.keys.get(&key) {
                Some(_) => Err(OpError::Exists(key)),
                None => Ok(Vec::new()),
            },
            Op::Refused(error) | Op::Fails(error) => Err(error),
        }
    }

    fn check_session(&self, key: String, expected: String) -> Result<Arc<Entry>, OpError> {
        let Some(entry) = self.keys.get(&key) else { return Err(OpError::SessionOfMissing(key)) };
        let current = entry.session.clone().unwrap_or_default();
        if current != expected {
            return Err(OpError::OtherSession { key, current, expected });
        }
        Ok(Arc::clone(entry))
    }

    fn check_index(&self, key: String, expected: u64) -> Result<Arc<Entry>, OpError> {
        let Some(entry) = self.keys.get(&key) else { return Err(OpError::IndexOfMissing(key)) };
        let current = entry.modify_index;
        if current != expected {
            return Err(OpError::OtherIndex { key, current, expected });
        }
        Ok(Arc::clone(entry))
    }
}
