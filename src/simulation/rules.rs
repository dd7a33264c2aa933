//! What must be true of a semaphore, as two looks at what really stands in the store tell. Each rule gives `Err` with
//! what breaks it.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::semaphore::{Contender, SessionId, View};

/// Where one stands in line.
type Place = (Reverse<i32>, u64);

/// Nobody is let in above the limit; where it was lowered below who holds, nobody at all.
pub(super) fn record(before: &View, after: &View) -> Result<(), String> {
    let Some(record) = after.record() else { return Ok(()) };
    let entered = record.holders.iter().find(|holder| slots_of(before, holder) == 0);
    require(record.taken() <= record.limit || entered.is_none(), || {
        format!("{entered:?} was let in above the limit: {record:?}")
    })
}

/// Nobody of ours in line is let in before one that stands ahead of it and could be. Who was not in line has taken what
/// it found free a moment before, with nobody in line; who has entered it since is passed by.
pub(super) fn order(before: &View, after: &View) -> Result<(), String> {
    let holders = after.record().map(|record| record.holders.as_slice()).unwrap_or_default();
    for session in holders.iter().filter(|holder| slots_of(before, holder) == 0) {
        let stood = before.contender(session).filter(|one| one.says_waiting());
        if let Some(stood) = stood {
            let priority = stood.priority().max(priority_in(after, stood));
            passes_nobody(before, after, session, (Reverse(priority), stood.create_index))?;
        }
    }
    Ok(())
}

/// Who has taken slots without having stood in line has passed nobody of whom it knew.
pub(super) fn newcomer(known: &View, after: &View, session: &SessionId) -> Result<(), String> {
    let priority = after.contender(session).map_or(0, Contender::priority);
    passes_nobody(known, after, session, (Reverse(priority), u64::MAX))
}

/// One that is let in at this place passes nobody that stood ahead of it, could have been let in, and still waits.
fn passes_nobody(before: &View, after: &View, session: &SessionId, place: Place) -> Result<(), String> {
    // Whoever wants more than the limit had is in no line before it is raised: `.lock` does not name it, and whoever raises it may
    // not have seen one that came an instant ago.
    let limits = [before, after].map(|view| view.record().map(|record| record.limit));
    let limit = limits.into_iter().flatten().min().unwrap_or_default();
    // So does one that comes to want more by the same transaction.
    let fits = |one: &Contender| {
        one.entry.as_ref().is_some_and(|entry| entry.slots <= limit && entry.together.is_empty())
    };
    let waited = |one: &&Contender| {
        let still = after.contender(&one.session).is_some_and(fits);
        fits(one) && still && slots_of(after, &one.session) == 0
    };
    // The transaction may have changed the priority of whoever wrote it: so the lower one, and the higher one of who enters.
    let stood = |one: &Contender| (Reverse(one.priority().min(priority_in(after, one))), one.create_index);
    let passed = before.waiters().into_iter().filter(waited).find(|one| stood(one) < place);
    let passed = passed.map(|one| (&one.session, stood(one)));
    require(passed.is_none(), || format!("{:?} was let in before {passed:?}", (session, place)))
}

/// Every live holder of ours has numbers of its own.
pub(super) fn numbers(view: &View) -> Result<(), String> {
    let Some(record) = view.record() else { return Ok(()) };
    let mut owners: BTreeMap<u32, &SessionId> = BTreeMap::new();
    for session in &record.holders {
        let Some(entry) = view.contender(session).and_then(|one| one.entry.as_ref()) else { continue };
        require(entry.indexes.len() == record.slots_of(session) as usize, || {
            format!("{entry:?} in {record:?}")
        })?;
        for number in &entry.indexes {
            let other = owners.insert(*number, session).filter(|other| *other != session);
            require(other.is_none(), || format!("{session} and {other:?} have {number}"))?;
        }
    }
    Ok(())
}

/// Who takes slots together never has one while it stands in line for another.
pub(super) fn together(views: &[View], session: &SessionId) -> Result<(), String> {
    let has = views.iter().any(|view| slots_of(view, session) > 0);
    let waits = |view: &View| view.contender(session).is_some_and(Contender::says_waiting);
    require(!(has && views.iter().any(waits)), || format!("{session} has one and waits for another"))
}

/// The slots of a session in `.lock`; of a single-key lock, the one that there is.
pub(super) fn slots_of(view: &View, session: &SessionId) -> u32 {
    view.record().map_or(view.is_owner(session).into(), |record| record.slots_of(session))
}

fn priority_in(view: &View, one: &Contender) -> i32 {
    view.contender(&one.session).map_or(one.priority(), Contender::priority)
}

fn require(kept: bool, broken: impl FnOnce() -> String) -> Result<(), String> {
    if kept { Ok(()) } else { Err(broken()) }
}
