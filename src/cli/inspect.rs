//! `slotkeeper inspect`: what there is at a prefix, straight from Consul.

mod report;
mod table;

use std::io::{self, Write};

use clap::Args;

use super::operator_flags::{OperatorFlags, hidden};
use super::sessions::lock_or_prefix;
use super::{Exit, ask, json, live, window};
use crate::operator::{Found, Inspection, Watch};
use report::Report;
use table::Look;

/// Show a semaphore or lock: its limit, who holds, and the line in order.
///
/// All of it is read from Consul, consistently. A holder that has nothing locked any more is dead: whoever acts next gives
/// its slots on, `slotkeeper prune` at once. SINCE is what the participant wrote by its own clock; Consul itself dates
/// nothing, neither a hold of another client nor the last renewal of a session. HEALTH says whether the session is there:
/// `live`, `ended`, or `unknown` where the token may not read it. On a terminal sessions are shown by their first characters,
/// where those are one session's alone.
#[derive(Debug, Args)]
pub(super) struct Inspect {
    /// Prefix of a semaphore, or key of a single-key lock, in Consul's key-value store. `.lock` at its end may be left out.
    #[arg(value_parser = lock_or_prefix)]
    prefix: String,
    /// Print JSON, with durations in seconds; with --watch one line for each change.
    #[arg(long)]
    json: bool,
    /// Go on, and show each change, until interrupted. On a terminal the tables are redrawn in place.
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    consul: OperatorFlags,
}

impl Inspect {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let client = self.consul.client()?;
        let hint = hidden(&client);
        ask(&client, async {
            let mut watch = Watch::new(&client, &self.prefix);
            let mut next = async || watch.next().await.map(|scene| scene.inspect());
            if self.watch {
                let never = live::follow(self.json, next, |seen| self.text(seen, &hint)).await?;
                match never {}
            }
            let text = self.text(&next().await?, &hint)?;
            io::stdout().write_all(text.as_bytes())?;
            Ok(Exit::Done)
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
