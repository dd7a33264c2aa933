//! Failures before the log has started, in the format of the log.

use std::ffi::OsString;
use std::io::{self, Write};

use tracing::error;

use crate::config::{Log, LogFormat, LogLevel};
use crate::log_events::START_FAILED;
use crate::telemetry;

/// Whether the command line, which may be invalid otherwise, or the variable of `log.format` asks for JSON.
pub(super) fn is_json() -> bool {
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

/// Has a helper process of an agent log in the format of its agent.
pub(super) fn log_in(format: Option<&str>) {
    if format == Some("json") {
        start_json();
    }
}

fn start_json() {
    telemetry::start(Log { format: LogFormat::Json, level: LogLevel::Error });
}

/// Prints why a command ends before its log has started: with the program's name, or as a line of JSON.
pub(super) fn say(why: &str) -> io::Result<()> {
    say_in(LogFormat::default(), why, &format!("slotkeeper: {why}"))
}

/// Prints `text`; or each line of `why` as a line of JSON, if `format` or the command line asks for it.
pub(super) fn say_in(format: LogFormat, why: &str, text: &str) -> io::Result<()> {
    if format != LogFormat::Json && !is_json() {
        return writeln!(io::stderr(), "{text}");
    }
    start_json();
    for line in why.lines().filter(|line| !line.trim().is_empty()) {
        error!(error = line, "{START_FAILED}");
    }
    Ok(())
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
