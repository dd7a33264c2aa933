//! Configured entries that the agent has not applied yet.

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
        slots: wanted.slots,
        configured_limit: wanted.limit,
        leases: Lent::of(Kind::Semaphore, &wanted.prefix, leases).shown,
        ..Semaphore::default()
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
        leases: Lent::of(Kind::Lock, &wanted.key, leases).shown,
        ..Lock::default()
    }
}

fn mode(mode: Mode) -> status::Mode {
    match mode {
        Mode::Hold => status::Mode::Hold,
        Mode::OnDemand => status::Mode::OnDemand,
    }
}
