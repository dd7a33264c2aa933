//! `slotkeeper inspect`: shows a prefix as it is in Consul.

mod table;

use std::time::SystemTime;

use clap::Args;

use super::operator_flags::{OperatorFlags, hidden, lock_or_prefix};
use super::show::{Show, View};
use super::table::Layout;
use super::{Exit, run_requests};
use crate::escape::printable;
use crate::operator::{Error, Found, Inspection, Participant, Watch, list, rings};
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
    show: Show,
    #[command(flatten)]
    consul: OperatorFlags,
}

impl Inspect {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let (client, prefix) = self.consul.target(&self.prefix)?;
        run_requests(&client, async {
            let mut watch = Watch::new(&client, &prefix);
            let next = async || {
                let mut inspection = watch.next().await?.inspect();
                inspection.rings = rings::find(&client, &prefix, &inspection).await;
                if inspection.found == Found::Nothing {
                    inspection.hint = hidden(&client);
                    if !self.show.watch {
                        inspection.hint += &below(&client, &prefix).await;
                    }
                }
                Ok::<_, Error>(inspection)
            };
            self.show.print(&hidden(&client), next).await
        })
    }
}

impl View for Inspection {
    fn at(mut self, now: SystemTime) -> Self {
        let all = self.holders.iter_mut().chain(&mut self.queue).chain(&mut self.others);
        all.for_each(|one| one.date(now));
        self.seen_at = humantime::format_rfc3339_seconds(now.max(SystemTime::UNIX_EPOCH)).to_string();
        self
    }

    fn table(&self, layout: Layout) -> String {
        table::of(self, layout)
    }

    fn names(&self) -> Vec<String> {
        self.all().map(Participant::id).map(printable).collect()
    }

    fn exit(&self) -> Exit {
        if self.found == Found::Nothing { Exit::Failed } else { Exit::Done }
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
