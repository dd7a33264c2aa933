//! Logs on standard error: one event a state change.

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt, reload};

use crate::config::{Log, LogFormat, LogLevel};
use crate::stderr::Stderr;

/// Changes the log level of a running process.
#[derive(Debug)]
pub struct Handle(reload::Handle<Targets, Registry>);

/// Starts logging.
pub fn start(log: Log) -> Handle {
    let (filter, handle) = reload::Layer::new(targets(log.level));
    let lines = fmt::layer().with_writer(|| Stderr);
    let lines = match log.format {
        LogFormat::Text => lines.with_target(false).with_ansi(false).boxed(),
        LogFormat::Json => {
            lines.json().flatten_event(true).with_current_span(false).with_span_list(false).boxed()
        }
    };
    // A second start, in a test, keeps the first subscriber.
    let _ = tracing_subscriber::registry().with(filter).with(lines).try_init();
    Handle(handle)
}

impl Handle {
    /// Changes the log level.
    pub fn set_level(&self, level: LogLevel) {
        // Fails only when the subscriber is gone, and then nothing is logged at all.
        let _ = self.0.reload(targets(level));
    }
}

/// Libraries log warnings at most.
fn targets(level: LogLevel) -> Targets {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    Targets::new().with_default(LevelFilter::WARN.min(level)).with_target("slotkeeper", level)
}
