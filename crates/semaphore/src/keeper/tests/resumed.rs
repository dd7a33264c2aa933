//! Keepers that resume the session of an earlier process.

use super::*;

fn left(prefixes: &[(&str, Option<u64>)]) -> Option<Resume> {
    let prefixes = prefixes.iter().map(|(name, token)| ((*name).to_owned(), *token)).collect();
    Some(Resume { session: "me".into(), prefixes, locks: BTreeMap::new() })
}

fn held(name: &str) -> Vec<Pair> {
    vec![lock(name, 1, &["me"], &[]), key(name, "me", WaiterState::Held)]
}

#[test]
fn a_resumed_slot_is_held_under_its_token_without_a_write() {
    let game = Game::with(Start { resume: left(&[("a", Some(3))]), ..start(&["a"]) }, held("a"));
    assert_eq!(game.token("a"), Some(3));
    assert!(game.notices.iter().any(|notice| matches!(notice, Notice::Acquired { resumed: true, .. })));
    assert!(!game.asked.iter().any(|asked| asked.starts_with("commit")), "{:?}", game.asked);
}

#[test]
fn an_accepted_offer_is_resumed_under_the_token_in_its_key() {
    let own = key_with("a", "me", WaiterState::Held, |entry| entry.token = Some(40));
    let pairs = vec![lock("a", 1, &["me"], &[]), own];
    let game = Game::with(Start { resume: left(&[("a", None)]), ..start(&["a"]) }, pairs);
    assert_eq!(game.token("a"), Some(40));
}

#[test]
fn a_resumed_session_ends_in_no_words_but_consuls_own() {
    let mut game = Game::new(start(&[]));
    game.keeper = Keeper::new(Start { resume: left(&[("a", Some(3))]), ..start(&["a"]) }, NOW);
    for kind in [FailureKind::Rejected, FailureKind::Unavailable, FailureKind::Denied] {
        game.fails = Some(kind);
        game.run();
        game.passes(game.now + Duration::from_secs(10));
        assert!(!game.asked.contains(&"create".to_owned()), "{kind:?}");
    }
    game.fails = Some(FailureKind::NotFound);
    game.passes(game.now + Duration::from_secs(20));
    assert!(game.asked.contains(&"create".to_owned()));
}

#[test]
fn a_resumed_slot_whose_record_was_deleted_is_not_held_but_taken_anew() {
    let pairs = vec![key("a", "me", WaiterState::Held)];
    let mut game = Game::with(Start { resume: left(&[("a", Some(3))]), ..start(&["a"]) }, pairs);
    game.passes(after(500));
    assert!(game.token("a").is_some_and(|token| token > 100), "{:?}", game.phase("a"));
}

fn group(pairs: Vec<Pair>) -> Game {
    let together = vec!["a".into(), "b".into()];
    let resume = left(&[("a", Some(3)), ("b", None)]);
    Game::with(Start { together, resume, ..start(&["a", "b"]) }, pairs)
}

#[test]
fn a_resumed_group_is_held_if_it_is_complete() {
    let complete = group([held("a"), held("b")].concat());
    assert_eq!((complete.token("a"), complete.token("b")), (Some(3), Some(50)));
    let mut incomplete = group([held("a"), taken("b")].concat());
    assert!(!incomplete.holds("a"));
    assert_eq!(incomplete.losses(), [LossReason::GroupLost]);
    assert_eq!(incomplete.record(), "me | ", "its workload may run");
    incomplete.keeper.workload_stopped(&"a".into(), NOW);
    incomplete.run();
    assert!(!incomplete.record().starts_with("me"), "{}", incomplete.record());
}

const LEFT: &str = "left behind: a";

#[test]
fn what_is_left_under_another_prefix_is_cleared_away_also_what_is_done_late() {
    let resume = left(&[("a", None), ("b", None)]);
    let mut game = Game::with(Start { resume, ..start(&["b"]) }, held("a"));
    assert!(!game.keys.contains_key("a/me"));
    let leaves =
        |game: &Game| Resume::of(&game.keeper).map(|left| left.prefixes.into_keys().collect::<Vec<_>>());
    assert_eq!(leaves(&game), Some(vec!["a".into(), "b".into()]), "the next process looks too");
    // Consul executes a request of the earlier process late.
    game.set(vec![key("a", "me", WaiterState::Waiting)]);
    game.passes(after(29_000));
    assert!(game.keys.contains_key("a/me"));
    game.passes(after(31_000));
    assert!(!game.keys.contains_key("a/me") && game.keeper.machine(LEFT).is_none());
    assert_eq!(leaves(&game), Some(vec!["b".into()]));
}

#[test]
fn a_second_look_is_left_to_a_request_for_the_same_slot_and_delays_no_drain() {
    let heir =
        || Game::with(Start { resume: left(&[("a", None), ("b", None)]), ..start(&["b"]) }, Vec::new());
    let mut requested = heir();
    assert!(requested.keeper.machine(LEFT).is_some());
    requested.keeper.add("a".into(), settings("a"), after(10));
    assert!(requested.keeper.machine(LEFT).is_none());
    let mut drained = heir();
    drained.keeper.drain(after(10));
    drained.run();
    assert!(drained.keeper.has_ended());
}

#[test]
fn what_an_earlier_process_held_is_read_before_it_is_released() {
    let resume = || left(&[("a", Some(3))]);
    let begin = |pairs| {
        let mut game = Game::with(start(&[]), pairs);
        game.keeper = Keeper::new(Start { resume: resume(), ..start(&["a"]) }, NOW);
        game.keeper.stop_acquiring(NOW);
        game.run();
        game
    };
    assert!(begin(held("a")).holds("a"), "a workload may run on it");
    let other = begin(taken("a"));
    assert_eq!(other.phase("a"), Some(Phase::Released));
    assert!(!other.asked.iter().any(|asked| asked.starts_with("commit")), "{:?}", other.asked);
}
