//! Shares listings: keepers that want the same prefix listed at about the same time get one request. Pure.
//!
//! An answer shows the state after its request was sent. So a request under way does not serve a keeper that comes later: after
//! its answer one more request serves all keepers that came meanwhile.

use std::collections::BTreeMap;

/// The wanted listings, each with its askers.
#[derive(Debug)]
pub(super) struct Listings<Asker> {
    of: BTreeMap<String, Wanted<Asker>>,
}

#[derive(Debug)]
struct Wanted<Asker> {
    /// The askers of the request under way. Empty: there is none.
    asked: Vec<Asker>,
    /// The askers of the next request.
    waiting: Vec<Asker>,
}

impl<Asker> Default for Listings<Asker> {
    fn default() -> Self {
        Self { of: BTreeMap::new() }
    }
}

impl<Asker> Listings<Asker> {
    /// Wants a listing of the prefix whose request is sent from here on.
    pub(super) fn want(&mut self, prefix: String, asker: Asker) {
        let none = || Wanted { asked: Vec::new(), waiting: Vec::new() };
        self.of.entry(prefix).or_insert_with(none).waiting.push(asker);
    }

    /// A prefix to be listed now. Call it until it returns `None`.
    pub(super) fn next(&mut self) -> Option<String> {
        let (prefix, wanted) = self.of.iter_mut().find(|(_, wanted)| wanted.asked.is_empty())?;
        wanted.asked = std::mem::take(&mut wanted.waiting);
        Some(prefix.clone())
    }

    /// The request for the prefix was answered. Returns its askers.
    pub(super) fn ended(&mut self, prefix: &str) -> Vec<Asker> {
        let Some(wanted) = self.of.get_mut(prefix) else { return Vec::new() };
        let askers = std::mem::take(&mut wanted.asked);
        if wanted.waiting.is_empty() {
            self.of.remove(prefix);
        }
        askers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wants(listings: &mut Listings<u32>, asker: u32, prefix: &str) {
        listings.want(prefix.into(), asker);
    }

    #[test]
    fn those_who_come_together_share_one_and_those_who_come_later_the_next() {
        let mut listings = Listings::default();
        wants(&mut listings, 1, "a");
        wants(&mut listings, 2, "a");
        wants(&mut listings, 3, "b");
        assert_eq!(
            [listings.next(), listings.next(), listings.next()],
            [Some("a".into()), Some("b".into()), None]
        );
        for late in [4, 5] {
            wants(&mut listings, late, "a");
            assert_eq!(listings.next(), None, "what is under way may be older than what it wants to see");
        }
        assert_eq!(listings.ended("a"), [1, 2]);
        assert_eq!(listings.next().as_deref(), Some("a"));
        wants(&mut listings, 6, "a");
        assert_eq!(listings.ended("a"), [4, 5]);
        assert_eq!(listings.ended("b"), [3]);
        assert_eq!(listings.next().as_deref(), Some("a"));
        assert_eq!((listings.ended("a"), listings.next()), (vec![6], None));
        assert!(listings.of.is_empty());
    }
}
