//! `slotkeeper prune`: prunes dead holders at once.

use std::collections::BTreeSet;

use clap::Args;
use serde_json::json;

use super::cells::{cell, counted, describe};
use super::change::{Change, NewHolder, holds};
use super::consent::Consent;
use super::table::NONE;
use super::{Exit, run_requests};
use crate::clock;
use crate::escape::printable;
use crate::operator::{self, Changed, Error, Participant, ParticipantState, Place, Watch};
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
    #[command(flatten)]
    change: Change,
    #[command(flatten, next_help_heading = None)]
    consent: Consent,
}

impl Prune {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let (client, prefix) = self.change.target()?;
        run_requests(&client, async {
            let snapshot = Watch::new(&client, &prefix).next().await?;
            plan::existing_record(&snapshot.view).map_err(|why| Error::of_plan(&snapshot.view, why))?;
            let mut dead = snapshot.inspect().holders;
            dead.retain(|one| one.state == ParticipantState::Dead);
            let leftovers = snapshot.view.leftovers.len();
            let target = (&*prefix, Kind::Semaphore, &*snapshot.view.lock_key());
            let print = |pruned: Vec<Participant>, new_holders: Vec<NewHolder>, leftovers| {
                let line =
                    format!("{}: {}", printable(&prefix), in_words(pruned.len(), &new_holders, leftovers));
                let done =
                    json!({"pruned": pruned, "new_holders": new_holders, "leftovers_removed": leftovers});
                self.change.print(target, done, &line).map(|()| Exit::Done)
            };
            if dead.is_empty() && leftovers == 0 {
                return print(Vec::new(), Vec::new(), 0);
            }
            if let Some(exit) = self.consent.refused(&intention(&prefix, &dead, leftovers)).await? {
                return Ok(exit);
            }
            let whom: BTreeSet<SessionId> = dead.iter().map(|one| one.id().into()).collect();
            let plan = |view: &View| {
                let now = clock::now();
                plan::prune(view, &whom, &clock::wall().text(now), now)
                    .map_err(|why| Error::of_plan(view, why))
            };
            let Changed { before, after, .. } =
                operator::change(&client, &Place::semaphore(&prefix), plan).await?;
            dead.retain(|one| holds(&before, &one.id().into()) && !holds(&after, &one.id().into()));
            let remains = |key: &str| after.leftovers.iter().any(|leftover| leftover.key == key);
            let removed = before.leftovers.iter().filter(|leftover| !remains(&leftover.key)).count();
            print(dead, NewHolder::all(&before, &after), removed)
        })
    }
}

/// A dead holder, the time of its acquisition, and the state of its session.
fn named(one: &Participant) -> String {
    let mut parts = Vec::new();
    parts.extend(Some(describe(one)).filter(|who| who != NONE));
    parts.extend(one.since.as_deref().map(|since| format!("held since {}", printable(since))));
    parts.push(match (&one.session.found, one.hidden) {
        (Some(session), _) => {
            format!("its session is live: {} on {}", cell(Some(&session.name)), cell(Some(&session.node)))
        }
        (None, false) => "its session has ended".into(),
        (None, true) => "its session is not shown by Consul".into(),
    });
    format!("  {}  {}", printable(one.id()), parts.join(", "))
}

/// What prune changes, in a few lines.
fn intention(prefix: &str, dead: &[Participant], leftovers: usize) -> String {
    let mut lines = Vec::new();
    let prefix = printable(prefix);
    if !dead.is_empty() {
        let slots: u32 = dead.iter().filter_map(|one| one.slots).sum();
        lines.push(format!(
            "prune removes {}, with {}, from {prefix}/.lock:",
            counted(dead.len(), "dead holder", "dead holders"),
            counted(slots as usize, "slot", "slots"),
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
        lines.push(format!("prune removes {what} of ended sessions below {prefix}/."));
    }
    lines.join("\n")
}

/// What was done, in a line.
fn in_words(pruned: usize, new_holders: &[NewHolder], leftovers: usize) -> String {
    let mut parts = Vec::new();
    if pruned > 0 {
        parts.push(format!("{} pruned", counted(pruned, "dead holder", "dead holders")));
        parts.push(NewHolder::counted(new_holders));
    }
    if leftovers > 0 {
        parts.push(format!("{} removed", counted(leftovers, "contender key", "contender keys")));
    }
    if parts.is_empty() { "no dead holders; nothing to do".into() } else { parts.join("; ") }
}
