//! The configuration in force.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::reload_report::Reloaded;
use slotkeeper_semaphore::{Moment, Wall};

/// The age of the configuration, and the outcome of the last reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// When it was applied: at the start, or by a reload.
    pub loaded_at: Moment,
    /// The outcome of the last reload.
    pub last_reload: LastReload,
    /// The reloads by SIGHUP; `None` under `slotkeeper run`, which passes SIGHUP on to its command.
    pub signals: Option<ReloadSignals>,
}

/// Reloads by SIGHUP. `slotkeeper reload` reads here what became of its signal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadSignals {
    /// The configuration file; null without one.
    pub file: Option<PathBuf>,
    /// The namespace of the agent's process id, as the inode of `/proc/self/ns/pid`; 0 if it is unknown.
    pub pid_namespace: u64,
    /// The signals that the agent has received.
    pub received: u64,
    /// The number of the last one that is answered.
    pub answered: u64,
    /// Its answer.
    pub answer: Option<SignalAnswer>,
}

/// The namespace of this process's id, as the inode of `/proc/self/ns/pid`; 0 if it is unknown.
pub fn pid_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |about| about.ino())
}

/// The outcome of a reload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignalAnswer {
    /// The changes.
    Reloaded(Reloaded),
    /// Why nothing has changed.
    Refused(String),
}

/// The outcome of the last reload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LastReload {
    /// There was no reload.
    None,
    /// The configuration was applied.
    Done,
    /// The configuration was refused or could not be read, and nothing has changed. The log has the reason.
    Refused,
    /// An unknown value, of an agent of another version.
    #[default]
    #[serde(other)]
    Unknown,
}

/// The configuration in force.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct ConfigurationReport {
    /// When it was applied, at the start or by a reload, in UTC.
    #[serde(default)]
    loaded_at: String,
    /// The outcome of the last reload.
    #[serde(default)]
    last_reload: LastReload,
    /// The reloads by SIGHUP; null if the process passes SIGHUP on to its command.
    pub(super) signals: Option<ReloadSignals>,
}

impl Configuration {
    pub(super) fn report(&self, wall: Wall) -> ConfigurationReport {
        let Self { loaded_at, last_reload, signals } = self;
        ConfigurationReport {
            loaded_at: wall.text(*loaded_at),
            last_reload: *last_reload,
            signals: signals.clone(),
        }
    }
}
