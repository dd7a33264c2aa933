use super::*;
use crate::contender::Identity;

pub(crate) fn pair(key: &str, value: &[u8], session: Option<&str>, index: u64) -> Pair {
    Pair {
        key: key.into(),
        value: value.into(),
        flags: 0,
        session: session.map(SessionId::from),
        times_locked: 0,
        create_index: index,
        modify_index: index,
    }
}

fn entry(priority: i32) -> Vec<u8> {
    Entry::new(WaiterState::Waiting, 1, priority, String::new(), Identity::default()).encode()
}

#[test]
fn sibling_prefixes_are_not_of_this_semaphore() {
    let lock = br#"{"Limit":1,"Holders":[]}"#;
    let pairs = vec![pair("p-2/.lock", lock, None, 4), pair("p-2/x", b"", Some("x"), 5)];
    let view = View::new("p", pairs, 5);
    assert_eq!((&view.lock, view.contenders.len()), (&LockKeyState::Missing, 0));
    assert!(view.lives(&"x".into()) == Some(false));
}

#[test]
fn any_locked_key_keeps_its_session_alive_but_only_its_own_makes_a_contender() {
    let view = View::new("p", vec![pair("p/other-name", b"", Some("x"), 5)], 5);
    assert!(view.lives(&"x".into()) == Some(true));
    assert_eq!(view.contender(&"x".into()), None);
}

#[test]
fn waiters_stand_by_priority_then_arrival_and_holders_do_not() {
    let pairs = vec![
        pair("p/.lock", br#"{"Limit":1,"Holders":["h"]}"#, None, 9),
        pair("p/h", b"", Some("h"), 1),
        pair("p/late", &entry(0), Some("late"), 8),
        pair("p/early", &entry(0), Some("early"), 2),
        pair("p/urgent", &entry(5), Some("urgent"), 9),
    ];
    let view = View::new("p", pairs, 9);
    let order: Vec<_> = view.waiters().iter().map(|one| one.session.as_str()).collect();
    assert_eq!(order, ["urgent", "early", "late"]);
}

#[test]
fn only_slotkeepers_leftovers_are_deleted() {
    let pairs = vec![pair("p/gone", &entry(0), None, 3), pair("p/note", b"a note", None, 4)];
    let view = View::new("p", pairs, 4);
    assert_eq!(view.leftovers, [Stray { key: "p/gone".into(), index: 3, by: None }]);
}

#[test]
fn what_else_is_written_into_the_record_makes_it_no_leftover() {
    let record = br#"{"Limit":1,"Holders":[],"slotkeeper":1,"state":"waiting","slots":1,"priority":0}"#;
    let pairs = vec![pair("p/.lock", record, None, 4), pair("p/left", &entry(0), None, 5)];
    let view = View::new("p", pairs, 5);
    assert!(view.record().is_some());
    let keys: Vec<_> = view.leftovers.iter().map(|leftover| leftover.key.as_str()).collect();
    assert_eq!(keys, ["p/left"]);
}

/// What a newcomer reads: `.lock`, its own key, and the key of the holder `h`.
fn blind(next: &str, waiting: u32) -> View {
    let mut record = Record::new(crate::Form::List, 1);
    record.holders = vec!["h".into()];
    let next = next.split_whitespace().map(SessionId::from).collect();
    record.hints = Some(crate::Hints { indexes: vec![0], next, waiting, ..Default::default() });
    let pairs = [pair("p/.lock", &record.encode(), None, 9), pair("p/me", &entry(0), Some("me"), 20)];
    View::of_some("p", pairs, &["me".into(), "h".into()], 20)
}

#[test]
fn what_was_read_alone_proves_no_death() {
    let view = blind("", 0);
    assert!(!view.is_listed());
    assert_eq!((view.lives(&"h".into()), view.is_missing(&"h".into())), (None, true));
    assert_eq!((view.lives(&"me".into()), view.is_missing(&"me".into())), (Some(true), false));
    assert!(view.dead().is_empty());
}

#[test]
fn the_position_before_a_listing_is_among_the_named_waiters_or_behind_them() {
    let me = "me".into();
    let position = |next, waiting| {
        let view = blind(next, waiting);
        (view.position(&me), view.waiting(), view.known_position(&me).is_some())
    };
    assert_eq!(position("b b me c", 3), (Some(2), 3, true), "a name stands there for each slot");
    assert_eq!(position("b b c", 40), (Some(41), 40, false));
    assert_eq!(position("", 0), (Some(1), 1, false));
}

#[test]
fn the_slot_indexes_are_those_of_the_record_or_else_of_the_contender_keys() {
    let mut held = Entry::new(WaiterState::Held, 1, 0, String::new(), Identity::default());
    held.indexes = vec![7];
    let lock = pair("p/.lock", br#"{"Limit":9,"Holders":["h"]}"#, None, 9);
    let view = View::new("p", vec![lock, pair("p/h", &held.encode(), Some("h"), 4)], 9);
    assert_eq!(view.indexes(), BTreeMap::from([(&"h".into(), vec![7])]));
    assert_eq!(blind("", 0).indexes(), BTreeMap::from([(&"h".into(), vec![0])]));
}

#[test]
fn a_past_listing_is_decided_upon_only_while_it_knows_all_holders() {
    let lock = |holders: &str| {
        let value = format!(r#"{{"Limit":2,"Holders":[{holders}]}}"#);
        pair("p/.lock", value.as_bytes(), None, 9)
    };
    let listed = |holders| View::new("p", vec![lock(holders), pair("p/x", b"", Some("x"), 4)], 9);
    let past = listed(r#""x""#).of_past().unwrap();
    assert_eq!((past.lives(&"x".into()), past.lives(&"gone".into())), (Some(true), None));
    assert_eq!(listed(r#""x","new""#).of_past(), None);
    assert_eq!(blind("", 0).of_past(), None);
}

#[test]
fn for_people_a_later_read_of_some_keys_is_laid_over_a_listing() {
    let listed =
        View::new("p", vec![pair("p/h", &entry(0), Some("h"), 4), pair("p/b", &entry(0), Some("b"), 5)], 9);
    let updated = listed.updated(&blind("", 0));
    let sessions: Vec<_> = updated.contenders.iter().map(|one| one.session.as_str()).collect();
    assert_eq!((sessions, updated.lock_index()), (vec!["b", "me"], 9));
}
