//! Logs on standard error: one event a state change.

use std::env;
use std::fmt::{self, Debug, Display};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::fstat;
use rustix::stdio::stderr;
use rustix::termios::isatty;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt as format, reload};

use crate::config::{Log, LogFormat, LogLevel};
use crate::console::{self, LogLines};
use crate::escape::escape_control_chars;

/// The fields that lines of text leave out, since their words say the same: those of [`crate::about`] without the name.
const IN_WORDS: [&str; 4] = ["event", "kind", "prefix", "key"];

/// The fields whose text is slotkeeper's own, and may have an ACL rule to copy: quotes in it are not escaped.
const QUOTES_KEPT: [&str; 3] = ["error", "reason", "last_failure"];

/// Changes the log level of a running process.
#[derive(Debug)]
pub struct Handle(reload::Handle<Targets, Registry>);

/// Starts logging.
pub fn start(log: Log) -> Handle {
    console::log_in_json(log.format == LogFormat::Json);
    let (filter, handle) = reload::Layer::new(targets(log.level));
    let lines = format::layer().with_writer(|| LogLines);
    let lines = match log.format {
        LogFormat::Text => {
            let lines = lines.fmt_fields(Words).with_target(false).with_ansi(false);
            if has_reader_with_clock() { lines.without_time().boxed() } else { lines.boxed() }
        }
        LogFormat::Json => {
            lines.json().flatten_event(true).with_current_span(false).with_span_list(false).boxed()
        }
    };
    // A second start, in a test, keeps the first subscriber.
    let _ = tracing_subscriber::registry().with(filter).with(lines).try_init();
    Handle(handle)
}

/// Starts a log of errors as JSON, where nothing else is known of the log.
pub fn start_json() {
    start(Log { format: LogFormat::Json, level: LogLevel::Error });
}

impl Handle {
    /// Changes the log level.
    pub fn set_level(&self, level: LogLevel) {
        // Fails only when the subscriber is gone, and then nothing is logged at all.
        let _ = self.0.reload(targets(level));
    }
}

/// The target of warnings that no level hides.
pub(crate) const ALWAYS: &str = "slotkeeper::always";

/// Libraries log warnings at most.
fn targets(level: LogLevel) -> Targets {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let libraries = LevelFilter::WARN.min(level);
    let always = LevelFilter::WARN.max(level);
    Targets::new().with_default(libraries).with_target("slotkeeper", level).with_target(ALWAYS, always)
}

/// Whether lines need no time of their own: somebody reads them on a terminal, or journald adds one.
fn has_reader_with_clock() -> bool {
    isatty(stderr()) || goes_to_journal()
}

/// Whether standard error is the stream of journald that `JOURNAL_STREAM` names by device and inode (`systemd.exec(5)`). A child
/// may inherit the variable with another standard error.
fn goes_to_journal() -> bool {
    let (Some(named), Ok(found)) = (env::var_os("JOURNAL_STREAM"), fstat(stderr())) else { return false };
    named.as_bytes() == format!("{}:{}", found.st_dev, found.st_ino).as_bytes()
}

/// Lines of text: the words, and then `key=value`.
struct Words;

impl<'w> FormatFields<'w> for Words {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'w>, fields: R) -> fmt::Result {
        let mut line = Line { writer, is_empty: true, result: Ok(()) };
        fields.record(&mut line);
        line.result
    }
}

struct Line<'w> {
    writer: Writer<'w>,
    is_empty: bool,
    result: fmt::Result,
}

impl Line<'_> {
    fn add(&mut self, text: impl Display) {
        let separator = if self.is_empty { "" } else { " " };
        self.is_empty = false;
        self.result = self.result.and_then(|()| write!(self.writer, "{separator}{text}"));
    }
}

impl Visit for Line<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.add(escape_control_chars(value)),
            hidden if IN_WORDS.contains(&hidden) => {}
            name if QUOTES_KEPT.contains(&name) && value.contains('"') => {
                let plain = escape_control_chars(value).replace('\n', "\\n");
                self.add(format_args!("{name}={plain}"));
            }
            name => self.add(format_args!("{name}={}", Value(value))),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

/// A value, in quotes and escaped if it is not one word.
struct Value<'a>(&'a str);

impl Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted = format!("{:?}", self.0);
        let is_word = !self.0.is_empty()
            && quoted.len() == self.0.len() + 2
            && !self.0.contains(|character: char| character == '=' || character.is_whitespace());
        f.write_str(if is_word { self.0 } else { &quoted })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_quoted_unless_it_is_one_word() {
        for (value, expected) in [
            ("writers", "writers"),
            ("service/batch-7", "service/batch-7"),
            ("http://[::1]:8500", "http://[::1]:8500"),
            ("cannot read", "\"cannot read\""),
            ("a=b", "\"a=b\""),
            ("", "\"\""),
            ("key \"a\"\n", "\"key \\\"a\\\"\\n\""),
            ("\u{1b}[2J", "\"\\u{1b}[2J\""),
            ("a\nb", "\"a\\nb\""),
            ("grün", "grün"),
        ] {
            assert_eq!(Value(value).to_string(), expected);
        }
    }
}
