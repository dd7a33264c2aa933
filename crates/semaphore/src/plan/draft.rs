//! A transaction under construction: the new value of `.lock`, and the steps that go with it.

use std::collections::BTreeSet;

use super::{
    Contender, Entry, Identity, Op, PlanInput, Record, SessionId, View, Waiter, WaiterKind, WaiterState,
    Write, queue,
};
use crate::{Moment, offered, size};

/// Leftover entries swept up by one transaction.
pub(super) const MAX_LEFTOVERS: usize = 16;

/// Steps that a transaction may have (Consul up to 1.13).
const MAX_STEPS: usize = 64;

/// Larger parties pass nobody when they enter, and store no offers: each of the members has up to five steps by that, of those of
/// their transaction.
pub(super) const MAX_PASSING_GROUP: usize = 12;

/// Those of them that are kept for the record, what goes with it, the own contender, the lookout and a listing.
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
    /// `.lock` is written also where it only comes to exist.
    creates: bool,
    /// Where `.lock` is not written, it must be as it is known.
    checks: bool,
    /// Slots were left for another kind of client, whose turn it is.
    pub(super) left_to_foreign: bool,
    /// The own slots are free and its turn has come, but the transaction would be larger than Consul takes.
    pub(super) own_is_too_large: bool,
    /// Who is to watch over the semaphore for all who wait.
    lookout: Option<SessionId>,
    /// The session whose contender key the caller writes or deletes in the same transaction.
    written_by_caller: Option<&'a SessionId>,
    /// Whoever writes sees by the same transaction who has come meanwhile.
    lists_after: bool,
}

/// What comes of handing slots off by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandOff {
    /// It is done, as far as `.lock` goes.
    Done,
    /// `.lock` does not name enough: everything has to be listed first.
    Unknown,
}

impl<'a> Draft<'a> {
    /// Begins with what `.lock` holds, or would hold if it were there. `input` is who plans, if it takes part.
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

    /// Takes holders without a live contender out, where none can be hidden, each once `prune_delay` has passed since it was first seen so; when
    /// the next one is due. The own session is never taken for dead: it is planning.
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

    /// Takes those out who are among `whom` and have no live contender, which cannot be hidden, for an operator: at once.
    pub(super) fn prune_among(&mut self, whom: &BTreeSet<SessionId>) {
        let view = self.view;
        let stays = |holder: &SessionId| view.is_filtered() || view.is_alive(holder);
        self.record.holders.retain(|holder| !whom.contains(holder) || stays(holder));
    }

    /// Gives the free slots on, first under the `freed` numbers; until when some are left to other clients.
    pub(super) fn grant_free_slots(
        &mut self,
        line: &[Waiter<'_>],
        freed: &[u32],
        free_since: Option<Moment>,
        now: Moment,
    ) -> Option<Moment> {
        if self.view.is_filtered() {
            // Those who stand first may be hidden.
            return None;
        }
        let free_since = free_since.unwrap_or(now);
        let foreign_turn_ends = free_since + self.view.foreign_turn(now.since(free_since));
        // Whoever has come since the listing to stand among the first has changed `.lock`, which names them, so that this
        // write would be too late. Further back one may stand that is not known. An operator has just listed.
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
                // The waiters behind it go on standing behind it.
                self.take_back(ops, one.session);
                // With others in the same transaction it may fit the next time.
                self.own_is_too_large = matches!(one.kind, WaiterKind::Own { .. }) && self.granted.is_empty();
                break;
            };
            room = left;
        }
        self.left_to_foreign = filled.left_to_foreign;
        filled.left_to_foreign.then_some(foreign_turn_ends)
    }

    /// Gives free slots to whoever plans, under the lowest numbers that none of those has whom it knows; whether there are as many.
    pub(super) fn take(&mut self, own: &Waiter<'_>) -> bool {
        let fits = own.is_served_by(&self.record) && own.slots <= self.free();
        // Of one that stood in line when it was listed, and holds by now, the numbers are not known.
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

    /// Takes back a grant, whose steps begin at `ops`.
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

    /// Gives the `freed` numbers on to those whom `.lock` names, without knowing more of them.
    pub(super) fn hand_off(&mut self, freed: &[u32]) -> HandOff {
        if self.view.is_filtered() {
            return HandOff::Done;
        }
        if !self.record.has_lookout && self.record.next.is_empty() {
            // Whoever has come meanwhile relies on nobody. But one that knows of no marks may have written over those on which
            // somebody relies who is known to wait; and who has left somebody to himself by a write of its own serves him.
            let others = |one: &&Contender| self.input.is_none_or(|input| *input.session != one.session);
            let waits = || self.view.waiters().iter().any(others);
            let unmarked = !self.record.ours && !self.view.has_foreign();
            let owes = unmarked || self.input.is_some_and(|input| input.follows_up);
            return if owes && waits() { HandOff::Unknown } else { HandOff::Done };
        }
        let numbers = queue::free_slots(self.view, &self.record, freed, 0);
        let own = self.input.map(|input| input.session);
        let mut numbers = numbers.as_slice();
        let mut rest = Vec::new();
        let mut room = self.room();
        // Slots are left that nobody would give to those who are named next.
        let mut cut = false;
        let mut nameless = false;
        let named: Vec<_> =
            queue::handoffs(&self.record).into_iter().map(|(id, slots)| (id.clone(), slots)).collect();
        for (session, slots) in named {
            if session.as_str() == Record::OTHERS {
                rest.push(session);
                continue;
            }
            let leaves = own == Some(&session);
            if leaves || self.record.slots_of(&session) > 0 || slots > self.record.limit {
                continue;
            }
            let wanted = slots as usize;
            let steps_left = self.ops.len() + 2 <= MAX_STEPS - OTHER_STEPS;
            let next = rest.is_empty() && slots <= self.free();
            cut |= next && !steps_left;
            // Slots that others have left free before: only a listing tells their numbers.
            nameless |= next && numbers.len() < wanted;
            match numbers.split_at_checked(wanted).filter(|_| next && steps_left) {
                Some((its, others)) => {
                    let ops = self.ops.len();
                    self.hand_off_to(&session, slots, its.to_vec());
                    if let Some(left) = room.checked_sub(self.size_of(ops, &session, slots)) {
                        (numbers, room) = (others, left);
                    } else {
                        self.take_back(ops, &session);
                        rest.extend(std::iter::repeat_n(session, wanted));
                    }
                }
                None => rest.extend(std::iter::repeat_n(session, wanted)),
            }
        }
        // The last one that is named watches over all, and whoever lets it in names others. Those who are not let in by their
        // names alone come first now, or are dead.
        let knows = !nameless
            && rest.first().is_some_and(|first| first.as_str() != Record::OTHERS)
            && self.record.has_lookout
            && !self.record.holders.is_empty();
        self.record.next = rest;
        self.lists_after |= cut;
        if knows { HandOff::Done } else { HandOff::Unknown }
    }

    /// Who it is, for people, is lost where it is not known; it writes that itself once it has held for a while.
    fn hand_off_to(&mut self, session: &SessionId, slots: u32, indexes: Vec<u32>) {
        let known = self.view.contender(session).and_then(|one| one.entry.clone());
        let plain = || Entry::new(WaiterState::Held, slots, 0, String::new(), Identity::default());
        let mut entry = known.unwrap_or_else(plain).held(indexes, self.wall);
        entry.slots = slots;
        // What is known of it may be of before its owner was restarted; an old nonce would tell it that it was displaced.
        entry.nonce = None;
        let key = self.view.contender_key(session);
        self.ops.push(Op::CheckSession { key: key.clone(), session: session.clone() });
        let (value, flags) = (entry.encode(), self.record.flags());
        self.ops.push(Op::Lock { key, value, flags, session: session.clone() });
        self.hold(session, slots);
    }

    pub(super) fn has_granted(&self, session: &SessionId) -> bool {
        self.granted.contains(session)
    }

    /// Whether the session is let in, and nobody else.
    pub(super) fn has_granted_only(&self, session: &SessionId) -> bool {
        self.has_granted(session) && self.granted.len() == 1
    }

    /// Names who is next in line, where none can be hidden and no client of another kind takes part: those may take no
    /// field of ours in their record. The last one that is named is told to watch over all.
    pub(super) fn publish_handoffs(&mut self, line: &[Waiter<'_>]) {
        if self.view.is_filtered() {
            return;
        }
        // Each that is named anew takes a step, and so does each that is let in.
        let most = (MAX_STEPS - OTHER_STEPS).saturating_sub(self.ops.len()).min(queue::MAX_HANDOFFS);
        let next = self.handoff_list(line, most);
        // Where nobody can be named, those in line may have come while others were, and watch nothing.
        let last = next.last().filter(|last| self.can_watch(line, last)).cloned();
        self.lookout = last.or_else(|| self.first_to_watch(line));
        // Slots that other clients leave come free without a word: whoever comes has to see that they are there.
        self.record.has_lookout = self.lookout.is_some() && !self.view.has_foreign();
        self.record.next = next;
    }

    /// Whether that one is to watch over all who wait.
    pub(super) fn is_new_lookout(&self, session: &SessionId) -> bool {
        self.lookout.as_ref() == Some(session)
    }

    /// Who is to be named, the last of them one that can watch over all where there is one.
    fn handoff_list(&self, line: &[Waiter<'_>], most: usize) -> Vec<SessionId> {
        if self.view.has_foreign() {
            return Vec::new();
        }
        let mut next = queue::handoff_list(&self.record, line, most);
        match next.iter().rposition(|session| self.can_watch(line, session)) {
            Some(last) => next.truncate(last + 1),
            // Whoever comes takes the last one named for the one that watches over all.
            None if self.first_to_watch(line).is_some() => next.clear(),
            None => {}
        }
        next
    }

    fn can_watch(&self, line: &[Waiter<'_>], session: &SessionId) -> bool {
        line.iter().any(|one| one.session == session && one.can_watch())
    }

    /// The first in line that can watch over all.
    fn first_to_watch(&self, line: &[Waiter<'_>]) -> Option<SessionId> {
        let ours: Vec<_> = line.iter().filter(|one| one.can_watch()).copied().collect();
        queue::first_served(&self.record, &ours).map(|one| one.session.clone())
    }

    /// Whether the handoff list of `.lock` does not begin with the first in line, or nobody is known to watch over all.
    pub(super) fn has_stale_handoffs(&self, line: &[Waiter<'_>]) -> bool {
        if self.view.is_filtered() {
            return false;
        }
        if self.view.has_foreign() {
            return self.record.has_lookout || !self.record.next.is_empty();
        }
        let next = self.handoff_list(line, queue::MAX_HANDOFFS);
        let unattended = !self.record.has_lookout && self.first_to_watch(line).is_some();
        next.first() != self.record.next.first() || unattended
    }

    /// Where clients of another kind take part, slots come free without a word: the first of ours in line is told to watch for
    /// them.
    pub(super) fn set_lookout(&mut self, line: &[Waiter<'_>]) {
        if self.view.is_filtered() || !self.view.has_foreign() {
            return;
        }
        self.lookout = self.first_to_watch(line);
        if !self.changes() {
            self.ops.extend(self.set_lookout_step());
        }
    }

    /// Tells the first of those `behind` that somebody stands ahead of it now, by another value of its contender. Only where clients of
    /// another kind take part: there the first of ours takes free slots without another look.
    pub(super) fn notify_passed(&mut self, behind: &[Waiter<'_>]) {
        if self.view.is_filtered() || !self.view.has_foreign() {
            return;
        }
        let first = behind.iter().find(|one| one.can_watch() && !self.granted.contains(one.session));
        if let Some((Waiter { session, .. }, WaiterKind::Ours { entry, index })) =
            first.map(|one| (one, one.kind))
        {
            let (key, value) = (self.view.contender_key(session), entry.clone().as_passed().encode());
            self.ops.push(Op::Cas { key, value, flags: self.record.flags(), index });
        }
    }

    /// The step by which the one who is to watch over all is told so, where it is another one and does not know.
    fn set_lookout_step(&self) -> Option<Op> {
        let session = self.lookout.as_ref().filter(|session| !self.granted.contains(session))?;
        let one = self.view.contender(session)?;
        // One that was told before waits by the names in `.lock`, which this write drops: another value of its contender wakes it.
        let names_go = self.view.has_lookout() && !self.record.has_lookout;
        let entry = match one.entry.clone()? {
            entry if !entry.is_lookout() => entry,
            entry if names_go => entry.as_passed(),
            _ => return None,
        };
        let entry = entry.as_lookout();
        let (key, value) = (self.view.contender_key(session), entry.encode());
        let knows = self.record.next.last() == Some(session) || self.view.has_foreign();
        if self.writes(&key) || knows && self.input.is_some_and(|input| input.session == session) {
            // It knows where it stands, or is written besides.
            return None;
        }
        Some(Op::Cas { key, value, flags: self.record.flags(), index: one.modify_index })
    }

    /// The steps by which those who were the first of ours in line are told that they are no more. They take free slots without another
    /// look where clients of another kind take part.
    fn unset_lookout_steps(&self) -> Vec<Op> {
        let first = self.lookout.as_ref().filter(|_| self.view.has_foreign());
        let Some(first) = first else { return Vec::new() };
        let others = self.view.waiters().into_iter().filter(|one| one.session != *first);
        let told = others.filter(|one| one.entry.as_ref().is_some_and(Entry::is_lookout));
        let stays = told.filter(|one| !self.writes(&self.view.contender_key(&one.session)));
        let stays = stays.filter(|one| self.written_by_caller != Some(&one.session));
        let stays = stays.filter(|one| self.input.is_none_or(|input| *input.session != one.session));
        let untold = stays.filter_map(|one| {
            let mut entry = one.entry.clone()?;
            entry.lookout = Some(false);
            let (key, value) = (self.view.contender_key(&one.session), entry.encode());
            Some(Op::Cas { key, value, flags: self.record.flags(), index: one.modify_index })
        });
        untold.take(1).collect()
    }

    /// Leaves the session's contender key to the caller. Consul refuses a transaction that writes one key twice by
    /// check-and-set: the first write changes the index that the second one names.
    pub(super) fn leave_key_to_caller(&mut self, session: &'a SessionId) {
        self.written_by_caller = Some(session);
    }

    fn writes(&self, key: &str) -> bool {
        self.ops.iter().any(|op| op.key() == key)
    }

    /// Steps by which nothing is written unless the contenders that are named anew stand as they are known. A session that
    /// has left the line and come again would be named in its old place otherwise, since neither changes `.lock`. An
    /// operator has just listed.
    fn check_handoff_steps(&self) -> Vec<Op> {
        let Some(input) = self.input else { return Vec::new() };
        let before = self.view.record().map(|record| record.next.as_slice()).unwrap_or_default();
        let named = queue::handoffs(&self.record).into_iter().map(|(session, _)| session);
        let anew = named.filter(|session| *session != input.session && !before.contains(session));
        let known = anew.filter_map(|session| self.view.contender(session));
        let stands = |one: &Contender| Op::CheckIndex {
            key: self.view.contender_key(&one.session),
            index: one.modify_index,
        };
        known.map(stands).collect()
    }

    /// Writes our own contender: where there is one, only as it is known, since somebody may be granting it at this
    /// moment.
    pub(super) fn write_own(&mut self, entry: Entry) {
        let Some(input) = self.input else { return };
        let watches = self.lookout.as_ref() == Some(input.session) && entry.state == WaiterState::Waiting;
        let entry = if watches { entry.as_lookout() } else { entry };
        match self.view.contender(input.session) {
            // Taken out of `.lock`, it goes to the end of the line.
            Some(one) if one.says_held() && entry.state == WaiterState::Waiting => self.requeue(entry),
            Some(one) => {
                let (key, value) = (self.view.contender_key(input.session), entry.encode());
                let (flags, index) = (self.record.flags(), one.modify_index);
                self.ops.push(Op::Cas { key, value, flags, index });
            }
            None => self.requeue(entry),
        }
    }

    /// Writes our own contender as a new one, in the place of the one that is known.
    pub(super) fn requeue(&mut self, entry: Entry) {
        let Some(input) = self.input else { return };
        let (key, value) = (self.view.contender_key(input.session), entry.encode());
        self.ops.push(match self.view.contender(input.session) {
            Some(one) => Op::DeleteCas { key: key.clone(), index: one.modify_index },
            None => match self.view.in_place_of(input.session) {
                // Anything but a contender: left by an operator, or by a backup that was restored.
                Some(occupied) => Op::DeleteCas { key: key.clone(), index: occupied.index },
                // Should a process before this one have written it just now, or a write of its be on its way still, only
                // one of the two is done.
                None => Op::CheckNotExists { key: key.clone() },
            },
        });
        self.ops.push(Op::Lock { key, value, flags: self.record.flags(), session: input.session.clone() });
    }

    /// Watches over all from here on, in the place of nobody: who else is there it learns by the same transaction. Of those who come
    /// at the same time one succeeds.
    pub(super) fn become_lookout(&mut self, entry: Entry) {
        self.record.has_lookout = true;
        self.write_own_and_list(entry.as_lookout());
    }

    /// Creates `.lock` where there is none, so that it can be waited for.
    pub(super) fn create_lock(&mut self) {
        self.creates = true;
    }

    /// Nothing is written unless `.lock` is as it is known, also where it is not written itself.
    pub(super) fn only_if_lock_stands(&mut self) {
        self.checks = true;
    }

    /// Writes our own contender, and has everything listed as it is then: many may come at once, and each learns who is
    /// right ahead of it.
    pub(super) fn write_own_and_list(&mut self, entry: Entry) {
        self.write_own(entry);
        self.ops.push(Op::List { prefix: format!("{}/", self.view.prefix()) });
    }

    /// Deletes a contender, only as it is known: another process may have resumed its session.
    pub(super) fn delete(&mut self, one: &Contender) {
        let (key, index) = (self.view.contender_key(&one.session), one.modify_index);
        // Consul deletes a key that is gone by any index; but by then somebody may have given its numbers to another.
        self.ops.push(Op::CheckIndex { key: key.clone(), index });
        self.ops.push(Op::DeleteCas { key, index });
    }

    /// Sweeps up what sessions with the behaviour `release` have left.
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

    /// Says what foreign contenders were offered, where everybody is known. It goes with what is written anyway.
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

    /// What is committed together with the others of a party, and cannot list.
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
                // Nothing but speed depends on the hints.
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
            // Whoever came while others were named relies on whoever names nobody any more.
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
