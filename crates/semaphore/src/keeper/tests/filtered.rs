//! What a keeper makes of listings in which Consul hides something from the token.

use super::*;

/// The first of those listed is dead, or hidden.
fn one_is_not_shown(name: &str) -> Vec<Pair> {
    vec![lock(name, 1, r#""other""#, 5)]
}

fn trouble(commands: &[Command]) -> Vec<&Notice> {
    let told =
        commands.iter().filter_map(|one| if let Command::Notify(notice) = one { Some(notice) } else { None });
    told.filter(|notice| matches!(notice, Notice::Failing { .. } | Notice::Recovered { .. })).collect()
}

#[test]
fn a_listing_that_hides_keys_is_a_denial_until_one_hides_none() {
    let mut keeper = wanting(&["a"], &[], None, None);
    keeper.handle(Event::SessionCreated(Ok("me".into())), NOW);
    let all = |keeper: &mut Keeper| -> Vec<_> { std::iter::from_fn(|| keeper.next_command()).collect() };
    all(&mut keeper);
    let list = |filtered| {
        Event::Listed("a".into(), Ok(Listing { pairs: one_is_not_shown("a"), index: 30, filtered }))
    };
    keeper.handle(list(true), NOW);
    let commands = all(&mut keeper);
    let [Notice::Failing { failure, .. }] = trouble(&commands)[..] else { panic!("{commands:?}") };
    assert_eq!(failure.kind, FailureKind::Denied);
    assert!(failure.text.contains(r#"needs `key_prefix "a/" { policy = "write" }`"#), "{}", failure.text);
    let writes = |commands: &[Command]| commands.iter().any(|one| matches!(one, Command::Commit { .. }));
    assert!(!writes(&commands), "{commands:?}");
    // It looks again after a while, and tells nothing anew.
    let later = NOW + Duration::from_secs(1);
    keeper.tick(later);
    assert!(all(&mut keeper).contains(&Command::List { name: "a".into() }));
    keeper.handle(list(true), later);
    let commands = all(&mut keeper);
    assert!(trouble(&commands).is_empty() && !writes(&commands), "{commands:?}");
    let later = later + Duration::from_secs(1);
    keeper.tick(later);
    keeper.handle(list(false), later);
    let commands = all(&mut keeper);
    assert!(
        matches!(trouble(&commands)[..], [Notice::Recovered { .. }]) && writes(&commands),
        "{commands:?}"
    );
}

#[test]
fn what_a_transaction_lists_does_not_prove_a_holder_dead() {
    let mut keeper = wanting(&["a"], &[], None, None);
    keeper.handle(Event::SessionCreated(Ok("me".into())), NOW);
    listed(&mut keeper, "a", vec![lock("a", 1, r#""other""#, 5), contender("a", "other", None, 4)]);
    assert_eq!(writes(&mut keeper).len(), 1);
    let mut pairs = one_is_not_shown("a");
    pairs.push(contender("a", "me", Some(WaiterState::Waiting), 31));
    let listing = Some(Listing { pairs, index: 31, filtered: false });
    keeper.handle(Event::Committed(vec!["a".into()], Ok(Commit::Done { index: 31, listing })), NOW);
    let commands: Vec<_> = std::iter::from_fn(|| keeper.next_command()).collect();
    assert!(commands.contains(&Command::List { name: "a".into() }), "{commands:?}");
    assert!(!commands.iter().any(|one| matches!(one, Command::Commit { .. })), "{commands:?}");
}

#[test]
fn a_holder_keeps_its_slot_while_keys_are_hidden_and_releases_it() {
    let (mut keeper, later) = listing();
    let listing = Listing { pairs: one_is_not_shown("a"), index: 40, filtered: true };
    keeper.handle(Event::Listed("a".into(), Ok(listing)), later);
    assert!(matches!(keeper.machine("a").unwrap().phase(), Phase::Held { .. }));
    // What else is answered does not end the trouble.
    let own = alone("a", 5);
    keeper
        .handle(Event::Watched("a".into(), "a/me".into(), Ok(Reading { pair: Some(own), index: 41 })), later);
    let commands: Vec<_> = std::iter::from_fn(|| keeper.next_command()).collect();
    assert!(matches!(trouble(&commands)[..], [Notice::Failing { .. }]), "{commands:?}");
    let later = later + Duration::from_secs(1);
    keeper.drain(later);
    keeper.handle(Event::LockRead("a".into(), Ok(Reading { pair: Some(unserved()), index: 41 })), later);
    assert_eq!(writes(&mut keeper), [["a/.lock", "-a/me"]]);
    let done = Commit::Done { index: 42, listing: None };
    keeper.handle(Event::Committed(vec!["a".into()], Ok(done)), later);
    let commands: Vec<_> = std::iter::from_fn(|| keeper.next_command()).collect();
    assert!(commands.iter().any(|one| matches!(one, Command::DestroySession { .. })), "{commands:?}");
}

#[test]
fn a_waiter_that_times_out_while_keys_are_hidden_leaves_by_what_is_visible() {
    let mut keeper = wanting(&["a"], &[], Some(Duration::from_secs(5)), None);
    keeper.handle(Event::SessionCreated(Ok("me".into())), NOW);
    let hidden = || Listing { pairs: one_is_not_shown("a"), index: 30, filtered: true };
    keeper.handle(Event::Listed("a".into(), Ok(hidden())), NOW);
    while keeper.next_command().is_some() {}
    let later = NOW + Duration::from_secs(6);
    keeper.tick(later);
    keeper.handle(Event::Listed("a".into(), Ok(hidden())), later);
    let commands: Vec<_> = std::iter::from_fn(|| keeper.next_command()).collect();
    let gave_up = |one: &Command| matches!(one, Command::Notify(Notice::TimedOut { failure: Some(_), .. }));
    assert!(commands.iter().any(gave_up), "{commands:?}");
    assert!(!commands.iter().any(|one| matches!(one, Command::Commit { .. })), "{commands:?}");
    assert_eq!(keeper.machine("a").unwrap().phase(), Phase::TimedOut);
}

/// A record with a slot that nobody has given to the one that is next.
fn unserved() -> Pair {
    named(2, r#""me""#, r#""b""#, 35)
}

/// One that holds and lists everything, since it has seen that slot.
fn listing() -> (Keeper, Moment) {
    let mut keeper = wanting(&["a"], &[], None, None);
    keeper.handle(Event::SessionCreated(Ok("me".into())), NOW);
    listed(&mut keeper, "a", vec![lock("a", 1, r#""me""#, 5), alone("a", 5)]);
    assert_eq!(acquired(&mut keeper).0, ["a"]);
    let later = confirms(&mut keeper, NOW);
    confirmed(&mut keeper, alone("a", 5), unserved(), later);
    let commands: Vec<_> = std::iter::from_fn(|| keeper.next_command()).collect();
    assert!(commands.contains(&Command::List { name: "a".into() }), "{commands:?}");
    (keeper, later)
}

/// One that holds, to which a listing has just not shown all, with what it does then.
fn held_in_hiding(pairs: Vec<Pair>) -> (Keeper, Moment, Vec<Command>) {
    let (mut keeper, later) = listing();
    keeper.handle(Event::Listed("a".into(), Ok(Listing { pairs, index: 40, filtered: true })), later);
    // It does nothing before it may try again.
    let later = later + Duration::from_secs(1);
    keeper.tick(later);
    let commands = std::iter::from_fn(|| keeper.next_command()).collect();
    (keeper, later, commands)
}

fn loss(commands: &[Command]) -> Option<LossReason> {
    let reason = |one: &Command| {
        if let Command::Notify(Notice::Lost { reason, .. }) = one { Some(*reason) } else { None }
    };
    commands.iter().find_map(reason)
}

#[test]
fn a_holder_goes_on_watching_while_keys_are_hidden() {
    let (mut keeper, later, commands) = held_in_hiding(Vec::new());
    assert_eq!(loss(&commands), None);
    let own = alone("a", 5);
    let quiet = Ok(Reading { pair: Some(own), index: 41 });
    let later = later + Duration::from_secs(8);
    keeper.handle(Event::Watched("a".into(), "a/me".into(), quiet), later);
    let commands: Vec<_> = std::iter::from_fn(|| keeper.next_command()).collect();
    let again = |one: &Command| matches!(one, Command::Watch { key, .. } if key == "a/me");
    assert!(commands.iter().any(again), "a watch that ends is sent again: {commands:?}");
    // Somebody has taken it out.
    let gone = Ok(Reading { pair: None, index: 42 });
    keeper.handle(Event::Watched("a".into(), "a/me".into(), gone), later);
    let commands: Vec<_> = std::iter::from_fn(|| keeper.next_command()).collect();
    assert_eq!(loss(&commands), None, "a watch alone proves no loss");
    // Its session may have ended; as that lives it lists.
    for sent in keeper.renewals() {
        keeper.handle(Event::SessionRenewed(sent, Ok(Duration::from_secs(30))), later);
    }
    let commands: Vec<_> = std::iter::from_fn(|| keeper.next_command()).collect();
    assert!(commands.contains(&Command::List { name: "a".into() }), "{commands:?}");
    let pairs = vec![lock("a", 1, r#""other""#, 42)];
    keeper.handle(Event::Listed("a".into(), Ok(Listing { pairs, index: 43, filtered: true })), later);
    keeper.tick(later + Duration::from_secs(1));
    let commands: Vec<_> = std::iter::from_fn(|| keeper.next_command()).collect();
    assert_eq!(loss(&commands), Some(LossReason::Evicted), "{commands:?}");
}

#[test]
fn a_holder_sees_in_what_is_shown_that_an_operator_wants_it_out() {
    let own = alone("a", 5);
    let mut entry = Entry::decode(&own.value).unwrap();
    entry.evicted_by = Some("ops".into());
    let marked = Pair { value: entry.encode(), modify_index: 39, ..own };
    let (_, _, commands) = held_in_hiding(vec![lock("a", 1, r#""me""#, 5), marked]);
    let told = |one: &Command| matches!(one, Command::Notify(Notice::Evicted { held: true, .. }));
    assert!(commands.iter().any(told), "{commands:?}");
}

/// As an operator's edit or a late write leaves it.
#[test]
fn a_holder_whose_contender_key_says_waiting_does_not_read_without_end() {
    let waits = contender("a", "me", Some(WaiterState::Waiting), 39);
    let (mut keeper, later, commands) = held_in_hiding(vec![lock("a", 1, r#""me""#, 38), waits]);
    assert_eq!(loss(&commands), None);
    let wants_slot = |one: &Command| matches!(one, Command::ReadLock { .. } | Command::List { .. });
    let mut asked = commands.iter().filter(|one| wants_slot(one)).count();
    for _ in 0..20 {
        let reading = Reading { pair: Some(lock("a", 1, r#""me""#, 38)), index: 41 };
        keeper.handle(Event::LockRead("a".into(), Ok(reading)), later);
        keeper.tick(later);
        asked += std::iter::from_fn(|| keeper.next_command()).filter(wants_slot).count();
    }
    assert!(asked <= 1, "asked {asked} times at one instant");
    assert!(matches!(keeper.machine("a").unwrap().phase(), Phase::Held { .. }));
}

#[test]
fn a_holder_sees_in_what_is_shown_that_it_is_one_no_more() {
    let (_, _, commands) = held_in_hiding(vec![lock("a", 1, r#""other""#, 39)]);
    assert_eq!(loss(&commands), Some(LossReason::Evicted), "{commands:?}");
}

/// Where all is well again, that is soon told.
#[test]
fn a_holder_lists_soon_again_after_a_failure_that_passes() {
    for (kind, soon) in
        [(FailureKind::RateLimited, true), (FailureKind::Unavailable, true), (FailureKind::Denied, false)]
    {
        let (mut keeper, at) = listing();
        keeper.handle(Event::Listed("a".into(), Err(Failure { kind, text: "no".into() })), at);
        while keeper.next_command().is_some() {}
        keeper.tick(at + Duration::from_secs(1));
        let lists =
            std::iter::from_fn(|| keeper.next_command()).any(|one| matches!(one, Command::List { .. }));
        assert_eq!(lists, soon, "{kind:?}");
    }
}

/// Nothing but a listing that hides nothing ends the trouble.
#[test]
fn a_holder_that_was_not_shown_all_lists_again_until_it_is() {
    let (mut keeper, later, _) = held_in_hiding(vec![lock("a", 1, r#""me""#, 5)]);
    let (mut now, end) = (later, later + Duration::from_secs(30));
    let mut lists = false;
    while now <= end && !lists {
        for sent in keeper.renewals() {
            keeper.handle(Event::SessionRenewed(sent, Ok(Duration::from_secs(30))), now);
        }
        lists = std::iter::from_fn(|| keeper.next_command()).any(|it| matches!(it, Command::List { .. }));
        now = keeper.deadline().unwrap();
        keeper.tick(now);
    }
    assert!(lists, "it goes on with what it was shown");
}

#[test]
fn a_denied_read_delays_no_drain_unless_something_was_read_before() {
    let denied = || Failure { kind: FailureKind::Denied, text: "no".into() };
    for was_read in [false, true] {
        let mut keeper = wanting(&["a"], &[], None, None);
        keeper.handle(Event::SessionCreated(Ok("me".into())), NOW);
        if was_read {
            listed(&mut keeper, "a", vec![lock("a", 1, r#""other""#, 5), contender("a", "other", None, 4)]);
        }
        while keeper.next_command().is_some() {}
        keeper.handle(Event::Committed(vec!["a".into()], Err(denied())), NOW);
        keeper.drain(NOW);
        let commands: Vec<_> = std::iter::from_fn(|| keeper.next_command()).collect();
        assert!(commands.contains(&Command::List { name: "a".into() }), "{was_read}: {commands:?}");
        keeper.handle(Event::Listed("a".into(), Err(denied())), NOW);
        let destroys = std::iter::from_fn(|| keeper.next_command())
            .any(|it| matches!(it, Command::DestroySession { .. }));
        assert_eq!(destroys, !was_read);
    }
}
