//! What a client that knows the whole queue does for it: here the waiter `me`, which stands last unless a case says otherwise.

use super::*;

fn serves(limit: u32, pairs: Vec<Pair>) -> Write {
    client(settings(limit)).write(&listed(pairs))
}

#[test]
fn free_slots_are_offered_in_order() {
    let urgent = key_with("urgent", WaiterState::Waiting, 8, |entry| entry.priority = 5);
    let write =
        serves(2, vec![lock_of(2, &[], &[], 0), waits("b", 2), waits("c", 3), urgent, waits("me", 9)]);
    assert_eq!(written(&write), "urgent b | c me | 2");
    assert_eq!(entry_of(&write, "b").state, WaiterState::Offered);
    assert_eq!((entry_of(&write, "b").indexes, entry_of(&write, "b").beside), (vec![1], Some(2)));
    assert_eq!(write.offered, [id("urgent"), id("b")]);
}

#[test]
fn a_waiter_for_several_slots_is_not_overtaken_unless_the_limit_is_below() {
    let wants = |slots| key_with("b", WaiterState::Waiting, 2, |entry| entry.slots = slots);
    let of =
        |slots| listed(vec![lock_of(3, &["h", "h"], &[], 0), holds("h", 1), wants(slots), waits("me", 9)]);
    assert_eq!(written(&client(settings(3)).write(&of(2))), "h h | b b me | 2");
    assert_eq!(written(&client(settings(3)).write(&of(4))), "h h me |  | 0", "it waits for a higher limit");
}

#[test]
fn asked_waiters_come_after_all_others() {
    let pairs = |third: Pair| vec![lock_of(1, &[], &[], 0), asked("b", 2), third, waits("me", 9)];
    assert_eq!(
        written(&serves(1, pairs(waits("c", 3)))),
        "c | me | 1",
        "asked waiters are neither named nor counted"
    );
    // Its own mark says nothing: the planning client lives.
    let write = serves(1, vec![lock_of(1, &[], &[], 0), asked("b", 2), asked("me", 9)]);
    assert_eq!(written(&write), "me |  | 0");
    let view = listed(vec![lock_of(1, &[], &[], 0), asked("b", 2)]);
    let mut sightings = Sightings::default();
    sightings.see(&view, NOW);
    let later = NOW + ROLL_CALL;
    assert_eq!(
        pass_on(&view, &sightings, Some(Duration::ZERO), "", NOW),
        (None, Some(later)),
        "it may yet answer"
    );
    let (write, _) = pass_on(&view, &sightings, Some(Duration::ZERO), "", later);
    assert_eq!(written(&write.unwrap()), "b |  | 0", "nobody else is left");
}

fn offered_to_b() -> View {
    listed(vec![lock_of(1, &["b"], &["c", "me"], 2), offered("b", 60), waits("c", 3), waits("me", 9)])
}

#[test]
fn an_overdue_offer_is_withdrawn_and_those_next_in_line_are_asked() {
    let view = offered_to_b();
    let early = client(settings(1)).that_saw(&view, OFFER_PATIENCE / 2).plan(&view);
    assert_eq!((said(&early.next).as_str(), early.again), ("watch me", Some(NOW + OFFER_PATIENCE / 2)));
    let write = client(settings(1)).that_saw(&view, OFFER_PATIENCE).write(&view);
    assert_eq!(steps(&write), "cas .lock, cas b, cas c");
    assert_eq!(written(&write), " |  | 2", "nobody is named before the roll call is over");
    for session in ["b", "c"] {
        let entry = entry_of(&write, session);
        assert_eq!((entry.state, entry.asked, entry.indexes), (WaiterState::Waiting, true, vec![]));
    }
    assert!(write.asks);
}

#[test]
fn no_waiter_is_doubted_that_has_written_since_the_offer() {
    let view =
        listed(vec![lock_of(1, &["b"], &["c", "me"], 2), offered("b", 60), waits("c", 61), waits("me", 70)]);
    let write = client(settings(1)).that_saw(&view, OFFER_PATIENCE).write(&view);
    assert_eq!((written(&write).as_str(), write.asks), ("c | me | 1", false), "{}", steps(&write));
}

#[test]
fn acceptance_and_withdrawal_exclude_each_other() {
    let view = offered_to_b();
    let (withdraws, _) = {
        let mut sightings = Sightings::default();
        sightings.see(&view, NOW.back(OFFER_PATIENCE));
        pass_on(&view, &sightings, Some(Duration::ZERO), "", NOW)
    };
    let taker = Client { session: id("b"), ..client(settings(1)) };
    let accepts = wake(view.contender(&id("b")).unwrap(), taker.me()).unwrap();
    let guard = |write: &Write| {
        write.ops.iter().find_map(|op| match op {
            Op::Cas { key, index, .. } if key == "p/b" => Some(*index),
            _ => None,
        })
    };
    assert_eq!((guard(&withdraws.unwrap()), guard(&accepts)), (Some(60), Some(60)));
}

#[test]
fn the_first_that_has_answered_is_served() {
    let write = serves(1, vec![lock_of(1, &[], &[], 3), asked("b", 61), waits("c", 62), waits("me", 63)]);
    assert_eq!(written(&write), "c | me | 1");
}

#[test]
fn the_dead_rest_for_the_prune_delay() {
    let settings = Settings { prune_delay: Duration::from_secs(20), ..settings(1) };
    let view = listed(vec![lock_of(1, &["dead"], &["me"], 1), waits("me", 9)]);
    let seen = |ago| client(settings.clone()).that_saw(&view, Duration::from_secs(ago));
    assert_eq!(seen(5).plan(&view).again, Some(NOW + Duration::from_secs(15)));
    assert_eq!(written(&seen(20).write(&view)), "me |  | 0");
}

#[test]
fn nothing_is_pruned_or_granted_by_a_listing_that_hides_keys() {
    let pairs = vec![lock_of(2, &["hidden"], &["b"], 1), waits("b", 2), waits("me", 9)];
    let listing = crate::Listing { pairs, index: READ, filtered: true };
    let me = client(settings(2));
    assert_eq!(me.next(&View::of_listing("p", listing.clone())), "watch me");
    assert_eq!(
        pass_on(&View::of_listing("p", listing), &Sightings::default(), Some(Duration::ZERO), "", NOW),
        (None, None)
    );
}

#[test]
fn free_slots_are_left_to_a_foreign_client_for_a_short_turn() {
    let view = listed(vec![foreign_lock(1, &[]), foreign("x", 2), waits("me", 9)]);
    let plan = client(settings(1)).that_saw(&view, FOREIGN_TURN / 2).plan(&view);
    assert_eq!((said(&plan.next).as_str(), plan.again), ("watch me x .lock", Some(NOW + FOREIGN_TURN / 2)));
    let write = client(settings(1)).that_saw(&view, FOREIGN_TURN).write(&view);
    assert_eq!(written(&write), "me |  | no hints", "beside a foreign client no hints are written");
}

#[test]
fn beside_a_foreign_client_each_waiter_watches_the_one_ahead_and_the_first_one_the_record() {
    let of = |own| {
        let view = listed(vec![foreign_lock(1, &["x"]), foreign("x", 1), waits("b", 2), own]);
        client(settings(1)).next(&view)
    };
    assert_eq!(of(waits("me", 9)), "watch me b");
    let first = key_with("me", WaiterState::Waiting, 9, |entry| entry.priority = 1);
    let view = listed(vec![foreign_lock(1, &["x"]), foreign("x", 1), waits("b", 2), first]);
    assert_eq!(client(Settings { priority: 1, ..settings(1) }).next(&view), "watch me .lock");
}

fn member(session: &str, index: u64) -> Pair {
    let together = || vec!["p".to_owned(), "q".to_owned()];
    key_with(session, WaiterState::Waiting, index, |entry| entry.together = together())
}

#[test]
fn free_slots_are_left_to_an_acquire_group_which_is_asked_in_the_end() {
    let view = listed(vec![lock_of(1, &[], &["me"], 1), member("g", 2), waits("me", 9)]);
    let seen = |ago| client(settings(1)).that_saw(&view, ago).plan(&view);
    assert_eq!(seen(Duration::ZERO).again, Some(NOW + GROUP_PATIENCE));
    let Next::Write(write) = seen(GROUP_PATIENCE).next else { panic!("no write") };
    assert!(entry_of(&write, "g").asked && write.offered.is_empty());
}

#[test]
fn a_group_joins_and_takes_its_slots_by_writes_that_all_members_make_together() {
    let of = |step, pairs| {
        let prefixes = vec!["p".to_owned(), "q".to_owned()];
        Client { together: Some((prefixes, step)), ..client(settings(1)) }.write(&listed(pairs))
    };
    let joins = of(GroupStep::Enqueue, vec![lock_of(1, &[], &[], 0)]);
    assert_eq!((steps(&joins).as_str(), joins.joint), ("cas .lock, new me, lock me", true));
    assert_eq!(entry_of(&joins, "me").together, ["p", "q"]);
    let takes = of(GroupStep::Acquire, vec![lock_of(1, &[], &[], 0), member("me", 9)]);
    assert_eq!((written(&takes).as_str(), takes.joint), ("me |  | 0", true));
}

#[test]
fn a_group_takes_back_offers_before_it_takes_slots() {
    let view = listed(vec![lock_of(1, &["b"], &[], 0), offered("b", 60), member("me", 9)]);
    let together = Some((vec!["p".to_owned(), "q".to_owned()], GroupStep::Acquire));
    let write = Client { together, ..client(settings(1)) }.that_saw(&view, OFFER_PATIENCE).write(&view);
    assert_eq!((steps(&write).as_str(), write.joint), ("cas .lock, cas b", false));
}

#[test]
fn a_waiter_passes_a_group_that_needs_what_it_holds() {
    let view = listed(vec![lock_of(1, &[], &[], 0), member("g", 2), waits("me", 9)]);
    let (me, held) = (client(settings(1)), ["q".to_owned()]);
    let plan = hold(&view, Me { holds: &held, ..me.me() }, me.memory());
    let Next::Write(write) = plan.next else { panic!("{plan:?}") };
    assert!(write.own != Own::Nothing && record_of(&write).slots_of(&id("me")) == 1);
}

#[test]
fn one_transaction_is_bounded() {
    let crowd = (0..100).map(|number| waits(&format!("w{number:03}"), 100 + number));
    let pairs = crowd.chain([lock_of(100, &[], &[], 0), waits("me", 900)]).collect();
    let write = client(settings(100)).write(&listed(pairs));
    assert!(write.ops.len() <= 64 && write.offered.len() >= 20, "{}", write.ops.len());
    assert_eq!(
        (record_of(&write).next().len(), record_of(&write).hints.unwrap().waiting),
        (32, 101 - write.offered.len() as u32)
    );
}
