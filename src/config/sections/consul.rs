//! The section `consul`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::config::findings::Findings;
use crate::config::path::FieldPath;
use crate::config::scalar::{AddressList, DurationString};
use crate::config::{address, value};
use slotkeeper_consul::{
    Address, Addresses, AuthMethod, MAX_ADDRESSES, MAX_WAIT, Secret, Settings, Tls, TokenSource,
};

/// A poll with a shorter wait costs more requests than it saves.
const MIN_WAIT: Duration = Duration::from_secs(2);

/// How to reach Consul.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct RawConsul {
    /// `http://host:port`, `https://host:port` or `unix:///path/to/socket`. A bare `host:port` means `http://`. A list, or
    /// several with commas: the agent uses the next one when one fails.
    #[schemars(extend("default" = "http://127.0.0.1:8500"))]
    address: Option<AddressList>,
    /// The ACL token. `token_file` keeps it out of the configuration.
    #[schemars(with = "Option<String>")]
    token: Option<Secret>,
    /// A file with the ACL token. It is read again when it changes.
    pub(super) token_file: Option<PathBuf>,
    /// The datacenter. By default the addressed agent's own.
    datacenter: Option<String>,
    /// The namespace (Consul Enterprise; not tested).
    namespace: Option<String>,
    /// The admin partition (Consul Enterprise; not tested).
    partition: Option<String>,
    /// 2s to 10m. The maximum wait of a long poll, below the time-out of a proxy that ends longer requests.
    max_wait: Option<DurationString>,
    /// TLS, for `https://` addresses.
    tls: Option<RawTls>,
    /// An auth method for a login, instead of a token.
    login: Option<RawLogin>,
}

/// TLS, for `https://` addresses.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct RawTls {
    /// PEM file of certificate authorities to trust, in addition to the system's own.
    ca_file: Option<PathBuf>,
    /// Folder of PEM files of certificate authorities.
    ca_path: Option<PathBuf>,
    /// PEM file of the client certificate; needs `key_file`.
    cert_file: Option<PathBuf>,
    /// PEM file of the client certificate's private key; needs `cert_file`.
    key_file: Option<PathBuf>,
    /// The name in the server's certificate, if it differs from the address's host.
    server_name: Option<String>,
    /// Accept any certificate. For experiments only: a host between the agent and Consul can read the token.
    #[schemars(extend("default" = false))]
    insecure_skip_verify: Option<bool>,
}

/// An auth method for a login.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct RawLogin {
    /// The auth method's name in Consul.
    #[schemars(required)]
    auth_method: Option<String>,
    /// The file with the bearer token, such as a pod's service account token.
    #[schemars(required)]
    bearer_token_file: Option<PathBuf>,
    /// Entries of the description of the ACL token that the login creates.
    meta: Option<BTreeMap<String, String>>,
}

impl RawConsul {
    pub(super) fn check(self, at: &FieldPath, findings: &mut Findings) -> Settings {
        let token = self.token(at, findings);
        let Self {
            address,
            token: _,
            token_file: _,
            datacenter,
            namespace,
            partition,
            max_wait,
            tls: written_tls,
            login: _,
        } = self;
        Settings {
            token,
            datacenter: value::line(datacenter, &at.key("datacenter"), findings),
            namespace: value::line(namespace, &at.key("namespace"), findings),
            partition: value::line(partition, &at.key("partition"), findings),
            max_wait: max_wait.map(|written| {
                let bounds = MIN_WAIT..=MAX_WAIT;
                value::duration(Some(written), MAX_WAIT, bounds, &at.key("max_wait"), findings)
            }),
            tls: tls(written_tls, address.as_ref(), &at.key("tls"), findings),
            address: addresses(address, &at.key("address"), findings),
        }
    }

    fn token(&self, at: &FieldPath, findings: &mut Findings) -> Option<TokenSource> {
        let sources = [self.token.is_some(), self.token_file.is_some(), self.login.is_some()];
        if sources.iter().filter(|is_set| **is_set).count() > 1 {
            findings.fault(at, "has more than one of `token`, `token_file` and `login`; keep one");
        }
        if let Some(token) = &self.token {
            let sendable = |byte: u8| byte.is_ascii_graphic();
            if token.expose().is_empty() || !token.expose().bytes().all(sendable) {
                findings.fault(
                    &at.key("token"),
                    "is empty or has characters that an HTTP header cannot carry; write the token alone",
                );
            }
        }
        let file = value::path(self.token_file.clone(), &at.key("token_file"), findings);
        let login = self.login.as_ref().and_then(|login| login.check(&at.key("login"), findings));
        let value = || self.token.clone().map(TokenSource::Value);
        login.map(TokenSource::Login).or(file.map(TokenSource::File)).or_else(value)
    }
}

impl RawLogin {
    fn check(&self, at: &FieldPath, findings: &mut Findings) -> Option<AuthMethod> {
        if self.auth_method.is_none() {
            findings.fault(&at.key("auth_method"), "missing; write the auth method's name");
        }
        if self.bearer_token_file.is_none() {
            findings
                .fault(&at.key("bearer_token_file"), "missing; write the path of the bearer token's file");
        }
        let name = value::line(self.auth_method.clone(), &at.key("auth_method"), findings);
        let file = value::path(self.bearer_token_file.clone(), &at.key("bearer_token_file"), findings);
        for (key, meta) in self.meta.iter().flatten() {
            value::line(Some(meta.clone()), &at.key("meta").key(key.as_str()), findings);
        }
        let meta = self.meta.clone().unwrap_or_default();
        Some(AuthMethod { name: name?, bearer_token_file: file?, meta })
    }
}

fn addresses(written: Option<AddressList>, at: &FieldPath, findings: &mut Findings) -> Addresses {
    let Some(AddressList { all, is_list }) = written else { return Addresses::default() };
    let count = all.len();
    if count > MAX_ADDRESSES {
        findings.fault(at, format!("has {count} addresses; at most {MAX_ADDRESSES} can be used"));
    }
    let mut addresses: Vec<Address> = Vec::new();
    for (index, text) in all.iter().take(MAX_ADDRESSES).enumerate() {
        let place = if is_list { at.index(index) } else { at.clone() };
        let which =
            if is_list || count == 1 { String::new() } else { format!("address {} of {count}: ", index + 1) };
        match address::consul(text) {
            // In a text, commas always separate addresses.
            Ok(_) if text.contains(',') => {
                findings.fault(&place, "has a comma; write each address as an entry of its own");
            }
            Ok(address) if addresses.contains(&address) => {
                findings.fault(&place, format!("{which}is a duplicate; remove it"));
            }
            Ok(address) => addresses.push(address),
            Err(message) => findings.fault(&place, format!("{which}{message}")),
        }
    }
    if count == 0 {
        findings.fault(at, "has no address; write one, or remove the key");
    }
    Addresses::of(addresses).unwrap_or_default()
}

fn tls(raw: Option<RawTls>, addresses: Option<&AddressList>, at: &FieldPath, findings: &mut Findings) -> Tls {
    let Some(raw) = raw else { return Tls::default() };
    let tls = Tls {
        ca_file: value::path(raw.ca_file, &at.key("ca_file"), findings),
        ca_path: value::path(raw.ca_path, &at.key("ca_path"), findings),
        cert_file: value::path(raw.cert_file, &at.key("cert_file"), findings),
        key_file: value::path(raw.key_file, &at.key("key_file"), findings),
        server_name: value::line(raw.server_name, &at.key("server_name"), findings),
        insecure_skip_verify: raw.insecure_skip_verify.unwrap_or(false),
    };
    match (&tls.cert_file, &tls.key_file) {
        (Some(_), None) => lacks(&at.key("cert_file"), &at.key("key_file"), findings),
        (None, Some(_)) => lacks(&at.key("key_file"), &at.key("cert_file"), findings),
        (Some(_), Some(_)) | (None, None) => {}
    }
    let https = addresses.is_some_and(|written| written.all.iter().any(|one| one.starts_with("https://")));
    if tls.insecure_skip_verify {
        let field = at.key("insecure_skip_verify");
        findings.warn(
            &field,
            "any certificate is accepted; a host between the agent and Consul can read the token",
        );
    } else if tls != Tls::default() && !https {
        findings.warn(at, "has no effect: no address is https://");
    }
    tls
}

fn lacks(one: &FieldPath, other: &FieldPath, findings: &mut Findings) {
    if !findings.is_unsure(other) {
        findings.fault(one, format!("needs {other}, which is missing; write both or neither"));
    }
}
