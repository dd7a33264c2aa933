//! What must be true of a semaphore, as two looks at what really stands in the store tell. Each rule gives `Err` with
//! what breaks it.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use slotkeeper_semaphore::{Contender, Record, SessionId, View};

/// What stands in the store of one semaphore, as somebody sees it.
pub(super) trait Sight {
    /// The record, where there is one.
    fn record(&self) -> Option<&Record>;

    /// A session's own contender.
    fn contender(&self, session: &SessionId) -> Option<&Contender>;

    /// Those in line, in order.
    fn line(&self) -> impl Iterator<Item = &Contender>;

    /// The slots of a session in `.lock`; of a single-key lock, the one that there is.
    fn slots_of(&self, session: &SessionId) -> u32;
}

impl Sight for View {
    fn record(&self) -> Option<&Record> {
        self.record()
    }

    fn contender(&self, session: &SessionId) -> Option<&Contender> {
        self.contender(session)
    }

    fn line(&self) -> impl Iterator<Item = &Contender> {
        self.waiters().into_iter()
    }

    fn slots_of(&self, session: &SessionId) -> u32 {
        self.record().map_or(self.is_owner(session).into(), |record| record.slots_of(session))
    }
}

/// Where one stands in line.
type Place = (Reverse<i32>, u64);

/// Nobody is let in above the limit; where it was lowered below who holds, nobody at all.
pub(super) fn record(before: &impl Sight, after: &impl Sight) -> Result<(), String> {
    let Some(record) = after.record() else { return Ok(()) };
    let entered = record.holders.iter().find(|holder| before.slots_of(holder) == 0);
    require(record.taken() <= record.limit || entered.is_none(), || {
        format!("{entered:?} was let in above the limit: {record:?}")
    })
}

/// Nobody of ours in line is let in before one that stands ahead of it and could be. Who was not in line has taken what
/// it found free a moment before, with nobody in line; who has entered it since is passed by.
pub(super) fn order(before: &impl Sight, after: &impl Sight) -> Result<(), String> {
    let holders = after.record().map(|record| record.holders.as_slice()).unwrap_or_default();
    for session in holders.iter().filter(|holder| before.slots_of(holder) == 0) {
        let stood = before.contender(session).filter(|one| one.says_waiting());
        if let Some(stood) = stood {
            let priority = stood.priority().max(priority_in(after, stood));
            passes_nobody(before, after, session, (Reverse(priority), stood.create_index))?;
        }
    }
    Ok(())
}

/// Who has taken slots without having stood in line has passed nobody of whom it knew.
pub(super) fn newcomer(known: &impl Sight, after: &impl Sight, session: &SessionId) -> Result<(), String> {
    let priority = after.contender(session).map_or(0, Contender::priority);
    passes_nobody(known, after, session, (Reverse(priority), u64::MAX))
}

/// One that is let in at this place passes nobody that stood ahead of it, could have been let in, and still waits.
fn passes_nobody(
    before: &impl Sight,
    after: &impl Sight,
    session: &SessionId,
    place: Place,
) -> Result<(), String> {
    // Whoever wants more than the limit had is in no line before it is raised: `.lock` does not name it, and whoever raises it may
    // not have seen one that came an instant ago.
    let limits = [before.record(), after.record()].map(|record| record.map(|record| record.limit));
    let limit = limits.into_iter().flatten().min().unwrap_or_default();
    // So does one that comes to want more by the same transaction.
    let fits = |one: &Contender| {
        one.entry.as_ref().is_some_and(|entry| entry.slots <= limit && entry.together.is_empty())
    };
    let waited = |one: &&Contender| {
        let still = after.contender(&one.session).is_some_and(fits);
        fits(one) && still && after.slots_of(&one.session) == 0
    };
    // The transaction may have changed the priority of whoever wrote it: so the lower one, and the higher one of who enters.
    let stood = |one: &Contender| (Reverse(one.priority().min(priority_in(after, one))), one.create_index);
    // Nobody has been ahead of where it stood.
    let ahead = before.line().take_while(|one| (Reverse(one.priority()), one.create_index) < place);
    let passed = ahead.filter(waited).find(|one| stood(one) < place);
    let passed = passed.map(|one| (&one.session, stood(one)));
    require(passed.is_none(), || format!("{:?} was let in before {passed:?}", (session, place)))
}

/// Every live holder of ours has numbers of its own.
pub(super) fn numbers(view: &impl Sight) -> Result<(), String> {
    let Some(record) = view.record() else { return Ok(()) };
    let mut owners: BTreeMap<u32, &SessionId> = BTreeMap::new();
    for session in &record.holders {
        let Some(entry) = view.contender(session).and_then(|one| one.entry.as_ref()) else { continue };
        require(entry.indexes.len() == view.slots_of(session) as usize, || {
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
    let has = views.iter().any(|view| view.slots_of(session) > 0);
    let waits = |view: &View| view.contender(session).is_some_and(Contender::says_waiting);
    require(!(has && views.iter().any(waits)), || format!("{session} has one and waits for another"))
}

fn priority_in(view: &impl Sight, one: &Contender) -> i32 {
    view.contender(&one.session).map_or(one.priority(), Contender::priority)
}

fn require(kept: bool, broken: impl FnOnce() -> String) -> Result<(), String> {
    if kept { Ok(()) } else { Err(broken()) }
}
