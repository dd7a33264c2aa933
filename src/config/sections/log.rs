//! The section `log`.

use crate::config::fields::Fields;
use crate::config::kinds::choice;

/// The log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// Its format.
    pub format: LogFormat,
    /// Its least severe level.
    pub level: LogLevel,
}

/// The format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// The least severe level that is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogLevel {
    /// Failures.
    Error,
    /// Also events that may need attention.
    Warn,
    /// Also changes of state.
    #[default]
    Info,
    /// Also the reasons for them.
    Debug,
    /// Everything.
    Trace,
}

impl Log {
    pub(super) fn read(f: &mut Fields<'_>) -> Self {
        use LogLevel::{Debug, Error, Info, Trace, Warn};
        let levels = [("error", Error), ("warn", Warn), ("info", Info), ("debug", Debug), ("trace", Trace)];
        let level = f.get("level", |value| match value.as_str() {
            Some("warning") => Ok(Warn),
            _ => choice(&levels)(value),
        });
        Self {
            format: f
                .get("format", choice(&[("text", LogFormat::Text), ("json", LogFormat::Json)]))
                .unwrap_or_default(),
            level: level.unwrap_or_default(),
        }
    }
}
