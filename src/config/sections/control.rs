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
/// The default maximum of leases. About as many can have a long poll each, so that every waiter sees its grant at once. An
/// agent with them has at most 72 of the 200 connections that Consul allows one address.
const DEFAULT_LEASES: usize = 64;
/// The default maximum of waiting requests.
const DEFAULT_WAITS: usize = 32;
/// The maximum of either setting. More would need a Consul with higher limits.
const MAX_COUNT: usize = 1000;

/// The endpoints that change state.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct RawControl {
    /// `unix:/path/to/socket`, which needs no token, or a loopback address and port, where every request needs one.
    pub(super) listen: Option<String>,
    /// The file with the token for requests at a loopback address. A missing file is created, with a new token. No effect
    /// for a unix socket.
    #[schemars(extend("default" = "/run/slotkeeper/control.token"))]
    pub(super) token_file: Option<PathBuf>,
    /// The maximum of leases that are held or waited for. An agent has at most 72 connections to Consul, however many leases
    /// there are. With more than 64 some see changes later, by at most a third of the TTL.
    #[schemars(range(min = 1, max = 1000), extend("default" = 64))]
    max_leases: Option<i64>,
    /// The maximum of requests that wait for a lease at once.
    #[schemars(range(min = 1, max = 1000), extend("default" = 32))]
    max_waits: Option<i64>,
}

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
