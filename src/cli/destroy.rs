//! `slotkeeper destroy`: deletes a semaphore without holders, or a free lock.

use clap::Args;
use serde::Serialize;

use super::consent::Consent;
use super::operator_flags::OperatorFlags;
use super::output::ResultOutput;
use super::row::{Row, counted};
use super::sessions::lock_or_prefix;
use super::table::NONE;
use super::{Exit, run_requests};
use crate::escape::printable;
use crate::operator::{self, Changed, Error, Place, Watch};
use crate::schema_version::SchemaVersion;
use crate::status::Kind;
use slotkeeper_semaphore::{LockKeyState, SessionId, View, plan};

/// Delete a semaphore without holders, or a free lock.
///
/// Deletes `.lock` with the stored limit, and the contender keys that ended sessions left. For a single-key lock, deletes its key,
/// which `behavior: release` leaves behind. Refused while there is a holder, a waiter or a dead holder, and if a client arrives
/// during the deletion. The next client creates the semaphore again with its own configured limit. Asks for confirmation, or
/// needs --yes.
#[derive(Debug, Args)]
pub(super) struct Destroy {
    /// Prefix of a semaphore, or key of a single-key lock, in Consul's key-value store. `.lock` at its end can be omitted.
    #[arg(value_parser = lock_or_prefix)]
    prefix: String,
    #[command(flatten)]
    output: ResultOutput,
    #[command(flatten)]
    consent: Consent,
    #[command(flatten)]
    consul: OperatorFlags,
}

impl Destroy {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let (client, prefix) = self.consul.target(&self.prefix)?;
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
            let participants = snapshot.participants();
            let known = |session: &SessionId| {
                let one = participants.iter().find(|one| one.id == *session)?;
                Some(Row::from(one.clone()).describe()).filter(|who| who != NONE)
            };
            let plan =
                |view: &View| plan::destroy(view, index, &known).map_err(|why| Error::of_plan(view, why));
            plan(view)?;
            if let Some(exit) = self.consent.refused(&intention(view, snapshot.others_below())).await? {
                return Ok(exit);
            }
            let place = match lock {
                Some(_) => Place::Lock(key),
                None => Place::Semaphore(prefix.clone()),
            };
            let changed = operator::change(&client, &place, plan).await?;
            let in_words = |done: &Done| format!("{} was deleted", printable(&done.key));
            self.output.print(&Done::of(&prefix, &changed), in_words)?;
            Ok(Exit::Done)
        })
    }
}

/// The result as JSON.
#[derive(Debug, Serialize)]
pub(super) struct Done {
    schema_version: SchemaVersion,
    kind: Kind,
    prefix: String,
    /// The key that was deleted.
    key: String,
    /// The deleted limit; `null` for a lock.
    limit: Option<u32>,
    /// Contender keys of ended sessions that were removed.
    leftovers_removed: usize,
}

impl Done {
    fn of(prefix: &str, Changed { before, after }: &Changed) -> Self {
        let limit = before.record().map(|record| record.limit);
        Self {
            schema_version: SchemaVersion::default(),
            kind: if limit.is_some() { Kind::Semaphore } else { Kind::Lock },
            prefix: prefix.to_owned(),
            key: before.lock_key(),
            limit,
            leftovers_removed: before.leftovers.len().saturating_sub(after.leftovers.len()),
        }
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
    let others = match others {
        0 => String::new(),
        others => format!(
            " {}.",
            counted(others, "other key below the prefix stays", "other keys below the prefix stay")
        ),
    };
    format!(
        "destroy deletes {key}, a semaphore with a limit of {} and no holders{left}. The next client creates it again, with \
         its own configured limit.{others}",
        record.limit
    )
}
