//! How foreign contenders use the slots that are left to them.
//!
//! A foreign client acquires slots itself, so a client that polls slowly looks like a dead one. Free slots are left to each for a while,
//! counted per contender key; then the foreign client is passed over.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Moment, SessionId, View};
use crate::offered::{MAX_OFFER, Offer};

#[derive(Clone, Debug)]
struct Known {
    offer: Offer,
    /// Another foreign client has taken a slot that it could have taken: they are in no order among themselves, and it has had its
    /// turn.
    passed: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Offers {
    foreign: BTreeMap<SessionId, Known>,
    /// A slot is free, and its time is counted up to here.
    open_since: Option<Moment>,
    /// The holders at the last look since everything was listed.
    holders: Option<BTreeSet<SessionId>>,
}

impl Offers {
    /// Notes a view. `free`: it has a free slot. `first`: the client is the first slotkeeper client of the queue.
    pub(super) fn see(&mut self, view: &View, free: bool, first: bool, now: Moment) {
        self.count(now);
        // A new contender has been offered nothing yet.
        if view.is_listed() {
            self.see_passed(view, first);
        }
        let waiting: BTreeMap<_, _> =
            view.foreign_waiters().map(|one| (&one.session, one.modify_index)).collect();
        let complete = view.is_complete();
        self.foreign.retain(|session, known| match waiting.get(session) {
            Some(index) => *index == known.offer.index,
            None => !complete,
        });
        for (session, index) in &waiting {
            let new = Known { offer: Offer { index: *index, open: Duration::ZERO }, passed: false };
            let known = self.foreign.entry((*session).clone()).or_insert(new);
            let stored = view.offered.0.get(*session);
            if let Some(stored) = stored.filter(|stored| stored.index == known.offer.index) {
                known.offer.open = known.offer.open.max(stored.open);
            }
        }
        self.open_since = (free && !self.foreign.is_empty()).then_some(now);
    }

    /// Whether a slot is left to a foreign contender.
    pub(super) fn are_open(&self) -> bool {
        self.open_since.is_some()
    }

    /// Whether a foreign client has acquired since the last look, while others wait.
    fn see_passed(&mut self, view: &View, first: bool) {
        let holders: BTreeSet<_> =
            view.record().into_iter().flat_map(|record| record.holders.iter().cloned()).collect();
        let before = self.holders.replace(holders);
        let (Some(before), Some(holders)) = (before, &self.holders) else { return };
        // An unknown contender has enqueued since the listing.
        let is_foreign = |session: &SessionId| {
            // A slotkeeper client's departure may be seen before its grant.
            let unknown = || first && !view.was_ours(session);
            view.contender(session).map_or_else(unknown, |one| one.entry.is_none())
        };
        if holders.difference(&before).any(is_foreign) {
            self.foreign.values_mut().for_each(|known| known.passed = true);
        }
    }

    /// From here on it is unknown whether the slot is free.
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

    /// Copies the offers into the view.
    pub(super) fn tell(&self, view: &mut View, now: Moment) {
        let open = self.open_since.map(|since| now.since(since)).unwrap_or_default();
        let offers = self.foreign.iter().map(|(session, known)| {
            let open = if known.passed { MAX_OFFER } else { (known.offer.open + open).min(MAX_OFFER) };
            (session.clone(), Offer { open, ..known.offer })
        });
        view.offers = offers.collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::{Entry, WaiterState};
    use crate::view::tests::pair;
    use crate::{Identity, Pair};

    const FOREIGN: &str = "foreign";

    fn lock(holder: &str, index: u64) -> Pair {
        let holders = if holder.is_empty() { String::new() } else { format!("{holder:?}") };
        pair("p/.lock", format!(r#"{{"Limit":1,"Holders":[{holders}]}}"#).as_bytes(), None, index)
    }

    /// A semaphore held by `a`, with a foreign client, `b` and `input` in its queue, in this order.
    fn listed() -> View {
        let entry = |state| Entry::new(state, 1, 0, String::new(), Identity::default()).encode();
        let (held, waiting) = (entry(WaiterState::Held), entry(WaiterState::Waiting));
        let contenders = [("a", &held), (FOREIGN, &Vec::new()), ("b", &waiting), ("me", &waiting)];
        let pairs = contenders.into_iter().zip(1..);
        let pairs = pairs.map(|((name, value), index)| pair(&format!("p/{name}"), value, Some(name), index));
        View::new("p", pairs.chain([lock("a", 9)]).collect(), 9)
    }

    fn is_passed(offers: &Offers) -> bool {
        offers.foreign[&SessionId::from(FOREIGN)].passed
    }

    #[test]
    fn a_client_that_left_before_it_was_seen_to_hold_was_a_slotkeeper_client() {
        let now = Moment::from_boot(Duration::from_secs(1));
        let (mut view, mut offers) = (listed(), Offers::default());
        offers.see(&view, false, true, now);
        view.see_contender(&"b".into(), None, 12);
        offers.see(&view, false, true, now);
        view.see_lock(Some(lock("b", 10)), 10);
        offers.see(&view, false, true, now);
        assert!(!is_passed(&offers));
        // No slotkeeper client can be ahead of the first one: this contender is foreign.
        view.see_lock(Some(lock("c", 14)), 14);
        let mut of_another = offers.clone();
        of_another.see(&view, false, false, now);
        assert!(!is_passed(&of_another));
        offers.see(&view, false, true, now);
        assert!(is_passed(&offers));
    }
}
