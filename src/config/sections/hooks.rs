//! The section `hooks`.

use crate::config::fields::Fields;
use crate::config::kinds::text;

/// Commands that run when slots are acquired or lost, each with its arguments and never empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hooks {
    /// After a slot has been acquired.
    pub on_acquired: Option<Vec<String>>,
    /// After a slot has been lost.
    pub on_lost: Option<Vec<String>>,
    /// After the owner of a lock has changed, also to none.
    pub on_leader_changed: Option<Vec<String>>,
}

impl Hooks {
    pub(super) fn read(f: &mut Fields<'_>) -> Self {
        Self {
            on_acquired: command("on_acquired", f),
            on_lost: command("on_lost", f),
            on_leader_changed: command("on_leader_changed", f),
        }
    }

    /// The commands, by their keys.
    pub fn commands(&self) -> impl Iterator<Item = (&'static str, &Vec<String>)> {
        let Self { on_acquired, on_lost, on_leader_changed } = self;
        let all =
            [("on_acquired", on_acquired), ("on_lost", on_lost), ("on_leader_changed", on_leader_changed)];
        all.into_iter().filter_map(|(key, command)| Some((key, command.as_ref()?)))
    }
}

/// A command and its arguments: a list, so that no shell splits it.
fn command(key: &'static str, f: &mut Fields<'_>) -> Option<Vec<String>> {
    let words = f.list(key, "a list such as [command, argument]", usize::MAX, text);
    let written = f.value(key)?;
    if written.as_sequence().is_some_and(|words| words.first().is_none_or(|word| word == "")) {
        f.fault(key, "names no command; write [command, argument] or remove it");
    }
    Some(words)
}
