//! `slotkeeper sessions`: lists Consul's sessions, or those of a prefix.

use std::io::{self, Write};

use clap::Args;
use serde::Serialize;

use super::operator_flags::{OperatorFlags, hidden};
use super::output::{Form, Output, lines};
use super::row::{Row, age, cell, describe, hidden_keys, state_in_words};
use super::session_ids::SessionIds;
use super::table::{Column, Layout, NONE, always, table, unless, wide};
use super::{Exit, live, print_message, run_requests};
use crate::clock;
use crate::config;
use crate::escape::printable;
use crate::operator::{self, Found, Hidden, Part, Participant, PrefixSnapshot};
use crate::schema_version::SchemaVersion;
use slotkeeper_consul::{Behavior, Client, Read};

/// Show Consul's sessions, or those of a prefix.
///
/// Without a prefix: every live session that the token may read. With one: the holders of the semaphore (held), its waiters in
/// order (waiting), holders without a locked key (dead), and sessions that have a single key locked at or below the prefix (locked).
/// The waiters of a single-key lock are not visible: Consul does not store them.
///
/// A session ends when it is destroyed, when one of its CHECKS turns critical, when its node leaves, or when it is not renewed for
/// its TTL (in practice twice as long). A session without a TTL (`-`) does not expire: without checks it lasts until it is
/// destroyed. For LOCK-DELAY after the end of a session, the single keys that it had locked cannot be locked again. Exits with 1 if
/// the prefix has neither a semaphore nor a lock.
#[derive(Debug, Args)]
pub(super) struct Sessions {
    /// Prefix of a semaphore, or key of a single-key lock, in Consul's key-value store. `.lock` at its end can be omitted.
    #[arg(value_parser = lock_or_prefix)]
    prefix: Option<String>,
    #[command(flatten)]
    output: Output,
    /// Show each change until interrupted. On a terminal the table is redrawn in place.
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    consul: OperatorFlags,
}

/// `run` and `consul lock` lock the key that a semaphore's record would have, so both have the same prefix.
pub(super) fn lock_or_prefix(written: &str) -> Result<String, &'static str> {
    let written = written.trim_end_matches('/');
    config::plain_key(written.strip_suffix("/.lock").unwrap_or(written))
}

impl Sessions {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let (client, prefix) = self.consul.connect(self.prefix.as_deref())?;
        run_requests(&client, async {
            match prefix.as_deref() {
                None => {
                    let (mut index, mut asked) = (0, client.clone());
                    self.show(&client, None, async || {
                        if index == 0 {
                            // Start again from index 0, perhaps at another cluster.
                            asked = client.bound();
                        }
                        let read = Read::consistent().after(index, operator::WAIT);
                        let before = std::mem::take(&mut index);
                        let sessions = operator::sessions(&asked, read).await?;
                        // An index that decreased means to start again.
                        index = if sessions.index < before { 0 } else { sessions.index };
                        let filtered = sessions.filtered.then(|| {
                            format!("Consul hides sessions from the token; it needs {}", operator::SESSIONS)
                        });
                        let hidden = filtered.into_iter().collect();
                        Ok(Shown { rows: sessions.value, hidden, is_there: true })
                    })
                    .await
                }
                Some(prefix) => {
                    let mut watch = operator::Watch::new(&client, prefix);
                    let next = async || Ok(participants(prefix, &watch.next().await?));
                    self.show(&client, Some(prefix), next).await
                }
            }
        })
    }

    async fn show<T>(
        &self,
        client: &Client,
        prefix: Option<&str>,
        mut next: impl AsyncFnMut() -> Result<Shown<T>, operator::Error>,
    ) -> anyhow::Result<Exit>
    where
        T: Clone + PartialEq,
        Row: From<T>,
    {
        let now = || clock::wall().at(clock::now());
        let rows = |found: &[T]| -> Vec<Row> {
            let now = now();
            found.iter().cloned().map(|one| Row::from(one).at(now)).collect()
        };
        if self.watch {
            let show = |shown: &Shown<T>| {
                let rows = rows(&shown.rows);
                let text = self.text(&rows, prefix)?;
                if !self.output.is_table() {
                    return Ok(text);
                }
                let nothing_found = rows.is_empty().then(|| nothing_found(client, prefix));
                Ok(text + &lines(nothing_found.into_iter().chain(shown.hidden.iter().cloned())))
            };
            let never = live::follow(self.output.is_document(), next, show).await?;
            match never {}
        }
        let shown = next().await?;
        let rows = rows(&shown.rows);
        io::stdout().write_all(self.text(&rows, prefix)?.as_bytes())?;
        if rows.is_empty() && !self.output.is_document() {
            print_message(nothing_found(client, prefix))?;
        }
        // Rows stay unwrapped: programs read tables too.
        for hidden in &shown.hidden {
            print_message(hidden)?;
        }
        Ok(if shown.is_there { Exit::Done } else { Exit::Failed })
    }

    fn text(&self, rows: &[Row], prefix: Option<&str>) -> anyhow::Result<String> {
        match self.output.form() {
            Form::Document(format) => format.text(&Report::of(prefix, rows), self.watch),
            Form::Names => Ok(lines(rows.iter().map(|row| printable(&row.session)))),
            Form::Table(layout) => Ok(table_of(rows, prefix.is_some(), layout)),
        }
    }
}

fn participants(prefix: &str, snapshot: &PrefixSnapshot) -> Shown<Participant> {
    let rows = snapshot.participants();
    let Hidden { keys, sessions } = snapshot.hidden(&rows);
    let keys = keys.map(|rule| hidden_keys(prefix, &rule));
    let sessions = sessions.map(|rule| {
        format!(
            "Consul does not show the sessions of all participants: they have just ended, or the token may not read \
             them; it needs {rule}"
        )
    });
    // Whether there is anything is not known if keys are hidden.
    let is_there = !rows.is_empty() || snapshot.inspect().found != Found::Nothing;
    Shown { rows, hidden: keys.into_iter().chain(sessions).collect(), is_there }
}

fn nothing_found(client: &Client, prefix: Option<&str>) -> String {
    let whom =
        prefix.map_or("no sessions".into(), |prefix| format!("no participants at {}", printable(prefix)));
    format!("{whom}{}", hidden(client))
}

/// The JSON.
#[derive(Debug, Serialize)]
pub(super) struct Report<'a> {
    schema_version: SchemaVersion,
    /// The prefix, if one was given.
    prefix: Option<&'a str>,
    sessions: &'a [Row],
}

impl<'a> Report<'a> {
    fn of(prefix: Option<&'a str>, sessions: &'a [Row]) -> Self {
        Self { schema_version: SchemaVersion::default(), prefix, sessions }
    }
}

/// The rows to show.
#[derive(Clone, PartialEq)]
struct Shown<T> {
    rows: Vec<T>,
    /// What is hidden from the token, and the rule that shows it.
    hidden: Vec<String>,
    /// Whether the prefix has a semaphore, a lock or a participant.
    is_there: bool,
}

fn table_of(rows: &[Row], at_prefix: bool, layout: Layout) -> String {
    let ids = SessionIds::of(rows.iter().map(|row| row.session.as_str()), layout.short_ids);
    let mut columns = vec![always("SESSION", |row: &Row| ids.cell(&row.session))];
    if at_prefix {
        columns.extend(of_participant());
        columns.push(wide("NAME", name));
    } else {
        columns.push(always("NAME", name).flexible());
    }
    columns.extend(of_session());
    table(&columns, rows, layout)
}

/// The role of a participant.
fn of_participant<'a>() -> [Column<'a, Row>; 6] {
    let since = |row: &Row| row.role.as_ref().and_then(|role| role.since.clone());
    let number = |number: Option<String>| number.unwrap_or(NONE.into());
    [
        always("STATE", |row: &Row| row.role.as_ref().map_or(NONE.into(), state_in_words)),
        unless("1", "SLOTS", move |row: &Row| {
            number(row.role.as_ref().and_then(|role| role.slots).map(|slots| slots.to_string()))
        }),
        unless("0", "PRIORITY", move |row: &Row| {
            number(row.role.as_ref().and_then(|role| role.priority).map(|priority| priority.to_string()))
        }),
        always("WHO", |row: &Row| row.role.as_ref().map_or(NONE.into(), describe)).flexible(),
        always("AGE", |row: &Row| age(row.role.as_ref().and_then(|role| role.age_seconds))),
        wide("SINCE", move |row: &Row| cell(since(row).as_deref())),
    ]
}

/// What Consul has of the session.
fn of_session<'a>() -> [Column<'a, Row>; 5] {
    let lock_delay = |row: &Row| row.lock_delay_seconds.map_or(NONE.into(), |seconds| format!("{seconds}s"));
    [
        always("NODE", |row: &Row| cell(row.node.as_deref())),
        always("TTL", |row: &Row| cell(Some(&row.ttl))),
        wide("BEHAVIOR", |row: &Row| row.behavior.map_or(NONE, Behavior::as_str).into()),
        wide("LOCK-DELAY", lock_delay),
        wide("CHECKS", Row::checks),
    ]
}

fn name(row: &Row) -> String {
    let is_dead = row.role.as_ref().is_some_and(|role| role.state == Part::Dead);
    match row.found {
        false if row.unknown => "unknown".into(),
        false if is_dead => "no session".into(),
        true | false => cell(row.name.as_deref()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::operator::Role;
    use crate::status::Health;
    use slotkeeper_consul::Session;
    use slotkeeper_semaphore::Identity;

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

    fn role(state: Part) -> Role {
        Role {
            state,
            health: Health::Live,
            slots: Some(1),
            slot_indexes: vec![0],
            priority: Some(2),
            since: Some("2026-01-02T03:04:05Z".into()),
            age_seconds: None,
            who: Some(Identity { host: Some("vm".into()), pid: Some(7), ..Identity::default() }),
            body: None,
            foreign: Some(false),
            evicted_by: None,
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
            table_of(&rows, false, Layout::WIDE),
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
            namespace: Some("n1".into()),
            pid: Some(1),
            ..Identity::default()
        };
        let foreign = Role {
            priority: None,
            since: None,
            who: None,
            body: Some("db\x1b".into()),
            foreign: Some(true),
            ..role(Part::Waiting)
        };
        let unknown = Role { foreign: None, who: None, since: None, priority: None, ..role(Part::Dead) };
        let now = humantime::parse_rfc3339("2026-01-02T03:06:06Z").unwrap();
        let row = |id: &str, role| Row { role: Some(role), ..Row::from(session(id, "30s")) }.at(now);
        let rows = [
            row("a", role(Part::Held)),
            row("b", Role { who: Some(pod), slots: Some(2), ..role(Part::Waiting) }),
            row("c", foreign),
            Row { session: "d\u{202e}".into(), role: Some(unknown), ..Row::default() },
        ];
        assert_eq!(
            table_of(&rows, true, Layout::WIDE),
            "\
SESSION    STATE    SLOTS  PRIORITY  WHO                       AGE   SINCE                 NAME        NODE  TTL  BEHAVIOR  LOCK-DELAY  CHECKS
a          held     1      2         vm pid 7                  2m1s  2026-01-02T03:04:05Z  slotkeeper  vm    30s  delete    1.5s        serfHealth,web
b          waiting  2      2         n1/batch-7                2m1s  2026-01-02T03:04:05Z  slotkeeper  vm    30s  delete    1.5s        serfHealth,web
c          waiting  1      -         foreign client: db\\u{1b}  -     -                     slotkeeper  vm    30s  delete    1.5s        serfHealth,web
d\\u{202e}  dead     1      -         -                         -     -                     no session  -     -    -         -           -
"
        );
        assert_eq!(
            table_of(&rows[..1], true, Layout::NARROW),
            "\
SESSION  STATE  PRIORITY  WHO       AGE   NODE  TTL
a        held   2         vm pid 7  2m1s  vm    30s
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
        let dead = Row { session: "d".into(), role: Some(role(Part::Dead)), ..Row::default() };
        let dead = serde_json::to_value(dead).unwrap();
        let expected = json!({
            "session": "d", "found": false, "name": null, "node": null, "ttl_seconds": null, "behavior": null,
            "lock_delay_seconds": null, "node_checks": null, "service_checks": null, "create_index": null,
            "state": "dead", "health": "live", "slots": 1, "slot_indexes": [0], "priority": 2, "since": "2026-01-02T03:04:05Z",
            "age_seconds": null,
            "who": {"host": "vm", "pid": 7}, "body": null, "foreign": false, "evicted_by": null, "keys": ["p/a"],
        });
        assert_eq!(dead, expected);
    }
}
