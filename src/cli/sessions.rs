//! `slotkeeper sessions`: lists Consul's sessions, or those of a prefix.

use std::time::SystemTime;

use clap::Args;
use serde::{Serialize, Serializer};
use serde_json::json;

use super::cells::{columns, hidden_rules, name};
use super::operator_flags::{OperatorFlags, hidden, lock_or_prefix};
use super::session_ids::SessionIds;
use super::show::{Show, View};
use super::table::{Layout, always, table, wide};
use super::{Exit, run_requests};
use crate::escape::printable;
use crate::operator::{self, Error, Found, Inspection, Participant, Poll, SESSIONS, SessionRow, Watch};
use crate::schema_version::SchemaVersion;

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
    show: Show,
    #[command(flatten)]
    consul: OperatorFlags,
}

/// The sessions, or the participants of a prefix.
#[derive(Clone, PartialEq)]
struct Report {
    /// The prefix, if one was given. Without, the rows have nothing but their sessions.
    prefix: Option<String>,
    rows: Vec<Participant>,
    /// What is hidden from the token, and the rule that shows it.
    hidden: Vec<String>,
    /// Whether the prefix has a semaphore, a lock or a participant, or may have one that is hidden.
    is_there: bool,
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let has_roles = self.prefix.is_some();
        let row = |one: &Participant| if has_roles { json!(one) } else { json!(one.session) };
        let rows: Vec<_> = self.rows.iter().map(row).collect();
        json!({"schema_version": SchemaVersion::default(), "prefix": self.prefix, "sessions": rows})
            .serialize(serializer)
    }
}

impl Sessions {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let (client, prefix) = self.consul.connect(self.prefix.as_deref())?;
        run_requests(&client, async {
            if let Some(prefix) = &prefix {
                let mut watch = Watch::new(&client, prefix);
                let next = async || Ok::<_, Error>(Report::of(&watch.next().await?.inspect()));
                return self.show.print(&hidden(&client), next).await;
            }
            let mut poll = Poll::new(&client);
            let next = async || {
                let sessions = poll.next(operator::sessions).await?;
                let hidden = format!("Consul hides sessions from the token; it needs {SESSIONS}");
                let without_role = |session| Participant { session, ..Participant::default() };
                let rows = sessions.value.into_iter().map(SessionRow::from).map(without_role).collect();
                let hidden = sessions.filtered.then_some(hidden).into_iter().collect();
                Ok::<_, Error>(Report { prefix: None, rows, hidden, is_there: true })
            };
            self.show.print(&hidden(&client), next).await
        })
    }
}

impl Report {
    fn of(seen: &Inspection) -> Self {
        let rows: Vec<_> = seen.participants().into_iter().cloned().collect();
        Self {
            prefix: Some(seen.prefix.clone()),
            is_there: !rows.is_empty() || seen.found != Found::Nothing,
            rows,
            hidden: hidden_rules(seen).collect(),
        }
    }
}

impl View for Report {
    fn at(mut self, now: SystemTime) -> Self {
        self.rows.iter_mut().for_each(|one| one.date(now));
        self
    }

    fn table(&self, layout: Layout) -> String {
        let ids = SessionIds::of(self.rows.iter().map(Participant::id), layout.short_ids);
        let (own, name) = match self.prefix {
            None => (&["SESSION"][..], always("NAME", name).flexible()),
            Some(_) => {
                (&["SESSION", "STATE", "SLOTS", "PRIORITY", "WHO", "AGE", "SINCE"][..], wide("NAME", name))
            }
        };
        let mut shown = columns(own, &ids);
        shown.push(name);
        shown.extend(columns(&["NODE", "TTL", "BEHAVIOR", "LOCK-DELAY", "CHECKS"], &ids));
        table(&shown, &self.rows, layout)
    }

    fn names(&self) -> Vec<String> {
        self.rows.iter().map(|one| printable(one.id())).collect()
    }

    fn nothing(&self) -> Option<String> {
        let prefix = self.prefix.as_deref().map(printable);
        let nothing = prefix.map_or("no sessions".into(), |prefix| format!("no participants at {prefix}"));
        self.rows.is_empty().then_some(nothing)
    }

    fn remarks(&self) -> Vec<String> {
        self.hidden.clone()
    }

    fn exit(&self) -> Exit {
        if self.is_there { Exit::Done } else { Exit::Failed }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::operator::ParticipantState;
    use crate::status::Health;
    use slotkeeper_consul::{Behavior, Session};
    use slotkeeper_semaphore::Identity;

    fn session(id: &str, ttl: Option<Duration>) -> Session {
        Session {
            id: id.into(),
            name: "slotkeeper".into(),
            node: "vm".into(),
            behavior: Behavior::Delete,
            ttl,
            lock_delay: Duration::from_millis(1500),
            node_checks: vec!["serfHealth".into()],
            service_checks: vec!["web".into()],
            create_index: 7,
        }
    }

    fn participant(state: ParticipantState, session: SessionRow) -> Participant {
        Participant {
            session,
            state,
            health: Health::Live,
            slots: Some(1),
            slot_indexes: vec![0],
            priority: Some(2),
            since: Some("2026-01-02T03:04:05Z".into()),
            who: Some(Identity { host: Some("vm".into()), pid: Some(7), ..Identity::default() }),
            foreign: Some(false),
            keys: vec!["p/a".into()],
            ..Participant::default()
        }
    }

    fn table_of(prefix: Option<&str>, rows: Vec<Participant>, layout: Layout) -> String {
        let prefix = prefix.map(str::to_owned);
        let report = Report { prefix, rows, hidden: Vec::new(), is_there: true };
        report.at(humantime::parse_rfc3339("2026-01-02T03:06:06Z").unwrap()).table(layout)
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
            ..session("b", None)
        };
        let rows = [session("a", Some(Duration::from_secs(90))), hostile]
            .map(|session| Participant { session: session.into(), ..Participant::default() });
        assert_eq!(
            table_of(None, rows.into(), Layout::WIDE),
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
        let row = |id: &str, state| {
            participant(state, SessionRow::from(session(id, Some(Duration::from_secs(30)))))
        };
        let foreign = Participant {
            priority: None,
            since: None,
            who: None,
            body: Some("db\x1b".into()),
            foreign: Some(true),
            ..row("c", ParticipantState::Waiting)
        };
        let unknown = Participant {
            foreign: None,
            who: None,
            since: None,
            priority: None,
            ..participant(
                ParticipantState::Dead,
                SessionRow { id: "d\u{202e}".into(), ..SessionRow::default() },
            )
        };
        let rows = [
            row("a", ParticipantState::Held),
            Participant { who: Some(pod), slots: Some(2), ..row("b", ParticipantState::Waiting) },
            foreign,
            unknown,
        ];
        assert_eq!(
            table_of(Some("p"), rows.to_vec(), Layout::WIDE),
            "\
SESSION    STATE    SLOTS  PRIORITY  WHO                       AGE   SINCE                 NAME        NODE  TTL  BEHAVIOR  LOCK-DELAY  CHECKS
a          held     1      2         vm pid 7                  2m1s  2026-01-02T03:04:05Z  slotkeeper  vm    30s  delete    1.5s        serfHealth,web
b          waiting  2      2         n1/batch-7                2m1s  2026-01-02T03:04:05Z  slotkeeper  vm    30s  delete    1.5s        serfHealth,web
c          waiting  1      -         foreign client: db\\u{1b}  -     -                     slotkeeper  vm    30s  delete    1.5s        serfHealth,web
d\\u{202e}  dead     1      -         -                         -     -                     no session  -     -    -         -           -
"
        );
        assert_eq!(
            table_of(Some("p"), rows[..1].to_vec(), Layout::NARROW),
            "\
SESSION  STATE  PRIORITY  WHO       AGE   NODE  TTL
a        held   2         vm pid 7  2m1s  vm    30s
"
        );
    }

    #[test]
    fn json_has_every_field_and_seconds() {
        let row =
            serde_json::to_value(SessionRow::from(session("a", Some(Duration::from_secs(90))))).unwrap();
        let expected = json!({
            "session": "a", "found": true, "name": "slotkeeper", "node": "vm", "ttl_seconds": 90.0, "behavior": "delete",
            "lock_delay_seconds": 1.5, "node_checks": ["serfHealth"], "service_checks": ["web"], "create_index": 7,
        });
        assert_eq!(row, expected);
        let missing = SessionRow { id: "d".into(), ..SessionRow::default() };
        let dead = participant(ParticipantState::Dead, missing);
        let dead = serde_json::to_value(dead).unwrap();
        let expected = json!({
            "session": "d", "found": false, "name": null, "node": null, "ttl_seconds": null, "behavior": null,
            "lock_delay_seconds": null, "node_checks": null, "service_checks": null, "create_index": null,
            "state": "dead", "health": "live", "slots": 1, "slot_indexes": [0], "priority": 2, "since": "2026-01-02T03:04:05Z",
            "age_seconds": null,
            "who": {"host": "vm", "pid": 7}, "body": null, "foreign": false, "evicted_by": null, "keys": ["p/a"],
            "position": null, "passed_over": null, "asked": false, "together": [],
        });
        assert_eq!(dead, expected);
    }
}
