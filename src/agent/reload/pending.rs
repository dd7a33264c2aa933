//! Entries of the configuration that cannot be taken over yet. The agent takes each over by itself as soon as it can; until
//! then a required one counts as not held.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use tracing::info;

use crate::agent::labels::{self, Entry};
use crate::agent::{Agent, Unpublished, translate};
use crate::config::{Acquire, Mode};
use crate::control::request::Kind;
use crate::log_events::PENDING_ENTRY_ADDED;
use slotkeeper_semaphore::{Machine, Moment, Name, Settings};

/// Why an entry is pending.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Obstacle {
    /// What an entry of before held there, or under that name, is still being released.
    Releasing { name: Name, trouble: Option<String> },
    /// So many leases that clients have of it must end before the agent may hold it itself.
    Lent(usize),
    /// It would have to be acquired with what is held already.
    Together,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Releasing { name, trouble } => {
                write!(f, "{name} of the configuration before is still being released")?;
                trouble.iter().try_for_each(|trouble| write!(f, "; its last failure: {trouble}"))
            }
            Self::Lent(1) => f.write_str("1 lease of it has not ended yet"),
            Self::Lent(leases) => write!(f, "{leases} leases of it have not ended yet"),
            Self::Together => f.write_str(
                "it cannot be acquired together with what is held already; restart the agent, or make it not required",
            ),
        }
    }
}

/// What people are told of it. An obstacle may have ended an instant before the entry is taken over.
fn reason(obstacle: Option<Obstacle>) -> String {
    obstacle.map_or_else(|| "it is about to be taken over".into(), |obstacle| obstacle.to_string())
}

impl Agent {
    /// Takes over what nothing is in the way of any more.
    pub(in crate::agent) fn mind_pending(&mut self, now: Moment) {
        let names = self.take_over_pending(now);
        for name in &names {
            info!(semaphore = name, "{PENDING_ENTRY_ADDED}");
        }
        if !names.is_empty() {
            self.unpublished = Unpublished::All;
            self.carry_out(now);
        }
    }

    /// The same, without a word; the names of what was taken over.
    pub(super) fn take_over_pending(&mut self, now: Moment) -> Vec<String> {
        if self.pending.is_empty() || self.ending.is_decided() {
            return Vec::new();
        }
        let free: BTreeSet<Name> = self
            .obstacles()
            .into_iter()
            .filter(|(_, obstacle)| obstacle.is_none())
            .map(|(id, _)| id)
            .collect();
        let mut names = Vec::new();
        for (id, name, terms) in self.terms_of(&free) {
            self.pending.remove(&id);
            // What had its name before may have had other series.
            self.parts.metrics.remove_semaphore(&name);
            self.add_series(&name);
            if let Some(settings) = terms {
                self.labels.set(Name::clone(&id), &name);
                self.own.keeper.add(id, settings, now);
            }
            names.push(name);
        }
        names
    }

    /// What is pending, each with the reason.
    pub(in crate::agent) fn pending_reasons(&self) -> BTreeMap<Name, String> {
        self.obstacles().into_iter().map(|(id, obstacle)| (id, reason(obstacle))).collect()
    }

    /// Makes every series of the entry of that name.
    pub(super) fn add_series(&self, name: &str) {
        for entry in labels::entries(&self.parts.config).filter(|entry| entry.name == name) {
            match entry.kind {
                Kind::Semaphore => self.parts.metrics.add_semaphore(name),
                Kind::Lock => self.parts.metrics.add_lock(name, entry.mode == Mode::Hold),
            }
        }
    }

    /// What is pending, each with what is in its way.
    fn obstacles(&self) -> Vec<(Name, Option<Obstacle>)> {
        if self.pending.is_empty() {
            return Vec::new();
        }
        let all = || labels::entries(&self.parts.config).map(|entry| (entry.id(), entry));
        let held = all().filter(|(id, entry)| entry.mode == Mode::Hold && !self.pending.contains(id));
        let held: BTreeSet<Name> = held.map(|(id, _)| id).collect();
        // Of a configuration before, or of an earlier process.
        let leaving: Vec<_> =
            self.own.keeper.machines().filter(|machine| !held.contains(machine.name())).collect();
        let pending = all().filter(|(id, _)| self.pending.contains(id));
        pending.map(|(id, entry)| (id, self.obstacle(&entry, &leaving))).collect()
    }

    /// Those entries, each with the terms by which the agent asks for it itself, if it does.
    fn terms_of(&self, ids: &BTreeSet<Name>) -> Vec<(Name, String, Option<Settings>)> {
        let config = &self.parts.config;
        let semaphores = config.semaphores.iter().map(|one| (Entry::from(one), translate::settings(one)));
        let locks = config.locks.iter().map(|one| (Entry::from(one), translate::lock(one, &config.session)));
        let all = semaphores.chain(locks).filter(|(entry, _)| ids.contains(&entry.id()));
        let held = |mode, settings| (mode == Mode::Hold).then_some(settings);
        all.map(|(entry, settings)| (entry.id(), entry.name.to_owned(), held(entry.mode, settings))).collect()
    }

    /// What is in the way of an entry that is pending.
    fn obstacle(&self, entry: &Entry<'_>, leaving: &[&Machine]) -> Option<Obstacle> {
        let is_in_its_way = |machine: &&&Machine| {
            *self.labels.of(machine.name()) == *entry.name || clash(&machine.settings().prefix, entry.key)
        };
        if let Some(machine) = leaving.iter().find(is_in_its_way) {
            let trouble = machine.failure().or(self.own.keeper.failure()).map(str::to_owned);
            return Some(Obstacle::Releasing { name: self.labels.of(machine.name()), trouble });
        }
        if entry.mode == Mode::OnDemand {
            return None;
        }
        // Leases of before and of now go well together, but not with a slot that the agent itself holds.
        let is_there = |settings: &Settings| clash(&settings.prefix, entry.key);
        let leases = self.leases.count(|name| name == entry.name, is_there);
        if leases > 0 {
            return Some(Obstacle::Lent(leases));
        }
        let together = self.parts.config.acquire == Acquire::Together;
        (together && entry.kind == Kind::Semaphore && entry.required).then_some(Obstacle::Together)
    }
}

/// Whether what is done at one of them is seen at the other.
fn clash(one: &str, other: &str) -> bool {
    let lies_below =
        |key: &str, prefix: &str| key.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'));
    one == other || lies_below(one, other) || lies_below(other, one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nothing_is_in_the_way_of_any_more_has_a_reason_too() {
        assert_eq!(reason(Some(Obstacle::Lent(1))), "1 lease of it has not ended yet");
        assert_eq!(reason(None), "it is about to be taken over");
    }

    #[test]
    fn what_lies_below_another_prefix_is_in_its_way() {
        for (one, other, clashes) in [("p/a", "p/a", true), ("p/a", "p/a/b", true), ("p/a", "p/ab", false)] {
            assert_eq!((clash(one, other), clash(other, one)), (clashes, clashes), "{one} {other}");
        }
    }
}
