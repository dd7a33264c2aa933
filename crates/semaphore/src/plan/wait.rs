//! Wait planning: what a client does that stands in the queue.

use super::draft::Draft;
use super::serve::{self, Served, Service};
use super::{Me, Memory, Next, Own, Plan, Want, Watch, Write, accept, join};
use crate::Op;
use crate::contender::WaiterState;
use crate::line::{Kind, Waiter};
use crate::record::Record;
use crate::settings::LimitPolicy;
use crate::sightings::Sight;
use crate::timing::UNSERVED;
use crate::view::{Contender, View, contender_key};

/// Plans of a waiter.
pub(super) fn wait(view: &View, record: Record, own: &Contender, me: Me<'_>, memory: Memory<'_>) -> Plan {
    let is_asked = own.is_asked();
    if view.is_listed() && !view.is_filtered() {
        return serve(view, record, own, me, memory);
    }
    if own.says_held() || is_asked {
        // Its slots were taken from it, or an offer is none any more; or others have asked for a sign of life.
        let mut draft = Draft::new(view, record, me.wall);
        draft.write_own(&me, me.entry(WaiterState::Waiting, Vec::new()));
        let own = if is_asked { Own::Answers } else { Own::Nothing };
        return Plan::waits(false, Next::Write(me.write(own, draft.write.ops)));
    }
    follow(view, &record, own, me, memory)
}

/// What a waiter answers to what its own contender key tells, without another read: it accepts an offer, or shows signs of life.
pub(crate) fn wake(own: &Contender, me: Me<'_>) -> Option<Write> {
    let entry = own.entry.as_ref().filter(|entry| entry.evicted_by.is_none())?;
    // Whether its limit is refused, or its group can go on, `.lock` tells.
    if me.settings.limit_policy == LimitPolicy::Refuse || me.together.is_some() {
        return None;
    }
    if entry.slots != me.settings.slots && entry.state == WaiterState::Offered {
        return None;
    }
    let is_asked = entry.asked && entry.state == WaiterState::Waiting;
    accept::offered(own, me).or_else(|| {
        let key = contender_key(&me.settings.prefix, me.session);
        let value = me.entry(WaiterState::Waiting, Vec::new()).encode();
        let answer = Op::Cas { key, value, flags: own.flags, index: own.modify_index };
        is_asked.then(|| me.write(Own::Answers, [answer]))
    })
}

/// Plans of a waiter that knows its own contender key and `.lock`, but not the other waiters.
///
/// As long as `.lock` counts waiters, each release serves one: the waiter watches its own contender key alone. Without any, the waiter names
/// itself, by a write that also lists the keys. One client of a crowd does, and the others see it.
fn follow(view: &View, record: &Record, own: &Contender, me: Me<'_>, memory: Memory<'_>) -> Plan {
    let room = record.free() >= me.settings.slots;
    let all = Plan::waits(room, Next::Read(Want::All));
    let watches: Vec<_> = Watch::contender(view, me.session).into_iter().collect();
    let waits = Plan::waits(room, Next::Wait(watches.clone()));
    let Some(hints) = &record.hints else { return all };
    let wish = me.entry(WaiterState::Waiting, Vec::new());
    let changed = own.entry.as_ref().is_none_or(|stored| !stored.agrees(&wish));
    // A waiter that is to stand before others tells so.
    let passes = me.settings.priority > hints.least && hints.waiting > 0 && !hints.next.contains(me.session);
    // It was named before it left the queue and came again.
    let came_again = hints.next.contains(me.session) && own.create_index > view.lock_index();
    if changed || passes || came_again || memory.sets_limit(record, me) || me.settings.try_once() {
        return all;
    }
    let dead = join::looks(record, me.session).iter().any(|holder| view.is_missing(holder));
    let due = memory.sightings.first_due(me.settings.prune_delay);
    if dead || due.is_some_and(|at| at <= me.now) {
        return all;
    }
    let waits = waits.again(due);
    let acts = memory.ends_soon || memory.yields_until.is_some_and(|until| until <= me.now);
    if record.is_attended() {
        let unserved = record.free() > 0 && memory.settled_at != Some(view.lock_index());
        let at = memory.sightings.since(Sight::Free, None).unwrap_or(me.now) + UNSERVED;
        return match unserved {
            false => waits,
            true if at <= me.now || memory.ends_soon => all,
            true => waits.again([at]),
        };
    }
    match (acts, record.free() > 0) {
        // Other clients may have arrived at the same time, and one of them is enough.
        (false, _) => Plan { next: Next::Yield(watches), ..waits },
        (true, true) => all,
        (true, false) => Plan { next: Next::Write(announce(view, record, me)), ..waits },
    }
}

/// Names the waiter in `.lock`, and lists the keys: others may have come before.
fn announce(view: &View, record: &Record, me: Me<'_>) -> Write {
    let mut draft = Draft::new(view, record.clone(), me.wall);
    let next = vec![me.session.clone(); me.settings.slots as usize];
    draft.hint(next, 1, me.settings.priority);
    draft.lists = true;
    draft.finish().unwrap_or_default()
}

/// Plans of a waiter that knows the whole queue: it serves all.
fn serve(view: &View, mut record: Record, own: &Contender, me: Me<'_>, memory: Memory<'_>) -> Plan {
    memory.set_limit(&mut record, me);
    let draft = Draft::new(view, record, me.wall);
    let served = serve::serve(draft, Service::of_waiter(me, memory.sightings));
    let room = served.leaves_a_turn();
    let Served { mut draft, share, line, again } = served;
    if draft.holds(me.session) {
        draft.delete_leftovers();
        return Plan::waits(true, Next::of(draft.finish())).again(again);
    }
    let wish = me.entry(WaiterState::Waiting, Vec::new());
    if own.says_held() || own.entry.as_ref().is_none_or(|stored| !stored.agrees(&wish)) {
        draft.write_own(&me, wish);
        draft.publish(&line);
        draft.lists = true;
    }
    if misses(&draft.record, &line, me) {
        draft.publish(&line);
    }
    draft.delete_leftovers();
    let next = match draft.finish() {
        Some(write) => Next::Write(write),
        None => Next::Wait(watches(view, &line, share.left_to.as_ref(), me)),
    };
    Plan::waits(room, next).again(again)
}

/// Whether `.lock` names waiters that this one stands ahead of, and not this one: it came with a priority, or was away.
fn misses(record: &Record, line: &[Waiter<'_>], me: Me<'_>) -> bool {
    let named = record.next();
    let behind = line.iter().skip_while(|one| one.session != me.session);
    !named.contains(me.session)
        && behind.filter(|one| one.kind == Kind::Ours).any(|one| named.contains(one.session))
}

/// The keys that a waiter watches: its own contender key. Where clients take part that take their slots themselves, nobody serves the
/// queue: the first of the others watches `.lock` and the client whose turn it is, and each waiter behind it the one ahead.
pub(super) fn watches(
    view: &View,
    line: &[Waiter<'_>],
    left_to: Option<&Waiter<'_>>,
    me: Me<'_>,
) -> Vec<Watch> {
    let own = Watch::contender(view, me.session);
    if !view.has_foreign() && me.together.is_none() {
        return own.into_iter().collect();
    }
    let ahead = line.iter().take_while(|one| one.session != me.session);
    let ahead = ahead.filter(|one| one.kind != Kind::Foreign).last();
    let other = ahead.or(left_to).and_then(|one| Watch::contender(view, one.session));
    // A group has to see each slot that becomes free.
    let record = Watch::lock(view).filter(|_| ahead.is_none() || me.together.is_some());
    own.into_iter().chain(other).chain(record).collect()
}
