//! `slotkeeper destroy`: deletes a semaphore that nobody holds, or a lock that nobody has.

use std::io::{self, Write};

use clap::Args;

use super::consent::Consent;
use super::operator_flags::{OperatorFlags, refused};
use super::row::counted;
use super::sessions::lock_or_prefix;
use super::{Exit, ask, printable};
use crate::operator::{self, Place, Watch};
use crate::semaphore::{Lock, View, plan};

/// Delete a semaphore that nobody holds.
///
/// Deletes `.lock`, and with it the stored limit, and sweeps up what ended sessions have left; or deletes the key of a
/// single-key lock that nobody has (`behavior: release` leaves it behind). Refused where anybody holds, waits, or is listed and
/// dead. Whoever comes later makes it anew, with its own configured limit; whoever comes at that very moment is not harmed: then
/// nothing is deleted. It asks first, or needs --yes.
#[derive(Debug, Args)]
pub(super) struct Destroy {
    /// Prefix of a semaphore, or key of a single-key lock, in Consul's key-value store. `.lock` at its end may be left out.
    #[arg(value_parser = lock_or_prefix)]
    prefix: String,
    #[command(flatten)]
    consent: Consent,
    #[command(flatten)]
    consul: OperatorFlags,
}

impl Destroy {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let client = self.consul.client()?;
        ask(&client, async {
            let scene = Watch::new(&client, &self.prefix).next().await?;
            let lock = scene.lock();
            let view = lock.as_ref().unwrap_or(&scene.view);
            if view.lock == Lock::Missing {
                let why = format!(
                    "there is neither a semaphore nor a lock at {}; check the prefix, and that the token may read there",
                    printable(&self.prefix)
                );
                return Err(refused(why, &client).into());
            }
            let (key, index) = (view.lock_key(), view.lock_index());
            plan::destroy(view, index).map_err(operator::Error::Refused)?;
            if let Some(exit) = self.consent.refused(&intention(view, scene.others_below())).await? {
                return Ok(exit);
            }
            let plan = |view: &View| plan::destroy(view, index);
            let place = match lock {
                Some(_) => Place::Lock(key.clone()),
                None => Place::Semaphore(self.prefix.clone()),
            };
            operator::change_at(&client, &place, plan).await?;
            writeln!(io::stdout(), "{} was deleted", printable(&key))?;
            Ok(Exit::Done)
        })?
    }
}

/// What is about to be done, in a line.
fn intention(view: &View, others: usize) -> String {
    let key = printable(&view.lock_key());
    let Some(record) = view.record() else {
        return format!("destroy deletes {key}, a lock that nobody has.");
    };
    let left = match view.leftovers.len() {
        0 => String::new(),
        left => format!(", and {} that ended sessions have left", counted(left, "entry", "entries")),
    };
    let others = match others {
        0 => String::new(),
        others => format!(
            " {}.",
            counted(others, "other key below the prefix stays", "other keys below the prefix stay")
        ),
    };
    format!(
        "destroy deletes {key}, a semaphore with a limit of {} that nobody holds{left}. Whoever comes next makes it anew, with \
         its own configured limit.{others}",
        record.limit
    )
}
