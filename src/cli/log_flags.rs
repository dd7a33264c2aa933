//! The flags of the log, for `agent` and `run`.

use clap::Args;

use crate::config::Overrides;

/// The log on standard error.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Output")]
pub(super) struct LogFlags {
    /// Format of the log, also for a failure before the start; by default text [env: SLOTKEEPER_LOG_FORMAT]
    #[arg(long, value_name = "FORMAT", value_parser = ["text", "json"])]
    log_format: Option<String>,
    /// Least severe level of the log; debug shows each request to Consul. By default info; for run PREFIX warn
    /// [env: SLOTKEEPER_LOG_LEVEL]
    #[arg(long, value_name = "LEVEL", value_parser = ["error", "warn", "info", "debug", "trace"])]
    log_level: Option<String>,
}

impl LogFlags {
    pub(super) fn lay_over(&self, overrides: &mut Overrides) {
        overrides.flag("--log-format", "log.format", self.log_format.as_deref());
        overrides.flag("--log-level", "log.level", self.log_level.as_deref());
    }
}
