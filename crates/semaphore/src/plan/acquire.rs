//! Acquire planning: what a client writes that holds nothing yet, to acquire its slots or to wait in the queue.

use std::cmp::Ordering;

use super::draft::MAX_PASSING_GROUP;
use super::{
    Draft, GroupStep, KEY, Plan, PlanInput, PlanOutcome, Refresh, Role, Watch, Write, set_limit, too_large,
    watch,
};
use crate::contender::WaiterState;
use crate::queue;
use crate::queue::Waiter;
use crate::record::{Record, excerpt};
use crate::settings::Settings;
use crate::view::{Contender, View};
use crate::{Moment, SessionId, printable};

/// How one comes to stand in line.
enum EnqueueMode {
    /// It stands there, or takes the slot, or goes.
    Unchanged,
    /// To the end, by its own contender alone.
    Silent,
    /// And says so in `.lock`, and so competes with all who write there.
    Announced,
    /// It stands there, and wants something else now: with a place that compares so to the one it had.
    Changed(Ordering),
}

/// Plans of one that does not hold: to take the slots or to stand in line for them.
pub(super) fn ask(view: &View, record: Record, input: PlanInput<'_>, now: Moment) -> Plan {
    let mut plan = Plan::new(PlanOutcome::NotHolding { room: false });
    if record.slots_of(input.session) > 0 {
        // A share that is no whole slot goes in a transaction of its own. Put back in the same one, the record might
        // be what it was; Consul then leaves its index as it is, and a rival's check-and-set would not notice.
        let mut draft = Draft::new(view, record, input.wall, Some(input));
        draft.remove_holder(input.session);
        plan.outcome = PlanOutcome::NotHolding { room: draft.free() >= input.settings.slots };
        plan.write = draft.write(false);
        return plan;
    }
    if let Some(why) = occupied(view, input.session) {
        let watch = Watch {
            key: view.contender_key(input.session),
            after: view.index_of(&view.contender_key(input.session)),
        };
        return Plan { watch: vec![watch], ..Plan::new(PlanOutcome::Blocked(why)) };
    }
    if view.contender(input.session).is_some() && !view.is_ordered() {
        return Plan { refresh: Some(Refresh::LockKey), ..plan };
    }
    let in_line = input.is_in_line(view);
    if let Some(write) = take_like_foreign(view, &record, input) {
        return Plan {
            role: Role::Head,
            write: Some(write),
            ..Plan::new(PlanOutcome::NotHolding { room: true })
        };
    }
    if in_line && input.together.is_none() && !view.is_complete() && !input.sets_limit(&record) {
        return follow(view, &record, input, now);
    }
    if input.together.is_some_and(|together| together.step == GroupStep::Enqueue) {
        return requeue(view, record, input);
    }
    let mut line = queue::in_order(view, Some(input.own()));
    let place = line.iter().position(|one| one.session == input.session).unwrap_or_default();
    let heads = line.iter().take(place).all(Waiter::is_foreign);
    watch_line(&mut plan, view, &record, &line[..place], input, now);
    if !view.is_complete() {
        let free = record.limit > record.taken();
        plan.refresh = (!in_line || heads && free || input.sets_limit(&record)).then_some(Refresh::Prefix);
        if heads {
            plan.check_missing_holders(view, &record, input, now);
        }
        return plan;
    }
    if input.together.is_some() {
        return take_together(view, record, input, line.split_at(place + 1), now, plan);
    }
    let comes = !view.contender(input.session).is_some_and(Contender::says_waiting);
    // One with a priority may have passed somebody who came a moment ago.
    let to_the_end =
        comes && place + 1 == line.len() && input.settings.priority <= 0 && !input.settings.try_once();
    // One that left the line and comes again may still be named in its old place.
    let misnamed = comes && record.next.contains(input.session);
    if input.lost_cas_race {
        if !to_the_end || misnamed {
            // Others took what was seen; whether there is more is not known.
            return Plan {
                outcome: PlanOutcome::NotHolding { room: true },
                refresh: Some(Refresh::Prefix),
                ..plan
            };
        }
        let mut draft = Draft::new(view, record, input.wall, Some(input));
        draft.write_own_and_list(input.entry(WaiterState::Waiting, Vec::new()));
        plan.write = draft.write(false);
        return plan;
    }
    let sets_limit = input.sets_limit(&record);
    let mut draft = Draft::new(view, record, input.wall, Some(input));
    if sets_limit {
        draft.record.limit = input.settings.limit;
    }
    plan.recheck(draft.prune(input, now));
    plan.recheck(draft.grant_free_slots(&line, &[], input.free_since, now));
    let granted = draft.has_granted(input.session);
    if draft.left_to_foreign {
        // Where it leaves the line instead, its turn is over.
        plan.watch.extend(watch::turn(view, &line[..place]));
    }
    plan.outcome = PlanOutcome::NotHolding { room: granted || draft.left_to_foreign };
    if draft.own_is_too_large {
        // It keeps its place: whoever leaves next may make room for it.
        plan.outcome = PlanOutcome::Blocked(too_large(view, &draft.record));
    }
    let stays = granted || !input.settings.try_once();
    // Behind one that `.lock` names, or where all is taken, whoever is let in before it stood there before: it has to
    // ask nobody.
    let first_watcher = !line[..place].iter().any(Waiter::can_watch);
    let behind_named = line[..place].iter().any(Waiter::is_grantable);
    // Where it tries once, and stands in line while others have their turn, it says what it wants by now as any other.
    let coming = if in_line || granted || comes && !stays {
        EnqueueMode::Unchanged
    } else if !comes {
        let had = view.contender(input.session);
        let fits = |slots: u32| slots <= draft.record.limit;
        let entry = had.and_then(|had| had.entry.as_ref());
        let fitted = entry.is_some_and(|entry| fits(entry.slots));
        let was_alone = entry.is_some_and(|entry| entry.together.is_empty());
        let moves = input.settings.priority.cmp(&had.map_or(0, Contender::priority));
        // Who wants more than the limit is passed over, and a party by whoever holds what it wants; who does so no more, or is of
        // none any more, stands ahead of others again.
        EnqueueMode::Changed(moves.then(fits(input.settings.slots).cmp(&fitted)).then(true.cmp(&was_alone)))
    } else if to_the_end && (behind_named || draft.free() == 0) {
        EnqueueMode::Silent
    } else {
        EnqueueMode::Announced
    };
    let behind = if view.has_foreign() { line[place + 1..].to_vec() } else { Vec::new() };
    let says_so = match coming {
        EnqueueMode::Unchanged => stays && draft.has_stale_handoffs(&line),
        EnqueueMode::Silent | EnqueueMode::Changed(Ordering::Equal) => false,
        EnqueueMode::Announced | EnqueueMode::Changed(Ordering::Greater | Ordering::Less) => true,
    };
    if says_so || draft.changes() || misnamed {
        let named = match coming {
            EnqueueMode::Unchanged
            | EnqueueMode::Announced
            | EnqueueMode::Changed(Ordering::Equal | Ordering::Greater) => stays,
            // Others may have come as quietly between our read and our write, and stand ahead.
            EnqueueMode::Silent => false,
            // Nor does it know who else it is behind now: its name goes, and comes again when it has listed.
            EnqueueMode::Changed(Ordering::Less) => {
                line.truncate(place);
                false
            }
        };
        line.retain(|one| named || one.session != input.session);
        draft.publish_handoffs(&line);
    }
    if matches!(coming, EnqueueMode::Announced | EnqueueMode::Changed(Ordering::Greater))
        || !in_line && granted
    {
        draft.notify_passed(&behind);
    }
    let entry = || input.entry(WaiterState::Waiting, Vec::new());
    match coming {
        EnqueueMode::Unchanged => {}
        EnqueueMode::Silent => draft.write_own_and_list(entry()),
        EnqueueMode::Changed(Ordering::Equal) => draft.write_own(entry()),
        // Whoever planned without it must be too late. Somebody may have come quietly since the listing, behind one who
        // has left meanwhile. For one with another priority, what `.lock` names is in the order that was.
        EnqueueMode::Announced | EnqueueMode::Changed(Ordering::Greater) => {
            overtakes(&mut draft);
            draft.write_own_and_list(entry());
        }
        EnqueueMode::Changed(Ordering::Less) => {
            falls_back(&mut draft, view);
            draft.write_own_and_list(entry());
        }
    }
    if plan.role == Role::Head && in_line {
        draft.set_lookout(&line);
    }
    draft.delete_leftovers();
    // Where nobody watches over those who wait, and only parties stand ahead, which name nobody, it says at once that it does.
    let leads = first_watcher && !view.has_lookout() && draft.is_new_lookout(input.session);
    plan.write = draft.write(in_line && plan.role != Role::Head && !heads && !sets_limit && !leads);
    plan
}

/// Plans of one in line that knows its own contender and `.lock`, and not who else is there.
///
/// Where somebody watches over all who wait, whoever releases sees to it that this one is let in in its time: it waits for nothing
/// but its own contender. Where nobody does, it does so itself, and learns by the same write who is there: of a crowd that comes at
/// once one does, and the others see that it has.
fn follow(view: &View, record: &Record, input: PlanInput<'_>, now: Moment) -> Plan {
    let mut plan = Plan::new(PlanOutcome::NotHolding { room: false });
    let line = queue::in_order(view, Some(input.own()));
    let place = line.iter().position(|one| one.session == input.session).unwrap_or_default();
    watch_line(&mut plan, view, record, &line[..place], input, now);
    let left = record.limit.saturating_sub(record.taken());
    let free = left >= input.settings.slots;
    if record.has_lookout {
        // Whoever freed them has let in nobody, or the first one has gone without a word.
        let first = record.first_handoff();
        let unserved = match queue::handoffs(record).first() {
            Some((_, slots)) => *slots <= left,
            None => free,
        };
        let gone = first.is_some_and(|first| view.is_missing(first));
        let sees = plan.role == Role::Head && gone || first == Some(input.session);
        match input.yield_until.filter(|_| unserved && plan.role != Role::Head) {
            Some(until) if until > now => plan.recheck(Some(until)),
            Some(_) => plan.refresh = Some(Refresh::LockKey),
            // Nobody releases what nobody holds.
            None => plan.refresh = (left > 0 && (sees && free || unserved)).then_some(Refresh::Prefix),
        }
    } else {
        plan.outcome = PlanOutcome::NotHolding { room: free };
        let shared = view.is_listed() && view.has_foreign();
        let heads = line.iter().take(place).all(Waiter::is_foreign);
        match input.yield_until {
            // Others have come at the same time, and one of them watches over all.
            Some(until) if until > now => plan.recheck(Some(until)),
            Some(_) => plan.refresh = Some(Refresh::LockKey),
            // Somebody else is at the front.
            None if shared => plan.refresh = (heads && free).then_some(Refresh::Prefix),
            // Clients of another kind may be there.
            None if !record.ours => plan.refresh = Some(Refresh::Prefix),
            None => {
                let mut draft = Draft::new(view, record.clone(), input.wall, Some(input));
                draft.become_lookout(input.entry(WaiterState::Waiting, Vec::new()));
                plan.write = draft.write(false);
            }
        }
    }
    if plan.role == Role::Head && plan.refresh.is_none() && plan.write.is_none() {
        plan.check_missing_holders(view, record, input, now);
    }
    plan
}

/// Where clients of another kind take part, the first of ours in line takes a slot that it sees free in `.lock`, in one round trip as those
/// do, whoever holds besides: it was the first when it listed, and whoever of ours has come to stand ahead of it since has changed its
/// contender ([`Draft::pass`]). `None` where one of the others stands ahead that may have its turn.
fn take_like_foreign(view: &View, record: &Record, input: PlanInput<'_>) -> Option<Write> {
    let shared = view.has_foreign() && view.is_surely_listed(input.session);
    // Whoever comes has the usual priority, and passes one with less without a word; who wants several slots may be passed over.
    let Settings { slots, priority, .. } = input.settings;
    let plain = input.together.is_none() && *slots == 1 && *priority >= 0;
    let asks = !input.sets_limit(record) && !input.settings.try_once() && input.is_in_line(view);
    if !shared || !plain || !asks || view.is_complete() || view.is_filtered() {
        return None;
    }
    let line = queue::in_order(view, Some(input.own()));
    let place = line.iter().position(|one| one.session == input.session)?;
    let mut ahead = line.iter().take(place);
    let mut draft = Draft::new(view, record.clone(), input.wall, Some(input));
    if !ahead.all(Waiter::is_idle) || !draft.take(line.get(place)?) {
        return None;
    }
    draft.write(false)
}

/// What one in line waits for, in which role.
fn watch_line(
    plan: &mut Plan,
    view: &View,
    record: &Record,
    ahead: &[Waiter<'_>],
    input: PlanInput<'_>,
    now: Moment,
) {
    let heads = ahead.iter().all(Waiter::is_foreign);
    let told = view.is_lookout(input.session);
    let named = record.has_lookout && record.next.last() == Some(input.session);
    let by_name = input.together.is_none() && (record.has_lookout || record.ours && !view.has_foreign());
    if told || named || !by_name && heads && view.is_listed() {
        plan.role = Role::Head;
        plan.recheck(watch::settles_at(input, Role::Head, now));
    }
    plan.watch = if by_name {
        watch::named(view, plan.role, input, now)
    } else {
        watch::waiting(view, ahead, plan.role, input, now)
    };
}

/// Sees to it that the one who stands behind by now is known to whoever passes it: where clients of another kind take part, `.lock`
/// names nobody, and one that comes ahead would pass the one whom it took for the first behind it.
fn falls_back(draft: &mut Draft<'_>, view: &View) {
    if view.has_foreign() {
        overtakes(draft);
    } else {
        draft.only_if_lock_stands();
    }
}

/// Sees to it that a write which was planned without this waiter comes too late: `.lock` becomes another one.
fn overtakes(draft: &mut Draft<'_>) {
    if !draft.changes() {
        draft.record.touch();
    }
    draft.only_if_lock_stands();
}

/// Why a session cannot enter, where another one has its contender key locked. The session is not replaced by a new one: it
/// may hold slots elsewhere.
fn occupied(view: &View, session: &SessionId) -> Option<String> {
    let occupied = view.in_place_of(session).filter(|_| view.contender(session).is_none())?;
    let (key, by) = (printable(&occupied.key, KEY), excerpt(occupied.by.as_ref()?.as_str()));
    Some(format!(
        "the contender key {key} of this agent's own session is locked by another session, {by}; delete the key, or destroy \
         that session"
    ))
}

/// Plans of a party's member while not all of them stand in line since the same write: to stand there anew.
fn requeue(view: &View, record: Record, input: PlanInput<'_>) -> Plan {
    let mut plan = Plan::new(PlanOutcome::NotHolding { room: false });
    if !view.is_complete() {
        plan.refresh = Some(Refresh::Prefix);
        return plan;
    }
    let line = queue::in_order(view, Some(input.own()));
    let place = line.iter().position(|one| one.session == input.session).unwrap_or_default();
    // An earlier process may have been in line by itself and for other slots. Nobody may hand off to it by that name.
    let misnamed = record.next.contains(input.session);
    let mut draft = Draft::new(view, record, input.wall, Some(input));
    if view.contender(input.session).is_some() {
        draft.only_if_lock_stands();
    }
    if input.together.is_some_and(|together| together.prefixes.len() <= MAX_PASSING_GROUP) {
        draft.notify_passed(&line[place + 1..]);
    }
    draft.requeue(input.entry(WaiterState::Waiting, Vec::new()));
    // It may stand at the head for long, and a key that does not exist cannot be waited for.
    draft.create_lock();
    // As for any other: whoever comes to the end of a line has to ask nobody.
    let last = line.last().is_some_and(|one| one.session == input.session);
    if misnamed || !last || line.len() == 1 && draft.free() > 0 {
        draft.publish_handoffs(&line);
    }
    plan.write = draft.write_jointly();
    plan
}

/// Plans of a party's member in line, or of one that tries once: to take its slots when all the others can. It looks
/// after those ahead of it only where they could not, since all holders are dead, and where it tries once.
fn take_together(
    view: &View,
    record: Record,
    input: PlanInput<'_>,
    (line_to_me, behind): (&[Waiter<'_>], &[Waiter<'_>]),
    now: Moment,
    mut plan: Plan,
) -> Plan {
    if input.sets_limit(&record) {
        // At once: those ahead may be waiting for it.
        plan.write = set_limit(view, input.settings.limit, input.wall, now).ok().flatten();
        return plan;
    }
    let ahead = line_to_me.split_last().map_or(&[][..], |(_, ahead)| ahead);
    let stands = view.contender(input.session).is_some_and(Contender::says_waiting);
    if stands && !input.is_in_line(view) && !input.settings.try_once() {
        // What it wants has changed. Others go by what it says, and would wait for it while it waits for them.
        let mut draft = Draft::new(view, record, input.wall, Some(input));
        draft.publish_handoffs(&queue::in_order(view, Some(input.own())));
        falls_back(&mut draft, view);
        draft.notify_passed(behind);
        draft.write_own(input.entry(WaiterState::Waiting, Vec::new()));
        plan.write = draft.write(false);
        return plan;
    }
    let mut tidies = Draft::new(view, record, input.wall, Some(input));
    plan.recheck(tidies.prune(input, now));
    let mut takes = tidies.clone();
    plan.recheck(takes.grant_free_slots(line_to_me, &[], input.free_since, now));
    plan.outcome =
        PlanOutcome::NotHolding { room: takes.has_granted(input.session) || takes.left_to_foreign };
    if takes.own_is_too_large {
        plan.outcome = PlanOutcome::Blocked(too_large(view, &takes.record));
    }
    if !stands {
        // One that tries once has not stood in line.
        takes.notify_passed(behind);
    }
    plan.write = if takes.has_granted_only(input.session) {
        takes.write_jointly()
    } else if !stands && takes.has_granted(input.session) {
        // It watches no key, so that nobody would wake it: it lets in those ahead, whose slots are free, and then looks again. It will
        // not stay in line, so that another one is named as the one that watches over all.
        tidies.grant_free_slots(ahead, &[], input.free_since, now);
        let others: Vec<_> = ahead.iter().chain(behind).copied().collect();
        tidies.publish_handoffs(&others);
        tidies.write(false)
    } else {
        tidies.write(true)
    };
    plan
}
