//! Hold planning: what a holder writes for others, and in its own contender key.

use super::draft::Draft;
use super::serve::{self, Service};
use super::{Grant, Me, Memory, Next, Plan, Standing, Want, Watch, Write};
use crate::Op;
use crate::contender::WaiterState;
use crate::record::Record;
use crate::timing::{RECORD_WATCH_DELAY, WATCH_DELAY};
use crate::view::{Contender, View};

/// The largest number of taken slots with which a holder watches `.lock`: each release wakes all holders that do.
const MAX_WATCHED_SLOTS: u32 = 4;

/// Whether so few slots are taken that their holders watch `.lock` while waiters are counted.
pub(crate) fn is_watched_by_holders(record: &Record) -> bool {
    record.taken() <= MAX_WATCHED_SLOTS
}

/// Plans of a holder.
pub(super) fn keep(view: &View, record: Record, own: &Contender, me: Me<'_>, memory: Memory<'_>) -> Plan {
    let entry = own.entry.as_ref();
    let token = entry.and_then(|entry| entry.token).unwrap_or(own.modify_index);
    let indexes = entry.map_or_else(|| record.indexes_of(me.session), |entry| entry.indexes.clone());
    let grant = Grant { token: Some(token), indexes };
    let since = memory.held_since.unwrap_or(me.now);
    let settled = since + WATCH_DELAY <= me.now;
    let settles = (!settled && memory.held_since.is_some()).then_some(since + WATCH_DELAY);
    let plan = |next| Plan::new(Standing::Holds(grant.clone()), next).again(settles);
    let sets_limit = memory.sets_limit(&record, me);
    // Other clients serve the waiters: here they have not, or this one took its slots together with others and left the rest. Beside
    // foreign clients, each waiter acts for itself.
    let looks = memory.confirms || me.together.is_some();
    let unserved = looks && record.free() > 0 && record.is_attended();
    let dead = record.holders.iter().any(|holder| view.is_missing(holder));
    let is_news = memory.settled_at != Some(view.lock_index());
    let due = memory.sightings.first_due(me.settings.prune_delay);
    let is_due = due.is_some_and(|at| at <= me.now);
    if !view.is_listed() && ((sets_limit || unserved || dead) && is_news || is_due) {
        return plan(Next::Read(Want::All));
    }
    if view.is_listed() && !view.is_filtered() {
        let mut draft = Draft::new(view, record.clone(), me.wall);
        memory.set_limit(&mut draft.record, me);
        let mut served = serve::serve(draft, Service::of_other(me, memory.sightings));
        served.draft.delete_leftovers();
        let again = served.again;
        if let Some(write) = served.draft.finish() {
            return plan(Next::Write(write)).again(again);
        }
    }
    if let Some(write) = sign(view, &record, own, &grant, me).filter(|_| settled) {
        return plan(Next::Write(write));
    }
    let small = record.is_attended() && is_watched_by_holders(&record);
    let watches = Watch::contender(view, me.session).filter(|_| settles.is_none());
    let record_at = since + RECORD_WATCH_DELAY;
    let of_record = Watch::lock(view).filter(|_| small && record_at <= me.now);
    plan(Next::Wait(watches.into_iter().chain(of_record).collect()))
        .again(due)
        .again((small && record_at > me.now).then_some(record_at))
}

/// Completes a holder's contender key, as after a change of the configuration. Other clients write that key only to take the slots
/// away, so that its own index is a sufficient guard. A short hold does not pay for this write.
fn sign(view: &View, record: &Record, own: &Contender, grant: &Grant, me: Me<'_>) -> Option<Write> {
    let mut entry = me.entry(WaiterState::Held, grant.indexes.clone());
    let stored = own.entry.as_ref();
    if let Some(stored) = stored {
        entry.since.clone_from(&stored.since);
        (entry.beside, entry.token) = (stored.beside, stored.token);
    }
    if stored == Some(&entry) {
        return None;
    }
    entry.token = grant.token;
    let (key, index) = (view.contender_key(me.session), own.modify_index);
    Some(Write::of(vec![Op::Cas { key, value: entry.encode(), flags: record.flags(), index }]))
}
