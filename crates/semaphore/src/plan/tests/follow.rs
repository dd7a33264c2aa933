//! Plans of one that comes blind, of those who wait to be let in by name, and of whoever watches over all.

use super::queue::queue;
use super::*;
use crate::queue::MAX_HANDOFFS;

const HELD: Option<WaiterState> = Some(WaiterState::Held);
const WAITS: Option<WaiterState> = Some(WaiterState::Waiting);

/// What one knows that has just come: its contender, and `.lock` as it was then, last written by one of ours.
fn blind(lock: &str) -> View {
    beside_others(&if lock.ends_with(' ') { lock.to_owned() } else { format!("{lock}\t") })
}

/// The same, last written by whom the record says.
fn beside_others(lock: &str) -> View {
    let mut seen = View::of_lock("p", pairs(Some((lock, 0)), &[]).pop(), 60);
    let entry = Entry::new(WaiterState::Waiting, 1, 0, String::new(), Identity::default());
    let (key, session) = ("p/me".to_owned(), SessionId::from("me"));
    seen.apply(&[Op::Lock { key, value: entry.encode(), flags: 0, session }], 60);
    seen
}

/// The plan to have a slot, of one that stands as is said.
fn asks(view: &View, settings: &Settings, with: impl FnOnce(PlanInput<'_>) -> PlanInput<'_>) -> Plan {
    let (who, session, dead_since) = (Identity::default(), SessionId::from("me"), BTreeMap::new());
    hold(view, with(PlanInput { held: None, ..plan_input(&session, settings, &who, &dead_since) }), NOW)
}

fn needs(lock: &str) -> Option<Refresh> {
    asks(&blind(lock), &settings(1, 1), |input| input).refresh
}

fn next_of(plan: &Plan) -> Vec<String> {
    let record = Record::decode(lock_of(plan).as_bytes(), 0).unwrap();
    record.next.iter().map(|session| session.as_str().to_owned()).collect()
}

/// The view after a read of `.lock` at an index.
fn after_reading(mut seen: View, lock: &str, index: u64) -> View {
    let pair = pairs(Some((lock, 0)), &[]).pop().map(|pair| Pair { modify_index: index, ..pair });
    seen.see_lock(pair, index);
    seen
}

/// Makes those in line differ from the usual.
fn changed(mut seen: View, change: impl Fn(&str, &mut Entry)) -> View {
    for one in &mut seen.contenders {
        let session = one.session.clone();
        one.entry.as_mut().into_iter().for_each(|entry| change(session.as_str(), entry));
    }
    seen
}

#[test]
fn a_newcomer_writes_its_contender_key_and_reads_the_record_in_one_transaction() {
    let (who, session, dead_since) = (Identity::default(), SessionId::from("me"), BTreeMap::new());
    let joins = |settings: &Settings, with: fn(PlanInput<'_>) -> PlanInput<'_>| {
        join("p", with(plan_input(&session, settings, &who, &dead_since)))
    };
    let plain = settings(1, 2);
    let ops = joins(&plain, |input| input).unwrap().ops;
    let [Op::CheckNotExists { key: missing }, Op::Lock { key, value, .. }, Op::List { prefix }] =
        ops.as_slice()
    else {
        panic!("{ops:?}");
    };
    assert_eq!([missing, key, prefix], ["p/me", "p/me", "p/.lock"]);
    let entry = Entry::decode(value).unwrap();
    assert_eq!((entry.state, entry.slots), (WaiterState::Waiting, 2));
    // Who must not be let in before it knows more lists first.
    let refuses = Settings { limit_policy: LimitPolicy::Refuse, ..settings(1, 1) };
    let once = Settings { wait: Some(Duration::ZERO), ..settings(1, 1) };
    let priority = |priority| Settings { priority, ..settings(1, 1) };
    for other in [refuses, once, priority(1), priority(-1)] {
        assert_eq!(joins(&other, |input| input), None, "{other:?}");
    }
    assert_eq!(joins(&plain, |input| PlanInput { resumed: true, ..input }), None);
    fn together(input: PlanInput<'_>) -> PlanInput<'_> {
        let together = Some(GroupMember { prefixes: &[], step: GroupStep::Enqueue, room: None });
        PlanInput { together, ..input }
    }
    assert_eq!(joins(&plain, together), None);
}

#[test]
fn a_follower_reads_nothing_and_watches_nothing_but_its_own_contender() {
    let plan =
        asks(&blind(r#"{"Limit":1,"Holders":["a"],"Next":["b","c"]} "#), &settings(1, 1), |input| input);
    assert_eq!((plan.outcome, plan.role), (PlanOutcome::NotHolding { room: false }, Role::Behind));
    assert_eq!((plan.refresh, plan.write, plan.recheck), (None, None, None));
    assert_eq!(plan.watch, [Watch { key: "p/me".into(), after: 60 }]);
}

#[test]
fn a_waiter_that_finds_no_lookout_becomes_it_and_lists_by_that_write() {
    for lock in [r#"{"Limit":1,"Holders":["a"]}"#, r#"{"Limit":1,"Holders":[]}"#] {
        let plan = asks(&blind(lock), &settings(1, 1), |input| input);
        assert_eq!(lock_of(&plan), format!("{lock} "));
        assert_eq!(written(&plan).1, ["p/me Lookout"]);
        assert!(lists(&plan), "{plan:?}");
        // Where another client has written last, its like may be there, and be woken by any write.
        let plan = asks(&beside_others(lock), &settings(1, 1), |input| input);
        assert_eq!((plan.refresh, plan.write), (Some(Refresh::Prefix), None), "{lock}");
    }
}

#[test]
fn a_waiter_that_finds_slots_which_stay_free_lists() {
    // Whoever was to let in the first one has not.
    assert_eq!(needs(r#"{"Limit":2,"Holders":["a"],"Next":["b"]} "#), Some(Refresh::Prefix));
    // The free one is too few for the first in line.
    assert_eq!(needs(r#"{"Limit":2,"Holders":["a"],"Next":["b","b","c"]} "#), None);
    // Nobody can be named.
    assert_eq!(needs(r#"{"Limit":1,"Holders":[]} "#), Some(Refresh::Prefix));
    assert_eq!(needs(r#"{"Limit":1,"Holders":["a"]} "#), None);
}

#[test]
fn a_newcomer_to_free_slots_yields_to_concurrent_newcomers() {
    let (until, over) = (NOW + Duration::from_millis(20), NOW.back(Duration::from_millis(1)));
    for lock in [
        r#"{"Limit":2,"Holders":["a"]}"#,
        r#"{"Limit":2,"Holders":["a"],"Next":["b"]} "#,
        // One of those who come names all of them.
        r#"{"Limit":1,"Holders":["a"]}"#,
    ] {
        let seen = blind(lock);
        let plan = |patience| {
            let plan = asks(&seen, &settings(2, 1), |input| PlanInput { yield_until: patience, ..input });
            (plan.refresh, plan.recheck)
        };
        assert_eq!(plan(Some(until)), (None, Some(until)), "{lock}");
        // Mostly one of the others has done it by then.
        assert_eq!(plan(Some(over)), (Some(Refresh::LockKey), None), "{lock}");
        assert_eq!(plan(None), (lock.ends_with(' ').then_some(Refresh::Prefix), None), "{lock}");
    }
    let served = blind(r#"{"Limit":1,"Holders":["a"],"Next":["b"]} "#);
    assert_eq!(
        asks(&served, &settings(1, 1), |input| PlanInput { yield_until: Some(over), ..input }).refresh,
        None
    );
}

#[test]
fn a_client_that_lists_writes_the_handoff_list_and_makes_the_last_waiter_the_lookout() {
    let names: Vec<_> = (0..40).map(|n| format!("w{n:02}")).collect();
    let mut waiters = vec![("me", 1, 0)];
    waiters.extend(names.iter().map(|name| (name.as_str(), 1, 0)));
    let seen = queue(r#"{"Limit":1,"Holders":["a"]}"#, &["a"], &waiters);
    let plan = asks(&seen, &settings(1, 1), |input| input);
    let next = next_of(&plan);
    assert_eq!((next.len(), next[0].as_str(), next[31].as_str()), (MAX_HANDOFFS, "me", "w30"));
    assert_eq!(written(&plan).1, ["p/w30 Lookout"]);
    assert!(!plan.write.unwrap().tidy);
    // Who stands further back leaves it to the first for a moment.
    let waiters = [("b", 1, 0), ("me", 1, 0)];
    let plan = asks(&queue(r#"{"Limit":1,"Holders":["a"]}"#, &["a"], &waiters), &settings(1, 1), |input| {
        PlanInput { last_role: (Role::Behind, LONG_AGO), ..input }
    });
    assert_eq!(next_of(&plan), ["b", "me"]);
    assert_eq!(written(&plan).1, [""; 0], "whoever writes knows itself that it is the last one");
    assert!(plan.write.unwrap().tidy);
}

#[test]
fn while_the_first_waiter_is_named_first_the_handoff_list_is_not_rewritten() {
    let lock = r#"{"Limit":1,"Holders":["a"],"Next":["b"]} "#;
    let seen = queue(lock, &["a"], &[("b", 1, 0), ("c", 1, 0), ("me", 1, 0)]);
    let plan = asks(&seen, &settings(1, 1), |input| input);
    assert_eq!((plan.refresh, plan.write), (None, None));
    let held = queue(r#"{"Limit":1,"Holders":["me"],"Next":["b"]} "#, &["me"], &[("b", 1, 0), ("c", 1, 0)]);
    assert_eq!(planned(&held, &settings(1, 1), hold, false).write, None);
}

#[test]
fn the_last_named_waiter_watches_the_folder_however_it_learns_of_its_task() {
    let folder = |lock: &str, told: bool, since: Moment| {
        let seen = changed(blind(lock), |_, entry| entry.lookout = told);
        let plan =
            asks(&seen, &settings(1, 1), |input| PlanInput { last_role: (Role::Head, since), ..input });
        assert_eq!((plan.role, plan.refresh), (Role::Head, None));
        (plan.watch.iter().any(|watch| watch.key == "p/"), plan.recheck)
    };
    let (others, own) =
        (r#"{"Limit":1,"Holders":["a"],"Next":["b"]} "#, r#"{"Limit":1,"Holders":["a"],"Next":["b","me"]} "#);
    assert_eq!(folder(others, true, LONG_AGO), (true, None));
    assert_eq!(folder(own, false, LONG_AGO), (true, None));
    // Whoever is let in soon need not pay for it.
    assert_eq!(folder(others, true, NOW), (false, Some(NOW + Duration::from_secs(1))));
}

#[test]
fn a_lookout_lists_where_a_holders_name_is_gone_and_only_after_it_has_looked_twice() {
    let mut seen =
        changed(blind(r#"{"Limit":1,"Holders":["a"],"Next":["b"]} "#), |_, entry| entry.lookout = true);
    let names = |keys: &[&str]| Pair::of_folder("p/", keys.iter().map(|key| (*key).to_owned()), 70);
    let (who, session, settings) = (Identity::default(), SessionId::from("me"), settings(1, 1));
    let plan = |seen: &View, since: Option<Moment>| {
        let dead_since = since.map(|since| (SessionId::from("a"), since)).into_iter().collect();
        let plan =
            hold(seen, PlanInput { held: None, ..plan_input(&session, &settings, &who, &dead_since) }, NOW);
        (plan.refresh, plan.recheck)
    };
    seen.see_folder(&names(&["p/.lock", "p/a", "p/me"]));
    assert_eq!(plan(&seen, None), (None, None), "the holder lives; of the others nothing need be known");
    seen.see_folder(&names(&["p/.lock", "p/me"]));
    assert_eq!(plan(&seen, None), (None, Some(NOW + MISSING_HOLDER_GRACE)), "it may just have left");
    assert_eq!(plan(&seen, Some(NOW.back(MISSING_HOLDER_GRACE))).0, Some(Refresh::Prefix));
    // One that only follows leaves that to the lookout.
    let seen = changed(seen, |_, entry| entry.lookout = false);
    assert_eq!(plan(&seen, Some(NOW.back(MISSING_HOLDER_GRACE))), (None, None));
}

#[test]
fn a_lookout_that_reads_the_names_alone_does_not_write() {
    let mut seen = queue(r#"{"Limit":1,"Holders":["a"],"Next":["me"]} "#, &["a"], &[("me", 1, 0)]);
    assert!(seen.is_complete());
    seen.see_folder(&Pair::of_folder("p/", ["p/.lock", "p/me"].map(String::from), 70));
    let plan = asks(&seen, &settings(1, 1), |input| input);
    assert_eq!((plan.write, plan.refresh, plan.recheck), (None, None, Some(NOW + MISSING_HOLDER_GRACE)));
}

#[test]
fn a_release_that_empties_the_list_lists_first_and_publishes() {
    let lock = r#"{"Limit":1,"Holders":["me"],"Next":["b"]} "#;
    let seen = queue(r#"{"Limit":1,"Holders":["me"]}"#, &["me"], &[]);
    let plan = planned(&after_reading(seen, lock, 60), &settings(1, 1), leave, false);
    assert_eq!((plan.refresh, plan.write), (Some(Refresh::Prefix), None));
    let seen = queue(lock, &["me"], &[("b", 1, 0), ("c", 1, 0), ("d", 1, 0)]);
    let plan = planned(&seen, &settings(1, 1), leave, false);
    let lock = r#"{"Limit":1,"Holders":["b"],"Next":["c","d"]} "#.to_owned();
    let others = ["p/d Lookout", "p/b Held [0]", "-p/me"].map(String::from).to_vec();
    assert_eq!(written(&plan), (Some((lock, 42)), others));
    assert!(!lists(&plan), "whoever came meanwhile stands behind those who are named");
}

#[test]
fn waiters_that_cannot_be_granted_by_name_make_a_release_list() {
    let seen = || queue(r#"{"Limit":1,"Holders":["me"]}"#, &["me"], &[]);
    for next in [r#""","b""#, r#""me","me""#] {
        let lock = format!(r#"{{"Limit":1,"Holders":["me"],"Next":[{next}]}} "#);
        let plan = planned(&after_reading(seen(), &lock, 60), &settings(1, 1), leave, false);
        assert_eq!((plan.refresh, plan.write), (Some(Refresh::Prefix), None), "{next}");
    }
}

#[test]
fn a_write_that_empties_the_handoff_list_lists_newcomers_and_serves_them() {
    let settings = settings(1, 1);
    // By all that is known nobody stands behind the one that is let in.
    let known = queue(r#"{"Limit":1,"Holders":["me"],"Next":["b"]} "#, &["me"], &[("b", 1, 0)]);
    let plan = planned(&known, &settings, leave, false);
    assert_eq!(lock_of(&plan), r#"{"Limit":1,"Holders":["b"]}"#);
    assert!(lists(&plan), "{plan:?}");
    // Where nobody watches over all, whoever comes relies on nobody.
    let alone = queue(r#"{"Limit":1,"Holders":["me"]}"#, &["me"], &[]);
    let unknown = after_reading(alone, r#"{"Limit":1,"Holders":["me","x"]}"#, 61);
    let plan = planned(&unknown, &settings, leave, false);
    assert_eq!(lock_of(&plan), r#"{"Limit":1,"Holders":["x"]}"#);
    assert!(!lists(&plan), "{plan:?}");
    // What it lists shows one that relied on the list: it is let in, or named.
    let (session, who, dead_since) = (SessionId::from("me"), Identity::default(), BTreeMap::new());
    let gone = |lock: &str, holders: &[&str], follows_up| {
        let seen = queue(lock, holders, &[("late", 1, 0)]);
        let input = PlanInput { follows_up, ..plan_input(&session, &settings, &who, &dead_since) };
        leave(&seen, input, NOW)
    };
    let free = r#"{"Limit":1,"Holders":[]}"#;
    assert_eq!(written(&gone(free, &[], true)).1, ["p/late Held [0]"]);
    let taken = gone(r#"{"Limit":1,"Holders":["b"]}"#, &["b"], true);
    assert_eq!(lock_of(&taken), r#"{"Limit":1,"Holders":["b"],"Next":["late"]} "#);
    assert_eq!(written(&taken).1, ["p/late Lookout"]);
    assert_eq!(gone(free, &[], false).write, None, "once it has served them it is gone");
}

#[test]
fn an_operators_write_and_one_for_the_dead_list_nothing() {
    // They have no view that a listing could serve.
    let seen = queue(r#"{"Limit":1,"Holders":["a"],"Next":["b"]} "#, &["a"], &[("b", 1, 0)]);
    for write in [set_limit(&seen, 2, "", NOW).unwrap(), release(&seen, &"a".into(), false, "", NOW)] {
        let plan = Plan { write, ..Plan::new(PlanOutcome::Holding) };
        assert!(written(&plan).0.is_some() && !lists(&plan), "{plan:?}");
    }
}

#[test]
fn there_is_no_handoff_list_beside_a_foreign_client() {
    for theirs in ["holds", "waits"] {
        let lock = if theirs == "holds" {
            r#"{"Limit":2,"Holders":["a","theirs"],"Next":["b"]} "#
        } else {
            r#"{"Limit":1,"Holders":["a"],"Next":["b"]} "#
        };
        let seen = view(Some((lock, 0)), &[("a", HELD), ("theirs", None), ("b", WAITS), ("me", WAITS)]);
        let plan = asks(&seen, &settings(1, 1), |input| input);
        assert_eq!(next_of(&plan), [""; 0], "{theirs}");
        // The first of ours watches for slots that come free without a word; the others are seen by what is listed.
        assert_eq!(written(&plan).1, ["p/b Lookout"], "{theirs}");
        assert!(lists(&plan) && lock_of(&plan).ends_with('}'), "{theirs}");
    }
}

#[test]
fn beside_foreign_clients_a_waiter_watches_the_slotkeeper_client_ahead_and_the_first_watches_the_record() {
    let lock = r#"{"Limit":1,"Holders":["theirs"]}"#;
    let seen = view(Some((lock, 0)), &[("theirs", None), ("b", WAITS), ("me", WAITS)]);
    let (who, dead_since, settings) = (Identity::default(), BTreeMap::new(), settings(1, 1));
    let keys = |session: &str| {
        let session = SessionId::from(session);
        let plan =
            hold(&seen, PlanInput { held: None, ..plan_input(&session, &settings, &who, &dead_since) }, NOW);
        plan.watch.into_iter().map(|watch| watch.key).collect::<Vec<_>>()
    };
    assert_eq!(keys("b"), ["p/b", "p/", "p/.lock"]);
    assert_eq!(keys("me"), ["p/me", "p/b"]);
}

#[test]
fn waiters_that_cannot_be_granted_by_name_are_not_named() {
    let waiters = [("first", 1, 0), ("member", 1, 0), ("b", 1, 0), ("low", 1, -1)];
    let seen = queue(r#"{"Limit":1,"Holders":["a"]}"#, &["a"], &waiters);
    let seen = changed(seen, |session, entry| {
        entry.together = Vec::from_iter((session == "member").then(|| "q".to_owned()));
    });
    let write = set_limit(&seen, 2, "", NOW).unwrap();
    let plan = Plan { write, ..Plan::new(PlanOutcome::Holding) };
    assert_eq!(lock_of(&plan), r#"{"Limit":2,"Holders":["a","first"],"Next":["","b"]} "#);
}

#[test]
fn a_waiter_in_the_middle_leaves_by_its_contender_key_alone_and_the_last_named_names_another() {
    let lock = r#"{"Limit":1,"Holders":["a"],"Next":["b","me","c"]} "#;
    let seen = after_reading(blind(r#"{"Limit":1,"Holders":["a"],"Next":["b"]} "#), lock, 61);
    let plan = planned(&seen, &settings(1, 1), leave, false);
    assert_eq!((plan.refresh, written(&plan)), (None, (None, vec!["-p/me".into()])));
    // Who watches over all, or may have kept free slots from those behind it, lists.
    let last = after_reading(seen.clone(), r#"{"Limit":1,"Holders":["a"],"Next":["b","me"]} "#, 62);
    let told = changed(seen.clone(), |_, entry| entry.lookout = true);
    for (seen, slots) in [(&last, 1), (&told, 1), (&seen, 2)] {
        let plan = planned(seen, &settings(1, slots), leave, false);
        assert_eq!((plan.refresh, plan.write), (Some(Refresh::Prefix), None));
    }
    let lock = r#"{"Limit":1,"Holders":["a"],"Next":["b","me"]} "#;
    let seen = queue(lock, &["a"], &[("b", 1, 0), ("me", 1, 0), ("late", 1, 0)]);
    let plan = planned(&seen, &settings(1, 1), leave, false);
    let lock = r#"{"Limit":1,"Holders":["a"],"Next":["b","late"]} "#.to_owned();
    assert_eq!(written(&plan), (Some((lock, 42)), vec!["-p/me".into(), "p/late Lookout".into()]));
}

#[test]
fn a_leaving_waiter_for_several_slots_hands_off_those_that_it_kept_free() {
    let seen = queue(r#"{"Limit":2,"Holders":["a"]}"#, &["a"], &[("me", 2, 0), ("b", 1, 0)]);
    let plan = planned(&seen, &settings(2, 2), leave, false);
    assert_eq!(lock_of(&plan), r#"{"Limit":2,"Holders":["a","b"]}"#);
    assert_eq!(written(&plan).1, ["-p/me", "p/b Held [1]"]);
}

#[test]
fn a_holder_that_sees_free_slots_beside_a_handoff_list_lists() {
    let seen = |lock: &str| after_reading(queue(r#"{"Limit":2,"Holders":["me"]}"#, &["me"], &[]), lock, 60);
    let (session, who, dead_since) = (SessionId::from("me"), Identity::default(), BTreeMap::new());
    let (settings, index) = (settings(2, 1), [0]);
    let refresh = |lock: &str, confirmed| {
        let input =
            PlanInput { confirmed, held: Some(&index), ..plan_input(&session, &settings, &who, &dead_since) };
        hold(&seen(lock), input, NOW).refresh
    };
    let unserved = r#"{"Limit":2,"Holders":["me"],"Next":["b"]} "#;
    assert_eq!(refresh(unserved, true), Some(Refresh::Prefix));
    assert_eq!(refresh(unserved, false), None, "only what was just read says so");
    assert_eq!(refresh(r#"{"Limit":2,"Holders":["me"]}"#, true), None, "nobody waits, as far as is known");
    assert_eq!(refresh(r#"{"Limit":2,"Holders":["me","a"],"Next":["b"]} "#, true), None);
}

#[test]
fn a_client_that_refuses_another_limit_reads_the_record_before_it_holds() {
    let mut seen = queue(r#"{"Limit":1,"Holders":["a"],"Next":["me"]} "#, &["a"], &[("me", 1, 0)]);
    let entry = Entry::new(WaiterState::Held, 1, 0, String::new(), Identity::default()).held(vec![0], "");
    let grant = Pair {
        key: "p/me".into(),
        value: entry.encode(),
        flags: 0,
        session: Some("me".into()),
        times_locked: 0,
        create_index: 10,
        modify_index: 60,
    };
    seen.see_contender(&"me".into(), Some(grant), 60);
    assert_eq!(asks(&seen, &settings(1, 1), |input| input).outcome, PlanOutcome::Holding);
    let refuses = Settings { limit_policy: LimitPolicy::Refuse, ..settings(1, 1) };
    let plan = asks(&seen, &refuses, |input| input);
    assert_eq!(
        (plan.outcome, plan.refresh),
        (PlanOutcome::NotHolding { room: true }, Some(Refresh::LockKey))
    );
    let same = after_reading(seen.clone(), r#"{"Limit":1,"Holders":["me"]}"#, 60);
    assert_eq!(asks(&same, &refuses, |input| input).outcome, PlanOutcome::Holding);
    // Another limit keeps it out: it goes again, and what it holds goes on.
    let other = after_reading(seen, r#"{"Limit":2,"Holders":["me","x"],"Next":["b","c"]} "#, 60);
    let plan = asks(&other, &refuses, |input| input);
    assert!(matches!(plan.outcome, PlanOutcome::Blocked(_)), "{plan:?}");
    assert_eq!(written(&plan).1, ["p/b Held [0]", "-p/me"]);
}

/// Up to Consul 1.13.
const MAX_STEPS: usize = 64;

fn steps(plan: &Plan) -> usize {
    plan.write.as_ref().map_or(0, |write| write.ops.len())
}

/// So many in line.
fn many(lock: &str, holders: &[&str], count: u32) -> View {
    let names: Vec<_> = (0..count).map(|n| format!("w{n:03}")).collect();
    let waiters: Vec<_> = names.iter().map(|name| (name.as_str(), 1, 0)).collect();
    queue(lock, holders, &waiters)
}

#[test]
fn a_write_that_grants_and_names_many_has_no_more_steps_than_consul_accepts() {
    // It comes to slots that are free.
    let comes = many(r#"{"Limit":95,"Holders":["a"]}"#, &["a"], 100);
    let comes = planned(&comes, &settings(95, 1), hold, false);
    assert!((1..=MAX_STEPS).contains(&steps(&comes)), "{}", steps(&comes));
    // It releases many at once, and knows everybody.
    let lock = format!(r#"{{"Limit":40,"Holders":[{}]}}"#, vec![r#""me""#; 40].join(","));
    let knows = planned(&many(&lock, &["me"], 100), &settings(40, 40), leave, false);
    assert!((1..=MAX_STEPS).contains(&steps(&knows)), "{}", steps(&knows));
}

#[test]
fn a_release_of_many_slots_by_name_has_no_more_steps_than_consul_accepts() {
    let own = vec![r#""me""#; 40].join(",");
    let next: Vec<_> = (0..32).map(|n| format!(r#""w{n:03}""#)).collect();
    let lock = format!(r#"{{"Limit":40,"Holders":[{own}]}}"#);
    let seen = many(&lock, &["me"], 0);
    let lock = format!(r#"{{"Limit":41,"Holders":[{own},"x"],"Next":[{}]}} "#, next.join(","));
    let (session, who, dead_since) = (SessionId::from("me"), Identity::default(), BTreeMap::new());
    // One less than those named, so that it has to ask nobody.
    let (settings, held) = (settings(41, 40), (0..31).collect::<Vec<_>>());
    let input = PlanInput { held: Some(&held), ..plan_input(&session, &settings, &who, &dead_since) };
    let plan = leave(&after_reading(seen, &lock, 60), input, NOW);
    assert!(plan.refresh.is_some() || (1..=MAX_STEPS).contains(&steps(&plan)), "{}", steps(&plan));
}

/// The release knows the waiters by `.lock` alone.
#[test]
fn a_grant_by_name_has_the_identity_that_the_handoff_list_has() {
    let named = changed(
        queue(r#"{"Limit":1,"Holders":["me"]}"#, &["me"], &[("b", 1, 0), ("c", 1, 0)]),
        |session, entry| {
            let [name, host, node] = [session, "vm", "n1"].map(|text| Some(text.to_owned()));
            entry.who = Identity { name, host, node, pid: Some(7), ..Identity::default() };
        },
    );
    let first = planned(&named, &settings(1, 1), hold, false);
    let lock =
        r#"{"Limit":1,"Holders":["me"],"Next":["b","c"],"NextWho":{"b":["b","vm",7],"c":["c","vm",7]}} "#;
    assert_eq!(lock_of(&first), lock);
    let before = queue(r#"{"Limit":1,"Holders":["me"]}"#, &["me"], &[]);
    let release = planned(&after_reading(before, lock, 60), &settings(1, 1), leave, false);
    let granted = release.write.iter().flat_map(|write| &write.ops).find_map(|op| {
        let Op::Lock { key, value, .. } = op else { return None };
        Entry::decode(value).filter(|_| key == "p/b")
    });
    assert_eq!(granted.unwrap().who.in_words().as_deref(), Some("b on vm pid 7"));
    let rest = r#"{"Limit":1,"Holders":["b"],"Next":["c"],"NextWho":{"c":["c","vm",7]}} "#;
    assert_eq!(lock_of(&release), rest);
}

#[test]
fn without_a_nameable_waiter_the_first_one_becomes_the_lookout() {
    let lock = r#"{"Limit":1,"Holders":["me"],"Next":["b"]} "#;
    let low = queue(lock, &["me"], &[("b", 1, 0), ("low", 1, -1)]);
    // It came while `b` was named, and watches nothing but its contender. When `b` dies, nobody else sees it.
    let plan = planned(&low, &settings(1, 1), leave, false);
    assert_eq!(lock_of(&plan), r#"{"Limit":1,"Holders":["b"]} "#);
    assert_eq!(written(&plan).1, ["p/low Lookout", "p/b Held [0]", "-p/me"]);
}

#[test]
fn the_first_slotkeeper_client_that_leaves_beside_foreign_clients_notifies_the_next() {
    let lock = r#"{"Limit":1,"Holders":["theirs"]}"#;
    let seen = view(Some((lock, 0)), &[("theirs", None), ("me", WAITS), ("b", WAITS)]);
    let seen = changed(seen, |session, entry| entry.lookout = session == "me");
    let plan = planned(&seen, &settings(1, 1), leave, false);
    // `b` may have come while others were named, and watch nothing but its contender.
    assert_eq!(written(&plan), (None, vec!["-p/me".into(), "p/b Lookout".into()]));
}

#[test]
fn a_newcomer_that_sets_the_limit_lists_at_once() {
    let sets = Settings { limit_policy: LimitPolicy::Set, ..settings(3, 1) };
    for lock in [r#"{"Limit":1,"Holders":["a"]}"#, r#"{"Limit":1,"Holders":["a"],"Next":["b"]} "#] {
        let plan = asks(&blind(lock), &sets, |input| PlanInput { set_limit: true, ..input });
        assert_eq!(plan.refresh, Some(Refresh::Prefix), "{lock}");
    }
}

#[test]
fn the_first_slotkeeper_client_beside_foreign_clients_acquires_a_free_slot_at_once() {
    let full = r#"{"Limit":2,"Holders":["t1","t2"]}"#;
    let listed = |people: &[(&str, Option<WaiterState>)]| view(Some((full, 0)), people);
    let known: [(&str, Option<WaiterState>); 3] = [("t1", None), ("t2", None), ("me", WAITS)];
    // A client has left and another one has come in, of whom nothing is known.
    let free = r#"{"Limit":2,"Holders":["t3"]}"#;
    let plan = asks(&after_reading(listed(&known), free, 60), &settings(2, 1), |input| input);
    let taken = r#"{"Limit":2,"Holders":["t3","me"]}"#.to_owned();
    assert_eq!((plan.refresh, written(&plan)), (None, (Some((taken, 60)), vec!["p/me Held [0]".into()])));
    // Where one of those stands ahead that may have its turn, it lists; and so does one that others pass without a word.
    let ahead = listed(&[("t1", None), ("t2", None), ("t0", None), ("me", WAITS)]);
    let last = Settings { priority: -1, ..settings(2, 1) };
    let low = changed(listed(&known), |_, entry| entry.priority = -1);
    for (seen, settings) in [(ahead, &settings(2, 1)), (low, &last)] {
        let plan = asks(&after_reading(seen, free, 60), settings, |input| input);
        assert_eq!((plan.refresh, plan.write), (Some(Refresh::Prefix), None));
    }
    // Behind another of ours it leaves that to it.
    let behind = listed(&[("t1", None), ("t2", None), ("b", WAITS), ("me", WAITS)]);
    let plan = asks(&after_reading(behind, free, 60), &settings(2, 1), |input| input);
    assert_eq!((plan.refresh, plan.write), (None, None));
    // One that waited when it listed, and holds by now, has a number that it does not know.
    let seen = listed(&[("t1", None), ("t2", None), ("party", WAITS), ("me", WAITS)]);
    let plan =
        asks(&after_reading(seen, r#"{"Limit":2,"Holders":["party"]}"#, 60), &settings(2, 1), |input| input);
    assert_eq!((plan.refresh, plan.write), (Some(Refresh::Prefix), None));
}

#[test]
fn a_waiter_that_joins_ahead_beside_foreign_clients_notifies_the_former_first() {
    let first = |limit| Settings { priority: 1, ..settings(limit, 1) };
    for (told, passed) in [(true, None), (false, None), (false, Some(4))] {
        let people = [("theirs", None), ("b", WAITS), ("c", WAITS)];
        let seen = |lock: &str| {
            changed(view(Some((lock, 0)), &people), |session, entry| {
                entry.lookout = told && session == "b";
                entry.passed = passed;
            })
        };
        let full = seen(r#"{"Limit":1,"Holders":["theirs"]}"#);
        let plan = planned(&full, &first(1), hold, false);
        assert_eq!(written(&plan).1, ["p/b Waiting", "p/me Lookout"]);
        assert!(written(&plan).0.is_some(), "a write that was planned without it comes too late");
        // As it was before, the write would change nothing.
        assert_eq!(entry_in(&plan, "b").passed, Some(passed.unwrap_or(0) + 1));
        // Also where it is let in at once.
        let plan = planned(&seen(r#"{"Limit":2,"Holders":["theirs"]}"#), &first(2), hold, false);
        assert_eq!(written(&plan).1, ["p/me Held [0]", "p/b Waiting"]);
        assert_eq!(entry_in(&plan, "b").passed, Some(passed.unwrap_or(0) + 1));
        // One of the usual priority comes behind it, and says nothing.
        let plan = planned(&full, &settings(1, 1), hold, false);
        assert_eq!(written(&plan).1, ["p/me Waiting"]);
    }
}
