//! The queue: the order of the waiters, and which of them free slots are for.
//!
//! The order is priority, then arrival. A waiter that wants several slots is not overtaken: the first waiter that does not fit ends the
//! granting. Waiters that were asked for a sign of life and have not answered come after all others.

use std::cmp::Reverse;

use super::SessionId;
use super::plan::Me;
use super::record::{Form, Record, count};
use super::settings::MAX_LIMIT;
use super::view::{Contender, View};

/// The maximum number of waiters in the handoff list. Each costs 39 bytes in every answer with `.lock`. After so many handoffs, the next
/// client that releases has to list.
pub(crate) const MAX_HANDOFFS: usize = 32;

/// The maximum number of slots in the handoff list: a waiter for several slots is named once for each. A waiter that wants more slots
/// ends the list.
pub(crate) const MAX_HANDOFF_SLOTS: u32 = 128;

/// The kinds of waiter, by how they come to their slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A slotkeeper client: another client offers it slots.
    Ours,
    /// A member of an acquire group, which takes its slots itself, together with those of other semaphores.
    Group,
    /// A foreign client, which takes its slots itself.
    Foreign,
}

/// A waiter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiter<'a> {
    pub(crate) session: &'a SessionId,
    /// The index of its contender key; 0 for a client that has not joined yet.
    pub(crate) index: u64,
    pub(crate) slots: u32,
    pub(crate) priority: i32,
    pub(crate) kind: Kind,
    pub(crate) asked: bool,
    arrival: u64,
}

impl<'a> Waiter<'a> {
    fn of(one: &'a Contender) -> Self {
        let entry = one.entry.as_ref();
        let kind = match entry {
            None => Kind::Foreign,
            Some(entry) if entry.together.is_empty() => Kind::Ours,
            Some(_) => Kind::Group,
        };
        Self {
            session: &one.session,
            index: one.modify_index,
            slots: entry.map_or(1, |entry| entry.slots.max(1)),
            priority: one.priority(),
            kind,
            asked: one.is_asked(),
            arrival: one.create_index,
        }
    }

    /// Whether a free slot serves it. Otherwise it waits for a higher limit or another format.
    pub(crate) fn is_served_by(&self, record: &Record) -> bool {
        // The numbers in `.lock` and in contender keys are untrusted input.
        let most = record.limit.min(if record.form() == Form::List { MAX_LIMIT } else { 1 });
        self.slots <= most
    }

    /// Whether it has written its contender key since it joined.
    pub(crate) fn has_answered(&self) -> bool {
        self.index != self.arrival
    }
}

/// All waiters that a view shows, in order, with the planning client at the position that it has or, before it has joined, would have.
///
/// A waiter ahead whose acquire group needs slots that `own` holds is passed over. It cannot acquire them before `own` has left, so that
/// the two would wait for each other.
pub(crate) fn in_order<'a>(view: &'a View, own: Option<Me<'a>>) -> Vec<Waiter<'a>> {
    let waits_for_us = |one: &Contender| own.is_some_and(|own| wants_any(one, own.holds));
    let waiters = view.waiters().into_iter().filter(|one| !waits_for_us(one));
    let mut line: Vec<_> = waiters.map(Waiter::of).collect();
    if let Some(Me { session, settings, together, .. }) = own {
        // A former holder whose slots were taken from it goes to the end.
        let stands = view.contender(session).filter(|one| !one.says_held());
        let (index, arrival) = stands.map_or((0, u64::MAX), |one| (one.modify_index, one.create_index));
        line.retain(|one| one.session != session);
        let kind = if together.is_some() { Kind::Group } else { Kind::Ours };
        // It lives, whatever others ask of it.
        let (slots, priority) = (settings.slots, settings.priority);
        line.push(Waiter { session, index, slots, priority, kind, asked: false, arrival });
    }
    line.sort_by_key(|one| (Reverse(one.priority), one.arrival));
    line
}

/// Whether the acquire group of a contender wants slots at one of these prefixes.
fn wants_any(one: &Contender, prefixes: &[String]) -> bool {
    let wanted = one.entry.as_ref().map(|entry| entry.together.as_slice()).unwrap_or_default();
    prefixes.iter().any(|prefix| wanted.contains(prefix))
}

/// Whether an acquire group in the queue waits for what a client holds at these other prefixes.
pub(crate) fn has_ring(view: &View, holds: &[String]) -> bool {
    view.contenders.iter().any(|one| wants_any(one, holds))
}

/// What free slots are for.
#[derive(Debug, Default)]
pub(crate) struct Share<'a> {
    /// The waiters to which slots are offered, in order.
    pub(crate) served: Vec<Waiter<'a>>,
    /// The first waiter that has to take the slots itself, for which they are left.
    pub(crate) left_to: Option<Waiter<'a>>,
    /// The waiter that keeps the other free slots, as they do not suffice for it.
    pub(crate) kept_by: Option<Waiter<'a>>,
}

/// Shares the `free` slots of `record` out to at most `most` waiters. Slots are left to a waiter that takes them itself until its turn
/// `is_over`, as is the time of an asked one to answer.
pub(crate) fn share<'a>(
    record: &Record,
    line: &[Waiter<'a>],
    is_over: &dyn Fn(&Waiter<'a>) -> bool,
    most: usize,
) -> Share<'a> {
    let mut share = Share::default();
    let mut free = record.free();
    // The asked ones are served only where no other waiter is left that fits.
    for asked in [false, true] {
        for one in line.iter().filter(|one| one.asked == asked && one.is_served_by(record)) {
            if free == 0 || share.served.len() == most {
                return share;
            }
            if asked && !is_over(one) || one.kind == Kind::Foreign && is_over(one) {
                continue;
            }
            if one.slots > free {
                share.kept_by = Some(*one);
                return share;
            }
            match one.kind {
                Kind::Ours => share.served.push(*one),
                Kind::Foreign | Kind::Group => share.left_to = share.left_to.or(Some(*one)),
            }
            if one.kind == Kind::Group {
                return share;
            }
            free -= one.slots;
        }
    }
    share
}

/// The handoff list for `.lock`, with the lowest priority in it: the first waiters that another client can offer slots. It ends with the
/// first waiter that it cannot.
pub(crate) fn handoff_list(record: &Record, line: &[Waiter<'_>]) -> (Vec<SessionId>, i32) {
    let (mut next, mut least) = (Vec::new(), 0);
    let in_line = line.iter().filter(|one| !one.asked && one.is_served_by(record));
    for one in in_line.take(MAX_HANDOFFS) {
        if one.kind != Kind::Ours || next.len() + one.slots as usize > MAX_HANDOFF_SLOTS as usize {
            break;
        }
        next.extend(std::iter::repeat_n(one.session, one.slots as usize).cloned());
        // The line is in order: the last one has the lowest.
        least = one.priority;
    }
    (next, least)
}

/// The waiters of the handoff list, with the number of slots that each wants.
pub(crate) fn named(record: &Record) -> Vec<(SessionId, u32)> {
    let each = record.next().chunk_by(|one, next| one == next);
    each.map(|named| (named[0].clone(), count(named.len()))).collect()
}
