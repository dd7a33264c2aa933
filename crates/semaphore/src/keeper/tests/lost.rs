//! Slots and positions that were lost, and what becomes of them.

use super::*;

/// A holder whose lease has expired.
fn expired(on_lost: OnLost) -> Game {
    let semaphores = vec![("a".into(), Settings { on_lost, ..settings("a") })];
    let mut game = Game::new(Start { semaphores, ..start(&[]) });
    game.withheld = "renew";
    game.passes(after(28_000));
    assert_eq!(game.losses(), [LossReason::LeaseExpired]);
    assert_eq!(game.keeper.machine("a").unwrap().stopping(), game.keeper.machine("a").unwrap().stopping());
    game
}

#[test]
fn a_client_whose_lease_expired_releases_after_its_workload_has_stopped() {
    let mut game = expired(OnLost::Exit);
    game.release();
    assert!(game.keeper.machine("a").unwrap().withheld().is_some());
    assert_eq!(game.record(), "me | ");
    game.keeper.workload_stopped(&"a".into(), game.now);
    game.run();
    assert_eq!((game.record().as_str(), game.phase("a")), (" | ", Some(Phase::Lost)));
}

#[test]
fn a_client_whose_lease_expired_has_its_slot_back_if_it_is_still_there() {
    let mut game = expired(OnLost::Reacquire);
    game.release();
    assert!(game.holds("a"));
}

fn evict(game: &mut Game, session: &str) {
    let mut entry = game.entry(&format!("a/{session}"));
    entry.evicted_by = Some("ops".into());
    game.set(vec![pair(&format!("a/{session}"), entry.encode(), Some(session))]);
}

#[test]
fn an_evicted_holder_releases_when_its_workload_has_stopped_and_goes_to_the_end() {
    let mut game = holder();
    game.passes(after(1000));
    game.set(vec![lock("a", 1, &["me"], &["b"]), key("a", "b", WaiterState::Waiting)]);
    evict(&mut game, "me");
    assert_eq!(game.losses(), [LossReason::Evicted]);
    assert_eq!(game.record(), "me | b");
    game.keeper.workload_stopped(&"a".into(), game.now);
    game.run();
    game.passes(game.now + Duration::from_secs(1));
    assert!(game.record().starts_with("b |"), "{}", game.record());
    assert!(game.keys["a/me"].create_index > game.keys["a/b"].create_index);
    assert_eq!(game.entry("a/me").evicted_by, None);
}

#[test]
fn a_mark_that_is_seen_after_the_lease_ran_out_waits_for_the_workload_too() {
    for stopped in [false, true] {
        let mut game = expired(OnLost::Reacquire);
        evict(&mut game, "me");
        if stopped {
            game.keeper.workload_stopped(&"a".into(), game.now);
        }
        game.release();
        assert_eq!(game.keeper.machine("a").unwrap().withheld().is_some(), !stopped);
        assert_eq!(
            game.entry("a/me").evicted_by.is_some(),
            !stopped,
            "it has left only if its workload has stopped"
        );
    }
}

#[test]
fn an_evicted_waiter_goes_to_the_end_of_the_queue() {
    let mut game = waiter(start(&["a"]));
    let before = game.keys["a/me"].create_index;
    evict(&mut game, "me");
    game.passes(game.now + Duration::from_secs(1));
    assert!(game.keys["a/me"].create_index > before && game.entry("a/me").evicted_by.is_none());
    assert!(game.notices.iter().any(|notice| matches!(notice, Notice::Evicted { held: false, .. })));
}

#[test]
fn a_slot_that_a_workload_uses_is_not_acquired_again() {
    let mut game = holder();
    game.keeper.set_occupied(BTreeSet::from(["a".into()]), NOW);
    game.fails = Some(FailureKind::NotFound);
    game.passes(after(8000));
    assert_eq!(game.losses(), [LossReason::SessionGone]);
    game.fails = None;
    game.passes(after(20_000));
    assert!(!game.holds("a"));
}
