//! The invariants, checked after every step on what really stands in the store.

use std::collections::HashMap;
use std::time::Duration;

use super::rules;
use crate::semaphore::contender::Entry;
use crate::semaphore::{Lock, Moment, SessionId, View};

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
            self.keep(rules::record(&self.before, &after));
            self.keep(rules::numbers(&after));
            if !self.meddled {
                self.keep(rules::order(&self.before, &after));
            }
            self.note_idle(&after, now);
            self.note_ended(&after);
            self.before = after;
        }
        self.check_idle(now);
        self.check_believers(believed);
    }

    fn keep(&self, rule: Result<(), String>) {
        if let Err(broken) = rule {
            panic!("seed {}: {broken}", self.seed);
        }
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
                let holds = rules::slots_of(after, session) > 0;
                if !holds {
                    ended.push((index, *token));
                }
                holds
            });
        }
    }
}
