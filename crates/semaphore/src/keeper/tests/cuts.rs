//! Watches that what lies between has cut off.

use super::*;

/// One that holds a slot of `a` and watches its keys, and those keys.
fn holder(watch_grace: Option<Duration>) -> (Keeper, Vec<String>) {
    let start = Start { watch_grace, ..starting(&["a"], &[], None, None) };
    let mut keeper = Keeper::new(start, NOW);
    keeper.handle(Event::SessionCreated(Ok("me".into())), NOW);
    while keeper.next_command().is_some() {}
    listed(&mut keeper, "a", vec![lock("a", 1, r#""me""#, 5), own(WaiterState::Held)]);
    assert!(keeper.machine("a").unwrap().holds());
    let mut keys = watched(&commands(&mut keeper));
    // Its contender is watched after a second.
    keeper.tick(after(1));
    keys.extend(watched(&commands(&mut keeper)));
    assert_eq!(keys, ["a/me"]);
    (keeper, keys)
}

/// Its contender, in no party.
fn own(standing: WaiterState) -> Pair {
    let mut own = contender("a", "me", Some(standing), 5);
    let mut entry = Entry::decode(&own.value).unwrap();
    entry.together.clear();
    own.value = entry.encode();
    own
}

fn commands(keeper: &mut Keeper) -> Vec<Command> {
    std::iter::from_fn(|| keeper.next_command()).collect()
}

fn watched(commands: &[Command]) -> Vec<String> {
    let key = |command: &Command| {
        if let Command::Watch { key, .. } = command { Some(key.clone()) } else { None }
    };
    commands.iter().filter_map(key).collect()
}

fn ends(keeper: &mut Keeper, key: &str, kind: FailureKind, now: Moment) -> Vec<Command> {
    let failure = Failure { kind, text: String::new() };
    keeper.handle(Event::Watched("a".into(), key.into(), Err(failure)), now);
    commands(keeper)
}

fn after(seconds: u64) -> Moment {
    NOW + Duration::from_secs(seconds)
}

#[test]
fn a_watch_that_was_cut_off_begins_again_at_once_without_a_word() {
    for grace in [None, Some(Duration::from_secs(3))] {
        let (mut keeper, keys) = holder(grace);
        let read_at = keeper.machine("a").unwrap().listed_at();
        for second in 2..=6 {
            let done = ends(&mut keeper, &keys[0], FailureKind::Cut, after(second));
            assert_eq!((watched(&done), done.len()), (vec![keys[0].clone()], 1), "{done:?}");
        }
        assert!(keeper.machine("a").unwrap().holds());
        assert_eq!(keeper.machine("a").unwrap().listed_at(), read_at, "it has shown nothing");
    }
}

#[test]
fn a_cut_does_not_end_what_has_failed() {
    let (mut keeper, keys) = holder(Some(Duration::from_secs(3)));
    ends(&mut keeper, &keys[0], FailureKind::Unavailable, after(2));
    keeper.tick(after(3));
    assert!(watched(&commands(&mut keeper)).contains(&keys[0]));
    ends(&mut keeper, &keys[0], FailureKind::Cut, after(4));
    assert!(keeper.machine("a").unwrap().holds());
    keeper.tick(after(5));
    assert!(!keeper.machine("a").unwrap().holds());
}

#[test]
fn by_the_strict_rule_a_cut_is_a_watch_that_has_failed() {
    let (mut keeper, keys) = holder(Some(Duration::ZERO));
    let done = ends(&mut keeper, &keys[0], FailureKind::Cut, after(2));
    let lost =
        |it: &Command| matches!(it, Command::Notify(Notice::Lost { reason: LossReason::WatchFailed, .. }));
    assert!(done.iter().any(lost), "{done:?}");
}

#[test]
fn by_the_strict_rule_too_a_waiter_has_nothing_to_lose_by_a_cut() {
    let start = Start { watch_grace: Some(Duration::ZERO), ..starting(&["a"], &[], None, None) };
    let mut waiter = Keeper::new(start, NOW);
    waiter.handle(Event::SessionCreated(Ok("me".into())), NOW);
    let holder = contender("a", "b", Some(WaiterState::Held), 4);
    listed(&mut waiter, "a", vec![lock("a", 1, r#""b""#, 6), holder, own(WaiterState::Waiting)]);
    // As the head of the line it says so.
    let done = Commit::Done { index: 7, listing: None };
    waiter.handle(Event::Committed(vec!["a".into()], Ok(done)), NOW);
    commands(&mut waiter);
    waiter.tick(after(1));
    commands(&mut waiter);
    let done = ends(&mut waiter, "a/me", FailureKind::Cut, after(2));
    assert_eq!((watched(&done), done.len()), (vec!["a/me".to_owned()], 1), "{done:?}");
}
