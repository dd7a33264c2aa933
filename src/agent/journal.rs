//! What has happened lately, as the world is told: the last changes, of which no more are kept than anybody reads.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::clock;
use crate::status::{Change, Id, What};
use slotkeeper_semaphore::{Leader, Notice, printable};

/// Changes that are kept.
const KEPT: usize = 50;
/// Bytes of a detail: it may quote what others wrote.
const LONGEST: usize = 300;

/// The last changes.
#[derive(Debug)]
pub(super) struct Journal {
    last: Id,
    changes: Arc<VecDeque<Change>>,
}

impl Journal {
    /// One that goes on after `last`.
    pub(super) fn new(last: Id) -> Self {
        Self { last, changes: Arc::default() }
    }

    /// The next id, for whatever is told.
    pub(super) fn next_id(&mut self) -> Id {
        self.last = self.last.next();
        self.last
    }

    /// What it has, from the oldest on.
    pub(super) fn changes(&self) -> Arc<VecDeque<Change>> {
        Arc::clone(&self.changes)
    }

    /// Notes a change that is the agent's own.
    pub(super) fn note(&mut self, what: What, name: Option<&str>, detail: Option<String>) {
        let change = Change {
            id: self.next_id(),
            at: clock::now(),
            what,
            name: name.map(str::to_owned),
            detail: detail.map(|detail| printable(&detail, LONGEST)),
        };
        // Copied only where a reader has the one before, and changes are seldom.
        let changes = Arc::make_mut(&mut self.changes);
        if changes.len() == KEPT {
            changes.pop_front();
        }
        changes.push_back(change);
    }

    /// Notes what the core tells, where people want to hear of it.
    pub(super) fn follow(&mut self, notice: &Notice) {
        let (what, name, detail) = match notice {
            Notice::SessionStarted { session, resumed } => {
                let how = if *resumed { "taken up again: " } else { "" };
                (What::SessionStarted, None, Some(format!("{how}{session}")))
            }
            Notice::SessionTaken { session } => {
                (What::SessionEnded, None, Some(format!("another process has resumed {session}")))
            }
            Notice::SessionEnded { session } => (What::SessionEnded, None, Some(session.to_string())),
            Notice::Failing { name, failure } => (What::Trouble, name.as_ref(), Some(failure.text.clone())),
            Notice::Recovered { name } => (What::TroubleOver, name.as_ref(), None),
            Notice::Waiting { name, position, taken, limit } => (
                What::Waiting,
                Some(name),
                Some(format!("number {position} in line, {taken} of {limit} taken")),
            ),
            // Our own is told as it is acquired.
            Notice::Leader { leader: Some(Leader { mine: true, .. }), .. } => return,
            Notice::Leader { name, leader } => {
                (What::LeaderChanged, Some(name), Some(who_leads(leader.as_ref())))
            }
            Notice::LockDelayed { name, left } => {
                (What::Delayed, Some(name), left.map(|left| format!("for {}", roughly(left))))
            }
            Notice::Acquired { name, resumed: true, .. } => {
                (What::Acquired, Some(name), Some("taken up again".to_owned()))
            }
            Notice::Acquired { name, took, .. } => {
                (What::Acquired, Some(name), Some(format!("after {}", roughly(*took))))
            }
            Notice::Lost { name, reason, held, .. } => {
                let reason = reason.as_str().replace('_', " ");
                (What::Lost, Some(name), Some(format!("{reason}; held for {}", roughly(*held))))
            }
            Notice::Evicted { name, by, .. } => (What::Evicted, Some(name), Some(format!("by {by}"))),
            Notice::Released { name, held, .. } => {
                (What::Released, Some(name), Some(format!("held for {}", roughly(*held))))
            }
            Notice::Blocked { name, why } => (What::Blocked, Some(name), Some(why.clone())),
            Notice::TimedOut { name, failure: trouble, .. } => (What::GaveUp, Some(name), trouble.clone()),
            Notice::LimitDiffers { name, stored, configured, .. } => {
                (What::Limit, Some(name), Some(format!("{stored} governs, {configured} is configured")))
            }
            Notice::LimitChanged { name, from, to } => {
                (What::Limit, Some(name), Some(format!("changed from {from} to {to}")))
            }
            Notice::LimitSet { name, from, to } => {
                (What::Limit, Some(name), Some(format!("set from {from} to {to} by this agent")))
            }
            Notice::Pruned { name, holders, .. } => {
                (What::Pruned, Some(name), Some(format!("{holders} dead taken out")))
            }
            Notice::Removed { name } => (What::Removed, Some(name), None),
            // They come round by themselves; the log alone says what is odd about the configuration.
            Notice::Renewed { .. }
            | Notice::RenewFailed { .. }
            | Notice::SessionsCleared { .. }
            | Notice::Conflict { .. }
            | Notice::FormDiffers { .. } => return,
        };
        self.note(what, name.map(|name| &**name), detail);
    }

    /// The same of a lease. That somebody waits for one, or did in vain, or takes it and gives it back, is its client's
    /// matter, which may do so again and again, and would push out all else; and what many see who wait for one lock is not
    /// many changes.
    pub(super) fn follow_lease(&mut self, notice: &Notice) {
        let theirs = matches!(
            notice,
            Notice::Waiting { .. }
                | Notice::Acquired { .. }
                | Notice::Released { .. }
                | Notice::TimedOut { .. }
                | Notice::Leader { .. }
                | Notice::LockDelayed { .. }
                | Notice::SessionStarted { .. }
        );
        if !theirs {
            self.follow(notice);
        }
    }
}

fn who_leads(leader: Option<&Leader>) -> String {
    let Some(Leader { session, who, .. }) = leader else { return "nobody has it".to_owned() };
    let who = who.as_ref().and_then(|who| who.pod.as_ref().or(who.host.as_ref()));
    format!("{} has it", who.map_or(session.as_str(), String::as_str))
}

fn roughly(time: Duration) -> String {
    match time.as_secs() {
        0 => format!("{} ms", time.as_millis()),
        seconds => format!("{seconds} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slotkeeper_semaphore::{Name, SessionId};

    #[test]
    fn keeps_the_last_ones_and_none_for_ever() {
        let mut journal = Journal::new(Id::first(1));
        for number in 0..200 {
            journal.note(What::Trouble, Some("s"), Some(format!("{number} {}", "ä".repeat(1000))));
        }
        let changes = journal.changes();
        assert_eq!(changes.len(), KEPT);
        let text = |change: &Change| change.detail.clone().unwrap();
        assert!(text(&changes[0]).starts_with("150 ") && text(&changes[KEPT - 1]).starts_with("199 "));
        assert!(changes.iter().all(|change| (LONGEST..LONGEST + 4).contains(&text(change).len())));
        assert!(changes.iter().zip(changes.iter().skip(1)).all(|(one, next)| one.id.is_before(next.id)));
        assert!(changes[KEPT - 1].id.is_before(journal.next_id()));
    }

    #[test]
    fn clients_that_come_and_go_push_nothing_out() {
        let mut journal = Journal::new(Id::first(1));
        let (name, session): (Name, SessionId) = ("s".into(), "5e55".into());
        let (took, held) = (Duration::ZERO, Duration::ZERO);
        let acquired = Notice::Acquired {
            name: Name::clone(&name),
            session: session.clone(),
            token: 7,
            indexes: vec![0],
            took,
            resumed: false,
            handoff: None,
        };
        let released = Notice::Released { name: Name::clone(&name), session, held };
        journal.note(What::Draining, None, None);
        for _ in 0..KEPT {
            journal.follow_lease(&acquired);
            journal.follow_lease(&released);
        }
        let whats = |journal: &Journal| journal.changes().iter().map(|one| one.what).collect::<Vec<_>>();
        assert_eq!(whats(&journal), [What::Draining]);
        // What went wrong is told, and of the agent's own all.
        journal.follow_lease(&Notice::Evicted { name, by: "root".into(), held: true });
        journal.follow(&acquired);
        journal.follow(&released);
        assert_eq!(whats(&journal), [What::Draining, What::Evicted, What::Acquired, What::Released]);
    }
}
