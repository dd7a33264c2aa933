use std::time::SystemTime;

use super::*;
use crate::command::{Listing, Op, Reading};
use crate::contender::{Entry, WaiterState};
use crate::settings::{LimitPolicy, OnLost};
use crate::view::Pair;
use crate::{FailureKind, Form, Phase};

const NOW: Moment = Moment::from_boot(Duration::from_secs(1000));

fn settings(prefix: &str, wait: Option<Duration>) -> Settings {
    Settings {
        limit: 1,
        wait,
        on_lost: OnLost::Reacquire,
        limit_policy: LimitPolicy::Refuse,
        form: Form::List,
        ..Settings::of_prefix(prefix.into())
    }
}

/// One that wants a slot of `a` and one of `b` together, and is about to have a session.
fn begun(wait: Option<Duration>, resume: Option<Resume>) -> Keeper {
    wanting(&["a", "b"], &["a", "b"], wait, resume)
}

/// What an earlier process has left that had to do with these prefixes.
fn left(prefixes: BTreeMap<String, Option<u64>>) -> Resume {
    Resume { session: "me".into(), prefixes, locks: BTreeMap::new() }
}

/// One that wants a slot of each.
fn wanting(names: &[&str], together: &[&str], wait: Option<Duration>, resume: Option<Resume>) -> Keeper {
    Keeper::new(starting(names, together, wait, resume), NOW)
}

fn starting(names: &[&str], together: &[&str], wait: Option<Duration>, resume: Option<Resume>) -> Start {
    Start {
        ttl: Duration::from_secs(30),
        watch_grace: None,
        who: Identity::default(),
        wall: Wall::new(SystemTime::UNIX_EPOCH, NOW),
        seed: 0,
        resume,
        semaphores: names.iter().map(|name| ((*name).into(), settings(name, wait))).collect(),
        together: together.iter().map(|name| Name::from(*name)).collect(),
    }
}

fn group(wait: Option<Duration>) -> Keeper {
    let mut keeper = begun(wait, None);
    keeper.handle(Event::SessionCreated(Ok("me".into())), NOW);
    keeper
}

fn lock(name: &str, limit: u32, holders: &str, index: u64) -> Pair {
    let value = format!("{{\"Limit\":{limit},\"Holders\":[{holders}]}}\t").into_bytes();
    let key = format!("{name}/.lock");
    Pair { key, value, flags: 0, session: None, times_locked: 0, create_index: 1, modify_index: index }
}

/// The record of `a`, with the names of those who are next.
fn named(limit: u32, holders: &str, next: &str, index: u64) -> Pair {
    let value = format!(r#"{{"Limit":{limit},"Holders":[{holders}],"Next":[{next}]}} "#).into_bytes();
    Pair { value, ..lock("a", limit, "", index) }
}

fn contender(name: &str, session: &str, standing: Option<WaiterState>, index: u64) -> Pair {
    let mut entry = standing.map(|it| Entry::new(it, 1, 0, String::new(), Identity::default()));
    if let Some(entry) = entry.as_mut().filter(|_| session == "me") {
        entry.together = vec!["a".into(), "b".into()];
    }
    Pair {
        key: format!("{name}/{session}"),
        value: entry.map(|entry| entry.encode()).unwrap_or_default(),
        flags: 0,
        session: Some(session.into()),
        times_locked: 0,
        create_index: index,
        modify_index: index,
    }
}

fn listed(keeper: &mut Keeper, name: &str, pairs: Vec<Pair>) {
    keeper.handle(Event::Listed(name.into(), Ok(Listing { pairs, index: 30, filtered: false })), NOW);
}

/// The own contender of one that takes no slots together.
fn alone(name: &str, index: u64) -> Pair {
    let entry = Entry::new(WaiterState::Held, 1, 0, String::new(), Identity::default());
    Pair { value: entry.encode(), ..contender(name, "me", None, index) }
}

fn creates(command: &Command) -> bool {
    matches!(command, Command::CreateSession)
}

/// Whether a step is more than a guard of a contender.
fn writes_or_guards_the_record(op: &Op) -> bool {
    !matches!(op, Op::CheckIndex { key, .. } if !key.ends_with("/.lock"))
}

/// What it writes, each transaction by the keys of its steps.
fn writes(keeper: &mut Keeper) -> Vec<Vec<String>> {
    let commands: Vec<_> = std::iter::from_fn(|| keeper.next_command()).collect();
    let commits = commands
        .into_iter()
        .filter_map(|command| if let Command::Commit { parts } = command { Some(parts) } else { None });
    let ops =
        |parts: Vec<Part>| parts.into_iter().flat_map(|part| part.ops).filter(writes_or_guards_the_record);
    let said = |op: Op| {
        let deletes = matches!(op, Op::Delete { .. } | Op::DeleteCas { .. });
        format!("{}{}", if deletes { "-" } else { "" }, op.key())
    };
    commits.map(|parts| ops(parts).map(said).collect()).collect()
}

/// The semaphores whose slots it says that it has, and the keys of what it writes.
fn acquired(keeper: &mut Keeper) -> (Vec<String>, Vec<String>) {
    let (mut names, mut keys) = (Vec::new(), Vec::new());
    while let Some(command) = keeper.next_command() {
        if let Command::Notify(Notice::Acquired { name, .. }) = &command {
            names.push(name.to_string());
        }
        if let Command::Commit { parts } = command {
            let ops = parts.iter().flat_map(|part| &part.ops).filter(|op| writes_or_guards_the_record(op));
            keys.extend(ops.map(|op| op.key().to_owned()));
        }
    }
    (names, keys)
}

/// Lets time pass, with its renewals answered, until it reads what tells whether it still holds; when.
fn confirms(keeper: &mut Keeper, from: Moment) -> Moment {
    let mut now = from;
    loop {
        for sent in keeper.renewals() {
            keeper.handle(Event::SessionRenewed(sent, Ok(Duration::from_secs(30))), now);
        }
        let mut commands = std::iter::from_fn(|| keeper.next_command());
        if commands.any(|it| matches!(it, Command::ReadKeys { .. })) {
            return now;
        }
        now = keeper.deadline().expect("a holder confirms");
        assert!(now <= from + Duration::from_secs(61), "within a minute");
        keeper.tick(now);
    }
}

/// What that has read of `a`: its contender, and the record.
fn confirmed(keeper: &mut Keeper, own: Pair, record: Pair, now: Moment) {
    let readings = [own, record].map(|pair| Reading { index: pair.modify_index, pair: Some(pair) });
    keeper.handle(Event::KeysRead("a".into(), Ok(readings.into())), now);
}

/// The first of the renewals that are under way ends.
fn renewed(keeper: &mut Keeper, answer: Result<Duration, Failure>, now: Moment) {
    let sent = *keeper.renewals().first().expect("a renewal is under way");
    keeper.handle(Event::SessionRenewed(sent, answer), now);
}

/// A party whose session an earlier process had, which held a slot of `a`.
fn resumed() -> Keeper {
    let prefixes = BTreeMap::from([("a".to_owned(), Some(3)), ("b".to_owned(), None)]);
    let mut keeper = begun(None, Some(left(prefixes)));
    renewed(&mut keeper, Ok(Duration::from_secs(30)), NOW);
    let own = contender("a", "me", Some(WaiterState::Held), 5);
    listed(&mut keeper, "a", vec![lock("a", 1, r#""me""#, 5), own]);
    assert_eq!(acquired(&mut keeper), (vec![], vec![]));
    keeper
}

#[test]
fn a_resumed_group_that_is_complete_is_held_at_once() {
    let mut keeper = resumed();
    let own = contender("b", "me", Some(WaiterState::Held), 5);
    listed(&mut keeper, "b", vec![lock("b", 1, r#""me""#, 5), own]);
    assert_eq!(acquired(&mut keeper).0, ["a", "b"]);
    let token = |name| match keeper.machine(name).map(Machine::phase) {
        Some(Phase::Held { token, .. }) => Some(token),
        Some(_) | None => None,
    };
    assert_eq!((token("a"), token("b")), (Some(3), Some(5)));
}

/// One that is added again has a slot of its own: the others keep theirs while it waits.
#[test]
fn a_semaphore_that_left_a_group_is_no_member_when_it_is_added_again() {
    let mut keeper = resumed();
    let own = |index| contender("b", "me", Some(WaiterState::Held), index);
    listed(&mut keeper, "b", vec![lock("b", 1, r#""me""#, 5), own(5)]);
    assert_eq!(acquired(&mut keeper).0, ["a", "b"]);
    keeper.remove(&"b".into(), NOW);
    assert_eq!(writes(&mut keeper), [["b/.lock", "-b/me"]]);
    let released = Commit::Done { index: 31, listing: None };
    keeper.handle(Event::Committed(vec!["b".into()], Ok(released)), NOW);
    assert!(keeper.machine("b").is_none());
    keeper.add("b".into(), settings("b", None), NOW);
    listed(
        &mut keeper,
        "b",
        vec![lock("b", 1, r#""x""#, 32), contender("b", "x", Some(WaiterState::Held), 32)],
    );
    let written = writes(&mut keeper);
    assert!(!written.is_empty() && written.iter().flatten().all(|key| key.contains("b/")), "{written:?}");
    assert!(keeper.machine("a").unwrap().holds());
}

#[test]
fn a_resumed_session_ends_in_no_words_but_consuls_own() {
    let prefixes = BTreeMap::from([("a".to_owned(), Some(3))]);
    let resume = left(prefixes);
    let mut keeper = wanting(&["a"], &[], None, Some(resume));
    let mut now = NOW;
    for kind in [FailureKind::Rejected, FailureKind::Unavailable, FailureKind::Denied] {
        renewed(&mut keeper, Err(Failure { kind, text: String::new() }), now);
        now = now + Duration::from_secs(10);
        keeper.tick(now);
        let commands: Vec<_> = std::iter::from_fn(|| keeper.next_command()).collect();
        let renews =
            |it: &Command| matches!(it, Command::RenewSession { session, .. } if session.as_str() == "me");
        assert!(commands.iter().any(renews), "{kind:?}: {commands:?}");
        assert!(!commands.iter().any(creates), "{kind:?}: {commands:?}");
    }
    let gone = Failure { kind: FailureKind::NotFound, text: String::new() };
    renewed(&mut keeper, Err(gone), now);
    assert!(std::iter::from_fn(|| keeper.next_command()).any(|command| creates(&command)));
}

#[test]
fn a_creation_without_an_answer_is_repeated_with_growing_pauses_and_delays_no_end() {
    let mut keeper = wanting(&["a"], &[], None, None);
    let creations =
        |keeper: &mut Keeper| std::iter::from_fn(|| keeper.next_command()).filter(creates).count();
    assert_eq!(creations(&mut keeper), 1);
    let (mut now, mut pauses) = (NOW, Vec::new());
    for _ in 0..8 {
        let failure = Failure { kind: FailureKind::Unavailable, text: String::new() };
        keeper.handle(Event::SessionCreated(Err(failure)), now);
        assert_eq!(creations(&mut keeper), 0);
        let at = keeper.deadline().expect("another creation");
        pauses.push(at.since(now));
        now = at;
        keeper.tick(now);
        assert_eq!(creations(&mut keeper), 1);
    }
    assert!(pauses[7] >= Duration::from_secs(2), "{pauses:?}");
    let failure = Failure { kind: FailureKind::Unavailable, text: String::new() };
    keeper.handle(Event::SessionCreated(Err(failure)), now);
    keeper.drain(now);
    assert!(keeper.has_ended());
}

#[test]
fn a_resumed_group_that_is_incomplete_is_lost_and_released_when_its_workload_has_stopped() {
    let mut keeper = resumed();
    listed(&mut keeper, "b", vec![lock("b", 1, r#""x""#, 5), contender("b", "x", None, 4)]);
    let commands: Vec<_> = std::iter::from_fn(|| keeper.next_command()).collect();
    let lost =
        |it: &&Command| matches!(it, Command::Notify(Notice::Lost { reason: LossReason::GroupLost, .. }));
    assert_eq!(commands.iter().filter(lost).count(), 1, "{commands:?}");
    assert!(!commands.iter().any(|it| matches!(it, Command::Commit { .. })), "{commands:?}");
    keeper.workload_stopped(&"a".into(), NOW);
    assert_eq!(acquired(&mut keeper), (vec![], vec!["a/.lock".into(), "a/me".into()]));
}

#[test]
fn a_limit_that_another_client_set_is_not_reported_as_this_clients() {
    let mut keeper = group(None);
    keeper.remove(&"b".into(), NOW);
    let held = |limit| vec![lock("a", limit, r#""x""#, 5), contender("a", "x", None, 4)];
    listed(&mut keeper, "a", held(1));
    while keeper.next_command().is_some() {}
    let listing = Some(Listing { pairs: held(2), index: 31, filtered: false });
    keeper.handle(Event::Committed(vec!["a".into()], Ok(Commit::Done { index: 31, listing })), NOW);
    let told: Vec<_> = std::iter::from_fn(|| keeper.next_command()).collect();
    assert!(!told.iter().any(|it| matches!(it, Command::Notify(Notice::LimitSet { .. }))), "{told:?}");
}

#[test]
fn a_client_that_requests_again_after_a_time_out_reads_first() {
    let mut keeper = group(Some(Duration::ZERO));
    keeper.remove(&"b".into(), NOW);
    listed(&mut keeper, "a", vec![lock("a", 1, r#""x""#, 5), contender("a", "x", None, 4)]);
    assert_eq!(keeper.machine("a").map(Machine::phase), Some(Phase::TimedOut));
    while keeper.next_command().is_some() {}
    keeper.reconfigure(&"a".into(), settings("a", Some(Duration::from_secs(1))), NOW);
    assert_eq!(keeper.next_command(), Some(Command::List { name: "a".into() }));
}

#[test]
fn a_client_that_requests_again_follows_the_limit_that_an_operator_has_set() {
    let mut keeper = wanting(&["a"], &[], None, None);
    let set = |wait| Settings { limit_policy: LimitPolicy::Set, limit: 2, ..settings("a", wait) };
    keeper.reconfigure(&"a".into(), set(Some(Duration::ZERO)), NOW);
    keeper.handle(Event::SessionCreated(Ok("me".into())), NOW);
    let held = |limit, holders, index| vec![lock("a", limit, holders, index), contender("a", "x", None, 4)];
    // Its own limit is there: there is nothing to set.
    listed(&mut keeper, "a", held(2, r#""x","x""#, 5));
    assert_eq!(keeper.machine("a").map(Machine::phase), Some(Phase::TimedOut));
    keeper.reconfigure(&"a".into(), set(Some(Duration::from_millis(1))), NOW);
    listed(&mut keeper, "a", held(1, r#""x""#, 6));
    let writes = std::iter::from_fn(|| keeper.next_command())
        .filter_map(|command| if let Command::Commit { parts } = command { Some(parts) } else { None });
    let keys: Vec<_> = writes.flatten().flat_map(|part| part.ops).map(|op| op.key().to_owned()).collect();
    assert!(!keys.contains(&"a/.lock".to_owned()), "it writes no limit: {keys:?}");
}

#[test]
fn a_group_with_a_blocked_member_leaves_every_queue() {
    let mut keeper = group(None);
    for name in ["a", "b"] {
        let pairs = vec![
            lock(name, 1, r#""x""#, 5),
            contender(name, "me", Some(WaiterState::Waiting), 7),
            contender(name, "x", None, 4),
        ];
        listed(&mut keeper, name, pairs);
    }
    assert_eq!(writes(&mut keeper), [[""; 0]; 0]);
    let pair = Some(lock("a", 2, r#""x""#, 40));
    keeper.handle(Event::Watched("a".into(), "a/.lock".into(), Ok(Reading { pair, index: 40 })), NOW);
    assert_eq!(writes(&mut keeper), [["-a/me"], ["-b/me"]]);
    let gone = || Ok(Commit::Done { index: 0, listing: None });
    for name in ["a", "b"] {
        keeper.handle(Event::Committed(vec![name.into()], gone()), NOW);
    }
    assert_eq!(writes(&mut keeper), [[""; 0]; 0]);
    // Once it is mended they enter together.
    let pair = Some(lock("a", 1, r#""x""#, 50));
    keeper.handle(Event::Watched("a".into(), "a/.lock".into(), Ok(Reading { pair, index: 50 })), NOW);
    listed(&mut keeper, "a", vec![lock("a", 1, r#""x""#, 50), contender("a", "x", None, 4)]);
    listed(&mut keeper, "b", vec![lock("b", 1, r#""x""#, 5), contender("b", "x", None, 4)]);
    assert_eq!(writes(&mut keeper), [["a/me", "a/me", "b/me", "b/me"]]);
}

/// What it tells of a semaphore's limit, and of where it begins to wait.
fn told(keeper: &mut Keeper) -> Vec<String> {
    let commands = std::iter::from_fn(|| keeper.next_command());
    let said = |command| {
        let Command::Notify(notice) = command else { return None };
        if let Notice::LimitDiffers { stored, policy, .. } = notice {
            Some(format!("{stored} governs under {policy:?}"))
        } else if let Notice::LimitChanged { from, to, .. } = notice {
            Some(format!("{from} to {to}"))
        } else if let Notice::Waiting { name, position, .. } = notice {
            Some(position.map_or(format!("{name} waits"), |position| format!("{name} at {position}")))
        } else {
            matches!(notice, Notice::Blocked { .. }).then(|| "blocked".to_owned())
        }
    };
    commands.filter_map(said).collect()
}

#[test]
fn a_group_member_reports_which_other_it_waits_for_and_counts_positions_from_1() {
    let mut keeper = group(None);
    listed(&mut keeper, "a", vec![lock("a", 1, "", 5)]);
    listed(&mut keeper, "b", vec![lock("b", 1, r#""x""#, 5), contender("b", "x", None, 4)]);
    assert_eq!(told(&mut keeper), ["a at 1", "b at 1"]);
    let mut keeper = group(None);
    let me = |name| contender(name, "me", Some(WaiterState::Waiting), 7);
    listed(&mut keeper, "a", vec![lock("a", 1, "", 5), me("a")]);
    listed(&mut keeper, "b", vec![lock("b", 1, r#""x""#, 5), contender("b", "x", None, 4), me("b")]);
    assert_eq!(keeper.blocking_members(&"a".into()), [&Name::from("b")]);
    assert!(keeper.blocking_members(&"b".into()).is_empty());
}

#[test]
fn every_change_of_the_stored_limit_is_reported_once() {
    for (policy, said) in [
        (LimitPolicy::Adopt, ["2 governs under Adopt", "2 to 1"]),
        (LimitPolicy::Set, ["2 governs under Set", "2 to 1"]),
        (LimitPolicy::Refuse, ["1 to 2", "2 to 1"]),
    ] {
        let mut keeper = wanting(&["a"], &[], None, None);
        keeper.handle(Event::SessionCreated(Ok("me".into())), NOW);
        let settings = Settings { limit_policy: policy, ..settings("a", None) };
        keeper.reconfigure(&"a".into(), settings, NOW);
        listed(&mut keeper, "a", vec![lock("a", 1, r#""me""#, 5), alone("a", 5)]);
        assert!(keeper.machine("a").unwrap().holds(), "{policy:?}");
        assert_eq!(told(&mut keeper), [""; 0], "{policy:?}");
        let mut now = NOW;
        let mut reads = |limit, index| {
            now = confirms(&mut keeper, now);
            let own = alone("a", 5);
            confirmed(&mut keeper, own, lock("a", limit, r#""me""#, index), now);
            told(&mut keeper)
        };
        assert_eq!([reads(2, 40), reads(1, 50)].concat(), said, "{policy:?}");
    }
}

#[test]
fn a_limit_that_blocks_is_reported_as_the_reason_only() {
    let mut keeper = wanting(&["a"], &[], None, None);
    keeper.handle(Event::SessionCreated(Ok("me".into())), NOW);
    let pairs = |limit, index| vec![lock("a", limit, r#""x""#, index), contender("a", "x", None, 4)];
    listed(&mut keeper, "a", pairs(2, 5));
    assert_eq!(told(&mut keeper), ["blocked"]);
    let pair = pairs(3, 40).swap_remove(0);
    keeper.handle(
        Event::Watched("a".into(), "a/.lock".into(), Ok(Reading { pair: Some(pair), index: 40 })),
        NOW,
    );
    assert_eq!(told(&mut keeper), ["blocked"]);
}

#[test]
fn a_group_that_tries_once_acquires_no_slot_if_one_is_missing() {
    let mut keeper = group(Some(Duration::ZERO));
    listed(&mut keeper, "a", vec![lock("a", 1, "", 5)]);
    assert_eq!(writes(&mut keeper), [[""; 0]; 0]);
    listed(&mut keeper, "b", vec![lock("b", 1, r#""x""#, 5), contender("b", "x", None, 4)]);
    assert_eq!(writes(&mut keeper), [[""; 0]; 0]);
}

#[test]
fn a_newcomer_that_lost_a_race_joins_the_end_of_the_queue_without_another_read() {
    let mut keeper = wanting(&["a"], &[], None, None);
    keeper.handle(Event::SessionCreated(Ok("me".into())), NOW);
    listed(&mut keeper, "a", vec![lock("a", 1, "", 5)]);
    assert_eq!(writes(&mut keeper), [["a/.lock", "a/me", "a/me"]]);
    let stale =
        |steps: &[usize]| Event::Committed(vec!["a".into()], Ok(Commit::Stale { steps: steps.to_vec() }));
    keeper.handle(stale(&[0]), NOW);
    // A check that it is not there, its contender, and the listing.
    assert_eq!(writes(&mut keeper), [["a/me", "a/me", "a/"]]);
    // Somebody has written its contender: only a look tells who.
    keeper.handle(stale(&[0]), NOW);
    assert_eq!(writes(&mut keeper), [[""; 0]; 0]);
}

#[test]
fn without_anything_to_hold_there_is_no_session() {
    let mut keeper = wanting(&[], &[], None, None);
    assert_eq!((keeper.next_command(), keeper.deadline()), (None, None));
    keeper.add("a".into(), settings("a", None), NOW);
    assert!(keeper.next_command().is_some_and(|command| creates(&command)));

    let mut keeper = wanting(&[], &[], None, None);
    keeper.drain(NOW);
    assert!(keeper.has_ended() && keeper.next_command().is_none());
}

#[test]
fn an_agent_that_has_lost_all_slots_and_requests_none_creates_no_session() {
    let mut keeper = wanting(&["a"], &[], None, None);
    keeper.reconfigure(&"a".into(), Settings { on_lost: OnLost::Exit, ..settings("a", None) }, NOW);
    keeper.handle(Event::SessionCreated(Ok("me".into())), NOW);
    let own = contender("a", "me", Some(WaiterState::Held), 5);
    listed(&mut keeper, "a", vec![lock("a", 1, r#""me""#, 5), own]);
    assert_eq!(acquired(&mut keeper).0, ["a"]);
    let later = NOW + Duration::from_secs(10);
    keeper.tick(later);
    assert!(
        std::iter::from_fn(|| keeper.next_command()).any(|it| matches!(it, Command::RenewSession { .. }))
    );
    let gone = Failure { kind: FailureKind::NotFound, text: String::new() };
    renewed(&mut keeper, Err(gone), later);
    let commands: Vec<_> = std::iter::from_fn(|| keeper.next_command()).collect();
    assert!(commands.iter().any(|it| matches!(it, Command::Notify(Notice::Lost { .. }))), "{commands:?}");
    assert!(!commands.iter().any(creates), "{commands:?}");
    keeper.drain(later);
    assert!(keeper.has_ended());
}

#[test]
fn an_agent_that_is_about_to_end_keeps_its_slots_and_leaves_every_queue() {
    let mut keeper = wanting(&["a", "b", "c"], &[], None, None);
    keeper.handle(Event::SessionCreated(Ok("me".into())), NOW);
    listed(
        &mut keeper,
        "a",
        vec![lock("a", 1, r#""me""#, 5), contender("a", "me", Some(WaiterState::Held), 5)],
    );
    assert_eq!(acquired(&mut keeper).0, ["a"]);
    let taken =
        |name: &str| vec![lock(name, 1, r#""x""#, 5), contender(name, "x", Some(WaiterState::Held), 4)];
    let standing = |name: &str| {
        let value = Entry::new(WaiterState::Waiting, 1, 0, String::new(), Identity::default()).encode();
        [taken(name), vec![Pair { value, ..contender(name, "me", None, 31) }]].concat()
    };
    let entered = |name: &str| {
        let pairs = standing(name);
        let listing = Some(Listing { pairs, index: 31, filtered: false });
        Event::Committed(vec![name.into()], Ok(Commit::Done { index: 31, listing }))
    };
    listed(&mut keeper, "b", taken("b"));
    listed(&mut keeper, "c", taken("c"));
    assert_eq!(writes(&mut keeper), [["b/me", "b/me", "b/"], ["c/me", "c/me", "c/"]]);
    keeper.handle(entered("b"), NOW);
    assert_eq!(writes(&mut keeper), [["b/.lock"]], "it names itself as the next");
    keeper.handle(Event::Committed(vec!["b".into()], Ok(Commit::Done { index: 32, listing: None })), NOW);
    assert_eq!(keeper.machine("b").unwrap().phase(), Phase::Waiting);
    keeper.stop_acquiring(NOW);
    // It is the last one that is named: whoever has come behind it relies on that.
    assert_eq!(writes(&mut keeper), [[""; 0]; 0]);
    let mut pairs = standing("b");
    pairs[0] = Pair { key: "b/.lock".into(), ..named(1, r#""x""#, r#""me""#, 32) };
    listed(&mut keeper, "b", pairs);
    assert_eq!(writes(&mut keeper), [["-b/me", "b/.lock", "b/"]]);
    assert!(matches!(keeper.machine("a").unwrap().phase(), Phase::Held { .. }));
    // What was on its way is undone: it has come and goes.
    keeper.handle(entered("c"), NOW);
    assert_eq!(writes(&mut keeper), [["-c/me"]]);
}

#[test]
fn a_resumed_slot_whose_record_was_deleted_is_not_held() {
    let prefixes = BTreeMap::from([("a".to_owned(), Some(3))]);
    let resume = left(prefixes);
    let mut keeper = wanting(&["a"], &[], None, Some(resume));
    renewed(&mut keeper, Ok(Duration::from_secs(30)), NOW);
    listed(&mut keeper, "a", vec![contender("a", "me", Some(WaiterState::Held), 5)]);
    let (held, written) = acquired(&mut keeper);
    assert_eq!(held, [""; 0]);
    assert!(written.contains(&"a/.lock".to_owned()), "it makes a record and takes its slot: {written:?}");
}

#[test]
fn what_an_earlier_process_held_is_read_before_it_is_released() {
    let prefixes = BTreeMap::from([("a".to_owned(), Some(3)), ("b".to_owned(), Some(3))]);
    let resume = left(prefixes);
    let held = |name: &str| {
        let value = Entry::new(WaiterState::Held, 1, 0, String::new(), Identity::default()).encode();
        let own = Pair { value, ..contender(name, "me", None, 3) };
        vec![lock(name, 1, r#""me""#, 3), own]
    };
    let taken = || vec![lock("b", 1, r#""x""#, 5), contender("b", "x", None, 4)];
    let ending = || {
        let mut keeper = wanting(&["a", "b"], &[], None, Some(resume.clone()));
        renewed(&mut keeper, Ok(Duration::from_secs(30)), NOW);
        listed(&mut keeper, "a", held("a"));
        assert_eq!(acquired(&mut keeper).0, ["a"]);
        keeper.stop_acquiring(NOW);
        assert_eq!(writes(&mut keeper), [[""; 0]; 0]);
        keeper
    };
    let mut keeper = ending();
    listed(&mut keeper, "b", held("b"));
    assert_eq!(acquired(&mut keeper), (vec!["b".to_owned()], Vec::new()));
    // What is somebody else's by now is not asked for again.
    let mut keeper = ending();
    listed(&mut keeper, "b", taken());
    assert_eq!(writes(&mut keeper), [[""; 0]; 0]);
    assert_eq!(keeper.machine("b").unwrap().phase(), Phase::Released);
    // Nor anything that ended with the session.
    let mut keeper = ending();
    let gone = Failure { kind: FailureKind::NotFound, text: String::new() };
    keeper.tick(NOW + Duration::from_secs(10));
    renewed(&mut keeper, Err(gone), NOW + Duration::from_secs(10));
    assert!(!std::iter::from_fn(|| keeper.next_command()).any(|command| creates(&command)));
}

#[test]
fn nothing_of_another_cluster_is_acted_on() {
    let mut keeper = wanting(&["a"], &[], None, None);
    keeper.handle(Event::SessionCreated(Ok("me".into())), NOW);
    while keeper.next_command().is_some() {}
    keeper.change_cluster(NOW);
    assert!(keeper.session().is_none());
    let commands: Vec<_> = std::iter::from_fn(|| keeper.next_command()).collect();
    assert!(commands.iter().any(creates), "{commands:?}");
    // The listing that was under way there, where the slot would be free.
    listed(&mut keeper, "a", Vec::new());
    assert_eq!(writes(&mut keeper), [[""; 0]; 0]);
    // Only what the new one says counts.
    keeper.handle(Event::SessionCreated(Ok("new".into())), NOW);
    listed(&mut keeper, "a", Vec::new());
    assert_eq!(writes(&mut keeper), [["a/.lock", "a/new", "a/new"]]);
}

mod again;
mod cuts;
mod filtered;
mod follow;
mod large;
mod late;
mod renewals;
