//! Service: what a client that knows the whole queue does for it, whatever its own part is.

use super::Me;
use super::draft::{Draft, MAX_SERVED};
use crate::contender::WaiterState;
use crate::line::{self, Kind, Share, Waiter};
use crate::sightings::{Sight, Sightings};
use crate::timing::{FOREIGN_TURN, GROUP_PATIENCE, OFFER_PATIENCE, ROLL_CALL};
use crate::{Moment, SessionId};
use std::time::Duration;

/// A transaction in the making that has served the queue.
pub(super) struct Served<'a> {
    pub(super) draft: Draft<'a>,
    pub(super) share: Share<'a>,
    /// The queue, in order.
    pub(super) line: Vec<Waiter<'a>>,
    /// When to look again.
    pub(super) again: Option<Moment>,
}

impl Served<'_> {
    /// Whether slots are left over for the short turn of a foreign client, which may not take them.
    pub(super) fn leaves_a_turn(&self) -> bool {
        self.share.left_to.is_some_and(|one| one.kind == Kind::Foreign)
    }
}

/// What a service goes by.
#[derive(Clone, Copy)]
pub(super) struct Service<'a, 's> {
    /// The planning client, if it asks for slots.
    pub(super) me: Option<Me<'a>>,
    pub(super) sightings: &'s Sightings,
    /// How long the slot of a dead holder stays taken; `None` where nobody is pruned.
    pub(super) prune_delay: Option<Duration>,
    /// A session that is neither pruned nor served: it leaves, or holds.
    pub(super) without: Option<&'s SessionId>,
    pub(super) now: Moment,
}

impl<'a, 's> Service<'a, 's> {
    /// Of a client that asks for slots.
    pub(super) fn of_waiter(me: Me<'a>, sightings: &'s Sightings) -> Self {
        let prune_delay = Some(me.settings.prune_delay);
        Self { me: Some(me), sightings, prune_delay, without: None, now: me.now }
    }

    /// Of a client that holds, or leaves.
    pub(super) fn of_other(me: Me<'s>, sightings: &'s Sightings) -> Self {
        let prune_delay = Some(me.settings.prune_delay);
        Self { me: None, sightings, prune_delay, without: Some(me.session), now: me.now }
    }
}

/// Serves the waiters on behalf of an operator, which prunes only what it says and has no patience with offers.
pub(super) fn for_operator<'a>(draft: Draft<'a>, without: Option<&SessionId>, now: Moment) -> Served<'a> {
    let sightings = &Sightings::default();
    serve(draft, Service { me: None, sightings, prune_delay: None, without, now })
}

/// Prunes dead holders, takes back offers that nobody accepts, and shares the free slots out, the freed ones first.
pub(super) fn serve<'a>(mut draft: Draft<'a>, service: Service<'a, '_>) -> Served<'a> {
    let Service { me, sightings, prune_delay, without, now } = service;
    let view = draft.view;
    let own_session = me.map(|me| me.session);
    let is_other = |session: &SessionId| Some(session) != without && Some(session) != own_session;
    if view.is_filtered() {
        return Served { draft, share: Share::default(), line: Vec::new(), again: None };
    }
    let since = |sight, session| sightings.since(sight, Some(session)).unwrap_or(now);
    let mut again: Option<Moment> = None;
    // Whether that time has come. If not, it is one to look again.
    let mut is_due = |at: Moment| {
        again = again.into_iter().chain((at > now).then_some(at)).min();
        at <= now
    };
    let mut dead = view.dead();
    dead.retain(|holder| Some(*holder) != without);
    dead.retain(|holder| prune_delay.is_some_and(|delay| is_due(since(Sight::Dead, *holder) + delay)));
    draft.prune(dead);
    let offers = view.contenders.iter().filter(|one| one.state() == Some(WaiterState::Offered));
    let offers = offers.filter(|one| is_other(&one.session) && view.slots_of(&one.session) > 0);
    let overdue: Vec<_> =
        offers.filter(|one| is_due(since(Sight::Offer, &one.session) + OFFER_PATIENCE)).collect();
    for one in overdue.iter().take(MAX_SERVED) {
        draft.withdraw(one);
    }
    let mut line = line::in_order(view, me);
    line.retain(|one| Some(one.session) != without);
    let is_over = |one: &Waiter<'a>| {
        let (sight, time) = if one.asked { (Sight::Asked, ROLL_CALL) } else { (Sight::Turn, FOREIGN_TURN) };
        since(sight, one.session) + time <= now
    };
    // Where one does not answer, those next in line may be dead too, unless they have written later. The first that shows signs of life is
    // served.
    let silent = line.iter().filter(|one| one.asked && is_over(one)).map(|one| one.index);
    let silent = silent.chain(overdue.iter().map(|one| one.modify_index)).max();
    let doubts = |one: &Waiter<'_>| {
        !one.asked && one.kind == Kind::Ours && is_other(one.session) && Some(one.index) < silent
    };
    if line::share(&draft.record, &line, &is_over, MAX_SERVED).served.iter().any(doubts) {
        let doubted = line.iter().filter(|one| doubts(one)).filter_map(|one| view.contender(one.session));
        for one in doubted.take(draft.room()) {
            draft.ask(one);
        }
        // Until they have answered, no waiter is served by its name.
        draft.hint(Vec::new(), line.len(), 0);
        draft.write.asks = true;
        is_due(now + ROLL_CALL);
        return Served { draft, share: Share::default(), line, again };
    }
    let share = draft.share(&line, me, &is_over);
    for one in line.iter().filter(|one| one.asked && draft.record.free() > 0) {
        is_due(since(Sight::Asked, one.session) + ROLL_CALL);
    }
    if let Some(one) = &share.left_to {
        let patience = if one.kind == Kind::Group { GROUP_PATIENCE } else { FOREIGN_TURN };
        // An acquire group may wait for its other semaphores, or be dead.
        let asks = is_due(since(Sight::Turn, one.session) + patience)
            && one.kind == Kind::Group
            && is_other(one.session);
        if let Some(one) = view.contender(one.session).filter(|_| asks) {
            draft.ask(one);
        }
    }
    // A waiter for more slots than are free may be dead too. One that has answered before is asked less often.
    let free = draft.record.free();
    let keeps = share.kept_by.filter(|one| one.kind == Kind::Ours && is_other(one.session));
    let waits = |one: &Waiter<'_>| !one.asked && one.kind == Kind::Ours && one.slots <= free;
    if let Some(one) = keeps.filter(|_| line.iter().any(waits)) {
        let patience = if one.has_answered() { GROUP_PATIENCE } else { OFFER_PATIENCE };
        if is_due(since(Sight::Turn, one.session) + patience)
            && let Some(one) = view.contender(one.session)
        {
            draft.ask(one);
            draft.write.asks = true;
            is_due(now + ROLL_CALL);
        }
    }
    let told = view.record().and_then(|record| record.hints.as_ref());
    let attends = line.iter().any(|one| !one.asked && one.is_served_by(&draft.record));
    let (next, _) = line::handoff_list(&draft.record, &line);
    let stale = told.is_none_or(|hints| (hints.waiting > 0) != attends || !next.starts_with(&hints.next));
    if draft.changes() || stale {
        draft.publish(&line);
    }
    Served { draft, share, line, again }
}
