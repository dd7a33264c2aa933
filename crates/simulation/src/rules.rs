//! The rules of a semaphore, checked on two successive states of the store. Each rule returns `Err` with the violation.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use slotkeeper_semaphore::{Contender, Record, SessionId, View};

/// A state of one semaphore.
pub(super) trait Sight {
    /// The record, if there is one.
    fn record(&self) -> Option<&Record>;

    /// The contender of a session.
    fn contender(&self, session: &SessionId) -> Option<&Contender>;

    /// The queue.
    fn queue(&self) -> impl Iterator<Item = &Contender>;

    /// The slots of a session in `.lock`. A single-key lock has one slot.
    fn slots_of(&self, session: &SessionId) -> u32;

    /// The index of the last change of `.lock`.
    fn lock_index(&self) -> u64;
}

impl Sight for View {
    fn record(&self) -> Option<&Record> {
        self.record()
    }

    fn contender(&self, session: &SessionId) -> Option<&Contender> {
        self.contender(session)
    }

    fn queue(&self) -> impl Iterator<Item = &Contender> {
        self.waiters().into_iter()
    }

    fn slots_of(&self, session: &SessionId) -> u32 {
        self.record().map_or(self.is_owner(session).into(), |record| record.slots_of(session))
    }

    fn lock_index(&self) -> u64 {
        self.lock_index()
    }
}

/// A position in the queue, by priority and age.
type Place = (Reverse<i32>, u64);

/// No holder is added above the limit. After the limit was lowered below the held slots, no holder is added at all.
pub(super) fn record(before: &impl Sight, after: &impl Sight) -> Result<(), String> {
    let Some(record) = after.record() else { return Ok(()) };
    let entered = record.holders.iter().find(|holder| before.slots_of(holder) == 0);
    require(record.taken() <= record.limit || entered.is_none(), || {
        format!("{entered:?} was added above the limit: {record:?}")
    })
}

/// No waiting agent acquires a slot before a waiter ahead of it that could have it. A client that never waited took a slot that was
/// free with an empty queue a moment before; it may pass waiters that joined since.
pub(super) fn order(
    before: &impl Sight,
    after: &impl Sight,
    is_writer: &dyn Fn(&SessionId) -> bool,
) -> Result<(), String> {
    let holders = after.record().map(|record| record.holders.as_slice()).unwrap_or_default();
    for session in holders.iter().filter(|holder| before.slots_of(holder) == 0) {
        let stood = before.contender(session).filter(|one| one.says_waiting());
        if let Some(stood) = stood {
            let priority = stood.priority().max(priority_in(after, stood));
            passes_no_waiter(before, after, session, (Reverse(priority), stood.create_index), is_writer)?;
        }
    }
    Ok(())
}

/// A client that acquired slots without having waited passed no waiter that it knew of.
pub(super) fn newcomer(known: &impl Sight, after: &impl Sight, session: &SessionId) -> Result<(), String> {
    let priority = after.contender(session).map_or(0, Contender::priority);
    passes_no_waiter(known, after, session, (Reverse(priority), u64::MAX), &|_| false)
}

/// A new holder from this position passed no waiter that was ahead of it, could have acquired a slot, and still waits.
fn passes_no_waiter(
    before: &impl Sight,
    after: &impl Sight,
    session: &SessionId,
    place: Place,
    is_writer: &dyn Fn(&SessionId) -> bool,
) -> Result<(), String> {
    // A waiter that needs more slots than the limit has no position before the limit is raised: `.lock` does not name it, and the
    // client that raises the limit may not have seen a waiter that joined an instant ago.
    let limits = [before.record(), after.record()].map(|record| record.map(|record| record.limit));
    let limit = limits.into_iter().flatten().min().unwrap_or_default();
    // The same holds for a waiter that asks for more slots in the same transaction.
    let fits = |one: &Contender| {
        one.entry.as_ref().is_some_and(|entry| {
            entry.slots <= limit && entry.together.is_empty() && !entry.asked && entry.evicted_by.is_none()
        })
    };
    let record = before.record();
    let hints = record.and_then(|record| record.hints.as_ref());
    // The writer knew the queue by a listing, which may be older than what a waiter says of itself: that it came with a priority, has
    // another one, or lives after all. A write of `.lock` makes the writer list again; beside foreign clients there is none.
    let unlisted = |one: &Contender| {
        let ahead = Reverse(one.priority()) < place.0;
        let changed = one.modify_index != one.create_index;
        (ahead || changed) && (hints.is_none() || one.modify_index > before.lock_index())
    };
    // The writer knew the handoff list alone, which does not name one that was away, or has just come with a priority; or any other, where a
    // client has announced itself and died before it named the others.
    let unnamed = |one: &Contender| {
        let Some(hints) = hints.filter(|hints| hints.next.contains(session)) else { return false };
        let came = one.priority() > hints.least || one.modify_index != one.create_index;
        let alone = hints.next.iter().all(|named| named == session);
        // It was named before it left and joined again, which it has yet to see: it stands where it stood.
        let named = |session: &SessionId| hints.next.iter().position(|named| named == session);
        let ahead = named(&one.session).is_some_and(|at| Some(at) < named(session));
        let again = place.1 > before.lock_index() && !ahead;
        again || (came || alone) && !hints.next.contains(&one.session)
    };
    let waited = |one: &&Contender| {
        // The writer may be of a new configuration, of which its contender key does not tell yet.
        if unlisted(one) || unnamed(one) || is_writer(&one.session) {
            return false;
        }
        let still = after.contender(&one.session).is_some_and(fits);
        fits(one) && still && after.slots_of(&one.session) == 0
    };
    // The transaction may have changed the priority of its writer. So the lower priority of a waiter counts, and the higher one of
    // a new holder.
    let stood = |one: &Contender| (Reverse(one.priority().min(priority_in(after, one))), one.create_index);
    // No waiter was ahead of its position in the queue.
    let ahead = before.queue().take_while(|one| (Reverse(one.priority()), one.create_index) < place);
    let passed = ahead.filter(waited).find(|one| stood(one) < place);
    let passed = passed.map(|one| (&one.session, stood(one)));
    require(passed.is_none(), || format!("{:?} acquired a slot before {passed:?}", (session, place)))
}

/// Every live agent that holds has slot indexes of its own.
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
            require(other.is_none(), || format!("{session} and {other:?} have slot {number}"))?;
        }
    }
    Ok(())
}

/// An acquire group never holds one slot while it waits for another.
pub(super) fn together(views: &[View], session: &SessionId) -> Result<(), String> {
    let has = views.iter().any(|view| view.slots_of(session) > 0);
    let waits = |view: &View| view.contender(session).is_some_and(Contender::says_waiting);
    require(!(has && views.iter().any(waits)), || {
        format!("{session} holds one slot of its acquire group and waits for another")
    })
}

fn priority_in(view: &impl Sight, one: &Contender) -> i32 {
    view.contender(&one.session).map_or(one.priority(), Contender::priority)
}

fn require(kept: bool, broken: impl FnOnce() -> String) -> Result<(), String> {
    if kept { Ok(()) } else { Err(broken()) }
}
