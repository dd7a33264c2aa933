//! Sessions that an earlier process made: what that one sent late, and what it may still believe in.

use super::*;

const TTL: Duration = Duration::from_secs(30);
const WAIT: Duration = Duration::from_secs(30);
/// Another process has had its time to read the nonce.
const SETTLED: Duration = Duration::from_secs(75);

/// An agent with these semaphores that resumes a session which had to do with all of them, and held a slot of `a`.
fn heir(names: &[&str], wait: Option<Duration>, contested: bool) -> Keeper {
    let prefixes = names.iter().map(|name| ((*name).to_owned(), (*name == "a").then_some(3))).collect();
    let start = Start { contested, ..starting(names, &[], wait, Some(left(prefixes))) };
    Keeper::new(start, NOW)
}

/// Its contender with the nonce of that process.
fn own(name: &str, standing: WaiterState, nonce: Option<&str>, index: u64) -> Pair {
    let mut entry = Entry::new(standing, 1, 0, String::new(), Identity::default());
    entry.nonce = nonce.map(str::to_owned);
    Pair { value: entry.encode(), modify_index: index, ..contender(name, "me", None, 5) }
}

fn nonce() -> String {
    format!("{:016x}", 0)
}

/// What lies below the prefix of a semaphore whose one slot the session has.
fn held(name: &str, nonce: Option<&str>, index: u64) -> Vec<Pair> {
    vec![lock(name, 1, r#""me""#, 5), own(name, WaiterState::Held, nonce, index)]
}

/// The same where another client has it.
fn taken(name: &str) -> Vec<Pair> {
    vec![lock(name, 1, r#""x""#, 5), contender(name, "x", None, 4)]
}

fn denied() -> Failure {
    Failure { kind: FailureKind::Denied, text: "Permission denied".into() }
}

/// Answers renewals and listings, and gives what else the keeper asks for and tells.
fn serve(
    keeper: &mut Keeper,
    now: Moment,
    list: &dyn Fn(&str) -> Result<Vec<Pair>, Failure>,
) -> Vec<Command> {
    let mut others = Vec::new();
    while let Some(command) = keeper.next_command() {
        if let Command::RenewSession { .. } = command {
            renewed(keeper, Ok(TTL), now);
        } else if let Command::List { name } = &command {
            let listing = list(name).map(|pairs| Listing { pairs, index: 40, filtered: false });
            keeper.handle(Event::Listed(name.clone(), listing), now);
        } else {
            others.push(command);
        }
    }
    others
}

/// The same for as long as its timers fire before the instant.
fn serve_until(
    keeper: &mut Keeper,
    end: Moment,
    list: &dyn Fn(&str) -> Result<Vec<Pair>, Failure>,
) -> Vec<Command> {
    let mut others = serve(keeper, NOW, list);
    while let Some(at) = keeper.deadline().filter(|at| *at <= end) {
        keeper.tick(at);
        others.extend(serve(keeper, at, list));
    }
    keeper.tick(end);
    others.extend(serve(keeper, end, list));
    others
}

/// The keys of what is written.
fn keys(commands: &[Command]) -> Vec<&str> {
    let parts =
        commands.iter().filter_map(|it| if let Command::Commit { parts } = it { Some(parts) } else { None });
    parts.flatten().flat_map(|part| &part.ops).map(Op::key).collect()
}

fn tells_of(commands: &[Command], what: fn(&Notice) -> bool) -> bool {
    commands.iter().any(|it| matches!(it, Command::Notify(notice) if what(notice)))
}

fn gives_up(commands: &[Command]) -> bool {
    tells_of(commands, |it| matches!(it, Notice::TimedOut { .. }))
}

fn is_displaced(commands: &[Command]) -> bool {
    tells_of(commands, |it| matches!(it, Notice::SessionTaken { .. }))
}

fn done(keeper: &mut Keeper, name: &str, index: u64, now: Moment) {
    keeper.handle(Event::Committed(vec![name.into()], Ok(Commit::Done { index, listing: None })), now);
}

/// One that holds `a`, is about to enter `b`, and is told that a contender of its own is there by now, with this nonce.
fn finds_late(nonce_there: &'static str) -> (Keeper, Vec<Command>) {
    let mut keeper = heir(&["a", "b"], None, false);
    let (own_nonce, now) = (nonce(), NOW + Duration::from_secs(1));
    let list = |name: &str| Ok(if name == "a" { held("a", Some(&own_nonce), 31) } else { taken("b") });
    let commands = serve(&mut keeper, NOW, &list);
    assert_eq!(keys(&commands), ["b/me", "b/me", "b/"]);
    keeper.handle(Event::Committed(vec!["b".into()], Ok(Commit::Stale { steps: vec![0] })), NOW);
    keeper.tick(now);
    let late = |name: &str| {
        let mut pairs = list(name)?;
        if name == "b" {
            pairs.push(own("b", WaiterState::Waiting, Some(nonce_there), 33));
        }
        Ok(pairs)
    };
    let commands = serve(&mut keeper, now, &late);
    (keeper, commands)
}

#[test]
fn a_late_request_of_the_process_before_it_is_not_taken_for_another_process() {
    let (mut keeper, commands) = finds_late("earlier");
    assert!(!is_displaced(&commands), "{commands:?}");
    assert_eq!(keys(&commands), ["b/me"], "the own nonce");
    assert!(keeper.machine("a").unwrap().holds());
    done(&mut keeper, "b", 41, NOW + Duration::from_secs(1));
    let commands: Vec<_> = std::iter::from_fn(|| keeper.next_command()).collect();
    // With its nonce nobody can let it in by its name: it watches over all.
    assert_eq!(keys(&commands), [""; 0]);
    assert_eq!(keeper.machine("b").unwrap().phase(), Phase::Waiting);
    assert!(keeper.machine("a").unwrap().holds());
}

#[test]
fn a_nonce_that_no_process_before_it_had_is_that_of_one_which_has_taken_the_session() {
    let (_, commands) = finds_late("another");
    assert!(is_displaced(&commands), "{commands:?}");
}

#[test]
fn what_it_leaves_names_the_last_processes_and_itself_last() {
    let mut keeper = heir(&["a"], None, false);
    serve(&mut keeper, NOW, &|_| Ok(taken("a")));
    assert_eq!(Resume::of(&keeper).unwrap().nonces, ["earlier".to_owned(), nonce()]);
    let many = (0..40).map(|number| number.to_string()).collect();
    let resume = Resume { nonces: many, ..left(BTreeMap::new()) };
    let mut keeper = wanting(&["a"], &[], None, Some(resume));
    serve(&mut keeper, NOW, &|_| Ok(taken("a")));
    let nonces = Resume::of(&keeper).unwrap().nonces;
    assert_eq!((nonces.len(), nonces.last(), nonces[0].as_str()), (Resume::MAX_NONCES, Some(&nonce()), "25"));
}

/// One that finds its slot of `a` although another process may believe in it too, and nothing of its own elsewhere.
fn contested_with(names: &[&str], list: &dyn Fn(&str) -> Result<Vec<Pair>, Failure>) -> Keeper {
    let mut keeper = heir(names, Some(WAIT), true);
    let found = |name: &str| if name == "a" { Ok(held("a", None, 5)) } else { list(name) };
    assert_eq!(keys(&serve(&mut keeper, NOW, &found)), ["a/.lock", "a/me"], "the nonce");
    done(&mut keeper, "a", 31, NOW);
    keeper
}

#[test]
fn the_wait_for_a_slot_begins_when_the_session_is_known_to_be_its_own() {
    let own_nonce = nonce();
    let list = |name: &str| Ok(if name == "a" { held("a", Some(&own_nonce), 31) } else { taken(name) });
    let mut keeper = contested_with(&["a", "b"], &list);
    let commands = serve_until(&mut keeper, NOW + SETTLED, &list);
    assert!(!gives_up(&commands), "{commands:?}");
    assert!(keeper.machine("a").unwrap().holds());
    assert_eq!(keys(&commands), ["b/me", "b/me", "b/"]);
    // In line, at its front.
    let waits = |name: &str| {
        if name == "a" {
            return list(name);
        }
        Ok([taken("b"), vec![own("b", WaiterState::Waiting, Some(&own_nonce), 41)]].concat())
    };
    let entered = Listing { pairs: waits("b").unwrap(), index: 41, filtered: false };
    let entered = Commit::Done { index: 41, listing: Some(entered) };
    keeper.handle(Event::Committed(vec!["b".into()], Ok(entered)), NOW + SETTLED);
    let mut until = |after| gives_up(&serve_until(&mut keeper, NOW + SETTLED + after, &waits));
    assert!(!until(WAIT - Duration::from_secs(1)) && until(WAIT));
}

#[test]
fn where_consul_does_not_answer_the_wait_counts_all_the_same() {
    let mut keeper = heir(&["a", "b"], Some(WAIT), true);
    keeper.tick(NOW + WAIT);
    let commands: Vec<_> = std::iter::from_fn(|| keeper.next_command()).collect();
    assert!(gives_up(&commands), "{commands:?}");
}

#[test]
fn a_semaphore_that_cannot_be_read_holds_up_no_other_for_longer_than_the_contest_takes() {
    let own_nonce = nonce();
    let list = |name: &str| match name {
        "a" => Ok(held("a", Some(&own_nonce), 31)),
        "b" => Err(denied()),
        _ => Ok(taken(name)),
    };
    let mut keeper = contested_with(&["a", "b", "c"], &list);
    let before = serve_until(&mut keeper, NOW + (SETTLED - Duration::from_secs(1)), &list);
    assert!(!keeper.machine("a").unwrap().holds() && keys(&before).is_empty(), "{before:?}");
    let commands = serve_until(&mut keeper, NOW + SETTLED, &list);
    assert!(keeper.machine("a").unwrap().holds() && !keeper.is_contested());
    assert_eq!(keys(&commands), ["c/me", "c/me", "c/"]);
}

#[test]
fn where_all_that_can_be_read_has_nothing_of_the_session_it_is_left_after_that_time() {
    let list = |name: &str| if name == "b" { Err(denied()) } else { Ok(taken(name)) };
    let mut keeper = heir(&["a", "b"], Some(WAIT), true);
    let before = serve_until(&mut keeper, NOW + (SETTLED - Duration::from_secs(1)), &list);
    assert!(!before.iter().any(creates) && !gives_up(&before) && keys(&before).is_empty(), "{before:?}");
    let after = serve_until(&mut keeper, NOW + SETTLED + Duration::from_secs(11), &list);
    assert!(after.iter().any(creates) && keys(&after).is_empty(), "{after:?}");
    assert!(!after.iter().any(|it| matches!(it, Command::DestroySession { .. })), "{after:?}");
}
