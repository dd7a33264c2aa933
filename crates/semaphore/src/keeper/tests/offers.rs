//! Offers, from both sides.

use super::*;

/// `x` releases its slot and offers it to the waiter; others wait behind.
fn offers(game: &mut Game, behind: &[&str]) {
    let offered = key("a", "me", WaiterState::Offered);
    game.set(behind.iter().map(|session| key("a", session, WaiterState::Waiting)).collect());
    game.change(vec![
        ("a/.lock", Some(lock("a", 1, &["me"], behind))),
        ("a/x", None),
        ("a/me", Some(offered)),
    ]);
}

#[test]
fn a_slot_is_held_once_the_acceptance_is_committed() {
    let mut game = waiter(start(&["a"]));
    game.withheld = "commit";
    offers(&mut game, &[]);
    assert_eq!(game.take_asked(), ["commit a/me a/me a/.lock a/me"]);
    assert!(!game.holds("a"));
    let offer = game.keys["a/me"].modify_index;
    game.release();
    assert_eq!(game.token("a"), Some(offer));
    assert_eq!((game.entry("a/me").state, game.entry("a/me").token), (WaiterState::Held, Some(offer)));
    game.passes(game.now + Duration::from_secs(70));
    assert_eq!(game.token("a"), Some(offer), "later readings and writes do not change it");
}

#[test]
fn an_offer_that_is_withdrawn_meanwhile_is_no_hold_and_the_waiter_shows_signs_of_life() {
    let mut game = waiter(start(&["a"]));
    game.withheld = "commit";
    offers(&mut game, &[]);
    let asked = key_with("a", "me", WaiterState::Waiting, |entry| entry.asked = true);
    game.set(vec![lock("a", 1, &["y"], &[]), key("a", "y", WaiterState::Held), asked]);
    game.release();
    game.passes(game.now + Duration::from_millis(500));
    assert!(!game.holds("a") && game.phase("a") == Some(Phase::Waiting));
    assert!(!game.entry("a/me").asked);
}

#[test]
fn an_asked_waiter_answers_by_one_write_and_waits_for_what_follows() {
    let mut game = waiter(start(&["a"]));
    game.set(vec![key_with("a", "me", WaiterState::Waiting, |entry| entry.asked = true)]);
    assert_eq!(game.take_asked(), ["commit a/me a/.lock a/me", "watch a/me"]);
    assert!(!game.entry("a/me").asked);
}

/// An agent that has just released its slot, which it has offered to `b`; `c` waits behind.
fn left() -> Game {
    let mut game = waiter(start(&["a"]));
    offers(&mut game, &["b", "c"]);
    assert!(game.holds("a"));
    (game.now, game.asked) = (NOW, Vec::new());
    game.keeper.remove(&"a".into(), NOW);
    game.run();
    assert_eq!(game.record(), "b | c");
    game
}

#[test]
fn a_release_reads_and_writes_once() {
    let mut game = left();
    assert_eq!(game.take_asked(), ["read a/.lock a/me", "commit a/.lock a/b a/b a/me a/me", "watch a/b"]);
    assert_eq!((game.entry("a/b").state, game.entry("a/b").indexes), (WaiterState::Offered, vec![0]));
}

#[test]
fn a_client_that_has_left_watches_its_taker_until_it_has_accepted() {
    let mut game = left();
    assert!(game.keeper.machine("a").is_some_and(Machine::owes));
    game.set(vec![key("a", "b", WaiterState::Held)]);
    assert!(game.keeper.machine("a").is_none());
}

#[test]
fn a_client_that_has_left_passes_on_what_its_taker_does_not_accept() {
    let mut game = left();
    game.passes(after(1900));
    assert_eq!(game.record(), "b | c");
    game.passes(after(2100));
    assert_eq!(game.record(), " | ");
    assert!(game.entry("a/b").asked && game.entry("a/c").asked);
    game.set(vec![key("a", "c", WaiterState::Waiting)]);
    game.passes(after(2700));
    assert_eq!((game.record().as_str(), game.entry("a/c").state), ("c | ", WaiterState::Offered));
    game.set(vec![key("a", "c", WaiterState::Held)]);
    assert!(game.keeper.machine("a").is_none());
}

#[test]
fn a_drain_lasts_until_the_offered_slots_are_in_use() {
    let mut game = left();
    game.keeper.drain(NOW);
    game.run();
    assert!(!game.keeper.has_ended());
    game.set(vec![key("a", "b", WaiterState::Held)]);
    assert!(game.keeper.has_ended());
}

#[test]
fn a_waiter_that_observes_finds_a_dead_holder_within_seconds() {
    let mut game = waiter(start(&["a"]));
    game.passes(after(10_000));
    assert!(game.watches.contains_key("a/"), "{:?}", game.watches);
    game.change(vec![("a/x", None)]);
    game.passes(after(12_000));
    assert!(game.holds("a"));
    assert!(game.notices.iter().any(|notice| matches!(notice, Notice::Pruned { holders: 1, .. })));
}

#[test]
fn an_observer_rests_although_others_have_come_after_it() {
    let mut game = waiter(start(&["a"]));
    game.set(vec![key("a", "b", WaiterState::Waiting)]);
    game.passes(after(10_000));
    game.take_asked();
    game.passes(after(30_000));
    assert_eq!(game.take_asked(), [""; 0]);
    assert!(game.watches.contains_key("a/"), "{:?}", game.watches);
    game.change(vec![("a/x", None)]);
    game.passes(after(33_000));
    assert!(game.holds("a") || game.entry("a/b").state == WaiterState::Offered, "{}", game.record());
}

#[test]
fn a_waiter_withdraws_an_offer_whose_taker_and_giver_are_dead() {
    let mut game = waiter(start(&["a"]));
    game.passes(after(10_000));
    let offer = key("a", "b", WaiterState::Offered);
    game.change(vec![("a/.lock", Some(lock("a", 1, &["b"], &["me"]))), ("a/x", None), ("a/b", Some(offer))]);
    game.passes(after(14_000));
    assert!(game.holds("a") && game.entry("a/b").asked, "{}", game.record());
}

#[test]
fn of_holders_that_one_write_served_each_leaves_a_moment_after_the_one_before() {
    let mut game = waiter(start(&["a"]));
    let served = key_with("a", "me", WaiterState::Offered, |entry| {
        (entry.indexes, entry.beside) = (vec![5], Some(3));
    });
    let beside = Some(key_with("a", "y", WaiterState::Held, |entry| entry.indexes = vec![3]));
    let lock = Some(lock("a", 6, &["y", "me"], &[]));
    game.change(vec![("a/.lock", lock), ("a/x", None), ("a/y", beside), ("a/me", Some(served))]);
    assert!(game.holds("a"));
    let end = game.now;
    game.keeper.remove(&"a".into(), end);
    game.passes(end + Duration::from_millis(9));
    assert_eq!(game.record(), "y me | ");
    game.passes(end + Duration::from_millis(10));
    assert_eq!(game.record(), "y | ");
}

#[test]
fn a_waiter_looks_before_its_wait_ends() {
    let wait = Some(Duration::from_secs(4));
    let semaphores = vec![("a".into(), Settings { wait, ..settings("a") })];
    let mut game = Game::with(Start { semaphores, ..start(&[]) }, taken("a"));
    game.passes(after(600));
    // Nothing that it watches tells of that.
    game.watches.clear();
    game.keys.remove("a/x");
    game.passes(after(4000));
    assert!(game.holds("a"), "{:?}", game.phase("a"));
}

#[test]
fn a_wait_that_ends_in_vain_leaves_no_key() {
    let wait = Some(Duration::from_secs(4));
    let semaphores = vec![("a".into(), Settings { wait, ..settings("a") })];
    let mut game = Game::with(Start { semaphores, ..start(&[]) }, taken("a"));
    game.passes(after(4000));
    assert_eq!(game.phase("a"), Some(Phase::TimedOut));
    assert!(!game.keys.contains_key("a/me"));
}

#[test]
fn beside_a_foreign_client_a_free_slot_is_taken_as_soon_as_it_is_seen() {
    let foreign =
        |holders: &str| pair("a/.lock", format!(r#"{{"Limit":1,"Holders":[{holders}]}}"#).into(), None);
    let mut game = Game::with(start(&["a"]), vec![foreign(r#""x""#), pair("a/x", Vec::new(), Some("x"))]);
    game.passes(after(100));
    assert_eq!(game.phase("a"), Some(Phase::Waiting));
    assert!(game.watches.contains_key("a/.lock"), "{:?}", game.watches);
    game.asked.clear();
    game.change(vec![("a/.lock", Some(foreign(""))), ("a/x", None)]);
    assert!(game.holds("a"), "{:?}", game.asked);
}

#[test]
fn where_foreign_clients_take_turns_a_waiter_takes_the_slot_that_the_next_one_leaves() {
    let foreign =
        |holders: &str| Some(pair("a/.lock", format!(r#"{{"Limit":1,"Holders":[{holders}]}}"#).into(), None));
    let one = |session: &str| pair(&format!("a/{session}"), Vec::new(), Some(session));
    let pairs = vec![foreign(r#""x""#).unwrap(), one("idle"), one("x"), one("y")];
    let mut game = Game::with(start(&["a"]), pairs);
    game.passes(after(100));
    // Whoever waits beside the idle one takes the slot at once.
    game.change(vec![("a/.lock", foreign(""))]);
    game.change(vec![("a/.lock", foreign(r#""y""#)), ("a/x", None)]);
    game.passes(after(500));
    assert!(!game.holds("a"));
    game.take_asked();
    game.change(vec![("a/.lock", foreign("")), ("a/y", None)]);
    assert!(game.holds("a"), "{:?}", game.asked);
    assert_eq!(game.asked[0], "commit a/.lock a/me");
}
