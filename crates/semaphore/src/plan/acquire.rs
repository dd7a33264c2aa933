//! Of one that does not hold.

use std::cmp::Ordering;

use super::draft::PASSING;
use super::*;

/// How one comes to stand in line.
enum Coming {
    /// It stands there, or takes the slot, or goes.
    Not,
    /// To the end, by its own contender alone.
    Quietly,
    /// And says so in `.lock`, and so competes with all who write there.
    Openly,
    /// It stands there, and wants something else now: with a place that compares so to the one it had.
    Otherwise(Ordering),
}

/// Plans of one that does not hold: to take the slots or to stand in line for them.
pub(super) fn ask(view: &View, record: Record, me: Me<'_>, now: Moment) -> Plan {
    let mut plan = Plan::new(Stand::Apart { room: false });
    if record.slots_of(me.session) > 0 {
        // A share that is no whole slot goes in a transaction of its own. Put back in the same one, the record might
        // be what it was; Consul then leaves its index as it is, and a rival's check-and-set would not notice.
        let mut draft = Draft::new(view, record, me.wall, Some(me));
        draft.take_out(me.session);
        plan.stand = Stand::Apart { room: draft.free() >= me.settings.slots };
        plan.write = draft.write(false);
        return plan;
    }
    if let Some(why) = occupied(view, me.session) {
        let watch = Watch {
            key: view.contender_key(me.session),
            after: view.index_of(&view.contender_key(me.session)),
        };
        return Plan { watch: vec![watch], ..Plan::new(Stand::Blocked(why)) };
    }
    if view.contender(me.session).is_some() && !view.is_ordered() {
        return Plan { need: Some(Need::Look), ..plan };
    }
    let in_line = me.is_in_line(view);
    if let Some(write) = take_as_they_do(view, &record, me) {
        return Plan { role: Role::Head, write: Some(write), ..Plan::new(Stand::Apart { room: true }) };
    }
    if in_line && me.together.is_none() && !view.is_complete() && !me.sets_limit(&record) {
        return follow(view, &record, me, now);
    }
    if me.together.is_some_and(|together| together.step == Step::Enter) {
        return enter_anew(view, record, me);
    }
    let mut line = queue::line(view, Some(me.own()));
    let place = line.iter().position(|one| one.session == me.session).unwrap_or_default();
    let heads = line.iter().take(place).all(InLine::is_foreign);
    watch_line(&mut plan, view, &record, &line[..place], me, now);
    if !view.is_complete() {
        let free = record.limit > record.taken();
        plan.need = (!in_line || heads && free || me.sets_limit(&record)).then_some(Need::List);
        if heads {
            plan.suspect(view, &record, me, now);
        }
        return plan;
    }
    if me.together.is_some() {
        return take_together(view, record, me, line.split_at(place + 1), now, plan);
    }
    let comes = !view.contender(me.session).is_some_and(Contender::says_waiting);
    // One with a priority may have passed somebody who came a moment ago.
    let to_the_end = comes && place + 1 == line.len() && me.settings.priority <= 0 && !me.settings.try_once();
    // One that left the line and comes again may still be named in its old place.
    let misnamed = comes && record.next.contains(me.session);
    if me.crowded {
        if !to_the_end || misnamed {
            // Others took what was seen; whether there is more is not known.
            return Plan { stand: Stand::Apart { room: true }, need: Some(Need::List), ..plan };
        }
        let mut draft = Draft::new(view, record, me.wall, Some(me));
        draft.write_own_and_list(me.entry(Standing::Waiting, Vec::new()));
        plan.write = draft.write(false);
        return plan;
    }
    let sets_limit = me.sets_limit(&record);
    let mut draft = Draft::new(view, record, me.wall, Some(me));
    if sets_limit {
        draft.record.limit = me.settings.limit;
    }
    plan.recheck(draft.prune(me, now));
    plan.recheck(draft.fill(&line, &[], me.free_since, now));
    let granted = draft.has_granted(me.session);
    if draft.left_to_foreign {
        // Where it leaves the line instead, its turn is over.
        plan.watch.extend(watch::turn(view, &line[..place]));
    }
    plan.stand = Stand::Apart { room: granted || draft.left_to_foreign };
    if draft.own_is_too_large {
        // It keeps its place: whoever leaves next may make room for it.
        plan.stand = Stand::Blocked(too_large(view, &draft.record));
    }
    let stays = granted || !me.settings.try_once();
    // Behind one that `.lock` names, or where all is taken, whoever is let in before it stood there before: it has to
    // ask nobody.
    let first_watcher = !line[..place].iter().any(InLine::can_watch);
    let behind_named = line[..place].iter().any(InLine::is_grantable);
    // Where it tries once, and stands in line while others have their turn, it says what it wants by now as any other.
    let coming = if in_line || granted || comes && !stays {
        Coming::Not
    } else if !comes {
        let had = view.contender(me.session);
        let fits = |slots: u32| slots <= draft.record.limit;
        let entry = had.and_then(|had| had.entry.as_ref());
        let fitted = entry.is_some_and(|entry| fits(entry.slots));
        let was_alone = entry.is_some_and(|entry| entry.together.is_empty());
        let moves = me.settings.priority.cmp(&had.map_or(0, Contender::priority));
        // Who wants more than the limit is passed over, and a party by whoever holds what it wants; who does so no more, or is of
        // none any more, stands ahead of others again.
        Coming::Otherwise(moves.then(fits(me.settings.slots).cmp(&fitted)).then(true.cmp(&was_alone)))
    } else if to_the_end && (behind_named || draft.free() == 0) {
        Coming::Quietly
    } else {
        Coming::Openly
    };
    let behind = if view.has_foreign() { line[place + 1..].to_vec() } else { Vec::new() };
    let says_so = match coming {
        Coming::Not => stays && draft.misleads(&line),
        Coming::Quietly | Coming::Otherwise(Ordering::Equal) => false,
        Coming::Openly | Coming::Otherwise(Ordering::Greater | Ordering::Less) => true,
    };
    if says_so || draft.changes() || misnamed {
        let named = match coming {
            Coming::Not | Coming::Openly | Coming::Otherwise(Ordering::Equal | Ordering::Greater) => stays,
            // Others may have come as quietly between our read and our write, and stand ahead.
            Coming::Quietly => false,
            // Nor does it know who else it is behind now: its name goes, and comes again when it has listed.
            Coming::Otherwise(Ordering::Less) => {
                line.truncate(place);
                false
            }
        };
        line.retain(|one| named || one.session != me.session);
        draft.publish(&line);
    }
    if matches!(coming, Coming::Openly | Coming::Otherwise(Ordering::Greater)) || !in_line && granted {
        draft.pass(&behind);
    }
    let entry = || me.entry(Standing::Waiting, Vec::new());
    match coming {
        Coming::Not => {}
        Coming::Quietly => draft.write_own_and_list(entry()),
        Coming::Otherwise(Ordering::Equal) => draft.write_own(entry()),
        // Whoever planned without it must be too late. Somebody may have come quietly since the listing, behind one who
        // has left meanwhile. For one with another priority, what `.lock` names is in the order that was.
        Coming::Openly | Coming::Otherwise(Ordering::Greater) => {
            overtakes(&mut draft);
            draft.write_own_and_list(entry());
        }
        Coming::Otherwise(Ordering::Less) => {
            falls_back(&mut draft, view);
            draft.write_own_and_list(entry());
        }
    }
    if plan.role == Role::Head && in_line {
        draft.tell_first(&line);
    }
    draft.sweep();
    // Where nobody watches over those who wait, and only parties stand ahead, which name nobody, it says at once that it does.
    let leads = first_watcher && !view.is_attended() && draft.names_lookout(me.session);
    plan.write = draft.write(in_line && plan.role != Role::Head && !heads && !sets_limit && !leads);
    plan
}

/// Plans of one in line that knows its own contender and `.lock`, and not who else is there.
///
/// Where somebody watches over all who wait, whoever releases sees to it that this one is let in in its time: it waits for nothing
/// but its own contender. Where nobody does, it does so itself, and learns by the same write who is there: of a crowd that comes at
/// once one does, and the others see that it has.
fn follow(view: &View, record: &Record, me: Me<'_>, now: Moment) -> Plan {
    let mut plan = Plan::new(Stand::Apart { room: false });
    let line = queue::line(view, Some(me.own()));
    let place = line.iter().position(|one| one.session == me.session).unwrap_or_default();
    watch_line(&mut plan, view, record, &line[..place], me, now);
    let left = record.limit.saturating_sub(record.taken());
    let free = left >= me.settings.slots;
    if record.attended {
        // Whoever freed them has let in nobody, or the first one has gone without a word.
        let first = record.named_first();
        let unserved = match queue::named(record).first() {
            Some((_, slots)) => *slots <= left,
            None => free,
        };
        let gone = first.is_some_and(|first| view.is_missing(first));
        let sees = plan.role == Role::Head && gone || first == Some(me.session);
        match me.patience.filter(|_| unserved && plan.role != Role::Head) {
            Some(until) if until > now => plan.recheck(Some(until)),
            Some(_) => plan.need = Some(Need::Look),
            // Nobody releases what nobody holds.
            None => plan.need = (left > 0 && (sees && free || unserved)).then_some(Need::List),
        }
    } else {
        plan.stand = Stand::Apart { room: free };
        let shared = view.is_listed() && view.has_foreign();
        let heads = line.iter().take(place).all(InLine::is_foreign);
        match me.patience {
            // Others have come at the same time, and one of them watches over all.
            Some(until) if until > now => plan.recheck(Some(until)),
            Some(_) => plan.need = Some(Need::Look),
            // Somebody else is at the front.
            None if shared => plan.need = (heads && free).then_some(Need::List),
            // Clients of another kind may be there.
            None if !record.ours => plan.need = Some(Need::List),
            None => {
                let mut draft = Draft::new(view, record.clone(), me.wall, Some(me));
                draft.attend(me.entry(Standing::Waiting, Vec::new()));
                plan.write = draft.write(false);
            }
        }
    }
    if plan.role == Role::Head && plan.need.is_none() && plan.write.is_none() {
        plan.suspect(view, record, me, now);
    }
    plan
}

/// Where clients of another kind take part, the first of ours in line takes a slot that it sees free in `.lock`, in one round trip as those
/// do, whoever holds besides: it was the first when it listed, and whoever of ours has come to stand ahead of it since has changed its
/// contender ([`Draft::pass`]). `None` where one of the others stands ahead that may have its turn.
fn take_as_they_do(view: &View, record: &Record, me: Me<'_>) -> Option<Write> {
    let shared = view.has_foreign() && view.is_surely_listed(me.session);
    // Whoever comes has the usual priority, and passes one with less without a word; who wants several slots may be passed over.
    let Settings { slots, priority, .. } = me.settings;
    let plain = me.together.is_none() && *slots == 1 && *priority >= 0;
    let asks = !me.sets_limit(record) && !me.settings.try_once() && me.is_in_line(view);
    if !shared || !plain || !asks || view.is_complete() || view.is_filtered() {
        return None;
    }
    let line = queue::line(view, Some(me.own()));
    let place = line.iter().position(|one| one.session == me.session)?;
    let mut ahead = line.iter().take(place);
    let mut draft = Draft::new(view, record.clone(), me.wall, Some(me));
    if !ahead.all(InLine::is_idle) || !draft.take(line.get(place)?) {
        return None;
    }
    draft.write(false)
}

/// What one in line waits for, in which role.
fn watch_line(plan: &mut Plan, view: &View, record: &Record, ahead: &[InLine<'_>], me: Me<'_>, now: Moment) {
    let heads = ahead.iter().all(InLine::is_foreign);
    let told = view.is_lookout(me.session);
    let named = record.attended && record.next.last() == Some(me.session);
    let by_name = me.together.is_none() && (record.attended || record.ours && !view.has_foreign());
    if told || named || !by_name && heads && view.is_listed() {
        plan.role = Role::Head;
        plan.recheck(watch::settles_at(me, Role::Head, now));
    }
    plan.watch = if by_name {
        watch::named(view, plan.role, me, now)
    } else {
        watch::waiting(view, ahead, plan.role, me, now)
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
fn enter_anew(view: &View, record: Record, me: Me<'_>) -> Plan {
    let mut plan = Plan::new(Stand::Apart { room: false });
    if !view.is_complete() {
        plan.need = Some(Need::List);
        return plan;
    }
    let line = queue::line(view, Some(me.own()));
    let place = line.iter().position(|one| one.session == me.session).unwrap_or_default();
    // An earlier process may have been in line by itself and for other slots. Nobody may hand off to it by that name.
    let misnamed = record.next.contains(me.session);
    let mut draft = Draft::new(view, record, me.wall, Some(me));
    if view.contender(me.session).is_some() {
        draft.only_if_lock_stands();
    }
    if me.together.is_some_and(|together| together.prefixes.len() <= PASSING) {
        draft.pass(&line[place + 1..]);
    }
    draft.enter_anew(me.entry(Standing::Waiting, Vec::new()));
    // It may stand at the head for long, and a key that does not exist cannot be waited for.
    draft.create_lock();
    // As for any other: whoever comes to the end of a line has to ask nobody.
    let last = line.last().is_some_and(|one| one.session == me.session);
    if misnamed || !last || line.len() == 1 && draft.free() > 0 {
        draft.publish(&line);
    }
    plan.write = draft.write_jointly();
    plan
}

/// Plans of a party's member in line, or of one that tries once: to take its slots when all the others can. It looks
/// after those ahead of it only where they could not, since all holders are dead, and where it tries once.
fn take_together(
    view: &View,
    record: Record,
    me: Me<'_>,
    (line_to_me, behind): (&[InLine<'_>], &[InLine<'_>]),
    now: Moment,
    mut plan: Plan,
) -> Plan {
    if me.sets_limit(&record) {
        // At once: those ahead may be waiting for it.
        plan.write = set_limit(view, me.settings.limit, me.wall, now).ok().flatten();
        return plan;
    }
    let ahead = line_to_me.split_last().map_or(&[][..], |(_, ahead)| ahead);
    let stands = view.contender(me.session).is_some_and(Contender::says_waiting);
    if stands && !me.is_in_line(view) && !me.settings.try_once() {
        // What it wants has changed. Others go by what it says, and would wait for it while it waits for them.
        let mut draft = Draft::new(view, record, me.wall, Some(me));
        draft.publish(&queue::line(view, Some(me.own())));
        falls_back(&mut draft, view);
        draft.pass(behind);
        draft.write_own(me.entry(Standing::Waiting, Vec::new()));
        plan.write = draft.write(false);
        return plan;
    }
    let mut tidies = Draft::new(view, record, me.wall, Some(me));
    plan.recheck(tidies.prune(me, now));
    let mut takes = tidies.clone();
    plan.recheck(takes.fill(line_to_me, &[], me.free_since, now));
    plan.stand = Stand::Apart { room: takes.has_granted(me.session) || takes.left_to_foreign };
    if takes.own_is_too_large {
        plan.stand = Stand::Blocked(too_large(view, &takes.record));
    }
    if !stands {
        // One that tries once has not stood in line.
        takes.pass(behind);
    }
    plan.write = if takes.has_granted_only(me.session) {
        takes.write_jointly()
    } else if !stands && takes.has_granted(me.session) {
        // It watches no key, so that nobody would wake it: it lets in those ahead, whose slots are free, and then looks again. It will
        // not stay in line, so that another one is named as the one that watches over all.
        tidies.fill(ahead, &[], me.free_since, now);
        let others: Vec<_> = ahead.iter().chain(behind).copied().collect();
        tidies.publish(&others);
        tidies.write(false)
    } else {
        tidies.write(true)
    };
    plan
}
