//! The queue: the order of the waiters, which of them are granted free slots, and which slots these are.
//!
//! The order is priority, then arrival. A waiter that wants several slots is not overtaken: the first waiter that does not fit ends the
//! granting.

use std::collections::BTreeSet;

use super::SessionId;
use super::contender::Entry;
use super::record::{Form, Record};
use super::size::can_be_granted;
use super::view::{Contender, View};

/// Waiters that `.lock` names as next. Each costs 39 bytes in every answer that carries `.lock`; that many handoffs
/// later, whoever releases has to list.
pub(super) const MAX_HANDOFFS: usize = 32;

/// Slots that those named may want together: the value of `.lock` is bounded, and a request for many slots names its
/// session as often. Whoever wants more than that pulls them itself, as the head of the line.
pub(super) const MAX_HANDOFF_SLOTS: u32 = 128;

/// Those whom one transaction lets in, which may have 64 steps in all (Consul up to 1.13).
pub(super) const MAX_GRANTS: usize = 40;

/// What is known of a waiter.
#[derive(Clone, Copy, Debug)]
pub(super) enum WaiterKind<'a> {
    /// The planning client.
    Own {
        /// Whether it takes its slots only together with others. Then nobody else can let it in.
        together: bool,
        /// Whether it can be let in by whoever knows no more than its name.
        nameable: bool,
    },
    /// Another slotkeeper client.
    Ours {
        /// Its value.
        entry: &'a Entry,
        /// The index of its last change.
        index: u64,
    },
    /// A foreign client. It acquires its slots itself.
    Foreign {
        /// It has let slots pass for so long that none is left to it.
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
    /// Whether it takes its slots only together with others.
    pub(super) together: bool,
    /// Whether its entry bears a nonce, which must not be lost.
    pub(super) nonce: bool,
    /// Whether it goes to the end of the line, wherever it stands.
    pub(super) anew: bool,
    /// The other prefixes under which it holds.
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

/// Everybody in line, in order: as `view` knows it, and with `own` where it stands or, if it is not in line yet,
/// would stand.
///
/// One ahead that wants slots together, among them some that `own` holds, cannot have them before `own` is done: it is
/// passed over, or the two would wait for each other.
pub(super) fn in_order<'a>(view: &'a View, own: Option<OwnWaiter<'a>>) -> Vec<Waiter<'a>> {
    let waits_for_us = |one: &Contender| {
        let wanted = one.entry.as_ref().map(|entry| entry.together.as_slice()).unwrap_or_default();
        own.is_some_and(|own| own.holds.iter().any(|held| wanted.contains(held)))
    };
    let waiters = view.waiters().into_iter().filter(|one| !waits_for_us(one));
    let mut line: Vec<_> = waiters.map(|one| (key(view, one), Waiter::of(view, one))).collect();
    if let Some(own) = own {
        // One that was let in before and has been taken out goes to the end.
        let stands = view.contender(own.session).filter(|one| !one.says_held() && !own.anew);
        let arrival = stands.map_or(u64::MAX, |one| view.arrival(one));
        line.retain(|(_, one)| one.session != own.session);
        let nameable = !own.together && !own.nonce && own.priority >= 0;
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

    /// Whether it may be let in by whoever knows no more of it than its name. Of one with a nonce that would be lost; and one with
    /// a priority below the usual one is passed by whoever comes, without a word in `.lock`.
    pub(super) fn is_nameable(&self) -> bool {
        match self.kind {
            WaiterKind::Own { nameable, .. } => nameable,
            WaiterKind::Ours { entry, .. } => {
                entry.together.is_empty() && entry.nonce.is_none() && entry.priority >= 0
            }
            WaiterKind::Foreign { .. } => false,
        }
    }

    /// Whether it waits for a slot, and not for a higher limit or another form.
    pub(super) fn is_served_by(&self, record: &Record) -> bool {
        // What `.lock` and the contenders say may be any number.
        let fits = || can_be_granted(record.form(), self.slots);
        self.slots <= record.limit && (self.slots == 1 || record.form() == Form::List && fits())
    }

    pub(super) fn is_foreign(&self) -> bool {
        matches!(self.kind, WaiterKind::Foreign { .. })
    }

    /// Whether it is one of ours that watches over all who wait where it is told to: one that takes its slots together with others
    /// looks after itself alone.
    pub(super) fn can_watch(&self) -> bool {
        match self.kind {
            WaiterKind::Own { together, .. } => !together,
            WaiterKind::Ours { entry, .. } => entry.lookout.is_some() && entry.together.is_empty(),
            WaiterKind::Foreign { .. } => false,
        }
    }

    /// Whether it has let slots pass for so long that it is passed over.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.kind, WaiterKind::Foreign { idle: true })
    }
}

/// Gives the free slots of `record` to the first in `line`, `most` at most. While it is `foreign_turn`, other clients that
/// stand ahead find a slot left for each.
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

/// The sessions to be named in `.lock`: those who can be let in by anybody, and where others stand between them. Nobody is
/// named while a client of another kind is in the line: it may take no field of ours in its record. `most` are looked at.
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
    // With nobody behind them that can be let in they say nothing.
    next.pop_if(|last| *last == others);
    next
}

/// The first in line that a handoff list begins with, where there is one.
pub(super) fn first_served<'a>(record: &Record, line: &[Waiter<'a>]) -> Option<Waiter<'a>> {
    let is_served = |one: &&Waiter<'_>| record.slots_of(one.session) == 0 && one.is_served_by(record);
    line.iter().find(is_served).copied()
}

/// Those whom `.lock` names as next, with the slots that each wants.
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

/// As many of the lowest numbers that none of ours has who is known, where only clients of another kind have come into `record` since they
/// were listed: those have none.
pub(super) fn known_free_slots(view: &View, record: &Record, wanted: u32) -> Vec<u32> {
    let entries = record.holders.iter().filter_map(|holder| view.contender(holder)?.entry.as_ref());
    let used: BTreeSet<u32> = entries.flat_map(|entry| entry.indexes.iter().copied()).collect();
    (0..record.limit).filter(|number| !used.contains(number)).take(wanted as usize).collect()
}

/// The numbers of free slots: first those of `freed` that the limit still has, then the lowest that no holder of ours
/// in `record` has, `wanted` in all. A view that is not complete does not know them all, and then it is only those
/// freed. Of the latter, too, somebody may have one: who lost its contender to an operator had given it up.
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
