use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::{View as _, table};
use crate::cli::table::Layout;
use crate::operator::{Inspection, PrefixSnapshot};
use slotkeeper_consul::{Behavior, Indexed, Session};
use slotkeeper_semaphore::{LOCK_FLAGS, Listing, Pair};

fn pair(key: &str, value: &str, session: Option<&str>, create_index: u64) -> Pair {
    Pair {
        key: key.to_owned(),
        value: value.as_bytes().to_vec(),
        flags: 0,
        session: session.map(Into::into),
        times_locked: 3,
        create_index,
        modify_index: create_index + 100,
    }
}

fn session(id: &str) -> Session {
    Session {
        id: id.into(),
        name: "slotkeeper".into(),
        node: "vm".into(),
        behavior: Behavior::Delete,
        ttl: Some(Duration::from_secs(30)),
        lock_delay: Duration::from_secs(15),
        node_checks: vec!["serfHealth".into()],
        service_checks: Vec::new(),
        create_index: 7,
    }
}

/// 2026-01-02T03:04:05Z.
fn now() -> SystemTime {
    humantime::parse_rfc3339("2026-01-02T03:04:05Z").unwrap()
}

fn report(at_prefix: Option<Pair>, below: Vec<Pair>, sessions: &[&str]) -> Inspection {
    report_of(at_prefix, below, sessions, (false, false))
}

/// `filtered`: whether Consul reports that it hides keys, and sessions.
fn report_of(
    at_prefix: Option<Pair>,
    below: Vec<Pair>,
    sessions: &[&str],
    filtered: (bool, bool),
) -> Inspection {
    let below = Listing { pairs: below, index: 500, filtered: filtered.0 };
    let value = sessions.iter().map(|id| session(id)).collect();
    let sessions = Indexed { index: 500, filtered: filtered.1, value };
    PrefixSnapshot::of("p", at_prefix, below, sessions).inspect().at(now())
}

fn entry(state: &str, more: &str) -> String {
    format!(r#"{{"slotkeeper":1,"state":"{state}","slots":1{more}}}"#)
}

fn semaphore() -> Vec<Pair> {
    let held = r#","indexes":[1],"since":"2026-01-02T03:01:52Z","who":{"pod":"batch-7","node":"n1"}"#;
    vec![
        pair("p/.lock", r#"{"Limit":2,"Holders":["gone","b","a"]}"#, None, 1),
        pair("p/a", "db\u{1b}[2J", Some("a"), 2),
        pair("p/b", &entry("held", held), Some("b"), 3),
        pair("p/large", r#"{"slotkeeper":1,"state":"waiting","slots":9,"priority":4}"#, Some("large"), 4),
        pair(
            "p/w",
            &entry("waiting", r#","since":"2026-01-01T02:03:05Z","together":["p","q\u001b"]"#),
            Some("w"),
            5,
        ),
        // A time stamp that cannot be parsed.
        pair("p/x", &entry("waiting", r#","since":"2027-01-01T00:00:00Z\u001b""#), Some("x"), 6),
        pair("p/out", &entry("held", ""), Some("out"), 7),
        pair("p/left", &entry("held", ""), None, 8),
    ]
}

#[test]
fn the_tables_show_holders_waiters_and_others() {
    let report = report(None, semaphore(), &["a", "b", "large", "w", "x", "out"]);
    let expected = "\
p: semaphore (list), 3 of 2 slots taken, ModifyIndex 101

HOLDER  STATE  SLOTS  WHO                          AGE    SLOT  HEALTH  SINCE
gone    dead   1      -                            -      -     dead    -
b       held   1      batch-7                      2m13s  1     live    2026-01-02T03:01:52Z
a       held   1      foreign client: db\\u{1b}[2J  -      -     live    -

POSITION  WAITER  SLOTS  PRIORITY  WHO  AGE   HEALTH  REMARK                                             SINCE
1         large   9      4         -    -     live    passed over: the semaphore cannot grant its slots  -
2         w       1      0         -    1d1h  live    next; together with q\\u{1b}                        2026-01-01T02:03:05Z
3         x       1      0         -    -     live    -                                                  -

OTHER  STATE    WHO  HEALTH  KEYS
out    removed  -    live    p/out

over the limit by 1 slot: no slot is granted until fewer than 2 are held
1 holder is dead, with 1 slot: reclaimed by the next client after its prune_delay; at once: slotkeeper prune p
1 contender key is left by ended sessions: removed by the next client, or slotkeeper prune p
";
    assert_eq!(table::of(&report, Layout::WIDE), expected);
    let narrow = table::of(&report, Layout { columns: 50, ..Layout::NARROW });
    assert!(
        narrow.lines().all(|line| line.chars().count() <= 50 || line.starts_with("prune_delay")),
        "{narrow}"
    );
    assert!(
        narrow.contains("\nover the limit by 1 slot: no slot is granted until\nfewer than 2 are held\n"),
        "{narrow}"
    );
    assert!(narrow.starts_with("p: semaphore (list), 3 of 2 slots taken,\nModifyIndex 101\n"), "{narrow}");
}

/// What is usual is left out.
#[test]
fn a_narrow_table_fits_eighty_columns() {
    let ids = ["68589f46-b267-eec3-58dc-01f6026cce61", "08f32efb-2e9a-c22c-16c0-8ff5c1b2e294"];
    let who = |pod: &str| format!(r#","indexes":[1],"since":"2026-01-02T03:01:52Z","who":{{"pod":"{pod}"}}"#);
    let keys = vec![
        pair("p/.lock", &json!({"Limit": 1, "Holders": [ids[0]]}).to_string(), None, 1),
        pair(&format!("p/{}", ids[0]), &entry("held", &who("import-7")), Some(ids[0]), 2),
        pair(&format!("p/{}", ids[1]), &entry("waiting", &who("import-8")), Some(ids[1]), 3),
    ];
    let report = report(None, keys, &ids);
    let expected = "\
p: semaphore (list), 1 of 1 slots taken, ModifyIndex 101

HOLDER    WHO       AGE    SLOT  HEALTH
68589f46  import-7  2m13s  1     live

POSITION  WAITER    WHO       AGE    HEALTH  REMARK
1         08f32efb  import-8  2m13s  live    next
";
    assert_eq!(table::of(&report, Layout { short_ids: true, columns: 80, ..Layout::NARROW }), expected);
    let bare = table::of(&report, Layout { headers: false, ..Layout::NARROW });
    assert!(!bare.contains("HOLDER") && !bare.contains("POSITION") && bare.contains(ids[1]), "{bare}");
}

#[test]
fn on_a_terminal_sessions_are_abbreviated_if_unambiguous() {
    let record = r#"{"Limit":9,"Holders":["0123-4567-a","aaaa-bbbb-1","short"]}"#;
    let keys = vec![
        pair("p/.lock", record, None, 1),
        pair("p/aaaa-bbbb-1", &entry("held", ""), Some("aaaa-bbbb-1"), 2),
        pair("p/aaaa-bbbb-2", &entry("waiting", ""), Some("aaaa-bbbb-2"), 3),
    ];
    let report = report(None, keys, &["aaaa-bbbb-1", "aaaa-bbbb-2"]);
    for (short_ids, expected) in [
        (true, ["0123-456  dead", "aaaa-bbbb-1  held", "short  dead", "1  aaaa-bbbb-2"]),
        (false, ["0123-4567-a  dead", "aaaa-bbbb-1  held", "short  dead", "1  aaaa-bbbb-2"]),
    ] {
        let shown = table::of(&report, Layout { short_ids, ..Layout::WIDE });
        for row in expected {
            let is_it = |line: &str| {
                let words: Vec<_> = line.split_whitespace().take(2).collect();
                words.join("  ") == row
            };
            assert!(shown.lines().any(is_it), "{row:?}: {shown}");
        }
    }
}

#[test]
fn no_field_is_left_out_of_the_json() {
    let seen = serde_json::to_value(report(None, semaphore(), &["a", "b"])).unwrap();
    let mut whole = seen.clone();
    for list in ["holders", "queue", "others"] {
        whole[list] = Value::Null;
    }
    assert_eq!(
        whole,
        json!({
            "schema_version": 1, "prefix": "p", "kind": "semaphore", "key": "p/.lock", "description": null, "form": "list", "limit": 2,
            "slots_taken": 3, "slots_free": 0, "modify_index": 101, "lock_index": null, "next": "w",
            "holders": null, "queue": null, "others": null, "leftovers": 1, "rings": [], "seen_at": "2026-01-02T03:04:05Z",
            "hidden": {"keys": null, "sessions": r#"`session_prefix "" { policy = "read" }`"#},
        })
    );
    assert_eq!(
        seen["holders"][1],
        json!({
            "session": "b", "found": true, "name": "slotkeeper", "node": "vm", "ttl_seconds": 30.0, "behavior": "delete",
            "lock_delay_seconds": 15.0, "node_checks": ["serfHealth"], "service_checks": [], "create_index": 7,
            "state": "held", "health": "live", "slots": 1, "slot_indexes": [1], "priority": 0, "since": "2026-01-02T03:01:52Z",
            "age_seconds": 133,
            "who": {"pod": "batch-7", "node": "n1"}, "body": null, "foreign": false, "evicted_by": null, "keys": ["p/b"],
            "position": null, "passed_over": null, "asked": false, "together": [],
        })
    );
    // Every waiter has a session: if one is not shown, a dead holder's may be hidden too.
    assert_eq!(
        (&seen["holders"][0]["health"], &seen["queue"][1]["health"]),
        (&json!("dead"), &json!("unknown"))
    );
    assert_eq!(
        (&seen["queue"][0]["passed_over"], &seen["queue"][1]["passed_over"]),
        (&json!(true), &json!(false))
    );
    assert_eq!((&seen["queue"][2]["position"], &seen["queue"][2]["age_seconds"]), (&json!(3), &Value::Null));
    let page = include_str!("../../../docs/operators.md");
    let documented = |value: &Value| {
        let mut names = value.as_object().unwrap().keys();
        names.all(|name| page.contains(&format!("`{name}`")))
    };
    assert!(documented(&seen) && documented(&seen["holders"][1]), "docs/operators.md has every field");
    let nothing = serde_json::to_value(report(None, Vec::new(), &[])).unwrap();
    let fields = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(fields(&nothing), fields(&seen));
}

#[test]
fn what_is_no_semaphore_is_described() {
    let lock = |key: &str, session| Pair { flags: LOCK_FLAGS, ..pair(key, "", session, 1) };
    for (at_prefix, below, expected) in [
        (None, vec![], "p: no semaphore and no lock, it seems\n"),
        (Some(lock("p", None)), vec![], "p: lock, free, ModifyIndex 101, LockIndex 3\n"),
        (
            Some(lock("p", None)),
            vec![lock("p/.lock", Some("a"))],
            "p/.lock: lock, taken, ModifyIndex 101, LockIndex 3\n",
        ),
        (
            None,
            vec![pair("p/.lock", "\u{1b}", None, 1)],
            "p/.lock: neither semaphore nor lock: it is not a JSON object but `\\u{1b}`\n",
        ),
        (
            Some(pair("p", "x", None, 1)),
            vec![],
            "p: neither semaphore nor lock: the key p is not a single-key lock: it holds `x`",
        ),
    ] {
        let shown = table::of(
            &Inspection { hint: ", it seems".into(), ..report(at_prefix, below, &["a"]) },
            Layout::WIDE,
        );
        assert!(shown.starts_with(expected), "{shown:?} should begin with {expected:?}");
    }
}

#[test]
fn what_is_hidden_is_unknown_and_the_rules_that_would_show_it_are_named() {
    let report = report_of(None, semaphore(), &["a", "b", "large", "w", "x"], (true, true));
    let shown = table::of(&report, Layout::WIDE);
    for expected in [
        "\ngone    unknown  1      -                            -      -     unknown ",
        "\n-         large   9 ",
        "\n-         w       1      0         -    1d1h  live    together with q",
        "Consul hides keys below p/ from the token: a holder whose key is hidden is `unknown`, and waiters may be missing; the \
         token needs `key_prefix \"p/\" { policy = \"read\" }`\n",
        "Consul does not show 2 participants' sessions: just ended, or hidden from the token; it needs \
         `session_prefix \"\" { policy = \"read\" }`\n",
    ] {
        assert!(shown.contains(expected), "{expected:?} should be in {shown}");
    }
    assert!(!shown.contains("dead"), "{shown}");
    let seen = serde_json::to_value(report).unwrap();
    assert_eq!(
        seen["hidden"],
        json!({
            "keys": r#"`key_prefix "p/" { policy = "read" }`"#,
            "sessions": r#"`session_prefix "" { policy = "read" }`"#,
        })
    );
    assert_eq!((&seen["next"], &seen["queue"][0]["position"]), (&Value::Null, &Value::Null));
    let nothing = report_of(None, Vec::new(), &[], (true, false));
    let shown = table::of(&nothing, Layout::WIDE);
    assert!(
        shown.starts_with("p: unknown: p/.lock is hidden from the token, or does not exist\n"),
        "{shown}"
    );
    assert_eq!(serde_json::to_value(nothing).unwrap()["kind"], "unknown");
}
