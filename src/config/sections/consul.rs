//! The section `consul`.

use serde_yaml::Value;

use crate::config::fields::Fields;
use crate::config::kinds::{duration, expected, flag, line, path, seconds, secret, text, too_many};
use crate::config::spans::Part;
use slotkeeper_consul::{
    Address, AddressError, Addresses, AuthMethod, MAX_ADDRESSES, MAX_WAIT, Settings, Tls, TokenSource,
};

/// How to reach Consul. `tls`: whether a variable requires TLS.
pub(in crate::config) fn read(tls: bool, f: &mut Fields<'_>) -> Settings {
    let address = addresses(tls, f);
    let token = token(f);
    let tls = f.section("tls", |f| Tls {
        ca_file: f.get("ca_file", path),
        ca_path: f.get("ca_path", path),
        cert_file: f.get("cert_file", path),
        key_file: f.get("key_file", path),
        server_name: f.get("server_name", line),
        insecure_skip_verify: f.get("insecure_skip_verify", flag).unwrap_or(false),
    });
    check_tls(&tls, address.iter().any(|address| address.is_https()), f);
    Settings {
        address,
        token,
        tls,
        datacenter: f.get("datacenter", line),
        namespace: f.get("namespace", line),
        partition: f.get("partition", line),
        // A poll with a shorter wait costs more requests than it saves.
        max_wait: f.get("max_wait", duration(seconds(2)..=MAX_WAIT)),
    }
}

/// A list of addresses, or one text with commas, as in a variable. TLS turns all but those with another scheme into `https` ones,
/// as for `consul`.
fn addresses(tls: bool, f: &mut Fields<'_>) -> Addresses {
    let mut all = Vec::new();
    let mut add = |text: &str| {
        let plain = text.trim().trim_start_matches("http://");
        let text = if tls && !plain.contains("://") { &format!("https://{plain}") } else { text };
        let address: Address = text.parse().map_err(|error: AddressError| error.to_string())?;
        if all.contains(&address) {
            return Err("is a duplicate; remove it".to_owned());
        }
        all.push(address);
        Ok(())
    };
    if f.value("address").is_none() {
        drop(add("127.0.0.1:8500"));
    }
    match f.value("address") {
        Some(Value::Sequence(list)) => {
            if list.is_empty() {
                f.fault("address", "has no address; write one, or remove the key");
            }
            f.list("address", "a list", MAX_ADDRESSES, |value| match text(value)? {
                text if text.contains(',') => {
                    Err("has a comma; write each address as an entry of its own".to_owned())
                }
                text => add(&text),
            });
        }
        _ => {
            f.get("address", |value| {
                let text =
                    value.as_str().ok_or_else(|| expected(value, "an address or a list of addresses"))?;
                let each: Vec<_> = text.split(',').map(str::trim).collect();
                let count = each.len();
                if count > MAX_ADDRESSES {
                    return Err(too_many(count, MAX_ADDRESSES));
                }
                each.iter().enumerate().try_for_each(|(index, text)| {
                    let which = || {
                        if count == 1 { String::new() } else { format!("address {} of {count}: ", index + 1) }
                    };
                    add(text).map_err(|message| which() + &message)
                })
            });
        }
    }
    Addresses::of(all).unwrap_or_default()
}

fn token(f: &mut Fields<'_>) -> Option<TokenSource> {
    let file = f.get("token_file", path).map(TokenSource::File);
    let token = f.get("token", secret).map(TokenSource::Value);
    let login = f.optional("login", |f| AuthMethod {
        name: f.need("auth_method", "missing; write the auth method's name", line).unwrap_or_default(),
        bearer_token_file: f
            .need("bearer_token_file", "missing; write the path of the bearer token's file", path)
            .unwrap_or_default(),
        meta: f.map("meta", line),
    });
    if ["token", "token_file", "login"].iter().filter(|source| f.value(source).is_some()).count() > 1 {
        let fault = "has more than one of `token`, `token_file` and `login`; keep one";
        f.findings.fault_at(&f.at, Part::Value, fault);
    }
    login.map(TokenSource::Login).or(file).or(token)
}

fn check_tls(tls: &Tls, https: bool, f: &mut Fields<'_>) {
    let at = f.at.key("tls");
    let pair = [("cert_file", tls.cert_file.is_some()), ("key_file", tls.key_file.is_some())];
    for (one, other) in [(pair[0], pair[1]), (pair[1], pair[0])] {
        if one.1 && !other.1 && !f.findings.is_unsure(&at.key(other.0)) {
            let message = format!("needs {}, which is missing; write both or neither", at.key(other.0));
            f.findings.fault(&at.key(one.0), message);
        }
    }
    if tls.insecure_skip_verify {
        f.findings.warn(
            &at.key("insecure_skip_verify"),
            "any certificate is accepted; a host between the agent and Consul can read the token",
        );
    } else if *tls != Tls::default() && !https {
        f.findings.warn(&at, "has no effect: no address is https://");
    }
}
