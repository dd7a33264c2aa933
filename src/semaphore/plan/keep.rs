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
        let unserved = record.limit > record.taken()
            && (me.confirmed && !record.next.is_empty() || me.follows_up)
            || me.follows_up && view.has_foreign();
        plan.need = (sets_limit || unserved).then_some(Need::List);
        if plan.need.is_none() {
            plan.write = sign(view, &record, me);
        }
        return plan;
    }
    let signed = sign(view, &record, me);
    let mut draft = Draft::new(view, record, me.wall, Some(me));
    if sets_limit {
        draft.record.limit = me.settings.limit;
    }
    plan.recheck(draft.prune(me, now));
    let line = line::line(view, None);
    plan.recheck(draft.fill(&line, &[], me.free_since, now));
    if draft.changes() || draft.misleads(&line) {
        draft.publish(&line);
    }
    draft.tell_first(&line);
    draft.sweep();
    plan.write = draft.write(!sets_limit && !me.follows_up).or(signed);
    plan
}

/// What a holder's contender says for people, and the numbers of its slots, where whoever let it in did not know.
fn sign(view: &View, record: &Record, me: Me<'_>) -> Option<Write> {
    if !me.confirmed {
        // `.lock` may have moved on.
        return None;
    }
    let contender = view.contender(me.session)?;
    let mut entry = me.entry(Standing::Held, me.held?.to_vec());
    if let Some(stored) = &contender.entry {
        entry.since.clone_from(&stored.since);
    }
    let differs = contender.entry.as_ref() != Some(&entry);
    differs.then(|| {
        let (key, index) = (view.contender_key(me.session), contender.modify_index);
        // Whatever says `held` stands in `.lock`: others go by that.
        let still_in = Op::CheckIndex { key: view.lock_key(), index: view.lock_index() };
        let own = Op::Cas { key, value: entry.encode(), flags: record.flags(), index };
        Write { ops: vec![still_in, own], pruned: 0, tidy: true, joint: false }
    })
}
