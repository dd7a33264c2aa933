//! `slotkeeper inspect`: shows a prefix as it is in Consul.

pub(super) mod report;
mod table;

use std::io::{self, Write};

use clap::Args;

use super::operator_flags::{OperatorFlags, hidden};
use super::output::{Form, Output, lines};
use super::sessions::lock_or_prefix;
use super::{Exit, live, run_requests};
use crate::escape::printable;
use crate::operator::{self, Found, Inspection, Watch, list, rings};
use report::Report;
use slotkeeper_consul::Client;

/// The most prefixes that the message about an empty prefix names.
const NEIGHBOURS: usize = 5;

/// Show a semaphore or lock: its limit, its holders, and its queue in order.
///
/// Everything is read from Consul with consistent reads. A holder without a locked key is dead: the next client reclaims its slots
/// after its `prune_delay`, and `slotkeeper prune` at once. AGE comes from the participant's own time stamp; Consul records no time,
/// neither of a foreign client's acquisition nor of a session's last renewal. HEALTH is `live`, `dead`, or `unknown` if the token
/// may not read its key or session. Unusual values add columns: STATE, SLOTS, PRIORITY, REMARK. `--output wide` shows all
/// columns. On a terminal, narrow tables abbreviate sessions where that is unambiguous. Exits with 1 if there is neither a
/// semaphore nor a lock.
#[derive(Debug, Args)]
pub(super) struct Inspect {
    /// Prefix of a semaphore, or key of a single-key lock, in Consul's key-value store. `.lock` at its end can be omitted.
    #[arg(value_parser = lock_or_prefix)]
    prefix: String,
    #[command(flatten)]
    output: Output,
    /// Show each change until interrupted. On a terminal the tables are redrawn in place.
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    consul: OperatorFlags,
}

impl Inspect {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let (client, prefix) = self.consul.target(&self.prefix)?;
        run_requests(&client, async {
            let mut watch = Watch::new(&client, &prefix);
            let mut next = async || {
                let mut seen = watch.next().await?.inspect();
                seen.rings = rings::find(&client, &prefix, &seen).await;
                Ok::<_, operator::Error>(seen)
            };
            let hint = hidden(&client);
            if self.watch {
                let show = |seen: &Inspection| self.text(&prefix, seen, &hint);
                let never = live::follow(self.output.is_document(), next, show).await?;
                match never {}
            }
            let seen = next().await?;
            let hint = match seen.found {
                Found::Nothing => hint + &below(&client, &prefix).await,
                Found::Unknown { .. }
                | Found::Semaphore { .. }
                | Found::Lock { .. }
                | Found::Other { .. } => hint,
            };
            io::stdout().write_all(self.text(&prefix, &seen, &hint)?.as_bytes())?;
            Ok(if seen.found == Found::Nothing { Exit::Failed } else { Exit::Done })
        })
    }

    /// The text; `hint` explains an empty result.
    fn text(&self, prefix: &str, seen: &Inspection, hint: &str) -> anyhow::Result<String> {
        let report = Report::of(prefix, seen);
        match self.output.form() {
            Form::Document(format) => format.text(&report, self.watch),
            Form::Names => Ok(lines(report.members().map(|one| printable(&one.row.session)))),
            Form::Table(layout) => {
                let hint = if seen.found == Found::Nothing { hint } else { "" };
                Ok(table::of(&report, hint, layout))
            }
        }
    }
}

/// The semaphores and locks below a prefix at which there is none, or beside it, or where to look for others.
async fn below(client: &Client, prefix: &str) -> String {
    match list::neighbours(client, prefix).await {
        Ok(Some((folder, prefixes))) => {
            let more = if prefixes.len() > NEIGHBOURS { ", …" } else { "" };
            let prefixes: Vec<_> = prefixes.iter().take(NEIGHBOURS).map(|prefix| printable(prefix)).collect();
            format!(". Below {} there are: {}{more}", printable(&folder), prefixes.join(", "))
        }
        Ok(None) | Err(_) => ". See slotkeeper list".to_owned(),
    }
}

#[cfg(test)]
mod tests;
