//! The section `control`.

use std::path::PathBuf;

use super::{address, value};
use crate::config::checked::{Control, Listen};
use crate::config::findings::Findings;
use crate::config::path::FieldPath;
use crate::config::raw;

/// The token's file where none is given.
const TOKEN_FILE: &str = "/run/slotkeeper/control.token";
/// Leases at once where no number is given: about as many as can have a long poll each, so that every waiter sees its
/// grant at once. With them an agent has at most 72 of the 200 connections that Consul allows one address.
const MAX_LEASES: usize = 64;
/// Waits at once where no number is given.
const MAX_WAITS: usize = 32;
/// The most of either: further ones would need a Consul that is set up for them.
const MOST: usize = 1000;

pub(super) fn check(raw: raw::Control, findings: &mut Findings) -> Option<Control> {
    let root = FieldPath::of("control");
    let token_file = value::path(raw.token_file, &root.key("token_file"), findings);
    if let Some(Err(message)) = token_file.as_deref().map(value::no_system_path) {
        findings.fault(&root.key("token_file"), message);
    }
    let mut count = |name: &str, written: Option<i64>, default: usize| {
        let number = |written| value::number(written, 1..=MOST, &root.key(name), findings);
        written.and_then(number).unwrap_or(default)
    };
    let max_leases = count("max_leases", raw.max_leases, MAX_LEASES);
    let max_waits = count("max_waits", raw.max_waits, MAX_WAITS);
    let listen = listen(raw.listen, &root.key("listen"), findings)?;
    let token_file = token_file.unwrap_or_else(|| PathBuf::from(TOKEN_FILE));
    Some(Control { listen, token_file, max_leases, max_waits })
}

fn listen(listen: Option<String>, field: &FieldPath, findings: &mut Findings) -> Option<Listen> {
    let Some(listen) = listen else {
        findings.fault(field, "missing; write `unix:/path/to/socket` or a loopback address and port");
        return None;
    };
    address::local(&listen).map_err(|message| findings.fault(field, message)).ok()
}
