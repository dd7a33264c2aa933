//! What the configuration's format has and this version does not act on yet.
//!
//! It is refused, since a setting that is silently without effect would be believed in.

use super::findings::Findings;
use super::path::FieldPath;
use super::raw;

/// Tells of everything in `raw` that this version cannot do.
pub(super) fn refuse(raw: &raw::Config, findings: &mut Findings) {
    let mut refuse = |unavailable: bool, field: FieldPath, what: &str| {
        if unavailable {
            findings.fault(&field, format!("{what} not available in this version; remove it"));
        }
    };
    refuse(raw.locks.iter().flatten().next().is_some(), FieldPath::of("locks"), "single-key locks are");
    let control = raw.control.as_ref().and_then(|control| control.listen.as_deref());
    let tcp = control.is_some_and(|listen| !listen.starts_with("unix:"));
    refuse(tcp, FieldPath::of("control.listen"), "control endpoints at a TCP address are");
    let login = raw.consul.as_ref().is_some_and(|consul| consul.login.is_some());
    refuse(login, FieldPath::of("consul.login"), "logging in with an auth method is");
}
