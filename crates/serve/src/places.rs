//! The connections of a server, and which of them goes where a newcomer finds it full.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// Those that there are, in the order in which they came.
#[derive(Debug)]
pub(super) struct Places<T> {
    taken: Vec<(Option<IpAddr>, T)>,
}

impl<T> Default for Places<T> {
    fn default() -> Self {
        Self { taken: Vec::new() }
    }
}

impl<T> Places<T> {
    /// How many there are.
    pub(super) fn taken(&self) -> usize {
        self.taken.len()
    }

    /// How many that address has.
    pub(super) fn taken_by(&self, whose: Option<IpAddr>) -> usize {
        self.taken.iter().filter(|(address, _)| *address == whose).count()
    }

    /// One has come, from that address.
    pub(super) fn take(&mut self, whose: Option<IpAddr>, connection: T) {
        self.taken.push((whose, connection));
    }

    /// One has gone.
    pub(super) fn leave(&mut self, is_it: impl Fn(&T) -> bool) {
        self.taken.retain(|(_, connection)| !is_it(connection));
    }

    /// Takes one out: of the address that has the most, the one that came first. So nobody keeps others out, however many
    /// connections it opens, and whoever has few keeps them. Those without an address are one neighbour.
    pub(super) fn displace(&mut self) -> Option<T> {
        let mut of = BTreeMap::<_, usize>::new();
        for (whose, _) in &self.taken {
            *of.entry(whose).or_default() += 1;
        }
        let most = of.values().max()?;
        let goes = self.taken.iter().position(|(whose, _)| of.get(whose) == Some(most))?;
        Some(self.taken.remove(goes).1)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    fn from(host: u8) -> Option<IpAddr> {
        Some(Ipv4Addr::new(10, 0, 0, host).into())
    }

    #[test]
    fn the_first_goes_of_whoever_has_most() {
        let mut places = Places::default();
        assert_eq!(places.displace(), None::<&str>);
        places.take(from(1), "a probe");
        for one in ["a crowd's first", "its second", "its third"] {
            places.take(from(2), one);
        }
        places.leave(|one| *one == "its second");
        assert_eq!(places.displace(), Some("a crowd's first"));
        assert_eq!(places.taken(), 2);
        assert_eq!(places.displace(), Some("a probe"), "where all have as many, the first of all");
    }

    proptest! {
        #![proptest_config(slotkeeper_test_seed::cases())]

        /// However many a neighbour opens, and whenever: others lose no place as long as they have fewer than it.
        #[test]
        fn a_neighbour_takes_no_place_of_one_that_has_fewer(
            comes in prop::collection::vec(0..4_u8, 1..200),
            room in 8..32_usize,
        ) {
            let mut places = Places::default();
            for (n, host) in comes.into_iter().enumerate() {
                if places.taken() == room {
                    let count = |host| places.taken.iter().filter(|(whose, _)| *whose == from(host)).count();
                    let counts = [0, 1, 2, 3].map(count);
                    let (gone, _) = places.displace().unwrap();
                    prop_assert!(counts.iter().all(|others| *others <= counts[usize::from(gone)]));
                }
                places.take(from(host), (host, n));
                prop_assert!(places.taken() <= room);
            }
        }
    }
}
