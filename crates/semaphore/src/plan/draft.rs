//! A transaction under construction: the new value of `.lock`, and the steps that go with it.

use std::collections::BTreeSet;

use super::{
    Contender, Entry, Op, PlanInput, Record, SessionId, View, Waiter, WaiterKind, WaiterState, Write, queue,
};
use crate::{Moment, offered, size};

pub(super) mod handoffs;

/// Leftover contender keys that one transaction deletes.
pub(super) const MAX_LEFTOVERS: usize = 16;

/// Steps that a transaction may have (Consul up to 1.13).
const MAX_STEPS: usize = 64;

/// Members of the largest acquire group that notifies passed waiters and stores offers. With these a member has up to five of the
/// transaction's steps.
pub(super) const MAX_PASSING_GROUP: usize = 12;

/// Steps that are reserved for `.lock` and its offers, the own contender key, the lookout and a listing.
const OTHER_STEPS: usize = 7;

#[derive(Clone)]
pub(super) struct Draft<'a> {
    view: &'a View,
    wall: &'a str,
    input: Option<PlanInput<'a>>,
    pub(super) record: Record,
    ops: Vec<Op>,
    granted: BTreeSet<SessionId>,
    pruned: u32,
    /// `.lock` is created even if the write changes nothing else in it.
    creates: bool,
    /// The transaction fails if `.lock` has changed, even if it does not write `.lock`.
    checks: bool,
    /// Free slots were left to foreign clients, whose turn it is.
    pub(super) left_to_foreign: bool,
    /// The own slots could be granted, but the transaction would be larger than Consul takes.
    pub(super) own_is_too_large: bool,
    /// The waiter that is to watch the semaphore for all waiters.
    lookout: Option<SessionId>,
    /// The session whose contender key the caller writes or deletes in the same transaction.
    written_by_caller: Option<&'a SessionId>,
    /// The transaction lists the keys at its end, so that it shows new waiters.
    lists_after: bool,
}

impl<'a> Draft<'a> {
    /// Begins with the record of `.lock`, or a new one if there is none. `input` is that of a participant, `None` for an operator.
    pub(super) fn new(view: &'a View, record: Record, wall: &'a str, input: Option<PlanInput<'a>>) -> Self {
        let (ops, granted) = (Vec::new(), BTreeSet::new());
        Self {
            view,
            wall,
            input,
            record,
            ops,
            granted,
            pruned: 0,
            creates: false,
            checks: false,
            left_to_foreign: false,
            own_is_too_large: false,
            lookout: None,
            written_by_caller: None,
            lists_after: false,
        }
    }

    pub(super) fn free(&self) -> u32 {
        self.record.limit.saturating_sub(self.record.taken())
    }

    pub(super) fn remove_holder(&mut self, session: &SessionId) {
        self.record.holders.retain(|holder| holder != session);
    }

    /// Prunes holders without a live contender key, each once it has been seen so for `prune_delay`. Returns when the next one is
    /// due. The own session is never pruned, and none is if keys may be hidden.
    pub(super) fn prune(&mut self, input: PlanInput<'_>, now: Moment) -> Option<Moment> {
        if self.view.is_filtered() {
            return None;
        }
        let mut gone = BTreeSet::new();
        let mut due: Option<Moment> = None;
        let dead = |holder: &&SessionId| *holder != input.session && !self.view.is_alive(holder);
        for holder in self.record.holders.iter().filter(dead) {
            let rests_until =
                input.dead_since.get(holder).copied().unwrap_or(now) + input.settings.prune_delay;
            if rests_until <= now {
                gone.insert(holder.clone());
            } else {
                due = Some(due.map_or(rests_until, |earlier| earlier.min(rests_until)));
            }
        }
        self.record.holders.retain(|holder| !gone.contains(holder));
        self.pruned = u32::try_from(gone.len()).unwrap_or(u32::MAX);
        due
    }

    /// Prunes the holders among `whom` without a live contender key at once, for an operator.
    pub(super) fn prune_among(&mut self, whom: &BTreeSet<SessionId>) {
        let view = self.view;
        let stays = |holder: &SessionId| view.is_filtered() || view.is_alive(holder);
        self.record.holders.retain(|holder| !whom.contains(holder) || stays(holder));
    }

    /// Grants the free slots, the `freed` indexes first. Returns until when some are left to foreign clients.
    pub(super) fn grant_free_slots(
        &mut self,
        line: &[Waiter<'_>],
        freed: &[u32],
        free_since: Option<Moment>,
        now: Moment,
    ) -> Option<Moment> {
        if self.view.is_filtered() {
            // The first waiters may be hidden.
            return None;
        }
        let free_since = free_since.unwrap_or(now);
        let foreign_turn_ends = free_since + self.view.foreign_turn(now.since(free_since));
        // A newcomer among the first waiters has changed `.lock`, which names them, and makes this write too late. Further back
        // there may be unknown waiters. An operator has just listed.
        let most = if self.input.is_some() { queue::MAX_HANDOFFS } else { queue::MAX_GRANTS };
        let filled = queue::grants(&self.record, line, now < foreign_turn_ends, most);
        // There may be slots for more.
        self.lists_after |= self.input.is_some() && filled.granted.len() == most;
        let wanted = filled.granted.iter().map(|one| one.slots).sum();
        let mut numbers = queue::free_slots(self.view, &self.record, freed, wanted).into_iter();
        let mut room = if filled.granted.is_empty() { 0 } else { self.room() };
        let beside = u32::try_from(filled.granted.len()).ok().filter(|granted| *granted > 1);
        for one in filled.granted {
            let (ops, indexes) = (self.ops.len(), numbers.by_ref().take(one.slots as usize).collect());
            self.grant(&one, indexes, beside);
            let Some(left) = room.checked_sub(self.size_of(ops, one.session, one.slots)) else {
                // The waiters behind it stay behind it.
                self.take_back(ops, one.session);
                // Without other grants in the same transaction it may fit the next time.
                self.own_is_too_large = matches!(one.kind, WaiterKind::Own { .. }) && self.granted.is_empty();
                break;
            };
            room = left;
        }
        self.left_to_foreign = filled.left_to_foreign;
        filled.left_to_foreign.then_some(foreign_turn_ends)
    }

    /// Grants free slots to the planning client, with the lowest indexes that no known holder has. Returns whether it can.
    pub(super) fn take(&mut self, own: &Waiter<'_>) -> bool {
        let fits = own.is_served_by(&self.record) && own.slots <= self.free();
        // The indexes of a waiter that became a holder after the listing are unknown.
        let waited = |holder: &SessionId| self.view.contender(holder).is_some_and(Contender::says_waiting);
        let fits = fits && !self.record.holders.iter().any(waited);
        let numbers = queue::known_free_slots(self.view, &self.record, own.slots);
        if !fits || numbers.len() < own.slots as usize {
            return false;
        }
        let (ops, room) = (self.ops.len(), self.room());
        self.grant(own, numbers, None);
        self.size_of(ops, own.session, own.slots) <= room
    }

    /// Bytes that the transaction may have besides, without what only hints and tidies up.
    fn room(&self) -> usize {
        let mut record = self.record.clone();
        record.next.clear();
        let steps: usize = self.ops.iter().map(size::of_step).sum();
        let lock = size::of_record(&record, &self.view.lock_key());
        size::MAX_TRANSACTION.saturating_sub(steps + lock)
    }

    /// Bytes of the steps from `ops` on, which grant a session its slots, with what that adds to the record.
    fn size_of(&self, ops: usize, session: &SessionId, slots: u32) -> usize {
        let steps: usize = self.ops.iter().skip(ops).map(size::of_step).sum();
        steps + size::of_holder(self.record.form(), session, slots)
    }

    /// Undoes a grant whose steps begin at `ops`.
    fn take_back(&mut self, ops: usize, session: &SessionId) {
        self.ops.truncate(ops);
        self.record.holders.retain(|holder| holder != session);
        self.granted.remove(session);
    }

    fn grant(&mut self, one: &Waiter<'_>, indexes: Vec<u32>, beside: Option<u32>) {
        match (one.kind, self.input) {
            (WaiterKind::Own { .. }, Some(input)) => {
                let mut entry = input.entry(WaiterState::Held, indexes);
                entry.beside = beside;
                self.write_own(entry);
            }
            (WaiterKind::Ours { entry, index }, _) => {
                let mut entry = entry.clone().held(indexes, self.wall);
                entry.beside = beside;
                let key = self.view.contender_key(one.session);
                self.ops.push(Op::Cas { key, value: entry.encode(), flags: self.record.flags(), index });
            }
            (WaiterKind::Own { .. }, None) | (WaiterKind::Foreign { .. }, _) => return,
        }
        self.hold(one.session, one.slots);
    }

    fn hold(&mut self, session: &SessionId, slots: u32) {
        self.record.holders.extend(std::iter::repeat_n(session, slots as usize).cloned());
        self.granted.insert(session.clone());
    }

    pub(super) fn has_granted(&self, session: &SessionId) -> bool {
        self.granted.contains(session)
    }

    /// Whether the session is let in, and nobody else.
    pub(super) fn has_granted_only(&self, session: &SessionId) -> bool {
        self.has_granted(session) && self.granted.len() == 1
    }

    /// Leaves the session's contender key to the caller. Consul refuses a transaction that writes one key twice by
    /// check-and-set: the first write changes the index that the second one names.
    pub(super) fn leave_key_to_caller(&mut self, session: &'a SessionId) {
        self.written_by_caller = Some(session);
    }

    fn writes(&self, key: &str) -> bool {
        self.ops.iter().any(|op| op.key() == key)
    }

    /// Writes the own contender key by check-and-set: another client may grant its slots at this moment.
    pub(super) fn write_own(&mut self, entry: Entry) {
        let Some(input) = self.input else { return };
        let watches = self.lookout.as_ref() == Some(input.session) && entry.state == WaiterState::Waiting;
        let entry = if watches { entry.as_lookout() } else { entry };
        match self.view.contender(input.session) {
            // After an eviction from `.lock` the client enqueues at the end.
            Some(one) if one.says_held() && entry.state == WaiterState::Waiting => self.requeue(entry),
            Some(one) => {
                let (key, value) = (self.view.contender_key(input.session), entry.encode());
                let (flags, index) = (self.record.flags(), one.modify_index);
                self.ops.push(Op::Cas { key, value, flags, index });
            }
            None => self.requeue(entry),
        }
    }

    /// Writes the own contender key anew, which moves it to the end of the queue.
    pub(super) fn requeue(&mut self, entry: Entry) {
        let Some(input) = self.input else { return };
        let (key, value) = (self.view.contender_key(input.session), entry.encode());
        self.ops.push(match self.view.contender(input.session) {
            Some(one) => Op::DeleteCas { key: key.clone(), index: one.modify_index },
            None => match self.view.in_place_of(input.session) {
                // Not a contender key of its session: an operator or a restored backup left it.
                Some(occupied) => Op::DeleteCas { key: key.clone(), index: occupied.index },
                // An earlier process may have written the key just now. Then one of the two writes fails.
                None => Op::CheckNotExists { key: key.clone() },
            },
        });
        self.ops.push(Op::Lock { key, value, flags: self.record.flags(), session: input.session.clone() });
    }

    /// Becomes the lookout where there is none, and lists the keys in the same transaction. One of the clients that try succeeds.
    pub(super) fn become_lookout(&mut self, entry: Entry) {
        self.record.has_lookout = true;
        self.write_own_and_list(entry.as_lookout());
    }

    /// Creates `.lock` where there is none, so that it can be watched.
    pub(super) fn create_lock(&mut self) {
        self.creates = true;
    }

    /// The transaction fails if `.lock` has changed, even if it does not write `.lock`.
    pub(super) fn only_if_lock_stands(&mut self) {
        self.checks = true;
    }

    /// Writes the own contender key and lists the keys after it. So each client of a crowd knows the waiter ahead of it.
    pub(super) fn write_own_and_list(&mut self, entry: Entry) {
        self.write_own(entry);
        self.ops.push(Op::List { prefix: format!("{}/", self.view.prefix()) });
    }

    /// Deletes a contender key by check-and-set: another process may have resumed its session.
    pub(super) fn delete(&mut self, one: &Contender) {
        let (key, index) = (self.view.contender_key(&one.session), one.modify_index);
        // Consul's check-and-set delete of a missing key succeeds, but by then its slot indexes may have been granted again.
        self.ops.push(Op::CheckIndex { key: key.clone(), index });
        self.ops.push(Op::DeleteCas { key, index });
    }

    /// Deletes the contender keys that sessions with the behaviour `release` have left.
    pub(super) fn delete_leftovers(&mut self) {
        let own = self.input.map(|input| self.view.contender_key(input.session));
        let mut room = if self.view.leftovers.is_empty() { 0 } else { self.room() };
        let leftovers = self.view.leftovers.iter().filter(|leftover| Some(&leftover.key) != own.as_ref());
        let delete = |leftover: &crate::view::Leftover| Op::DeleteCas {
            key: leftover.key.clone(),
            index: leftover.index,
        };
        let steps = MAX_STEPS.saturating_sub(OTHER_STEPS + self.ops.len() + self.check_handoff_steps().len());
        let deletes = leftovers.take(MAX_LEFTOVERS.min(steps)).map(delete).take_while(|op| {
            let left = room.checked_sub(size::of_step(op));
            room = left.unwrap_or_default();
            left.is_some()
        });
        self.ops.extend(deletes);
    }

    /// Whether `.lock` is to be written.
    pub(super) fn changes(&self) -> bool {
        match self.view.record() {
            Some(stored) => !stored.agrees(&self.record),
            None => self.creates || self.record.taken() > 0 || self.record.has_lookout,
        }
    }

    /// Stores what foreign contenders were offered, beside another write, if all contenders are known.
    fn store_offers(&mut self) {
        let (stored, index) = &self.view.offered;
        let offers = self.view.offers_to_store();
        let members =
            self.input.and_then(|input| input.together).map_or(0, |together| together.prefixes.len());
        if !self.view.is_complete() || offers == *stored || members > MAX_PASSING_GROUP {
            return;
        }
        let (key, index) = (self.view.offered_key(), *index);
        let flags = self.record.flags();
        let op = if offers.is_empty() {
            Op::DeleteCas { key, index }
        } else {
            Op::Cas { key, value: offered::encode(&offers), flags, index }
        };
        self.ops.insert(0, op);
    }

    /// The transaction, if there is anything to do.
    pub(super) fn write(self, tidy: bool) -> Option<Write> {
        self.finish(tidy, false)
    }

    /// The transaction that is committed together with the rest of the acquire group. It cannot list.
    pub(super) fn write_jointly(self) -> Option<Write> {
        self.finish(false, true)
    }

    fn finish(mut self, tidy: bool, joint: bool) -> Option<Write> {
        let mut checks = Vec::new();
        if self.changes() {
            self.store_offers();
            checks = self.check_handoff_steps();
            for told in self.set_lookout_step().into_iter().chain(self.unset_lookout_steps()) {
                checks.retain(|check| check.key() != told.key());
                checks.push(told);
            }
            let steps: usize = checks.iter().chain(&self.ops).map(size::of_step).sum();
            let most = self.input.and_then(|input| input.together?.room).unwrap_or(size::MAX_TRANSACTION);
            if steps + size::of_record(&self.record, &self.view.lock_key()) > most {
                // The hints only save time.
                self.record.next.clear();
                self.record.has_lookout = false;
                checks.clear();
            }
        }
        // Without the hints there may be nothing left to write.
        if self.changes() {
            // A listing comes last.
            self.ops.splice(0..0, checks);
            let stored = self.view.has_lookout();
            // A newcomer relies on the lookout, which this write removes.
            self.lists_after |= stored && !self.record.has_lookout;
            let lists = self.ops.iter().any(|op| matches!(op, Op::List { .. }));
            if self.lists_after && !joint && !lists && !self.view.is_filtered() && self.input.is_some() {
                self.ops.push(Op::List { prefix: self.view.folder_key() });
            }
            if self.view.is_complete() {
                self.record.ours = !self.view.has_foreign();
            }
            let (key, value) = (self.view.lock_key(), self.record.encode());
            let (flags, index) = (self.record.flags(), self.view.lock_index());
            self.ops.insert(0, Op::Cas { key, value, flags, index });
        } else if self.checks && self.view.lock_index() > 0 {
            self.ops.insert(0, Op::CheckIndex { key: self.view.lock_key(), index: self.view.lock_index() });
        }
        (!self.ops.is_empty()).then_some(Write { ops: self.ops, pruned: self.pruned, tidy, joint })
    }
}
