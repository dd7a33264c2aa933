//! Those who come blind and follow, the one that watches over all, and holders: what each of them asks Consul for.

use super::*;
use crate::SessionId;

/// The index at which it came.
const CAME: u64 = 1000;

fn after(millis: u64) -> Moment {
    NOW + Duration::from_millis(millis)
}

/// One that adopts the limit that is stored, and has a session.
fn comes(start: Start) -> Keeper {
    let mut keeper = Keeper::new(start, NOW);
    let adopts = Settings { limit_policy: LimitPolicy::Adopt, ..settings("a", None) };
    keeper.reconfigure(&"a".into(), adopts, NOW);
    keeper.handle(Event::SessionCreated(Ok("me".into())), NOW);
    keeper
}

fn plain() -> Start {
    starting(&["a"], &[], None, None)
}

/// The same once it has its contender, and has read such a record with it.
fn came(start: Start, record: Option<Pair>) -> (Keeper, Vec<Command>) {
    let mut keeper = comes(start);
    commands(&mut keeper);
    let listing = Some(Listing { pairs: record.into_iter().collect(), index: CAME, filtered: false });
    let commands = done(&mut keeper, CAME, listing, NOW);
    (keeper, commands)
}

/// The same where it leaves the others their time, and finds then that none of them has done anything; what it asks for, and when.
fn decides(start: Start, record: Option<Pair>) -> (Keeper, Moment, Vec<Command>) {
    let (mut keeper, _) = came(start, record.clone());
    let at = keeper.deadline().unwrap();
    keeper.tick(at);
    assert_eq!(requests(&commands(&mut keeper)), ["look a/.lock"]);
    let asked = looks_as(&mut keeper, record, at);
    (keeper, at, asked)
}

/// It has been written that it watches over all: it sees these beside itself.
fn attends(keeper: &mut Keeper, others: Vec<Pair>, now: Moment) -> Vec<Command> {
    let has_lookout = |pair: Pair| {
        let is_lock = pair.key.ends_with(".lock");
        let value = if is_lock { [pair.value, b" ".into()].concat() } else { pair.value };
        Pair { value, modify_index: if is_lock { CAME + 1 } else { pair.modify_index }, ..pair }
    };
    let pairs = others.into_iter().map(has_lookout).chain([told(CAME + 1)]).collect();
    done(keeper, CAME + 1, Some(Listing { pairs, index: CAME + 1, filtered: false }), now)
}

/// A follower: somebody holds the only slot, and others are named.
fn follower(start: Start) -> (Keeper, Vec<Command>) {
    came(start, Some(named(1, r#""x""#, r#""b","c""#, 500)))
}

fn commands(keeper: &mut Keeper) -> Vec<Command> {
    let commands = std::iter::from_fn(|| keeper.next_command());
    commands.filter(|it| !matches!(it, Command::Notify(_) | Command::StopWatch { .. })).collect()
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn done(keeper: &mut Keeper, index: u64, listing: Option<Listing>, now: Moment) -> Vec<Command> {
    let done = Ok(Commit::Done { index, listing });
    keeper.handle(Event::Committed(vec!["a".into()], done), now);
    commands(keeper)
}

fn stale(keeper: &mut Keeper, now: Moment) -> Vec<Command> {
    keeper.handle(Event::Committed(vec!["a".into()], Ok(Commit::Stale { steps: vec![0] })), now);
    commands(keeper)
}

fn lists_as(keeper: &mut Keeper, pairs: Vec<Pair>, now: Moment) -> Vec<Command> {
    keeper.handle(Event::Listed("a".into(), Ok(Listing { pairs, index: 2000, filtered: false })), now);
    commands(keeper)
}

fn looks_as(keeper: &mut Keeper, record: impl Into<Option<Pair>>, now: Moment) -> Vec<Command> {
    let reading = Reading { pair: record.into(), index: CAME + 1 };
    keeper.handle(Event::LockRead("a".into(), Ok(reading)), now);
    commands(keeper)
}

fn watched(keeper: &mut Keeper, pair: Pair, now: Moment) -> Vec<Command> {
    let (key, index) = (pair.key.clone(), pair.modify_index);
    keeper.handle(Event::Watched("a".into(), key, Ok(Reading { pair: Some(pair), index })), now);
    commands(keeper)
}

fn folder(names: &[&str], index: u64) -> Pair {
    Pair::of_folder("a/", names.iter().map(|name| format!("a/{name}")), index)
}

/// A contender of no party.
fn of(session: &str, state: WaiterState, index: u64) -> Pair {
    let entry = Entry::new(state, 1, 0, String::new(), Identity::default());
    let entry = if state == WaiterState::Held { entry.held(vec![0], "") } else { entry };
    Pair { value: entry.encode(), ..contender("a", session, None, index) }
}

/// Its own, as others have changed it at an index.
fn own(state: WaiterState, index: u64) -> Pair {
    Pair { create_index: CAME, ..of("me", state, index) }
}

/// The same, told to watch over all.
fn told(index: u64) -> Pair {
    let mut entry = Entry::decode(&own(WaiterState::Waiting, index).value).unwrap();
    entry.lookout = true;
    Pair { value: entry.encode(), ..own(WaiterState::Waiting, index) }
}

/// One that was let in by its name.
fn let_in(start: Start) -> Keeper {
    let (mut keeper, _) = follower(start);
    let wants_slot = watched(&mut keeper, own(WaiterState::Held, 1010), NOW);
    assert!(keeper.machine("a").unwrap().holds());
    assert_eq!(requests(&wants_slot), [""; 0], "its contender tells all that it has to know");
    keeper
}

/// What it asks for, but for renewals.
fn requests(commands: &[Command]) -> Vec<String> {
    let said = |command: &Command| match command {
        Command::List { .. } => Some("list".to_owned()),
        Command::ReadLock { key, consistent, .. } => {
            Some(format!("{} {key}", if *consistent { "prove" } else { "look" }))
        }
        Command::ReadKeys { keys, .. } => Some(format!("confirm {}", keys.join(" "))),
        Command::Watch { key, after, .. } => Some(format!("watch {key}@{after}")),
        Command::Commit { parts } => {
            let keys: Vec<_> = parts.iter().flat_map(|part| &part.ops).map(Op::key).collect();
            Some(format!("commit {}", keys.join(" ")))
        }
        Command::CreateSession
        | Command::RenewSession { .. }
        | Command::DestroySession { .. }
        | Command::StopWatch { .. }
        | Command::Notify(_) => None,
    };
    commands.iter().filter_map(said).collect()
}

/// What becomes of the record by what is asked for: its holders, and those who are named.
fn recorded(commands: &[Command]) -> Option<(String, String)> {
    let ops =
        commands.iter().flat_map(|it| if let Command::Commit { parts } = it { &parts[..] } else { &[] });
    let record = ops.flat_map(|part| &part.ops).find_map(|op| {
        let Op::Cas { key, value, .. } = op else { return None };
        crate::Record::decode(value, 0).ok().filter(|_| key == "a/.lock")
    })?;
    let names = |all: &[SessionId]| all.iter().map(SessionId::as_str).collect::<Vec<_>>().join(" ");
    Some((names(&record.holders), names(&record.next)))
}

/// Lets time pass; renewals are answered, and what else it asks for as is said. What it has asked for, and when.
fn passes(
    keeper: &mut Keeper,
    from: Moment,
    until: Moment,
    answer: impl Fn(&Command) -> Option<Event>,
) -> Vec<(Moment, String)> {
    let (mut now, mut asked, ttl) = (from, Vec::new(), keeper.ttl);
    while now <= until {
        for sent in keeper.renewals() {
            keeper.handle(Event::SessionRenewed(sent, Ok(ttl)), now);
        }
        let commands = commands(keeper);
        asked.extend(requests(&commands).into_iter().map(|what| (now, what)));
        let events: Vec<_> = commands.iter().filter_map(&answer).collect();
        if events.is_empty() {
            now = keeper.deadline().expect("something is to come");
            keeper.tick(now);
        }
        for event in events {
            keeper.handle(event, now);
        }
    }
    asked
}

/// Answers a holder's reads: it is let in at 1010, with such a record.
fn holding(record: Pair) -> impl Fn(&Command) -> Option<Event> {
    move |command| {
        let pairs = [own(WaiterState::Held, 1010), record.clone()];
        let readings = pairs.map(|pair| Reading { pair: Some(pair), index: 1100 });
        matches!(command, Command::ReadKeys { .. }).then(|| Event::KeysRead("a".into(), Ok(readings.into())))
    }
}

#[test]
fn a_newcomer_sends_one_request_and_then_watches_its_contender_key_alone() {
    let mut keeper = comes(plain());
    assert_eq!(requests(&commands(&mut keeper)), ["commit a/me a/me a/.lock"]);
    let (mut keeper, asked) = follower(plain());
    assert_eq!(requests(&asked), ["watch a/me@1000"]);
    assert_eq!(keeper.machine("a").unwrap().phase(), Phase::Waiting);
    keeper.tick(after(1200));
    assert_eq!(requests(&commands(&mut keeper)), [""; 0]);
}

#[test]
fn a_newcomer_that_must_not_be_granted_a_slot_yet_lists_first() {
    let plain = Settings { limit_policy: LimitPolicy::Adopt, ..settings("a", None) };
    for other in [
        Settings { limit_policy: LimitPolicy::Refuse, ..plain.clone() },
        Settings { priority: 1, ..plain.clone() },
        Settings { wait: Some(Duration::ZERO), ..plain },
    ] {
        let mut keeper = wanting(&["a"], &[], None, None);
        keeper.reconfigure(&"a".into(), other.clone(), NOW);
        keeper.handle(Event::SessionCreated(Ok("me".into())), NOW);
        assert_eq!(requests(&commands(&mut keeper)), ["list"], "{other:?}");
    }
}

#[test]
fn a_newcomer_to_a_queue_without_a_handoff_list_lists_and_writes_one() {
    let record = || lock("a", 1, r#""x""#, 500);
    let (mut keeper, at, asked) = decides(plain(), Some(record()));
    // Of a crowd one succeeds, and learns by the same write who is there.
    assert_eq!(requests(&asked), ["commit a/.lock a/me a/"]);
    let asked = attends(&mut keeper, vec![record(), of("x", WaiterState::Held, 400)], at);
    assert_eq!(requests(&asked), ["commit a/.lock"]);
    assert_eq!(recorded(&asked), Some(("x".into(), "me".into())));
}

#[test]
fn concurrent_newcomers_wait_a_moment_and_the_first_one_the_least() {
    // Nobody else can have come since the last one went.
    assert_eq!(requests(&came(plain(), Some(lock("a", 2, "", CAME - 2))).1), ["list"]);
    let moment = |since| {
        let (mut keeper, asked) = came(plain(), Some(lock("a", 2, r#""x""#, CAME - since)));
        assert_eq!(requests(&asked), ["watch a/me@1000"], "others may let it in meanwhile");
        let at = keeper.deadline().unwrap();
        keeper.tick(at);
        assert_eq!(requests(&commands(&mut keeper)), ["look a/.lock"]);
        // One of them has named all who wait, and it follows.
        let asked = looks_as(&mut keeper, named(2, r#""x","y""#, r#""b","me""#, CAME + 1), at);
        assert_eq!(requests(&asked), [""; 0]);
        at.since(NOW)
    };
    let (first, last) = (moment(5), moment(500));
    assert!(first <= Duration::from_millis(5) && last <= Duration::from_millis(60), "{first:?} {last:?}");
    assert!(first < last, "{first:?} {last:?}");
}

#[test]
fn a_waiter_reports_its_position_if_the_handoff_list_shows_it() {
    let reported = |names| {
        let mut keeper = comes(plain());
        commands(&mut keeper);
        let listing =
            Some(Listing { pairs: vec![named(1, r#""x""#, names, 500)], index: CAME, filtered: false });
        keeper.handle(Event::Committed(vec!["a".into()], Ok(Commit::Done { index: CAME, listing })), NOW);
        super::told(&mut keeper)
    };
    assert_eq!(reported(r#""b","c""#), ["a waits"], "other waiters may be ahead");
    assert_eq!(reported(r#""b","me""#), ["a at 2"]);
    assert_eq!(reported(r#""b","","me""#), ["a waits"], "waiters without a name are ahead");
}

#[test]
fn the_last_named_waiter_is_the_lookout_and_watches_the_folder_after_a_second() {
    let (mut keeper, _) = follower(plain());
    // What it knows of the record may be of when it came.
    assert_eq!(requests(&watched(&mut keeper, told(1010), NOW)), ["look a/.lock"]);
    let asked = looks_as(&mut keeper, named(1, r#""x""#, r#""b","c""#, 500), NOW);
    assert_eq!(requests(&asked), ["watch a/me@1010"]);
    keeper.tick(after(1000));
    assert_eq!(requests(&commands(&mut keeper)), ["watch a/@0"]);
    // Where much happens, about once a second.
    let asked = watched(&mut keeper, folder(&[".lock", "me", "x", "b", "c"], 1020), after(1000));
    assert_eq!(requests(&asked), ["look a/.lock"]);
    assert_eq!(requests(&looks_as(&mut keeper, named(1, r#""x""#, r#""b","c""#, 500), after(1000))), [""; 0]);
    let asked = passes(&mut keeper, after(1000), after(2000), |_| None);
    assert_eq!(asked.iter().map(|(_, what)| what.as_str()).collect::<Vec<_>>(), ["watch a/@1020"]);
    assert!(asked[0].0 >= after(1700), "{asked:?}");
}

#[test]
fn a_lookout_lists_where_a_holders_name_is_gone_and_takes_the_dead_out() {
    let (mut keeper, _) = follower(plain());
    let record = || named(1, r#""x""#, r#""b","c""#, 500);
    watched(&mut keeper, told(1010), NOW);
    looks_as(&mut keeper, record(), NOW);
    keeper.tick(after(1000));
    commands(&mut keeper);
    watched(&mut keeper, folder(&[".lock", "me", "b", "c"], 1020), after(1000));
    assert_eq!(requests(&looks_as(&mut keeper, record(), after(1000))), [""; 0], "it may just have left");
    keeper.tick(after(1050));
    assert_eq!(requests(&commands(&mut keeper)), ["list"]);
    let waits = |session: &str, index| of(session, WaiterState::Waiting, index);
    let pairs = vec![record(), waits("b", 600), waits("c", 700), told(1010)];
    let asked = lists_as(&mut keeper, pairs, after(1050));
    assert_eq!(recorded(&asked), Some(("b".into(), "c me".into())), "{asked:?}");
}

#[test]
fn a_release_reads_the_record_alone_and_hands_off_by_name() {
    let mut keeper = let_in(plain());
    keeper.remove(&"a".into(), after(200));
    assert_eq!(requests(&commands(&mut keeper)), ["look a/.lock"]);
    let asked = looks_as(&mut keeper, named(1, r#""me""#, r#""b","c""#, 1010), after(200));
    assert_eq!(requests(&asked), ["commit a/.lock a/b a/b a/me a/me"]);
    assert_eq!(recorded(&asked), Some(("b".into(), "c".into())));
    done(&mut keeper, 1020, None, after(200));
    assert!(keeper.machine("a").is_none());
}

#[test]
fn a_holder_that_reads_a_stale_server_confirms_its_slot() {
    let mut keeper = let_in(plain());
    keeper.remove(&"a".into(), after(200));
    assert_eq!(requests(&commands(&mut keeper)), ["look a/.lock"]);
    let asked = looks_as(&mut keeper, named(1, r#""x""#, r#""me","b","c""#, 500), after(200));
    assert_eq!(requests(&asked), ["prove a/.lock"]);
    let asked = looks_as(&mut keeper, named(1, r#""me""#, r#""b","c""#, 1010), after(200));
    assert_eq!(recorded(&asked), Some(("b".into(), "c".into())));
}

#[test]
fn a_grant_that_is_seen_after_its_watch_had_failed_is_proved() {
    let failed = || {
        let (mut keeper, _) = follower(plain());
        let failure = Failure { kind: FailureKind::Unavailable, text: "no answer".into() };
        keeper.handle(Event::Watched("a".into(), "a/me".into(), Err(failure)), after(0));
        let at = after(2000);
        keeper.tick(at);
        assert_eq!(requests(&commands(&mut keeper)), ["watch a/me@1000"]);
        assert_eq!(requests(&watched(&mut keeper, own(WaiterState::Held, 1010), at)), ["prove a/.lock"]);
        assert!(!keeper.machine("a").unwrap().holds());
        (keeper, at)
    };
    // An operator has taken it out meanwhile, and another one was let in.
    let (mut keeper, at) = failed();
    looks_as(&mut keeper, named(1, r#""b""#, r#""c""#, 1200), at);
    assert!(!keeper.machine("a").unwrap().holds());
    // Nobody has.
    let (mut keeper, at) = failed();
    looks_as(&mut keeper, named(1, r#""me""#, r#""b","c""#, 1200), at);
    let Phase::Held { token, .. } = keeper.machine("a").unwrap().phase() else { panic!("it has its slot") };
    assert_eq!(token, 1200);
}

#[test]
fn a_grant_that_is_seen_after_a_cut_is_proved_where_it_may_have_come_before() {
    for (waits, wants_slot) in [(0, &["prove a/.lock"][..]), (1500, &[])] {
        let (mut keeper, _) = follower(plain());
        let cut = Failure { kind: FailureKind::Cut, text: "cut".into() };
        keeper.handle(Event::Watched("a".into(), "a/me".into(), Err(cut)), after(2000));
        keeper.tick(after(2000));
        assert_eq!(requests(&commands(&mut keeper)), ["watch a/me@1000"]);
        let asked = watched(&mut keeper, own(WaiterState::Held, 1010), after(2000 + waits));
        assert_eq!(
            (requests(&asked), keeper.machine("a").unwrap().holds()),
            (strings(wants_slot), wants_slot.is_empty())
        );
    }
}

#[test]
fn a_grant_that_is_seen_while_a_renewal_is_overdue_is_proved() {
    let (mut keeper, _) = follower(plain());
    keeper.tick(after(9000));
    let answer = looks(true)(&commands(&mut keeper)[0]).unwrap();
    keeper.handle(answer, after(9000));
    keeper.tick(after(20_000));
    let asked = watched(&mut keeper, own(WaiterState::Held, 1010), after(20_000));
    assert!(requests(&asked).contains(&"prove a/.lock".to_owned()), "{asked:?}");
    assert!(!keeper.machine("a").unwrap().holds());
}

#[test]
fn a_lookout_whose_contender_key_changes_reads_the_record() {
    let (mut keeper, _) = follower(plain());
    watched(&mut keeper, told(1010), NOW);
    looks_as(&mut keeper, named(1, r#""x""#, r#""b","c""#, 500), NOW);
    // Somebody has passed it beside clients of another kind, of which it does not know.
    let asked = watched(&mut keeper, told(1020), NOW);
    assert_eq!(requests(&asked), ["look a/.lock"]);
}

#[test]
fn a_release_that_would_empty_the_list_lists_first_and_publishes() {
    let mut keeper = let_in(plain());
    keeper.remove(&"a".into(), after(200));
    commands(&mut keeper);
    let record = || named(1, r#""me""#, r#""b""#, 1010);
    assert_eq!(requests(&looks_as(&mut keeper, record(), after(200))), ["list"]);
    let waits = ["b", "c", "d"].map(|session| of(session, WaiterState::Waiting, 1001));
    let pairs = [vec![record(), own(WaiterState::Held, 1010)], waits.into()].concat();
    let asked = lists_as(&mut keeper, pairs, after(200));
    // `c` must stand there as it is known, and `d` is told to watch over all.
    assert_eq!(requests(&asked), ["commit a/.lock a/c a/d a/b a/me a/me"]);
    assert_eq!(recorded(&asked), Some(("b".into(), "c d".into())));
}

#[test]
fn a_write_that_empties_the_handoff_list_lists_newcomers_and_serves_them() {
    let mut keeper = let_in(plain());
    keeper.remove(&"a".into(), after(200));
    commands(&mut keeper);
    // The only one that is named may be let in by listing.
    assert_eq!(requests(&looks_as(&mut keeper, named(1, r#""me""#, r#""b""#, 1011), after(200))), ["list"]);
    let pairs = vec![named(1, r#""me""#, r#""b""#, 1011), own(WaiterState::Held, 1010)];
    let asked = lists_as(&mut keeper, pairs, after(200));
    assert_eq!(requests(&asked), ["commit a/.lock a/me a/me a/"], "`b` has gone");
    let pairs = vec![lock("a", 1, "", 1020), of("late", WaiterState::Waiting, 1015)];
    let listing = Some(Listing { pairs, index: 1020, filtered: false });
    let asked = done(&mut keeper, 1020, listing, after(200));
    assert_eq!(requests(&asked), ["commit a/.lock a/late"]);
    assert_eq!(recorded(&asked), Some(("late".into(), String::new())));
    // Whoever writes instead serves him as well: it tries a few times, and then goes.
    let mut now = after(200);
    let mut attempts = 1;
    stale(&mut keeper, now);
    while let Some(at) = keeper.deadline().filter(|_| keeper.machine("a").is_some()) {
        now = at;
        keeper.tick(now);
        if requests(&commands(&mut keeper)) == ["list"] {
            let pairs = vec![lock("a", 1, "", 1020 + attempts), of("late", WaiterState::Waiting, 1015)];
            if requests(&lists_as(&mut keeper, pairs, now)).is_empty() {
                continue;
            }
            attempts += 1;
            stale(&mut keeper, now);
        }
    }
    assert!((2..=5).contains(&attempts), "{attempts} attempts");
}

#[test]
fn a_client_that_is_alone_releases_by_one_write() {
    let (mut keeper, at, asked) = decides(plain(), None);
    assert_eq!(requests(&asked), ["commit a/.lock a/me a/"]);
    let asked = attends(&mut keeper, vec![lock("a", 1, "", CAME + 1)], at);
    // Whoever came meanwhile relies on it.
    assert_eq!(requests(&asked), ["commit a/.lock a/me a/"]);
    let taken = vec![lock("a", 1, r#""me""#, CAME + 2), own(WaiterState::Held, CAME + 2)];
    done(&mut keeper, CAME + 2, Some(Listing { pairs: taken, index: CAME + 2, filtered: false }), at);
    assert!(keeper.machine("a").unwrap().holds());
    keeper.remove(&"a".into(), after(200));
    assert_eq!(requests(&commands(&mut keeper)), ["commit a/.lock a/me a/me"]);
}

#[test]
fn a_holder_watches_its_own_contender_and_confirms_once_a_minute() {
    let mut keeper = let_in(plain());
    let end = NOW + Duration::from_secs(600);
    let asked = passes(&mut keeper, NOW, end, holding(named(1, r#""me""#, r#""b","c""#, 1010)));
    assert_eq!(asked[0], (after(1000), "watch a/me@1010".to_owned()));
    let confirms: Vec<_> = asked.iter().skip(1).collect();
    assert!(confirms.iter().all(|(_, what)| what == "confirm a/me a/.lock"), "{asked:?}");
    let minute = Duration::from_secs(60);
    assert!((10..=15).contains(&confirms.len()), "{asked:?}");
    assert!(confirms.windows(2).all(|two| two[1].0.since(two[0].0) <= minute), "{asked:?}");
}

/// Answers a follower's look: whether the lookout `c` has a contender.
fn looks(lives: bool) -> impl Fn(&Command) -> Option<Event> {
    looks_at(move || (named(1, r#""x""#, r#""b","c""#, 500), lives))
}

/// The same, with the record as it is then.
fn looks_at(seen: impl Fn() -> (Pair, bool)) -> impl Fn(&Command) -> Option<Event> {
    move |command| {
        let (record, lives) = seen();
        let lookout = lives.then(|| of("c", WaiterState::Waiting, 700));
        let pairs = [Some(own(WaiterState::Waiting, CAME)), Some(record), lookout];
        let readings = pairs.map(|pair| Reading { pair, index: 2000 }).to_vec();
        matches!(command, Command::ReadKeys { .. }).then(|| Event::KeysRead("a".into(), Ok(readings)))
    }
}

#[test]
fn a_follower_reads_soon_and_then_seldom_whether_there_is_still_a_lookout() {
    let (mut keeper, _) = follower(plain());
    let end = NOW + Duration::from_secs(1200);
    let asked = passes(&mut keeper, NOW, end, looks(true));
    assert!(asked.iter().all(|(_, what)| what == "confirm a/me a/.lock a/c"), "{asked:?}");
    // Again when the session of a lookout that had died before has ended.
    let soon = asked[0].0.since(NOW);
    assert!((Duration::from_millis(4500)..=Duration::from_secs(9)).contains(&soon), "{asked:?}");
    assert_eq!(asked[1].0.since(asked[0].0), keeper.ttl * 2, "{asked:?}");
    let seldom = keeper.ttl * 4;
    assert!(asked[1..].windows(2).all(|two| two[1].0.since(two[0].0) >= seldom), "{asked:?}");
    assert!((6..=12).contains(&asked.len()), "{asked:?}");
    let asked = passes(&mut keeper, end, end + Duration::from_secs(600), looks(false));
    assert_eq!(asked.last().map(|(_, what)| what.as_str()), Some("list"), "{asked:?}");
}

#[test]
fn a_follower_whose_wait_is_bounded_looks_before_it_ends() {
    for (millis, times) in [(200, 1), (1000, 1), (5000, 1), (12_000, 2), (600_000, 5)] {
        let wait = Duration::from_millis(millis);
        let (mut keeper, _) = follower(plain());
        keeper.reconfigure(&"a".into(), Settings { wait: Some(wait), ..settings("a", None) }, NOW);
        let asked = passes(&mut keeper, NOW, NOW + wait, looks(true));
        let all: Vec<_> = asked.iter().filter(|(_, what)| what.starts_with("confirm")).collect();
        let left = (NOW + wait).since(all[all.len() - 1].0);
        assert!(all.len() >= times && all.len() <= times + 2, "{wait:?}: {asked:?}");
        // A listing and a write have time after it.
        assert!(left >= wait.min(Duration::from_secs(4)) / 4 && left <= Duration::from_secs(5), "{asked:?}");
    }
}

#[test]
fn a_wait_that_ends_during_its_last_look_is_decided_by_it_if_the_answer_comes_soon() {
    let wait = Duration::from_secs(4);
    let looking = || {
        let (mut keeper, _) = follower(plain());
        keeper.reconfigure(&"a".into(), Settings { wait: Some(wait), ..settings("a", None) }, NOW);
        keeper.tick(after(3000));
        assert!(requests(&commands(&mut keeper))[0].starts_with("confirm"));
        keeper.tick(NOW + wait);
        keeper
    };
    let phase = |keeper: &Keeper| keeper.machine("a").unwrap().phase();
    let mut keeper = looking();
    assert_eq!(phase(&keeper), Phase::Waiting);
    let read = Command::ReadKeys { name: "a".into(), keys: Vec::new() };
    keeper.handle(looks(false)(&read).unwrap(), after(4100));
    assert_eq!(requests(&commands(&mut keeper)), ["list"]);
    let pairs = vec![named(1, r#""x""#, r#""b","c""#, 500), own(WaiterState::Waiting, CAME)];
    let asked = lists_as(&mut keeper, pairs, after(4200));
    assert_eq!(recorded(&asked), Some(("me".into(), String::new())), "{asked:?}");
    done(&mut keeper, 2010, None, after(4300));
    assert!(keeper.machine("a").unwrap().holds());
    // The lookout lives.
    let mut keeper = looking();
    keeper.handle(looks(true)(&read).unwrap(), after(4100));
    assert_eq!(phase(&keeper), Phase::Leaving);
    // No answer comes.
    let mut keeper = looking();
    assert_eq!(keeper.deadline(), Some(after(4500)));
    keeper.tick(after(4500));
    assert_eq!(phase(&keeper), Phase::Leaving);
}

#[test]
fn a_follower_lists_if_a_later_handoff_list_still_names_the_lookout_that_is_gone() {
    let (mut keeper, _) = follower(plain());
    let changed = || (named(1, r#""x""#, r#""c""#, 510), false);
    let asked = passes(&mut keeper, NOW, NOW + Duration::from_secs(9), looks_at(changed));
    assert_eq!(asked.iter().map(|(_, what)| what.as_str()).next_back(), Some("list"), "{asked:?}");
}

#[test]
fn beside_clients_of_another_kind_one_reads_now_and_then_whether_the_one_ahead_is_still_there() {
    let theirs = || b"{\"Limit\":1,\"Holders\":[\"x\"]}".into();
    let record = || Pair { value: theirs(), ..lock("a", 1, "", 500) };
    let foreign = || Pair { value: b"their own".into(), ..of("x", WaiterState::Held, 400) };
    let ahead = || of("b", WaiterState::Waiting, 600);
    let mut keeper = comes(plain());
    commands(&mut keeper);
    let listing = Some(Listing { pairs: vec![record()], index: CAME, filtered: false });
    assert_eq!(requests(&done(&mut keeper, CAME, listing, NOW)), ["list"]);
    let pairs = vec![record(), foreign(), ahead(), own(WaiterState::Waiting, CAME)];
    assert_eq!(requests(&lists_as(&mut keeper, pairs, NOW)), ["watch a/me@1000", "watch a/b@600"]);
    let reads = |lives: bool| {
        move |command: &Command| {
            let pairs = [Some(own(WaiterState::Waiting, CAME)), Some(record()), lives.then(ahead)];
            let readings = pairs.map(|pair| Reading { pair, index: 2000 }).to_vec();
            matches!(command, Command::ReadKeys { .. }).then(|| Event::KeysRead("a".into(), Ok(readings)))
        }
    };
    let seconds = |seconds| NOW + Duration::from_secs(seconds);
    let one = "confirm a/me a/.lock a/b".to_owned();
    // Its own watch and that of the one ahead fail, and the latter's is answered first.
    let mut failed = keeper.clone();
    for key in ["a/me", "a/b"] {
        let failure = Failure { kind: FailureKind::Unavailable, text: "no answer".into() };
        failed.handle(Event::Watched("a".into(), key.into(), Err(failure)), NOW);
    }
    failed.tick(seconds(2));
    assert_eq!(requests(&commands(&mut failed)), ["watch a/me@1000", "watch a/b@600"]);
    watched(&mut failed, ahead(), seconds(2));
    let asked = watched(&mut failed, own(WaiterState::Held, 1010), seconds(2));
    assert!(requests(&asked).contains(&"prove a/.lock".to_owned()), "{asked:?}");
    let asked = passes(&mut keeper.clone(), NOW, seconds(250), reads(false));
    assert_eq!(asked.iter().map(|(_, what)| what.as_str()).collect::<Vec<_>>(), [&one, "list"]);
    // Who else has come ahead is looked at more seldom.
    let asked = passes(&mut keeper, NOW, seconds(600), reads(true));
    let (last, confirms) = asked.split_last().unwrap();
    assert!(!confirms.is_empty() && confirms.iter().all(|(_, what)| *what == one), "{asked:?}");
    assert_eq!(last.1, "list");
}

#[test]
fn the_first_slotkeeper_client_does_not_back_off_after_races_lost_to_foreign_clients() {
    let record = |holders: &str, index| Pair {
        value: format!(r#"{{"Limit":1,"Holders":[{holders}]}}"#).into_bytes(),
        ..lock("a", 1, "", index)
    };
    let mut keeper = comes(plain());
    commands(&mut keeper);
    let listing = Some(Listing { pairs: vec![record(r#""x""#, 500)], index: CAME, filtered: false });
    assert_eq!(requests(&done(&mut keeper, CAME, listing, NOW)), ["list"]);
    let foreign = Pair { value: b"their own".into(), ..of("x", WaiterState::Held, 400) };
    let pairs = vec![record(r#""x""#, 1500), foreign, own(WaiterState::Waiting, CAME)];
    assert_eq!(requests(&lists_as(&mut keeper, pairs, NOW)), ["watch a/me@1000", "watch a/.lock@1500"]);
    let mut now = NOW;
    for index in (2001..2041).step_by(2) {
        let asked = watched(&mut keeper, record("", index), now);
        assert_eq!(recorded(&asked), Some(("me".into(), String::new())), "{asked:?}");
        stale(&mut keeper, now);
        let at = keeper.deadline().unwrap();
        assert!(at.since(now) <= Duration::from_millis(10), "{:?}", at.since(now));
        now = at;
        keeper.tick(now);
        assert_eq!(requests(&commands(&mut keeper)), ["look a/.lock"]);
        let asked = looks_as(&mut keeper, record(r#""y""#, index + 1), now);
        assert_eq!(requests(&asked), [format!("watch a/.lock@{}", index + 1)], "{asked:?}");
    }
}

#[test]
fn while_others_come_and_go_a_follower_reads_that_sooner() {
    let (mut keeper, _) = follower(plain());
    let index = std::cell::Cell::new(500);
    let seen = || {
        index.set(index.get() + 1);
        (named(1, r#""x""#, r#""b","c""#, index.get()), true)
    };
    let asked = passes(&mut keeper, NOW, NOW + Duration::from_secs(600), looks_at(seen));
    assert!(asked.iter().all(|(_, what)| what == "confirm a/me a/.lock a/c"), "{asked:?}");
    assert!((9..=21).contains(&asked.len()), "{asked:?}");
}

#[test]
fn a_client_from_which_keys_are_hidden_is_no_lookout() {
    let (mut keeper, at, asked) = decides(plain(), Some(lock("a", 1, r#""x""#, 500)));
    assert_eq!(requests(&asked), ["commit a/.lock a/me a/"]);
    // What a transaction lists may leave out keys: of the holder it says nothing.
    let asked = attends(&mut keeper, vec![lock("a", 1, r#""x""#, 500)], at);
    assert_eq!(requests(&asked), ["list"]);
    let record = Pair { value: b"{\"Limit\":1,\"Holders\":[\"x\"]} ".into(), ..lock("a", 1, "", CAME + 1) };
    let listing = Listing { pairs: vec![record, told(CAME + 1)], index: 2000, filtered: true };
    keeper.handle(Event::Listed("a".into(), Ok(listing)), at);
    let asked = commands(&mut keeper);
    assert_eq!(requests(&asked), ["commit a/.lock a/me"]);
    let values =
        asked.iter().flat_map(|it| if let Command::Commit { parts } = it { &parts[..] } else { &[] });
    let values: Vec<_> = values.flat_map(|part| &part.ops).collect();
    let [Op::Cas { value: record, .. }, Op::Cas { value: own, .. }] = values[..] else {
        panic!("{values:?}")
    };
    assert!(!crate::Record::decode(record, 0).unwrap().has_lookout);
    assert!(!Entry::decode(own).unwrap().is_lookout());
}

/// One whose write to `.lock` came too late, beside so many holders; when, and what it does then.
fn outrun(seed: u64, holders: u64) -> (Keeper, Moment, Vec<Command>) {
    let names: Vec<_> = (0..holders).map(|number| format!("h{number:03}")).collect();
    let record = || lock("a", holders as u32, &format!(r#""{}""#, names.join(r#"",""#)), 500);
    let (mut keeper, at, _) = decides(Start { seed, ..plain() }, Some(record()));
    let mut pairs = vec![record()];
    pairs.extend(names.iter().map(|name| of(name, WaiterState::Held, 400)));
    assert_eq!(requests(&attends(&mut keeper, pairs, at)), ["commit a/.lock"]);
    let asked = stale(&mut keeper, at);
    (keeper, at, asked)
}

#[test]
fn a_waiter_whose_write_was_stale_watches_its_contender_key_meanwhile() {
    let (mut keeper, at, asked) = outrun(0, 1);
    // The watch of before goes on.
    assert_eq!(requests(&asked), [""; 0]);
    let mut waits = keeper.clone();
    let asked = watched(&mut waits, own(WaiterState::Held, 1010), at);
    assert!(waits.machine("a").unwrap().holds() && requests(&asked).is_empty(), "{asked:?}");
    // Else it looks.
    let again = keeper.deadline().unwrap();
    keeper.tick(again);
    assert_eq!(requests(&commands(&mut keeper)), ["look a/.lock"]);
    // One that has begun none before begins one.
    let mut keeper = came(plain(), Some(lock("a", 1, "", CAME - 2))).0;
    let pairs = vec![lock("a", 1, "", CAME - 2), own(WaiterState::Waiting, CAME)];
    assert_eq!(requests(&lists_as(&mut keeper, pairs, NOW)), ["commit a/.lock a/me"]);
    assert_eq!(requests(&stale(&mut keeper, NOW)), ["watch a/me@1000"]);
}

#[test]
fn the_wait_after_a_write_that_came_too_late_grows_with_the_holders_and_may_be_short() {
    let waits = |holders| -> Vec<Duration> {
        let wait = |(keeper, at, _): (Keeper, Moment, _)| keeper.deadline().unwrap().since(at);
        (0..100).map(|seed| wait(outrun(seed, holders))).collect()
    };
    let (few, many) = (waits(1), waits(100));
    let bounds = |all: &[Duration]| (*all.iter().min().unwrap(), *all.iter().max().unwrap());
    let ((_, longest_of_few), (shortest, longest)) = (bounds(&few), bounds(&many));
    assert!(longest_of_few <= Duration::from_millis(3), "{longest_of_few:?}");
    assert!(longest > longest_of_few * 5 && longest <= Duration::from_millis(30), "{longest:?}");
    assert!(shortest < longest / 4, "{shortest:?} to {longest:?}");
}

#[test]
fn holders_that_one_write_granted_slots_yield_longer_to_each_other() {
    let waits = |beside: Option<u32>, seed: u64| {
        let (mut keeper, _) = follower(Start { seed, ..plain() });
        let mut entry = Entry::decode(&own(WaiterState::Held, 1010).value).unwrap();
        entry.beside = beside;
        watched(&mut keeper, Pair { value: entry.encode(), ..own(WaiterState::Held, 1010) }, NOW);
        assert!(keeper.machine("a").unwrap().holds());
        keeper.remove(&"a".into(), after(200));
        commands(&mut keeper);
        looks_as(&mut keeper, named(1, r#""me""#, r#""b","c""#, 1010), after(200));
        stale(&mut keeper, after(200));
        keeper.deadline().unwrap().since(after(200))
    };
    let longest = |beside| (0..100).map(|seed| waits(beside, seed)).max().unwrap();
    let (alone, together) = (longest(None), longest(Some(32)));
    assert!(together > alone * 10 && together <= Duration::from_millis(96), "{alone:?} {together:?}");
}

#[test]
fn a_holder_after_a_grant_by_name_writes_its_identity_after_a_while() {
    let who = Identity { pod: Some("loader-1".into()), ..Identity::default() };
    let mut keeper = let_in(Start { who, ..plain() });
    let at = keeper.deadline().unwrap();
    keeper.tick(at);
    assert_eq!((requests(&commands(&mut keeper)), at), (vec!["commit a/me".to_owned()], after(1000)));
}

#[test]
fn a_client_that_joins_again_is_not_granted_a_slot_by_its_old_name() {
    // Its semaphore is taken out of the configuration and put back.
    let (mut keeper, _) = follower(plain());
    keeper.remove(&"a".into(), NOW);
    assert_eq!(requests(&commands(&mut keeper)), ["commit a/me a/me"]);
    done(&mut keeper, 1020, None, NOW);
    commands(&mut keeper);
    keeper.add("a".into(), settings("a", None), NOW);
    assert_eq!(requests(&commands(&mut keeper)), ["list"]);
    let waits = |session: &str, index| of(session, WaiterState::Waiting, index);
    let record = named(1, r#""x""#, r#""c","me","b""#, 500);
    let pairs = vec![record, of("x", WaiterState::Held, 400), waits("c", 450), waits("b", 600)];
    let asked = lists_as(&mut keeper, pairs, NOW);
    let next = recorded(&asked).map(|(_, next)| next);
    assert!(next.as_deref().is_some_and(|next| !next.contains("me b")), "{asked:?}");
}
