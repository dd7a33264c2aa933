//! `slotkeeper list`: lists the semaphores and locks in Consul.

use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use clap::Args;
use serde::Serialize;
use tokio::time::sleep;

use super::operator_flags::{OperatorFlags, hidden};
use super::output::{Form, Output, lines};
use super::row::{age, seconds_since};
use super::sessions::lock_or_prefix;
use super::table::{Column, NONE, always, table, wide};
use super::{Exit, live, print_message, run_requests};
use crate::clock;
use crate::operator::list::{Listed, Listing, Watch};
use crate::schema_version::SchemaVersion;
use crate::status::Kind;
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
    output: Output,
    /// Show each change until interrupted. On a terminal the table is redrawn in place.
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    consul: OperatorFlags,
}

/// The JSON of `list`. No field is ever omitted.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    schema_version: SchemaVersion,
    /// The root, if one was given.
    root: Option<String>,
    /// The semaphores and locks, in the order of their prefixes.
    entries: Vec<Row>,
    /// Whether something was not read.
    truncated: bool,
    /// The rule that would show the keys that Consul hides.
    hidden: Option<String>,
}

/// A semaphore or lock.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    /// Its prefix; the key of a lock that is not a `.lock` below a prefix.
    prefix: String,
    kind: Kind,
    /// The number of slots.
    limit: u32,
    /// Slots taken.
    taken: u32,
    /// Contender keys that are not a holder's; null for a lock.
    waiting: Option<usize>,
    /// The age of the oldest holder; null if it is not known.
    oldest_age_seconds: Option<u64>,
    /// Since when it holds, in UTC.
    since: Option<String>,
}

impl Row {
    fn of(one: &Listed, wall: SystemTime) -> Self {
        Self {
            prefix: one.prefix.clone(),
            kind: one.kind,
            limit: one.limit,
            taken: one.taken,
            waiting: one.waiting,
            oldest_age_seconds: seconds_since(one.since.as_deref(), wall),
            since: one.since.clone(),
        }
    }
}

impl Report {
    fn of(root: Option<&str>, found: &Listing, wall: SystemTime) -> Self {
        Self {
            schema_version: SchemaVersion::default(),
            root: root.map(str::to_owned),
            entries: found.listed.iter().map(|one| Row::of(one, wall)).collect(),
            truncated: !found.cut.is_empty(),
            hidden: found.hidden.clone(),
        }
    }
}

impl List {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let (client, root) = self.consul.connect(self.root.as_deref())?;
        let root = root.as_deref();
        run_requests(&client, async {
            let mut watch = Watch::new(&client, root);
            let remarks = |found: &Listing| {
                let hidden_from_it = hidden(&client);
                let below = root.map_or(String::new(), |root| format!(" below {}/", shown(root)));
                let nothing = found.listed.is_empty();
                let nothing = nothing.then(|| format!("no semaphores and no locks{below}{hidden_from_it}"));
                let rule = found.hidden.as_ref();
                let rule = rule.map(|rule| format!("Consul hides keys from the token; it needs {rule}"));
                nothing.into_iter().chain(found.cut.iter().cloned()).chain(rule).collect::<Vec<_>>()
            };
            if self.watch {
                let mut reads_again = false;
                let next = async || {
                    if std::mem::replace(&mut reads_again, true) {
                        sleep(PACE.saturating_sub(live::PACE)).await;
                    }
                    watch.next().await
                };
                let show = |found: &Listing| {
                    let text = self.text(root, found)?;
                    let remarks = if self.output.is_table() { remarks(found) } else { Vec::new() };
                    Ok(text + &lines(remarks))
                };
                let never = live::follow(self.output.is_document(), next, show).await?;
                match never {}
            }
            let found = watch.next().await?;
            io::stdout().write_all(self.text(root, &found)?.as_bytes())?;
            for remark in remarks(&found) {
                print_message(remark)?;
            }
            Ok(Exit::Done)
        })
    }

    fn text(&self, root: Option<&str>, found: &Listing) -> anyhow::Result<String> {
        let report = Report::of(root, found, clock::wall().at(clock::now()));
        match self.output.form() {
            Form::Document(format) => format.text(&report, self.watch),
            Form::Names => Ok(lines(report.entries.iter().map(|row| shown(&row.prefix)))),
            // Nothing is a sentence.
            Form::Table(_) if report.entries.is_empty() => Ok(String::new()),
            Form::Table(layout) => Ok(table(&columns(), &report.entries, layout)),
        }
    }
}

fn columns<'a>() -> [Column<'a, Row>; 7] {
    let waiting = |row: &Row| row.waiting.map_or(NONE.into(), |waiting| waiting.to_string());
    [
        always("PREFIX", |row: &Row| shown(&row.prefix)).flexible(),
        always("KIND", |row: &Row| row.kind.as_str().into()),
        always("LIMIT", |row: &Row| row.limit.to_string()),
        always("TAKEN", |row: &Row| row.taken.to_string()),
        always("WAITING", waiting),
        always("OLDEST", |row: &Row| age(row.oldest_age_seconds)),
        wide("SINCE", |row: &Row| row.since.as_deref().map_or(NONE.into(), shown)),
    ]
}

fn shown(prefix: &str) -> String {
    printable(prefix, PREFIX_CHARS)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::table::Layout;
    use super::*;

    fn row(prefix: &str, kind: Kind) -> Row {
        Row {
            prefix: prefix.into(),
            kind,
            limit: 5,
            taken: 3,
            waiting: (kind == Kind::Semaphore).then_some(2),
            oldest_age_seconds: (kind == Kind::Semaphore).then_some(7500),
            since: None,
        }
    }

    #[test]
    fn the_table_and_the_json() {
        let rows = [row("service/warehouse/writers", Kind::Semaphore), row("service/l\u{1b}", Kind::Lock)];
        let expected = "\
PREFIX                     KIND       LIMIT  TAKEN  WAITING  OLDEST
service/warehouse/writers  semaphore  5      3      2        2h5m
service/l\\u{1b}            lock       5      3      -        -
";
        assert_eq!(table(&columns(), &rows, Layout::NARROW), expected);
        let found = Listing { listed: Vec::new(), cut: vec!["cut".into()], hidden: None };
        let mut report = Report::of(Some("service"), &found, SystemTime::UNIX_EPOCH);
        report.entries = rows[..1].to_vec();
        let expected = json!({
            "schema_version": 1, "root": "service", "truncated": true, "hidden": null,
            "entries": [{
                "prefix": "service/warehouse/writers", "kind": "semaphore", "limit": 5, "taken": 3, "waiting": 2,
                "oldest_age_seconds": 7500, "since": null,
            }],
        });
        assert_eq!(serde_json::to_value(report).unwrap(), expected);
    }
}
