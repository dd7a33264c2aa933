//! The `consul` section.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use super::scalar::{WrittenAddresses, WrittenDuration};
use slotkeeper_consul::Secret;

/// How to reach Consul.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(in crate::config) struct Consul {
    /// `http://host:port`, `https://host:port` or `unix:///path/to/socket`; a bare `host:port` means `http://`. A list, or
    /// several with commas: the next one is used when one fails.
    #[schemars(extend("default" = "http://127.0.0.1:8500"))]
    pub(in crate::config) address: Option<WrittenAddresses>,
    /// The ACL token itself. `token_file` keeps it out of the configuration.
    #[schemars(with = "Option<String>")]
    pub(in crate::config) token: Option<Secret>,
    /// A file that holds the ACL token; read again when it changes.
    pub(in crate::config) token_file: Option<PathBuf>,
    /// The datacenter; by default the addressed agent's own.
    pub(in crate::config) datacenter: Option<String>,
    /// The namespace (Consul Enterprise; not tested).
    pub(in crate::config) namespace: Option<String>,
    /// The admin partition (Consul Enterprise; not tested).
    pub(in crate::config) partition: Option<String>,
    /// 2s to 10m. The longest wait of a long poll, where a proxy ends longer requests. By default it is learnt from the polls
    /// that are cut off.
    pub(in crate::config) max_wait: Option<WrittenDuration>,
    /// TLS, for `https://` addresses.
    pub(in crate::config) tls: Option<Tls>,
    /// An auth method to log in with, in place of a token.
    pub(in crate::config) login: Option<Login>,
}

/// TLS, for `https://` addresses.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(in crate::config) struct Tls {
    /// PEM file of the certificate authorities to trust beside the system's own.
    pub(in crate::config) ca_file: Option<PathBuf>,
    /// Folder of such files.
    pub(in crate::config) ca_path: Option<PathBuf>,
    /// PEM file of the client certificate; goes with `key_file`.
    pub(in crate::config) cert_file: Option<PathBuf>,
    /// PEM file of the client certificate's private key.
    pub(in crate::config) key_file: Option<PathBuf>,
    /// The name that the server's certificate must bear, where it is not the address's host.
    pub(in crate::config) server_name: Option<String>,
    /// Take any certificate. For experiments only: whoever is in between can read the token.
    #[schemars(extend("default" = false))]
    pub(in crate::config) insecure_skip_verify: Option<bool>,
}

/// An auth method to log in with.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(in crate::config) struct Login {
    /// The auth method's name in Consul.
    #[schemars(required)]
    pub(in crate::config) auth_method: Option<String>,
    /// The file that holds the bearer token, such as a pod's service account token.
    #[schemars(required)]
    pub(in crate::config) bearer_token_file: Option<PathBuf>,
    /// What the ACL token made by the login is to say about its owner.
    pub(in crate::config) meta: Option<BTreeMap<String, String>>,
}
