//! The section `log`.

use schemars::JsonSchema;
use serde::Deserialize;

/// What the agent writes to standard error.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct RawLog {
    /// `text` for people, `json` for machines.
    #[schemars(extend("default" = "text"))]
    pub(super) format: Option<LogFormat>,
    /// The least severe level that is written.
    #[schemars(extend("default" = "info"))]
    level: Option<LogLevel>,
}

/// What is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// Its form.
    pub format: LogFormat,
    /// Its least severe level.
    pub level: LogLevel,
}

/// The form of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// The least severe level that is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    /// What the agent could not do.
    Error,
    /// Also what may need attention.
    Warn,
    /// Also what changed.
    #[default]
    Info,
    /// Also why.
    Debug,
    /// Everything.
    Trace,
}

impl RawLog {
    pub(super) fn check(self) -> Log {
        let Self { format, level } = self;
        Log { format: format.unwrap_or_default(), level: level.unwrap_or_default() }
    }
}
