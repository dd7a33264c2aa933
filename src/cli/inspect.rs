//! `slotkeeper inspect`: shows a prefix as it is in Consul.

pub(super) mod report;
mod table;

use std::io::{self, Write};

use clap::Args;

use super::operator_flags::{OperatorFlags, hidden};
use super::sessions::lock_or_prefix;
use super::{Exit, json, live, run_requests, window};
use crate::operator::{Found, Inspection, Watch};
use report::Report;
use table::Look;

/// Show a semaphore or lock: its limit, its holders, and its queue in order.
///
/// Everything is read from Consul with consistent reads. A holder without a locked key is dead: the next client reclaims its slots
/// after its `prune_delay`, and `slotkeeper prune` at once. SINCE is the participant's own time stamp; Consul records no time, neither
/// of a foreign client's acquisition nor of a session's last renewal. HEALTH is `live`, `dead`, or `unknown` if the token
/// may not read its key or session. On a terminal, sessions are abbreviated where that is unambiguous. Exits with 1 if there is
/// neither a semaphore nor a lock.
#[derive(Debug, Args)]
pub(super) struct Inspect {
    /// Prefix of a semaphore, or key of a single-key lock, in Consul's key-value store. `.lock` at its end can be omitted.
    #[arg(value_parser = lock_or_prefix)]
    prefix: String,
    /// Print JSON, with durations in seconds; with --watch one line per change.
    #[arg(long)]
    json: bool,
    /// Show each change until interrupted. On a terminal the tables are redrawn in place.
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    consul: OperatorFlags,
}

impl Inspect {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let client = self.consul.client()?;
        let hint = hidden(&client);
        run_requests(&client, async {
            let mut watch = Watch::new(&client, &self.prefix);
            let mut next = async || watch.next().await.map(|snapshot| snapshot.inspect());
            if self.watch {
                let never = live::follow(self.json, next, |seen| self.text(seen, &hint)).await?;
                match never {}
            }
            let seen = next().await?;
            io::stdout().write_all(self.text(&seen, &hint)?.as_bytes())?;
            Ok(if seen.found == Found::Nothing { Exit::Failed } else { Exit::Done })
        })
    }

    fn text(&self, seen: &Inspection, hint: &str) -> anyhow::Result<String> {
        let report = Report::of(&self.prefix, seen);
        if self.json {
            return json(&report, self.watch);
        }
        let hint = if seen.found == Found::Nothing { hint } else { "" };
        // What is shown once scrolls, and a terminal wraps it by itself.
        let columns = if self.watch { window::size().1 } else { window::ENDLESS };
        Ok(table::of(&report, hint, Look { short: window::is_there(), columns })?)
    }
}

#[cfg(test)]
mod tests;
