//! Claim planning: what a process writes first that resumes the session of an earlier process.
//!
//! The earlier process may still run: the file by which two processes exclude each other can be deleted. So the new process writes
//! its nonce into every key of the session. The earlier process finds a nonce that is not its own, and counts all its slots as lost.

use super::{PlanInput, Watch, Write, watch};
use crate::contender::{Entry, WaiterState};
use crate::record::LOCK_FLAGS;
use crate::record::Record;
use crate::view::View;
use crate::{Op, SessionId};

/// The transaction that writes the nonce into a key of the session that does not have it.
pub fn claim(view: &View, input: PlanInput<'_>) -> Option<Write> {
    let nonce = input.nonce?;
    let stored = view.entry_of(input.session);
    if stored.is_some_and(|entry| entry.nonce.as_deref() == Some(nonce)) {
        return None;
    }
    let with_nonce = |entry: &Entry| {
        let mut entry = entry.clone();
        entry.nonce = Some(nonce.to_owned());
        entry.encode()
    };
    if view.is_owner(input.session) {
        let entry = stored.cloned().unwrap_or_else(|| input.entry(WaiterState::Held, vec![0]));
        let (key, value, session) = (view.lock_key(), with_nonce(&entry), input.session.clone());
        let check = Op::CheckIndex { key: key.clone(), index: view.lock_index() };
        // A write without the lock would restart the LockIndex.
        return Some(Write::of(vec![check, Op::Lock { key, value, flags: LOCK_FLAGS, session }]));
    }
    let contender = view.contender(input.session)?;
    let holds = view.record().is_some_and(|record| record.slots_of(input.session) > 0);
    let standing = if holds { WaiterState::Held } else { WaiterState::Waiting };
    let mut entry = stored.cloned().unwrap_or_else(|| input.entry(standing, Vec::new()));
    if view.lock_index() == 0 {
        // Without `.lock` no slot is held, and a `held` written now would be taken for a grant.
        (entry.state, entry.indexes) = (WaiterState::Waiting, Vec::new());
    }
    let (key, index) = (view.contender_key(input.session), contender.modify_index);
    let flags = view.record().map_or(0, Record::flags);
    let own = Op::Cas { key, value: with_nonce(&entry), flags, index };
    let mut ops = Vec::new();
    if entry.state == WaiterState::Held {
        // A contender key may say `held` only while `.lock` lists the session: other clients rely on that.
        ops.push(Op::CheckIndex { key: view.lock_key(), index: view.lock_index() });
    }
    ops.push(own);
    Some(Write::of(ops))
}

/// The watches while the earlier process may still use the session.
pub fn claimed(view: &View, session: &SessionId) -> Vec<Watch> {
    let own = view
        .contender(session)
        .map(|one| Watch { key: view.contender_key(session), after: one.modify_index });
    let lock = (view.lock_index() > 0).then(|| watch::lock(view));
    own.into_iter().chain(lock).collect()
}
