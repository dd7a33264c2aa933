//! Recent changes of the agent, for the event stream: the last ones only.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::clock;
use crate::status::{Change, Event, Id, Subject};
use slotkeeper_semaphore::{Leader, Notice, printable};

/// The number of changes that are kept.
const MAX_CHANGES: usize = 50;
/// The most bytes of a detail, which may quote untrusted input.
const MAX_DETAIL_BYTES: usize = 300;

/// The last changes.
#[derive(Debug)]
pub(super) struct Journal {
    last: Id,
    changes: Arc<VecDeque<Change>>,
}

impl Journal {
    /// A journal whose ids follow `last`.
    pub(super) fn new(last: Id) -> Self {
        Self { last, changes: Arc::default() }
    }

    /// The next id, for a change or a snapshot.
    pub(super) fn next_id(&mut self) -> Id {
        self.last = self.last.next();
        self.last
    }

    /// The changes, the oldest first.
    pub(super) fn changes(&self) -> Arc<VecDeque<Change>> {
        Arc::clone(&self.changes)
    }

    /// Adds a change.
    pub(super) fn note(&mut self, event: Event, subject: Option<Subject>, detail: Option<String>) {
        let change = Change {
            id: self.next_id(),
            at: clock::now(),
            event,
            subject,
            detail: detail.map(|detail| printable(&detail, MAX_DETAIL_BYTES)),
        };
        // Copied only while a reader has the previous one, and changes are rare.
        let changes = Arc::make_mut(&mut self.changes);
        if changes.len() == MAX_CHANGES {
            changes.pop_front();
        }
        changes.push_back(change);
    }

    /// Adds the change of a notice about that semaphore or lock, if it is of interest.
    pub(super) fn follow(&mut self, notice: &Notice, subject: Option<Subject>) {
        let Some(event) = event_of(notice) else { return };
        let detail = match notice {
            Notice::SessionStarted { session, resumed: true } => Some(format!("resumed: {session}")),
            Notice::SessionStarted { session, resumed: false } | Notice::SessionEnded { session } => {
                Some(session.to_string())
            }
            Notice::Failing { failure, .. } => Some(failure.text.clone()),
            Notice::Waiting { position: Some(position), taken, limit, .. } => {
                Some(format!("position {position} in the queue, {taken} of {limit} slots taken"))
            }
            Notice::Waiting { position: None, taken, limit, .. } => {
                Some(format!("{taken} of {limit} slots taken"))
            }
            Notice::Leader { leader, .. } => Some(who_leads(leader.as_ref())),
            Notice::Acquired { resumed: true, .. } => Some("resumed".to_owned()),
            Notice::Acquired { took, .. } => Some(format!("after {}", roughly(*took))),
            Notice::Lost { reason, held, .. } => {
                let reason = reason.as_str().replace('_', " ");
                Some(format!("{reason}; held for {}", roughly(*held)))
            }
            Notice::Evicted { by, .. } => Some(format!("by {by}")),
            Notice::Released { held, .. } => Some(format!("held for {}", roughly(*held))),
            Notice::Blocked { obstacle, .. } => Some(obstacle.why.clone()),
            Notice::TimedOut { failure, .. } => failure.as_ref().map(|failure| failure.text.clone()),
            Notice::LimitDiffers { stored, configured, .. } => {
                Some(format!("{stored} in force, {configured} configured"))
            }
            Notice::LimitChanged { from, to, .. } => Some(format!("changed from {from} to {to}")),
            Notice::LimitSet { from, to, .. } => Some(format!("set from {from} to {to} by this agent")),
            Notice::Pruned { holders, .. } => Some(format!("dead holders: {holders}")),
            Notice::LockDelayed { .. }
            | Notice::Recovered { .. }
            | Notice::Removed { .. }
            | Notice::Renewed { .. }
            | Notice::RenewFailed { .. }
            | Notice::Conflict { .. }
            | Notice::FormDiffers { .. } => None,
        };
        self.note(event, subject, detail);
    }

    /// Adds the change of a lease's notice. Waits, grants and releases are the client's business: a client may repeat them at any
    /// rate, which would displace all other changes. Several waiters of one lock report the same leader.
    pub(super) fn follow_lease(&mut self, notice: &Notice, subject: Option<Subject>) {
        if event_of_lease(notice).is_some() {
            self.follow(notice, subject);
        }
    }
}

/// The event of a notice, for the stream and the log. `None` for what recurs without a change, or is of interest in the log alone.
pub(super) fn event_of(notice: &Notice) -> Option<Event> {
    Some(match notice {
        Notice::SessionStarted { .. } => Event::SessionStarted,
        Notice::SessionEnded { .. } => Event::SessionEnded,
        Notice::Failing { .. } => Event::Failing,
        Notice::Recovered { .. } => Event::Recovered,
        Notice::Waiting { .. } => Event::Waiting,
        // The own acquisition is a change of its own.
        Notice::Leader { leader: Some(Leader { mine: true, .. }), .. } => return None,
        Notice::Leader { .. } => Event::LeaderChanged,
        Notice::LockDelayed { .. } => Event::Delayed,
        Notice::Acquired { .. } => Event::Acquired,
        Notice::Lost { .. } => Event::Lost,
        Notice::Evicted { .. } => Event::Evicted,
        Notice::Released { .. } => Event::Released,
        Notice::Blocked { .. } => Event::Blocked,
        Notice::TimedOut { .. } => Event::TimedOut,
        Notice::LimitDiffers { .. } | Notice::LimitChanged { .. } | Notice::LimitSet { .. } => Event::Limit,
        Notice::Pruned { .. } => Event::Pruned,
        Notice::Removed { .. } => Event::Removed,
        Notice::Renewed { .. }
        | Notice::RenewFailed { .. }
        | Notice::Conflict { .. }
        | Notice::FormDiffers { .. } => return None,
    })
}

/// The event of a lease's notice: none for what its client causes, see [`Journal::follow_lease`].
pub(super) fn event_of_lease(notice: &Notice) -> Option<Event> {
    let is_of_client = matches!(
        notice,
        Notice::Waiting { .. }
            | Notice::Acquired { .. }
            | Notice::Released { .. }
            | Notice::TimedOut { .. }
            | Notice::Leader { .. }
            | Notice::LockDelayed { .. }
            | Notice::SessionStarted { .. }
    );
    if is_of_client { None } else { event_of(notice) }
}

fn who_leads(leader: Option<&Leader>) -> String {
    let Some(Leader { session, who, .. }) = leader else { return "lock is free".to_owned() };
    let who = who.as_ref().and_then(|who| who.pod.as_ref().or(who.host.as_ref()));
    format!("held by {}", who.map_or(session.as_str(), String::as_str))
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
    fn keeps_only_the_last_changes() {
        let mut journal = Journal::new(Id::first(1));
        for number in 0..200 {
            journal.note(Event::Failing, None, Some(format!("{number} {}", "ä".repeat(1000))));
        }
        let changes = journal.changes();
        assert_eq!(changes.len(), MAX_CHANGES);
        let text = |change: &Change| change.detail.clone().unwrap();
        assert!(text(&changes[0]).starts_with("150 ") && text(&changes[MAX_CHANGES - 1]).starts_with("199 "));
        assert!(
            changes
                .iter()
                .all(|change| (MAX_DETAIL_BYTES..MAX_DETAIL_BYTES + 4).contains(&text(change).len()))
        );
        assert!(changes.iter().zip(changes.iter().skip(1)).all(|(one, next)| one.id.is_before(next.id)));
        assert!(changes[MAX_CHANGES - 1].id.is_before(journal.next_id()));
    }

    #[test]
    fn leases_displace_no_change_of_the_agent() {
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
        journal.note(Event::Draining, None, None);
        for _ in 0..MAX_CHANGES {
            journal.follow_lease(&acquired, None);
            journal.follow_lease(&released, None);
        }
        let events = |journal: &Journal| journal.changes().iter().map(|one| one.event).collect::<Vec<_>>();
        assert_eq!(events(&journal), [Event::Draining]);
        // Failures of leases are kept, and all changes of the agent's own slots.
        journal.follow_lease(&Notice::Evicted { name, by: "root".into(), held: true }, None);
        journal.follow(&acquired, None);
        journal.follow(&released, None);
        assert_eq!(events(&journal), [Event::Draining, Event::Evicted, Event::Acquired, Event::Released]);
    }
}
