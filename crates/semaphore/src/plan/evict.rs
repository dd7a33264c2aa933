//! Eviction planning: how an operator removes a participant.
//!
//! A live slotkeeper client is asked to leave, by a mark in its own contender key. It stops its workload first, and its slot is not
//! handed off before that. A participant that cannot be asked is removed at once.

use super::draft::Draft;
use super::serve::{self, Served};
use super::{Write, lock};
use crate::contender::WaiterState;
use crate::line;
use crate::record::{LOCK_FLAGS, Record};
use crate::view::View;
use crate::{Moment, Op, SessionId};

/// A session's membership, as an operator was shown it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// The participant's session.
    pub session: SessionId,
    /// What the participant does.
    pub part: MembershipKind,
    /// Whether it is a foreign client, which does not know the mark. This does not matter for a dead holder.
    pub foreign: bool,
    /// The identity of this membership among those of the same session: the create index of its contender key; of a lock, the create index
    /// of its key and the LockIndex. `None` if it has no contender key.
    pub since: Option<(u64, u64)>,
}

/// What a participant does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MembershipKind {
    /// It holds slots, or the single-key lock.
    Holds,
    /// It waits.
    Waits,
    /// `.lock` lists it, but it is dead.
    Dead,
}

impl Membership {
    /// The membership of the session, if it has one.
    pub fn of(view: &View, session: &SessionId) -> Option<Self> {
        let session = session.clone();
        if let Some(single) = view.single().filter(|_| view.is_owner(&session)) {
            let (foreign, since) = (single.entry.is_none(), Some((single.create_index, single.times_locked)));
            return Some(Self { session, part: MembershipKind::Holds, foreign, since });
        }
        let contender = view.contender(&session);
        let part = match (view.record().is_some_and(|record| record.slots_of(&session) > 0), contender) {
            (true, None) if view.lives(&session) == Some(false) => MembershipKind::Dead,
            (true, _) => MembershipKind::Holds,
            // A contender key that says `held` belongs to a holder that was removed and has not noticed yet.
            (false, Some(one)) if !one.says_held() => MembershipKind::Waits,
            (false, _) => return None,
        };
        let foreign = contender.is_none_or(|one| one.entry.is_none()) && part != MembershipKind::Dead;
        Some(Self { session, part, foreign, since: contender.map(|one| (one.create_index, 0)) })
    }

    /// Whether this membership began after the other one had ended. The LockIndex of a lock restarts if its key is written without the lock,
    /// which is the same membership.
    pub fn is_after(&self, other: &Self) -> bool {
        let made = |membership: &Self| membership.since.map(|(made, _)| made);
        made(self) != made(other) || self.since > other.since
    }
}

/// The transaction that asks a slotkeeper client to leave, in the name of `by`; `None` if it was asked before, or cannot be asked.
pub fn request_eviction(view: &View, membership: &Membership, by: &str) -> Option<Write> {
    let mut entry = view.entry_of(&membership.session).filter(|entry| entry.evicted_by.is_none())?.clone();
    entry.evicted_by = Some(by.to_owned());
    // This write changes the index by which the owner's token is known.
    let contender = view.contender(&membership.session);
    let index = contender.map(|one| one.modify_index).or(view.single().map(|single| single.index));
    entry.token = entry.token.or(index.filter(|_| entry.state == WaiterState::Held));
    if let Some(single) = view.single() {
        let (key, value, index) = (view.lock_key(), entry.encode(), single.index);
        let check = Op::CheckIndex { key: key.clone(), index };
        // A write without the lock would restart the LockIndex.
        let lock = Op::Lock { key, value, flags: LOCK_FLAGS, session: membership.session.clone() };
        return Some(Write::of(vec![check, lock]));
    }
    let (key, value) = (view.contender_key(&membership.session), entry.encode());
    let index = contender?.modify_index;
    let flags = view.record().map_or(0, Record::flags);
    let mark = Op::Cas { key, value, flags, index };
    let lock = match (membership.part, view.record()) {
        // A contender key may say `held` only while `.lock` lists the session: other clients rely on that.
        (MembershipKind::Holds, _) => vec![Op::CheckIndex { key: view.lock_key(), index: view.lock_index() }],
        // A client that offers a slot by name would overwrite the mark unseen.
        (MembershipKind::Waits, Some(record)) if record.next().contains(&membership.session) => {
            let mut draft = Draft::new(view, record.clone(), "");
            draft.write.ops.push(mark);
            draft.publish(&line::in_order(view, None));
            return draft.finish();
        }
        (MembershipKind::Waits | MembershipKind::Dead, _) => Vec::new(),
    };
    Some(Write::of(lock.into_iter().chain([mark]).collect()))
}

/// The transaction that removes a participant at once and hands its slots off, whatever runs on them; `None` if it has nothing. The
/// participant learns of it by its deleted contender key.
pub fn force_eviction(view: &View, membership: &Membership, wall: &str, now: Moment) -> Option<Write> {
    let session = &membership.session;
    if let Some(single) = view.single() {
        // The value of a foreign client's key is not changed.
        let (value, flags) = match &single.entry {
            Some(_) => (Vec::new(), LOCK_FLAGS),
            None => (*single.stored).clone(),
        };
        return Some(lock::unlock(view, session, value, flags));
    }
    let own = view.contender(session);
    let delete = own.map(|one| Op::DeleteCas { key: view.contender_key(session), index: one.modify_index });
    let Some(record) = view.record() else { return Some(Write::of(vec![delete?])) };
    let mut draft = Draft::new(view, record.clone(), wall);
    draft.release(session);
    let Served { mut draft, line, .. } = serve::for_operator(draft, Some(session), now);
    if draft.changes() || record.next().contains(session) {
        draft.publish(&line);
    }
    draft.write.ops.extend(delete);
    draft.finish()
}
