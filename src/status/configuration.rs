//! The configuration in force.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use slotkeeper_semaphore::{Moment, Wall};

/// Since when which configuration is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// When it was taken over: at the start, or by a reload.
    pub loaded_at: Moment,
    /// What came of the last reload.
    pub last_reload: LastReload,
}

/// What came of the last reload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LastReload {
    /// There was none.
    None,
    /// The configuration was taken over.
    Done,
    /// The configuration was refused or could not be read, and nothing has changed. The log says why.
    Refused,
    /// Of an agent of another version: none that this version knows.
    #[default]
    #[serde(other, skip_serializing)]
    Unknown,
}

/// The configuration in force.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = Configuration)]
pub(super) struct ConfigurationReport {
    /// When it was taken over, at the start or by a reload, in UTC.
    #[schema(format = DateTime)]
    loaded_at: String,
    /// What came of the last reload.
    last_reload: LastReload,
}

impl Configuration {
    pub(super) fn report(self, wall: Wall) -> ConfigurationReport {
        ConfigurationReport { loaded_at: wall.text(self.loaded_at), last_reload: self.last_reload }
    }
}
