//! The queue: the order of the waiters, which of them are granted free slots, and which slots these are.
//!
//! The order is priority, then arrival. A waiter that wants several slots is not overtaken: the first waiter that does not fit ends the
//! granting.

use std::collections::BTreeSet;

use super::SessionId;
use super::contender::Entry;
use super::record::{Form, Record};
use super::size::MAX_LIMIT;
use super::view::{Contender, View};

/// The maximum number of waiters in the handoff list. Each costs 39 bytes in every answer with `.lock`. After so many handoffs, the next
/// client that releases has to list.
pub(super) const MAX_HANDOFFS: usize = 32;

/// The maximum number of slots in the handoff list. The value of `.lock` is bounded, and a waiter for several slots is named once for
/// each. A waiter that wants more slots acquires them itself when it is at the head of the queue.
pub(super) const MAX_HANDOFF_SLOTS: u32 = 128;

/// The maximum number of waiters that one transaction grants slots: it may have 64 steps in all (Consul up to 1.13).
pub(super) const MAX_GRANTS: usize = 40;

/// What is known of a waiter.
#[derive(Clone, Copy, Debug)]
pub(super) enum WaiterKind<'a> {
    /// The planning client.
    Own {
        /// Whether it is a member of an acquire group. Then no other client can grant it slots.
        together: bool,
        /// Whether a client that knows only its name can grant it slots.
        nameable: bool,
    },
    /// Another slotkeeper client.
    Ours {
        /// The value of its contender key.
        entry: &'a Entry,
        /// The index of the key's last change.
        index: u64,
    },
    /// A foreign client. It acquires its slots itself.
    Foreign {
        /// It did not take the slots that were left to it, so that it is left none any more.
        idle: bool,
    },
}

/// A waiter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter<'a> {
    pub(super) session: &'a SessionId,
    pub(super) slots: u32,
    pub(super) kind: WaiterKind<'a>,
}

/// The planning client as a waiter.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnWaiter<'a> {
    pub(super) session: &'a SessionId,
    pub(super) slots: u32,
    pub(super) priority: i32,
    /// Whether it is a member of an acquire group.
    pub(super) together: bool,
    /// Whether it moves to the end of the queue.
    pub(super) anew: bool,
    /// The other prefixes at which it holds slots.
    pub(super) holds: &'a [String],
}

/// The result of granting the free slots.
#[derive(Debug, Default)]
pub(super) struct Grants<'a> {
    /// The waiters that are granted slots, in order.
    pub(super) granted: Vec<Waiter<'a>>,
    /// Slots were left to a foreign client, whose turn it is.
    pub(super) left_to_foreign: bool,
}

/// All waiters that `view` knows, in order, with the planning client at the position that it has or, before it has joined, would have.
///
/// A waiter ahead whose acquire group needs slots that `own` holds is passed over. It cannot acquire them before `own` has left, so that
/// the two would wait for each other.
pub(super) fn in_order<'a>(view: &'a View, own: Option<OwnWaiter<'a>>) -> Vec<Waiter<'a>> {
    let waits_for_us = |one: &Contender| {
        let wanted = one.entry.as_ref().map(|entry| entry.together.as_slice()).unwrap_or_default();
        own.is_some_and(|own| own.holds.iter().any(|held| wanted.contains(held)))
    };
    let waiters = view.waiters().into_iter().filter(|one| !waits_for_us(one));
    let mut line: Vec<_> = waiters.map(|one| (key(view, one), Waiter::of(view, one))).collect();
    if let Some(own) = own {
        // A former holder that was removed from `.lock` goes to the end.
        let stands = view.contender(own.session).filter(|one| !one.says_held() && !own.anew);
        let arrival = stands.map_or(u64::MAX, |one| view.arrival(one));
        line.retain(|(_, one)| one.session != own.session);
        let nameable = !own.together && own.priority >= 0;
        let kind = WaiterKind::Own { together: own.together, nameable };
        line.push((
            (std::cmp::Reverse(own.priority), arrival),
            Waiter { session: own.session, slots: own.slots, kind },
        ));
        line.sort_by_key(|(key, _)| *key);
    }
    line.into_iter().map(|(_, one)| one).collect()
}

fn key(view: &View, one: &Contender) -> (std::cmp::Reverse<i32>, u64) {
    (std::cmp::Reverse(one.priority()), view.arrival(one))
}

impl<'a> Waiter<'a> {
    fn of(view: &View, one: &'a Contender) -> Self {
        let (slots, kind) = match &one.entry {
            Some(entry) => (entry.slots.max(1), WaiterKind::Ours { entry, index: one.modify_index }),
            None => (1, WaiterKind::Foreign { idle: view.is_idle(one) }),
        };
        Self { session: &one.session, slots, kind }
    }

    /// Whether another client may grant the waiter its slots.
    pub(super) fn is_grantable(&self) -> bool {
        match self.kind {
            WaiterKind::Own { together, .. } => !together,
            WaiterKind::Ours { entry, .. } => entry.together.is_empty(),
            WaiterKind::Foreign { .. } => false,
        }
    }

    /// Whether a client that knows only its name may grant it slots. A waiter with a priority below 0 is
    /// overtaken by each newcomer, of which `.lock` says nothing.
    pub(super) fn is_nameable(&self) -> bool {
        match self.kind {
            WaiterKind::Own { nameable, .. } => nameable,
            WaiterKind::Ours { entry, .. } => entry.together.is_empty() && entry.priority >= 0,
            WaiterKind::Foreign { .. } => false,
        }
    }

    /// Whether a free slot serves it. Otherwise it waits for a higher limit or another format.
    pub(super) fn is_served_by(&self, record: &Record) -> bool {
        // The numbers in `.lock` and in contender keys are untrusted input.
        let most = record.limit.min(if record.form() == Form::List { MAX_LIMIT } else { 1 });
        self.slots <= most
    }

    pub(super) fn is_foreign(&self) -> bool {
        matches!(self.kind, WaiterKind::Foreign { .. })
    }

    /// Whether it can be the lookout: a slotkeeper client that is in no acquire group.
    pub(super) fn can_watch(&self) -> bool {
        match self.kind {
            WaiterKind::Own { together, .. } => !together,
            WaiterKind::Ours { entry, .. } => entry.together.is_empty(),
            WaiterKind::Foreign { .. } => false,
        }
    }

    /// Whether it is a foreign client that is passed over, because it did not take the slots that were left to it.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.kind, WaiterKind::Foreign { idle: true })
    }
}

/// Grants the free slots of `record` to the first waiters, at most `most` of them. While `foreign_turn` lasts, one slot is left for each
/// foreign client ahead.
pub(super) fn grants<'a>(
    record: &Record,
    line: &[Waiter<'a>],
    foreign_turn: bool,
    most: usize,
) -> Grants<'a> {
    let mut filled = Grants::default();
    let mut free = record.limit.saturating_sub(record.taken());
    for one in line {
        if free == 0 || filled.granted.len() == most {
            break;
        }
        match one.kind {
            WaiterKind::Foreign { idle: false } if foreign_turn => {
                free -= 1;
                filled.left_to_foreign = true;
            }
            WaiterKind::Foreign { .. } => {}
            WaiterKind::Own { .. } | WaiterKind::Ours { .. } if !one.is_served_by(record) => {}
            WaiterKind::Own { .. } | WaiterKind::Ours { .. } if one.slots > free => break,
            WaiterKind::Ours { .. } if !one.is_grantable() => break,
            WaiterKind::Own { .. } | WaiterKind::Ours { .. } => {
                free -= one.slots;
                filled.granted.push(*one);
            }
        }
    }
    filled
}

/// The handoff list for `.lock`: the waiters that any client can grant slots, with [`Record::OTHERS`] for the waiters between them that it
/// cannot. `most` waiters are considered. The list is not written while a foreign client waits, which may reject the field.
pub(super) fn handoff_list(record: &Record, line: &[Waiter<'_>], most: usize) -> Vec<SessionId> {
    let is_served = |one: &&Waiter<'_>| record.slots_of(one.session) == 0 && one.is_served_by(record);
    let in_line = line.iter().filter(is_served);
    let others = SessionId::from(Record::OTHERS);
    let mut next: Vec<SessionId> = Vec::new();
    for one in in_line.take(most) {
        if one.is_nameable() {
            if next.len() + one.slots as usize > MAX_HANDOFF_SLOTS as usize {
                break;
            }
            next.extend(std::iter::repeat_n(one.session, one.slots as usize).cloned());
        } else if next.last() != Some(&others) {
            next.push(others.clone());
        }
    }
    // At the end of the list, [`Record::OTHERS`] says nothing.
    next.pop_if(|last| *last == others);
    next
}

/// The waiter at the beginning of a handoff list.
pub(super) fn first_served<'a>(record: &Record, line: &[Waiter<'a>]) -> Option<Waiter<'a>> {
    let is_served = |one: &&Waiter<'_>| record.slots_of(one.session) == 0 && one.is_served_by(record);
    line.iter().find(is_served).copied()
}

/// The waiters of the handoff list, with the number of slots that each wants.
pub(super) fn handoffs(record: &Record) -> Vec<(&SessionId, u32)> {
    let mut named: Vec<(&SessionId, u32)> = Vec::new();
    for session in &record.next {
        match named.last_mut().filter(|(last, _)| *last == session) {
            Some((_, slots)) => *slots += 1,
            None => named.push((session, 1)),
        }
    }
    named
}

/// The lowest slot indexes that no known slotkeeper client has, `wanted` in all. This is exact if only foreign clients have become
/// holders since the listing, as those have no slot index.
pub(super) fn known_free_slots(view: &View, record: &Record, wanted: u32) -> Vec<u32> {
    let entries = record.holders.iter().filter_map(|holder| view.contender(holder)?.entry.as_ref());
    let used: BTreeSet<u32> = entries.flat_map(|entry| entry.indexes.iter().copied()).collect();
    (0..record.limit).filter(|number| !used.contains(number)).take(wanted as usize).collect()
}

/// The indexes of free slots, `wanted` in all: first those of `freed` that are below the limit, then the lowest that no slotkeeper holder
/// has. An incomplete view does not know all indexes in use, so that it offers the freed ones alone. A holder whose contender key an
/// operator has deleted may still use one of them: it has lost its slot.
pub(super) fn free_slots(view: &View, record: &Record, freed: &[u32], wanted: u32) -> Vec<u32> {
    let holders: BTreeSet<_> = record.holders.iter().collect();
    let entries = holders.iter().filter_map(|holder| view.contender(holder)?.entry.as_ref());
    let used: BTreeSet<u32> = entries.flat_map(|entry| entry.indexes.iter().copied()).collect();
    let is_free = |number: &u32| *number < record.limit && !used.contains(number);
    let mut numbers: Vec<u32> = freed.iter().copied().filter(is_free).collect();
    if view.is_complete() {
        let others = (0..record.limit).filter(|number| !used.contains(number) && !freed.contains(number));
        numbers.extend(others.take((wanted as usize).saturating_sub(numbers.len())));
    }
    numbers
}
