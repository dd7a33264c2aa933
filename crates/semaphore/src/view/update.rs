//! Updates of a view: by later reads, and by own transactions that were committed.

use std::collections::{BTreeMap, BTreeSet};

use super::{Contender, LOCK, Leftover, LockKeyState, OFFERED, Occupied, Pair, View};
use crate::contender::Entry;
use crate::offered::{self, MAX_OFFERS, Offers};
use crate::record::Record;
use crate::single::SingleKeyLock;
use crate::{Op, SessionId};

/// Sessions of which is remembered that they have left `.lock`.
const LEFT: usize = 64;

impl View {
    /// Copies from the earlier view what a listing does not show: which sessions have left `.lock`.
    pub fn follow(&mut self, before: &Self) {
        let holders = before.record().map(|record| record.holders.as_slice()).unwrap_or_default();
        let (holders, index) = (holders.iter().cloned().collect(), self.lock_index());
        self.left = before.left.clone();
        self.note_left(holders, index);
        let contenders: BTreeSet<_> = self.contenders.iter().map(|one| &one.session).collect();
        self.left.retain(|session, _| contenders.contains(session));
    }

    /// Notes which of the holders `before` have left `.lock` by this index.
    fn note_left(&mut self, before: BTreeSet<SessionId>, index: u64) {
        let holders = self.record().map(|record| record.holders.as_slice()).unwrap_or_default();
        let holders: BTreeSet<_> = holders.iter().cloned().collect();
        self.left.retain(|session, _| !holders.contains(session));
        self.left.extend(before.difference(&holders).map(|session| (session.clone(), index)));
        while self.left.len() > LEFT {
            let first = self.left.iter().min_by_key(|(_, index)| **index).map(|(session, _)| session.clone());
            first.map(|session| self.left.remove(&session));
        }
    }

    /// What foreign contenders were offered, to be stored for other clients.
    pub(crate) fn offers_to_store(&self) -> Offers {
        let mut offers = self.offered.0.clone();
        for (session, offer) in &self.offers {
            let stored = offers.get(session).filter(|stored| stored.index == offer.index);
            if offer.is_worth_storing() && stored.is_none_or(|stored| stored.open < offer.open) {
                offers.insert(session.clone(), *offer);
            }
        }
        let index_of = |session: &SessionId| self.contender(session).map(|one| one.modify_index);
        offers.retain(|session, offer| index_of(session) == Some(offer.index));
        while offers.len() > MAX_OFFERS {
            offers.pop_first();
        }
        offers
    }

    /// Keeps `.lock` and the keys of that session, and forgets all other participants.
    pub fn forget_others(&mut self, session: &SessionId) {
        self.contenders = self.contender(session).cloned().into_iter().collect();
        self.alive.retain(|one| one == session);
        self.leftovers = Vec::new();
        self.left = BTreeMap::new();
        self.gone = BTreeSet::new();
        self.missing = BTreeMap::new();
        (self.known, self.listed, self.names) = (None, false, None);
    }

    /// Notes that a waiter ahead has moved.
    pub fn invalidate_order(&mut self) {
        self.ordered = false;
    }

    /// Says that what is known of `.lock` was read when all changes up to `index` had been made.
    pub fn confirm_lock(&mut self, index: u64) {
        self.lock_stood = self.lock_stood.max(self.lock_index()).max(index);
    }

    /// Brings the view to where a transaction that was committed at `index` has taken it, without a read. What is
    /// known already of a later time stays.
    pub fn apply(&mut self, ops: &[Op], index: u64) {
        let lock = self.lock_key();
        // A transaction that names the index of `.lock` proves that no other write has changed it in between.
        let proved = ops.iter().any(|op| match op {
            Op::Cas { key, .. } | Op::CheckIndex { key, .. } => *key == lock,
            Op::Lock { .. }
            | Op::Unlock { .. }
            | Op::Delete { .. }
            | Op::DeleteCas { .. }
            | Op::List { .. }
            | Op::CheckNotExists { .. }
            | Op::CheckSession { .. } => false,
        });
        let complete = proved && self.is_complete();
        for op in ops {
            self.apply_op(op, index);
        }
        if proved {
            self.lock_stood = self.lock_stood.max(index);
        }
        if complete && self.lock_index() <= index {
            self.known = self.known.max(Some(index));
        }
    }

    fn apply_op(&mut self, op: &Op, index: u64) {
        match op {
            Op::Lock { key, value, flags, session } => {
                let known = self.contender(session).filter(|known| known.modify_index > 0);
                let known = known.map(|known| known.create_index);
                let create_index = known.or(self.single().map(|single| single.create_index)).unwrap_or(index);
                let times_locked = self.times_locked_by(session);
                let session = Some(session.clone());
                self.see(Pair { session, times_locked, create_index, ..written(key, value, *flags, index) });
            }
            Op::Unlock { key, value, flags, .. } => {
                let lock = self.single().map(|single| (single.times_locked, single.create_index));
                let (times_locked, create_index) = lock.unwrap_or_default();
                self.see(Pair { times_locked, create_index, ..written(key, value, *flags, index) });
            }
            Op::Cas { key, value, flags, .. } => {
                let owner = self.owner(key).map(|one| (one.session.clone(), one.create_index));
                let (session, create_index) = owner.map_or((None, index), |(id, at)| (Some(id), at));
                self.see(Pair { session, create_index, ..written(key, value, *flags, index) });
            }
            Op::Delete { key } | Op::DeleteCas { key, .. } => self.see_deleted(key, index),
            Op::List { .. } | Op::CheckIndex { .. } | Op::CheckNotExists { .. } | Op::CheckSession { .. } => {
            }
        }
    }

    fn see_deleted(&mut self, key: &str, index: u64) {
        if key == self.lock_key() {
            self.see_lock(None, index);
        } else if key == self.offered_key() {
            self.offered = (Offers::new(), 0);
        } else {
            if let Some(session) = self.owner(key).map(|one| one.session.clone()) {
                self.forget(&session);
            }
            self.leftovers.retain(|leftover| leftover.key != *key);
            self.occupied.retain(|occupied| occupied.key != *key);
        }
    }

    /// Notes a read of `.lock` alone, whose answer had that index. Later knowledge stays.
    pub fn see_lock(&mut self, pair: Option<Pair>, index: u64) {
        match pair {
            Some(pair) => self.see(pair),
            None => {
                self.lock = LockKeyState::Missing;
                self.lock_stood = index;
                self.known = None;
            }
        }
    }

    /// Forgets the waiters ahead of the session if `.lock` names it as the first. Returns whether it does.
    pub fn promote_to_head(&mut self, session: &SessionId) -> bool {
        if self.record().and_then(|record| record.next.first()) != Some(session) {
            return false;
        }
        let waiters = self.waiters().into_iter().map(|one| one.session.clone());
        let ahead: BTreeSet<_> = waiters.take_while(|waiter| waiter != session).collect();
        self.contenders.retain(|one| !ahead.contains(&one.session));
        self.ordered = true;
        true
    }

    /// Takes in a read of the names of all keys below the prefix.
    pub fn see_folder(&mut self, folder: &Pair) {
        self.folder_index = folder.modify_index;
        let names = String::from_utf8_lossy(&folder.value);
        self.names = Some(names.lines().map(str::to_owned).collect());
    }

    /// Notes a read of one contender key alone, whose answer had that index.
    pub fn see_contender(&mut self, session: &SessionId, pair: Option<Pair>, index: u64) {
        match pair.filter(|pair| pair.session.as_ref() == Some(session)) {
            Some(pair) => {
                self.missing.remove(session);
                self.see(pair);
            }
            None => {
                self.forget(session);
                if self.record().is_some_and(|record| record.slots_of(session) > 0) {
                    self.missing.insert(session.clone(), index);
                }
            }
        }
    }

    fn see(&mut self, pair: Pair) {
        let is_lock = pair.key == self.lock_key();
        let known = match &pair.session {
            _ if is_lock => self.lock_index(),
            Some(session) => self.contender(session).map_or(0, |one| one.modify_index),
            None => 0,
        };
        if pair.modify_index <= known {
            return;
        }
        if let Some(session) = &pair.session {
            self.contenders.retain(|one| one.session != *session);
        }
        self.occupied.retain(|occupied| occupied.key != pair.key);
        let (before, index) = (
            self.record().filter(|_| is_lock).map(|record| record.holders.iter().cloned().collect()),
            pair.modify_index,
        );
        self.add(pair);
        if let Some(before) = before {
            self.note_left(before, index);
        }
        self.sort();
        let record = self.record().map(|record| record.holders.iter().cloned().collect::<BTreeSet<_>>());
        self.missing.retain(|session, _| record.as_ref().is_some_and(|holders| holders.contains(session)));
    }

    fn forget(&mut self, session: &SessionId) {
        if self.contender(session).is_some_and(|one| one.entry.is_some()) {
            self.gone.insert(session.clone());
        }
        self.contenders.retain(|one| one.session != *session);
        self.alive.remove(session);
    }

    /// How often the single-key lock will have been locked once the session has.
    fn times_locked_by(&self, session: &SessionId) -> u64 {
        self.single().map_or(1, |single| {
            let anew = single.owner.as_ref() != Some(session);
            single.times_locked + u64::from(anew)
        })
    }

    pub(super) fn add(&mut self, pair: Pair) {
        if self.single {
            if pair.key == self.prefix {
                self.lock = LockKeyState::Single(Box::new(SingleKeyLock::of(pair)));
            }
            return;
        }
        let Some(name) = pair.key.strip_prefix(&self.prefix).and_then(|key| key.strip_prefix('/')) else {
            return;
        };
        if name == LOCK {
            let index = pair.modify_index;
            self.lock = match Record::decode(&pair.value, pair.flags) {
                Ok(record) => LockKeyState::Record { record, index },
                Err(found) => LockKeyState::Conflict { found, owner: pair.session.clone(), index },
            };
            self.unmarked &= !self.record().is_some_and(|record| record.ours || record.has_lookout);
            self.lock_stood = self.lock_stood.max(index);
        }
        if name == OFFERED {
            self.offered = (offered::decode(&pair.value), pair.modify_index);
            return;
        }
        let entry = Entry::decode(&pair.value);
        // No session's id has a slash.
        let own = pair.session.as_ref().is_some_and(|session| session.as_str() == name);
        if name != LOCK && !own && !name.contains('/') {
            let (key, index, by) = (pair.key.clone(), pair.modify_index, pair.session.clone());
            self.occupied.push(Occupied { key, index, by });
        }
        match pair.session {
            Some(session) => {
                if name == session.as_str() {
                    let Pair { create_index, modify_index, .. } = pair;
                    let session = session.clone();
                    self.contenders.push(Contender { session, create_index, modify_index, entry });
                }
                self.alive.insert(session);
            }
            // A `.lock` with unknown fields is never deleted as a leftover.
            None if entry.is_some() && name != LOCK => {
                self.leftovers.push(Leftover { key: pair.key, index: pair.modify_index });
            }
            None => {}
        }
    }

    pub(super) fn sort(&mut self) {
        self.contenders.sort_by_key(|contender| contender.create_index);
    }
}

/// A key after a write at `index` that created it, without an owner.
fn written(key: &str, value: &[u8], flags: u64, index: u64) -> Pair {
    Pair {
        key: key.to_owned(),
        value: value.to_owned(),
        flags,
        session: None,
        times_locked: 0,
        create_index: index,
        modify_index: index,
    }
}
