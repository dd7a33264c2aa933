//! Release planning: what a client writes when it leaves, as a holder or as a waiter.

use super::draft::handoffs::HandOff;
use super::{Draft, Plan, PlanInput, PlanOutcome, Refresh, Write, lock};
use crate::contender::WaiterState;
use crate::queue;
use crate::settings::Settings;
use crate::view::View;
use crate::{Moment, Op, SessionId};

/// Plans to leave. One transaction takes the session out of `.lock`, deletes its contender key and hands its slots off. A plan
/// without a write and without a refresh means that the client has left.
pub fn leave(view: &View, input: PlanInput<'_>, now: Moment) -> Plan {
    if input.settings.is_lock() {
        return lock::leave(view, input);
    }
    let mut plan = Plan::new(PlanOutcome::NotHolding { room: false });
    if view.was_granted(input.session) {
        return Plan { refresh: Some(Refresh::LockKey), ..plan };
    }
    let contender = view.contender(input.session);
    let Some(stored) = view.record().filter(|record| record.slots_of(input.session) > 0) else {
        return leave_line(view, input, now);
    };
    // If the slots are lost already, the contender key still has the indexes.
    let own = view.entry_of(input.session).map(|entry| entry.indexes.as_slice()).unwrap_or_default();
    // If the contender key is gone, other clients took the indexes for free. Only a listing shows the free ones.
    let known = contender.is_some() || view.is_complete();
    let held = input.held.unwrap_or_default();
    let freed = if held.is_empty() || !known { own } else { held };
    let mut draft = Draft::new(view, stored.clone(), input.wall, Some(input));
    draft.remove_holder(input.session);
    if view.is_complete() {
        draft.prune(input, now);
        let line = queue::in_order(view, None);
        draft.grant_free_slots(&line, freed, input.free_since, now);
        draft.publish_handoffs(&line);
    } else if draft.hand_off(freed) == HandOff::Unknown {
        plan.refresh = Some(Refresh::Prefix);
        return plan;
    }
    if let Some(contender) = contender {
        draft.delete(contender);
    }
    plan.write = draft.write(false);
    plan
}

/// Plans of a waiter that leaves: its contender key is deleted, and if it was the lookout, another waiter becomes it. A client that has
/// left serves a waiter that joined meanwhile.
fn leave_line(view: &View, input: PlanInput<'_>, now: Moment) -> Plan {
    let mut plan = Plan::new(PlanOutcome::NotHolding { room: false });
    let contender = view.contender(input.session);
    let watches = must_list_to_leave(view, input.session, input.settings);
    if contender.is_some() && watches && !view.is_complete() && !view.is_filtered() {
        plan.refresh = Some(Refresh::Prefix);
        return plan;
    }
    // Guarded, since another client may grant the slot at this moment. Consul accepts any index for a key that is gone, which may have been
    // a holder's before.
    let deleted = contender.map(|one| {
        let (key, index) = (view.contender_key(input.session), one.modify_index);
        [Op::CheckIndex { key: key.clone(), index }, Op::DeleteCas { key, index }]
    });
    let tends = (view.is_complete() && (watches || input.follows_up)).then(|| {
        let mut draft = Draft::new(view, view.record()?.clone(), input.wall, Some(input));
        draft.prune(input, now);
        let line: Vec<_> =
            queue::in_order(view, None).into_iter().filter(|one| one.session != input.session).collect();
        draft.grant_free_slots(&line, &[], input.free_since, now);
        if draft.changes() || draft.has_stale_handoffs(&line) || draft.record.next.contains(input.session) {
            draft.publish_handoffs(&line);
        }
        draft.set_lookout(&line);
        draft.write(false)
    });
    plan.write = match (tends.flatten(), deleted) {
        (None, None) => None,
        (None, Some(delete)) => Some(Write::of(delete.into())),
        (Some(write), None) => Some(write),
        (Some(mut write), Some(delete)) => {
            write.ops.splice(0..0, delete);
            Some(write)
        }
    };
    plan
}

/// Whether a waiter has to list before it leaves: it is the lookout, or it wants several slots and may have kept free ones from the waiters
/// behind it. Beside foreign clients it may be the first slotkeeper client.
pub fn must_list_to_leave(view: &View, session: &SessionId, settings: &Settings) -> bool {
    let entry = view.contender(session).and_then(|one| one.entry.as_ref());
    let told = view.is_lookout(session);
    let shared =
        view.is_listed() && view.has_foreign() && entry.is_some_and(|entry| entry.together.is_empty());
    told || shared
        || settings.slots > 1
        || view.record().is_some_and(|record| record.next.last() == Some(session))
}

/// The transaction by which the lookout hands its task on and stays a waiter; `None` if the session is not the lookout.
pub fn resign(view: &View, input: PlanInput<'_>) -> Option<Write> {
    let record = view.record().filter(|record| record.has_lookout && view.is_lookout(input.session))?;
    let mut draft = Draft::new(view, record.clone(), input.wall, Some(input));
    draft.record.has_lookout = false;
    draft.write_own(input.entry(WaiterState::Waiting, Vec::new()));
    draft.write(false)
}

/// The transaction that releases what a session still has, after its process has ended; `None` if it has nothing. It removes the session
/// from `.lock`, deletes its contender key and hands its slots off. The key of a lock is deleted unless it `stays`. Nothing is written if the
/// session no longer has its key locked.
pub fn release(view: &View, session: &SessionId, stays: bool, wall: &str, now: Moment) -> Option<Write> {
    if view.single().is_some() {
        return lock::release(view, session, stays);
    }
    let contender = view.contender(session)?;
    let key = view.contender_key(session);
    let check = Op::CheckSession { key: key.clone(), session: session.clone() };
    let taken_out = view.record().filter(|record| record.slots_of(session) > 0).and_then(|record| {
        let freed = contender.entry.as_ref().map(|entry| entry.indexes.as_slice()).unwrap_or_default();
        let mut draft = Draft::new(view, record.clone(), wall, None);
        draft.remove_holder(session);
        // By the record before the write, in which the session is a holder and not in the queue.
        let line = queue::in_order(view, None);
        draft.grant_free_slots(&line, freed, None, now);
        draft.publish_handoffs(&line);
        draft.write(false)
    });
    // A waiter has a contender key alone, unless another client grants it a slot at this moment.
    let index = contender.modify_index;
    let gone = match &taken_out {
        Some(_) => Op::Delete { key },
        None => Op::DeleteCas { key, index },
    };
    let changes = taken_out.map(|write| write.ops).unwrap_or_default();
    Some(Write::of(std::iter::once(check).chain(changes).chain([gone]).collect()))
}
