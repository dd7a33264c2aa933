//! `slotkeeper list`: lists the semaphores and locks in Consul.

use std::time::{Duration, SystemTime};

use clap::Args;
use tokio::time::sleep;

use super::cells::{age, number};
use super::operator_flags::{OperatorFlags, hidden, lock_or_prefix};
use super::show::{Show, View};
use super::table::{Column, Layout, always, table, wide};
use super::{Exit, live, run_requests};
use crate::operator::list::{self, Listed, Listing};
use crate::operator::{self, Error, Poll};
use slotkeeper_consul::{Client, Read};
use slotkeeper_semaphore::printable;

/// The shortest time between two reads with --watch, since any write below the root wakes it.
const PACE: Duration = Duration::from_secs(2);
/// Characters of a prefix.
const PREFIX_CHARS: usize = 500;

/// List the semaphores and locks below a root.
///
/// The names of keys show where they are: `.lock` below a prefix. Only these keys are read, and the contender keys of holders, for
/// OLDEST: the age of the oldest holder. It is known for semaphores with at most 64 holders, of 1024 holders in all, if each holder has
/// written its time stamp. WAITING counts contender keys that are not a holder's, also those that an ended session has left. A
/// lock at any other key is found only with a ROOT, below which up to 1000 other keys are read. At most 10000 semaphores and
/// locks are shown. No value is printed.
#[derive(Debug, Args)]
pub(super) struct List {
    /// Folder in Consul's key-value store; by default all keys.
    #[arg(value_parser = lock_or_prefix)]
    root: Option<String>,
    #[command(flatten)]
    show: Show,
    #[command(flatten)]
    consul: OperatorFlags,
}

impl List {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let (client, root) = self.consul.connect(self.root.as_deref())?;
        run_requests(&client, async {
            let mut poll = Poll::new(&client);
            let mut reads_again = false;
            let next = async || {
                if std::mem::replace(&mut reads_again, true) {
                    sleep(PACE.saturating_sub(live::PACE)).await;
                }
                let read =
                    async |client: &Client, read: Read| list::read(client, root.as_deref(), read).await;
                Ok::<_, Error>(poll.next(read).await?.value)
            };
            self.show.print(&hidden(&client), next).await
        })
    }
}

impl View for Listing {
    fn at(mut self, now: SystemTime) -> Self {
        for one in &mut self.entries {
            one.oldest_age_seconds = operator::age(one.since.as_deref(), now);
        }
        self
    }

    fn table(&self, layout: Layout) -> String {
        // Nothing is a sentence.
        if self.entries.is_empty() { String::new() } else { table(&columns(), &self.entries, layout) }
    }

    fn names(&self) -> Vec<String> {
        self.entries.iter().map(|one| shown(&one.prefix)).collect()
    }

    fn nothing(&self) -> Option<String> {
        let below = self.root.as_deref().map_or(String::new(), |root| format!(" below {}/", shown(root)));
        self.entries.is_empty().then(|| format!("no semaphores and no locks{below}"))
    }

    fn remarks(&self) -> Vec<String> {
        let rule = self.hidden.as_ref();
        let rule = rule.map(|rule| format!("Consul hides keys from the token; it needs {rule}"));
        self.cut.iter().cloned().chain(rule).collect()
    }
}

fn columns<'a>() -> [Column<'a, Listed>; 7] {
    [
        always("PREFIX", |one: &Listed| shown(&one.prefix)).flexible(),
        always("KIND", |one: &Listed| one.kind.as_str().into()),
        always("LIMIT", |one: &Listed| one.limit.to_string()),
        always("TAKEN", |one: &Listed| one.taken.to_string()),
        always("WAITING", |one: &Listed| number(one.waiting)),
        always("OLDEST", |one: &Listed| age(one.oldest_age_seconds)),
        wide("SINCE", |one: &Listed| number(one.since.as_deref().map(shown))),
    ]
}

fn shown(prefix: &str) -> String {
    printable(prefix, PREFIX_CHARS)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::status::Kind;

    fn row(prefix: &str, kind: Kind) -> Listed {
        Listed {
            prefix: prefix.into(),
            kind,
            limit: 5,
            taken: 3,
            waiting: (kind == Kind::Semaphore).then_some(2),
            oldest_age_seconds: (kind == Kind::Semaphore).then_some(7500),
            ..Listed::default()
        }
    }

    #[test]
    fn the_table_and_the_json() {
        let entries =
            vec![row("service/warehouse/writers", Kind::Semaphore), row("service/l\u{1b}", Kind::Lock)];
        let mut found =
            Listing { root: Some("service".into()), entries, truncated: true, ..Listing::default() };
        let expected = "\
PREFIX                     KIND       LIMIT  TAKEN  WAITING  OLDEST
service/warehouse/writers  semaphore  5      3      2        2h5m
service/l\\u{1b}            lock       5      3      -        -
";
        assert_eq!(found.table(Layout::NARROW), expected);
        found.entries.truncate(1);
        let expected = json!({
            "schema_version": 1, "root": "service", "truncated": true, "hidden": null,
            "entries": [{
                "prefix": "service/warehouse/writers", "kind": "semaphore", "limit": 5, "taken": 3, "waiting": 2,
                "oldest_age_seconds": 7500, "since": null,
            }],
        });
        assert_eq!(serde_json::to_value(found).unwrap(), expected);
    }
}
