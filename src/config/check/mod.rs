//! From the raw configuration to the checked one: the bounds of each value and the rules between them.
//!
//! A value that breaks a rule is told of and something harmless stands in for it, so that the rest can be checked too;
//! nothing checked leaves this module where anything was told.

use std::time::Duration;

use super::checked::{Config, Drain, Hooks, Http, Identity, Log, Reload};
use super::findings::Findings;
use super::path::FieldPath;
use super::raw;

mod address;
mod between;
mod consul;
mod contended;
mod control;
mod session;
mod value;
mod workload;

pub use address::without_needless_brackets;
pub use between::variable_part;
pub use contended::{MOST_SLOTS, plain_key};

/// The longest that a drain may take where nothing is configured. An election of Consul's takes 9 to 19 s at its defaults; what
/// could not be given back by three quarters of it is left. Kubernetes' own grace is 30 s.
const DRAIN: Duration = Duration::from_secs(25);

/// Where the read-only endpoints listen unless something else is said.
const DEFAULT_HTTP: &str = "127.0.0.1:9377";
/// The longest of the durations that nothing else bounds.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Checks `raw`. The result counts only where `findings` has no fault at the end.
pub(super) fn check(raw: raw::Config, identity: Identity, findings: &mut Findings) -> Config {
    between::check(&raw, findings);
    let root = FieldPath::root();
    let http = raw.http.unwrap_or_default();
    let log = raw.log.unwrap_or_default();
    let session = session::check(raw.session.unwrap_or_default(), &root.key("session"), findings);
    Config {
        consul: consul::check(raw.consul.unwrap_or_default(), &root.key("consul"), findings),
        semaphores: contended::semaphores(raw.semaphores.unwrap_or_default(), findings),
        locks: contended::locks(raw.locks.unwrap_or_default(), findings),
        acquire: raw.acquire.unwrap_or_default(),
        http: Http { listen: http_listen(http.listen, findings) },
        control: raw.control.and_then(|control| control::check(control, findings)),
        readiness: raw.readiness.and_then(|readiness| {
            value::own_file(readiness.file, &FieldPath::of("readiness.file"), findings)
        }),
        hooks: hooks(raw.hooks.unwrap_or_default(), findings),
        workload: raw.workload.and_then(|workload| workload::check(workload, session.ttl, findings)),
        drain: drain(raw.drain.unwrap_or_default(), findings),
        session,
        reload: Reload { watch: raw.reload.unwrap_or_default().watch.unwrap_or(true) },
        log: Log { format: log.format.unwrap_or_default(), level: log.level.unwrap_or_default() },
        identity,
    }
}

/// Checks what concerns Consul alone, for the commands that need nothing else.
pub(super) fn check_consul(raw: raw::Config, findings: &mut Findings) -> slotkeeper_consul::Settings {
    consul::check(raw.consul.unwrap_or_default(), &FieldPath::of("consul"), findings)
}

fn http_listen(listen: Option<String>, findings: &mut Findings) -> Option<std::net::SocketAddr> {
    let listen = listen.unwrap_or_else(|| DEFAULT_HTTP.to_owned());
    if listen == "off" {
        return None;
    }
    let fault = |message| findings.fault(&FieldPath::of("http.listen"), format!("{message}, or off"));
    address::tcp(&listen).map_err(fault).ok()
}

fn hooks(raw: raw::Hooks, findings: &mut Findings) -> Hooks {
    let mut command = |name: &str, argv: Option<raw::Argv>| {
        let raw::Argv(argv) = argv?;
        if argv.first().is_none_or(String::is_empty) {
            findings.fault(
                &FieldPath::of("hooks").key(name),
                "names no command; write [command, argument] or remove it",
            );
        }
        Some(argv)
    };
    Hooks {
        on_acquired: command("on_acquired", raw.on_acquired),
        on_lost: command("on_lost", raw.on_lost),
        on_leader_changed: command("on_leader_changed", raw.on_leader_changed),
    }
}

fn drain(raw: raw::Drain, findings: &mut Findings) -> Drain {
    let field = FieldPath::of("drain.timeout");
    let bounds = Duration::from_millis(1)..=DAY;
    let timeout = value::duration(raw.timeout, DRAIN, bounds, &field, findings);
    let bounds = Duration::ZERO..=DAY;
    let hold = value::duration(raw.hold, Duration::ZERO, bounds, &FieldPath::of("drain.hold"), findings);
    Drain { timeout, release: raw.release.unwrap_or_default(), hold }
}
