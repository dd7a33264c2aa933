//! Planning for a member of an acquire group: its slots are acquired in one transaction with those of all other members.

use super::draft::Draft;
use super::serve::{self, Service};
use super::{GroupStep, Me, Memory, Next, Plan, Want, wait};
use crate::contender::WaiterState;
use crate::line;
use crate::record::Record;
use crate::view::{Contender, View};

/// Plans of a member without slots. It knows the whole queue before it decides.
pub(super) fn ask(view: &View, mut record: Record, me: Me<'_>, memory: Memory<'_>) -> Plan {
    if !view.is_listed() || view.is_filtered() {
        return Plan::waits(false, Next::Read(Want::All));
    }
    // It is set at once, not by the write that has to wait for the other members.
    let sets = memory.sets_limit(&record, me);
    memory.set_limit(&mut record, me);
    let own = view.contender(me.session);
    let enqueues = me.together.is_some_and(|together| together.step == GroupStep::Enqueue);
    if enqueues && !sets {
        let mut draft = Draft::new(view, record, me.wall);
        draft.rejoin(&me, me.entry(WaiterState::Waiting, Vec::new()));
        // It leaves free slots alone while other members lack theirs, and a newcomer takes what `.lock` counts no waiter for.
        if !draft.record.is_attended() || draft.record.next().contains(me.session) {
            draft.publish(&line::in_order(view, None));
            // Its own write leaves it out of the count. It is a waiter if a free slot serves it.
            let fits = me.settings.slots <= draft.record.limit;
            if let Some(hints) = draft.record.hints.as_mut().filter(|_| fits) {
                hints.waiting += 1;
            }
            draft.creates = true;
        }
        draft.write.joint = true;
        return Plan::waits(false, Next::of(draft.finish()));
    }
    let draft = Draft::new(view, record.clone(), me.wall);
    let served = serve::serve(draft, Service::of_waiter(me, memory.sightings));
    let (mut others, line) = (served.draft, served.line);
    let is_mine = |one: &line::Waiter<'_>| one.session == me.session;
    let first = served.share.left_to.as_ref().is_some_and(is_mine) && served.share.served.is_empty();
    let wish = me.entry(WaiterState::Waiting, Vec::new());
    let stale = |one: &Contender| one.entry.as_ref().is_none_or(|stored| !stored.agrees(&wish));
    if let Some(own) = own.filter(|own| !me.settings.try_once() && stale(own)) {
        // Other clients read the wish from the contender key, and would wait for this one while it waits for them.
        if own.says_held() {
            others.rejoin(&me, wish);
        } else {
            others.write_own(&me, wish);
        }
        others.publish(&line);
    } else if first && !sets && others.write.asked.is_empty() {
        let mut takes = Draft::new(view, record, me.wall);
        takes.prune(view.holders().into_iter().filter(|one| !others.holds(one)));
        if takes.take_free(&me) {
            takes.publish(&line);
            takes.write.joint = true;
            return Plan::waits(true, Next::of(takes.finish())).again(served.again);
        }
    }
    others.delete_leftovers();
    let next = match others.finish() {
        Some(write) => Next::Write(write),
        None => Next::Wait(wait::watches(view, &line, None, me)),
    };
    Plan::waits(first, next).again(served.again)
}
