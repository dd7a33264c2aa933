//! The section `hooks`.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::config::findings::Findings;
use crate::config::path::FieldPath;
use crate::config::scalar::Argv;

/// Commands that run when slots are acquired or lost.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct RawHooks {
    /// Command and arguments, run each time a slot has been acquired.
    on_acquired: Option<Argv>,
    /// Command and arguments, run each time a slot has been lost.
    pub(super) on_lost: Option<Argv>,
    /// Command and arguments, run each time the owner of one of `locks` changes, also to none.
    on_leader_changed: Option<Argv>,
}

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
    /// The commands, by their keys.
    pub fn commands(&self) -> impl Iterator<Item = (&'static str, &Vec<String>)> {
        let Self { on_acquired, on_lost, on_leader_changed } = self;
        let all =
            [("on_acquired", on_acquired), ("on_lost", on_lost), ("on_leader_changed", on_leader_changed)];
        all.into_iter().filter_map(|(key, command)| Some((key, command.as_ref()?)))
    }
}

impl RawHooks {
    pub(super) fn check(self, at: &FieldPath, findings: &mut Findings) -> Hooks {
        let Self { on_acquired, on_lost, on_leader_changed } = self;
        let mut command = |name: &str, argv: Option<Argv>| {
            let Argv(argv) = argv?;
            if argv.first().is_none_or(String::is_empty) {
                findings.fault(&at.key(name), "names no command; write [command, argument] or remove it");
            }
            Some(argv)
        };
        Hooks {
            on_acquired: command("on_acquired", on_acquired),
            on_lost: command("on_lost", on_lost),
            on_leader_changed: command("on_leader_changed", on_leader_changed),
        }
    }
}
