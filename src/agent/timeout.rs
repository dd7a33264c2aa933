//! Explains why a required slot was not acquired in time.

use super::{Agent, fatal};
use crate::clock;
use crate::config::LogLevel;
use crate::console;
use crate::duration::{seconds, show};
use crate::exit::Exit;
use crate::waiting::{holder, list};
use slotkeeper_semaphore::contender::Entry;
use slotkeeper_semaphore::{Failure, Machine, Name, Obstacle, SessionId, TRY_ONCE_TIMEOUT, printable};

/// The longest text of a prefix.
const MAX_PREFIX: usize = 500;

impl Agent {
    /// Ends the agent, since a required slot was not acquired in time.
    pub(super) fn timed_out(
        &mut self,
        name: &Name,
        reached: bool,
        failure: Option<&Failure>,
        obstacle: Option<&Obstacle>,
    ) {
        let kinds = (failure.map(|failure| failure.kind), obstacle.map(|obstacle| obstacle.kind));
        let exit = fatal::exit_at_the_bound(kinds.0, kinds.1, reached);
        let entry = self.parts.config.entries().find(|entry| entry.id() == *name);
        let wait = entry.and_then(|entry| entry.wait).unwrap_or_default();
        if wait.is_zero() && kinds == (None, None) && self.parts.config.log.level == LogLevel::Error {
            // Whoever tries and wants to hear of failures alone expects that the slot may be taken.
            console::expect(Exit::Timeout);
        }
        let obstacle = obstacle.filter(|_| wait.is_zero() || exit == Exit::Config).map(|one| &one.why);
        let permanent = failure.filter(|one| fatal::exit_of_failure(one.kind).is_some()).map(|one| &one.text);
        let (label, awaited) = (self.labels.title(name), self.awaited().filter(|_| !wait.is_zero()));
        let mut why = if let Some(permanent) = obstacle.or(permanent) {
            format!("{label}: {permanent}")
        } else if !reached {
            let wait = show(if wait.is_zero() { TRY_ONCE_TIMEOUT } else { wait });
            let address = self.client.address();
            format!("timed out after {wait} waiting for Consul at {address}, without a slot of {label}")
        } else if let Some(awaited) = awaited {
            format!("timed out after {} waiting for {}", show(wait), awaited.text())
        } else {
            // Of a group, one that has no free slot.
            let keeper = &self.own.keeper;
            let required = keeper.machines().filter(|one| self.is_required(one.name()) && !one.holds());
            let taken = required.filter(|one| has_no_room(one)).chain(keeper.machine(name)).next();
            let label = taken.map_or(label, |machine| self.labels.title(machine.name()));
            let why = taken.and_then(none_free).unwrap_or_else(|| "no free slot".to_owned());
            format!("{}: {why}", printable(&label, MAX_PREFIX))
        };
        if let Some(failure) = failure.filter(|failure| !why.contains(&failure.text)) {
            why = format!("{why}; the last failure was: {}", failure.text);
        }
        self.fail(exit, &why);
    }
}

fn has_no_room(machine: &Machine) -> bool {
    let record = machine.view().and_then(|view| view.record());
    let is_full = record.is_some_and(|one| one.limit.saturating_sub(one.taken()) < machine.settings().slots);
    is_full || machine.single().is_some_and(|single| single.owner.is_some())
}

/// Which holders have the slots.
fn none_free(machine: &Machine) -> Option<String> {
    if let Some(single) = machine.single().filter(|_| machine.settings().is_lock()) {
        return Some(format!("the lock is held by {}", named(single.owner.as_ref()?, single.entry.as_ref())));
    }
    let view = machine.view()?;
    let record = view.record()?;
    let mut sessions: Vec<_> = record.holders.iter().collect();
    sessions.dedup();
    let entry =
        |session: &SessionId| view.contenders.iter().find(|one| one.session == *session)?.entry.as_ref();
    let names: Vec<_> = sessions.into_iter().map(|session| named(session, entry(session))).collect();
    let by = list(&names, 0).map(|names| format!(" by {names}")).unwrap_or_default();
    Some(format!("no free slot ({} of {} taken{by})", record.taken(), record.limit))
}

/// A holder in words, with the time since its own time stamp.
fn named(session: &SessionId, entry: Option<&Entry>) -> String {
    let since = entry.and_then(|entry| clock::wall().moment(&entry.since));
    let age = since.map(|since| seconds(clock::now().since(since)));
    holder(session.as_str(), entry.map(|entry| &entry.who), age)
}
