//! What a log line is about: fields with the names and values of `/v1/events`, for alerts and filters.

use crate::status::{Event, Kind, Subject};

/// The event of a log line, and the semaphore or lock that it is about.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct About<'a> {
    event: Option<Event>,
    subject: Option<&'a Subject>,
}

impl<'a> About<'a> {
    /// Of an event, if the line is one of `/v1/events`, and a subject, if it is not about the agent or its session.
    pub(crate) fn new(event: Option<Event>, subject: Option<&'a Subject>) -> Self {
        Self { event, subject }
    }

    pub(crate) fn event(&self) -> Option<&'static str> {
        self.event.map(Event::as_str)
    }

    pub(crate) fn kind(&self) -> Option<&'static str> {
        self.subject.map(|subject| subject.kind.as_str())
    }

    pub(crate) fn name(&self) -> Option<&'a str> {
        self.subject.map(|subject| subject.name.as_str())
    }

    pub(crate) fn prefix(&self) -> Option<&'a str> {
        self.key_of(Kind::Semaphore)
    }

    pub(crate) fn key(&self) -> Option<&'a str> {
        self.key_of(Kind::Lock)
    }

    fn key_of(&self, kind: Kind) -> Option<&'a str> {
        self.subject.filter(|subject| subject.kind == kind).map(|subject| subject.key.as_str())
    }
}

impl From<Event> for About<'_> {
    fn from(event: Event) -> Self {
        Self::new(Some(event), None)
    }
}

impl<'a> From<&'a Subject> for About<'a> {
    fn from(subject: &'a Subject) -> Self {
        Self::new(None, Some(subject))
    }
}

impl<'a> From<Option<&'a Subject>> for About<'a> {
    fn from(subject: Option<&'a Subject>) -> Self {
        Self::new(None, subject)
    }
}

/// Logs a line with the fields of an [`About`], or of what becomes one: `log_about!(info, about, fields…, "text")`. Otherwise as
/// [`tracing::info!`].
macro_rules! log_about {
    ($level:ident, $about:expr, $($rest:tt)+) => {
        $crate::about::log_about!($level to module_path!(), $about, $($rest)+)
    };
    ($level:ident to $target:expr, $about:expr, $($rest:tt)+) => {
        // A match keeps temporary values until the line is written.
        match $crate::about::About::from($about) {
            about => ::tracing::$level!(
                target: $target,
                event = about.event(),
                kind = about.kind(),
                name = about.name(),
                prefix = about.prefix(),
                key = about.key(),
                $($rest)+
            ),
        }
    };
}
pub(crate) use log_about;
