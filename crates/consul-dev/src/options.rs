//! The options of the server: the dialect, and settings of Consul.

use std::time::Duration;

use super::Dialect;

/// The options of a server. The defaults are those of Consul.
#[derive(Clone, Debug)]
pub struct Options {
    /// The version of Consul to imitate.
    pub dialect: Dialect,
    /// A session ends this many TTLs after its last renewal. Consul uses 2.
    pub expiry_factor: u32,
    /// The shortest TTL that is accepted: Consul's `session_ttl_min`, 10 s by default.
    pub min_ttl: Duration,
    /// The name of the one node in the catalogue, and the node of every session.
    pub node: String,
    /// Bytes of a value: Consul's `limits.kv_max_value_size`, 512 KiB by default.
    pub max_value: usize,
    /// The time within which the body of a request must arrive: Consul's `http_config.read_timeout`.
    pub read_timeout: Option<Duration>,
    /// The time within which an answer must begin: Consul's `http_config.write_timeout`. As in Go's HTTP server, an answer that
    /// is later is lost: the request is executed, and the connection is closed instead.
    pub write_timeout: Option<Duration>,
    /// Connections that one address may have: Consul's `limits.http_max_conns_per_client`, 200 there by default.
    pub max_connections_per_client: Option<usize>,
    /// Reads of keys a second: Consul's `limits.request_limits.read_rate`, enforcing; ten times as many may come at once.
    pub read_rate: Option<u32>,
    /// Writes a second: Consul's `limits.request_limits.write_rate`.
    pub write_rate: Option<u32>,
    /// A token that may not read everything.
    pub restricted: Option<Restricted>,
}

/// A token with fewer rights. All other tokens, and requests without a token, have all rights.
#[derive(Clone, Debug, Default)]
pub struct Restricted {
    /// The token.
    pub token: String,
    /// The prefixes of keys that it may neither read nor write.
    pub hidden_keys: Vec<String>,
    /// Whether sessions are hidden from it, and it may not create any.
    pub hides_sessions: bool,
}

impl Options {
    /// Consul's `kv_max_value_size` and `txn_max_req_len` where they are not set.
    pub const MAX_VALUE: usize = 512 * 1024;

    /// Bytes of a transaction. A larger value than Consul's default needs a larger transaction too.
    pub(crate) fn max_txn(&self) -> usize {
        self.max_value.max(Self::MAX_VALUE)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            dialect: Dialect::default(),
            expiry_factor: 2,
            min_ttl: Duration::from_secs(10),
            node: "slotkeeper-dev".to_owned(),
            max_value: Self::MAX_VALUE,
            read_timeout: None,
            write_timeout: None,
            max_connections_per_client: None,
            read_rate: None,
            write_rate: None,
            restricted: None,
        }
    }
}
