//! `slotkeeper destroy`: deletes a semaphore without holders, or a free lock.

use clap::Args;
use serde_json::json;

use super::cells::{counted, describe};
use super::change::Change;
use super::consent::Consent;
use super::table::NONE;
use super::{Exit, run_requests};
use crate::escape::printable;
use crate::operator::{self, Changed, Error, Place, Watch};
use slotkeeper_semaphore::{LockKeyState, SessionId, View, plan};

/// Delete a semaphore without holders, or a free lock.
///
/// Deletes `.lock` with the stored limit, and the contender keys that ended sessions left. For a single-key lock, deletes its key,
/// which `behavior: release` leaves behind. Refused while there is a holder, a waiter or a dead holder, and if a client arrives
/// during the deletion. The next client creates the semaphore again with its own configured limit. Asks for confirmation, or
/// needs --yes.
#[derive(Debug, Args)]
pub(super) struct Destroy {
    #[command(flatten)]
    change: Change,
    #[command(flatten, next_help_heading = None)]
    consent: Consent,
}

impl Destroy {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let (client, prefix) = self.change.target()?;
        run_requests(&client, async {
            let snapshot = Watch::new(&client, &prefix).next().await?;
            let lock = snapshot.lock();
            let view = lock.as_ref().unwrap_or(&snapshot.view);
            if view.lock == LockKeyState::Missing {
                plan::check_visible(view).map_err(Error::Denied)?;
                let what = format!("no semaphore and no lock at {}", printable(&prefix));
                return Err(Error::Missing(what).into());
            }
            let (key, index) = (view.lock_key(), view.lock_index());
            let inspection = snapshot.inspect();
            let known = |session: &SessionId| {
                let one = inspection.all().find(|one| one.id() == session.as_str())?;
                Some(describe(one)).filter(|who| who != NONE)
            };
            let plan =
                |view: &View| plan::destroy(view, index, &known).map_err(|why| Error::of_plan(view, why));
            plan(view)?;
            if let Some(exit) = self.consent.refused(&intention(view, snapshot.others_below())).await? {
                return Ok(exit);
            }
            let place = if lock.is_some() { Place::lock(&key) } else { Place::semaphore(&prefix) };
            let Changed { before, after, .. } = operator::change(&client, &place, plan).await?;
            let done = json!({
                "limit": before.record().map(|record| record.limit),
                "leftovers_removed": before.leftovers.len().saturating_sub(after.leftovers.len()),
            });
            let line = format!("{} was deleted", printable(&key));
            self.change.print((&prefix, place.kind, &key), done, &line)?;
            Ok(Exit::Done)
        })
    }
}

/// What destroy deletes, in a line.
fn intention(view: &View, others: usize) -> String {
    let key = printable(&view.lock_key());
    let Some(record) = view.record() else {
        return format!("destroy deletes {key}, a free lock.");
    };
    let left = match view.leftovers.len() {
        0 => String::new(),
        left => format!(", and {} of ended sessions", counted(left, "contender key", "contender keys")),
    };
    let (one, several) = ("other key below the prefix stays", "other keys below the prefix stay");
    let others = if others == 0 { String::new() } else { format!(" {}.", counted(others, one, several)) };
    format!(
        "destroy deletes {key}, a semaphore with a limit of {} and no holders{left}. The next client creates it again, with \
         its own configured limit.{others}",
        record.limit
    )
}
