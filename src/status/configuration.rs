//! The configuration in force.

use serde::{Deserialize, Serialize};

use slotkeeper_semaphore::{Moment, Wall};

/// The age of the configuration, and the outcome of the last reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// When it was applied: at the start, or by a reload.
    pub loaded_at: Moment,
    /// The outcome of the last reload.
    pub last_reload: LastReload,
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
}

impl Configuration {
    pub(super) fn report(self, wall: Wall) -> ConfigurationReport {
        ConfigurationReport { loaded_at: wall.text(self.loaded_at), last_reload: self.last_reload }
    }
}
