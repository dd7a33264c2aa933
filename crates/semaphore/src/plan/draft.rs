//! A transaction in the making: what it does to `.lock`, and to contender keys.

use std::collections::{BTreeMap, BTreeSet};

use super::{Grant, Me, Own, Write};
use crate::contender::{Entry, WaiterState};
use crate::line::{self, Share, Waiter};
use crate::record::{Hints, Record, count};
use crate::view::{Contender, Stray, View};
use crate::{Op, SessionId};

/// The maximum number of steps of a transaction: Consul's, up to 1.13.
const MAX_STEPS: usize = 64;
/// Steps that are left for `.lock`, the own contender key, a listing, and the checks of these.
const OTHER_STEPS: usize = 8;
/// The maximum number of waiters that one transaction offers slots to, or asks for a sign of life. Each takes at most two steps.
pub(super) const MAX_SERVED: usize = 24;
/// The maximum number of keys of ended sessions that one transaction deletes.
pub(super) const MAX_LEFTOVERS: usize = 16;

/// A transaction in the making.
pub(super) struct Draft<'a> {
    pub(super) view: &'a View,
    /// For people.
    wall: &'a str,
    pub(super) record: Record,
    /// The slot indexes of the holders, as far as they are known.
    indexes: BTreeMap<SessionId, Vec<u32>>,
    /// The slot indexes of a client that leaves by it. They are handed on first.
    freed: Vec<u32>,
    /// The transaction, without the step of `.lock`.
    pub(super) write: Write,
    /// All keys are listed after the other steps.
    pub(super) lists: bool,
    /// `.lock` is created where there is none, so that it can be watched.
    pub(super) creates: bool,
}

impl<'a> Draft<'a> {
    /// A change of `record`, which is that of the view, or a new one.
    pub(super) fn new(view: &'a View, record: Record, wall: &'a str) -> Self {
        let indexes = view.indexes().into_iter().map(|(id, indexes)| (id.clone(), indexes)).collect();
        let (freed, write) = (Vec::new(), Write::default());
        Self { view, wall, record, indexes, freed, write, lists: false, creates: false }
    }

    /// Takes a session that leaves out of the holders.
    pub(super) fn release(&mut self, session: &SessionId) {
        self.freed = self.remove_holder(session);
    }

    /// Takes a session out of the holders. Returns the indexes of its slots.
    fn remove_holder(&mut self, session: &SessionId) -> Vec<u32> {
        self.record.holders.retain(|holder| holder != session);
        self.indexes.remove(session).unwrap_or_default()
    }

    /// Takes dead holders out of `.lock`.
    pub(super) fn prune<'s>(&mut self, dead: impl IntoIterator<Item = &'s SessionId>) {
        let before = self.record.taken();
        for holder in dead {
            self.remove_holder(holder);
        }
        self.write.pruned += before - self.record.taken();
    }

    fn hold(&mut self, session: &SessionId, indexes: Vec<u32>) {
        self.record.holders.extend(indexes.iter().map(|_| session.clone()));
        self.indexes.insert(session.clone(), indexes);
    }

    /// The lowest slot indexes that no holder is known to have, the freed ones before others.
    fn free_indexes(&self, wanted: u32) -> Vec<u32> {
        let used: BTreeSet<u32> = self.indexes.values().flatten().copied().collect();
        let is_free = |index: &u32| *index < self.record.limit && !used.contains(index);
        let first: Vec<_> = self.freed.iter().copied().filter(is_free).collect();
        let rest = (0..self.record.limit).filter(|index| !used.contains(index) && !first.contains(index));
        first.iter().copied().chain(rest).take(wanted as usize).collect()
    }

    /// Shares the free slots out to the first waiters, those with the freed indexes first: offers them to others, and takes its own for
    /// `me`, if it is in the line. Nothing is granted where keys may be hidden.
    pub(super) fn share(
        &mut self,
        line: &[Waiter<'a>],
        me: Option<Me<'_>>,
        is_over: &dyn Fn(&Waiter<'a>) -> bool,
    ) -> Share<'a> {
        if self.view.is_filtered() {
            return Share::default();
        }
        let share = line::share(&self.record, line, is_over, MAX_SERVED);
        // There may be more to serve, by the next write.
        self.lists |= share.served.len() == MAX_SERVED;
        let beside = u32::try_from(share.served.len()).ok().filter(|served| *served > 1);
        for one in &share.served {
            let indexes = self.free_indexes(one.slots);
            match me.filter(|me| me.session == one.session) {
                Some(me) => self.take(&me, indexes, beside),
                None => self.offer(one, indexes, beside),
            }
        }
        share
    }

    /// Offers slots to a waiter that the view shows. The offer fails if the waiter's key has changed since.
    fn offer(&mut self, one: &Waiter<'_>, indexes: Vec<u32>, beside: Option<u32>) {
        let Some(entry) = self.view.contender(one.session).and_then(|one| one.entry.clone()) else { return };
        let entry = Entry { beside, ..entry.offered(one.slots, indexes.clone(), self.wall) };
        self.cas(one.session, entry, one.index);
        self.hold(one.session, indexes);
        self.write.offered.push(one.session.clone());
    }

    /// Offers the freed slots to the waiters that `.lock` names. Returns whether all slots that are free were offered, as far as somebody
    /// waits for them; otherwise the keys have to be listed first.
    pub(super) fn offer_by_name(&mut self) -> bool {
        let Some(hints) = self.record.hints.clone() else { return false };
        let named = line::named(&self.record);
        let (mut served, mut left) = (0, hints.waiting);
        for (session, slots) in &named {
            let indexes = self.free_indexes(*slots);
            if self.record.slots_of(session) > 0 {
                // Another client has served it meanwhile, which has not written the list.
                return false;
            }
            if *slots > self.record.free() || served == MAX_SERVED {
                break;
            }
            self.offer_to_name(session, indexes);
            (served, left) = (served + 1, left.saturating_sub(1));
        }
        let rest: u32 = named.iter().skip(served).map(|(_, slots)| slots).sum();
        if let Some(hints) = &mut self.record.hints {
            hints.next = hints.next.split_off(hints.next.len() - rest as usize);
            hints.waiting = left;
        }
        // The first of those that are left waits for more slots than are free, or there is none.
        self.record.free() == 0 || left == 0 || served < named.len() && served < MAX_SERVED
    }

    /// Offers slots to a waiter of which nothing but the session is known. It tells the rest when it accepts.
    fn offer_to_name(&mut self, session: &SessionId, indexes: Vec<u32>) {
        let key = self.view.contender_key(session);
        let slots = count(indexes.len());
        let entry = Entry::new(WaiterState::Waiting, slots, 0, String::new(), Default::default());
        let entry = entry.offered(slots, indexes.clone(), self.wall);
        self.write.ops.push(Op::CheckSession { key: key.clone(), session: session.clone() });
        let (value, flags) = (entry.encode(), self.record.flags());
        self.write.ops.push(Op::Lock { key, value, flags, session: session.clone() });
        self.hold(session, indexes);
        self.write.offered.push(session.clone());
    }

    /// Takes free slots for the planning client. Returns whether they suffice.
    pub(super) fn take_free(&mut self, me: &Me<'_>) -> bool {
        let slots = me.settings.slots;
        let fits = slots <= self.record.free();
        if fits {
            let indexes = self.free_indexes(slots);
            self.take(me, indexes, None);
        }
        fits
    }

    fn take(&mut self, me: &Me<'_>, indexes: Vec<u32>, beside: Option<u32>) {
        let entry = me.entry(WaiterState::Held, indexes.clone());
        self.write_own(me, Entry { beside, ..entry });
        self.hold(me.session, indexes.clone());
        self.write.own = Own::Holds(Grant { token: None, indexes });
    }

    /// Takes back an offer that its taker has not accepted, and asks the taker for a sign of life.
    pub(super) fn withdraw(&mut self, one: &Contender) {
        self.remove_holder(&one.session);
        self.ask(one);
    }

    /// Asks a waiter for a sign of life.
    pub(super) fn ask(&mut self, one: &Contender) {
        if let Some(entry) = one.entry.clone() {
            self.cas(&one.session, entry.asked(), one.modify_index);
            self.write.asked.push(one.session.clone());
        }
    }

    /// Whether the session has slots once this is committed.
    pub(super) fn holds(&self, session: &SessionId) -> bool {
        self.record.slots_of(session) > 0
    }

    /// The number of waiters that the transaction can still write to.
    pub(super) fn room(&self) -> usize {
        (MAX_STEPS - OTHER_STEPS).saturating_sub(self.write.ops.len())
    }

    fn cas(&mut self, session: &SessionId, entry: Entry, index: u64) {
        let (key, value) = (self.view.contender_key(session), entry.encode());
        self.write.ops.push(Op::Cas { key, value, flags: self.record.flags(), index });
    }

    /// Writes the own contender key by check-and-set: another client may offer slots to it at this moment.
    pub(super) fn write_own(&mut self, me: &Me<'_>, entry: Entry) {
        // After its slots were taken from it, the client joins at the end. If it takes others at once, Consul would not see the same value
        // as a write, whose index is the token.
        let has = self.view.slots_of(me.session) > 0;
        let falls = |one: &Contender| {
            one.state() == Some(WaiterState::Held) && (entry.state == WaiterState::Waiting || !has)
        };
        match self.view.contender(me.session).filter(|one| !falls(one)) {
            Some(one) => self.cas(me.session, entry, one.modify_index),
            None => self.rejoin(me, entry),
        }
    }

    /// Writes the own contender key anew, which moves it to the end of the queue.
    pub(super) fn rejoin(&mut self, me: &Me<'_>, entry: Entry) {
        let (key, value) = (self.view.contender_key(me.session), entry.encode());
        let stands = self.view.contender(me.session).map(|one| one.modify_index);
        // Not a contender key of its session: an operator or a restored backup left it.
        let stands = stands.or(self.view.in_place_of(me.session).map(|occupied| occupied.index));
        self.write.ops.push(match stands {
            Some(index) => Op::DeleteCas { key: key.clone(), index },
            // A write of an earlier process may still be under way.
            None => Op::CheckNotExists { key: key.clone() },
        });
        let (flags, session) = (self.record.flags(), me.session.clone());
        self.write.ops.push(Op::Lock { key, value, flags, session });
    }

    /// Deletes the contender keys that sessions with the behaviour `release` have left.
    pub(super) fn delete_leftovers(&mut self) {
        let most = self.room().min(MAX_LEFTOVERS);
        self.write.ops.extend(self.view.leftovers.iter().take(most).map(Stray::delete));
    }

    /// Writes the handoff list, by a listed queue. Waiters that this transaction serves, or asks, are left out.
    pub(super) fn publish(&mut self, line: &[Waiter<'_>]) {
        let asked = |one: &Waiter<'_>| {
            let key = self.view.contender_key(one.session);
            self.write.ops.iter().any(|op| op.key() == key)
        };
        let stays = |one: &&Waiter<'_>| self.record.slots_of(one.session) == 0 && !one.asked && !asked(one);
        let line: Vec<_> = line.iter().filter(stays).copied().collect();
        let (next, least) = line::handoff_list(&self.record, &line);
        let waiting = line.iter().filter(|one| one.is_served_by(&self.record)).count();
        self.hint(next, waiting, least);
    }

    /// Writes these hints for other clients.
    pub(super) fn hint(&mut self, next: Vec<SessionId>, waiting: usize, least: i32) {
        let hints = self.record.hints.take().unwrap_or_default();
        self.record.hints = Some(Hints { next, waiting: count(waiting), least, ..hints });
    }

    /// Whether `.lock` is to be written.
    pub(super) fn changes(&self) -> bool {
        match self.view.record() {
            Some(stored) => !stored.agrees(&self.dressed()),
            None => self.creates || self.record.taken() > 0,
        }
    }

    /// The record with its hints, if slotkeeper clients alone take part.
    fn dressed(&self) -> Record {
        let mut record = self.record.clone();
        let mut left = self.indexes.clone();
        let indexes = record.holders.iter().map(|holder| {
            let own = left.get_mut(holder)?;
            (!own.is_empty()).then(|| own.remove(0))
        });
        let indexes: Option<Vec<u32>> = indexes.collect();
        let hints = record.hints.take().filter(|_| !self.view.has_foreign());
        record.hints = indexes.zip(hints).map(|(indexes, hints)| Hints { indexes, ..hints });
        record
    }

    /// The transaction, if there is anything to do.
    pub(super) fn finish(mut self) -> Option<Write> {
        if self.changes() {
            let record = self.dressed();
            let (key, index) = (self.view.lock_key(), self.view.lock_index());
            // A newcomer that has read the former record relies on the waiters that it counts.
            self.lists |= self.view.record().is_some_and(Record::is_attended) && !record.is_attended();
            let (flags, value) = (record.flags(), record.after(index).encode());
            self.write.ops.insert(0, Op::Cas { key, value, flags, index });
        }
        if self.write.ops.is_empty() {
            return None;
        }
        if self.lists {
            self.write.ops.push(Op::List { prefix: format!("{}/", self.view.prefix()) });
        }
        Some(self.write)
    }
}
