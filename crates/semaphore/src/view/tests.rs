use super::*;
use crate::Op;
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
    assert!(!view.is_alive(&"x".into()));
}

#[test]
fn any_locked_key_keeps_its_session_alive_but_only_its_own_makes_a_contender() {
    let view = View::new("p", vec![pair("p/other-name", b"", Some("x"), 5)], 5);
    assert!(view.is_alive(&"x".into()));
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
fn a_holder_that_was_not_listed_is_neither_alive_nor_dead() {
    let lock = |holders: &str, index| {
        pair("p/.lock", format!(r#"{{"Limit":3,"Holders":[{holders}]}}"#).as_bytes(), None, index)
    };
    let mut view = View::new("p", vec![lock(r#""a","gone""#, 5), pair("p/a", b"", Some("a"), 4)], 5);
    let lives = |view: &View| ["a", "gone", "new"].map(|id| view.lives(&id.into()));
    assert_eq!(lives(&view), [Some(true), Some(false), Some(false)]);
    view.see_lock(Some(lock(r#""a","gone","new""#, 9)), 9);
    assert_eq!(lives(&view), [Some(true), None, None]);
    view.see_contender(&"new".into(), None, 10);
    assert_eq!(lives(&view), [Some(true), None, Some(false)]);
}

#[test]
fn only_slotkeepers_leftovers_are_deleted() {
    let pairs = vec![pair("p/gone", &entry(0), None, 3), pair("p/note", b"a note", None, 4)];
    let view = View::new("p", pairs, 4);
    assert_eq!(view.leftovers, [Leftover { key: "p/gone".into(), index: 3 }]);
}

#[test]
fn a_committed_transaction_moves_the_view() {
    let mut view = View::new("p", Vec::new(), 1);
    let input = SessionId::from("me");
    let lock = Op::Lock { key: "p/me".into(), value: entry(0), flags: 0, session: input.clone() };
    let cas = |holders: &str, index| Op::Cas {
        key: "p/.lock".into(),
        value: format!(r#"{{"Limit":1,"Holders":[{holders}]}}"#).into_bytes(),
        flags: 0,
        index,
    };
    view.apply(&[lock, cas("\"me\"", 0)], 7);
    assert_eq!((view.lock_index(), view.record().unwrap().slots_of(&input)), (7, 1));
    assert_eq!(view.contender(&input).unwrap().create_index, 7);
    view.apply(&[cas("", 7), Op::Delete { key: "p/me".into() }], 8);
    assert_eq!((view.lock_index(), view.record().unwrap().taken()), (8, 0));
    assert!(view.contender(&input).is_none() && !view.is_alive(&input));
}

#[test]
fn only_the_first_named_waiter_leads() {
    let input = SessionId::from("me");
    let named = |next: &str| {
        let lock = format!(r#"{{"Limit":2,"Holders":["h"],"Next":[{next}]}} "#);
        let pairs = vec![
            pair("p/.lock", lock.as_bytes(), None, 9),
            pair("p/h", b"", Some("h"), 1),
            pair("p/other", b"", Some("other"), 2),
            pair("p/me", &entry(0), Some("me"), 3),
        ];
        let mut view = View::new("p", pairs, 9);
        view.invalidate_order();
        (view.promote_to_head(&input), view.is_ordered(), view.waiters().len())
    };
    assert_eq!(named(r#""me""#), (true, true, 1));
    assert_eq!(named(r#""","me""#), (false, false, 2));
}

#[test]
fn a_grant_is_later_than_a_read_of_the_record_that_was_on_its_way() {
    let input = SessionId::from("me");
    let lock = |index| pair("p/.lock", br#"{"Limit":1,"Holders":["h"]}"#, None, index);
    let mut view = View::new("p", vec![lock(5), pair("p/me", &entry(0), Some("me"), 6)], 6);
    let sent = view.latest();
    let held = Entry::new(WaiterState::Held, 1, 0, String::new(), Identity::default()).encode();
    view.see_contender(&input, Some(pair("p/me", &held, Some("me"), 9)), 9);
    view.see_lock(Some(lock(8)), 8);
    view.confirm_lock(sent);
    assert!(view.was_granted(&input));
    // A read that was sent after the grant was known does tell.
    view.confirm_lock(view.latest());
    assert!(!view.was_granted(&input));
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

/// What one knows that has come while others wait: `.lock`, and its own contender.
fn blind(next: &str) -> View {
    let lock = format!(r#"{{"Limit":1,"Holders":["h"],"Next":[{next}]}} "#);
    let mut view = View::of_lock("p", Some(pair("p/.lock", lock.as_bytes(), None, 9)), 20);
    let own = Op::Lock { key: "p/me".into(), value: entry(0), flags: 0, session: "me".into() };
    view.apply(&[own], 20);
    view
}

#[test]
fn a_client_that_read_the_record_alone_knows_no_holder() {
    let view = blind(r#""b""#);
    assert!(!view.is_listed() && !view.is_complete() && !view.has_foreign());
    assert_eq!((view.lives(&"h".into()), view.is_missing(&"h".into())), (None, false));
    assert_eq!((view.lock_index(), view.folder_index()), (9, 0));
    assert_eq!(view.contender(&"me".into()).unwrap().create_index, 20);
}

#[test]
fn the_position_before_a_listing_is_among_the_named_waiters_or_behind_them() {
    let place = |next: &str| (blind(next).position(&"me".into()), blind(next).waiting());
    assert_eq!(place(""), (Some(1), 1));
    assert_eq!(place(r#""b","b","c""#), (Some(3), 3), "a name stands there for each slot");
    assert_eq!(place(r#""","b","me","c""#), (Some(2), 3), "of others nobody is counted");
}

#[test]
fn the_names_below_the_prefix_tell_which_holders_live_until_everything_is_listed() {
    let lock = br#"{"Limit":3,"Holders":["a","b","c"]}"#;
    let contenders = ["a", "b"].map(|id| pair(&format!("p/{id}"), b"", Some(id), 4));
    // The last one lives by a key of another name.
    let elsewhere = pair("p/other", b"", Some("c"), 4);
    let pairs = [vec![pair("p/.lock", lock, None, 9)], contenders.into(), vec![elsewhere]].concat();
    let mut view = View::new("p", pairs, 9);
    assert!(view.is_complete() && view.folder_key() == "p/" && view.index_of("p/") == 9);
    let names = ["p/.lock", "p/a", "p/other", "p-2/b"].map(String::from);
    view.see_folder(&Pair::of_folder("p/", names, 30));
    assert_eq!(["a", "b", "c"].map(|id| view.is_missing(&id.into())), [false, true, false]);
    assert_eq!(view.lives(&"b".into()), Some(false));
    assert!(!view.is_complete() && view.index_of("p/") == 30, "of the numbers they tell nothing");
}
