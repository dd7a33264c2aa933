//! The section `http`.

use std::net::{Ipv4Addr, SocketAddr};

use crate::config::address;
use crate::config::fields::Fields;
use crate::config::kinds::text_or_number;

/// Where the read-only endpoints listen by default.
const DEFAULT_LISTEN: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 9377);

/// The read-only endpoints.
#[derive(Clone, Debug, PartialEq)]
pub struct Http {
    /// Where they listen; none: they are off.
    pub listen: Option<SocketAddr>,
}

impl Http {
    pub(super) fn read(f: &mut Fields<'_>) -> Self {
        let listen =
            f.get("listen", |value| match &*text_or_number(value, "an address such as 127.0.0.1:9377")? {
                "off" => Ok(None),
                address => address::tcp(address).map(Some).map_err(|message| format!("{message}, or off")),
            });
        Self { listen: listen.unwrap_or_else(|| Some(DEFAULT_LISTEN.into())) }
    }
}
