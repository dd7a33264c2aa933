//! The sections of the configuration. Each key is named once, where its section reads it with the check of its value.
//!
//! A wrong value is reported and replaced by a harmless one, so that the rest can be checked too. No value is used if a fault was
//! reported. The descriptions for users, and the types and bounds once more, are in `config/slotkeeper.schema.json`: a test holds
//! it against this reader.

use std::path::PathBuf;

use super::environment::Environment;
use super::fields::Fields;
use super::findings::Findings;
use super::identity::{Identity, Naming};
use super::kinds::{choice, flag, own_file};

pub(super) mod consul;
mod control;
mod drain;
mod entries;
mod hooks;
mod http;
mod log;
mod rules;
mod session;
mod workload;

pub use crate::status::Kind;
pub use control::{Control, Listen};
pub use drain::{Drain, Release};
pub use entries::{Entry, Mode, Semaphore, plain_key};
pub use hooks::Hooks;
pub use http::Http;
pub use log::{Log, LogFormat, LogLevel};
pub use rules::variable_part;
pub use session::{Session, SessionNode};
pub use workload::Workload;

/// Entries in one list. Each has a metric label and several long polls.
const MAX_ENTRIES: usize = 256;

/// A whole configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// How to reach Consul.
    pub consul: slotkeeper_consul::Settings,
    /// The session that all slots belong to.
    pub session: Session,
    /// The semaphores; names and prefixes are unique and no prefix lies below another.
    pub semaphores: Vec<Semaphore>,
    /// The single-key locks; names are unique among the semaphores' too.
    pub locks: Vec<Entry>,
    /// How several slots are acquired.
    pub acquire: Acquire,
    /// The read-only endpoints.
    pub http: Http,
    /// The endpoints that change state; none: they are off.
    pub control: Option<Control>,
    /// The readiness file; none: no file is written.
    pub readiness: Option<PathBuf>,
    /// Commands that run when slots are acquired or lost.
    pub hooks: Hooks,
    /// The workload beside the agent; none: the agent looks at no processes.
    pub workload: Option<Workload>,
    /// How the agent stops.
    pub drain: Drain,
    /// How it reloads its configuration.
    pub reload: Reload,
    /// The log.
    pub log: Log,
    /// The agent's identity, for people.
    pub identity: Identity,
    /// How messages name the entries.
    pub naming: Naming,
}

/// How the required slots are acquired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acquire {
    /// Whether the key is `together`; none: it is absent, and the entries decide.
    pub written: Option<bool>,
    /// All in one transaction, or none. Otherwise each as soon as it is free.
    pub together: bool,
}

/// How a running agent reloads its configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reload {
    /// Whether changed files are reloaded without a signal.
    pub watch: bool,
}

impl Config {
    /// The names of the semaphores and locks that readiness, and the command of `run`, need.
    pub fn required(&self) -> impl Iterator<Item = &str> {
        self.entries().filter(|entry| entry.is_required()).map(|entry| entry.name.as_str())
    }

    /// The entries of all semaphores and locks, in its order.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.semaphores.iter().map(|one| &one.entry).chain(&self.locks)
    }

    /// Checks what was read by the rules between the sections.
    pub(super) fn check(&mut self, findings: &mut Findings) {
        rules::check(self, findings);
    }

    /// Reads the sections, without the rules between them.
    pub(super) fn read(environment: &Environment, f: &mut Fields<'_>) -> Self {
        let has_control = f.value("control").is_some();
        let acquire = f.get("acquire", choice(&[("independently", false), ("together", true)]));
        let session = f.section("session", Session::read);
        Self {
            consul: f.section("consul", |f| consul::read(environment.requires_tls(), f)),
            semaphores: f.entries("semaphores", MAX_ENTRIES, |f| Semaphore::read(has_control, f)),
            locks: f.entries("locks", MAX_ENTRIES, |f| Entry::read(Kind::Lock, has_control, f)),
            acquire: Acquire { written: acquire, together: acquire == Some(true) },
            http: f.section("http", Http::read),
            control: f.optional("control", Control::read),
            readiness: f.section("readiness", |f| f.get("file", own_file)).flatten(),
            hooks: f.section("hooks", Hooks::read),
            workload: f.optional("workload", |f| Workload::read(session.ttl, f)),
            drain: f.section("drain", Drain::read),
            session,
            reload: f.section("reload", |f| Reload { watch: f.get("watch", flag).unwrap_or(true) }),
            log: f.section("log", Log::read),
            identity: environment.identity(),
            naming: Naming::default(),
        }
    }
}
