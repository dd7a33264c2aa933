//! What foreign contenders make of the slots that are left to them.
//!
//! A foreign client acquires by itself, so nobody can tell one that polls slowly from one that is dead. Each is left free
//! slots for a while, counted for its contender key as it stands; then it is passed over.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Moment, SessionId, View};
use crate::semaphore::offered::{MAX_OFFER, Offer};

/// Slots that other foreign clients took past one make it as idle as the time that it was left.
const PASSED: u32 = 3;

#[derive(Clone, Debug)]
struct Known {
    offer: Offer,
    /// Since when slots have come free for it.
    since: Option<Moment>,
    /// How often another foreign client, which came later, has acquired before it.
    passed: u32,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Offers {
    foreign: BTreeMap<SessionId, Known>,
    /// A slot stands open, and is counted up to here.
    open_since: Option<Moment>,
    /// The holders at the last look that knew all of them.
    holders: Option<BTreeSet<SessionId>>,
}

impl Offers {
    /// Takes in a view; `free`: a slot stands open in it.
    pub(super) fn see(&mut self, view: &View, free: bool, now: Moment) {
        self.count(now);
        let waiting: BTreeMap<_, _> =
            view.foreign_waiters().map(|one| (&one.session, one.modify_index)).collect();
        let complete = view.is_complete();
        self.foreign.retain(|session, known| match waiting.get(session) {
            Some(index) => *index == known.offer.index,
            None => !complete,
        });
        for (session, index) in &waiting {
            let new = Known { offer: Offer { index: *index, open: Duration::ZERO }, since: None, passed: 0 };
            let known = self.foreign.entry((*session).clone()).or_insert(new);
            let stored = view.offered.0.get(*session);
            if let Some(stored) = stored.filter(|stored| stored.index == known.offer.index) {
                known.offer.open = known.offer.open.max(stored.open);
            }
            if free {
                known.since.get_or_insert(now);
            }
        }
        if complete {
            self.see_passed(view, now);
        }
        self.open_since = (free && !self.foreign.is_empty()).then_some(now);
    }

    /// Whether a slot stands open for a foreign contender.
    pub(super) fn are_open(&self) -> bool {
        self.open_since.is_some()
    }

    /// Counts the foreign clients that have acquired since the last look, for those who came before them and wait.
    fn see_passed(&mut self, view: &View, now: Moment) {
        let holders: BTreeSet<_> =
            view.record().into_iter().flat_map(|record| record.holders.iter().cloned()).collect();
        let before = self.holders.replace(holders);
        let (Some(before), Some(holders)) = (before, &self.holders) else { return };
        let entered = holders.difference(&before).filter_map(|session| view.contender(session));
        let last = entered.filter(|one| one.entry.is_none()).map(|one| one.create_index).max();
        for (session, known) in &mut self.foreign {
            let came = view.contender(session).map(|one| one.create_index);
            if last.zip(came).is_some_and(|(last, came)| came < last) {
                known.passed = known.passed.saturating_add(1);
                known.since.get_or_insert(now);
            }
        }
    }

    /// From here on nobody knows whether the slot stands open.
    pub(super) fn lose_sight(&mut self, now: Moment) {
        self.count(now);
        self.open_since = None;
    }

    fn count(&mut self, now: Moment) {
        let open = self.open_since.replace(now).map(|since| now.since(since));
        for known in self.foreign.values_mut() {
            known.offer.open = (known.offer.open + open.unwrap_or_default()).min(MAX_OFFER);
        }
    }

    /// Tells the view what is known by now.
    pub(super) fn tell(&self, view: &mut View, now: Moment) {
        let open = self.open_since.map(|since| now.since(since)).unwrap_or_default();
        let offers = self.foreign.iter().map(|(session, known)| {
            let passed = known.passed >= PASSED && known.since.is_some_and(|since| since + MAX_OFFER <= now);
            let open = if passed { MAX_OFFER } else { (known.offer.open + open).min(MAX_OFFER) };
            (session.clone(), Offer { open, ..known.offer })
        });
        view.offers = offers.collect();
    }
}
