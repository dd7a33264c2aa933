//! Release planning: what a client writes when it leaves, as a holder or as a waiter, and what it owes to others afterwards.

use super::draft::Draft;
use super::serve::{self, Served, Service};
use super::{Me, Next, Plan, Want, Write, lock};
use crate::contender::WaiterState;
use crate::record::Record;
use crate::sightings::Sightings;
use crate::view::{Contender, View};
use crate::{Moment, Op, SessionId};
use std::time::Duration;

/// What a client that leaves does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leave {
    /// Read this first.
    Read(Want),
    /// Commit this.
    Write(Write),
    /// Nothing of it is left.
    Gone,
}

/// Plans to leave. One transaction takes the session out of `.lock`, deletes its contender key and offers its slots to the next waiters.
pub fn leave(view: &View, me: Me<'_>, sightings: &Sightings) -> Leave {
    if me.settings.is_lock() {
        return lock::leave(view, me);
    }
    let own = view.contender(me.session);
    // Guarded, since another client may offer slots at this moment. Consul's check-and-set delete of a missing key succeeds, but by then its
    // slot indexes may have been granted again.
    let delete = |own: &Contender| {
        let (key, index) = (view.contender_key(me.session), own.modify_index);
        [Op::CheckIndex { key: key.clone(), index }, Op::DeleteCas { key, index }]
    };
    let record = view.record().filter(|record| record.slots_of(me.session) > 0);
    let Some(record) = record else {
        let Some(own) = own else {
            // A newcomer has relied on its release, where its last write took the last waiter out of the count.
            if !view.is_listed() {
                return Leave::Gone;
            }
            let (owed, _) = pass_on(view, sightings, Some(me.settings.prune_delay), me.wall, me.now);
            return owed.map_or(Leave::Gone, Leave::Write);
        };
        // A waiter for several slots may have kept free ones from the waiters behind it.
        if me.settings.slots > 1 && !view.is_listed() {
            return Leave::Read(Want::All);
        }
        let mut write = Write::default();
        if let Some(record) = view.record().filter(|_| view.is_listed() && me.settings.slots > 1) {
            let draft = Draft::new(view, record.clone(), me.wall);
            let served = serve::serve(draft, Service::of_other(me, sightings));
            write = served.draft.finish().unwrap_or_default();
            let own_key = view.contender_key(me.session);
            write.ops.retain(|op| op.key() != own_key && !matches!(op, Op::List { .. }));
            if write.ops.is_empty() {
                // Somebody may name it in `.lock` at this moment, and a release then keep the slots for it.
                write.ops.push(Op::CheckIndex { key: view.lock_key(), index: view.lock_index() });
            }
        }
        write.ops.extend(delete(own));
        return Leave::Write(write);
    };
    let mut draft = Draft::new(view, record.clone(), me.wall);
    draft.release(me.session);
    if view.is_listed() {
        let served = serve::serve(draft, Service::of_other(me, sightings));
        draft = served.draft;
        draft.publish(&served.line);
    } else if !draft.offer_by_name() {
        return Leave::Read(Want::All);
    }
    draft.write.ops.extend(own.into_iter().flat_map(delete));
    draft.finish().map_or(Leave::Gone, Leave::Write)
}

/// The transaction that serves a queue on behalf of nobody in it, and when to look again: what a client that has left owes to those to whom
/// it made offers.
pub fn pass_on(
    view: &View,
    sightings: &Sightings,
    prune_delay: Option<Duration>,
    wall: &str,
    now: Moment,
) -> (Option<Write>, Option<Moment>) {
    let Some(record) = view.record() else { return (None, None) };
    let service = Service { me: None, sightings, prune_delay, without: None, now };
    let served = serve::serve(Draft::new(view, record.clone(), wall), service);
    (served.draft.finish(), served.again)
}

/// Releases a share of the wanted slots. A transaction of its own does it.
pub(super) fn give_up(view: &View, record: Record, me: Me<'_>) -> Plan {
    let mut draft = Draft::new(view, record, me.wall);
    draft.release(me.session);
    if view.contender(me.session).is_some_and(|own| own.state() == Some(WaiterState::Offered)) {
        // An acceptance by an earlier process may still be under way.
        draft.write_own(&me, me.entry(WaiterState::Waiting, Vec::new()));
    }
    let room = draft.record.free() >= me.settings.slots;
    Plan::waits(room, draft.finish().map_or(Next::Read(Want::All), Next::Write))
}

/// The transaction that releases what a session still has, after its process has ended; `None` if it has nothing. It removes the session
/// from `.lock`, deletes its contender key and offers its slots to others. The key of a lock is deleted unless it `stays`. Nothing is
/// written if the session no longer has its key locked.
pub fn release(view: &View, session: &SessionId, stays: bool, wall: &str, now: Moment) -> Option<Write> {
    if view.single().is_some() {
        return lock::release(view, session, stays);
    }
    let index = view.contender(session)?.modify_index;
    let key = view.contender_key(session);
    let check = Op::CheckSession { key: key.clone(), session: session.clone() };
    let Some(record) = view.record().filter(|record| record.slots_of(session) > 0) else {
        // A waiter has a contender key alone, unless another client offers it a slot at this moment.
        return Some(Write::of(vec![check, Op::DeleteCas { key, index }]));
    };
    let mut draft = Draft::new(view, record.clone(), wall);
    draft.release(session);
    let Served { mut draft, line, .. } = serve::for_operator(draft, Some(session), now);
    draft.publish(&line);
    draft.write.ops.push(Op::Delete { key });
    let mut write = draft.finish()?;
    write.ops.insert(0, check);
    Some(write)
}
