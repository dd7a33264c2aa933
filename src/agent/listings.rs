//! The listings that all keepers of an agent want: those who want the same one share it. Pure.
//!
//! An answer shows what was there after it was asked for. So what is under way serves none that comes later: it is asked for
//! again once the answer is there, by one request for all who came meanwhile.

use std::collections::BTreeMap;

/// Who wants which listing.
#[derive(Debug)]
pub(super) struct Listings<Asker> {
    of: BTreeMap<String, Wanted<Asker>>,
}

#[derive(Debug)]
struct Wanted<Asker> {
    /// Those whom the request under way is for; none while there is none.
    asked: Vec<Asker>,
    /// Those for whom the next one is.
    waiting: Vec<Asker>,
}

impl<Asker> Default for Listings<Asker> {
    fn default() -> Self {
        Self { of: BTreeMap::new() }
    }
}

impl<Asker> Listings<Asker> {
    /// Somebody wants to see what lies below that prefix from here on.
    pub(super) fn want(&mut self, prefix: String, asker: Asker) {
        let none = || Wanted { asked: Vec::new(), waiting: Vec::new() };
        self.of.entry(prefix).or_insert_with(none).waiting.push(asker);
    }

    /// A prefix to be listed now; to be called until there is none.
    pub(super) fn next(&mut self) -> Option<String> {
        let (prefix, wanted) = self.of.iter_mut().find(|(_, wanted)| wanted.asked.is_empty())?;
        wanted.asked = std::mem::take(&mut wanted.waiting);
        Some(prefix.clone())
    }

    /// The request for that prefix has its answer; for whom it is.
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
