//! The section `control`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use crate::config::address;
use crate::config::fields::Fields;
use crate::config::kinds::{no_system_path, number, path, text};

/// The default token file.
const TOKEN_FILE: &str = "/run/slotkeeper/control.token";
/// The default maximum of leases. About as many can have a long poll each, so that every waiter sees its grant at once. An
/// agent with them has at most 72 of the 200 connections that Consul allows one address.
const DEFAULT_LEASES: usize = 64;
/// The default maximum of waiting requests.
const DEFAULT_WAITS: usize = 32;
/// The maximum of either setting. More would need a Consul with higher limits.
const MAX_COUNT: usize = 1000;

/// The endpoints that change state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Control {
    /// Where they listen: a unix socket or a loopback address.
    pub listen: Listen,
    /// The file with the token for requests at a loopback address.
    pub token_file: PathBuf,
    /// The maximum of leases that are held or waited for: 1 to 1000.
    pub max_leases: usize,
    /// The maximum of requests that wait for a lease at once: 1 to 1000.
    pub max_waits: usize,
}

/// Where one of the agent's servers listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

impl Control {
    pub(super) fn read(f: &mut Fields<'_>) -> Self {
        const MISSING: &str = "missing; write `unix:/path/to/socket` or a loopback address and port";
        let listen = f.need("listen", MISSING, |value| address::local(&text(value)?));
        let token_file = f.get("token_file", |value| {
            let path = path(value)?;
            no_system_path(&path).map(|()| path)
        });
        Self {
            listen: listen.unwrap_or(Listen::Tcp((Ipv4Addr::LOCALHOST, 0).into())),
            token_file: token_file.unwrap_or_else(|| TOKEN_FILE.into()),
            max_leases: f.get("max_leases", number(1..=MAX_COUNT)).unwrap_or(DEFAULT_LEASES),
            max_waits: f.get("max_waits", number(1..=MAX_COUNT)).unwrap_or(DEFAULT_WAITS),
        }
    }
}
