//! The section `control`.

use std::net::SocketAddr;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::config::findings::Findings;
use crate::config::path::FieldPath;
use crate::config::{address, value};

/// The default token file.
const TOKEN_FILE: &str = "/run/slotkeeper/control.token";
/// The default for leases: about as many as can have a long poll each, so that every waiter sees its grant at once. With them
/// an agent has at most 72 of the 200 connections that Consul allows one address.
const DEFAULT_LEASES: usize = 64;
/// The default for waiting requests.
const DEFAULT_WAITS: usize = 32;
/// The maximum of either. More would need a Consul that is set up for them.
const MAX_COUNT: usize = 1000;

/// The endpoints that change state.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct RawControl {
    /// `unix:/path/to/socket`, which needs no token; or a loopback address and port, where every request bears one.
    pub(super) listen: Option<String>,
    /// The file with the token that requests at a loopback address must bear. One that is missing is made, with a new
    /// token. Without effect for a unix socket.
    #[schemars(extend("default" = "/run/slotkeeper/control.token"))]
    pub(super) token_file: Option<PathBuf>,
    /// Leases held and waited for together, at most. An agent has at most 72 connections to Consul, however many leases
    /// there are; of more than 64 some see changes later, at most a third of the TTL.
    #[schemars(range(min = 1, max = 1000), extend("default" = 64))]
    max_leases: Option<i64>,
    /// Requests that wait for a lease at once, at most.
    #[schemars(range(min = 1, max = 1000), extend("default" = 32))]
    max_waits: Option<i64>,
}

/// The endpoints that change state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Control {
    /// Where they listen: never where another machine gets.
    pub listen: Listen,
    /// The file with the token that requests must bear where that is TCP.
    pub token_file: PathBuf,
    /// Leases held and waited for together, at most: 1 to 1000.
    pub max_leases: usize,
    /// Requests that wait for a lease at once, at most: 1 to 1000.
    pub max_waits: usize,
}

/// Where a server of ours listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

impl RawControl {
    pub(super) fn check(self, at: &FieldPath, findings: &mut Findings) -> Option<Control> {
        let Self { listen: listen_text, token_file, max_leases, max_waits } = self;
        let token_file = value::path(token_file, &at.key("token_file"), findings);
        if let Some(Err(message)) = token_file.as_deref().map(value::no_system_path) {
            findings.fault(&at.key("token_file"), message);
        }
        let mut count = |name: &str, written: Option<i64>, default: usize| {
            let number = |written| value::number(written, 1..=MAX_COUNT, &at.key(name), findings);
            written.and_then(number).unwrap_or(default)
        };
        let max_leases = count("max_leases", max_leases, DEFAULT_LEASES);
        let max_waits = count("max_waits", max_waits, DEFAULT_WAITS);
        let listen = listen(listen_text, &at.key("listen"), findings)?;
        let token_file = token_file.unwrap_or_else(|| PathBuf::from(TOKEN_FILE));
        Some(Control { listen, token_file, max_leases, max_waits })
    }
}

fn listen(listen: Option<String>, field: &FieldPath, findings: &mut Findings) -> Option<Listen> {
    let Some(listen) = listen else {
        findings.fault(field, "missing; write `unix:/path/to/socket` or a loopback address and port");
        return None;
    };
    address::local(&listen).map_err(|message| findings.fault(field, message)).ok()
}
