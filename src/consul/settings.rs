//! How to reach Consul: address, token, TLS, and where in the cluster.

use std::fmt;
use std::path::PathBuf;

/// Everything a client needs to know before its first request.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Where the HTTP API is.
    pub address: Address,
    /// The ACL token, where one is needed.
    pub token: Option<TokenSource>,
    /// The datacenter asked (`dc`); none: the addressed agent's own.
    pub datacenter: Option<String>,
    /// The Enterprise namespace (`ns`).
    pub namespace: Option<String>,
    /// The Enterprise admin partition (`partition`).
    pub partition: Option<String>,
    /// How the server is verified and how we show who we are.
    pub tls: Tls,
}

/// Where the HTTP API is.
#[derive(Clone, Debug, PartialEq)]
pub enum Address {
    /// Over TCP.
    Http {
        /// Whether it speaks TLS.
        https: bool,
        /// `host:port`.
        authority: String,
        /// Empty, or a prefix such as `/consul` where a proxy serves the API below one.
        path: String,
    },
    /// Over a unix socket.
    Unix(PathBuf),
}

/// Where the ACL token comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum TokenSource {
    /// The token itself.
    Value(Secret),
    /// A file that holds it; read again when it changes.
    File(PathBuf),
}

/// A text that no log line and no error shows.
#[derive(Clone, PartialEq)]
pub struct Secret(String);

impl Secret {
    /// Wraps `text`.
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// The text itself, for the one place that sends it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// How the server is verified and how we show who we are. Of no effect on a plain `http://` address.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tls {
    /// PEM file of the authorities trusted beside the system's own.
    pub ca_file: Option<PathBuf>,
    /// Folder of such files.
    pub ca_path: Option<PathBuf>,
    /// Our certificate, PEM.
    pub cert_file: Option<PathBuf>,
    /// Its private key, PEM.
    pub key_file: Option<PathBuf>,
    /// The name the server's certificate must bear, where it is not the address's host.
    pub server_name: Option<String>,
    /// Whether any certificate is taken. For experiments only.
    pub insecure_skip_verify: bool,
}
