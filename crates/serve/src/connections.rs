//! The connections of a server, and the choice of the one to close when it is full.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// The open connections, in the order of their arrival.
#[derive(Debug)]
pub(super) struct ConnectionTable<T> {
    open: Vec<(Option<IpAddr>, T)>,
}

impl<T> Default for ConnectionTable<T> {
    fn default() -> Self {
        Self { open: Vec::new() }
    }
}

impl<T> ConnectionTable<T> {
    /// The number of connections.
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// The number of connections from an address.
    pub(super) fn len_of(&self, address: Option<IpAddr>) -> usize {
        self.open.iter().filter(|(of, _)| *of == address).count()
    }

    /// Adds a connection from an address.
    pub(super) fn insert(&mut self, address: Option<IpAddr>, connection: T) {
        self.open.push((address, connection));
    }

    /// Removes a connection that has ended.
    pub(super) fn remove(&mut self, is_it: impl Fn(&T) -> bool) {
        self.open.retain(|(_, connection)| !is_it(connection));
    }

    /// Removes the oldest connection of the address that has the most, of those that `may` go. So a client with many connections
    /// cannot displace those of a client with few. All connections without an address count as one client.
    pub(super) fn displace(&mut self, may: impl Fn(&T) -> bool) -> Option<T> {
        let mut of = BTreeMap::<_, usize>::new();
        for (address, _) in self.open.iter().filter(|(_, one)| may(one)) {
            *of.entry(*address).or_default() += 1;
        }
        let most = of.values().max()?;
        let oldest = self.open.iter().position(|(address, one)| may(one) && of.get(address) == Some(most))?;
        Some(self.open.remove(oldest).1)
    }

    /// Whether any connection is so.
    pub(super) fn any(&self, is_so: impl Fn(&T) -> bool) -> bool {
        self.open.iter().any(|(_, one)| is_so(one))
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
    fn the_oldest_connection_of_the_largest_client_is_displaced() {
        let mut table = ConnectionTable::default();
        assert_eq!(table.displace(|_| true), None::<&str>);
        table.insert(from(1), "a probe");
        for one in ["a crowd's first", "its second", "its third"] {
            table.insert(from(2), one);
        }
        table.remove(|one| *one == "its second");
        assert_eq!(table.displace(|_| true), Some("a crowd's first"));
        assert_eq!(table.len(), 2);
        assert_eq!(table.displace(|_| true), Some("a probe"), "of equal clients, the oldest connection");
    }

    proptest! {
        #![proptest_config(slotkeeper_test_seed::cases())]

        /// A client never displaces the connections of a client that has fewer.
        #[test]
        fn a_client_never_displaces_a_client_with_fewer_connections(
            comes in prop::collection::vec(0..4_u8, 1..200),
            room in 8..32_usize,
        ) {
            let mut table = ConnectionTable::default();
            for (n, host) in comes.into_iter().enumerate() {
                if table.len() == room {
                    let count = |host| table.open.iter().filter(|(address, _)| *address == from(host)).count();
                    let counts = [0, 1, 2, 3].map(count);
                    let (gone, _) = table.displace(|_| true).unwrap();
                    prop_assert!(counts.iter().all(|others| *others <= counts[usize::from(gone)]));
                }
                table.insert(from(host), (host, n));
                prop_assert!(table.len() <= room);
            }
        }
    }
}
