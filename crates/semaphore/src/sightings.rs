//! Since when things have stood as they stand, by this client's own clock. No client compares clocks with another one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::contender::WaiterState;
use super::line::{self, Kind};
use super::timing::{FOREIGN_TURN, OFFER_PATIENCE};
use super::view::View;
use super::{Moment, SessionId};

/// What lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sight {
    /// A holder is dead.
    Dead,
    /// An offer is not accepted.
    Offer,
    /// A waiter was asked for a sign of life.
    Asked,
    /// Free slots are left to a waiter that takes them itself, or that waits for more.
    Turn,
    /// Slots are free although the queue is served by each release.
    Free,
}

/// What was seen first when.
#[derive(Clone, Debug, Default)]
pub struct Sightings {
    since: BTreeMap<(Sight, Option<SessionId>), (u64, Moment)>,
    /// The holders when all were seen last.
    holders: BTreeSet<SessionId>,
    /// The foreign waiters then, each with the index of its contender key.
    foreign: BTreeMap<SessionId, u64>,
}

impl Sightings {
    /// Notes what this client has done itself by the write of that index: it has made an offer, or asked for a sign of life.
    pub fn note(&mut self, sight: Sight, session: &SessionId, index: u64, now: Moment) {
        self.since.insert((sight, Some(session.clone())), (index, now));
    }

    /// Takes in a view. A key that has changed since begins anew. What a view does not show stays as it is, unless the view shows all.
    pub fn see(&mut self, view: &View, now: Moment) {
        let mut seen: BTreeMap<(Sight, Option<SessionId>), u64> = BTreeMap::new();
        for holder in view.dead() {
            seen.insert((Sight::Dead, Some(holder.clone())), 0);
        }
        let offers = view.contenders.iter().filter(|one| one.state() == Some(WaiterState::Offered));
        for one in offers.filter(|one| view.slots_of(&one.session) > 0) {
            seen.insert((Sight::Offer, Some(one.session.clone())), one.modify_index);
        }
        for one in view.contenders.iter().filter(|one| one.is_asked()) {
            seen.insert((Sight::Asked, Some(one.session.clone())), one.modify_index);
        }
        let slots = view.record().map_or(0, super::Record::free);
        let free = slots > 0;
        if free {
            seen.insert((Sight::Free, None), view.lock_index());
            let keeps = |one: &line::Waiter<'_>| one.kind != Kind::Ours || one.slots > slots;
            for one in line::in_order(view, None).into_iter().filter(keeps) {
                seen.insert((Sight::Turn, Some(one.session.clone())), one.index);
            }
        }
        // A client that has let its turn pass gets no other one before its key changes.
        let is_over = |since: Moment| since + FOREIGN_TURN <= now;
        let shows = |(sight, session): &(Sight, Option<SessionId>), since| match (sight, session) {
            (Sight::Turn, Some(session)) if !free && is_over(since) => {
                view.is_listed() && view.contender(session).is_none_or(|one| one.entry.is_some())
            }
            _ if view.is_listed() && !view.is_past() => true,
            (Sight::Free | Sight::Turn, _) => !free,
            (Sight::Dead | Sight::Offer, Some(session)) => {
                let tells = *sight == Sight::Offer && view.contender(session).is_some();
                tells || view.slots_of(session) == 0
            }
            (Sight::Asked, Some(session)) => view.contender(session).is_some(),
            (Sight::Dead | Sight::Offer | Sight::Asked, None) => true,
        };
        self.since.retain(|what, (index, since)| match seen.get(what) {
            Some(now) => now == index,
            None => !shows(what, *since),
        });
        for (what, index) in seen {
            self.since.entry(what).or_insert((index, now));
        }
        if view.is_listed() && !view.is_filtered() {
            self.see_foreign(view, now);
        }
    }

    /// Foreign clients are in no order among themselves. Where one of them has taken a slot, the others, which might have taken it, have had
    /// their turn: where slots are never free for long, it would not end otherwise. One that has left `.lock` deletes its key a moment later,
    /// and waits for nothing.
    fn see_foreign(&mut self, view: &View, now: Moment) {
        let is_foreign = |holder: &SessionId| view.contender(holder).is_some_and(|one| one.entry.is_none());
        let holders: BTreeSet<_> = view.holders().into_iter().cloned().collect();
        let waiters = view.waiters().into_iter().filter(|one| one.entry.is_none());
        let foreign: BTreeMap<_, _> = waiters.map(|one| (one.session.clone(), one.modify_index)).collect();
        let taken = holders.difference(&self.holders).any(is_foreign);
        for (session, index) in &foreign {
            let passed = taken && self.foreign.get(session) == Some(index);
            if passed || self.holders.contains(session) {
                let over = (*index, now.back(FOREIGN_TURN));
                self.since.insert((Sight::Turn, Some(session.clone())), over);
            }
        }
        (self.holders, self.foreign) = (holders, foreign);
    }

    /// Since when it has been seen.
    pub(crate) fn since(&self, sight: Sight, session: Option<&SessionId>) -> Option<Moment> {
        self.since.get(&(sight, session.cloned())).map(|(_, since)| *since)
    }

    /// When the first dead holder is to be pruned, or the first offer to be taken back.
    pub(crate) fn first_due(&self, prune_delay: Duration) -> Option<Moment> {
        let due = |((sight, _), (_, since)): (&(Sight, _), &(u64, Moment))| match sight {
            Sight::Dead => Some(*since + prune_delay),
            Sight::Offer => Some(*since + OFFER_PATIENCE),
            Sight::Asked | Sight::Turn | Sight::Free => None,
        };
        self.since.iter().filter_map(due).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::{Entry, Identity};
    use crate::view::Pair;
    use crate::view::tests::pair;

    const AT: Moment = Moment::from_boot(Duration::from_secs(100));

    fn lock(holders: &str) -> Pair {
        pair("p/.lock", format!(r#"{{"Limit":1,"Holders":[{holders}]}}"#).as_bytes(), None, 9)
    }

    fn offer(index: u64) -> Pair {
        let entry = Entry::new(WaiterState::Waiting, 1, 0, String::new(), Identity::default());
        pair("p/b", &entry.offered(1, vec![0], "").encode(), Some("b"), index)
    }

    #[test]
    fn an_offer_is_seen_since_its_first_sight_until_its_key_changes() {
        let b = SessionId::from("b");
        let later = AT + Duration::from_secs(1);
        let mut sightings = Sightings::default();
        sightings.see(&View::new("p", vec![lock(r#""b""#), offer(5)], 9), AT);
        sightings.see(&View::new("p", vec![lock(r#""b""#), offer(5)], 9), later);
        assert_eq!(sightings.since(Sight::Offer, Some(&b)), Some(AT));
        assert_eq!(sightings.first_due(Duration::ZERO), Some(AT + OFFER_PATIENCE));
        // A view that does not show the key says nothing of it.
        sightings.see(&View::of_some("p", [lock(r#""b""#)], &[], 9), later);
        assert_eq!(sightings.since(Sight::Offer, Some(&b)), Some(AT));
        sightings.see(&View::of_some("p", [lock(r#""b""#), offer(6)], &[], 9), later);
        assert_eq!(sightings.since(Sight::Offer, Some(&b)), Some(later), "another offer");
        sightings.see(&View::of_some("p", [lock("")], &[], 9), later);
        assert_eq!(sightings.since(Sight::Offer, Some(&b)), None);
    }

    #[test]
    fn the_dead_are_seen_in_listings_alone() {
        let mut sightings = Sightings::default();
        sightings.see(&View::of_some("p", [lock(r#""x""#)], &["x".into()], 9), AT);
        assert_eq!(sightings.first_due(Duration::ZERO), None);
        sightings.see(&View::new("p", vec![lock(r#""x""#)], 9), AT);
        assert_eq!(sightings.first_due(Duration::from_secs(3)), Some(AT + Duration::from_secs(3)));
    }

    #[test]
    fn a_foreign_client_that_let_its_turn_pass_gets_no_other_one() {
        let x = SessionId::from("x");
        let view = |holders| View::new("p", vec![lock(holders), pair("p/x", b"", Some("x"), 4)], 9);
        let mut sightings = Sightings::default();
        sightings.see(&view(""), AT);
        sightings.see(&view(r#""b""#), AT + FOREIGN_TURN / 2);
        assert_eq!(sightings.since(Sight::Turn, Some(&x)), None, "its turn was cut short");
        sightings.see(&view(""), AT + FOREIGN_TURN);
        sightings.see(&view(r#""b""#), AT + FOREIGN_TURN * 2);
        assert_eq!(sightings.since(Sight::Turn, Some(&x)), Some(AT + FOREIGN_TURN));
    }

    #[test]
    fn a_foreign_client_has_had_its_turn_where_another_one_has_taken_the_slot() {
        let foreign = |session: &str, index| pair(&format!("p/{session}"), b"", Some(session), index);
        let of = |holders, late: Vec<Pair>| {
            let pairs = [lock(holders), foreign("x", 4), foreign("y", 5), foreign("z", 6)];
            View::new("p", pairs.into_iter().chain(late).collect(), 9)
        };
        let turn = |sightings: &Sightings, session: &str| sightings.since(Sight::Turn, Some(&session.into()));
        let over = Some(AT.back(FOREIGN_TURN));
        let mut sightings = Sightings::default();
        sightings.see(&of(r#""y""#, vec![]), AT);
        assert_eq!(turn(&sightings, "x"), None, "nobody took a slot meanwhile, as far as is known");
        sightings.see(&of(r#""z""#, vec![foreign("late", 8)]), AT);
        assert_eq!((turn(&sightings, "x"), turn(&sightings, "late")), (over, None), "it came later");
        let past = of("", vec![foreign("late", 8)]).of_past().unwrap();
        sightings.see(&past, AT);
        assert_eq!((turn(&sightings, "x"), turn(&sightings, "late")), (over, Some(AT)));
        assert_eq!(turn(&sightings, "z"), over, "it has left");
        // Clients that leave each other their turns end nobody's.
        let mut sightings = Sightings::default();
        sightings.see(&of("", vec![]), AT);
        sightings.see(&of(r#""b""#, vec![offer(7)]), AT + FOREIGN_TURN / 2);
        assert_eq!(turn(&sightings, "x"), None);
    }

    #[test]
    fn what_is_shown_of_the_past_does_not_tell_who_lives() {
        let mut sightings = Sightings::default();
        let dead = View::new("p", vec![lock(r#""x""#)], 9);
        sightings.see(&dead, AT);
        let alive = View::new("p", vec![lock(r#""x""#), pair("p/x", b"", Some("x"), 4)], 9);
        sightings.see(&alive.of_past().unwrap(), AT + FOREIGN_TURN);
        assert_eq!(sightings.since(Sight::Dead, Some(&"x".into())), Some(AT));
    }
}
