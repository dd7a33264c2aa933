//! Acceptance: how a waiter makes a slot that is offered to it its own. Nothing runs on the slot before this write is committed.

use super::{Grant, Me, Next, Own, Plan, Write};
use crate::Op;
use crate::contender::WaiterState;
use crate::record::Record;
use crate::view::{Contender, View, contender_key};

/// Plans of a waiter whose slots are in `.lock`.
pub(super) fn accept(view: &View, record: &Record, own: &Contender, me: Me<'_>) -> Plan {
    let write = offered(own, me).unwrap_or_else(|| {
        // Somebody has written the session into `.lock` by hand.
        write(own, me, Grant { token: Some(view.lock_index()), indexes: record.indexes_of(me.session) })
    });
    Plan::waits(true, Next::Write(write))
}

/// The transaction that accepts an offer, if the contender key has one. Whoever takes the offer back changes the same key, so that one of the
/// two writes fails.
///
/// The fencing token is the index of the offer. It is larger than that of every hold of the slot before, and written down here.
pub(super) fn offered(own: &Contender, me: Me<'_>) -> Option<Write> {
    let entry = own.entry.as_ref().filter(|entry| entry.state == WaiterState::Offered)?;
    Some(write(own, me, Grant { token: Some(own.modify_index), indexes: entry.indexes.clone() }))
}

fn write(own: &Contender, me: Me<'_>, grant: Grant) -> Write {
    let mut held = me.entry(WaiterState::Held, grant.indexes.clone());
    (held.token, held.beside) = (grant.token, own.entry.as_ref().and_then(|entry| entry.beside));
    let (key, session) = (contender_key(&me.settings.prefix, me.session), me.session.clone());
    let write = Op::Cas { key: key.clone(), value: held.encode(), flags: own.flags, index: own.modify_index };
    // A key outlives its session where the behaviour of the session is `release`.
    me.write(Own::Holds(grant), [write, Op::CheckSession { key, session }])
}
