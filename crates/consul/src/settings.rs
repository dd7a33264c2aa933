//! The settings of a client.

use std::path::PathBuf;
use std::time::Duration;

use super::{Addresses, TokenSource};

/// The settings of a [`Client`](crate::Client): addresses, token, scope and TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The agents or servers of one cluster. The client uses one at a time.
    pub address: Addresses,
    /// The source of the ACL token; `None` sends none, which Consul treats as the anonymous token.
    pub token: Option<TokenSource>,
    /// Sent as `dc`; `None`: the datacenter of the agent that receives the request.
    pub datacenter: Option<String>,
    /// Sent as `ns` (Enterprise).
    pub namespace: Option<String>,
    /// Sent as `partition` (Enterprise).
    pub partition: Option<String>,
    /// The maximum wait of a blocking query, for proxies that end longer requests. `None`: the wait that the caller requests.
    pub max_wait: Option<Duration>,
    /// Applies to https addresses.
    pub tls: Tls,
}

/// How the client verifies an https address, and how it authenticates. Files are PEM and are read once, when the client is created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// The trusted certificate authorities, instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// A folder of such files. As in Consul's own tools, `ca_file` takes precedence.
    pub ca_path: Option<PathBuf>,
    /// The client certificate, with its chain.
    pub cert_file: Option<PathBuf>,
    /// Its private key.
    pub key_file: Option<PathBuf>,
    /// The name to request and to find in the server's certificate, if it is not the host of the address, such as
    /// `server.dc1.consul`.
    pub server_name: Option<String>,
    /// Accept any certificate. The token then goes to whatever server answers, so warn the operator.
    pub insecure_skip_verify: bool,
}
