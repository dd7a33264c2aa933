//! What `evict`, `prune`, `destroy` and `set-limit` have in common: a target, and a result.

use std::collections::BTreeSet;

use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};

use super::cells::{counted, in_brackets};
use super::operator_flags::{OperatorFlags, lock_or_prefix};
use super::output::ResultOutput;
use crate::escape::printable;
use crate::schema_version::SchemaVersion;
use crate::status::Kind;
use slotkeeper_consul::Client;
use slotkeeper_semaphore::{Identity, SessionId, View};

/// The target, and how to print the result.
#[derive(Debug, Args)]
pub(super) struct Change {
    /// Prefix of a semaphore, or key of a single-key lock, in Consul's key-value store. `.lock` at its end can be omitted.
    #[arg(value_parser = lock_or_prefix)]
    prefix: String,
    #[command(flatten)]
    output: ResultOutput,
    #[command(flatten)]
    consul: OperatorFlags,
}

impl Change {
    /// The client, and the prefix that is meant.
    pub(super) fn target(&self) -> anyhow::Result<(Client, String)> {
        self.consul.target(&self.prefix)
    }

    /// Whether the result is printed as a document.
    pub(super) fn prints_document(&self) -> bool {
        self.output.document().is_some()
    }

    /// Prints what was done at a prefix to what is coordinated by `key`: a document with the fields of `done`, or `line`.
    pub(super) fn print(
        &self,
        (prefix, kind, key): (&str, Kind, &str),
        done: Value,
        line: &str,
    ) -> anyhow::Result<()> {
        let mut outcome =
            json!({"schema_version": SchemaVersion::default(), "kind": kind, "prefix": prefix, "key": key});
        if let (Value::Object(outcome), Value::Object(done)) = (&mut outcome, done) {
            outcome.extend(done);
        }
        self.output.print(&outcome, |_| line.to_owned())
    }
}

/// A participant that acquired slots by a change.
#[derive(Debug, Serialize)]
pub(super) struct NewHolder {
    session: String,
    /// Its slots; `null` for a lock.
    slots: Option<u32>,
    slot_indexes: Vec<u32>,
    who: Option<Identity>,
}

impl NewHolder {
    /// The holders after a change that were not holders before.
    pub(super) fn all(before: &View, after: &View) -> Vec<Self> {
        let listed = after.record().map(|record| record.holders.as_slice()).unwrap_or_default();
        let owner = after.single().and_then(|single| single.owner.as_ref());
        // A holder is listed once for each slot.
        let mut came = BTreeSet::new();
        let new_holder = |session: &SessionId| {
            let who = |view: &View| view.entry_of(session).map(|entry| entry.who.clone());
            Self {
                session: session.to_string(),
                slots: after.record().map(|record| record.slots_of(session)),
                slot_indexes: after.entry_of(session).map(|entry| entry.indexes.clone()).unwrap_or_default(),
                // A new holder from the handoff list has not written its key yet; its waiting entry describes it.
                who: [after, before].into_iter().filter_map(who).find(|who| *who != Identity::default()),
            }
        };
        let all = listed.iter().chain(owner).filter(|holder| !holds(before, holder) && came.insert(*holder));
        all.map(new_holder).collect()
    }

    /// The holder in words.
    pub(super) fn describe(&self) -> String {
        printable(&self.session) + &in_brackets(self.who.as_ref())
    }

    /// Their number in words.
    pub(super) fn counted(new: &[Self]) -> String {
        match new.len() {
            0 => "no slot was granted".into(),
            some => format!("slots were granted to {}", counted(some, "waiter", "waiters")),
        }
    }
}

/// Whether the session is listed as a holder, or holds the lock.
pub(super) fn holds(view: &View, session: &SessionId) -> bool {
    view.is_owner(session) || view.record().is_some_and(|record| record.slots_of(session) > 0)
}
