//! What the client must be told: where Consul is, who asks, and how to trust it.

use std::path::PathBuf;
use std::time::Duration;

use super::{Addresses, TokenSource};

/// Where Consul is, who asks, and how to trust it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The agents or servers to talk to, one at a time.
    pub address: Addresses,
    /// The ACL token; none asks as the anonymous token.
    pub token: Option<TokenSource>,
    /// Sent as `dc`; none means the datacenter of the agent that is asked.
    pub datacenter: Option<String>,
    /// Sent as `ns` (Enterprise).
    pub namespace: Option<String>,
    /// Sent as `partition` (Enterprise).
    pub partition: Option<String>,
    /// The longest wait that a blocking read asks for, where a proxy ends longer requests. None: what the caller asks for.
    pub max_wait: Option<Duration>,
    /// Used where the address is https.
    pub tls: Tls,
}

/// How to trust an https address, and how to show who we are. Files are PEM and are read once, when the client is
/// made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// The authorities to trust, instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// A folder of such files; as in Consul's own tools, `ca_file` goes first where both are set.
    pub ca_path: Option<PathBuf>,
    /// The client certificate, with its chain.
    pub cert_file: Option<PathBuf>,
    /// Its private key.
    pub key_file: Option<PathBuf>,
    /// The name to ask for and to find in the server's certificate, where it is not the address's host, as with
    /// `server.dc1.consul`.
    pub server_name: Option<String>,
    /// Trust any certificate. Whoever sets it should be warned: the token goes to anyone who answers.
    pub insecure_skip_verify: bool,
}
