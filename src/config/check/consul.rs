//! The `consul` section.

use std::time::Duration;

use super::{address, value};
use crate::config::findings::Findings;
use crate::config::path::FieldPath;
use crate::config::raw::{self, WrittenAddresses};
use slotkeeper_consul::{
    Address, Addresses, AuthMethod, MAX_ADDRESSES, MAX_WAIT, Settings, Tls, TokenSource,
};

/// A poll with a shorter wait costs more requests than it saves.
const MIN_WAIT: Duration = Duration::from_secs(2);

pub(super) fn check(raw: raw::Consul, at: &FieldPath, findings: &mut Findings) -> Settings {
    Settings {
        token: token(&raw, at, findings),
        datacenter: value::line(raw.datacenter, &at.key("datacenter"), findings),
        namespace: value::line(raw.namespace, &at.key("namespace"), findings),
        partition: value::line(raw.partition, &at.key("partition"), findings),
        max_wait: raw.max_wait.map(|written| {
            value::duration(Some(written), MAX_WAIT, MIN_WAIT..=MAX_WAIT, &at.key("max_wait"), findings)
        }),
        tls: tls(raw.tls, raw.address.as_ref(), &at.key("tls"), findings),
        address: addresses(raw.address, &at.key("address"), findings),
    }
}

fn addresses(written: Option<WrittenAddresses>, at: &FieldPath, findings: &mut Findings) -> Addresses {
    let Some(WrittenAddresses { all, is_list }) = written else { return Addresses::default() };
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
            // The commas of a text part addresses wherever it is written.
            Ok(_) if text.contains(',') => {
                findings.fault(&place, "has a comma in it; write each address as an entry of its own");
            }
            Ok(address) if addresses.contains(&address) => {
                findings.fault(&place, format!("{which}is there already; remove it"));
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

fn token(raw: &raw::Consul, at: &FieldPath, findings: &mut Findings) -> Option<TokenSource> {
    let ways = [raw.token.is_some(), raw.token_file.is_some(), raw.login.is_some()];
    if ways.iter().filter(|given| **given).count() > 1 {
        findings.fault(at, "has more than one of `token`, `token_file` and `login`; keep one");
    }
    if let Some(token) = &raw.token {
        let sendable = |byte: u8| byte.is_ascii_graphic();
        if token.expose().is_empty() || !token.expose().bytes().all(sendable) {
            findings.fault(
                &at.key("token"),
                "is empty or holds characters that no HTTP header can; write it anew",
            );
        }
    }
    let file = value::path(raw.token_file.clone(), &at.key("token_file"), findings);
    let login = raw.login.as_ref().and_then(|raw| login(raw, &at.key("login"), findings));
    let given = || raw.token.clone().map(TokenSource::Value);
    login.map(TokenSource::Login).or(file.map(TokenSource::File)).or_else(given)
}

fn tls(
    raw: Option<raw::Tls>,
    addresses: Option<&WrittenAddresses>,
    at: &FieldPath,
    findings: &mut Findings,
) -> Tls {
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
        findings.warn(&field, "any certificate is taken; whoever is in between can read the token");
    } else if tls != Tls::default() && !https {
        findings.warn(at, "has no effect: no address is https://");
    }
    tls
}

fn lacks(one: &FieldPath, other: &FieldPath, findings: &mut Findings) {
    if !findings.is_unsure(other) {
        findings.fault(one, format!("goes with {other}, which is missing; write both or neither"));
    }
}

fn login(raw: &raw::Login, at: &FieldPath, findings: &mut Findings) -> Option<AuthMethod> {
    if raw.auth_method.is_none() {
        findings.fault(&at.key("auth_method"), "missing; write the auth method's name");
    }
    if raw.bearer_token_file.is_none() {
        findings.fault(&at.key("bearer_token_file"), "missing; write the path of the bearer token's file");
    }
    let name = value::line(raw.auth_method.clone(), &at.key("auth_method"), findings);
    let file = value::path(raw.bearer_token_file.clone(), &at.key("bearer_token_file"), findings);
    for (key, meta) in raw.meta.iter().flatten() {
        value::line(Some(meta.clone()), &at.key("meta").key(key.as_str()), findings);
    }
    let meta = raw.meta.clone().unwrap_or_default();
    Some(AuthMethod { name: name?, bearer_token_file: file?, meta })
}
