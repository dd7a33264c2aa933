//! Pending entries: entries of the configuration that the agent cannot add yet. It adds each as soon as its obstacle is gone.
//! Until then a required one counts as not held.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::about::log_about;
use crate::agent::{Agent, Unpublished, translate};
use crate::config::{Entry, Kind, Mode};
use crate::log_events::PENDING_ENTRY_ADDED;
use crate::metrics::Metrics;
use slotkeeper_semaphore::{Machine, Moment, Name, Settings};

/// Why an entry is pending.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Obstacle {
    /// The slot of a previous entry with the same path or name is still being released.
    Releasing { name: Name, failure: Option<String> },
    /// This many leases of clients must end before the agent may hold a slot itself.
    Lent(usize),
    /// The entry would have to be acquired together with slots that are held already.
    Together,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Releasing { name, failure } => {
                write!(f, "{name} of the previous configuration is still being released")?;
                failure.iter().try_for_each(|failure| write!(f, "; its last failure: {failure}"))
            }
            Self::Lent(1) => f.write_str("1 lease of it has not ended yet"),
            Self::Lent(leases) => write!(f, "{leases} leases of it have not ended yet"),
            Self::Together => f.write_str(
                "it cannot be acquired together with slots that are held already; restart the agent, or make it not required",
            ),
        }
    }
}

/// The reason as text. An obstacle may be gone an instant before the entry is added.
fn reason(obstacle: Option<Obstacle>) -> String {
    obstacle.map_or_else(|| "it is about to be added".into(), |obstacle| obstacle.to_string())
}

impl Agent {
    /// Adds pending entries without an obstacle, and logs them.
    pub(in crate::agent) fn check_pending(&mut self, now: Moment) {
        let names = self.add_pending(now);
        for name in &names {
            let added = self.parts.config.entries().find(|entry| entry.name == *name);
            log_about!(info, added.map(Entry::subject).as_ref(), "{PENDING_ENTRY_ADDED}");
        }
        if !names.is_empty() {
            self.unpublished = Unpublished::All;
            self.carry_out(now);
        }
    }

    /// Adds pending entries without an obstacle, and returns their names.
    pub(super) fn add_pending(&mut self, now: Moment) -> Vec<String> {
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
            // The previous entry of that name may have had other series.
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

    /// The pending entries, each with the reason.
    pub(in crate::agent) fn pending_reasons(&self) -> BTreeMap<Name, String> {
        self.obstacles().into_iter().map(|(id, obstacle)| (id, reason(obstacle))).collect()
    }

    /// Creates every series of the entry of that name.
    pub(super) fn add_series(&self, name: &str) {
        for entry in self.parts.config.entries().filter(|entry| entry.name == name) {
            add_series(&self.parts.metrics, entry);
        }
    }

    /// The pending entries, each with its obstacle.
    fn obstacles(&self) -> Vec<(Name, Option<Obstacle>)> {
        if self.pending.is_empty() {
            return Vec::new();
        }
        let all = || self.parts.config.entries().map(|entry| (entry.id(), entry));
        let held = all().filter(|(id, entry)| entry.mode == Mode::Hold && !self.pending.contains(id));
        let held: BTreeSet<Name> = held.map(|(id, _)| id).collect();
        // Machines of a previous configuration, or of an earlier process.
        let leaving: Vec<_> =
            self.own.keeper.machines().filter(|machine| !held.contains(machine.name())).collect();
        let pending = all().filter(|(id, _)| self.pending.contains(id));
        pending.map(|(id, entry)| (id, self.obstacle(entry, &leaving))).collect()
    }

    /// The entries `ids`, each with its settings if the agent holds it itself.
    fn terms_of(&self, ids: &BTreeSet<Name>) -> Vec<(Name, String, Option<Settings>)> {
        let all = translate::all(&self.parts.config).filter(|(entry, _)| ids.contains(&entry.id()));
        let held = |mode, settings| (mode == Mode::Hold).then_some(settings);
        all.map(|(entry, settings)| (entry.id(), entry.name.clone(), held(entry.mode, settings))).collect()
    }

    /// The obstacle of a pending entry.
    fn obstacle(&self, entry: &Entry, leaving: &[&Machine]) -> Option<Obstacle> {
        // First the obstacle that only a restart removes.
        let acquire = self.parts.config.acquire;
        if acquire.written.is_some()
            && acquire.together
            && entry.kind == Kind::Semaphore
            && entry.is_required()
        {
            return Some(Obstacle::Together);
        }
        let is_obstacle = |machine: &&&Machine| {
            *self.labels.of(machine.name()) == *entry.name || clash(&machine.settings().prefix, &entry.key)
        };
        if let Some(machine) = leaving.iter().find(is_obstacle) {
            let failure = machine.failure().or(self.own.keeper.failure()).map(str::to_owned);
            return Some(Obstacle::Releasing { name: self.labels.of(machine.name()), failure });
        }
        if entry.mode == Mode::OnDemand {
            return None;
        }
        // Old and new leases may coexist, but not with a slot that the agent holds itself.
        let is_there = |settings: &Settings| clash(&settings.prefix, &entry.key);
        let leases = self.leases.count(|name| name == entry.name, is_there);
        if leases > 0 {
            return Some(Obstacle::Lent(leases));
        }
        None
    }
}

/// Creates every series of an entry.
pub(in crate::agent) fn add_series(metrics: &Metrics, entry: &Entry) {
    let lends = entry.mode == Mode::OnDemand;
    match entry.kind {
        Kind::Semaphore => metrics.add_semaphore(&entry.name, lends),
        Kind::Lock => metrics.add_lock(&entry.name, lends),
    }
}

/// Whether the two paths are equal, or one is below the other.
fn clash(one: &str, other: &str) -> bool {
    let lies_below =
        |key: &str, prefix: &str| key.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'));
    one == other || lies_below(one, other) || lies_below(other, one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_without_an_obstacle_has_a_reason_too() {
        assert_eq!(reason(Some(Obstacle::Lent(1))), "1 lease of it has not ended yet");
        assert_eq!(reason(None), "it is about to be added");
    }

    #[test]
    fn a_path_below_another_one_clashes_with_it() {
        for (one, other, clashes) in [("p/a", "p/a", true), ("p/a", "p/a/b", true), ("p/a", "p/ab", false)] {
            assert_eq!((clash(one, other), clash(other, one)), (clashes, clashes), "{one} {other}");
        }
    }
}
