//! Explains why a required slot was not acquired in time.

use std::time::Duration;

use super::{Agent, fatal};
use crate::clock;
use crate::config::LogLevel;
use crate::duration::age;
use crate::duration::show;
use crate::exit::Exit;
use crate::progress::View as Awaited;
use crate::stderr::Stderr;
use slotkeeper_semaphore::contender::Entry;
use slotkeeper_semaphore::{Failure, Machine, Name, Obstacle, SessionId, TRY_ONCE_TIMEOUT, View, printable};

/// The longest text of a prefix, and of the session of a holder without an identity.
const MAX_PREFIX: usize = 500;
const MAX_SESSION: usize = 8;

impl Agent {
    /// Ends the agent, since a required slot was not acquired in time.
    pub(super) fn timed_out(
        &mut self,
        name: &Name,
        reached: bool,
        failure: Option<&Failure>,
        obstacle: Option<&Obstacle>,
    ) {
        let exit = fatal::exit_at_the_bound(
            failure.map(|failure| failure.kind),
            obstacle.map(|obstacle| obstacle.kind),
            reached,
        );
        let awaited = self.awaited();
        let in_vain =
            |awaited: &Awaited| self.explain_timeout(name, reached, exit, failure, obstacle, awaited);
        let mut why = in_vain(&awaited);
        if let Some(failure) = failure.filter(|failure| !why.contains(&failure.text)) {
            why = format!("{why}; the last failure was: {}", failure.text);
        }
        if self.speaks_plainly() && !self.ending.is_decided() {
            // What may pass was logged when it began.
            let is_logged = self.parts.config.log.level != LogLevel::Error;
            Stderr::say(&if is_logged { in_vain(&awaited.beside_the_log()) } else { why.clone() });
        }
        self.fail(exit, &why);
    }

    fn explain_timeout(
        &self,
        name: &Name,
        reached: bool,
        exit: Exit,
        failure: Option<&Failure>,
        obstacle: Option<&Obstacle>,
        awaited: &Awaited,
    ) -> String {
        let label = self.labels.title(name);
        let entry = self.parts.config.entries().find(|entry| entry.id() == *name);
        let wait = entry.and_then(|entry| entry.wait).unwrap_or_default();
        if let Some(obstacle) = obstacle.filter(|_| wait.is_zero() || exit == Exit::Config) {
            return obstacle.why.clone();
        }
        let permanent = failure.filter(|failure| fatal::exit_of_failure(failure.kind).is_some());
        if let Some(failure) = permanent {
            return failure.text.clone();
        }
        match awaited.awaited() {
            _ if !reached => {
                let wait = if wait.is_zero() { TRY_ONCE_TIMEOUT } else { wait };
                let (wait, address) = (show(wait), self.client.address());
                format!("timed out after {wait} waiting for Consul at {address}, without a slot of {label}")
            }
            Some(awaited) if wait > Duration::ZERO => {
                format!("timed out after {} waiting for {awaited}", show(wait))
            }
            _ => {
                let machine = self.own.keeper.machine(name);
                let taken = machine.and_then(|machine| none_free(machine, &label));
                taken.unwrap_or_else(|| format!("{label}: no free slot"))
            }
        }
    }
}

/// That no slot is free, and which holders have them.
fn none_free(machine: &Machine, label: &str) -> Option<String> {
    let view = machine.view()?;
    if machine.settings().is_lock() {
        let single = machine.single()?;
        let owner = holder(single.owner.as_ref()?, single.entry.as_ref());
        let key = machine.settings().prefix.as_str();
        let shown = printable(key.strip_suffix("/.lock").unwrap_or(key), MAX_PREFIX);
        return Some(format!("{shown}: the lock is held by {owner}"));
    }
    let record = view.record()?;
    let (taken, limit) = (record.taken(), record.limit);
    let mut sessions: Vec<_> = record.holders.iter().collect();
    sessions.dedup();
    let held = sessions.first().map(|first| {
        let others = sessions.len() - 1;
        let more = if others > 0 { format!(" and {others} more") } else { String::new() };
        format!(" by {}{more}", holder(first, entry_of(view, first)))
    });
    let shown = printable(&machine.settings().prefix, MAX_PREFIX);
    let shown = if shown.is_empty() { label.to_owned() } else { shown };
    Some(format!("{shown}: no free slot ({taken} of {limit} taken{})", held.unwrap_or_default()))
}

fn entry_of<'a>(view: &'a View, session: &SessionId) -> Option<&'a Entry> {
    view.contenders.iter().find(|one| one.session == *session)?.entry.as_ref()
}

/// A holder in words, with the time since its own time stamp.
fn holder(session: &SessionId, entry: Option<&Entry>) -> String {
    let who = entry.and_then(|entry| entry.who.in_words());
    let who = who.unwrap_or_else(|| format!("session {}", printable(session.as_str(), MAX_SESSION)));
    let since = entry.and_then(|entry| clock::wall().moment(&entry.since));
    match since {
        Some(since) => format!("{who} for {}", age(clock::now().since(since))),
        None => who,
    }
}
