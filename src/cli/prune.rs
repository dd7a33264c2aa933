//! `slotkeeper prune`: prunes dead holders at once.

use std::collections::BTreeSet;

use clap::Args;
use serde::Serialize;

use super::consent::Consent;
use super::operator_flags::OperatorFlags;
use super::output::ResultOutput;
use super::row::{NewHolder, Row, cell, counted, holds};
use super::sessions::lock_or_prefix;
use super::table::NONE;
use super::{Exit, run_requests};
use crate::clock;
use crate::escape::printable;
use crate::operator::{self, Changed, Error, Part, Participant, Place, Watch};
use crate::schema_version::SchemaVersion;
use crate::status::Kind;
use slotkeeper_semaphore::{SessionId, View, plan};

/// The most dead holders that the confirmation lists.
const NAMED: usize = 20;

/// Prune a semaphore's dead holders now.
///
/// A holder is dead if `.lock` lists it and it has no locked key below the prefix: its session has ended. Every client prunes it
/// after its own `prune_delay`; this command does so at once. The same write grants the slots to the next waiters in order. Prune also
/// removes the contender keys that ended sessions left. It prunes only holders that the confirmation lists and that are still dead.
/// Asks for confirmation, or needs --yes.
#[derive(Debug, Args)]
pub(super) struct Prune {
    /// The semaphore's prefix in Consul's key-value store. `.lock` at its end can be omitted.
    #[arg(value_parser = lock_or_prefix)]
    prefix: String,
    #[command(flatten)]
    output: ResultOutput,
    #[command(flatten)]
    consent: Consent,
    #[command(flatten)]
    consul: OperatorFlags,
}

/// The result.
#[derive(Debug, Default, Serialize)]
pub(super) struct Done {
    schema_version: SchemaVersion,
    kind: Kind,
    prefix: String,
    /// The key that coordinates the clients.
    key: String,
    /// The dead holders that were pruned.
    pruned: Vec<Row>,
    /// The waiters that acquired slots by it.
    new_holders: Vec<NewHolder>,
    /// Contender keys of ended sessions that were removed.
    leftovers_removed: usize,
}

impl Prune {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let (client, prefix) = self.consul.target(&self.prefix)?;
        run_requests(&client, async {
            let snapshot = Watch::new(&client, &prefix).next().await?;
            plan::existing_record(&snapshot.view).map_err(|why| Error::of_plan(&snapshot.view, why))?;
            let dead: Vec<_> =
                snapshot.participants().into_iter().filter(|one| one.role.state == Part::Dead).collect();
            let leftovers = snapshot.view.leftovers.len();
            if dead.is_empty() && leftovers == 0 {
                let nothing = Done { prefix, key: snapshot.view.lock_key(), ..Done::default() };
                self.output.print(&nothing, Done::describe)?;
                return Ok(Exit::Done);
            }
            if let Some(exit) = self.consent.refused(&intention(&prefix, &dead, leftovers)).await? {
                return Ok(exit);
            }
            let whom: BTreeSet<SessionId> = dead.iter().map(|one| one.id.clone()).collect();
            let plan = |view: &View| {
                let now = clock::now();
                plan::prune(view, &whom, &clock::wall().text(now), now)
                    .map_err(|why| Error::of_plan(view, why))
            };
            let changed = operator::change(&client, &Place::Semaphore(prefix.clone()), plan).await?;
            self.output.print(&Done::of(&prefix, dead, &changed), Done::describe)?;
            Ok(Exit::Done)
        })
    }
}

/// A dead holder, the time of its acquisition, and the state of its session.
fn named(one: &Participant) -> String {
    let row = Row::from(one.clone());
    let mut parts = Vec::new();
    parts.extend(Some(row.describe()).filter(|who| who != NONE));
    parts.extend(one.role.since.as_deref().map(|since| format!("held since {}", printable(since))));
    parts.push(match (one.hidden, &one.session) {
        (_, Some(session)) => {
            format!("its session is live: {} on {}", cell(Some(&session.name)), cell(Some(&session.node)))
        }
        (false, None) => "its session has ended".into(),
        (true, None) => "its session is not shown by Consul".into(),
    });
    format!("  {}  {}", printable(&row.session), parts.join(", "))
}

/// What prune changes, in a few lines.
fn intention(prefix: &str, dead: &[Participant], leftovers: usize) -> String {
    let mut lines = Vec::new();
    if !dead.is_empty() {
        let slots: u32 = dead.iter().filter_map(|one| one.role.slots).sum();
        lines.push(format!(
            "prune removes {}, with {}, from {}/.lock:",
            counted(dead.len(), "dead holder", "dead holders"),
            counted(slots as usize, "slot", "slots"),
            printable(prefix)
        ));
        lines.extend(dead.iter().take(NAMED).map(named));
        if dead.len() > NAMED {
            lines.push(format!("  … and {} more", dead.len() - NAMED));
        }
        lines.push(
            "Their slots are free at once. The work of a foreign client may still run, and so may that of a client whose session \
             was ended by a node or a check, and not by its TTL."
                .into(),
        );
    }
    if leftovers > 0 {
        let what = counted(leftovers, "contender key", "contender keys");
        lines.push(format!("prune removes {what} of ended sessions below {}/.", printable(prefix)));
    }
    lines.join("\n")
}

impl Done {
    fn of(prefix: &str, dead: Vec<Participant>, changed: &Changed) -> Self {
        let Changed { before, after } = changed;
        let is_pruned = |one: &Participant| holds(before, &one.id) && !holds(after, &one.id);
        let remain = |key: &str| after.leftovers.iter().any(|leftover| leftover.key == key);
        Self {
            schema_version: SchemaVersion::default(),
            kind: Kind::Semaphore,
            prefix: prefix.to_owned(),
            key: after.lock_key(),
            pruned: dead.into_iter().filter(is_pruned).map(Row::from).collect(),
            new_holders: NewHolder::all(before, after),
            leftovers_removed: before.leftovers.iter().filter(|leftover| !remain(&leftover.key)).count(),
        }
    }

    /// In a line.
    fn describe(&self) -> String {
        let prefix = printable(&self.prefix);
        if self.pruned.is_empty() && self.leftovers_removed == 0 {
            return format!("{prefix}: no dead holders; nothing to do");
        }
        let mut parts = Vec::new();
        if !self.pruned.is_empty() {
            parts.push(format!("{} pruned", counted(self.pruned.len(), "dead holder", "dead holders")));
            parts.push(NewHolder::counted(&self.new_holders));
        }
        if self.leftovers_removed > 0 {
            parts.push(format!(
                "{} removed",
                counted(self.leftovers_removed, "contender key", "contender keys")
            ));
        }
        format!("{prefix}: {}", parts.join("; "))
    }
}
