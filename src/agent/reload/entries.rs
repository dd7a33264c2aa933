//! How the entries of a list differ: of semaphores, or of locks.

use crate::config::{Lock, Mode, Semaphore};

/// What both have in common.
pub(super) trait Entry: Clone + PartialEq {
    /// The list that it stands in.
    const LIST: &'static str;

    fn name(&self) -> &str;

    /// Where it is in Consul.
    fn key(&self) -> &str;

    fn mode(&self) -> Mode;

    /// Whether it is among those that are taken together, where any are.
    fn is_of_the_party(&self) -> bool;

    /// The first field that differs and that a machine cannot take over. What is taken on demand has a machine only for
    /// each lease, which keeps what it was granted with.
    fn fixed_field(&self, wanted: &Self) -> Option<&'static str>;

    /// The fields that differ.
    fn changed_fields(&self, wanted: &Self) -> Vec<&'static str>;
}

/// What a list's entries have become.
#[derive(Debug, PartialEq)]
pub(in crate::agent) struct Difference<E> {
    /// To be asked for.
    pub(in crate::agent) added: Vec<E>,
    /// The names of those to be given back.
    pub(in crate::agent) removed: Vec<String>,
    /// Those whose terms have changed.
    pub(in crate::agent) changed: Vec<E>,
}

impl<E> Default for Difference<E> {
    fn default() -> Self {
        Self { added: Vec::new(), removed: Vec::new(), changed: Vec::new() }
    }
}

/// What people are told of it.
pub(super) struct Told<'a> {
    /// The keys of what has changed.
    pub(super) fields: &'a mut Vec<String>,
    /// What stays as it was, each with what to do.
    pub(super) refused: &'a mut Vec<String>,
}

/// Compares two lists, and brings `new` back to `old` in whatever cannot change.
pub(super) fn difference<E: Entry>(
    old: &[E],
    new: &mut Vec<E>,
    together: bool,
    is_leaving: &impl Fn(&str, &str, Mode) -> bool,
    told: &mut Told<'_>,
) -> Difference<E> {
    let mut difference = Difference::default();
    let mut kept: Vec<E> = Vec::new();
    for mut wanted in std::mem::take(new) {
        let (list, name) = (E::LIST, wanted.name().to_owned());
        match old.iter().find(|had| had.name() == name) {
            Some(had) => {
                if let Some(field) = had.fixed_field(&wanted) {
                    told.refused.push(format!(
                        "{list}: {name}: {field} cannot change while it is held or waited for; remove the entry, reload, add \
                         it again and reload"
                    ));
                    wanted = had.clone();
                } else if *had != wanted {
                    told.fields.extend(had.changed_fields(&wanted).iter().map(|field| format!("{name}.{field}")));
                    difference.changed.push(wanted.clone());
                }
                kept.push(wanted);
            }
            None if is_leaving(&name, wanted.key(), wanted.mode()) => told
                .refused
                .push(format!("{list}: {name} is still being given back; reload again in a moment")),
            // Those that are held would have to be given back first.
            None if together && wanted.is_of_the_party() => told.refused.push(format!(
                "{list}: {name} cannot be acquired together with what is held already; restart, or make it not required"
            )),
            None => {
                difference.added.push(wanted.clone());
                kept.push(wanted);
            }
        }
    }
    let is_kept = |had: &&E| !kept.iter().any(|wanted| wanted.name() == had.name());
    difference.removed = old.iter().filter(is_kept).map(|had| had.name().to_owned()).collect();
    *new = kept;
    difference
}

/// The names of those that differ.
fn differing<const N: usize>(fields: [(&'static str, bool); N]) -> Vec<&'static str> {
    fields.into_iter().filter(|(_, differs)| *differs).map(|(field, _)| field).collect()
}

impl Entry for Semaphore {
    const LIST: &'static str = "semaphores";

    fn name(&self) -> &str {
        &self.name
    }

    fn key(&self) -> &str {
        &self.prefix
    }

    fn mode(&self) -> Mode {
        self.mode
    }

    fn is_of_the_party(&self) -> bool {
        self.required
    }

    fn fixed_field(&self, wanted: &Self) -> Option<&'static str> {
        let held = self.mode == Mode::Hold;
        let fields = [
            ("mode", self.mode != wanted.mode),
            ("prefix", held && self.prefix != wanted.prefix),
            ("slots", held && self.slots != wanted.slots),
        ];
        differing(fields).first().copied()
    }

    fn changed_fields(&self, wanted: &Self) -> Vec<&'static str> {
        differing([
            ("prefix", self.prefix != wanted.prefix),
            ("slots", self.slots != wanted.slots),
            ("limit", self.limit != wanted.limit),
            ("priority", self.priority != wanted.priority),
            ("required", self.required != wanted.required),
            ("wait", self.wait != wanted.wait),
            ("on_lost", self.on_lost != wanted.on_lost),
            ("limit_policy", self.limit_policy != wanted.limit_policy),
            ("prune_delay", self.prune_delay != wanted.prune_delay),
            ("format", self.format != wanted.format),
            ("body", self.body != wanted.body),
        ])
    }
}

impl Entry for Lock {
    const LIST: &'static str = "locks";

    fn name(&self) -> &str {
        &self.name
    }

    fn key(&self) -> &str {
        &self.key
    }

    fn mode(&self) -> Mode {
        self.mode
    }

    fn is_of_the_party(&self) -> bool {
        false
    }

    fn fixed_field(&self, wanted: &Self) -> Option<&'static str> {
        let held = self.mode == Mode::Hold;
        let fields = [("mode", self.mode != wanted.mode), ("key", held && self.key != wanted.key)];
        differing(fields).first().copied()
    }

    fn changed_fields(&self, wanted: &Self) -> Vec<&'static str> {
        differing([
            ("key", self.key != wanted.key),
            ("required", self.required != wanted.required),
            ("wait", self.wait != wanted.wait),
            ("on_lost", self.on_lost != wanted.on_lost),
            ("body", self.body != wanted.body),
        ])
    }
}
