//! `slotkeeper sessions`: the sessions that Consul has, or those that take part at a prefix.

use std::io::{self, Write};
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tabwriter::TabWriter;

use super::operator_flags::OperatorFlags;
use super::{Exit, ask, complain, printable};
use crate::config;
use crate::consul::{Behavior, Session};
use crate::embedded::duration;
use crate::operator::{self, Part, Participant};
use crate::semaphore::Identity;

/// Stands where there is nothing.
const NONE: &str = "-";

/// Show Consul's sessions, or those that take part at a prefix.
///
/// Without a prefix: every live session that the token may see. With one: who holds a slot of the semaphore there (held),
/// who stands in its line, in order (waiting), who is listed as a holder and has nothing locked any more (dead), and who has
/// a single key locked at or below the prefix (locked). Who waits for a single-key lock cannot be seen: nothing of it is in
/// Consul.
///
/// A session ends when it is destroyed, when one of its CHECKS turns critical or its node goes, and when nobody renews it for
/// its TTL (in practice for twice as long). One without a TTL (`-`) never runs out by itself: where it has no checks either,
/// somebody must destroy it. For LOCK-DELAY after a session was ended, nobody can lock the single keys that it had.
#[derive(Debug, Args)]
pub(super) struct Sessions {
    /// Prefix of a semaphore, or key of a single-key lock, in Consul's key-value store. `.lock` at its end may be left out.
    #[arg(value_parser = lock_or_prefix)]
    prefix: Option<String>,
    /// Print a JSON array, with durations in seconds.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    consul: OperatorFlags,
}

/// The key that `run` and `consul lock` lock lies where a semaphore's record would, so that both are looked at as one.
pub(super) fn lock_or_prefix(written: &str) -> Result<String, &'static str> {
    let written = written.trim_end_matches('/');
    config::plain_key(written.strip_suffix("/.lock").unwrap_or(written))
}

impl Sessions {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let client = self.consul.client()?;
        let rows: Vec<Row> = match &self.prefix {
            None => ask(&client, operator::sessions(&client))??.into_iter().map(Row::from).collect(),
            Some(prefix) => {
                ask(&client, operator::participants(&client, prefix))??.into_iter().map(Row::from).collect()
            }
        };
        let mut out = io::stdout().lock();
        if self.json {
            writeln!(out, "{}", serde_json::to_string_pretty(&rows)?)?;
            return Ok(Exit::Done);
        }
        write!(out, "{}", table(&rows, self.prefix.is_some())?)?;
        if rows.is_empty() {
            let whom = self.prefix.map_or("there is no session".into(), |prefix| {
                format!("nobody takes part at {}", printable(&prefix))
            });
            // Consul hides what may not be read as if it were not there.
            let hidden = if client.is_anonymous() {
                ", or none that may be seen without a token (--token-file, CONSUL_HTTP_TOKEN_FILE, CONSUL_HTTP_TOKEN)"
            } else {
                ", or none that the token may see"
            };
            complain(format!("{whom}{hidden}"))?;
        }
        Ok(Exit::Done)
    }
}

/// One session, as JSON names it. Fields that are `None` are `null`, and no field is left out but those of a participant.
#[derive(Debug, Default, Serialize)]
struct Row {
    session: String,
    /// Whether Consul has, and shows, such a session. Where it does not, all of the following are `null`.
    found: bool,
    name: Option<String>,
    node: Option<String>,
    ttl_seconds: Option<f64>,
    behavior: Option<Behavior>,
    lock_delay_seconds: Option<f64>,
    node_checks: Option<Vec<String>>,
    service_checks: Option<Vec<String>>,
    create_index: Option<u64>,
    #[serde(flatten)]
    part: Option<Participation>,
    /// The TTL as its creator wrote it.
    #[serde(skip)]
    ttl: String,
}

/// What it does at the prefix that was asked for.
#[derive(Debug, Serialize)]
struct Participation {
    state: &'static str,
    slots: Option<u32>,
    slot_indexes: Vec<u32>,
    priority: Option<i32>,
    since: Option<String>,
    who: Option<Identity>,
    /// What is written in its key for operators.
    body: Option<String>,
    /// Whether it is another client's, where that can be told.
    foreign: Option<bool>,
    keys: Vec<String>,
}

impl From<Session> for Row {
    fn from(session: Session) -> Self {
        let ttl = duration::parse(&session.ttl).ok().and_then(|nanos| u64::try_from(nanos).ok());
        let ttl = ttl.filter(|nanos| *nanos > 0).map(Duration::from_nanos);
        Self {
            session: session.id,
            found: true,
            name: Some(session.name),
            node: Some(session.node),
            ttl_seconds: ttl.map(|ttl| ttl.as_secs_f64()),
            behavior: Some(session.behavior),
            lock_delay_seconds: Some(session.lock_delay.as_secs_f64()),
            node_checks: Some(session.node_checks),
            service_checks: Some(session.service_checks),
            create_index: Some(session.create_index),
            part: None,
            ttl: if ttl.is_some() { session.ttl } else { String::new() },
        }
    }
}

impl From<Participant> for Row {
    fn from(one: Participant) -> Self {
        let foreign = one.is_foreign();
        let Participant { id, part, slots, entry, said, keys, session, .. } = one;
        let mut participation = Participation {
            state: part.name(),
            slots,
            slot_indexes: Vec::new(),
            priority: None,
            since: None,
            who: None,
            body: said.filter(|said| !said.is_empty()),
            foreign,
            keys,
        };
        if let Some(entry) = entry {
            // Of the dead nobody has these numbers any more.
            participation.slot_indexes = if part == Part::Dead { Vec::new() } else { entry.indexes };
            participation.priority = Some(entry.priority);
            participation.since = Some(entry.since).filter(|since| !since.is_empty());
            participation.who = Some(entry.who).filter(|who| *who != Identity::default());
            participation.body = entry.body;
        }
        let row = session.map(Self::from).unwrap_or_default();
        Self { session: id.as_str().to_owned(), part: Some(participation), ..row }
    }
}

impl Row {
    fn checks(&self) -> String {
        let checks: Vec<_> =
            self.node_checks.iter().chain(&self.service_checks).flatten().map(String::as_str).collect();
        cell(Some(&checks.join(",")))
    }
}

impl Participation {
    /// Who it is, as well as that is known.
    fn describe(&self) -> String {
        if self.foreign == Some(true) {
            return self
                .body
                .as_deref()
                .map_or("another client".into(), |body| format!("another client: {}", printable(body)));
        }
        self.who.as_ref().map_or(NONE.into(), person)
    }
}

/// One of ours in a few words.
pub(super) fn person(who: &Identity) -> String {
    let mut parts = Vec::new();
    parts.extend(who.pod.as_deref().or(who.host.as_deref()).map(printable));
    parts.extend(who.pid.filter(|_| who.pod.is_none()).map(|pid| format!("pid {pid}")));
    parts.extend(who.node.as_deref().map(|node| format!("on {}", printable(node))));
    parts.join(" ")
}

/// A text of anybody's, harmless in a table.
fn cell(text: Option<&str>) -> String {
    text.filter(|text| !text.is_empty()).map_or(NONE.into(), printable)
}

fn table(rows: &[Row], at_prefix: bool) -> io::Result<String> {
    let mut table = TabWriter::new(Vec::new()).padding(2);
    write!(table, "SESSION\t")?;
    if at_prefix {
        write!(table, "STATE\tSLOTS\tPRIORITY\tSINCE\tWHO\t")?;
    }
    writeln!(table, "NAME\tNODE\tTTL\tBEHAVIOR\tLOCK-DELAY\tCHECKS")?;
    for row in rows {
        write!(table, "{}\t", cell(Some(&row.session)))?;
        if let Some(part) = &row.part {
            write!(
                table,
                "{}\t{}\t{}\t{}\t{}\t",
                part.state,
                part.slots.map_or(NONE.into(), |slots| slots.to_string()),
                part.priority.map_or(NONE.into(), |priority| priority.to_string()),
                cell(part.since.as_deref()),
                part.describe(),
            )?;
        }
        // Of one that has a key locked, Consul hides the session where the token may not read it.
        let is_gone = !row.found && row.part.as_ref().is_some_and(|part| part.state == Part::Dead.name());
        let name = if is_gone { "no session".into() } else { cell(row.name.as_deref()) };
        writeln!(
            table,
            "{name}\t{}\t{}\t{}\t{}\t{}",
            cell(row.node.as_deref()),
            cell(Some(&row.ttl)),
            match row.behavior {
                Some(Behavior::Release) => "release",
                Some(Behavior::Delete) => "delete",
                None => NONE,
            },
            row.lock_delay_seconds.map_or(NONE.into(), |seconds| format!("{seconds}s")),
            row.checks(),
        )?;
    }
    let bytes = table.into_inner().map_err(|error| io::Error::other(error.to_string()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn session(id: &str, ttl: &str) -> Session {
        Session {
            id: id.into(),
            name: "slotkeeper".into(),
            node: "vm".into(),
            behavior: Behavior::Delete,
            ttl: ttl.into(),
            lock_delay: Duration::from_millis(1500),
            node_checks: vec!["serfHealth".into()],
            service_checks: vec!["web".into()],
            create_index: 7,
            modify_index: 7,
        }
    }

    fn participation(state: &'static str) -> Participation {
        Participation {
            state,
            slots: Some(1),
            slot_indexes: vec![0],
            priority: Some(2),
            since: Some("2026-01-02T03:04:05Z".into()),
            who: Some(Identity { host: Some("vm".into()), pid: Some(7), ..Identity::default() }),
            body: None,
            foreign: Some(false),
            keys: vec!["p/a".into()],
        }
    }

    #[test]
    fn a_table_of_sessions() {
        let hostile = Session {
            name: "a\tb\n\x1b[2J".into(),
            node: String::new(),
            lock_delay: Duration::ZERO,
            node_checks: Vec::new(),
            service_checks: Vec::new(),
            behavior: Behavior::Release,
            ..session("b", "")
        };
        let rows: Vec<_> = [session("a", "1m30s"), hostile].map(Row::from).into();
        assert_eq!(
            table(&rows, false).unwrap(),
            "\
SESSION  NAME             NODE  TTL    BEHAVIOR  LOCK-DELAY  CHECKS
a        slotkeeper       vm    1m30s  delete    1.5s        serfHealth,web
b        a\\tb\\n\\u{1b}[2J  -     -      release   0s          -
"
        );
    }

    #[test]
    fn a_table_of_participants() {
        let pod = Identity {
            pod: Some("batch-7".into()),
            node: Some("n1".into()),
            pid: Some(1),
            ..Identity::default()
        };
        let foreign = Participation {
            priority: None,
            since: None,
            who: None,
            body: Some("db\x1b".into()),
            foreign: Some(true),
            ..participation("waiting")
        };
        let unknown =
            Participation { foreign: None, who: None, since: None, priority: None, ..participation("dead") };
        let row = |id: &str, part| Row { part: Some(part), ..Row::from(session(id, "30s")) };
        let rows = [
            row("a", participation("held")),
            row("b", Participation { who: Some(pod), slots: Some(2), ..participation("waiting") }),
            row("c", foreign),
            Row { session: "d\u{202e}".into(), part: Some(unknown), ..Row::default() },
        ];
        assert_eq!(
            table(&rows, true).unwrap(),
            "\
SESSION    STATE    SLOTS  PRIORITY  SINCE                 WHO                       NAME        NODE  TTL  BEHAVIOR  LOCK-DELAY  CHECKS
a          held     1      2         2026-01-02T03:04:05Z  vm pid 7                  slotkeeper  vm    30s  delete    1.5s        serfHealth,web
b          waiting  2      2         2026-01-02T03:04:05Z  batch-7 on n1             slotkeeper  vm    30s  delete    1.5s        serfHealth,web
c          waiting  1      -         -                     another client: db\\u{1b}  slotkeeper  vm    30s  delete    1.5s        serfHealth,web
d\\u{202e}  dead     1      -         -                     -                         no session  -     -    -         -           -
"
        );
    }

    #[test]
    fn json_has_every_field_and_seconds() {
        let row = serde_json::to_value(Row::from(session("a", "1.5m"))).unwrap();
        let expected = json!({
            "session": "a", "found": true, "name": "slotkeeper", "node": "vm", "ttl_seconds": 90.0, "behavior": "delete",
            "lock_delay_seconds": 1.5, "node_checks": ["serfHealth"], "service_checks": ["web"], "create_index": 7,
        });
        assert_eq!(row, expected);
        for endless in ["", "0s", "-3s", "soon"] {
            assert_eq!(Row::from(session("a", endless)).ttl_seconds, None, "{endless}");
        }
        let dead = Row { session: "d".into(), part: Some(participation("dead")), ..Row::default() };
        let dead = serde_json::to_value(dead).unwrap();
        let expected = json!({
            "session": "d", "found": false, "name": null, "node": null, "ttl_seconds": null, "behavior": null,
            "lock_delay_seconds": null, "node_checks": null, "service_checks": null, "create_index": null,
            "state": "dead", "slots": 1, "slot_indexes": [0], "priority": 2, "since": "2026-01-02T03:04:05Z",
            "who": {"host": "vm", "pid": 7}, "body": null, "foreign": false, "keys": ["p/a"],
        });
        assert_eq!(dead, expected);
    }
}
