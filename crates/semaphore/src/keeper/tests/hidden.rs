//! Listings from which Consul leaves keys out, and watches that a proxy cuts off.

use super::*;

#[test]
fn a_listing_that_hides_keys_is_a_denial_until_one_hides_none() {
    let once = Settings { wait: Some(Duration::from_secs(60)), ..settings("a") };
    let semaphores = vec![("a".into(), once)];
    let mut game = Game::new(start(&[]));
    game.hides = true;
    game.keys.extend(vec![lock("a", 2, &["hidden"], &[])].into_iter().map(|pair| (pair.key.clone(), pair)));
    for (name, settings) in semaphores {
        game.keeper.add(name, Settings { priority: 1, limit: 2, ..settings }, NOW);
    }
    game.set(vec![lock("a", 1, &["hidden"], &["b"])]);
    game.passes(after(5000));
    let denied = |notice: &Notice| matches!(notice, Notice::Failing { failure, .. } if failure.kind == FailureKind::Denied);
    assert_eq!(game.notices.iter().filter(|notice| denied(notice)).count(), 1, "{:?}", game.notices);
    assert_eq!(game.record(), "hidden | b", "nobody is pruned");
    game.hides = false;
    game.passes(after(20_000));
    assert!(game.notices.iter().any(|notice| matches!(notice, Notice::Recovered { .. })));
    assert_eq!(game.record(), "me | ");
}

#[test]
fn a_holder_keeps_its_slot_while_keys_are_hidden_and_releases_it() {
    let mut game = holder();
    game.hides = true;
    // What its minute's look shows makes it list.
    game.set(vec![lock("a", 2, &["me"], &["b"]), key("a", "b", WaiterState::Waiting)]);
    game.passes(after(100_000));
    assert!(game.asked.contains(&"list a".to_owned()) && game.holds("a"), "{:?}", game.asked);
    assert_eq!(game.record(), "me | b", "nothing is granted");
    game.keeper.remove(&"a".into(), game.now);
    game.run();
    assert!(!game.keys.contains_key("a/me") && !game.record().starts_with("me"), "{}", game.record());
}

#[test]
fn a_holder_sees_in_what_is_shown_that_it_is_one_no_more() {
    let mut game = holder();
    game.passes(after(1000));
    game.hides = true;
    game.change(vec![("a/.lock", Some(lock("a", 1, &["x"], &[]))), ("a/me", None)]);
    game.passes(after(5000));
    assert_eq!(game.losses(), [LossReason::Evicted]);
}

/// Answers the reads that were withheld with a denial, and those that follow.
fn deny(game: &mut Game) {
    let denied = || failure(FailureKind::Denied);
    for command in std::mem::take(&mut game.unanswered) {
        let event = match command {
            Command::List { name } => Event::Listed(name, Err(denied())),
            Command::ReadLock { name, .. } => Event::LockRead(name, Err(denied())),
            Command::ReadKeys { name, .. } => Event::KeysRead(name, Err(denied())),
            other => panic!("{other:?}"),
        };
        game.keeper.handle(event, game.now);
    }
    game.run();
}

#[test]
fn a_denied_read_delays_no_drain_unless_something_was_read_before() {
    for was_read in [false, true] {
        let mut game = if was_read { holder() } else { Game::new(start(&[])) };
        game.withheld = "read";
        if was_read {
            // Its first write fails, so that it has to read.
            game.set(vec![lock("a", 1, &["me"], &["b"])]);
        } else {
            game.keeper.add("a".into(), settings("a"), NOW);
            game.run();
            deny(&mut game);
        }
        game.keeper.drain(NOW);
        game.run();
        game.passes(after(1000));
        assert!(!game.unanswered.is_empty(), "{:?}", game.asked);
        deny(&mut game);
        assert_eq!(game.asked.contains(&"destroy".to_owned()), !was_read, "{:?}", game.asked);
    }
}

fn cut(game: &mut Game, kind: FailureKind, now: Moment) {
    game.now = now;
    game.watches.remove("a/me");
    game.keeper.handle(Event::Watched("a".into(), "a/me".into(), Err(failure(kind))), now);
    game.run();
}

fn watching(grace: Option<Duration>) -> Game {
    let mut game = Game::new(Start { watch_grace: grace, ..start(&["a"]) });
    game.passes(after(1000));
    assert!(game.holds("a") && game.watches.contains_key("a/me"));
    game.take_asked();
    game
}

#[test]
fn a_watch_that_was_cut_off_begins_again_at_once_without_a_word() {
    for grace in [None, Some(Duration::from_secs(3))] {
        let mut game = watching(grace);
        for second in 2..=6 {
            cut(&mut game, FailureKind::Cut, after(second * 1000));
            assert_eq!(game.take_asked(), ["watch a/me"]);
        }
        assert!(game.holds("a") && game.keeper.machine("a").unwrap().failing().is_none());
    }
}

#[test]
fn a_watch_that_fails_for_longer_than_its_grace_is_a_loss() {
    let mut game = watching(Some(Duration::from_secs(3)));
    game.withheld = "read";
    cut(&mut game, FailureKind::Unavailable, after(2000));
    game.passes(after(4900));
    assert!(game.holds("a"));
    game.passes(after(5000));
    assert_eq!(game.losses(), [LossReason::WatchFailed]);
}

#[test]
fn by_the_strict_rule_a_cut_is_a_watch_that_has_failed() {
    let mut game = watching(Some(Duration::ZERO));
    cut(&mut game, FailureKind::Cut, after(2000));
    assert_eq!(game.losses(), [LossReason::WatchFailed]);
}
