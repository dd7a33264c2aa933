//! What is told of the addresses: by the status, and by the log.

use std::fmt;

/// What is known of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressState {
    /// Requests go there.
    Used,
    /// It is of the same cluster.
    Standby,
    /// Nothing is known of it yet.
    Unknown,
    /// It could not be asked, or confirms nothing. Says why.
    Failed(String),
    /// It may belong to another cluster. Says why.
    Foreign(String),
}

/// News of the addresses, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressNews {
    /// Another address is used from here on.
    Moved {
        /// The one before.
        from: String,
        /// The one that is used.
        to: String,
        /// What was wrong with the one before.
        why: String,
        /// That both belong to one cluster is proved by an own session.
        proved: bool,
    },
    /// After a restart: no address shows the session of the process before, whose lease may be valid, so that none is used yet.
    NoSession {
        /// Each address, and why it shows none.
        addresses: Vec<(String, String)>,
    },
    /// This address is not used, since it may belong to another cluster than the one that is.
    Foreign {
        /// The address.
        address: String,
        /// The one that is used.
        used: String,
        /// What speaks for it.
        why: String,
    },
}

impl fmt::Display for AddressNews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Moved { from, to, why, .. } => write!(f, "Consul at {from} failed ({why}); using {to}"),
            Self::NoSession { addresses } => {
                f.write_str(
                    "no Consul address shows the session of the process before this one; none is used until one shows it or its \
                     lease has ended: ",
                )?;
                for (at, (address, why)) in addresses.iter().enumerate() {
                    write!(f, "{}{address}: {why}", if at == 0 { "" } else { "; " })?;
                }
                Ok(())
            }
            Self::Foreign { address, used, why } => write!(
                f,
                "Consul at {address} is not used, since it may belong to another cluster than {used}: {why}"
            ),
        }
    }
}
