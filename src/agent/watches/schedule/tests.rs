use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use slotkeeper_semaphore::{FailureKind, Pair};

/// Long polls that are not a waiter's.
const MOST: usize = MAX_LONG_POLLS - MIN_WAITER_POLLS;
const TTL: Duration = Duration::from_secs(30);
/// What of it a turn may take at most.
const TURN: Duration = Duration::from_secs(10);

fn at(millis: u64) -> Moment {
    Moment::from_boot(Duration::from_millis(millis))
}

fn watcher(name: &str) -> Watcher {
    (Owner::Agent, Name::from(name))
}

fn watch(name: &str, key: &str, after: u64, class: Class) -> Watch {
    Watch { watcher: watcher(name), key: key.into(), after, wait: Duration::from_secs(15), class }
}

fn pair(key: &str, index: u64) -> Pair {
    Pair {
        key: key.into(),
        value: Vec::new(),
        flags: 0,
        session: None,
        times_locked: 0,
        create_index: 1,
        modify_index: index,
    }
}

fn reading(key: &str, index: u64) -> Reading {
    Reading { index, pair: Some(pair(key, index)) }
}

fn failure(kind: FailureKind) -> Failure {
    Failure { kind, text: "no answer".into() }
}

fn asks(schedule: &mut Schedule, now: Moment) -> Vec<Ask> {
    std::iter::from_fn(|| schedule.next(now)).collect()
}

fn polled(asks: &[Ask]) -> Vec<&str> {
    let polls = asks.iter().filter_map(|ask| match ask {
        Ask::Poll { key, .. } => Some(key.as_str()),
        Ask::Read { .. } | Ask::Batch { .. } => None,
    });
    polls.collect()
}

fn names(told: &[WatchAnswer]) -> Vec<&str> {
    told.iter().map(|told| &*told.watcher.1).collect()
}

/// So many watchers of that class, each of a key of its own.
fn crowd(schedule: &mut Schedule, prefix: &str, count: usize, class: Class, now: Moment) {
    for n in 0..count {
        let name = format!("{prefix}{n:03}");
        schedule.watch(watch(&name, &name, 1, class), now);
    }
}

#[test]
fn few_watches_have_a_long_poll_each() {
    let mut schedule = Schedule::new(TTL);
    schedule.watch(watch("a", "a/.lock", 5, Class::Record), at(0));
    let wait = Duration::from_secs(15);
    assert_eq!(asks(&mut schedule, at(0)), [Ask::Poll { key: "a/.lock".into(), after: 5, wait }]);
    assert_eq!(schedule.deadline(), None);
    let told = schedule.answered(Answer::Poll("a/.lock".into(), Ok(reading("a/.lock", 6))), at(1));
    assert_eq!(told[0].answer, Ok(reading("a/.lock", 6)));
    assert_eq!(asks(&mut schedule, at(1)), [], "it was answered once");
}

#[test]
fn own_contenders_of_held_slots_come_first_and_leave_places_to_waiters() {
    let mut schedule = Schedule::new(TTL);
    crowd(&mut schedule, "other", 100, Class::Other, at(0));
    crowd(&mut schedule, "record", 100, Class::Record, at(0));
    crowd(&mut schedule, "waits", 100, Class::Waiting, at(0));
    crowd(&mut schedule, "held", 100, Class::Held, at(0));
    let asked = asks(&mut schedule, at(0));
    let with = |start: &str| polled(&asked).into_iter().filter(|key| key.starts_with(start)).count();
    assert_eq!((with("held"), with("waits")), (MAX_LONG_POLLS - MIN_WAITER_POLLS, MIN_WAITER_POLLS));
    assert_eq!(asked.len(), MAX_LONG_POLLS);

    // After them come the records; and waiters that come later have places, although no poll is called off.
    let mut schedule = Schedule::new(TTL);
    crowd(&mut schedule, "record", 10, Class::Record, at(0));
    crowd(&mut schedule, "other", 10, Class::Other, at(0));
    crowd(&mut schedule, "held", MOST - 4, Class::Held, at(0));
    let asked = asks(&mut schedule, at(0));
    let (held, rest) = polled(&asked).into_iter().partition::<Vec<_>, _>(|key| key.starts_with("held"));
    assert_eq!(held.len(), MOST - 4);
    assert_eq!(rest, ["record000", "record001", "record002", "record003"]);
    crowd(&mut schedule, "late", MIN_WAITER_POLLS + 1, Class::Waiting, at(1));
    assert_eq!(polled(&asks(&mut schedule, at(1))).len(), MIN_WAITER_POLLS);
}

#[test]
fn the_place_of_a_long_poll_that_has_ended_goes_to_the_most_urgent_key() {
    let mut schedule = Schedule::new(TTL);
    crowd(&mut schedule, "record", MOST + 5, Class::Record, at(0));
    assert_eq!(asks(&mut schedule, at(0)).len(), MOST);
    schedule.watch(watch("held", "held", 1, Class::Held), at(1));
    assert_eq!(asks(&mut schedule, at(1)), [], "no poll is called off");
    let told = schedule.answered(Answer::Poll("record007".into(), Ok(reading("record007", 1))), at(2));
    assert_eq!(names(&told), ["record007"], "the end of its wait is an answer");
    assert_eq!(polled(&asks(&mut schedule, at(2))), ["held"]);
}

#[test]
fn a_poll_of_a_key_that_nobody_watches_keeps_its_place_until_it_ends() {
    let mut schedule = Schedule::new(TTL);
    crowd(&mut schedule, "k", MOST, Class::Record, at(0));
    asks(&mut schedule, at(0));
    schedule.unwatch(&watcher("k000"), "k000");
    schedule.watch(watch("new", "new", 1, Class::Held), at(1));
    assert_eq!(asks(&mut schedule, at(1)), []);
    // The next watcher of the key has that poll.
    schedule.watch(watch("again", "k000", 1, Class::Record), at(1));
    assert_eq!(asks(&mut schedule, at(1)), []);
    let told = schedule.answered(Answer::Poll("k000".into(), Ok(reading("k000", 2))), at(2));
    assert_eq!(names(&told), ["again"]);
    assert_eq!(polled(&asks(&mut schedule, at(2))), ["new"]);
}

#[test]
fn keys_without_a_long_poll_are_read_together_within_a_third_of_the_ttl() {
    let mut schedule = Schedule::new(TTL);
    crowd(&mut schedule, "k", 256, Class::Held, at(0));
    assert_eq!(asks(&mut schedule, at(0)).len(), MOST);
    let due = schedule.deadline().unwrap();
    assert!(due <= at(0) + TURN);
    assert_eq!(asks(&mut schedule, due.back(Duration::from_millis(1))), []);
    let mut read = BTreeSet::new();
    let mut transactions = 0;
    loop {
        let asked = asks(&mut schedule, due);
        assert!(asked.len() <= MAX_BATCHES);
        if asked.is_empty() {
            break;
        }
        for ask in asked {
            let Ask::Batch { keys } = ask else { panic!("{ask:?}") };
            transactions += 1;
            read.extend(keys.iter().cloned());
            // One has changed.
            let index = |key: &str| if key == "k200" { 2 } else { 1 };
            let pairs = keys.iter().map(|key| pair(key, index(key))).collect();
            let told = schedule.answered(Answer::Batch(keys.clone(), Ok(Found::Pairs(pairs))), due);
            let changed = keys.contains(&"k200".into());
            assert_eq!(names(&told), if changed { vec!["k200"] } else { vec![] });
        }
    }
    assert_eq!((read.len(), transactions), (256 - MOST, 4));
    assert!(schedule.deadline().unwrap() <= due + TURN);
}

#[test]
fn a_key_that_is_missing_or_hidden_is_read_alone_and_the_rest_again_without_it() {
    let mut schedule = Schedule::new(TTL);
    crowd(&mut schedule, "k", MOST + 3, Class::Held, at(0));
    asks(&mut schedule, at(0));
    let due = schedule.deadline().unwrap();
    let keys: Vec<String> = vec!["k048".into(), "k049".into(), "k050".into()];
    assert_eq!(asks(&mut schedule, due), [Ask::Batch { keys: keys.clone() }]);
    assert!(schedule.answered(Answer::Batch(keys, Ok(Found::Refused(vec![1]))), due).is_empty());
    let rest: Vec<String> = vec!["k048".into(), "k050".into()];
    assert_eq!(
        asks(&mut schedule, due),
        [Ask::Read { key: "k049".into() }, Ask::Batch { keys: rest.clone() }]
    );
    let missing = Reading { index: 9, pair: None };
    let told = schedule.answered(Answer::Read("k049".into(), Ok(missing.clone())), due);
    assert_eq!((names(&told), &told[0].answer), (vec!["k049"], &Ok(missing)));
    // One of the rest is not in the answer: the token may not read it.
    schedule.answered(Answer::Batch(rest, Ok(Found::Pairs(vec![pair("k048", 1)]))), due);
    assert_eq!(asks(&mut schedule, due), [Ask::Read { key: "k050".into() }]);
    let told = schedule.answered(Answer::Read("k050".into(), Err(failure(FailureKind::Denied))), due);
    assert_eq!(names(&told), ["k050"]);
}

#[test]
fn what_cannot_be_read_together_is_read_one_by_one_unless_consul_is_away() {
    for kind in [FailureKind::Rejected, FailureKind::Denied, FailureKind::Unavailable] {
        let mut schedule = Schedule::new(TTL);
        crowd(&mut schedule, "k", MOST + 2, Class::Held, at(0));
        asks(&mut schedule, at(0));
        let due = schedule.deadline().unwrap();
        let keys: Vec<String> = vec!["k048".into(), "k049".into()];
        assert_eq!(asks(&mut schedule, due), [Ask::Batch { keys: keys.clone() }]);
        let told = schedule.answered(Answer::Batch(keys.clone(), Err(failure(kind))), due);
        let each: Vec<_> = keys.into_iter().map(|key| Ask::Read { key }).collect();
        if kind == FailureKind::Unavailable {
            assert_eq!(names(&told), ["k048", "k049"]);
            assert_eq!(asks(&mut schedule, due), []);
        } else {
            assert!(told.is_empty());
            assert_eq!(asks(&mut schedule, due), each);
        }
    }
}

#[test]
fn after_a_failure_the_next_answer_comes_without_a_change() {
    let mut schedule = Schedule::new(TTL);
    schedule.watch(watch("a", "k", 1, Class::Held), at(0));
    asks(&mut schedule, at(0));
    let failed = Err(failure(FailureKind::Unavailable));
    assert_eq!(names(&schedule.answered(Answer::Poll("k".into(), failed), at(1))), ["a"]);
    schedule.watch(watch("a", "k", 1, Class::Held), at(300));
    assert_eq!(asks(&mut schedule, at(300)), [Ask::Read { key: "k".into() }]);
    let told = schedule.answered(Answer::Read("k".into(), Ok(reading("k", 1))), at(301));
    assert_eq!(names(&told), ["a"]);
    schedule.watch(watch("a", "k", 1, Class::Held), at(310));
    assert_eq!(polled(&asks(&mut schedule, at(310))), ["k"], "it has passed");
}

#[test]
fn one_poll_serves_all_who_watch_a_key_and_none_misses_what_it_does_not_know() {
    let mut schedule = Schedule::new(TTL);
    for name in ["a", "b", "c"] {
        schedule.watch(watch(name, "k", 5, Class::Record), at(0));
    }
    assert_eq!(asks(&mut schedule, at(0)).len(), 1);
    schedule.watch(watch("late", "k", 5, Class::Record), at(1));
    assert_eq!(asks(&mut schedule, at(1)), []);
    // It knows less than the poll waits for.
    schedule.watch(watch("old", "k", 4, Class::Record), at(1));
    assert_eq!(asks(&mut schedule, at(1)), [Ask::Read { key: "k".into() }]);
    let told = schedule.answered(Answer::Read("k".into(), Ok(reading("k", 5))), at(2));
    assert_eq!(names(&told), ["old"]);
    // One that knows more already is told nothing.
    schedule.watch(watch("new", "k", 6, Class::Record), at(2));
    let told = schedule.answered(Answer::Poll("k".into(), Ok(reading("k", 6))), at(3));
    assert_eq!(names(&told), ["a", "b", "c", "late"]);
    assert_eq!(
        asks(&mut schedule, at(3)),
        [Ask::Poll { key: "k".into(), after: 6, wait: Duration::from_secs(15) }]
    );
}

#[test]
fn what_was_asked_before_a_watch_does_not_tell_it_that_the_key_is_missing() {
    let mut schedule = Schedule::new(TTL);
    schedule.watch(watch("a", "k", 0, Class::Held), at(0));
    assert_eq!(asks(&mut schedule, at(0)), [Ask::Read { key: "k".into() }]);
    schedule.watch(watch("b", "k", 7, Class::Held), at(1));
    let missing = Reading { index: 6, pair: None };
    let told = schedule.answered(Answer::Read("k".into(), Ok(missing)), at(2));
    assert_eq!(names(&told), ["a"]);
    assert_eq!(polled(&asks(&mut schedule, at(2))), ["k"]);
}

#[test]
fn an_index_that_went_down_is_told_once_and_not_by_what_was_asked_before_the_watch() {
    let mut schedule = Schedule::new(TTL);
    crowd(&mut schedule, "k", MOST, Class::Held, at(0));
    for name in ["a", "b"] {
        schedule.watch(watch(name, name, 9, Class::Other), at(0));
    }
    asks(&mut schedule, at(0));
    let mut now = schedule.deadline().unwrap();
    let keys = || vec!["a".to_owned(), "b".to_owned()];
    let answer = || Answer::Batch(keys(), Ok(Found::Pairs(vec![pair("a", 5), pair("b", 5)])));
    assert_eq!(asks(&mut schedule, now), [Ask::Batch { keys: keys() }]);
    // It has written the key meanwhile, and the answer is from before that.
    schedule.unwatch(&watcher("b"), "b");
    schedule.watch(watch("b", "b", 10, Class::Other), now);
    let told = schedule.answered(answer(), now);
    assert_eq!((names(&told), &told[0].answer), (vec!["a"], &Ok(reading("a", 5))));
    // It has found by a listing that this is all there is.
    schedule.watch(watch("a", "a", 5, Class::Other), now);
    assert_eq!(asks(&mut schedule, now), [], "each has its turn again");
    now = schedule.deadline().unwrap();
    assert_eq!(asks(&mut schedule, now), [Ask::Batch { keys: keys() }]);
    assert_eq!(names(&schedule.answered(answer(), now)), ["b"]);
}

#[test]
fn an_index_of_0_is_read_at_once_beside_all_polls() {
    let mut schedule = Schedule::new(TTL);
    crowd(&mut schedule, "k", MOST, Class::Held, at(0));
    asks(&mut schedule, at(0));
    schedule.watch(watch("a", "a/.lock", 0, Class::Record), at(1));
    assert_eq!(asks(&mut schedule, at(1)), [Ask::Read { key: "a/.lock".into() }]);
    let told = schedule.answered(Answer::Read("a/.lock".into(), Ok(reading("a/.lock", 3))), at(2));
    assert_eq!(names(&told), ["a"]);
}

#[test]
fn a_poll_that_was_cut_off_is_sent_again_at_once_and_nothing_is_read_besides() {
    let mut schedule = Schedule::new(TTL);
    schedule.watch(watch("a", "k", 5, Class::Held), at(0));
    schedule.watch(watch("b", "k", 5, Class::Held), at(0));
    let poll = |seconds| Ask::Poll { key: "k".into(), after: 5, wait: Duration::from_secs(seconds) };
    for round in 1..=4 {
        let now = round * 10_000;
        assert_eq!(asks(&mut schedule, at(now)), [poll(15)], "in round {round}");
        let cut = Err(failure(FailureKind::Cut));
        let told = schedule.answered(Answer::Poll("k".into(), cut), at(now + 10_000));
        assert_eq!(names(&told), ["a", "b"]);
        assert!(told.iter().all(|told| told.answer == Err(failure(FailureKind::Cut))));
        for name in names(&told) {
            schedule.watch(watch(name, "k", 5, Class::Held), at(now + 10_000));
        }
    }
}

#[test]
fn a_folder_is_polled_before_records_and_never_read_together_with_others() {
    let mut schedule = Schedule::new(TTL);
    schedule.watch(watch("a", "a/", 0, Class::Folder), at(0));
    assert_eq!(asks(&mut schedule, at(0)), [Ask::Read { key: "a/".into() }]);
    let folder = |index| {
        let keys = ["a/.lock", "a/1"].map(str::to_owned);
        Reading { index, pair: Some(Pair::of_folder("a/", keys, index)) }
    };
    let told = schedule.answered(Answer::Read("a/".into(), Ok(folder(7))), at(1));
    assert_eq!((names(&told), &told[0].answer), (vec!["a"], &Ok(folder(7))));

    crowd(&mut schedule, "record", 100, Class::Record, at(1));
    crowd(&mut schedule, "waits", MAX_LONG_POLLS - 1, Class::Waiting, at(1));
    schedule.watch(watch("a", "a/", 7, Class::Folder), at(1));
    let asked = asks(&mut schedule, at(1));
    assert!(polled(&asked).contains(&"a/"));
    assert_eq!(polled(&asked).iter().filter(|key| key.starts_with("waits")).count(), MAX_LONG_POLLS - 1);
    let told = schedule.answered(Answer::Poll("a/".into(), Ok(folder(9))), at(2));
    assert_eq!(names(&told), ["a"]);

    // One that is more urgent takes the place.
    schedule.watch(watch("held", "held", 1, Class::Held), at(2));
    assert_eq!(polled(&asks(&mut schedule, at(2))), ["held"]);
    schedule.watch(watch("a", "a/", 9, Class::Folder), at(2));
    let (mut alone, mut together, mut now) = (0, 0, at(2));
    while now < at(2) + TTL * 2 {
        now = schedule.deadline().unwrap();
        for ask in asks(&mut schedule, now) {
            match ask {
                Ask::Batch { keys } => {
                    assert!(keys.iter().all(|key| !key.ends_with('/')));
                    together += 1;
                    let pairs = keys.iter().map(|key| pair(key, 1)).collect();
                    schedule.answered(Answer::Batch(keys, Ok(Found::Pairs(pairs))), now);
                }
                Ask::Read { key } => {
                    assert_eq!(key, "a/");
                    alone += 1;
                    let index = if alone == 1 { 9 } else { 10 };
                    let told = schedule.answered(Answer::Read(key, Ok(folder(index))), now);
                    assert_eq!(told.len(), alone - 1, "told of a change alone");
                }
                Ask::Poll { .. } => panic!("all polls are under way"),
            }
        }
    }
    assert_eq!(alone, 2, "read while it is watched");
    assert!(together > 2);
}

/// One step of a play.
#[derive(Clone, Copy, Debug)]
enum Step {
    Watch(usize, Class),
    /// By one that has not seen the last change.
    WatchBehind(usize),
    Unwatch(usize),
    Change(usize),
    Delete(usize),
    Fail,
    /// The next poll that ends was cut off.
    Cut,
    Pass(u64),
}

fn step(keys: usize) -> impl Strategy<Value = Step> {
    let class = prop_oneof![Just(Class::Held), Just(Class::Waiting), Just(Class::Record), Just(Class::Other)];
    prop_oneof![
        6 => (0..keys, class).prop_map(|(key, class)| Step::Watch(key, class)),
        2 => (0..keys).prop_map(Step::WatchBehind),
        1 => (0..keys).prop_map(Step::Unwatch),
        2 => (0..keys).prop_map(Step::Change),
        1 => (0..keys).prop_map(Step::Delete),
        1 => Just(Step::Fail),
        1 => Just(Step::Cut),
        4 => (1..4000_u64).prop_map(Step::Pass),
    ]
}

/// A Consul with some keys, and what it was asked and has not answered.
struct Play {
    schedule: Schedule,
    now: Moment,
    last: u64,
    /// The index of each key that exists.
    keys: BTreeMap<String, u64>,
    /// Long polls: key, after, until when.
    polls: Vec<(String, u64, Moment)>,
    /// Other questions, and when they are answered.
    calls: Vec<(Ask, Moment)>,
    /// Who watches what, what it knows, and since when it is behind.
    watching: BTreeMap<(String, String), (u64, Option<Moment>)>,
    fail_next: bool,
    cut_next: bool,
}

/// The time that Consul takes for an answer.
const LATENCY: Duration = Duration::from_millis(20);

impl Play {
    fn new() -> Self {
        Self {
            schedule: Schedule::new(TTL),
            now: at(0),
            last: 10,
            keys: BTreeMap::new(),
            polls: Vec::new(),
            calls: Vec::new(),
            watching: BTreeMap::new(),
            fail_next: false,
            cut_next: false,
        }
    }

    fn key(n: usize) -> String {
        // Some keys are watched by two, and some are folders.
        let n = n / 2;
        format!("k{n:03}{}", if n % 8 == 3 { "/" } else { "" })
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Watch(n, class) => {
                let (name, key) = (format!("w{n}"), Self::key(n));
                // Watched are keys that exist.
                let index = *self.keys.entry(key.clone()).or_insert(self.last);
                self.schedule.watch(watch(&name, &key, index, class), self.now);
                self.watching.insert((name, key), (index, None));
            }
            Step::WatchBehind(n) => {
                let (name, key) = (format!("w{n}"), Self::key(n));
                let Some(index) = self.keys.get(&key).map(|index| index - 1) else { return };
                self.schedule.watch(watch(&name, &key, index, Class::Other), self.now);
                self.watching.insert((name, key), (index, Some(self.now)));
            }
            Step::Unwatch(n) => {
                let (name, key) = (format!("w{n}"), Self::key(n));
                self.schedule.unwatch(&watcher(&name), &key);
                self.watching.remove(&(name, key));
            }
            Step::Change(n) => {
                self.last += 1;
                let key = Self::key(n);
                if let Some(index) = self.keys.get_mut(&key) {
                    *index = self.last;
                    self.fall_behind(&key);
                }
            }
            Step::Delete(n) => {
                let key = Self::key(n);
                // An empty folder is an answer like others.
                if is_folder(&key) {
                    return self.take(Step::Change(n));
                }
                self.last += 1;
                if self.keys.remove(&key).is_some() {
                    self.fall_behind(&key);
                }
            }
            Step::Fail => self.fail_next = true,
            Step::Cut => self.cut_next = true,
            Step::Pass(millis) => {
                let until = self.now + Duration::from_millis(millis);
                self.ask();
                while let Some(next) = self.next_event().filter(|next| *next <= until) {
                    self.now = next.max(self.now);
                    self.answer();
                    self.ask();
                }
                self.now = until;
            }
        }
        self.ask();
        self.check();
    }

    fn fall_behind(&mut self, key: &str) {
        for (_, (_, behind)) in self.watching.iter_mut().filter(|((_, watched), _)| watched == key) {
            *behind = behind.or(Some(self.now));
        }
    }

    fn next_event(&self) -> Option<Moment> {
        let woken = |(key, after, until): &(String, u64, Moment)| {
            let wakes = self.keys.get(key).is_none_or(|index| index > after);
            if wakes { self.now } else { *until }
        };
        let polls = self.polls.iter().map(woken);
        let calls = self.calls.iter().map(|(_, at)| *at);
        polls.chain(calls).chain(self.schedule.deadline()).min()
    }

    fn ask(&mut self) {
        while let Some(ask) = self.schedule.next(self.now) {
            match ask {
                Ask::Poll { key, after, wait } => self.polls.push((key, after, self.now + wait)),
                Ask::Read { .. } | Ask::Batch { .. } => self.calls.push((ask, self.now + LATENCY)),
            }
        }
    }

    fn read(&self, key: &str) -> Reading {
        let pair = self.keys.get(key).map(|index| pair(key, *index));
        Reading { index: self.last, pair }
    }

    fn answer(&mut self) {
        let now = self.now;
        let keys = &self.keys;
        let over = |key: &str, after: u64, until: Moment| {
            until <= now || keys.get(key).is_none_or(|index| *index > after)
        };
        let polls: Vec<_> =
            self.polls.extract_if(.., |(key, after, until)| over(key, *after, *until)).collect();
        let calls: Vec<_> = self.calls.extract_if(.., |(_, at)| *at <= now).collect();
        let mut answers: Vec<_> =
            polls.into_iter().map(|(key, ..)| Answer::Poll(key.clone(), Ok(self.read(&key)))).collect();
        for (ask, _) in calls {
            answers.push(match ask {
                Ask::Read { key } => Answer::Read(key.clone(), Ok(self.read(&key))),
                Ask::Batch { keys } => {
                    let missing =
                        (0..keys.len()).filter(|n| !self.keys.contains_key(&keys[*n])).collect::<Vec<_>>();
                    let found = keys.iter().filter_map(|key| self.read(key).pair);
                    let found = if missing.is_empty() {
                        Found::Pairs(found.collect())
                    } else {
                        Found::Refused(missing)
                    };
                    Answer::Batch(keys, Ok(found))
                }
                Ask::Poll { .. } => unreachable!(),
            });
        }
        for mut answer in answers {
            if let Answer::Poll(key, _) = &answer
                && std::mem::take(&mut self.cut_next)
            {
                answer = Answer::Poll(key.clone(), Err(failure(FailureKind::Cut)));
            } else if std::mem::take(&mut self.fail_next) {
                let failed = failure(FailureKind::Unavailable);
                match &mut answer {
                    Answer::Poll(_, answer) | Answer::Read(_, answer) => *answer = Err(failed),
                    Answer::Batch(_, answer) => *answer = Err(failed),
                }
            }
            for told in self.schedule.answered(answer, now) {
                self.told(told);
            }
        }
    }

    fn told(&mut self, told: WatchAnswer) {
        let WatchAnswer { watcher: (_, name), key, answer } = told;
        let id = (name.to_string(), key.clone());
        let (known, behind) = self.watching.remove(&id).expect("told without having asked");
        match answer {
            // It watches on, as the core does.
            Ok(Reading { pair: Some(pair), .. }) => {
                assert!(pair.modify_index >= known, "told of the past");
                let behind = behind.filter(|_| self.keys.get(&key) != Some(&pair.modify_index));
                self.schedule.watch(watch(&name, &key, pair.modify_index, Class::Held), self.now);
                self.watching.insert(id, (pair.modify_index, behind));
            }
            Ok(Reading { pair: None, .. }) => {}
            Err(_) => {
                self.schedule.watch(watch(&name, &key, known, Class::Held), self.now);
                // What was lost with the answer has a turn more.
                self.watching.insert(id, (known, behind.map(|_| self.now)));
            }
        }
    }

    fn check(&self) {
        assert!(self.polls.len() <= MAX_LONG_POLLS, "{} long polls", self.polls.len());
        let batches = self.calls.iter().filter(|(ask, _)| matches!(ask, Ask::Batch { .. }));
        assert!(batches.clone().count() <= MAX_BATCHES);
        for (batch, _) in batches {
            let Ask::Batch { keys } = batch else { unreachable!() };
            assert!((2..=TXN_OPERATIONS).contains(&keys.len()), "{} keys", keys.len());
            assert!(!keys.iter().any(|key| is_folder(key)), "a folder among {keys:?}");
        }
        for ((name, key), (known, behind)) in &self.watching {
            let late = behind.map(|since| self.now.since(since)).unwrap_or_default();
            let turn = if is_folder(key) { TURN * 2 } else { TURN };
            assert!(late <= turn, "{name} was not told of {key} after {known} for {late:?}");
        }
        let distinct: BTreeSet<_> = self.polls.iter().map(|(key, ..)| key).collect();
        assert_eq!(distinct.len(), self.polls.len(), "a key is polled twice");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// However watches come and go, no more is asked than allowed, and each hears within a turn of what has changed.
    #[test]
    fn every_watcher_hears_of_every_change_within_a_third_of_the_ttl(
        steps in prop::collection::vec(step(500), 1..600),
    ) {
        let mut play = Play::new();
        for n in 0..400 {
            play.take(Step::Watch(n, Class::Held));
        }
        for step in steps {
            play.take(step);
        }
        play.take(Step::Pass(20_000));
    }
}
