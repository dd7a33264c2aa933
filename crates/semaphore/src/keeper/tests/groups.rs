//! Acquire groups.

use super::*;

fn group(pairs: Vec<Pair>) -> Game {
    let together = vec!["a".into(), "b".into()];
    let mut game = Game::with(Start { together, ..start(&["a", "b"]) }, pairs);
    game.passes(after(200));
    game
}

#[test]
fn a_group_takes_all_slots_by_one_write() {
    let game = group(Vec::new());
    assert!(game.holds("a") && game.holds("b"));
    assert_eq!(game.token("a"), game.token("b"));
}

#[test]
fn a_group_joins_all_queues_by_one_write_and_holds_nothing_while_a_slot_is_missing() {
    let mut game = group(taken("b"));
    assert!(!game.holds("a") && !game.holds("b"));
    assert_eq!(game.keys["a/me"].create_index, game.keys["b/me"].create_index);
    assert_eq!(game.keeper.blocking_members(&"a".into()), [&Name::from("b")]);
    game.change(vec![("b/.lock", Some(lock("b", 1, &[], &[]))), ("b/x", None)]);
    game.passes(game.now + Duration::from_secs(1));
    assert!(game.holds("a") && game.holds("b"));
}

#[test]
fn a_group_with_a_blocked_member_leaves_every_queue_until_that_is_fixed() {
    let mut game = group([taken("a"), taken("b")].concat());
    assert!(game.keys.contains_key("a/me") && game.keys.contains_key("b/me"));
    let holds = |name| key(name, "x", WaiterState::Held);
    game.set(vec![lock("a", 0, &["x"], &[]), holds("a")]);
    game.passes(game.now + Duration::from_secs(1));
    assert!(matches!(game.phase("a"), Some(Phase::Blocked { .. })));
    assert!(!game.keys.contains_key("a/me") && !game.keys.contains_key("b/me"));
    game.set(vec![lock("a", 1, &["x"], &[])]);
    game.passes(game.now + Duration::from_secs(2));
    assert_eq!(game.keys["a/me"].create_index, game.keys["b/me"].create_index);
}

#[test]
fn a_group_that_loses_a_slot_releases_the_others_when_their_workload_has_stopped() {
    let mut game = group(Vec::new());
    game.change(vec![
        ("b/.lock", Some(lock("b", 1, &["x"], &[]))),
        ("b/me", None),
        ("b/x", Some(key("b", "x", WaiterState::Held))),
    ]);
    game.passes(game.now + Duration::from_secs(2));
    assert!(game.losses().contains(&LossReason::GroupLost), "{:?}", game.losses());
    assert_eq!(game.record(), "me | ", "its workload may run");
    game.keeper.workload_stopped(&"a".into(), game.now);
    game.run();
    game.passes(game.now + Duration::from_secs(1));
    assert!(!game.record().starts_with("me"), "{}", game.record());
}

/// A semaphore that is added again has a slot of its own: the others keep theirs while it waits.
#[test]
fn a_semaphore_that_left_a_group_is_no_member_when_it_is_added_again() {
    let mut game = group(Vec::new());
    game.keeper.remove(&"b".into(), game.now);
    game.run();
    game.set(taken("b"));
    game.keeper.add("b".into(), settings("b"), game.now);
    game.run();
    game.passes(game.now + Duration::from_secs(1));
    assert!(game.holds("a") && !game.holds("b") && game.keys.contains_key("b/me"));
    assert!(game.entry("b/me").together.is_empty());
}
