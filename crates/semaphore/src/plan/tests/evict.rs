//! Who is asked to go, and who is taken out.

use super::*;

const HELD: Option<WaiterState> = Some(WaiterState::Held);
const WAITS: Option<WaiterState> = Some(WaiterState::Waiting);

fn stay(view: &View, session: &str) -> Option<Membership> {
    Membership::of(view, &session.into())
}

fn part(view: &View, session: &str) -> Option<(MembershipKind, bool)> {
    stay(view, session).map(|stay| (stay.part, stay.foreign))
}

/// Two holders, the line behind them, and a holder that is dead.
fn crowd() -> View {
    let lock = r#"{"Limit":3,"Holders":["h","other","dead"],"Next":["a","b"]} "#;
    view(Some((lock, 0)), &[("h", HELD), ("other", HELD), ("a", WAITS), ("b", WAITS), ("out", HELD)])
}

/// A holder, another client's, and the line behind them, in which nobody is named.
fn shared() -> View {
    let lock = r#"{"Limit":2,"Holders":["h","theirs"]}"#;
    view(Some((lock, 0)), &[("h", HELD), ("theirs", None), ("a", WAITS), ("b", WAITS)])
}

fn asked(view: &mut View, session: &str) -> Vec<Op> {
    let ops = request_eviction(view, &stay(view, session).unwrap(), "ops@vm").unwrap().ops;
    view.apply(&ops, 60);
    ops
}

fn wants(write: Option<Write>) -> (Option<(String, u64)>, Vec<String>) {
    written(&Plan { write, ..Plan::new(PlanOutcome::Holding) })
}

#[test]
fn each_participant_has_one_membership() {
    let view = crowd();
    assert_eq!(part(&view, "h"), Some((MembershipKind::Holds, false)));
    assert_eq!(part(&view, "dead"), Some((MembershipKind::Dead, false)));
    assert_eq!(part(&view, "b"), Some((MembershipKind::Waits, false)));
    assert_eq!((part(&view, "out"), part(&view, "nobody")), (None, None), "it was taken out before");
    assert_eq!(part(&shared(), "theirs"), Some((MembershipKind::Holds, true)));
    let lock = Some((r#"{"Limit":1,"Holders":[]}"#, 0));
    assert_eq!(part(&self::view(lock, &[("theirs", None)]), "theirs"), Some((MembershipKind::Waits, true)));
}

#[test]
fn a_holder_is_asked_in_its_own_entry_and_nothing_else_changes() {
    let mut view = crowd();
    let mut expected = view.entry_of(&"h".into()).unwrap().clone();
    expected.evicted_by = Some("ops@vm".into());
    let ops = asked(&mut view, "h");
    let [Op::CheckIndex { key: lock, index: 42 }, Op::Cas { key, value, index: 10, .. }] = ops.as_slice()
    else {
        panic!("{ops:?}");
    };
    assert_eq!((lock.as_str(), key.as_str()), ("p/.lock", "p/h"));
    assert_eq!(Entry::decode(value), Some(expected));
    assert_eq!(request_eviction(&view, &stay(&view, "h").unwrap(), "another"), None, "once is enough");
    assert_eq!(part(&view, "h"), Some((MembershipKind::Holds, false)));
}

#[test]
fn a_waiter_that_cannot_be_served_is_not_named_and_is_passed_over() {
    let mut view = crowd();
    let ops = asked(&mut view, "a");
    assert!(matches!(&ops[0], Op::Cas { key, index: 42, .. } if key == "p/.lock"), "{ops:?}");
    assert_eq!(view.record().unwrap().next, [SessionId::from("b")]);
    assert_eq!(view.position(&"b".into()), Some(1));
    assert_eq!(view.position(&"a".into()), None);
    // Nobody lets it in, however many slots there are.
    let raised = set_limit(&view, 9, "", NOW).unwrap();
    assert_eq!(wants(raised).1, ["p/b Held [0]"]);
}

/// The handoff list names `a` and `b`, `b` is the lookout, and a foreign client has joined since.
fn lookout_beside_foreign() -> View {
    let lock = r#"{"Limit":1,"Holders":["h"],"Next":["a","b"]} "#;
    let mut pairs = pairs(Some((lock, 0)), &[("h", HELD), ("a", WAITS), ("b", WAITS), ("theirs", None)]);
    let lookout = pairs.iter_mut().find(|pair| pair.key == "p/b").unwrap();
    lookout.value = Entry::decode(&lookout.value).unwrap().as_lookout().encode();
    View::new("p", pairs, 50)
}

fn steps_that_write<'a>(ops: &'a [Op], key: &str) -> Vec<&'a Op> {
    let checks = |op: &Op| matches!(op, Op::CheckIndex { .. } | Op::CheckSession { .. } | Op::List { .. });
    ops.iter().filter(|op| op.key() == key && !checks(op)).collect()
}

#[test]
fn evicting_a_lookout_beside_a_foreign_client_writes_its_contender_key_once() {
    let mut view = lookout_beside_foreign();
    let ops = asked(&mut view, "b");
    assert!(matches!(steps_that_write(&ops, "p/b")[..], [Op::Cas { .. }]), "{ops:?}");
    assert_eq!(view.evicted_by(&"b".into()), Some("ops@vm"));
    assert!(view.is_lookout(&"a".into()) && !view.has_lookout(), "the first of ours watches for free slots");

    let view = lookout_beside_foreign();
    let ops = force_eviction(&view, &stay(&view, "b").unwrap(), "", NOW).unwrap().ops;
    assert!(matches!(steps_that_write(&ops, "p/b")[..], [Op::DeleteCas { .. }]), "{ops:?}");
}

#[test]
fn an_evicted_client_does_nothing_but_leave() {
    for standing in [HELD, WAITS] {
        let held = if standing == HELD { r#""me""# } else { "" };
        let lock = format!(r#"{{"Limit":1,"Holders":[{held}]}}"#);
        let mut view = view(Some((&lock, 0)), &[("me", standing)]);
        asked(&mut view, "me");
        let plan = planned(&view, &settings(1, 1), hold, false);
        assert_eq!(
            (plan.outcome, plan.write, plan.refresh),
            (PlanOutcome::Evicted("ops@vm".into()), None, None)
        );
    }
}

#[test]
fn an_operators_name_is_shown_as_printable_text() {
    let mut view = view(Some((r#"{"Limit":1,"Holders":["me"]}"#, 0)), &[("me", HELD)]);
    let ops = request_eviction(&view, &stay(&view, "me").unwrap(), &"\u{1b}[2J".repeat(50_000)).unwrap().ops;
    view.apply(&ops, 60);
    let PlanOutcome::Evicted(by) = planned(&view, &settings(1, 1), hold, false).outcome else { panic!() };
    assert!(by.starts_with("\\u{1b}[2J") && by.len() <= 103 && !by.contains('\u{1b}'), "{by}");
}

#[test]
fn a_lost_slot_is_handed_off_with_its_index() {
    let lock = Some((r#"{"Limit":1,"Holders":["me"],"Next":["a"]} "#, 0));
    let mut pairs = Vec::new();
    for (session, state, index) in [("me", WaiterState::Held, 10), ("a", WaiterState::Waiting, 11)] {
        let mut entry = Entry::new(state, 1, 0, String::new(), Identity::default());
        entry.indexes = if state == WaiterState::Held { vec![7] } else { Vec::new() };
        pairs.push((session, entry, index));
    }
    let mut view = view(lock, &[]);
    for (session, entry, index) in pairs {
        let pair = Pair {
            key: format!("p/{session}"),
            value: entry.encode(),
            flags: 0,
            session: Some(session.into()),
            times_locked: 1,
            create_index: index,
            modify_index: index,
        };
        view.see_contender(&session.into(), Some(pair), index);
    }
    let (session, who, dead_since, settings) =
        (SessionId::from("me"), Identity::default(), BTreeMap::new(), settings(8, 1));
    let input = PlanInput { held: None, ..plan_input(&session, &settings, &who, &dead_since) };
    // The record of limit 1 has no number 7: the lowest free one is given instead.
    let (_, others) = written(&leave(&view, input, NOW));
    assert_eq!(others, ["p/a Held [0]", "-p/me"]);
    view.invalidate_order();
    let raised = Record::decode(br#"{"Limit":8,"Holders":["me","x"],"Next":["a","b"]} "#, 0).unwrap();
    view.lock = LockKeyState::Record { record: raised, index: 71 };
    // Of a holder that nobody has looked at the numbers are not known: only its own goes on.
    assert!(!view.is_complete());
    assert_eq!(leave(&view, input, NOW).refresh, Some(Refresh::Prefix), "there are slots for `b` too");
    let full =
        Record::decode(br#"{"Limit":8,"Holders":["me","x","x","x","x","x","x","x"],"Next":["a","b"]} "#, 0);
    view.lock = LockKeyState::Record { record: full.unwrap(), index: 71 };
    assert_eq!(written(&leave(&view, input, NOW)).1, ["p/a Held [7]", "-p/me"]);
}

#[test]
fn an_eviction_of_a_dead_holder_or_a_foreign_client_hands_off_by_one_write() {
    let view = crowd();
    let out = |session: &str| wants(force_eviction(&view, &stay(&view, session).unwrap(), "", NOW));
    let record = r#"{"Limit":3,"Holders":["h","other","a"],"Next":["b"]} "#.to_owned();
    let others = ["p/b Lookout", "p/a Held [0]"].map(String::from).to_vec();
    assert_eq!(out("dead"), (Some((record, 42)), others));
    let view = shared();
    let record = r#"{"Limit":2,"Holders":["h","a"]}"#.to_owned();
    let others = ["p/b Lookout", "p/a Held [0]", "-p/theirs"].map(String::from).to_vec();
    let out = wants(force_eviction(&view, &stay(&view, "theirs").unwrap(), "", NOW));
    assert_eq!(out, (Some((record, 42)), others));
}

#[test]
fn a_forced_eviction_deletes_the_contender_key_so_that_its_owner_learns_of_it() {
    let view = crowd();
    let out = |session: &str| wants(force_eviction(&view, &stay(&view, session).unwrap(), "", NOW));
    let record = r#"{"Limit":3,"Holders":["other","dead","a"],"Next":["b"]} "#.to_owned();
    let others = ["p/b Lookout", "p/a Held [0]", "-p/h"].map(String::from).to_vec();
    assert_eq!(out("h"), (Some((record, 42)), others));
    let record = r#"{"Limit":3,"Holders":["h","other","dead"],"Next":["b"]} "#.to_owned();
    let others = ["p/b Lookout", "-p/a"].map(String::from).to_vec();
    assert_eq!(out("a"), (Some((record, 42)), others));
}

#[test]
fn a_lock_that_was_created_or_acquired_again_is_another_membership_and_an_overwritten_one_is_not() {
    let lock = |create_index, times_locked| {
        let entry = Entry::new(WaiterState::Held, 1, 0, String::new(), Identity::default());
        let (key, session) = ("k".into(), Some("me".into()));
        let value = entry.encode();
        let pair =
            Pair { key, value, flags: LOCK_FLAGS, session, times_locked, create_index, modify_index: 9 };
        stay(&View::of_key("k", Some(pair), 9), "me").unwrap()
    };
    assert!(lock(7, 1).is_after(&lock(3, 4)) && lock(3, 5).is_after(&lock(3, 4)));
    // Consul counts from 0 again where the key is written without the lock.
    for written_over in [lock(3, 4), lock(3, 0)] {
        assert!(!written_over.is_after(&lock(3, 4)));
    }
}

#[test]
fn a_lock_is_asked_for_in_its_value_and_keeps_its_owner() {
    let mine = Entry::new(WaiterState::Held, 1, 0, String::new(), Identity::default());
    let pair = Pair {
        key: "k".into(),
        value: mine.encode(),
        flags: LOCK_FLAGS,
        session: Some("me".into()),
        times_locked: 4,
        create_index: 3,
        modify_index: 9,
    };
    let mut view = View::of_key("k", Some(pair), 9);
    assert_eq!(part(&view, "me"), Some((MembershipKind::Holds, false)));
    let ops = asked(&mut view, "me");
    assert!(
        matches!(&ops[..], [Op::CheckIndex { index: 9, .. }, Op::Lock { session, .. }] if *session == "me".into())
    );
    let single = view.single().unwrap();
    assert_eq!((single.times_locked, single.index, view.is_owner(&"me".into())), (4, 60, true));
    let plan = hold(
        &view,
        plan_input(
            &"me".into(),
            &Settings::of_lock("k".into(), true),
            &Identity::default(),
            &BTreeMap::new(),
        ),
        NOW,
    );
    assert_eq!(plan.outcome, PlanOutcome::Evicted("ops@vm".into()));
    let ops = force_eviction(&view, &stay(&view, "me").unwrap(), "", NOW).unwrap().ops;
    assert!(
        matches!(&ops[..], [Op::CheckIndex { index: 60, .. }, Op::Unlock { session, .. }] if *session == "me".into())
    );
    view.apply(&ops, 61);
    assert_eq!(part(&view, "me"), None);
}
