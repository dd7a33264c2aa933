//! The flags of the log, for `agent` and `run`.

use std::ffi::OsString;

use clap::Args;

use crate::config::Overrides;

/// The log on standard error.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Output")]
pub(super) struct LogFlags {
    /// Format of the log, also for a failure before the start; by default text [env: SLOTKEEPER_LOG_FORMAT]
    #[arg(long, value_name = "FORMAT", value_parser = ["text", "json"])]
    log_format: Option<String>,
    /// Least severe level of the log; debug shows each request to Consul. By default info; for run warn
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

/// Whether the command line, which may be invalid otherwise, or the variable of `log.format` asks for JSON.
pub(super) fn ask_for_json() -> bool {
    asks_for_json(std::env::args_os().skip(1), std::env::var_os("SLOTKEEPER_LOG_FORMAT"))
}

fn asks_for_json(words: impl Iterator<Item = OsString>, variable: Option<OsString>) -> bool {
    let words = words.take_while(|word| word != "--").map(|word| word.to_string_lossy().into_owned());
    let words: Vec<_> = words.collect();
    // Only these two have a log.
    if !words.first().is_some_and(|command| command == "agent" || command == "run") {
        return false;
    }
    let flag = words.iter().enumerate().find_map(|(at, word)| match word.strip_prefix("--log-format")? {
        "" => words.get(at + 1).map(String::as_str),
        rest => rest.strip_prefix('='),
    });
    flag.map_or_else(|| variable.is_some_and(|format| format == "json"), |format| format == "json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_known_before_the_command_line_is_valid() {
        for (line, variable, expected) in [
            ("agent --log-format json", None, true),
            ("run p --log-format=json --wrong -- true", None, true),
            ("run p --wrong --log-format=json -- true", None, true),
            ("agent", Some("json"), true),
            ("agent --log-format text", Some("json"), false),
            ("run p -- echo --log-format json", None, false),
            ("agent --log-format", None, false),
            ("wait", Some("json"), false),
            ("agent", Some("yaml"), false),
            ("", None, false),
        ] {
            let words = line.split_whitespace().map(OsString::from);
            assert_eq!(asks_for_json(words, variable.map(OsString::from)), expected, "{line}");
        }
    }
}
