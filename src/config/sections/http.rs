//! The section `http`.

use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::config::address;
use crate::config::findings::Findings;
use crate::config::path::FieldPath;
use crate::config::scalar::ListenText;

/// Where the read-only endpoints listen by default.
pub(super) const DEFAULT_LISTEN: &str = "127.0.0.1:9377";

/// The read-only HTTP endpoints.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct RawHttp {
    /// IP address and port to listen on, or `off`.
    #[schemars(extend("default" = "127.0.0.1:9377"))]
    pub(super) listen: Option<ListenText>,
}

/// The read-only endpoints.
#[derive(Clone, Debug, PartialEq)]
pub struct Http {
    /// Where they listen; none: they are off.
    pub listen: Option<SocketAddr>,
}

impl RawHttp {
    pub(super) fn check(self, at: &FieldPath, findings: &mut Findings) -> Http {
        let Self { listen } = self;
        let listen = listen.map_or_else(|| DEFAULT_LISTEN.to_owned(), |ListenText(listen)| listen);
        if listen == "off" {
            return Http { listen: None };
        }
        let fault = |message| findings.fault(&at.key("listen"), format!("{message}, or off"));
        Http { listen: address::tcp(&listen).map_err(fault).ok() }
    }
}
