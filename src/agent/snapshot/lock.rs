//! Single-key locks: those that the agent acquires itself, and on-demand ones.

use super::lent::Lent;
use super::{WaiterState, shown_session};
use crate::agent::leases::Leases;
use crate::config;
use crate::control::request::Kind;
use crate::status::{Leader, Lock, Mode, Moments, State};
use slotkeeper_semaphore::{Keeper, Machine, Phase, SessionId, SingleKeyLock};

/// A lock that the agent acquires itself.
pub(super) fn held(machine: &Machine, wanted: &config::Lock, keeper: &Keeper) -> Lock {
    let standing = WaiterState::of(machine);
    let single = machine.single().filter(|_| !standing.rests());
    let held =
        if let Phase::Held { since, token, .. } = machine.phase() { Some((since, token)) } else { None };
    let leader = single.and_then(|single| leader(single, |owner| keeper.session() == Some(owner)));
    let free = standing.state == State::Waiting && leader.is_none();
    Lock {
        name: wanted.name.clone(),
        key: wanted.key.clone(),
        required: wanted.required,
        mode: Mode::Hold,
        state: standing.state,
        fencing_token: held.map(|(_, token)| token),
        lock_index: single.map(|single| single.times_locked),
        leader,
        moments: Moments {
            held_since: held.map(|(since, _)| since),
            asked_at: machine.asked_at(),
            delayed_until: machine.delayed_until().filter(|_| free),
            seen_at: machine.listed_at().filter(|_| !standing.rests()),
            ..Moments::default()
        },
        reason: standing.why.or_else(|| machine.failure().or(keeper.failure()).map(str::to_owned)),
        ..Lock::default()
    }
}

/// An on-demand lock: the combined state of its leases.
pub(super) fn lent(name: &str, key: &str, leases: &Leases) -> Lock {
    let lent = Lent::of(Kind::Lock, key, leases);
    let freshest = lent.freshest();
    let single = freshest.and_then(|(view, ..)| view.single());
    Lock {
        name: name.to_owned(),
        key: key.to_owned(),
        mode: Mode::OnDemand,
        state: lent.state(),
        reason: lent.failure().map(str::to_owned),
        lock_index: single.map(|single| single.times_locked),
        leader: single.and_then(|single| leader(single, |owner| lent.has(owner))),
        moments: Moments { seen_at: freshest.map(|(_, at, _)| at), ..Moments::default() },
        leases: lent.shown,
        ..Lock::default()
    }
}

fn leader(single: &SingleKeyLock, mine: impl Fn(&SessionId) -> bool) -> Option<Leader> {
    let session = single.owner.as_ref()?;
    let who = single.entry.as_ref().map(|entry| entry.who.shown());
    Some(Leader { session: shown_session(session), mine: mine(session), who })
}
