//! Plans of an operator, who takes no part.

use std::collections::BTreeSet;

use super::*;

fn whom(sessions: &[&str]) -> BTreeSet<SessionId> {
    sessions.iter().map(|session| SessionId::from(*session)).collect()
}

fn pruned(view: &View, sessions: &[&str]) -> Plan {
    let write = prune(view, &whom(sessions), "", NOW).unwrap();
    Plan { write, ..Plan::new(PlanOutcome::Holding) }
}

/// A view with what ended sessions have left beside.
fn with_leftovers(lock: &str, leftovers: u64) -> View {
    let entry = Entry::new(WaiterState::Held, 1, 0, String::new(), Identity::default()).encode();
    let pair = |key: String, value: Vec<u8>, index| Pair {
        key,
        value,
        flags: 0,
        session: None,
        times_locked: 0,
        create_index: 1,
        modify_index: index,
    };
    let mut pairs = vec![pair("p/.lock".into(), lock.into(), 42)];
    pairs.extend((0..leftovers).map(|place| pair(format!("p/left-{place:03}"), entry.clone(), 43 + place)));
    View::new("p", pairs, 200)
}

/// Nothing is known of anybody but what its key says.
fn nobody(_: &SessionId) -> Option<String> {
    None
}

#[test]
fn a_prune_of_named_dead_holders_hands_off_by_the_same_write() {
    let lock = Some((r#"{"Limit":2,"Holders":["dead","a"]}"#, 0));
    let with = |holder: Option<WaiterState>| {
        let waits = Some(WaiterState::Waiting);
        written(&pruned(&view(lock, &[("a", holder), ("b", waits), ("c", waits)]), &["dead"]))
    };
    let others = ["p/c Lookout", "p/b Held [0]"].map(String::from).to_vec();
    let expected = r#"{"Limit":2,"Holders":["a","b"],"Next":["c"]} "#.to_owned();
    assert_eq!(with(Some(WaiterState::Held)), (Some((expected, 42)), others.clone()));
    // Another client takes no field of ours in its record.
    let expected = r#"{"Limit":2,"Holders":["a","b"]}"#.to_owned();
    assert_eq!(with(None), (Some((expected, 42)), others));
}

#[test]
fn a_holder_that_lives_again_or_was_not_meant_is_not_pruned() {
    let lock = Some((r#"{"Limit":3,"Holders":["dead","late","a"]}"#, 0));
    let seen = view(lock, &[("a", None)]);
    // One that died while somebody was asked about the other.
    assert_eq!(lock_of(&pruned(&seen, &["dead", "a"])), r#"{"Limit":3,"Holders":["late","a"]}"#);
    assert_eq!(pruned(&seen, &["a"]).write, None);
    assert_eq!(pruned(&seen, &[]).write, None);
}

#[test]
fn leftovers_are_swept_up_by_their_index() {
    let mut seen = with_leftovers(r#"{"Limit":1,"Holders":["left-000"]}"#, 1);
    let write = pruned(&seen, &["left-000"]).write.unwrap();
    assert_eq!(write.ops.len(), 2);
    assert_eq!(write.ops[1], Op::DeleteCas { key: "p/left-000".into(), index: 43 });
    seen.apply(&write.ops, 300);
    assert_eq!(pruned(&seen, &["left-000"]).write, None);
}

#[test]
fn what_is_no_semaphore_is_neither_pruned_nor_destroyed() {
    for (lock, said) in [
        (None, "does not exist"),
        (Some(("a note", 0)), "a note"),
        (Some(("", LOCK_FLAGS)), "single-key lock"),
    ] {
        let seen = view(lock, &[]);
        assert!(prune(&seen, &whom(&["a"]), "", NOW).unwrap_err().contains(said), "{lock:?}");
        if lock.is_some() {
            assert!(destroy(&seen, 42, &nobody).unwrap_err().contains(said), "{lock:?}");
        }
    }
}

#[test]
fn what_is_in_use_is_not_destroyed() {
    for (lock, contenders, said) in [
        (r#"{"Limit":1,"Holders":["a"]}"#, &[("a", Some(WaiterState::Held))][..], "held by session `a`"),
        (r#"{"Limit":1,"Holders":[]}"#, &[("b", Some(WaiterState::Waiting))], "waited for by session `b`"),
        (r#"{"Limit":1,"Holders":[]}"#, &[("b", None)], "waited for by session `b`"),
        // Taken out, it asks again as soon as it has noticed.
        (r#"{"Limit":1,"Holders":[]}"#, &[("b", Some(WaiterState::Held))], "waited for by session `b`"),
        (r#"{"Limit":1,"Holders":["dead"]}"#, &[], "slotkeeper prune p"),
        (
            r#"{"Limit":2,"Holders":["a","dead"]}"#,
            &[("a", None), ("b", None)],
            "held by session `a`; waited for by session `b`",
        ),
    ] {
        let why = destroy(&view(Some((lock, 0)), contenders), 42, &nobody).unwrap_err();
        assert!(why.contains(said), "{why:?} should say {said:?}");
    }
}

#[test]
fn an_unused_semaphore_is_deleted_by_its_index_and_nothing_is_left() {
    let mut seen = view(Some((r#"{"Limit":1,"Holders":[]}"#, 0)), &[]);
    let write = destroy(&seen, 42, &nobody).unwrap().unwrap();
    assert_eq!(write.ops, [Op::DeleteCas { key: "p/.lock".into(), index: 42 }]);
    seen.apply(&write.ops, 0);
    assert_eq!(destroy(&seen, 42, &nobody), Ok(None));
    // What is made anew, or was written meanwhile, is another one.
    let again = view(Some((r#"{"Limit":1,"Holders":[]}"#, 0)), &[]);
    assert!(destroy(&again, 41, &nobody).unwrap_err().contains("was changed before the confirmation"));
}

#[test]
fn leftovers_go_before_the_semaphore_that_they_belong_to() {
    let mut seen = with_leftovers(r#"{"Limit":1,"Holders":[]}"#, 40);
    for expected in [24, 8, 0] {
        let write = destroy(&seen, 42, &nobody).unwrap().unwrap();
        assert!(write.ops.len() <= 64);
        seen.apply(&write.ops, 300);
        assert_eq!(seen.leftovers.len(), expected);
        assert_eq!(seen.lock == LockKeyState::Missing, expected == 0);
    }
    assert_eq!(destroy(&seen, 42, &nobody), Ok(None));
}

#[test]
fn a_free_lock_is_deleted_and_a_held_one_is_not() {
    let lock = |flags, owner: Option<&str>| {
        let pair = Pair {
            key: "k".into(),
            value: Vec::new(),
            flags,
            session: owner.map(SessionId::from),
            times_locked: 1,
            create_index: 1,
            modify_index: 7,
        };
        View::of_key("k", Some(pair), 7)
    };
    let write = destroy(&lock(LOCK_FLAGS, None), 7, &nobody).unwrap().unwrap();
    assert_eq!(write.ops, [Op::DeleteCas { key: "k".into(), index: 7 }]);
    assert!(destroy(&lock(LOCK_FLAGS, None), 6, &nobody).unwrap_err().contains("was changed"));
    assert!(destroy(&lock(LOCK_FLAGS, Some("a")), 7, &nobody).unwrap_err().contains("session `a` has it"));
    assert!(destroy(&lock(0, None), 7, &nobody).unwrap_err().contains("not a single-key lock"));
}

proptest! {
    #![proptest_config(slotkeeper_test_seed::cases())]

    /// Whatever stands there: only the dead who were named go, nobody comes in past the limit, and it comes to an end.
    #[test]
    fn pruning_takes_out_nobody_else(
        limit in 1_u32..6,
        holders in prop::collection::vec(0_u8..12, 0..8),
        live in prop::collection::vec((0_u8..12, prop::option::of(prop::bool::ANY)), 0..12),
        named in prop::collection::btree_set(0_u8..12, 0..6),
        map: bool,
    ) {
        let name = |id: &u8| format!("s{id:02}");
        let mut holders: Vec<_> = holders.iter().map(name).collect();
        if map {
            holders.sort();
            holders.dedup();
        }
        let mut record = Record::new(if map { Form::Map } else { Form::List }, limit);
        record.holders = holders.iter().map(SessionId::from).collect();
        let lock = String::from_utf8(record.encode()).unwrap();
        let live: BTreeMap<_, _> = live.iter().map(|(id, ours)| (name(id), *ours)).collect();
        let standing = |id: &str, ours: Option<bool>| ours.map(|_| {
            if holders.iter().any(|holder| holder == id) { WaiterState::Held } else { WaiterState::Waiting }
        });
        let contenders: Vec<_> = live.iter().map(|(id, ours)| (id.as_str(), standing(id, *ours))).collect();
        let before = view(Some((&lock, record.flags())), &contenders);
        let whom: BTreeSet<SessionId> = named.iter().map(|id| SessionId::from(name(id))).collect();
        let mut seen = before.clone();
        let mut index = 100;
        while let Some(write) = prune(&seen, &whom, "", NOW).unwrap() {
            prop_assert!(write.ops.len() <= 64);
            seen.apply(&write.ops, index);
            index += 1;
            prop_assert!(index < 110, "it goes on for ever");
        }
        let after = seen.record().unwrap();
        for holder in &record.holders {
            let goes = whom.contains(holder) && !before.is_alive(holder);
            prop_assert_eq!(after.slots_of(holder), if goes { 0 } else { record.slots_of(holder) });
        }
        let stay: u32 = after.holders.iter().filter(|holder| record.holders.contains(holder)).count() as u32;
        prop_assert!(after.taken() <= limit.max(stay));
        prop_assert_eq!(after.form(), record.form());
    }

    /// A semaphore is destroyed only where nobody is in it.
    #[test]
    fn nobody_is_in_what_is_destroyed(
        holders in prop::collection::vec(0_u8..4, 0..3),
        live in prop::collection::btree_set(0_u8..4, 0..3),
        index in 41_u64..44,
    ) {
        let name = |id: &u8| format!("s{id}");
        let holders: Vec<_> = holders.iter().map(name).collect();
        let live: Vec<_> = live.iter().map(name).collect();
        let contenders: Vec<_> = live.iter().map(|id| (id.as_str(), None)).collect();
        let lock = format!(r#"{{"Limit":2,"Holders":{holders:?}}}"#);
        let planned = destroy(&view(Some((&lock, 0)), &contenders), index, &nobody);
        prop_assert_eq!(planned.is_ok(), holders.is_empty() && live.is_empty() && index == 42);
    }
}
