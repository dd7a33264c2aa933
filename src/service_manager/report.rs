//! What the service manager is told, and when; pure.

use std::time::Duration;

use crate::config::Naming;
use crate::progress::View;
use crate::status::{Entry, Snapshot, Stage, State};
use slotkeeper_semaphore::{Moment, printable};

/// The longest text of a status, which one line of `systemctl status` shows.
const MAX_STATUS_BYTES: usize = 512;
/// Held semaphores and locks that are named.
const MAX_NAMES: usize = 8;

/// One message to the service manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// The start is complete.
    Ready,
    Stopping,
    Status(String),
    /// The agent makes progress.
    Watchdog,
    /// The start or the stop may take this much longer.
    Extend(Duration),
}

/// The state to report.
#[derive(Debug)]
pub(super) struct Report {
    /// All required slots were held at some time.
    pub(super) started_up: bool,
    pub(super) stopping: bool,
    /// The status in words; `None`: not now.
    pub(super) status: Option<String>,
}

/// What the service manager knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reported {
    /// The start is complete.
    ready: bool,
    stopping: bool,
    status: String,
}

impl Reported {
    /// Whether a time-out of the service manager counts: that of the start or that of the stop.
    pub(super) fn is_timed(&self) -> bool {
        !self.ready || self.stopping
    }

    /// The messages that are missing, and what the service manager knows once they are sent.
    pub(super) fn news(&self, report: Report) -> (Vec<Message>, Self) {
        let (ready, stopping) = (self.ready || report.started_up, self.stopping || report.stopping);
        let news = report.status.filter(|status| *status != self.status);
        let messages = [
            (ready && !self.ready).then_some(Message::Ready),
            (stopping && !self.stopping).then_some(Message::Stopping),
            news.clone().map(Message::Status),
        ];
        let status = news.unwrap_or_else(|| self.status.clone());
        (messages.into_iter().flatten().collect(), Self { ready, stopping, status })
    }
}

/// The status in words, for an operator.
pub(super) fn status(snapshot: &Snapshot, stopping: bool, naming: Naming, now: Moment) -> String {
    let words = match snapshot.stage {
        Stage::Starting => "starting".to_owned(),
        Stage::Draining => "draining".to_owned(),
        Stage::Running if stopping => "stopping; holding slots for the workload".to_owned(),
        Stage::Running | Stage::Unknown => {
            let report = snapshot.report(now, crate::clock::wall());
            View::of(&report, naming).entry().unwrap_or_else(|| held(snapshot, naming))
        }
    };
    one_line(&words)
}

/// The semaphores and locks that are held.
fn held(snapshot: &Snapshot, naming: Naming) -> String {
    let semaphores = snapshot.semaphores.iter().map(|one| (&one.entry, one.prefix.as_str()));
    let locks = snapshot.locks.iter().map(|one| (&one.entry, one.key.as_str()));
    let is_held = |entry: &Entry| entry.state == State::Held;
    let held: Vec<_> = semaphores.chain(locks).filter(|(entry, _)| is_held(entry)).collect();
    if held.is_empty() {
        return "ready".to_owned();
    }
    let mut names: Vec<_> =
        held.iter().take(MAX_NAMES).map(|(entry, key)| naming.of(&entry.name, key).to_owned()).collect();
    if let Some(more) = held.len().checked_sub(MAX_NAMES).filter(|more| *more > 0) {
        names.push(format!("and {more} more"));
    }
    format!("holding {}", names.join(", "))
}

/// One line without control characters: a line break would begin another message.
pub(super) fn one_line(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    printable(&lines.join("; "), MAX_STATUS_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(started_up: bool, stopping: bool) -> Report {
        Report { started_up, stopping, status: None }
    }

    /// All messages of these reports, one after the other.
    fn sent(reports: impl IntoIterator<Item = Report>) -> Vec<Vec<Message>> {
        let mut reported = Reported::default();
        let messages = |report| {
            let (messages, now) = reported.news(report);
            reported = now;
            messages
        };
        reports.into_iter().map(messages).collect()
    }

    #[test]
    fn the_start_is_complete_once_and_stays_so() {
        let waits = || report(false, false);
        let holds = || report(true, false);
        assert_eq!(sent([waits(), holds(), holds()]), [vec![], vec![Message::Ready], vec![]]);
    }

    #[test]
    fn after_a_stop_only_the_status_changes() {
        let status = |text: &str| Report { status: Some(text.to_owned()), ..report(false, true) };
        let reports = [report(false, true), status("draining"), status("draining")];
        let expected = [vec![Message::Stopping], vec![Message::Status("draining".to_owned())], vec![]];
        assert_eq!(sent(reports), expected);
    }

    #[test]
    fn a_short_hold_is_a_start_too() {
        let reports = [report(false, false), report(true, true)];
        assert_eq!(sent(reports), [vec![], vec![Message::Ready, Message::Stopping]]);
    }

    #[test]
    fn a_message_that_was_not_sent_is_due_again() {
        let reported = Reported::default();
        let holds = || report(true, false);
        assert_eq!(reported.news(holds()).0, [Message::Ready]);
        assert_eq!(reported.news(holds()).0, [Message::Ready]);
    }

    #[test]
    fn a_status_is_one_line_of_bounded_length() {
        assert_eq!(one_line("a: is wrong\n\n  READY=1\x1b\n"), "a: is wrong; READY=1\\u{1b}");
        assert!(one_line(&"x".repeat(5000)).len() <= MAX_STATUS_BYTES + '…'.len_utf8());
    }
}
