//! Failures before the log has started, in the format of the log.

use std::ffi::OsString;
use std::io::{self, Write};
use std::sync::OnceLock;

use tracing::error;

use crate::config::{Log, LogFormat, LogLevel};
use crate::log_events::START_FAILED;
use crate::telemetry;

/// The format of the log, as far as the flags and the variable say.
static FORMAT: OnceLock<LogFormat> = OnceLock::new();

/// Reads the format from the words of a command line, which may be invalid otherwise, and from the variable of `log.format`.
pub(super) fn read_format(words: &[OsString], variable: Option<OsString>) {
    // A second start, in a test, keeps the first format.
    let _ = FORMAT.set(format_of(words, variable));
}

fn format_of(words: &[OsString], variable: Option<OsString>) -> LogFormat {
    const FLAG: &str = "--log-format";
    // Only these two have a log.
    if !words.first().is_some_and(|command| command == "agent" || command == "run") {
        return LogFormat::Text;
    }
    let flags = words.iter().take_while(|word| *word != "--");
    let mut flags = flags.filter_map(|word| word.to_str()).skip_while(|word| !word.starts_with(FLAG));
    let flag = flags.next().and_then(|word| match word.strip_prefix(FLAG)? {
        "" => flags.next().map(str::to_owned),
        rest => rest.strip_prefix('=').map(str::to_owned),
    });
    match flag.or(variable.and_then(|value| value.into_string().ok())).as_deref() {
        Some("json") => LogFormat::Json,
        Some(_) | None => LogFormat::Text,
    }
}

/// Whether the command line asks for JSON.
pub(super) fn is_json() -> bool {
    FORMAT.get() == Some(&LogFormat::Json)
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
        use LogFormat::{Json, Text};
        for (line, variable, expected) in [
            ("agent --log-format json", None, Json),
            ("run p --log-format=json --wrong -- true", None, Json),
            ("agent", Some("json"), Json),
            ("agent --log-format text", Some("json"), Text),
            ("run p -- echo --log-format json", None, Text),
            ("agent --log-format", None, Text),
            ("wait", Some("json"), Text),
            ("agent", Some("yaml"), Text),
            ("", None, Text),
        ] {
            let words: Vec<_> = line.split_whitespace().map(OsString::from).collect();
            assert_eq!(format_of(&words, variable.map(OsString::from)), expected, "{line}");
        }
    }
}
