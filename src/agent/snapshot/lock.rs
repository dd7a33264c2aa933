//! Single-key locks: those that the agent acquires itself, and on-demand ones.

use super::lent::Lent;
use super::{WaiterState, failure, shown_session, since};
use crate::agent::leases::Leases;
use crate::control::request::Kind;
use crate::status::{Health, Leader, Lock, State};
use slotkeeper_semaphore::{Keeper, Machine, SessionId, SingleKeyLock};

/// Consul refuses a free lock without saying for how long. Its maximum for a lock-delay is 60 s.
const IN_LOCK_DELAY: &str = "free, but in the lock-delay of its last holder, at most 60s";

/// A lock that the agent acquires itself.
pub(super) fn held(configured: Lock, machine: &Machine, keeper: &Keeper) -> Lock {
    let waiter = WaiterState::of(machine);
    let single = machine.single().filter(|_| !waiter.rests());
    let leader = single.and_then(|single| leader(single, |owner| keeper.session() == Some(owner)));
    let free = waiter.state == State::Waiting && leader.is_none();
    let delayed = || Some(IN_LOCK_DELAY.to_owned()).filter(|_| free && machine.is_delayed());
    let reason = waiter.why.clone().or_else(|| failure(machine, keeper)).or_else(delayed);
    let entry = waiter.entry(configured.entry, machine, reason);
    Lock { entry, lock_index: single.map(|single| single.times_locked), leader, ..configured }
}

/// An on-demand lock: the combined state of its leases.
pub(super) fn lent(configured: Lock, leases: &Leases) -> Lock {
    let lent = Lent::of(Kind::Lock, &configured.key, leases);
    let single = lent.freshest().and_then(|(view, ..)| view.single());
    Lock {
        lock_index: single.map(|single| single.times_locked),
        leader: single.and_then(|single| leader(single, |owner| lent.has(owner))),
        entry: lent.entry(configured.entry, None),
        ..configured
    }
}

fn leader(single: &SingleKeyLock, mine: impl Fn(&SessionId) -> bool) -> Option<Leader> {
    let session = single.owner.as_ref()?;
    let entry = single.entry.as_ref();
    Some(Leader {
        session: shown_session(session),
        mine: mine(session),
        foreign: entry.is_none(),
        health: Health::Live,
        since: entry.and_then(since),
        age_seconds: None,
        who: entry.map(|entry| entry.who.shown()),
    })
}
