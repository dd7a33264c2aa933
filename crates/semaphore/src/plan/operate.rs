//! Operator planning: transactions of an operator, which is no participant.

use std::collections::BTreeSet;

use super::draft::{Draft, MAX_LEFTOVERS};
use super::serve;
use super::{Write, hidden_keys_error, no_semaphore};
use crate::contender::Entry;
use crate::line::{self, Waiter};
use crate::record::{Record, excerpt};
use crate::view::{LockKeyState, Stray, View};
use crate::{Moment, Op, SessionId};

/// The queue, in order: each waiter's session, and whether a free slot serves it. Otherwise the waiter is passed over: it waits for a
/// higher limit, or for a `.lock` in a format that can express its request.
pub fn queue(view: &View) -> Vec<(SessionId, bool)> {
    let is_served = |one: &Waiter<'_>| view.record().is_none_or(|record| one.is_served_by(record));
    let line = line::in_order(view, None);
    line.iter().map(|one| (one.session.clone(), is_served(one))).collect()
}

/// The record that an operator means to change.
///
/// # Errors
///
/// What lies under `.lock` is no semaphore, or there is none, or keys are hidden: what was found, and what to do.
pub fn existing_record(view: &View) -> Result<&Record, String> {
    check_visible(view)?;
    match &view.lock {
        LockKeyState::Record { record, .. } => Ok(record),
        LockKeyState::Missing | LockKeyState::Single(_) => Err(format!(
            "there is no semaphore at {}: the key {} does not exist",
            view.prefix(),
            view.lock_key()
        )),
        LockKeyState::Conflict { found, .. } => Err(no_semaphore(view, found)),
    }
}

/// Checks that an operator may act on that view.
///
/// # Errors
///
/// Keys are hidden from the token: which rule it needs.
pub fn check_visible(view: &View) -> Result<(), String> {
    if view.is_filtered() { Err(hidden_keys_error(view.prefix(), "write")) } else { Ok(()) }
}

/// Returns the transaction that changes the limit and offers the slots that become free to waiters; `None` where there is nothing to do. One
/// transaction makes a bounded number of offers: list again, and call this function again.
///
/// # Errors
///
/// What lies under `.lock` is no semaphore, or there is none: what was found, and what to do.
pub fn set_limit(view: &View, limit: u32, wall: &str, now: Moment) -> Result<Option<Write>, String> {
    let mut draft = Draft::new(view, existing_record(view)?.clone(), wall);
    draft.record.limit = limit;
    Ok(serve::for_operator(draft, None, now).draft.finish())
}

/// The transaction that prunes the dead holders among `whom`, hands the freed slots off, and deletes keys that ended sessions have left;
/// `None` if there is nothing to do. One transaction is bounded: apply it to the view and call this function again.
///
/// # Errors
///
/// What lies under `.lock` is no semaphore, or there is none: what was found, and what to do.
pub fn prune(
    view: &View,
    whom: &BTreeSet<SessionId>,
    wall: &str,
    now: Moment,
) -> Result<Option<Write>, String> {
    let mut draft = Draft::new(view, existing_record(view)?.clone(), wall);
    draft.prune(view.dead().into_iter().filter(|holder| whom.contains(*holder)));
    let mut served = serve::for_operator(draft, None, now);
    served.draft.delete_leftovers();
    Ok(served.draft.finish())
}

/// The transaction that deletes a semaphore without holders and waiters, or a single-key lock without a holder, and keys that ended
/// sessions have left beside it. The key must still have that index. `None` if it is gone. One transaction is bounded: apply it to the view
/// and call this function again. The last one deletes the key.
///
/// A client that joins at that moment is not harmed. If it writes the key first, this transaction fails. If it has read the key before, its
/// check-and-set fails and it creates a new one. A client that has only a contender key has no slot to lose.
///
/// `known` gives a name to a session whose key has none.
///
/// # Errors
///
/// There is a holder, a waiter or something else, the key has changed meanwhile, or keys are hidden: what was found, and what to do.
pub fn destroy(
    view: &View,
    index: u64,
    known: &dyn Fn(&SessionId) -> Option<String>,
) -> Result<Option<Write>, String> {
    check_visible(view)?;
    let key = view.lock_key();
    match &view.lock {
        LockKeyState::Missing => return Ok(None),
        LockKeyState::Record { record, .. } => refuse_in_use(view, record, known)?,
        LockKeyState::Single(single) => {
            if let Some(wrong) = &single.wrong {
                return Err(wrong.why.clone());
            }
            if let Some(owner) = &single.owner {
                let owner = named(owner, single.entry.as_ref(), known);
                return Err(format!("the lock {key} is in use: {owner} has it"));
            }
        }
        LockKeyState::Conflict { found, .. } => return Err(no_semaphore(view, found)),
    }
    if view.lock_index() != index {
        return Err(format!("{key} was changed before the confirmation; inspect it again"));
    }
    let sweep = view.leftovers.iter().take(MAX_LEFTOVERS).map(Stray::delete);
    let last = view.leftovers.len() <= MAX_LEFTOVERS;
    let own = if last { Op::DeleteCas { key, index } } else { Op::CheckIndex { key, index } };
    Ok(Some(Write::of(std::iter::once(own).chain(sweep).collect())))
}

/// Fails with the names of holders and waiters, and of dead holders.
fn refuse_in_use(
    view: &View,
    record: &Record,
    known: &dyn Fn(&SessionId) -> Option<String>,
) -> Result<(), String> {
    let holders: BTreeSet<_> = record.holders.iter().collect();
    let (live, dead): (Vec<_>, Vec<_>) =
        holders.iter().copied().partition(|holder| view.lives(holder) != Some(false));
    // A holder that was removed joins the queue again as soon as it notices.
    let waits = |session: &&SessionId| !holders.contains(session);
    let waiting: Vec<_> = view.contenders.iter().map(|one| &one.session).filter(waits).collect();
    let all = |sessions: &[&SessionId]| {
        let mut all: Vec<_> =
            sessions.iter().take(MAX_NAMED).map(|one| named(one, view.entry_of(one), known)).collect();
        if sessions.len() > MAX_NAMED {
            all.push(format!("{} more", sessions.len() - MAX_NAMED));
        }
        all.join(", ")
    };
    let held = (!live.is_empty()).then(|| format!("held by {}", all(&live)));
    let waited = (!waiting.is_empty()).then(|| format!("waited for by {}", all(&waiting)));
    let who: Vec<_> = held.into_iter().chain(waited).collect();
    let prefix = view.prefix();
    if !who.is_empty() {
        return Err(format!("the semaphore {prefix} is in use: {}", who.join("; ")));
    }
    if !dead.is_empty() {
        return Err(format!(
            "the semaphore {prefix} still lists dead holders: {}; prune them first: slotkeeper prune {prefix}",
            all(&dead)
        ));
    }
    Ok(())
}

/// The maximum number of participants that an error message names.
const MAX_NAMED: usize = 5;

/// The name of a participant as far as it is known, printable.
fn named(session: &SessionId, entry: Option<&Entry>, known: &dyn Fn(&SessionId) -> Option<String>) -> String {
    let who = entry.and_then(|entry| entry.who.in_words()).or_else(|| known(session));
    let session = excerpt(session.as_str());
    who.map_or_else(|| format!("session {session}"), |who| format!("{who} (session {session})"))
}
