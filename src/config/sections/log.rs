//! The section `log`.

use schemars::JsonSchema;
use serde::Deserialize;

/// The log, on standard error.
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

/// The log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// Its format.
    pub format: LogFormat,
    /// Its least severe level.
    pub level: LogLevel,
}

/// The format of the log.
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
    /// Failures.
    Error,
    /// Also events that may need attention.
    #[serde(alias = "warning")]
    Warn,
    /// Also changes of state.
    #[default]
    Info,
    /// Also the reasons for them.
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
