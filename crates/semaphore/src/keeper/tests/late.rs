//! What an earlier process has sent, and Consul carries out when its successor has looked already.

use super::*;

const LEFT: &str = "left behind: a";

fn after(seconds: u64) -> Moment {
    NOW + Duration::from_secs(seconds)
}

/// Answers a listing of what is left behind, at an instant.
fn shown(keeper: &mut Keeper, pairs: Vec<Pair>, now: Moment) {
    keeper.handle(Event::Listed(LEFT.into(), Ok(Listing { pairs, index: 30, filtered: false })), now);
}

fn lists(keeper: &mut Keeper) -> bool {
    let commands: Vec<_> = std::iter::from_fn(|| keeper.next_command()).collect();
    commands.iter().any(|it| matches!(it, Command::List { name } if **name == *LEFT))
}

/// One that resumes a session which was to have a slot of `a`, and wants only one of `b`.
fn heir() -> Keeper {
    let mut keeper = wanting(
        &["b"],
        &[],
        None,
        Some(left(BTreeMap::from([("a".to_owned(), None), ("b".to_owned(), None)]))),
    );
    renewed(&mut keeper, Ok(Duration::from_secs(3600)), NOW);
    listed(&mut keeper, "b", vec![lock("b", 1, r#""other""#, 5), contender("b", "other", None, 4)]);
    assert!(lists(&mut keeper));
    shown(&mut keeper, Vec::new(), NOW);
    keeper
}

fn leaves(keeper: &Keeper) -> Vec<String> {
    Resume::of(keeper).map(|left| left.prefixes.into_keys().collect()).unwrap_or_default()
}

#[test]
fn what_is_done_late_is_found_by_a_second_look() {
    let mut keeper = heir();
    assert_eq!(leaves(&keeper), ["a", "b"], "the next process looks too");
    keeper.tick(after(29));
    assert!(!lists(&mut keeper));
    keeper.tick(after(30));
    assert!(lists(&mut keeper));
    let mut late = contender("a", "me", Some(WaiterState::Waiting), 12);
    let mut entry = Entry::decode(&late.value).unwrap();
    entry.together.clear();
    late.value = entry.encode();
    shown(&mut keeper, vec![late], after(30));
    assert_eq!(writes(&mut keeper), [["-a/me"]]);
    keeper.handle(
        Event::Committed(vec![LEFT.into()], Ok(Commit::Done { index: 40, listing: None })),
        after(30),
    );
    assert_eq!(leaves(&keeper), ["b"]);
    assert!(keeper.machine(LEFT).is_none());
}

#[test]
fn a_second_look_that_finds_nothing_is_the_last() {
    let mut keeper = heir();
    keeper.tick(after(30));
    assert!(lists(&mut keeper));
    shown(&mut keeper, Vec::new(), after(30));
    assert!(keeper.machine(LEFT).is_none());
}

#[test]
fn a_slot_that_is_requested_again_meanwhile_is_left_to_the_request() {
    let mut keeper = heir();
    keeper.add("a".into(), settings("a", None), after(10));
    assert!(keeper.machine(LEFT).is_none());
    assert!(keeper.machine("a").is_some());
}

#[test]
fn a_drain_does_not_wait_for_it() {
    let mut keeper = heir();
    keeper.drain(after(1));
    assert!(keeper.machine(LEFT).is_none());
}
