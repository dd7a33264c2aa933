//! Of one that has lost its slot or its place, and may ask for it again.

use super::*;

/// One whose lease has run out while an operator marked it, and that has just seen the mark.
fn evicted_late(workload_stopped: impl FnOnce(&mut Keeper, Moment)) -> (Keeper, Moment) {
    let mut keeper = wanting(&["a"], &[], None, None);
    keeper.handle(Event::SessionCreated(Ok("me".into())), NOW);
    let mut own = contender("a", "me", Some(WaiterState::Held), 5);
    listed(&mut keeper, "a", vec![lock("a", 1, r#""me""#, 5), own.clone()]);
    assert_eq!(acquired(&mut keeper).0, ["a"]);
    let later = NOW + Duration::from_secs(28);
    keeper.tick(later);
    let lost = Command::Notify(Notice::Lost {
        name: "a".into(),
        session: "me".into(),
        token: 5,
        indexes: Vec::new(),
        reason: LossReason::LeaseExpired,
        held: Duration::from_secs(28),
    });
    assert!(std::iter::from_fn(|| keeper.next_command()).any(|it| it == lost));
    assert_eq!(keeper.machine("a").unwrap().stopping(), Some(5));
    workload_stopped(&mut keeper, later);
    renewed(&mut keeper, Ok(Duration::from_secs(30)), later);
    let mut entry = Entry::decode(&own.value).unwrap();
    entry.evicted_by = Some("ops".into());
    own = Pair { value: entry.encode(), modify_index: 9, ..own };
    let pairs = vec![lock("a", 1, r#""me""#, 5), own];
    keeper.handle(Event::Listed("a".into(), Ok(Listing { pairs, index: 30, filtered: false })), later);
    (keeper, later)
}

#[test]
fn a_mark_that_is_seen_after_the_lease_ran_out_waits_for_the_workload_too() {
    let (mut keeper, later) = evicted_late(|_, _| {});
    assert_eq!(keeper.machine("a").unwrap().withheld(), Some(5));
    assert_eq!(writes(&mut keeper), [[""; 0]; 0]);
    keeper.workload_stopped(&"a".into(), later);
    assert_eq!(writes(&mut keeper), [["a/.lock", "-a/me"]]);
}

#[test]
fn and_not_for_one_that_has_stopped_before_it_is_seen() {
    let (mut keeper, _) = evicted_late(|keeper, now| keeper.workload_stopped(&"a".into(), now));
    assert_eq!(keeper.machine("a").unwrap().withheld(), None);
    assert_eq!(writes(&mut keeper), [["a/.lock", "-a/me"]]);
}

/// One with that `on_lost` whose lease has run out, and is renewed again.
fn expired(on_lost: OnLost, meanwhile: impl FnOnce(&mut Keeper, Moment)) -> (Keeper, Moment) {
    let mut keeper = wanting(&["a"], &[], None, None);
    keeper.reconfigure(&"a".into(), Settings { on_lost, ..settings("a", None) }, NOW);
    keeper.handle(Event::SessionCreated(Ok("me".into())), NOW);
    let own = contender("a", "me", Some(WaiterState::Held), 5);
    listed(&mut keeper, "a", vec![lock("a", 1, r#""me""#, 5), own.clone()]);
    assert_eq!(acquired(&mut keeper).0, ["a"]);
    let later = NOW + Duration::from_secs(28);
    keeper.tick(later);
    meanwhile(&mut keeper, later);
    renewed(&mut keeper, Ok(Duration::from_secs(30)), later);
    let pairs = vec![lock("a", 1, r#""me""#, 5), own];
    keeper.handle(Event::Listed("a".into(), Ok(Listing { pairs, index: 30, filtered: false })), later);
    (keeper, later)
}

#[test]
fn a_client_whose_lease_expired_releases_after_its_workload_has_stopped() {
    let exits = expired(OnLost::Exit, |_, _| {});
    let ends = expired(OnLost::Reacquire, |keeper, now| keeper.stop_acquiring(now));
    for (mut keeper, later) in [exits, ends] {
        assert_eq!(keeper.machine("a").unwrap().withheld(), Some(5));
        assert_eq!(acquired(&mut keeper), (Vec::new(), Vec::new()));
        keeper.workload_stopped(&"a".into(), later);
        listed(
            &mut keeper,
            "a",
            vec![lock("a", 1, r#""me""#, 5), contender("a", "me", Some(WaiterState::Held), 5)],
        );
        assert_eq!(writes(&mut keeper), [["a/.lock", "-a/me"]]);
    }
    let (mut again, _) = expired(OnLost::Reacquire, |_, _| {});
    assert_eq!(acquired(&mut again).0, ["a"], "whoever stays has it back");
}

#[test]
fn an_evicted_waiter_lists_before_it_joins_again() {
    let mut keeper = wanting(&["a"], &[], None, None);
    keeper.handle(Event::SessionCreated(Ok("me".into())), NOW);
    let waiting = |session: &str, index| contender("a", session, Some(WaiterState::Waiting), index);
    let mut entry = Entry::new(WaiterState::Waiting, 1, 0, String::new(), Identity::default());
    let own = Pair { value: entry.encode(), ..waiting("me", 7) };
    let taken = |index| vec![lock("a", 1, r#""x""#, index), contender("a", "x", Some(WaiterState::Held), 4)];
    listed(&mut keeper, "a", [taken(5), vec![own.clone()]].concat());
    assert_eq!(writes(&mut keeper), [["a/.lock"]], "it names itself as the next");
    let done = |index, listing| Event::Committed(vec!["a".into()], Ok(Commit::Done { index, listing }));
    keeper.handle(done(31, None), NOW);
    assert_eq!(keeper.machine("a").unwrap().phase(), Phase::Waiting);
    entry.evicted_by = Some("ops".into());
    let marked = Pair { value: entry.encode(), modify_index: 32, ..own };
    let reading = Reading { pair: Some(marked), index: 32 };
    keeper.handle(Event::Watched("a".into(), "a/me".into(), Ok(reading)), NOW);
    // It was to watch over all: whoever came meanwhile and relies on it is seen.
    assert_eq!(writes(&mut keeper), [["-a/me", "a/.lock", "a/"]]);
    let nobody = Listing { pairs: taken(33), index: 33, filtered: false };
    keeper.handle(done(33, Some(nobody)), NOW);
    // By its own picture it would be the first. One that comes behind it changes nothing that it watches.
    let asked: Vec<_> = std::iter::from_fn(|| keeper.next_command()).collect();
    assert!(asked.iter().any(|it| matches!(it, Command::List { .. })), "{asked:?}");
    assert!(!asked.iter().any(|it| matches!(it, Command::Commit { .. })), "{asked:?}");
    listed(&mut keeper, "a", [taken(33), vec![waiting("late", 40)]].concat());
    assert_eq!(writes(&mut keeper), [["a/me", "a/me", "a/"]], "to the end of the line");
}

#[test]
fn a_member_whose_lease_ran_out_before_its_group_is_released_waits_for_its_workload() {
    let mut keeper = resumed();
    let own = |name| contender(name, "me", Some(WaiterState::Held), 5);
    listed(&mut keeper, "b", vec![lock("b", 1, r#""me""#, 5), own("b")]);
    assert_eq!(acquired(&mut keeper).0, ["a", "b"]);
    let later = NOW + Duration::from_secs(28);
    keeper.tick(later);
    assert_eq!(keeper.machine("a").unwrap().stopping(), Some(3));
    renewed(&mut keeper, Ok(Duration::from_secs(30)), later);
    for (name, pairs) in [
        ("a", vec![lock("a", 1, r#""me""#, 5), own("a")]),
        ("b", vec![lock("b", 1, r#""x""#, 7), contender("b", "x", None, 6)]),
    ] {
        keeper.handle(Event::Listed(name.into(), Ok(Listing { pairs, index: 30, filtered: false })), later);
    }
    assert_eq!(keeper.machine("a").unwrap().withheld(), Some(3));
    assert!(!writes(&mut keeper).concat().contains(&"a/.lock".to_owned()));
    keeper.workload_stopped(&"a".into(), later);
    assert!(writes(&mut keeper).concat().contains(&"a/.lock".to_owned()));
}
