//! On-demand semaphores and locks: the combined state of their leases.

use std::collections::BTreeSet;

use super::{holder_count, holders, limit, never_fits, queue, taken};
use crate::agent::labels;
use crate::agent::leases::{Lease, Leases, Stage};
use crate::control::request::Kind;
use crate::status::{self, Moments, Semaphore, State};
use slotkeeper_semaphore::{Keeper, Machine, Moment, SessionId, View};

/// The leases of one semaphore or lock.
pub(super) struct Lent<'a> {
    /// The leases as the status shows them.
    pub(super) shown: Vec<status::Lease>,
    /// The machines that still read it.
    machines: Vec<(&'a Keeper, &'a Machine)>,
    /// Their sessions.
    sessions: BTreeSet<&'a SessionId>,
}

impl<'a> Lent<'a> {
    /// The leases at that prefix or key, whatever the entry's name was at the grant.
    pub(super) fn of(kind: Kind, key: &str, leases: &'a Leases) -> Self {
        let id = labels::id(kind, key);
        let all: Vec<_> = leases.of(&id).filter(|(_, keeper)| keeper.machine(&id).is_some()).collect();
        let shown = all.iter().map(|(lease, keeper)| shown(lease, keeper, leases)).collect();
        // A leaving machine does not read any more.
        let leaves = |lease: &Lease| matches!(lease.stage(), Stage::Evicted { .. } | Stage::Leaving { .. });
        let looking = all.iter().filter(|(lease, _)| !leaves(lease));
        let machines: Vec<_> =
            looking.filter_map(|(_, keeper)| Some((*keeper, keeper.machines().next()?))).collect();
        let sessions = machines.iter().filter_map(|(keeper, _)| keeper.session()).collect();
        Self { shown, machines, sessions }
    }

    pub(super) fn any(&self, state: State) -> bool {
        self.shown.iter().any(|lease| lease.state == state)
    }

    pub(super) fn state(&self) -> State {
        match (self.any(State::Held), self.any(State::Waiting)) {
            (true, _) => State::Held,
            (false, true) => State::Waiting,
            (false, false) => State::Idle,
        }
    }

    /// The latest complete view, its time and its keeper.
    pub(super) fn freshest(&self) -> Option<(&'a View, Moment, &'a Keeper)> {
        let seen = self.machines.iter().filter_map(|(keeper, machine)| {
            let (view, at) = (machine.view()?, machine.listed_at()?);
            Some((view, at, *keeper))
        });
        seen.max_by_key(|(view, at, _)| (view.lock_index(), *at))
    }

    /// Whether the session belongs to one of the leases.
    pub(super) fn has(&self, session: &SessionId) -> bool {
        self.sessions.contains(session)
    }

    /// The part that semaphores and locks have in common. Without a `reason`, the failure of a request is one.
    pub(super) fn entry(self, configured: status::Entry, reason: Option<String>) -> status::Entry {
        let failure =
            || self.machines.iter().find_map(|(keeper, machine)| machine.failure().or(keeper.failure()));
        status::Entry {
            state: self.state(),
            reason: reason.or_else(|| failure().map(str::to_owned)),
            moments: Moments { seen_at: self.freshest().map(|(_, at, _)| at), ..Moments::default() },
            leases: self.shown,
            ..configured
        }
    }
}

/// An on-demand semaphore.
pub(super) fn semaphore(configured: Semaphore, leases: &Leases) -> Semaphore {
    let lent = Lent::of(Kind::Semaphore, &configured.prefix, leases);
    let freshest = lent.freshest();
    let waiting = freshest.filter(|_| lent.any(State::Waiting));
    let too_small = waiting.and_then(|(view, ..)| never_fits(view, configured.slots));
    Semaphore {
        limit: freshest.and_then(|(view, ..)| limit(view, configured.configured_limit)),
        slots_taken: freshest.and_then(|(view, ..)| taken(view)),
        holders: freshest
            .map(|(view, _, keeper)| holders(view, |one| lent.has(one), keeper.who()))
            .unwrap_or_default(),
        holder_count: freshest.and_then(|(view, ..)| holder_count(view)),
        queue_length: freshest.map(|(view, ..)| view.waiting()),
        queue: freshest
            .map(|(view, _, keeper)| queue(view, |one| lent.has(one), keeper.who()))
            .unwrap_or_default(),
        entry: lent.entry(configured.entry, too_small),
        ..configured
    }
}

fn shown(lease: &Lease, keeper: &Keeper, leases: &Leases) -> status::Lease {
    let session = keeper.session().map(ToString::to_string);
    let waiting = status::Lease {
        session,
        state: State::Waiting,
        moments: Moments { asked_at: Some(lease.asked_at()), ..Moments::default() },
        ..status::Lease::default()
    };
    match lease.stage() {
        Stage::Waiting => waiting,
        Stage::Held { granted, renewed } => status::Lease {
            session: Some(granted.session.to_string()),
            state: State::Held,
            slot_indexes: granted.indexes.clone(),
            fencing_token: Some(granted.token),
            moments: Moments {
                held_since: Some(granted.since),
                expires_at: leases.expires_at(*renewed, keeper),
                ..Moments::default()
            },
            ..waiting
        },
        Stage::Evicted { .. } | Stage::Leaving { .. } => {
            status::Lease { state: State::Leaving, moments: Moments::default(), ..waiting }
        }
    }
}
