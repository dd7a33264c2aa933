//! Hold planning: what a holder writes for the waiters, and in its own contender key.

use super::{Draft, Plan, PlanInput, PlanOutcome, Refresh, Role, Write, watch};
use crate::contender::WaiterState;
use crate::queue;
use crate::record::Record;
use crate::view::View;
use crate::{Moment, Op};

/// Plans of a holder for the other participants.
pub(super) fn keep(view: &View, record: Record, input: PlanInput<'_>, now: Moment) -> Plan {
    let role = Role::Holding;
    let mut plan = Plan { watch: watch::holding(view, input, now), role, ..Plan::new(PlanOutcome::Holding) };
    plan.recheck(watch::settles_at(input, role, now));
    let sets_limit = input.sets_limit(&record);
    if view.is_filtered() {
        // Write nothing if keys are hidden from the token.
        return plan;
    }
    if !view.is_complete() {
        // Free slots beside a handoff list: the client that was to grant them has not.
        let unserved = record.limit > record.taken()
            && (input.confirmed && record.has_lookout || input.follows_up)
            || input.follows_up && view.has_foreign();
        plan.refresh = (sets_limit || unserved).then_some(Refresh::Prefix);
        plan.write = sign(view, record.flags(), input, now).filter(|_| plan.refresh.is_none());
        return plan;
    }
    let signed = sign(view, record.flags(), input, now);
    let mut draft = Draft::new(view, record, input.wall, Some(input));
    if sets_limit {
        draft.record.limit = input.settings.limit;
    }
    plan.recheck(draft.prune(input, now));
    let line = queue::in_order(view, None);
    plan.recheck(draft.grant_free_slots(&line, &[], input.free_since, now));
    if draft.changes() || draft.has_stale_handoffs(&line) {
        draft.publish_handoffs(&line);
    }
    draft.set_lookout(&line);
    draft.delete_leftovers();
    plan.write = draft.write(!sets_limit && !input.follows_up).or(signed);
    plan
}

/// Completes a holder's contender key, after a grant by name: the identity for people, and the slot indexes. Other clients write that key
/// only to take the slots away, so that its own index is a sufficient guard. A short hold does not pay for this write.
pub(super) fn sign(view: &View, flags: u64, input: PlanInput<'_>, now: Moment) -> Option<Write> {
    let contender = view.contender(input.session)?;
    let mut entry = input.entry(WaiterState::Held, input.held?.to_vec());
    if let Some(stored) = &contender.entry {
        entry.since.clone_from(&stored.since);
        entry.beside = stored.beside;
    }
    let differs = contender.entry.as_ref() != Some(&entry);
    let settled = watch::settles_at(input, Role::Holding, now).is_none();
    (differs && settled).then(|| {
        let (key, index) = (view.contender_key(input.session), contender.modify_index);
        Write::of(vec![Op::Cas { key, value: entry.encode(), flags, index }])
    })
}
