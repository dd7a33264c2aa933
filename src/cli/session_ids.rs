//! Session ids in tables: abbreviated if that is unambiguous.

use std::collections::BTreeSet;

use super::cells::cell;

/// Characters of an abbreviated id; `evict` accepts them.
const SHORT: usize = 8;

/// The ids of the sessions of a table.
pub(super) struct SessionIds<'a> {
    /// All of them in order, if they may be abbreviated: those with the same first characters are neighbours.
    all: Option<BTreeSet<&'a str>>,
}

impl<'a> SessionIds<'a> {
    /// The ids, which are abbreviated if `short`.
    pub(super) fn of(ids: impl IntoIterator<Item = &'a str>, short: bool) -> Self {
        Self { all: short.then(|| ids.into_iter().collect()) }
    }

    /// The cell of an id.
    pub(super) fn cell(&self, id: &str) -> String {
        let begin: String = id.chars().take(SHORT).collect();
        let is_alone = |all: &BTreeSet<&str>| {
            let alike = all.range(begin.as_str()..).take_while(|other| other.starts_with(&begin));
            alike.count() == 1
        };
        cell(Some(if self.all.as_ref().is_some_and(is_alone) { &begin } else { id }))
    }
}
