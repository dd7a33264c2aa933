//! `slotkeeper prune`: prunes dead holders at once.

use std::collections::BTreeSet;

use clap::Args;
use serde::Serialize;

use super::consent::Consent;
use super::operator_flags::OperatorFlags;
use super::row::{LetIn, NONE, Row, cell, counted, holds};
use super::sessions::lock_or_prefix;
use super::{Exit, print_result, run_requests};
use crate::clock;
use crate::escape::printable;
use crate::operator::{self, Changed, Error, Health, Part, Participant, Place, Watch};
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
    /// Print what was done as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    consent: Consent,
    #[command(flatten)]
    consul: OperatorFlags,
}

/// The result.
#[derive(Debug, Default, Serialize)]
struct Done {
    prefix: String,
    dropped: Vec<Row>,
    let_in: Vec<LetIn>,
    /// Contender keys of ended sessions that were removed.
    swept: usize,
}

impl Prune {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let client = self.consul.client()?;
        run_requests(&client, async {
            let snapshot = Watch::new(&client, &self.prefix).next().await?;
            plan::existing_record(&snapshot.view).map_err(|why| Error::of_plan(&snapshot.view, why))?;
            let dead: Vec<_> =
                snapshot.participants().into_iter().filter(|one| one.role.state == Part::Dead).collect();
            let leftovers = snapshot.view.leftovers.len();
            if dead.is_empty() && leftovers == 0 {
                let nothing = Done { prefix: self.prefix, ..Done::default() };
                print_result(&nothing, self.json, Done::describe)?;
                return Ok(Exit::Done);
            }
            if let Some(exit) = self.consent.refused(&intention(&self.prefix, &dead, leftovers)).await? {
                return Ok(exit);
            }
            let whom: BTreeSet<SessionId> = dead.iter().map(|one| one.id.clone()).collect();
            let plan = |view: &View| {
                let now = clock::now();
                plan::prune(view, &whom, &clock::wall().text(now), now)
                    .map_err(|why| Error::of_plan(view, why))
            };
            let changed = operator::change(&client, &Place::Semaphore(self.prefix.clone()), plan).await?;
            print_result(&Done::of(&self.prefix, dead, &changed), self.json, Done::describe)?;
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
    parts.push(match (one.health, &one.session) {
        (_, Some(session)) => {
            format!("its session is live: {} on {}", cell(Some(&session.name)), cell(Some(&session.node)))
        }
        (Health::Ended, None) => "its session has ended".into(),
        (Health::Live | Health::Unknown, None) => "its session is not shown by Consul".into(),
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
        let is_dropped = |one: &Participant| holds(before, &one.id) && !holds(after, &one.id);
        let remain = |key: &str| after.leftovers.iter().any(|leftover| leftover.key == key);
        Self {
            prefix: prefix.to_owned(),
            dropped: dead.into_iter().filter(is_dropped).map(Row::from).collect(),
            let_in: LetIn::all(before, after),
            swept: before.leftovers.iter().filter(|leftover| !remain(&leftover.key)).count(),
        }
    }

    /// In a line.
    fn describe(&self) -> String {
        let prefix = printable(&self.prefix);
        if self.dropped.is_empty() && self.swept == 0 {
            return format!("{prefix}: no dead holders; nothing to do");
        }
        let mut parts = Vec::new();
        if !self.dropped.is_empty() {
            parts.push(format!("{} pruned", counted(self.dropped.len(), "dead holder", "dead holders")));
            parts.push(LetIn::counted(&self.let_in));
        }
        if self.swept > 0 {
            parts.push(format!("{} removed", counted(self.swept, "contender key", "contender keys")));
        }
        format!("{prefix}: {}", parts.join("; "))
    }
}
