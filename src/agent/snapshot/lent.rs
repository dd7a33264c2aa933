//! A semaphore that is taken on demand: what the keepers of its leases know of it, together.

use super::{holders, never_fits, waiters};
use crate::agent::leases::{Lease, Leases, Stage};
use crate::semaphore::{Keeper, Record, Settings};
use crate::status::{self, Mode, Semaphore, State};

/// `settings` are those that the next lease would have.
pub(super) fn semaphore(name: &str, settings: &Settings, leases: &Leases) -> Semaphore {
    let all: Vec<_> = leases.iter().filter(|(lease, _)| **lease.name() == *name).collect();
    let shown: Vec<_> = all.iter().map(|(lease, keeper)| shown(lease, keeper, leases)).collect();
    let any = |state| shown.iter().any(|lease| lease.state == state);
    let state = match (any(State::Held), any(State::Waiting)) {
        (true, _) => State::Held,
        (false, true) => State::Waiting,
        (false, false) => State::Idle,
    };
    // Whoever leaves looks no longer.
    let looking = all.iter().filter(|(lease, _)| !matches!(lease.stage(), Stage::Leaving { .. }));
    let machines: Vec<_> = looking.filter_map(|(_, keeper)| Some((*keeper, keeper.machine(name)?))).collect();
    let seen = machines.iter().filter_map(|(keeper, machine)| {
        let (view, at) = (machine.view()?, machine.listed_at()?);
        Some((view, at, *keeper))
    });
    let freshest = seen.max_by_key(|(view, at, _)| (view.lock_index(), *at));
    let record = freshest.and_then(|(view, ..)| view.record());
    let sessions: Vec<_> = machines.iter().filter_map(|(keeper, _)| keeper.session()).collect();
    let trouble = machines.iter().find_map(|(keeper, machine)| machine.trouble().or(keeper.trouble()));
    let too_small =
        record.filter(|_| any(State::Waiting)).and_then(|record| never_fits(record.limit, settings.slots));
    Semaphore {
        name: name.to_owned(),
        prefix: settings.prefix.clone(),
        required: false,
        mode: Mode::OnDemand,
        state,
        reason: too_small.or_else(|| trouble.map(str::to_owned)),
        slots: settings.slots,
        held_since: None,
        fencing_token: None,
        indexes: Vec::new(),
        limit: record.map_or(settings.limit, |record| record.limit),
        configured_limit: settings.limit,
        taken: record.map_or(0, Record::taken),
        holders: freshest
            .map(|(view, _, keeper)| holders(view, |one| sessions.contains(&one), keeper.who()))
            .unwrap_or_default(),
        waiters: freshest.map_or(0, |(view, ..)| waiters(view)),
        position: None,
        asked_at: None,
        seen_at: freshest.map(|(_, at, _)| at),
        leases: shown,
    }
}

fn shown(lease: &Lease, keeper: &Keeper, leases: &Leases) -> status::Lease {
    let session = keeper.session().map(ToString::to_string);
    let waiting = status::Lease {
        session,
        state: State::Waiting,
        indexes: Vec::new(),
        fencing_token: None,
        held_since: None,
        expires_at: None,
        asked_at: Some(lease.asked_at()),
    };
    match lease.stage() {
        Stage::Waiting => waiting,
        Stage::Held { granted, renewed } => status::Lease {
            session: Some(granted.session.to_string()),
            state: State::Held,
            indexes: granted.indexes.clone(),
            fencing_token: Some(granted.token),
            held_since: Some(granted.since),
            expires_at: leases.expires_at(*renewed, keeper),
            asked_at: None,
        },
        Stage::Leaving { .. } => status::Lease { state: State::Leaving, asked_at: None, ..waiting },
    }
}
