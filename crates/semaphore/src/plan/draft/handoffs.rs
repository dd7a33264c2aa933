//! The handoffs of a transaction: waiters that are granted slots by name, the handoff list, and the lookout.

use super::{Draft, MAX_STEPS, OTHER_STEPS};
use crate::contender::{Entry, WaiterState};
use crate::plan::{Contender, Op, Record, SessionId, Waiter, WaiterKind, queue};

/// The outcome of a handoff by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::plan) enum HandOff {
    /// All slots that `.lock` has waiters for were handed off.
    Done,
    /// `.lock` names too few waiters: the keys have to be listed first.
    Unknown,
}

impl Draft<'_> {
    /// Hands the `freed` indexes off to the waiters that `.lock` names, which may be otherwise unknown.
    pub(in crate::plan) fn hand_off(&mut self, freed: &[u32]) -> HandOff {
        if self.view.is_filtered() {
            return HandOff::Done;
        }
        if !self.record.has_lookout && self.record.next.is_empty() {
            // A newcomer does not rely on this client. But a client that ignores the marks may have overwritten those that a known
            // waiter relies on. And a client that follows its own write up serves the waiters that it left without a lookout.
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
        // Slots remain that no other client would hand off to the waiters named next.
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
            // Only a listing tells the indexes of slots that were free before.
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
        // The waiter named last is the lookout, and the client that grants its slots names others. The waiters that could not be
        // granted by name are first now, or dead.
        let knows = !nameless
            && rest.first().is_some_and(|first| first.as_str() != Record::OTHERS)
            && self.record.has_lookout
            && !self.record.holders.is_empty();
        self.record.next = rest;
        self.lists_after |= cut;
        if knows { HandOff::Done } else { HandOff::Unknown }
    }

    /// Of the contender key of an unknown waiter this knows the identity alone, and that in short: the waiter writes the whole key again
    /// once it has held for a while.
    fn hand_off_to(&mut self, session: &SessionId, slots: u32, indexes: Vec<u32>) {
        let known = self.view.contender(session).and_then(|one| one.entry.clone());
        let who = self.record.next_who(session).cloned().unwrap_or_default();
        let plain = || Entry::new(WaiterState::Held, slots, 0, String::new(), who);
        let mut entry = known.unwrap_or_else(plain).held(indexes, self.wall);
        entry.slots = slots;
        let key = self.view.contender_key(session);
        self.ops.push(Op::CheckSession { key: key.clone(), session: session.clone() });
        let (value, flags) = (entry.encode(), self.record.flags());
        self.ops.push(Op::Lock { key, value, flags, session: session.clone() });
        self.hold(session, slots);
    }

    /// Writes the handoff list, and makes the waiter named last the lookout. Without effect if keys may be hidden. Beside foreign
    /// clients the list is empty, as they may reject its field.
    pub(in crate::plan) fn publish_handoffs(&mut self, line: &[Waiter<'_>]) {
        if self.view.is_filtered() {
            return;
        }
        // Each newly named waiter takes a step, and so does each grant.
        let most = (MAX_STEPS - OTHER_STEPS).saturating_sub(self.ops.len()).min(queue::MAX_HANDOFFS);
        let next = self.handoff_list(line, most);
        // Without a list, waiters that enqueued while there was one watch no other key.
        let last = next.last().filter(|last| self.can_watch(line, last)).cloned();
        self.lookout = last.or_else(|| self.first_to_watch(line));
        // Foreign clients release slots without a handoff: a newcomer has to see that there are foreign clients.
        self.record.has_lookout = self.lookout.is_some() && !self.view.has_foreign();
        let own = self.input.map(|input| input.who);
        self.record.set_next(next, |session| match line.iter().find(|one| one.session == session)?.kind {
            WaiterKind::Own { .. } => own,
            WaiterKind::Ours { entry, .. } => Some(&entry.who),
            WaiterKind::Foreign { .. } => None,
        });
    }

    pub(in crate::plan) fn is_new_lookout(&self, session: &SessionId) -> bool {
        self.lookout.as_ref() == Some(session)
    }

    /// The new handoff list. Its last waiter is one that can be the lookout, if there is one.
    fn handoff_list(&self, line: &[Waiter<'_>], most: usize) -> Vec<SessionId> {
        if self.view.has_foreign() {
            return Vec::new();
        }
        let mut next = queue::handoff_list(&self.record, line, most);
        match next.iter().rposition(|session| self.can_watch(line, session)) {
            Some(last) => next.truncate(last + 1),
            // A newcomer takes the waiter named last for the lookout.
            None if self.first_to_watch(line).is_some() => next.clear(),
            None => {}
        }
        next
    }

    fn can_watch(&self, line: &[Waiter<'_>], session: &SessionId) -> bool {
        line.iter().any(|one| one.session == session && one.can_watch())
    }

    /// The first waiter that can be the lookout.
    fn first_to_watch(&self, line: &[Waiter<'_>]) -> Option<SessionId> {
        let ours: Vec<_> = line.iter().filter(|one| one.can_watch()).copied().collect();
        queue::first_served(&self.record, &ours).map(|one| one.session.clone())
    }

    /// Whether the handoff list of `.lock` does not begin with the first waiter, or the lookout is missing.
    pub(in crate::plan) fn has_stale_handoffs(&self, line: &[Waiter<'_>]) -> bool {
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

    /// Beside foreign clients, which release slots without a handoff, makes the first slotkeeper client the lookout.
    pub(in crate::plan) fn set_lookout(&mut self, line: &[Waiter<'_>]) {
        if self.view.is_filtered() || !self.view.has_foreign() {
            return;
        }
        self.lookout = self.first_to_watch(line);
        if !self.changes() {
            self.ops.extend(self.set_lookout_step());
        }
    }

    /// Tells the first waiter `behind` that another one is ahead now, by a new value of its contender key. Beside foreign clients
    /// alone: there the first slotkeeper client acquires free slots without another listing.
    pub(in crate::plan) fn notify_passed(&mut self, behind: &[Waiter<'_>]) {
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

    /// The step that tells another waiter that it is the lookout, unless it knows.
    pub(super) fn set_lookout_step(&self) -> Option<Op> {
        let session = self.lookout.as_ref().filter(|session| !self.granted.contains(session))?;
        let one = self.view.contender(session)?;
        // A lookout waits for the names in `.lock`, which this write drops. A new value of its contender key wakes it.
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
            // The waiter knows, or another step writes its key.
            return None;
        }
        Some(Op::Cas { key, value, flags: self.record.flags(), index: one.modify_index })
    }

    /// The step that tells a former lookout that it is none any more. Beside foreign clients a lookout acquires free slots without
    /// another listing.
    pub(super) fn unset_lookout_steps(&self) -> Vec<Op> {
        let first = self.lookout.as_ref().filter(|_| self.view.has_foreign());
        let Some(first) = first else { return Vec::new() };
        let others = self.view.waiters().into_iter().filter(|one| one.session != *first);
        let told = others.filter(|one| one.entry.as_ref().is_some_and(Entry::is_lookout));
        let stays = told.filter(|one| !self.writes(&self.view.contender_key(&one.session)));
        let stays = stays.filter(|one| self.written_by_caller != Some(&one.session));
        let stays = stays.filter(|one| self.input.is_none_or(|input| *input.session != one.session));
        let untold = stays.filter_map(|one| {
            let mut entry = one.entry.clone()?;
            entry.lookout = false;
            let (key, value) = (self.view.contender_key(&one.session), entry.encode());
            Some(Op::Cas { key, value, flags: self.record.flags(), index: one.modify_index })
        });
        untold.take(1).collect()
    }

    /// Steps that fail if the contender key of a newly named waiter has changed. A session may have left the queue and enqueued
    /// again, which does not change `.lock`, and would be named at its old position. An operator has just listed.
    pub(super) fn check_handoff_steps(&self) -> Vec<Op> {
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
}
