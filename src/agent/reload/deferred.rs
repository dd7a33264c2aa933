//! Deferred changes. An automatic reload, or any reload while a command or workload runs, defers each change that could release
//! a slot, end the agent, or make it not ready.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::entries::{ConfigEntry, predecessor};
use crate::config::{self, Acquire, Config, Entry, Kind, Mode, Release};
use crate::duration;
use slotkeeper_semaphore::Name;

/// Deferred changes, by the entry that stays unchanged.
pub(in crate::agent) type Deferred = BTreeMap<Name, String>;

/// The event until which changes are deferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// An explicit reload.
    Asked,
    /// The end of the command of `slotkeeper run`.
    CommandEnds,
    /// The end of the workload beside the agent.
    WorkloadEnds,
}

impl Until {
    fn kept(self) -> &'static str {
        match self {
            Self::Asked => "kept until an explicit reload or the drain",
            Self::CommandEnds => "kept until the command has ended",
            Self::WorkloadEnds => "kept until the workload has ended",
        }
    }

    fn takes_effect(self) -> &'static str {
        match self {
            Self::Asked => "takes effect by an explicit reload",
            Self::CommandEnds | Self::WorkloadEnds => "takes effect at the next start",
        }
    }
}

/// Resets in `new` each deferred change:
///
/// - An entry that was removed, or has another prefix, key, kind or mode, stays. Entries of `new` that conflict with it are left
///   out.
/// - An entry keeps its `required` and `wait`, and a new one is not required. Otherwise the agent could become not ready, or end.
/// - `drain.hold` is not shortened, and `drain.release` does not change to `at_once`.
///
/// Entries of `old` that are `pending` hold no slot yet and may be removed.
pub(super) fn defer(until: Until, old: &Config, pending: &BTreeSet<Name>, new: &mut Config) -> Deferred {
    // These settings protect a workload that may still run. A changed ConfigMap may be meant for newer pods.
    if until != Until::CommandEnds {
        new.drain.hold = new.drain.hold.max(old.drain.hold);
        if old.drain.release == Release::AfterWorkload {
            new.drain.release = Release::AfterWorkload;
        }
    }
    let mut deferred = keep_entries(until, old, pending, new);
    keep_terms(until, &old.semaphores, &mut new.semaphores, &mut deferred);
    keep_terms(until, &old.locks, &mut new.locks, &mut deferred);
    deferred
}

/// Restores the entries that `new` does not have. An entry that is left out for one of them may have replaced another one, which
/// is then restored too.
fn keep_entries(until: Until, old: &Config, pending: &BTreeSet<Name>, new: &mut Config) -> Deferred {
    let mut deferred = Deferred::new();
    let had: Vec<_> = old.entries().filter(|entry| !pending.contains(&entry.id())).collect();
    // Each round restores one entry. Entries of `old` do not conflict with each other.
    for _ in 0..had.len() {
        let wanted: Vec<_> = new.entries().collect();
        // A member of an acquire group with another prefix is another entry here: the old one stays.
        let followed =
            wanted.iter().filter_map(|entry| predecessor(entry, &had, &wanted, Acquire::default()));
        let followed: BTreeSet<_> = followed.map(|entry| entry.id()).collect();
        let Some(kept) = had.iter().find(|entry| !followed.contains(&entry.id())) else { break };
        let conflicting: Vec<_> = wanted.iter().copied().filter(|entry| conflict(entry, kept)).collect();
        deferred.insert(kept.id(), no_longer_configured(until, &conflicting));
        let left_out: BTreeSet<_> = conflicting.iter().map(|entry| entry.id()).collect();
        let is_kept = |entry: &Entry| entry.id() == kept.id();
        new.semaphores.retain(|one| !left_out.contains(&one.entry.id()));
        new.semaphores.extend(old.semaphores.iter().find(|one| is_kept(&one.entry)).cloned());
        new.locks.retain(|one| !left_out.contains(&one.id()));
        new.locks.extend(old.locks.iter().find(|one| is_kept(one)).cloned());
    }
    deferred
}

/// Whether one configuration cannot have both entries.
fn conflict(one: &Entry, other: &Entry) -> bool {
    let lies_below = |one: &Entry, other: &Entry| {
        let rest = one.key.strip_prefix(&other.key);
        other.kind == Kind::Semaphore && rest.is_some_and(|rest| rest.starts_with('/'))
    };
    let same_name = config::variable_part(&one.name) == config::variable_part(&other.name);
    same_name || one.key == other.key || lies_below(one, other) || lies_below(other, one)
}

/// The reason why an entry stays, with the entries that are left out for it.
fn no_longer_configured(until: Until, left_out: &[&Entry]) -> String {
    let described = |entry: &&Entry| {
        let on_demand = if entry.mode == Mode::OnDemand { ", mode on_demand" } else { "" };
        format!("{} ({}{on_demand})", entry.name, entry.key)
    };
    let left_out: Vec<_> = left_out.iter().map(described).collect();
    let instead = if left_out.is_empty() {
        String::new()
    } else {
        format!(", and {} must wait for that", left_out.join(" and "))
    };
    format!("no longer configured so; {}{instead}", until.kept())
}

/// Resets `required` and `wait`. New entries are not required.
fn keep_terms<E: ConfigEntry>(until: Until, old: &[E], new: &mut [E], deferred: &mut Deferred) {
    for wanted in new.iter_mut().map(E::entry_mut).filter(|wanted| wanted.mode == Mode::Hold) {
        let id = wanted.id();
        let had = old.iter().map(E::entry).find(|had| had.id() == id);
        let (required, wait) = had.map_or((false, wanted.wait), |had| (had.required, had.wait));
        let asked = std::mem::replace(&mut wanted.required, required);
        let required = (asked != required).then(|| format!("required: {asked}"));
        let asked = std::mem::replace(&mut wanted.wait, wait);
        let wait = (asked != wait).then(|| format!("wait: {}", shown(asked)));
        let fields: Vec<_> = required.into_iter().chain(wait).collect();
        if !fields.is_empty() {
            let why = format!("{} {}", fields.join(" and "), until.takes_effect());
            deferred.entry(id).or_insert(why);
        }
    }
}

fn shown(wait: Option<Duration>) -> String {
    wait.map_or("forever".to_owned(), duration::show)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::agent::reload::compare::compare;
    use crate::config::{Environment, Overrides};

    fn config(entries: &str) -> Config {
        let text = format!("control: {{listen: 'unix:/c'}}\n{entries}");
        let loaded = config::parse("test", &text, &Overrides::default(), &Environment::default());
        loaded.unwrap_or_else(|faults| panic!("{faults}")).config
    }

    /// The entries in force after an automatic reload, and the deferred changes.
    fn reloaded(old: &str, new: &str) -> (Vec<String>, Vec<String>) {
        let (old, mut new) = (config(old), config(new));
        let deferred = defer(Until::Asked, &old, &BTreeSet::new(), &mut new);
        let in_force = new.entries().map(|entry| {
            let required = if entry.is_required() { "" } else { " optional" };
            format!("{} {}{required}", entry.name, entry.key)
        });
        (in_force.collect(), deferred.into_iter().map(|(id, why)| format!("{id}: {why}")).collect())
    }

    #[test]
    fn a_removed_entry_stays_and_a_new_one_is_added() {
        let old = "semaphores: [{name: a, prefix: p/a, limit: 1}, {name: b, prefix: p/b, limit: 1}]";
        let new = "semaphores: [{name: b, prefix: p/c, limit: 1}, {name: d, prefix: p/d, limit: 1, required: false}]";
        let (in_force, deferred) = reloaded(old, new);
        assert_eq!(in_force, ["d p/d optional", "a p/a", "b p/b"]);
        let kept = "no longer configured so; kept until an explicit reload or the drain";
        assert_eq!(
            deferred,
            [
                format!("semaphore p/a: {kept}"),
                format!("semaphore p/b: {kept}, and b (p/c) must wait for that"),
            ]
        );
    }

    #[test]
    fn the_hold_time_of_the_drain_is_not_shortened() {
        let drains = |new: &str, until| {
            let entries = "semaphores: [{name: a, prefix: p/a, limit: 1}]";
            let old = config(&format!("{entries}\ndrain: {{hold: 5s}}"));
            let mut new = config(&format!("{entries}\n{new}"));
            defer(until, &old, &BTreeSet::new(), &mut new);
            new.drain.hold.as_secs()
        };
        for until in [Until::Asked, Until::WorkloadEnds] {
            assert_eq!((drains("", until), drains("drain: {hold: 9s}", until)), (5, 9));
        }
    }

    #[test]
    fn a_left_out_entry_restores_its_predecessor() {
        // The new configuration removes the first entry and gives its name to the second one.
        let old = "semaphores: [{name: a, prefix: p/a, limit: 1}, {name: b, prefix: p/b, limit: 1}]";
        let (in_force, deferred) = reloaded(old, "semaphores: [{name: a, prefix: p/b, limit: 1}]");
        assert_eq!((in_force, deferred.len()), (vec!["a p/a".to_owned(), "b p/b".into()], 2));
        // A swap of names alone is no conflict.
        let (in_force, deferred) =
            reloaded(old, "semaphores: [{name: b, prefix: p/a, limit: 1}, {name: a, prefix: p/b, limit: 1}]");
        assert_eq!((in_force, deferred.len()), (vec!["b p/a".to_owned(), "a p/b".into()], 0));
    }

    #[test]
    fn another_kind_or_mode_and_a_path_below_are_deferred() {
        let held = "semaphores: [{name: a, prefix: p, limit: 1}]";
        for new in [
            "semaphores: [{name: a, prefix: p, limit: 1, mode: on_demand}]",
            "locks: [{name: b, key: p}]",
            "locks: [{name: b, key: p/x}]",
            "semaphores: [{name: A, prefix: q, limit: 1}]",
        ] {
            let (in_force, deferred) = reloaded(held, new);
            assert_eq!((in_force, deferred.len()), (vec!["a p".to_owned()], 1), "{new}: {deferred:?}");
        }
        // A lock's key may be below another lock's.
        let lock = "locks: [{name: a, key: p}]";
        assert_eq!(reloaded(lock, "locks: [{name: b, key: p/x}]").0, ["b p/x optional", "a p"]);
        let locks = "locks: [{name: a, key: p}, {name: b, key: p/x}]";
        assert_eq!(reloaded(locks, "locks: [{name: c, key: q}]").0, ["c q optional", "a p", "b p/x"]);
    }

    #[test]
    fn required_and_wait_stay_unchanged() {
        let old =
            "semaphores: [{name: a, prefix: a, limit: 1}, {name: b, prefix: b, limit: 1, required: false}]";
        let new = "semaphores: [{name: a, prefix: a, limit: 1, required: false, wait: 5s}, {name: b, prefix: b, limit: 1}, \
                   {name: c, prefix: c, limit: 1, wait: 5s}]";
        let (in_force, deferred) = reloaded(old, new);
        assert_eq!(in_force, ["a a", "b b optional", "c c optional"]);
        assert_eq!(
            deferred,
            [
                "semaphore a: required: false and wait: 5s takes effect by an explicit reload",
                "semaphore b: required: true takes effect by an explicit reload",
                "semaphore c: required: true takes effect by an explicit reload",
            ]
        );
    }

    #[test]
    fn a_pending_entry_may_be_removed_and_stays_required() {
        let old = config("semaphores: [{name: a, prefix: a, limit: 1}, {name: b, prefix: b, limit: 1}]");
        let pending: BTreeSet<_> = old.entries().map(|entry| entry.id()).collect();
        let mut new = config("semaphores: [{name: b, prefix: b, limit: 1}]");
        assert_eq!(defer(Until::Asked, &old, &pending, &mut new), Deferred::new());
        assert!(new.semaphores[0].entry.required && new.semaphores.len() == 1);
    }

    /// The entries of a configuration, some of which may conflict.
    fn any_entries() -> impl Strategy<Value = String> {
        let name = prop::sample::select(vec!["a", "b", "c", "d"]);
        let key = prop::sample::select(vec!["p", "p/x", "p/x/y", "q", "r"]);
        let kind = prop::sample::select(vec!["semaphores", "locks"]);
        let rest = prop::sample::select(vec!["", ", required: false", ", mode: on_demand"]);
        prop::collection::vec((kind, name, key, rest), 1..5).prop_map(|all| {
            let list = |wanted: &str| {
                let (place, limit) = if wanted == "locks" { ("key", "") } else { ("prefix", ", limit: 1") };
                let all = all.iter().filter(|(kind, ..)| *kind == wanted);
                let entry = |(_, name, key, rest): &(_, &str, &str, &str)| {
                    format!("{{name: {name}, {place}: {key}{limit}{rest}}}")
                };
                format!("{wanted}: [{}]\n", all.map(entry).collect::<Vec<_>>().join(", "))
            };
            format!("control: {{listen: 'unix:/c'}}\n{}{}", list("semaphores"), list("locks"))
        })
    }

    fn valid(entries: &str) -> Result<Config, TestCaseError> {
        let loaded = config::parse("test", entries, &Overrides::default(), &Environment::default());
        loaded.map(|loaded| loaded.config).map_err(|_| TestCaseError::reject("conflicting entries"))
    }

    proptest! {
        #![proptest_config(ProptestConfig { max_global_rejects: 100_000, ..ProptestConfig::with_cases(300) })]
        #[test]
        fn no_slot_is_released_and_no_entries_conflict(old in any_entries(), new in any_entries()) {
            let (old, wanted) = (valid(&old)?, valid(&new)?);
            let mut new = wanted.clone();
            defer(Until::Asked, &old, &BTreeSet::new(), &mut new);
            let all: Vec<_> = new.entries().collect();
            for (index, one) in all.iter().enumerate() {
                prop_assert!(!all[..index].iter().any(|other| conflict(one, other)), "{:?}", all);
            }
            let required = |config: &Config| -> BTreeSet<_> {
                config.entries().filter(|entry| entry.is_required()).map(|entry| entry.id()).collect()
            };
            prop_assert_eq!(required(&old), required(&new));
            let mut again = new.clone();
            let changes = compare(&old, &BTreeSet::new(), &mut again);
            prop_assert_eq!(changes.removed().count(), 0);
            // A second automatic reload of the same configuration changes nothing.
            let mut twice = wanted.clone();
            defer(Until::Asked, &new, &BTreeSet::new(), &mut twice);
            let in_force = |config: &Config| -> BTreeSet<_> {
                config.entries().map(|entry| (entry.id(), entry.name.to_owned(), entry.is_required())).collect()
            };
            prop_assert_eq!(in_force(&new), in_force(&twice));
        }
    }
}
