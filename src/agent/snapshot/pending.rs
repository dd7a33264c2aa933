//! Entries of the configuration that the agent has not taken over yet.

use super::lent::Lent;
use crate::agent::leases::Leases;
use crate::config::{self, Mode};
use crate::control::request::Kind;
use crate::status::{self, Lock, Semaphore, State};

pub(super) fn semaphore(wanted: &config::Semaphore, reason: Option<&String>, leases: &Leases) -> Semaphore {
    Semaphore {
        name: wanted.name.clone(),
        prefix: wanted.prefix.clone(),
        required: wanted.required,
        mode: mode(wanted.mode),
        state: State::Pending,
        reason: reason.cloned(),
        deferred: None,
        slots: wanted.slots,
        held_since: None,
        fencing_token: None,
        indexes: Vec::new(),
        limit: None,
        configured_limit: wanted.limit,
        taken: None,
        holders: Vec::new(),
        holder_count: 0,
        waiters: 0,
        queue: Vec::new(),
        position: None,
        asked_at: None,
        seen_at: None,
        leases: Lent::of(Kind::Semaphore, &wanted.prefix, leases).shown,
    }
}

pub(super) fn lock(wanted: &config::Lock, reason: Option<&String>, leases: &Leases) -> Lock {
    Lock {
        name: wanted.name.clone(),
        key: wanted.key.clone(),
        required: wanted.required,
        mode: mode(wanted.mode),
        state: State::Pending,
        reason: reason.cloned(),
        deferred: None,
        held_since: None,
        fencing_token: None,
        lock_index: None,
        leader: None,
        asked_at: None,
        delayed_until: None,
        seen_at: None,
        leases: Lent::of(Kind::Lock, &wanted.key, leases).shown,
    }
}

fn mode(mode: Mode) -> status::Mode {
    match mode {
        Mode::Hold => status::Mode::Hold,
        Mode::OnDemand => status::Mode::OnDemand,
    }
}
