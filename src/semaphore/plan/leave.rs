//! Of one that goes.

use super::*;

/// Plans to be gone: out of `.lock`, and the contender deleted, and the slots given on, in one transaction. No write
/// and no need: one is gone.
pub fn leave(view: &View, me: Me<'_>, now: Moment) -> Plan {
    if me.settings.is_lock() {
        return lock::leave(view, me);
    }
    let mut plan = Plan::new(Stand::Apart { room: false });
    if view.was_granted(me.session) {
        return Plan { need: Some(Need::Look), ..plan };
    }
    let contender = view.contender(me.session);
    let Some(stored) = view.record().filter(|record| record.slots_of(me.session) > 0) else {
        // Guarded: somebody may be letting it in at this moment.
        plan.write = contender.map(|one| {
            let key = view.contender_key(me.session);
            Write::of(vec![Op::DeleteCas { key, index: one.modify_index }])
        });
        return plan;
    };
    // Of one that has lost them already, those that its contender has.
    let own = view.entry_of(me.session).map(|entry| entry.indexes.as_slice()).unwrap_or_default();
    let freed = if me.indexes.is_empty() { own } else { me.indexes };
    let mut draft = Draft::new(view, stored.clone(), me.wall, Some(me));
    draft.take_out(me.session);
    if view.is_complete() {
        draft.prune(me, now);
        let line = line::line(view, None);
        draft.fill(&line, freed, me.free_since, now);
        draft.name_next(&line);
    } else {
        draft.fill_by_name(freed);
    }
    if let Some(contender) = contender {
        draft.delete(contender);
    }
    plan.write = draft.write(false);
    plan
}
