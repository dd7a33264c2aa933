//! Single-key lock planning: the session that has the lock's key locked is the holder.
//!
//! One write acquires the lock and one releases it. Consul reports neither the waiters nor the end of a lock-delay, so there is no
//! queue. While Consul refuses the free lock, which is in lock-delay, the waiter tries again once a second.

use super::{Plan, PlanInput, PlanOutcome, Role, Write, watch};
use crate::Primitive;
use crate::contender::WaiterState;
use crate::record::LOCK_FLAGS;
use crate::view::View;
use crate::{Moment, Op, SessionId};

/// Plans to acquire the lock, to wait for it, or to hold it.
pub(super) fn hold(view: &View, input: PlanInput<'_>, now: Moment) -> Plan {
    let single = view.single();
    let watch = || single.map(|_| watch::lock(view)).into_iter().collect();
    let waiting =
        |room| Plan { role: Role::Head, watch: watch(), ..Plan::new(PlanOutcome::NotHolding { room }) };
    if view.is_owner(input.session) {
        return Plan { role: Role::Holding, watch: watch(), ..Plan::new(PlanOutcome::Holding) };
    }
    if let Some(wrong) = single.and_then(|single| single.wrong.as_ref()) {
        return Plan::blocked(view, wrong.clone());
    }
    if single.is_some_and(|single| single.owner.is_some()) {
        return waiting(false);
    }
    if let Some(until) = input.delayed_until.filter(|until| *until > now) {
        return Plan { recheck: Some(until), ..waiting(false) };
    }
    let key = view.lock_key();
    // Another process of the same session may acquire it at the same time, and Consul would accept both.
    let guard = match single {
        Some(single) => Op::CheckIndex { key: key.clone(), index: single.index },
        None => Op::CheckNotExists { key: key.clone() },
    };
    let op = Op::Lock { key, value: input.value(), flags: LOCK_FLAGS, session: input.session.clone() };
    Plan { write: Some(Write::of(vec![guard, op])), ..waiting(true) }
}

/// Plans to release the lock.
pub(super) fn leave(view: &View, input: PlanInput<'_>) -> Plan {
    let stays = matches!(input.settings.primitive, Primitive::Lock { stays: true });
    Plan { write: release(view, input.session, stays), ..Plan::new(PlanOutcome::NotHolding { room: false }) }
}

/// The transaction that releases the lock, and deletes its key unless it `stays`; `None` where the session does not have it.
pub(super) fn release(view: &View, session: &SessionId, stays: bool) -> Option<Write> {
    if !view.is_owner(session) {
        return None;
    }
    let (key, session) = (view.lock_key(), session.clone());
    // Guarded, so that a late write does not release a lock that was acquired since.
    let index = view.lock_index();
    let ops = if stays {
        // The value then names no holder.
        let unlock = Op::Unlock { key: key.clone(), value: Vec::new(), flags: LOCK_FLAGS, session };
        vec![Op::CheckIndex { key, index }, unlock]
    } else {
        vec![Op::CheckSession { key: key.clone(), session }, Op::DeleteCas { key, index }]
    };
    Some(Write::of(ops))
}

impl PlanInput<'_> {
    /// The value of the key, which names the holder for people.
    fn value(&self) -> Vec<u8> {
        self.entry(WaiterState::Held, vec![0]).encode()
    }
}
