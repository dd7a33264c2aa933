//! The readiness file.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Entry, Kind, Mode, Snapshot, State};
use crate::schema_version::SchemaVersion;

/// The content of the readiness file: what the agent holds itself. Leases belong to their clients.
#[derive(Debug, Serialize)]
pub struct Readiness<'a> {
    schema_version: SchemaVersion,
    /// The agent's session.
    session: Option<&'a str>,
    /// The semaphores that are held, by their configured names.
    semaphores: BTreeMap<&'a str, HeldSemaphore<'a>>,
    /// The locks that are held, by their configured names.
    locks: BTreeMap<&'a str, HeldLock<'a>>,
}

/// A semaphore in the readiness file.
#[derive(Debug, Serialize)]
struct HeldSemaphore<'a> {
    kind: Kind,
    /// Its configured name.
    name: &'a str,
    /// Its key prefix.
    prefix: &'a str,
    /// Increases from grant to grant.
    fencing_token: Option<u64>,
    /// The indexes of the slots that are held.
    slot_indexes: &'a [u32],
    /// The first of them.
    slot: Option<u32>,
}

/// A lock in the readiness file.
#[derive(Debug, Serialize)]
struct HeldLock<'a> {
    kind: Kind,
    /// Its configured name.
    name: &'a str,
    /// Its key.
    key: &'a str,
    /// Increases from grant to grant.
    fencing_token: Option<u64>,
    /// How often it was acquired since its key was created (Consul's LockIndex).
    lock_index: Option<u64>,
}

impl Snapshot {
    /// The readiness file.
    pub fn readiness(&self) -> Readiness<'_> {
        let is_held = |entry: &Entry| entry.mode == Mode::Hold && entry.state == State::Held;
        let semaphores = self.semaphores.iter().filter(|one| is_held(&one.entry)).map(|one| {
            let name = one.entry.name.as_str();
            let held = HeldSemaphore {
                kind: Kind::Semaphore,
                name,
                prefix: &one.prefix,
                fencing_token: one.entry.fencing_token,
                slot_indexes: &one.slot_indexes,
                slot: one.slot_indexes.first().copied(),
            };
            (name, held)
        });
        let locks = self.locks.iter().filter(|one| is_held(&one.entry)).map(|one| {
            let name = one.entry.name.as_str();
            let held = HeldLock {
                kind: Kind::Lock,
                name,
                key: &one.key,
                fencing_token: one.entry.fencing_token,
                lock_index: one.lock_index,
            };
            (name, held)
        });
        Readiness {
            schema_version: SchemaVersion::default(),
            session: self.session.as_ref().map(|session| session.id.as_str()),
            semaphores: semaphores.collect(),
            locks: locks.collect(),
        }
    }
}
