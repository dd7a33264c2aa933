//! The status in words, as `systemctl status` shows it; pure.

use crate::config::Naming;
use crate::status::{Entry, Snapshot, Stage, State};
use crate::waiting::Awaited;
use slotkeeper_semaphore::{Moment, printable};

/// The longest text of a status, which one line of `systemctl status` shows.
const MAX_STATUS_BYTES: usize = 512;
/// Held semaphores and locks that are named.
const MAX_NAMES: usize = 8;

/// The status in words, for an operator.
pub(super) fn status(snapshot: &Snapshot, stopping: bool, naming: Naming, now: Moment) -> String {
    let words = match snapshot.stage {
        Stage::Starting => "starting".to_owned(),
        Stage::Draining => "draining".to_owned(),
        Stage::Running if stopping => "stopping; holding slots for the workload".to_owned(),
        Stage::Running | Stage::Unknown => {
            let report = snapshot.report(now, crate::clock::wall());
            let waits = Awaited::of(&report, naming).map(|one| format!("waiting for {}", one.text()));
            waits.unwrap_or_else(|| held(snapshot, naming))
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

    #[test]
    fn a_status_is_one_line_of_bounded_length() {
        assert_eq!(one_line("a: is wrong\n\n  READY=1\x1b\n"), "a: is wrong; READY=1\\u{1b}");
        assert!(one_line(&"x".repeat(5000)).len() <= MAX_STATUS_BYTES + '…'.len_utf8());
    }
}
