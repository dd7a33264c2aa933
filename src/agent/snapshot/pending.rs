//! Configured entries that the agent has not applied yet.

use super::lent::Lent;
use crate::agent::leases::Leases;
use crate::config::{self, Mode};
use crate::status::{self, Lock, Semaphore, State};

pub(super) fn semaphore(wanted: &config::Semaphore, reason: Option<&String>, leases: &Leases) -> Semaphore {
    Semaphore {
        entry: entry(&wanted.entry, reason, leases),
        prefix: wanted.entry.key.clone(),
        slots: wanted.slots,
        configured_limit: wanted.limit,
        ..Semaphore::default()
    }
}

pub(super) fn lock(wanted: &config::Entry, reason: Option<&String>, leases: &Leases) -> Lock {
    Lock { entry: entry(wanted, reason, leases), key: wanted.key.clone(), ..Lock::default() }
}

fn entry(wanted: &config::Entry, reason: Option<&String>, leases: &Leases) -> status::Entry {
    status::Entry {
        name: wanted.name.clone(),
        required: wanted.required,
        mode: match wanted.mode {
            Mode::Hold => status::Mode::Hold,
            Mode::OnDemand => status::Mode::OnDemand,
        },
        state: State::Pending,
        reason: reason.cloned(),
        leases: Lent::of(wanted.kind, &wanted.key, leases).shown,
        ..status::Entry::default()
    }
}
