//! Of one that holds.

use super::*;

/// Plans of one that holds: to look after the others.
pub(super) fn keep(view: &View, record: Record, me: Me<'_>, now: Moment) -> Plan {
    let role = Role::Holding;
    let mut plan = Plan { watch: watch::holding(view, me, now), role, ..Plan::new(Stand::Holding) };
    plan.recheck(watch::settles_at(me, role, now));
    let sets_limit = me.sets_limit(&record);
    if view.is_filtered() {
        // Nothing is written by what a token may not see all of.
        return plan;
    }
    if !view.is_complete() {
        // Slots that lie free although somebody is named: whoever was to let it in has not.
        let unserved = record.limit > record.taken() && (me.confirmed && record.attended || me.follows_up)
            || me.follows_up && view.has_foreign();
        plan.need = (sets_limit || unserved || is_left_alone(view, me.session)).then_some(Need::List);
        plan.write = sign(view, record.flags(), me, now).filter(|_| plan.need.is_none());
        return plan;
    }
    let signed = sign(view, record.flags(), me, now);
    let mut draft = Draft::new(view, record, me.wall, Some(me));
    if sets_limit {
        draft.record.limit = me.settings.limit;
    }
    plan.recheck(draft.prune(me, now));
    let line = queue::line(view, None);
    plan.recheck(draft.fill(&line, &[], me.free_since, now));
    if draft.changes() || draft.misleads(&line) {
        draft.publish(&line);
    }
    draft.tell_first(&line);
    draft.sweep();
    plan.write = draft.write(!sets_limit && !me.follows_up).or(signed);
    plan
}

/// What a holder's contender says for people, and the numbers of its slots, where whoever let it in by its name did not know. Nobody
/// else writes there but to take the slots away, so that the contender's own index is guard enough; and what is over soon need not
/// pay for it.
pub(super) fn sign(view: &View, flags: u64, me: Me<'_>, now: Moment) -> Option<Write> {
    let contender = view.contender(me.session)?;
    let mut entry = me.entry(Standing::Held, me.held?.to_vec());
    if let Some(stored) = &contender.entry {
        entry.since.clone_from(&stored.since);
        entry.beside = stored.beside;
    }
    let differs = contender.entry.as_ref() != Some(&entry);
    let settled = watch::settles_at(me, Role::Holding, now).is_none();
    (differs && settled).then(|| {
        let (key, index) = (view.contender_key(me.session), contender.modify_index);
        Write::of(vec![Op::Cas { key, value: entry.encode(), flags, index }])
    })
}

/// Whether a slotkeeper has let it in that knows of nobody who watches over all: that may have been this one.
pub(super) fn is_left_alone(view: &View, session: &SessionId) -> bool {
    view.contender(session).and_then(|one| one.entry.as_ref()).is_some_and(|entry| entry.lookout.is_none())
}
