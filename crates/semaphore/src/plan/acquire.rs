//! Acquire planning: what a client without slots writes, to acquire them or to wait in the queue.

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
use crate::{Moment, Obstacle, SessionId, printable};

/// How a client enters the queue.
#[derive(Clone, Copy)]
enum EnqueueMode {
    /// It does not: it is in the queue, is granted its slots, or leaves.
    Unchanged,
    /// At the end, by a write of the own contender key alone.
    Silent,
    /// By a write of `.lock` too, which competes with all other writes of `.lock`.
    Announced,
    /// It is in the queue but wants something else now. The ordering compares its new position to the old one.
    Changed(Ordering),
}

impl EnqueueMode {
    /// Whether planned writes of other clients must come too late, because the client moves ahead of others.
    fn overtakes(self) -> bool {
        matches!(self, Self::Announced | Self::Changed(Ordering::Greater))
    }
}

/// Plans of a client without slots: to acquire them, or to wait in the queue.
pub(super) fn ask(view: &View, record: Record, input: PlanInput<'_>, now: Moment) -> Plan {
    let mut plan = Plan::new(PlanOutcome::NotHolding { room: false });
    if record.slots_of(input.session) > 0 {
        return give_up_partial_hold(view, record, input);
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
    if let Some(write) = take_like_foreign(view, &record, input) {
        return Plan {
            role: Role::Head,
            write: Some(write),
            ..Plan::new(PlanOutcome::NotHolding { room: true })
        };
    }
    let in_queue = input.is_in_line(view);
    if in_queue && input.together.is_none() && !view.is_complete() && !input.sets_limit(&record) {
        return follow(view, &record, input, now);
    }
    if input.together.is_some_and(|together| together.step == GroupStep::Enqueue) {
        return requeue(view, record, input);
    }
    let queue = queue::in_order(view, Some(input.own()));
    let place = queue.iter().position(|one| one.session == input.session).unwrap_or_default();
    let ahead = &queue[..place];
    let heads = ahead.iter().all(Waiter::is_foreign);
    watch_line(&mut plan, view, &record, ahead, input, now);
    if !view.is_complete() {
        let free = record.limit > record.taken();
        plan.refresh = (!in_queue || heads && free || input.sets_limit(&record)).then_some(Refresh::Prefix);
        if heads {
            plan.check_missing_holders(view, &record, input, now);
        }
        return plan;
    }
    if input.together.is_some() {
        return take_together(view, record, input, queue.split_at(place + 1), now, plan);
    }
    let position = Position::of(view, &record, input, &queue, place);
    if input.lost_cas_race {
        return retry_silently(view, record, input, &position, plan);
    }
    grant_or_enqueue(view, record, input, (queue, position), now, plan)
}

/// Releases a share of the wanted slots. A transaction of its own does it: put back in the same one, the record might be what it
/// was. Consul then leaves its index as it is, and a rival's check-and-set would not notice.
fn give_up_partial_hold(view: &View, record: Record, input: PlanInput<'_>) -> Plan {
    let mut draft = Draft::new(view, record, input.wall, Some(input));
    draft.remove_holder(input.session);
    let room = draft.free() >= input.settings.slots;
    Plan { write: draft.write(false), ..Plan::new(PlanOutcome::NotHolding { room }) }
}

/// Where a client is in the queue, or will be when it has entered it.
struct Position {
    /// How many waiters are ahead.
    place: usize,
    /// Its contender key says that it waits for what it wants now.
    in_queue: bool,
    /// Its contender key does not say that it waits.
    is_new: bool,
    /// It enters the queue behind all others.
    at_end: bool,
    /// It has left the queue before, and `.lock` still names it at its old position.
    misnamed: bool,
    /// All waiters ahead are foreign clients.
    heads: bool,
}

impl Position {
    fn of(view: &View, record: &Record, input: PlanInput<'_>, queue: &[Waiter<'_>], place: usize) -> Self {
        let is_new = !view.contender(input.session).is_some_and(Contender::says_waiting);
        // With a priority, a client may have passed a waiter that came a moment ago.
        let plain = input.settings.priority <= 0 && !input.settings.try_once();
        Self {
            place,
            in_queue: input.is_in_line(view),
            is_new,
            at_end: is_new && place + 1 == queue.len() && plain,
            misnamed: is_new && record.next.contains(input.session),
            heads: queue.iter().take(place).all(Waiter::is_foreign),
        }
    }
}

/// Plans after a check-and-set of a newcomer that came too late: to enqueue at the end without another read.
fn retry_silently(
    view: &View,
    record: Record,
    input: PlanInput<'_>,
    position: &Position,
    plan: Plan,
) -> Plan {
    if !position.at_end || position.misnamed {
        // Other clients acquired the slots that were free. Only a listing tells whether there are more.
        let outcome = PlanOutcome::NotHolding { room: true };
        return Plan { outcome, refresh: Some(Refresh::Prefix), ..plan };
    }
    let mut draft = Draft::new(view, record, input.wall, Some(input));
    draft.write_own_and_list(input.entry(WaiterState::Waiting, Vec::new()));
    Plan { write: draft.write(false), ..plan }
}

/// Plans of a client that knows the whole queue: to grant all free slots, and to enqueue where none are left for it.
fn grant_or_enqueue(
    view: &View,
    record: Record,
    input: PlanInput<'_>,
    (mut queue, position): (Vec<Waiter<'_>>, Position),
    now: Moment,
    mut plan: Plan,
) -> Plan {
    let Position { place, in_queue, misnamed, heads, .. } = position;
    let sets_limit = input.sets_limit(&record);
    let mut draft = Draft::new(view, record, input.wall, Some(input));
    if sets_limit {
        draft.record.limit = input.settings.limit;
    }
    plan.recheck(draft.prune(input, now));
    plan.recheck(draft.grant_free_slots(&queue, &[], input.free_since, now));
    let granted = draft.has_granted(input.session);
    if draft.left_to_foreign {
        // A foreign client that leaves the queue ends its turn.
        plan.watch.extend(watch::turn(view, &queue[..place]));
    }
    plan.outcome = PlanOutcome::NotHolding { room: granted || draft.left_to_foreign };
    if draft.own_is_too_large {
        // The waiter keeps its position: the next release may make room for it.
        plan.outcome = PlanOutcome::Blocked(too_large(view, &draft.record));
    }
    let stays = granted || !input.settings.try_once();
    let first_watcher = !queue[..place].iter().any(Waiter::can_watch);
    let mode = enqueue_mode(view, &draft, input, &queue, &position);
    let behind = if view.has_foreign() { queue[place + 1..].to_vec() } else { Vec::new() };
    let announces = match mode {
        EnqueueMode::Unchanged => stays && draft.has_stale_handoffs(&queue),
        EnqueueMode::Silent | EnqueueMode::Changed(Ordering::Equal) => false,
        EnqueueMode::Announced | EnqueueMode::Changed(Ordering::Greater | Ordering::Less) => true,
    };
    if announces || draft.changes() || misnamed {
        let named = match mode {
            EnqueueMode::Unchanged
            | EnqueueMode::Announced
            | EnqueueMode::Changed(Ordering::Equal | Ordering::Greater) => stays,
            // Other clients may have enqueued as silently between the read and the write, and be ahead.
            EnqueueMode::Silent => false,
            // The waiters ahead are unknown after the move back. A later listing brings the name back.
            EnqueueMode::Changed(Ordering::Less) => {
                queue.truncate(place);
                false
            }
        };
        queue.retain(|one| named || one.session != input.session);
        draft.publish_handoffs(&queue);
    }
    if mode.overtakes() || !in_queue && granted {
        draft.notify_passed(&behind);
    }
    enqueue(&mut draft, view, input, mode);
    if plan.role == Role::Head && in_queue {
        draft.set_lookout(&queue);
    }
    draft.delete_leftovers();
    // Without a lookout, and with only acquire groups ahead, which name no waiter, the client becomes the lookout at once.
    let leads = first_watcher && !view.has_lookout() && draft.is_new_lookout(input.session);
    plan.write = draft.write(in_queue && plan.role != Role::Head && !heads && !sets_limit && !leads);
    plan
}

fn enqueue_mode(
    view: &View,
    draft: &Draft<'_>,
    input: PlanInput<'_>,
    queue: &[Waiter<'_>],
    position: &Position,
) -> EnqueueMode {
    let granted = draft.has_granted(input.session);
    // A client that tries once leaves, unless it is in the queue while foreign clients have their turn.
    let leaves = position.is_new && !granted && input.settings.try_once();
    if position.in_queue || granted || leaves {
        return EnqueueMode::Unchanged;
    }
    if position.is_new {
        // Behind a named waiter, or without a free slot, every client that is granted a slot first was ahead already.
        let behind_named = queue[..position.place].iter().any(Waiter::is_grantable);
        let silent = position.at_end && (behind_named || draft.free() == 0);
        return if silent { EnqueueMode::Silent } else { EnqueueMode::Announced };
    }
    let had = view.contender(input.session);
    let fits = |slots: u32| slots <= draft.record.limit;
    let entry = had.and_then(|had| had.entry.as_ref());
    let fitted = entry.is_some_and(|entry| fits(entry.slots));
    let was_alone = entry.is_some_and(|entry| entry.together.is_empty());
    let moves = input.settings.priority.cmp(&had.map_or(0, Contender::priority));
    // A waiter is passed over while it wants more slots than the limit or is in an acquire group. Without that, it is ahead
    // of others again.
    EnqueueMode::Changed(moves.then(fits(input.settings.slots).cmp(&fitted)).then(true.cmp(&was_alone)))
}

/// Writes the own contender key as the mode asks for.
fn enqueue(draft: &mut Draft<'_>, view: &View, input: PlanInput<'_>, mode: EnqueueMode) {
    let entry = || input.entry(WaiterState::Waiting, Vec::new());
    match mode {
        EnqueueMode::Unchanged => {}
        EnqueueMode::Silent => draft.write_own_and_list(entry()),
        EnqueueMode::Changed(Ordering::Equal) => draft.write_own(entry()),
        // A write that was planned without this waiter must come too late. Waiters may have enqueued silently since the
        // listing, behind one that has left. After a change of priority, `.lock` names the waiters in the former order.
        EnqueueMode::Announced | EnqueueMode::Changed(Ordering::Greater) => {
            overtakes(draft);
            draft.write_own_and_list(entry());
        }
        EnqueueMode::Changed(Ordering::Less) => {
            falls_back(draft, view);
            draft.write_own_and_list(entry());
        }
    }
}

/// Plans of a waiter that knows its own contender key and `.lock`, but not the other waiters.
///
/// With a lookout, each release grants this waiter its slots in its turn: the waiter watches its own contender key alone. Without
/// one, the waiter becomes the lookout, by a write that also lists the keys. One client of a crowd does, and the others see it.
fn follow(view: &View, record: &Record, input: PlanInput<'_>, now: Moment) -> Plan {
    let mut plan = Plan::new(PlanOutcome::NotHolding { room: false });
    let line = queue::in_order(view, Some(input.own()));
    let place = line.iter().position(|one| one.session == input.session).unwrap_or_default();
    watch_line(&mut plan, view, record, &line[..place], input, now);
    let left = record.limit.saturating_sub(record.taken());
    let free = left >= input.settings.slots;
    if record.has_lookout {
        // The release has granted nothing, or the first waiter's session has ended.
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
            // No release follows while no client holds a slot.
            None => plan.refresh = (left > 0 && (sees && free || unserved)).then_some(Refresh::Prefix),
        }
    } else {
        plan.outcome = PlanOutcome::NotHolding { room: free };
        let shared = view.is_listed() && view.has_foreign();
        let heads = line.iter().take(place).all(Waiter::is_foreign);
        match input.yield_until {
            // Beside foreign clients there is no lookout: the first waiter acts.
            _ if shared && heads && free => plan.refresh = Some(Refresh::Prefix),
            // Other clients have arrived at the same time, and one of them becomes the lookout.
            Some(until) if until > now => plan.recheck(Some(until)),
            Some(_) => plan.refresh = Some(Refresh::LockKey),
            // Another client may be the head.
            None if shared => {}
            // Foreign clients may be in the queue.
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

/// Beside foreign clients, the first slotkeeper client of the queue acquires a slot that is free in `.lock`, in one round trip as those
/// do. It was the first when it listed, and a slotkeeper client that got ahead of it since has changed its contender key
/// ([`Draft::pass`]). `None` if a foreign client ahead may have its turn.
fn take_like_foreign(view: &View, record: &Record, input: PlanInput<'_>) -> Option<Write> {
    let shared = view.has_foreign() && view.is_surely_listed(input.session);
    // A newcomer of the usual priority passes a lower one without a write. A waiter for several slots may be passed over.
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

/// Sets the role of a waiter, and the keys that it watches.
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

/// Makes the move back known to clients that pass this waiter. Beside foreign clients `.lock` names no waiter, and a newcomer
/// would notify the waiter that it takes for the first behind it.
fn falls_back(draft: &mut Draft<'_>, view: &View) {
    if view.has_foreign() {
        overtakes(draft);
    } else {
        draft.only_if_lock_stands();
    }
}

/// Changes `.lock`, so that a write which was planned without this waiter comes too late.
fn overtakes(draft: &mut Draft<'_>) {
    if !draft.changes() {
        draft.record.touch();
    }
    draft.only_if_lock_stands();
}

/// Why a session cannot enqueue: another session has its contender key locked. A new session is no way out, as this one may
/// hold slots elsewhere.
fn occupied(view: &View, session: &SessionId) -> Option<Obstacle> {
    let occupied = view.in_place_of(session).filter(|_| view.contender(session).is_none())?;
    let (key, by) = (printable(&occupied.key, KEY), excerpt(occupied.by.as_ref()?.as_str()));
    let why = format!(
        "the contender key {key} of this agent's own session is locked by another session, {by}; delete the key, or destroy \
         that session"
    );
    Some(Obstacle::other_content(true, why))
}

/// Plans of an acquire group whose members are not in their queues by the same write: to enqueue anew.
fn requeue(view: &View, record: Record, input: PlanInput<'_>) -> Plan {
    let mut plan = Plan::new(PlanOutcome::NotHolding { room: false });
    if !view.is_complete() {
        plan.refresh = Some(Refresh::Prefix);
        return plan;
    }
    let line = queue::in_order(view, Some(input.own()));
    let place = line.iter().position(|one| one.session == input.session).unwrap_or_default();
    // An earlier process may have waited alone and for other slots. No handoff may go to that name.
    let misnamed = record.next.contains(input.session);
    let mut draft = Draft::new(view, record, input.wall, Some(input));
    if view.contender(input.session).is_some() {
        draft.only_if_lock_stands();
    }
    if input.together.is_some_and(|together| together.prefixes.len() <= MAX_PASSING_GROUP) {
        draft.notify_passed(&line[place + 1..]);
    }
    draft.requeue(input.entry(WaiterState::Waiting, Vec::new()));
    // The head may wait for long, and needs a `.lock` that exists to watch it.
    draft.create_lock();
    // At the end of a queue no other client has to be named anew.
    let last = line.last().is_some_and(|one| one.session == input.session);
    if misnamed || !last || line.len() == 1 && draft.free() > 0 {
        draft.publish_handoffs(&line);
    }
    plan.write = draft.write_jointly();
    plan
}

/// Plans of a group's member that waits or tries once: to acquire its slots when all other members can. It grants slots to
/// the waiters ahead only if all holders are dead, or if it tries once.
fn take_together(
    view: &View,
    record: Record,
    input: PlanInput<'_>,
    (line_to_me, behind): (&[Waiter<'_>], &[Waiter<'_>]),
    now: Moment,
    mut plan: Plan,
) -> Plan {
    if input.sets_limit(&record) {
        // At once, as the waiters ahead may need the new limit. Whether there is room is known after it.
        let write = set_limit(view, input.settings.limit, input.wall, now).ok().flatten();
        return Plan { outcome: PlanOutcome::NotHolding { room: true }, write, ..plan };
    }
    let ahead = line_to_me.split_last().map_or(&[][..], |(_, ahead)| ahead);
    let waits = view.contender(input.session).is_some_and(Contender::says_waiting);
    if waits && !input.is_in_line(view) && !input.settings.try_once() {
        // The wish has changed. Other clients read it from the contender key, and would wait for this one while it waits
        // for them.
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
    if !waits {
        // A member that tries once was not in the queue.
        takes.notify_passed(behind);
    }
    plan.write = if takes.has_granted_only(input.session) {
        takes.write_jointly()
    } else if !waits && takes.has_granted(input.session) {
        // A client that tries once watches no key. It grants the waiters ahead their free slots, and plans again. It does not
        // stay in the queue, so another waiter is named as the lookout.
        tidies.grant_free_slots(ahead, &[], input.free_since, now);
        let others: Vec<_> = ahead.iter().chain(behind).copied().collect();
        tidies.publish_handoffs(&others);
        tidies.write(false)
    } else {
        tidies.write(true)
    };
    plan
}
