//! Single-key lock planning: the session that has the lock's key locked is the holder.
//!
//! One write acquires the lock and one releases it. Consul reports neither the waiters nor the end of a lock-delay, so there is no
//! queue. While Consul refuses the free lock, which is in lock-delay, the waiter tries again once a second.

use super::{Grant, Leave, Me, Memory, Next, Own, Plan, Standing, Watch, Write};
use crate::Primitive;
use crate::contender::WaiterState;
use crate::record::LOCK_FLAGS;
use crate::view::View;
use crate::{Op, SessionId};

/// Plans to acquire the lock, to wait for it, or to hold it.
pub(super) fn hold(view: &View, me: Me<'_>, memory: Memory<'_>) -> Plan {
    let single = view.single();
    let watch = Next::Wait(Watch::lock(view).into_iter().collect());
    if let Some(own) = single.filter(|_| view.is_owner(me.session)) {
        let token = own.entry.as_ref().and_then(|entry| entry.token).unwrap_or(own.index);
        let grant = Grant { token: Some(token), indexes: vec![0] };
        if !me.had || memory.held_since.is_some() {
            return Plan::new(Standing::Holds(grant), watch);
        }
        // An earlier process of the session may have been about to release it. Its late write fails when this one comes first.
        let guard = Op::CheckIndex { key: view.lock_key(), index: own.index };
        return Plan::waits(true, Next::Write(lock(view, me, guard, grant)));
    }
    if let Some(wrong) = single.and_then(|single| single.wrong.as_ref()) {
        return Plan::blocked(view, me, memory, wrong.clone());
    }
    if single.is_some_and(|single| single.owner.is_some()) {
        return Plan::waits(false, watch);
    }
    if let Some(until) = memory.delayed_until.filter(|until| *until > me.now) {
        return Plan::waits(false, watch).again([until]);
    }
    let key = view.lock_key();
    // Another process of the same session may acquire it at the same time, and Consul would accept both.
    let guard = match single {
        Some(single) => Op::CheckIndex { key: key.clone(), index: single.index },
        None => Op::CheckNotExists { key: key.clone() },
    };
    let grant = Grant { token: None, indexes: vec![0] };
    Plan::waits(true, Next::Write(lock(view, me, guard, grant)))
}

/// Locks the key. The value names the holder, for people, and its token, if it has one already.
fn lock(view: &View, me: Me<'_>, guard: Op, grant: Grant) -> Write {
    let mut entry = me.entry(WaiterState::Held, vec![0]);
    let stored = view.single().and_then(|single| single.entry.as_ref());
    if let Some(stored) = stored.filter(|_| grant.token.is_some()) {
        entry.since.clone_from(&stored.since);
    }
    entry.token = grant.token;
    let (key, value) = (view.lock_key(), entry.encode());
    let lock = Op::Lock { key, value, flags: LOCK_FLAGS, session: me.session.clone() };
    Write { own: Own::Holds(grant), ..Write::of(vec![guard, lock]) }
}

/// Plans to release the lock.
pub(super) fn leave(view: &View, me: Me<'_>) -> Leave {
    let stays = matches!(me.settings.primitive, Primitive::Lock { stays: true });
    release(view, me.session, stays).map_or(Leave::Gone, Leave::Write)
}

/// The transaction that releases the lock, and deletes its key unless it `stays`; `None` where the session does not have it.
pub(super) fn release(view: &View, session: &SessionId, stays: bool) -> Option<Write> {
    if !view.is_owner(session) {
        return None;
    }
    if stays {
        // The value then names no holder.
        return Some(unlock(view, session, Vec::new(), LOCK_FLAGS));
    }
    let (key, index) = (view.lock_key(), view.lock_index());
    let check = Op::CheckSession { key: key.clone(), session: session.clone() };
    Some(Write::of(vec![check, Op::DeleteCas { key, index }]))
}

/// Unlocks the key. Guarded, so that a late write does not release a lock that was acquired since.
pub(super) fn unlock(view: &View, session: &SessionId, value: Vec<u8>, flags: u64) -> Write {
    let (key, session) = (view.lock_key(), session.clone());
    let check = Op::CheckIndex { key: key.clone(), index: view.lock_index() };
    Write::of(vec![check, Op::Unlock { key, value, flags, session }])
}
