//! The states of addresses, for the status, and their changes, for the log.

use std::fmt;

/// The state of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressState {
    /// The client sends requests to the address.
    Used,
    /// The address belongs to the same cluster and is not in use.
    Standby,
    /// The address was not probed yet.
    Unknown,
    /// The probe failed, or did not confirm that the address belongs to the cluster. Contains the reason.
    Failed(String),
    /// The address may belong to another cluster. Contains the reason.
    Foreign(String),
}

/// A change of the addresses, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressNews {
    /// The client uses another address from now on.
    Moved {
        /// The previous address.
        from: String,
        /// The new address.
        to: String,
        /// Why the previous address is not used any more.
        why: String,
        /// Whether a session of this client proves that both belong to one cluster.
        proved: bool,
    },
    /// After a restart: no address shows the session of the previous process, whose lease may be valid, so none is used yet.
    NoSession {
        /// Each address, and why it does not show the session.
        addresses: Vec<(String, String)>,
    },
    /// An address is not used, since it may belong to another cluster.
    Foreign {
        /// The address.
        address: String,
        /// The address in use.
        used: String,
        /// The reason.
        why: String,
    },
}

impl fmt::Display for AddressNews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Moved { from, to, why, .. } => write!(f, "Consul at {from} failed ({why}); using {to}"),
            Self::NoSession { addresses } => {
                f.write_str(
                    "no Consul address shows the session of the previous process; none is used until an address shows it or its \
                     lease has expired: ",
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
