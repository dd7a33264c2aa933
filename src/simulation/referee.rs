//! The invariants, checked after every step on what really stands in the store.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crate::semaphore::contender::Entry;
use crate::semaphore::{Contender, Lock, Moment, SessionId, View};

/// Looks at every state of the semaphore in turn.
pub(super) struct Referee {
    seed: u64,
    pub(super) name: &'static str,
    /// A free slot and a waiter that it fits may meet for so long.
    idle_bound: Duration,
    /// Operators meddle: what agents believe, and who had to be let in, says nothing.
    meddled: bool,
    before: View,
    /// Believers may be as many, after the limit was lowered.
    ceiling: u32,
    idle_since: Option<Moment>,
    /// The fencing token under which each session holds.
    tokens: HashMap<SessionId, u64>,
    /// The last token that each session was told.
    told: HashMap<SessionId, u64>,
    /// Holdings that have ended: the index at which they did, and their token.
    ended: Vec<(u64, u64)>,
}

impl Referee {
    pub(super) fn new(seed: u64, name: &'static str, idle_bound: Duration, meddled: bool) -> Self {
        Self {
            seed,
            name,
            idle_bound,
            meddled,
            before: View::new(name, Vec::new(), 0),
            ceiling: 0,
            idle_since: None,
            tokens: HashMap::new(),
            told: HashMap::new(),
            ended: Vec::new(),
        }
    }

    /// An agent says that it holds.
    pub(super) fn acquired(&mut self, session: SessionId, token: u64) {
        // An answer may come long after the grant: what counts is what had ended by the grant.
        let before = self.ended.iter().filter(|(end, _)| *end <= token);
        let highest = before.map(|(_, token)| *token).max();
        assert!(highest.is_none_or(|highest| highest < token), "{}: {token} after {highest:?}", self.seed);
        let told = self.told.insert(session.clone(), token);
        assert!(told.is_none_or(|told| told <= token), "{}: {token} after {told:?}", self.seed);
        self.tokens.insert(session, token);
    }

    /// The state after a step, if it is another one, and how many slots are believed to be held.
    pub(super) fn check(&mut self, after: Option<View>, believed: u32, now: Moment) {
        if let Some(after) = after {
            self.check_record(&after);
            self.check_order(&after);
            self.check_numbers(&after);
            self.note_idle(&after, now);
            self.note_ended(&after);
            self.before = after;
        }
        self.check_idle(now);
        self.check_believers(believed);
    }

    fn check_believers(&mut self, believed: u32) {
        let Some(record) = self.before.record() else { return };
        self.ceiling = record.limit.max(self.ceiling.min(record.taken().max(believed)));
        assert!(
            self.meddled || believed <= self.ceiling,
            "seed {}: {believed} slots are believed to be held, of {}",
            self.seed,
            self.ceiling
        );
    }

    /// Nobody is let in above the limit; where it was lowered below who holds, nobody at all.
    fn check_record(&self, after: &View) {
        let Some(record) = after.record() else { return };
        let entered = record.holders.iter().find(|holder| slots_of(&self.before, holder) == 0);
        assert!(
            record.taken() <= record.limit || entered.is_none(),
            "seed {}: {entered:?} was let in above the limit: {record:?}",
            self.seed
        );
    }

    /// Nobody of ours in line is let in before one that stands ahead of it and could be. Who was not in line has taken
    /// what it found free a moment before, with nobody in line; who has entered it since is passed by.
    fn check_order(&self, after: &View) {
        let Some(record) = after.record() else { return };
        let waited = |one: &&Contender| {
            let entry = one.entry.as_ref();
            let could = entry.is_some_and(|entry| entry.slots <= record.limit && entry.together.is_empty());
            could && slots_of(after, &one.session) == 0 && after.contender(&one.session).is_some()
        };
        let passed: Vec<_> = self.before.waiters().into_iter().filter(waited).collect();
        for session in record.holders.iter().filter(|holder| slots_of(&self.before, holder) == 0) {
            let stood = self.before.contender(session).filter(|one| one.says_waiting());
            let Some(place) = stood.map(place) else { continue };
            let passed = passed.iter().find(|one| self::place(one) < place);
            let passed = passed.map(|one| (&one.session, self::place(one)));
            let entered = (session, place);
            assert!(
                self.meddled || passed.is_none(),
                "seed {}: {entered:?} was let in before {passed:?}",
                self.seed
            );
        }
    }

    /// Every live holder of ours has numbers of its own.
    fn check_numbers(&self, after: &View) {
        let Some(record) = after.record() else { return };
        let mut owners: BTreeMap<u32, &SessionId> = BTreeMap::new();
        for session in &record.holders {
            let Some(entry) = after.contender(session).and_then(|one| one.entry.as_ref()) else { continue };
            assert_eq!(
                entry.indexes.len(),
                record.slots_of(session) as usize,
                "seed {}: {entry:?} in {record:?}",
                self.seed
            );
            for number in &entry.indexes {
                let other = owners.insert(*number, session).filter(|other| *other != session);
                assert!(other.is_none(), "seed {}: {session} and {other:?} have {number}", self.seed);
            }
        }
    }

    /// No lost wake-up: a free slot and the first in line, if it fits, find each other.
    fn check_idle(&self, now: Moment) {
        let idle = self.idle_since.map(|since| now.since(since)).unwrap_or_default();
        assert!(idle <= self.idle_bound, "seed {}: a slot was idle for {idle:?}", self.seed);
    }

    fn note_idle(&mut self, after: &View, now: Moment) {
        let free = after.record().map_or(0, |record| record.limit.saturating_sub(record.taken()));
        let line = after.waiters();
        let fits = |entry: &Entry| entry.slots <= free;
        let first = line.first().and_then(|one| one.entry.as_ref());
        // One that takes its slots together with others may have to wait for those.
        let idle = free > 0 && first.is_some_and(|entry| fits(entry) && entry.together.is_empty());
        self.idle_since = idle.then(|| self.idle_since.unwrap_or(now));
    }

    fn note_ended(&mut self, after: &View) {
        if matches!(after.lock, Lock::Record { .. }) {
            let (ended, index) = (&mut self.ended, after.lock_index());
            self.tokens.retain(|session, token| {
                let holds = slots_of(after, session) > 0;
                if !holds {
                    ended.push((index, *token));
                }
                holds
            });
        }
    }
}

fn slots_of(view: &View, session: &SessionId) -> u32 {
    view.record().map_or(0, |record| record.slots_of(session))
}

fn place(one: &Contender) -> (std::cmp::Reverse<i32>, u64) {
    (std::cmp::Reverse(one.priority()), one.create_index)
}
