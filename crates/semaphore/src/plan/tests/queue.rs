//! Plans of many in line.

use super::*;
use crate::offered::{FIRST_TURN, MAX_OFFER, Offer};
use crate::queue::MAX_HANDOFFS;

/// A view of `.lock` and of waiters of ours, each with its slots and its priority.
pub(super) fn queue(lock: &str, holders: &[&str], waiters: &[(&str, u32, i32)]) -> View {
    let pair = |key: String, value: Vec<u8>, session: Option<&str>, index| Pair {
        key,
        value,
        flags: 0,
        session: session.map(SessionId::from),
        times_locked: 0,
        create_index: index,
        modify_index: index,
    };
    let mut pairs = vec![pair("p/.lock".into(), lock.into(), None, 42)];
    for (number, holder) in (0..).zip(holders) {
        let entry = Entry::new(WaiterState::Held, 1, 0, String::new(), Identity::default());
        let value = entry.held(vec![number], "").encode();
        pairs.push(pair(format!("p/{holder}"), value, Some(holder), 2 + u64::from(number)));
    }
    for (index, (waiter, slots, priority)) in (10..).zip(waiters) {
        let value =
            Entry::new(WaiterState::Waiting, *slots, *priority, String::new(), Identity::default()).encode();
        pairs.push(pair(format!("p/{waiter}"), value, Some(waiter), index));
    }
    View::new("p", pairs, 50)
}

#[test]
fn a_leaving_client_hands_its_slot_off_with_its_index() {
    let seen =
        queue(r#"{"Limit":1,"Holders":["me"],"Next":["b","c"]} "#, &["me"], &[("b", 1, 0), ("c", 1, 0)]);
    let plan = planned(&seen, &settings(1, 1), leave, false);
    let lock = r#"{"Limit":1,"Holders":["b"],"Next":["c"]} "#;
    let others = ["p/c Lookout", "p/b Held [0]", "-p/me"].map(String::from).to_vec();
    assert_eq!(written(&plan), (Some((lock.into(), 42)), others));
}

#[test]
fn it_does_so_by_the_hint_alone_where_it_knows_no_more() {
    let mut seen = queue(r#"{"Limit":1,"Holders":["me"]}"#, &["me"], &[]);
    let lock = br#"{"Limit":1,"Holders":["me"],"Next":["b","c"]} "#.to_vec();
    let key = "p/.lock".to_owned();
    let pair = Pair {
        key,
        value: lock,
        flags: 0,
        session: None,
        times_locked: 0,
        create_index: 42,
        modify_index: 60,
    };
    seen.see_lock(Some(pair), 60);
    let plan = planned(&seen, &settings(1, 1), leave, false);
    let lock = r#"{"Limit":1,"Holders":["b"],"Next":["c"]} "#;
    assert_eq!(written(&plan), (Some((lock.into(), 60)), vec!["p/b Held [0]".into(), "-p/me".into()]));
    let guard = Op::CheckSession { key: "p/b".into(), session: "b".into() };
    assert!(plan.write.unwrap().ops.contains(&guard), "the dead are not let in");
}

#[test]
fn a_waiter_that_is_named_again_is_still_in_the_queue_as_known() {
    // `b` is named already; the others may have left the line and come again, which `.lock` does not show.
    let waiters = [("me", 1, 0), ("b", 1, 0), ("c", 1, 0), ("d", 1, 0)];
    let seen = queue(r#"{"Limit":1,"Holders":["a"],"Next":["b"]} "#, &["a"], &waiters);
    let write = planned(&seen, &settings(1, 1), hold, false).write.unwrap();
    let (lock, steps) = write.ops.split_first().unwrap();
    let named = br#"{"Limit":1,"Holders":["a"],"Next":["me","b","c","d"]} "#.to_vec();
    assert_eq!(lock, &Op::Cas { key: "p/.lock".into(), value: named, flags: 0, index: 42 });
    // The last one is told by a write that has its index, too, to watch over all.
    let [check, Op::Cas { key, index: 13, .. }] = steps else { panic!("{steps:?}") };
    assert_eq!((check, key.as_str()), (&Op::CheckIndex { key: "p/c".into(), index: 12 }, "p/d"));
}

/// The view of one that held slot 0 when everything was listed, and has read such a `.lock` since.
fn after_reading(lock: &str) -> View {
    let mut seen = queue(r#"{"Limit":1,"Holders":["me"]}"#, &["me"], &[]);
    let (key, value) = ("p/.lock".to_owned(), lock.as_bytes().to_vec());
    let pair =
        Pair { key, value, flags: 0, session: None, times_locked: 0, create_index: 42, modify_index: 60 };
    seen.see_lock(Some(pair), 60);
    seen
}

#[test]
fn a_holder_whose_contender_key_was_deleted_hands_no_index_on() {
    let mut seen = after_reading(r#"{"Limit":2,"Holders":["me","a"],"Next":["b"]} "#);
    seen.see_contender(&"me".into(), None, 70);
    let plan = planned(&seen, &settings(2, 1), leave, false);
    assert_eq!((plan.refresh, plan.write), (Some(Refresh::Prefix), None));
}

#[test]
fn a_leaving_client_grants_itself_no_slot_whatever_the_hint_says() {
    let seen = after_reading(r#"{"Limit":1,"Holders":["me"],"Next":["me","b","c"]} "#);
    let plan = planned(&seen, &settings(1, 1), leave, false);
    let lock = r#"{"Limit":1,"Holders":["b"],"Next":["c"]} "#;
    assert_eq!(written(&plan), (Some((lock.into(), 60)), vec!["p/b Held [0]".into(), "-p/me".into()]));
}

#[test]
fn a_grant_of_fewer_slots_than_are_wanted_is_none() {
    let mut seen = queue(r#"{"Limit":3,"Holders":["a"]}"#, &["a"], &[("me", 3, 0)]);
    let entry = Entry::new(WaiterState::Held, 1, 0, String::new(), Identity::default());
    let input = SessionId::from("me");
    let grant = Pair {
        key: "p/me".into(),
        value: entry.encode(),
        flags: 0,
        session: Some(input.clone()),
        times_locked: 0,
        create_index: 10,
        modify_index: 60,
    };
    seen.see_contender(&input, Some(grant), 60);
    let plan = planned(&seen, &settings(3, 3), hold, false);
    assert_eq!(
        (plan.outcome, plan.refresh),
        (PlanOutcome::NotHolding { room: true }, Some(Refresh::LockKey))
    );
    assert_eq!(planned(&seen, &settings(3, 1), hold, false).outcome, PlanOutcome::Holding);
}

#[test]
fn any_numbers_in_consul_cost_little() {
    // Nobody is believed to want more than the configuration allows.
    let waiters = [("greedy", u32::MAX, 1), ("b", 1, 0)];
    let seen = queue(r#"{"Limit":4294967295,"Holders":["a"]}"#, &["a"], &waiters);
    let write = set_limit(&seen, u32::MAX - 1, "", NOW).unwrap();
    let plan = Plan { write, ..Plan::new(PlanOutcome::Holding) };
    assert_eq!(written(&plan).1, ["p/b Held [1]"]);
    // What names many slots would not fit into `.lock`.
    let many: Vec<String> = (0..16).map(|number| format!("w{number:02}")).collect();
    let waiters: Vec<_> = many.iter().map(|waiter| (waiter.as_str(), 5000, 0)).collect();
    let seen = queue(r#"{"Limit":10000,"Holders":["a"]}"#, &["a"], &waiters);
    let write = set_limit(&seen, 9000, "", NOW).unwrap();
    let plan = Plan { write, ..Plan::new(PlanOutcome::Holding) };
    assert!(!lock_of(&plan).contains("Next"));
}

#[test]
fn a_blocked_client_is_not_in_the_queue() {
    let seen = queue(r#"{"Limit":2,"Holders":["a","b"]}"#, &["a", "b"], &[("me", 1, 0)]);
    let refuses = Settings { limit_policy: LimitPolicy::Refuse, ..settings(3, 1) };
    let plan = planned(&seen, &refuses, hold, false);
    assert!(matches!(plan.outcome, PlanOutcome::Blocked(_)));
    assert_eq!(written(&plan), (None, vec!["-p/me".into()]));
}

#[test]
fn a_group_that_joins_leaves_a_record_to_watch() {
    let (settings, who, session) = (settings(2, 1), Identity::default(), SessionId::from("me"));
    let (dead_since, prefixes) = (BTreeMap::new(), ["p", "q"].map(String::from));
    let together =
        Some(GroupMember { prefixes: &prefixes, step: GroupStep::Enqueue, room: Some(usize::MAX) });
    let input = PlanInput { together, ..plan_input(&session, &settings, &who, &dead_since) };
    let plan = hold(&view(None, &[]), input, NOW);
    let lock = r#"{"Limit":2,"Holders":[]}"#.to_owned();
    assert_eq!(written(&plan), (Some((lock, 0)), vec!["p/me Waiting".into()]));
}

#[test]
fn all_free_slots_are_granted_at_once_by_priority_and_arrival() {
    let waiters = [("b", 1, 0), ("c", 1, 5), ("d", 2, 0), ("e", 1, 0)];
    let seen = queue(r#"{"Limit":1,"Holders":["a"]}"#, &["a"], &waiters);
    let write = set_limit(&seen, 5, "", NOW).unwrap();
    let plan = Plan { write, ..Plan::new(PlanOutcome::Holding) };
    let lock = r#"{"Limit":5,"Holders":["a","c","b","d","d"],"Next":["e"]} "#;
    let others = ["p/e Lookout", "p/c Held [1]", "p/b Held [2]", "p/d Held [3, 4]"].map(String::from);
    assert_eq!(written(&plan), (Some((lock.into(), 42)), others.to_vec()));
}

#[test]
fn a_waiter_for_several_slots_is_not_overtaken_unless_the_limit_is_too_low() {
    let waiters = [("big", 2, 0), ("small", 1, 0)];
    let seen = queue(r#"{"Limit":2,"Holders":["a","me"]}"#, &["a", "me"], &waiters);
    let plan = planned(&seen, &settings(2, 1), leave, false);
    assert_eq!(lock_of(&plan), r#"{"Limit":2,"Holders":["a"],"Next":["big","big","small"]} "#);
    let seen = queue(r#"{"Limit":1,"Holders":["me"]}"#, &["me"], &waiters);
    let plan = planned(&seen, &settings(1, 1), leave, false);
    assert_eq!(lock_of(&plan), r#"{"Limit":1,"Holders":["small"]}"#);
}

#[test]
fn a_newcomer_does_not_overtake_waiters() {
    let seen = queue(r#"{"Limit":2,"Holders":["a"]}"#, &["a"], &[("b", 2, 0)]);
    let plan = planned(&seen, &settings(2, 1), hold, false);
    assert_eq!(plan.outcome, PlanOutcome::NotHolding { room: false });
    assert_eq!(written(&plan), (None, vec!["p/me Waiting".into()]));
    // But one that goes first says so in `.lock`.
    let urgent = Settings { priority: 1, slots: 2, ..settings(2, 1) };
    let plan = planned(&seen, &urgent, hold, false);
    assert_eq!(lock_of(&plan), r#"{"Limit":2,"Holders":["a"],"Next":["me","me","b","b"]} "#);
}

#[test]
fn a_waiter_whose_priority_has_changed_publishes_its_new_position() {
    let lock = r#"{"Limit":1,"Holders":["a"],"Next":["me","b"]} "#;
    let seen = queue(lock, &["a"], &[("b", 1, 0), ("me", 1, 5)]);
    // Lowered, it does not know whom else it is behind before it has listed.
    let lowered = planned(&seen, &Settings { priority: -1, ..settings(1, 1) }, hold, false);
    let named = r#"{"Limit":1,"Holders":["a"],"Next":["b"]} "#.to_owned();
    let others = ["p/b Lookout", "p/me Waiting"].map(String::from).to_vec();
    assert_eq!(written(&lowered), (Some((named, 42)), others.clone()));
    assert!(lists(&lowered));
    // Raised, it stands where it is named. `.lock` becomes another one all the same, so that whoever has planned to go before
    // it is too late: a line break at its end says nothing.
    let raised = planned(&seen, &Settings { priority: 7, ..settings(1, 1) }, hold, false);
    let touched = "{\"Limit\":1,\"Holders\":[\"a\"],\"Next\":[\"me\",\"b\"]}\n ".to_owned();
    assert_eq!(written(&raised), (Some((touched, 42)), others));
    let retold = Settings { priority: 5, body: Some("urgent".into()), ..settings(1, 1) };
    let retold = planned(&seen, &retold, hold, false);
    assert_eq!(written(&retold), (None, vec!["p/me Waiting".into()]));
    assert!(!lists(&retold));
}

#[test]
fn a_limit_is_changed_only_where_there_is_a_semaphore() {
    let said = |lock| set_limit(&view(lock, &[]), 3, "", NOW).unwrap_err();
    assert!(said(None).starts_with("there is no semaphore at p: the key p/.lock does not exist"));
    assert!(said(Some(("a note", 0))).contains("not a semaphore: it is not a JSON object but `a note`"));
    assert!(said(Some(("", LOCK_FLAGS))).contains("single-key lock"));
    let present = view(Some((r#"{"Limit":3,"Holders":["a"]}"#, 0)), &[("a", None)]);
    assert_eq!(set_limit(&present, 3, "", NOW), Ok(None));
}

#[test]
fn more_free_slots_than_one_transaction_can_give_on_take_several() {
    let names: Vec<_> = (0..100).map(|n| format!("w{n:02}")).collect();
    let waiters: Vec<_> = names.iter().map(|name| (name.as_str(), 1, 0)).collect();
    let mut seen = queue(r#"{"Limit":1,"Holders":["a"]}"#, &["a"], &waiters);
    let mut taken = Vec::new();
    while let Some(write) = set_limit(&seen, 95, "", NOW).unwrap() {
        seen.apply(&write.ops, 60 + taken.len() as u64);
        taken.push(seen.record().unwrap().taken());
    }
    assert_eq!(taken, [41, 81, 95]);
    assert_eq!(seen.record().unwrap().next.len(), 6);
    // One that takes part need not know all of those behind the ones that are named.
    let seen = queue(r#"{"Limit":95,"Holders":["a"]}"#, &["a"], &waiters);
    let record = lock_of(&planned(&seen, &settings(95, 1), hold, false));
    let granted = Record::decode(record.as_bytes(), 0).unwrap().taken() as usize - 1;
    assert!((1..=MAX_HANDOFFS).contains(&granted), "{granted}");
}

#[test]
fn a_group_member_sets_its_limit_without_waiting_for_the_others() {
    let lock = r#"{"Limit":1,"Holders":["a"]}"#;
    let prefixes = ["p".to_owned(), "q".to_owned()];
    let (session, who, dead_since) = (SessionId::from("me"), Identity::default(), BTreeMap::new());
    let settings = Settings { limit_policy: LimitPolicy::Set, ..settings(3, 1) };
    let together =
        Some(GroupMember { prefixes: &prefixes, step: GroupStep::Acquire, room: Some(usize::MAX) });
    let input = PlanInput { together, set_limit: true, ..plan_input(&session, &settings, &who, &dead_since) };
    let mut seen = queue(lock, &["a"], &[("b", 1, 0), ("me", 1, 0)]);
    let own = seen.contenders.iter_mut().find(|one| one.session == session).unwrap();
    own.entry.as_mut().unwrap().together = prefixes.to_vec();
    let plan = hold(&seen, input, NOW);
    let record = r#"{"Limit":3,"Holders":["a","b"]}"#.to_owned();
    assert_eq!(written(&plan), (Some((record, 42)), vec!["p/b Held [1]".into()]));
    assert!(!plan.write.unwrap().joint);
}

#[test]
fn an_evicted_holder_joins_the_end_of_the_queue() {
    let held = Some(WaiterState::Held);
    let seen = view(
        Some((r#"{"Limit":1,"Holders":["a"]}"#, 0)),
        &[("a", held), ("me", held), ("b", Some(WaiterState::Waiting))],
    );
    let plan = planned(&seen, &settings(1, 1), hold, false);
    assert_eq!(written(&plan), (None, vec!["-p/me".into(), "p/me Waiting".into()]));
}

#[test]
fn a_foreign_client_ahead_is_left_its_turn_for_a_bounded_time() {
    let waiting = ("me", Some(WaiterState::Waiting));
    let seen = view(Some((r#"{"Limit":1,"Holders":[]}"#, 0)), &[("foreign", None), waiting]);
    let (session, who, dead_since) = (SessionId::from("me"), Identity::default(), BTreeMap::new());
    let settings = settings(1, 1);
    let input = PlanInput { free_since: Some(NOW), ..plan_input(&session, &settings, &who, &dead_since) };
    let early = hold(&seen, input, NOW);
    let turn = FIRST_TURN;
    assert_eq!(
        (early.outcome.clone(), early.recheck),
        (PlanOutcome::NotHolding { room: true }, Some(NOW + turn))
    );
    assert_eq!(early.write, None);
    let late = hold(&seen, input, NOW + turn);
    assert_eq!(lock_of(&late), r#"{"Limit":1,"Holders":["me"]}"#);
    // Each turn is as long as all before, until it has been left slots for long enough.
    let mut left = turn;
    for all in [2, 4, 8, 16] {
        let mut seen = seen.clone();
        let foreign = SessionId::from("foreign");
        let index = seen.contender(&foreign).unwrap().modify_index;
        seen.offers.insert(foreign, Offer { index, open: left.min(MAX_OFFER) });
        let next = hold(&seen, input, NOW);
        let rest = MAX_OFFER.saturating_sub(left);
        assert_eq!(next.recheck, (!rest.is_zero()).then(|| NOW + left.min(rest)), "{all}");
        left = turn * all;
    }
    // Whoever leaves leaves them the slot too, and tells the first of ours to watch it.
    let held = ("me", Some(WaiterState::Held));
    let record = Some((r#"{"Limit":1,"Holders":["me"]}"#, 0));
    let seen = view(record, &[held, ("foreign", None), ("b", Some(WaiterState::Waiting))]);
    let plan = leave(&seen, input, NOW);
    let record = r#"{"Limit":1,"Holders":[]}"#.to_owned();
    assert_eq!(written(&plan), (Some((record, 42)), vec!["p/b Lookout".into(), "-p/me".into()]));
}

#[test]
fn the_own_contender_is_watched_and_more_only_by_the_last_one_named() {
    let lock = r#"{"Limit":2,"Holders":["a","me"],"Next":["b","c"]} "#;
    let seen = queue(lock, &["a", "me"], &[("b", 1, 0), ("c", 1, 0), ("d", 1, 0)]);
    let (who, dead_since) = (Identity::default(), BTreeMap::new());
    let settings = settings(2, 1);
    let keys = |session: &str, last_role: Role, now: Moment| {
        let session = SessionId::from(session);
        let input =
            PlanInput { last_role: (last_role, NOW), ..plan_input(&session, &settings, &who, &dead_since) };
        let watches = hold(&seen, input, now).watch;
        watches.into_iter().map(|one| format!("{}@{}", one.key, one.after)).collect::<Vec<_>>()
    };
    let later = NOW + Duration::from_secs(1);
    // A short hold need not pay for it.
    assert_eq!(keys("me", Role::Holding, NOW), [""; 0]);
    assert_eq!(keys("me", Role::Holding, later), ["p/me@3"]);
    assert_eq!(keys("b", Role::Behind, later), ["p/b@10"]);
    assert_eq!(keys("c", Role::Head, NOW), ["p/c@11"]);
    assert_eq!(keys("c", Role::Head, later), ["p/c@11", "p/@50"]);
    assert_eq!(keys("d", Role::Behind, later), ["p/d@12"]);
}

#[test]
fn a_holder_after_a_grant_by_name_completes_its_contender_key_after_a_while() {
    let seen = queue(r#"{"Limit":1,"Holders":["me"]}"#, &["me"], &[]);
    let (session, dead_since) = (SessionId::from("me"), BTreeMap::new());
    let who = Identity { pod: Some("loader-1".into()), ..Identity::default() };
    let settings = settings(1, 1);
    let input = PlanInput {
        last_role: (Role::Holding, LONG_AGO),
        ..plan_input(&session, &settings, &who, &dead_since)
    };
    assert_eq!(hold(&seen, PlanInput { last_role: (Role::Holding, NOW), ..input }, NOW).write, None);
    let write = hold(&seen, input, NOW).write.unwrap();
    let [Op::Cas { value, index: 2, .. }] = write.ops.as_slice() else { panic!("{write:?}") };
    let entry = Entry::decode(value).unwrap();
    assert_eq!((entry.who, entry.indexes), (who.clone(), vec![0]));
}

proptest! {
    #![proptest_config(slotkeeper_test_seed::cases())]

    /// Whatever the record, plans never list more than the limit unless it was exceeded before, never touch a live
    /// foreigner, and come to rest: clearing a share away, standing in line and saying so are three transactions.
    #[test]
    fn plans_keep_the_limit_and_come_to_rest(
        limit in 0..6_u32,
        slots in 1..3_u32,
        holders in prop::collection::vec("[a-d]|me", 0..6),
        live in prop::collection::btree_set("[a-d]|me", 0..5),
        leaving: bool,
    ) {
        let stored = format!(r#"{{"Limit":{limit},"Holders":{}}}"#, serde_json::to_string(&holders).unwrap());
        let contenders: Vec<_> = live
            .iter()
            .map(|id| (id.as_str(), (id == "me").then_some(WaiterState::Waiting)))
            .collect();
        let mut seen = view(Some((&stored, 0)), &contenders);
        let settings = settings(5, slots);
        let what = if leaving { leave } else { hold };
        let mut room = false;
        for index in 0..3 {
            let plan = planned(&seen, &settings, what, false);
            room |= plan.outcome == PlanOutcome::NotHolding { room: true };
            seen.apply(&plan.write.map(|write| write.ops).unwrap_or_default(), 60 + index);
        }
        let record = seen.record().unwrap();
        let before = u32::try_from(holders.len()).unwrap();
        prop_assert!(record.taken() <= limit.max(before));
        for foreigner in holders.iter().filter(|holder| *holder != "me" && live.contains(*holder)) {
            let count = holders.iter().filter(|holder| *holder == foreigner).count();
            prop_assert_eq!(record.slots_of(&foreigner.as_str().into()) as usize, count);
        }
        let again = planned(&seen, &settings, what, false);
        prop_assert_eq!(&again.write, &None);
        if room && !leaving {
            prop_assert_eq!(again.outcome, PlanOutcome::Holding);
            prop_assert!(record.taken() <= limit);
        }
    }
}

#[test]
fn a_newcomer_that_grants_slots_does_not_name_itself_before_concurrent_newcomers() {
    let (who, session, dead_since) = (Identity::default(), "me".into(), BTreeMap::new());
    let view = queue(r#"{"Limit":1,"Holders":["a"]}"#, &["a"], &[("b", 1, 0)]);
    let settings = settings(2, 1);
    let input = PlanInput { set_limit: true, ..plan_input(&session, &settings, &who, &dead_since) };
    let plan = hold(&view, input, NOW);
    assert_eq!(lock_of(&plan), r#"{"Limit":2,"Holders":["a","b"]}"#);
    assert_eq!(written(&plan).1, ["p/b Held [1]", "p/me Waiting"]);
    assert!(lists(&plan));
}

#[test]
fn a_client_that_joins_again_is_not_granted_a_slot_by_its_old_name() {
    let lock = r#"{"Limit":1,"Holders":["a"],"Next":["b","me","c"]} "#;
    let view = queue(lock, &["a"], &[("b", 1, 0), ("c", 1, 0)]);
    let plan = planned(&view, &settings(1, 1), hold, false);
    assert_eq!(lock_of(&plan), r#"{"Limit":1,"Holders":["a"],"Next":["b","c"]} "#);
    assert_eq!(written(&plan).1, ["p/c Lookout", "p/me Waiting"]);
}

#[test]
fn a_group_member_writes_what_it_wants_now() {
    let prefixes = ["p".to_owned(), "q".to_owned()];
    let (session, who, dead_since) = (SessionId::from("me"), Identity::default(), BTreeMap::new());
    let settings = settings(1, 1);
    let together =
        Some(GroupMember { prefixes: &prefixes, step: GroupStep::Acquire, room: Some(usize::MAX) });
    let input = PlanInput { together, ..plan_input(&session, &settings, &who, &dead_since) };
    // Once it had a priority. By what it says there `b` waits for it, and by what it wants now it waits for `b`.
    let mut seen = queue(r#"{"Limit":1,"Holders":[]}"#, &[], &[("b", 1, 0), ("me", 1, 2)]);
    let own = seen.contenders.iter_mut().find(|one| one.session == session).unwrap();
    own.entry.as_mut().unwrap().together = prefixes.to_vec();
    let plan = hold(&seen, input, NOW);
    let record = r#"{"Limit":1,"Holders":[],"Next":["b"]} "#.to_owned();
    let others = ["p/b Lookout", "p/me Waiting"].map(String::from).to_vec();
    assert_eq!(written(&plan), (Some((record, 42)), others));
    assert!(!plan.write.unwrap().joint);
}

#[test]
fn a_client_that_tries_once_and_lost_a_race_reads_again_before_it_times_out() {
    let (who, session, dead_since) = (Identity::default(), "me".into(), BTreeMap::new());
    let settings = Settings { wait: Some(Duration::ZERO), ..settings(1, 1) };
    let input = PlanInput { lost_cas_race: true, ..plan_input(&session, &settings, &who, &dead_since) };
    let plan = hold(&queue(r#"{"Limit":1,"Holders":[]}"#, &[], &[]), input, NOW);
    assert_eq!((plan.outcome, plan.refresh), (PlanOutcome::NotHolding { room: true }, Some(Refresh::Prefix)));
}

/// Bytes of a transaction as it is sent.
fn sent(ops: &[Op]) -> usize {
    ops.iter().map(crate::size::of_step).sum()
}

#[test]
fn no_transaction_is_larger_than_consul_takes() {
    // Each of these entries has to be written again with `held` in it.
    let names: Vec<_> = (0..40).map(|n| format!("w{n:02}")).collect();
    let waiters: Vec<_> = names.iter().map(|name| (name.as_str(), 1, 0)).collect();
    let mut seen = queue(r#"{"Limit":1,"Holders":["a"]}"#, &["a"], &waiters);
    for one in seen.contenders.iter_mut().filter(|one| one.says_waiting()) {
        one.entry.as_mut().unwrap().body = Some("x".repeat(30 * 1024));
    }
    let mut taken = Vec::new();
    while let Some(write) = set_limit(&seen, 41, "", NOW).unwrap() {
        assert!(sent(&write.ops) <= 512 * 1024, "{}", sent(&write.ops));
        seen.apply(&write.ops, 60 + taken.len() as u64);
        taken.push(seen.record().unwrap().taken());
    }
    assert_eq!(taken, [13, 25, 37, 41]);
}

#[test]
fn the_last_slot_of_the_largest_record_can_be_granted() {
    let holders: Vec<_> = (0..9_999).map(|n| format!(r#""{n:036}""#)).collect();
    let input = "f".repeat(36);
    let next = format!(r#"["{}"]"#, vec![input.as_str(); 100].join(r#"",""#));
    let lock = format!(r#"{{"Limit":10000,"Holders":[{}],"Next":{next}}}"#, holders.join(","));
    let pair = |name: String, value: Vec<u8>, session: Option<String>| Pair {
        key: format!("p/{name}"),
        value,
        flags: 0,
        session: session.map(SessionId::from),
        times_locked: 0,
        create_index: 1,
        modify_index: 42,
    };
    let holders = (0..9_999).map(|n| pair(format!("{n:036}"), Vec::new(), Some(format!("{n:036}"))));
    let waiting = Entry::new(WaiterState::Waiting, 1, 0, String::new(), Identity::default()).encode();
    let others = [pair(".lock".into(), lock.into(), None), pair(input.clone(), waiting, Some(input.clone()))];
    let mut view = View::new("p", others.into_iter().chain(holders).collect(), 50);
    let (session, who, dead_since) = (SessionId::from(input), Identity::default(), BTreeMap::new());
    let settings = settings(10_000, 1);
    let plan = hold(&view, plan_input(&session, &settings, &who, &dead_since), NOW);
    let write = plan.write.unwrap();
    assert!(sent(&write.ops) <= 512 * 1024, "{}", sent(&write.ops));
    view.apply(&write.ops, 60);
    assert_eq!((view.record().unwrap().taken(), view.record().unwrap().slots_of(&session)), (10_000, 1));
}

#[test]
fn a_contender_value_that_is_too_large_blocks_no_waiter() {
    let mut entry = Entry::new(WaiterState::Waiting, 1, 5, String::new(), Identity::default());
    entry.body = Some("x".repeat(400 * 1024));
    let mut seen = queue(r#"{"Limit":1,"Holders":[]}"#, &[], &[("big", 1, 5), ("me", 1, 0)]);
    let big = Pair {
        key: "p/big".into(),
        value: entry.encode(),
        flags: 0,
        session: Some("big".into()),
        times_locked: 0,
        create_index: 10,
        modify_index: 30,
    };
    seen.see_contender(&"big".into(), Some(big), 30);
    let plan = planned(&seen, &settings(1, 1), hold, false);
    assert_eq!(lock_of(&plan), r#"{"Limit":1,"Holders":["me"]}"#);
    // Nor does one that wants more than any transaction can give.
    let waiters = [("greedy", 9_500, 0), ("me", 1, 0)];
    let seen = queue(r#"{"Limit":10000,"Holders":[]}"#, &[], &waiters);
    let plan = planned(&seen, &settings(10_000, 1), hold, false);
    assert_eq!(lock_of(&plan), r#"{"Limit":10000,"Holders":["me"]}"#);
}
