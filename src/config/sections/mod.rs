//! The sections of the configuration, one file each: the raw form, the checked form and the check between them.
//!
//! A raw section has every field optional and nothing checked but its type. The comments on its fields are the descriptions of
//! the JSON Schema, so they address the user. Its `check` reports a value that breaks a rule and replaces it by a harmless one,
//! so that the rest can be checked too. No checked value is used if a fault was reported. A check destructures its section
//! without `..`, so that the compiler refuses a forgotten key.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use super::findings::Findings;
use super::identity::{Identity, Naming};
use super::path::FieldPath;

mod acquire;
mod consul;
mod control;
mod drain;
mod hooks;
mod http;
mod log;
mod readiness;
mod reload;
mod resource;
mod rules;
mod session;
mod workload;

pub use crate::status::Kind;
pub use acquire::Acquire;
use acquire::RawAcquire;
use consul::RawConsul;
use control::RawControl;
pub use control::{Control, Listen};
use drain::RawDrain;
pub use drain::{Drain, Release};
pub use hooks::Hooks;
use hooks::RawHooks;
pub use http::Http;
use http::RawHttp;
use log::RawLog;
pub use log::{Log, LogFormat, LogLevel};
use readiness::RawReadiness;
use reload::RawReload;
pub use reload::Reload;
pub use resource::{Entry, Format, LimitPolicy, Mode, OnLost, Semaphore, Wait, plain_key};
use resource::{RawLock, RawSemaphore};
pub use rules::variable_part;
use session::RawSession;
pub use session::{Behavior, Session, SessionNode};
use workload::RawWorkload;
pub use workload::Workload;

/// Configuration of the slotkeeper agent. Flags and environment variables take precedence over this file.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields, title = "slotkeeper")]
pub(in crate::config) struct RawConfig {
    /// How to reach Consul.
    consul: Option<RawConsul>,
    /// The Consul session that all slots of this agent belong to.
    session: Option<RawSession>,
    /// The semaphores to hold slots of.
    #[schemars(with = "Option<Vec<RawSemaphore>>", length(max = 256))]
    semaphores: Option<Vec<Option<RawSemaphore>>>,
    /// Single-key locks: mutual exclusion, leader election.
    #[schemars(with = "Option<Vec<RawLock>>", length(max = 256))]
    locks: Option<Vec<Option<RawLock>>>,
    /// `together`: all required slots in one transaction, or none; they must have the same `wait` and `priority`.
    /// `independently`: each slot as soon as it is free; jobs that hold one and wait for another may wait for each other for ever.
    /// The default is `together` where the entries allow it.
    acquire: Option<RawAcquire>,
    /// The read-only HTTP endpoints.
    http: Option<RawHttp>,
    /// The endpoints that change state; off by default.
    control: Option<RawControl>,
    /// The file that exists while all required slots are held.
    readiness: Option<RawReadiness>,
    /// Commands that run when slots are acquired or lost.
    hooks: Option<RawHooks>,
    /// The workload beside the agent, in a pod whose containers share their processes.
    workload: Option<RawWorkload>,
    /// How the agent stops.
    drain: Option<RawDrain>,
    /// How a running agent reloads its configuration.
    reload: Option<RawReload>,
    /// The log, on standard error.
    log: Option<RawLog>,
}

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

impl Config {
    /// The names of the semaphores and locks that readiness, and the command of `run`, need.
    pub fn required(&self) -> impl Iterator<Item = &str> {
        self.entries().filter(|entry| entry.is_required()).map(|entry| entry.name.as_str())
    }

    /// The entries of all semaphores and locks, in its order.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.semaphores.iter().map(|one| &one.entry).chain(&self.locks)
    }
}

impl RawConfig {
    /// Checks the whole configuration. The result is valid only if `findings` has no fault at the end.
    pub(in crate::config) fn check(self, identity: Identity, findings: &mut Findings) -> Config {
        rules::check(&self, findings);
        let acquire = rules::acquire(&self, findings);
        let Self {
            consul,
            session,
            semaphores,
            locks,
            acquire: _,
            http,
            control,
            readiness,
            hooks,
            workload,
            drain,
            reload,
            log,
        } = self;
        let at = |section: &str| FieldPath::root().key(section);
        let session = session.unwrap_or_default().check(&at("session"), findings);
        Config {
            consul: consul.unwrap_or_default().check(&at("consul"), findings),
            semaphores: resource::semaphores(semaphores.unwrap_or_default(), findings),
            locks: resource::locks(locks.unwrap_or_default(), findings),
            acquire,
            http: http.unwrap_or_default().check(&at("http"), findings),
            control: control.and_then(|control| control.check(&at("control"), findings)),
            readiness: readiness.and_then(|readiness| readiness.check(&at("readiness"), findings)),
            hooks: hooks.unwrap_or_default().check(&at("hooks"), findings),
            workload: workload.and_then(|workload| workload.check(&at("workload"), session.ttl, findings)),
            drain: drain.unwrap_or_default().check(&at("drain"), findings),
            session,
            reload: reload.unwrap_or_default().check(),
            log: log.unwrap_or_default().check(),
            identity,
            naming: Naming::default(),
        }
    }

    /// Checks the section `consul` alone, for commands that need no other setting.
    pub(in crate::config) fn check_consul(self, findings: &mut Findings) -> slotkeeper_consul::Settings {
        self.consul.unwrap_or_default().check(&FieldPath::of("consul"), findings)
    }
}
