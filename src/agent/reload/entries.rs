//! Compares two lists of semaphores or locks. The prefix or key identifies an entry; its name may change.

use std::collections::BTreeSet;

use crate::config::{Acquire, Entry, Kind, Mode, Semaphore};
use slotkeeper_semaphore::Name;

/// A semaphore or a lock of the configuration.
pub(super) trait ConfigEntry: Clone + PartialEq {
    /// The key of its list.
    const LIST: &'static str;

    fn entry(&self) -> &Entry;

    fn entry_mut(&mut self) -> &mut Entry;

    /// The first field that differs and that a running machine cannot change, and what to do. An entry on demand has a machine for
    /// each lease, which keeps its settings.
    fn fixed_field(&self, wanted: &Self, group: Group) -> Option<(&'static str, &'static str)>;

    /// The fields that differ, besides the name.
    fn changed_fields(&self, wanted: &Self) -> Vec<&'static str>;
}

/// The acquire group of the running agent.
#[derive(Clone, Copy)]
pub(super) struct Group {
    pub(super) acquire: Acquire,
    /// Whether the new configuration has different waits or priorities in it.
    pub(super) is_uneven: bool,
}

/// The changes of a list's entries.
#[derive(Debug, PartialEq)]
pub(in crate::agent) struct Difference<E> {
    /// To add, as soon as no obstacle is left.
    pub(in crate::agent) added: Vec<E>,
    /// To release, or to lend no longer.
    pub(in crate::agent) removed: Vec<E>,
    /// Renamed, each with its old name.
    pub(in crate::agent) renamed: Vec<(String, E)>,
    /// With changed settings.
    pub(in crate::agent) changed: Vec<E>,
}

impl<E> Default for Difference<E> {
    fn default() -> Self {
        Self { added: Vec::new(), removed: Vec::new(), renamed: Vec::new(), changed: Vec::new() }
    }
}

/// The report of a comparison, for people.
pub(super) struct Report<'a> {
    /// The keys of the changes.
    pub(super) fields: &'a mut Vec<String>,
    /// The refused changes, each with what to do.
    pub(super) refused: &'a mut Vec<String>,
}

/// Compares two lists, and resets in `new` each setting that cannot change. The entries of `old` that are `pending` have not
/// been added yet.
pub(super) fn difference<E: ConfigEntry>(
    old: &[E],
    pending: &BTreeSet<Name>,
    new: &mut [E],
    group: Group,
    report: &mut Report<'_>,
) -> Difference<E> {
    let old: Vec<&E> = old.iter().filter(|had| !pending.contains(&had.entry().id())).collect();
    let had: Vec<_> = old.iter().map(|had| had.entry()).collect();
    let wanted: Vec<_> = new.iter().map(E::entry).collect();
    let of_key = |key: &str| old.iter().copied().find(|had| had.entry().key == key);
    let pair =
        |one: &&Entry| predecessor(one, &had, &wanted, group.acquire).and_then(|entry| of_key(&entry.key));
    let pairs: Vec<Option<&E>> = wanted.iter().map(pair).collect();
    let is_kept = |had: &E| pairs.iter().flatten().any(|kept| kept.entry().key == had.entry().key);
    let removed = old.iter().filter(|had| !is_kept(had)).map(|had| (*had).clone()).collect();
    let mut difference = Difference { removed, ..Difference::default() };
    for (wanted, had) in new.iter_mut().zip(pairs) {
        let Some(had) = had else {
            difference.added.push(wanted.clone());
            continue;
        };
        let name = wanted.entry().name.clone();
        if let Some((field, advice)) = had.fixed_field(wanted, group) {
            report.refused.push(format!("{}: {name}: {field} cannot change {advice}", E::LIST));
            *wanted = had.clone();
            wanted.entry_mut().name.clone_from(&name);
        }
        let fields = had.changed_fields(wanted);
        if !fields.is_empty() {
            report.fields.extend(fields.iter().map(|field| format!("{name}.{field}")));
            difference.changed.push(wanted.clone());
        }
        if had.entry().name != name {
            difference.renamed.push((had.entry().name.clone(), wanted.clone()));
        }
    }
    difference
}

/// The entry that `wanted` continues: the one with its prefix or key. One with the same name continues it too, if only its prefix or
/// key has changed and no slot is released for that: an entry on demand holds none itself, and a member of a group keeps its own.
pub(super) fn predecessor<'e>(
    wanted: &Entry,
    old: &[&'e Entry],
    new: &[&Entry],
    acquire: Acquire,
) -> Option<&'e Entry> {
    let mut old = old.iter().copied().filter(|had| had.kind == wanted.kind);
    if let Some(had) = old.clone().find(|had| had.key == wanted.key) {
        return Some(had).filter(|had| had.mode == wanted.mode);
    }
    let is_gone = |had: &Entry| !new.iter().any(|other| (other.kind, &other.key) == (had.kind, &had.key));
    let on_demand = |had: &Entry| wanted.mode == Mode::OnDemand && had.mode == Mode::OnDemand;
    let joins_group = |one: &Entry| acquire.written.is_some() && acquire.together && one.is_required();
    let stays = |had: &Entry| on_demand(had) || joins_group(had) && joins_group(wanted);
    old.find(|had| had.name == wanted.name && stays(had) && is_gone(had))
}

/// The fields that differ, with those that the kind has besides. The patterns here have no `..`, so that no key is forgotten. A new
/// name is a rename, and a new mode makes another entry.
fn changed_fields(had: &Entry, wanted: &Entry, besides: &[(&'static str, bool)]) -> Vec<&'static str> {
    let Entry { kind, name: _, mode: _, key, required, wait, on_lost, body } = had;
    let key_name = match kind {
        Kind::Semaphore => "prefix",
        Kind::Lock => "key",
    };
    let first = [(key_name, *key != wanted.key)];
    let last = [
        ("required", *required != wanted.required),
        ("wait", *wait != wanted.wait),
        ("on_lost", *on_lost != wanted.on_lost),
        ("body", *body != wanted.body),
    ];
    let fields = first.iter().chain(besides).chain(&last);
    fields.filter(|(_, differs)| *differs).map(|(field, _)| *field).collect()
}

impl ConfigEntry for Semaphore {
    const LIST: &'static str = "semaphores";

    fn entry(&self) -> &Entry {
        &self.entry
    }

    fn entry_mut(&mut self) -> &mut Entry {
        &mut self.entry
    }

    fn fixed_field(&self, wanted: &Self, group: Group) -> Option<(&'static str, &'static str)> {
        const RUNNING: &str =
            "while it is held or waited for; remove the entry, reload, add it again and reload";
        // A new member cannot be acquired while the others are held, `required` selects the members, and a group has one place in
        // all queues.
        const MEMBER: &str = "under `acquire: together`; restart the agent";
        let Group { acquire, is_uneven } = group;
        // By default an entry may be required without being a member.
        let selects = acquire.together && (acquire.written.is_some() || self.entry.required);
        let differs = [
            ("slots", RUNNING, self.slots != wanted.slots),
            ("prefix", MEMBER, self.entry.key != wanted.entry.key),
            ("required", MEMBER, selects && self.entry.required != wanted.entry.required),
            ("wait", MEMBER, is_uneven && self.entry.wait != wanted.entry.wait),
            ("priority", MEMBER, is_uneven && self.priority != wanted.priority),
        ];
        let is_held = self.entry.mode == Mode::Hold;
        let first = differs.into_iter().find(|(.., differs)| is_held && *differs);
        first.map(|(field, advice, _)| (field, advice))
    }

    fn changed_fields(&self, wanted: &Self) -> Vec<&'static str> {
        let Self { entry, limit, slots, priority, limit_policy, prune_delay, format } = self;
        let besides = [
            ("slots", *slots != wanted.slots),
            ("limit", *limit != wanted.limit),
            ("priority", *priority != wanted.priority),
            ("limit_policy", *limit_policy != wanted.limit_policy),
            ("prune_delay", *prune_delay != wanted.prune_delay),
            ("format", *format != wanted.format),
        ];
        changed_fields(entry, &wanted.entry, &besides)
    }
}

/// A lock has no more than the entry.
impl ConfigEntry for Entry {
    const LIST: &'static str = "locks";

    fn entry(&self) -> &Entry {
        self
    }

    fn entry_mut(&mut self) -> &mut Entry {
        self
    }

    fn fixed_field(&self, _: &Self, _: Group) -> Option<(&'static str, &'static str)> {
        None
    }

    fn changed_fields(&self, wanted: &Self) -> Vec<&'static str> {
        changed_fields(self, wanted, &[])
    }
}
