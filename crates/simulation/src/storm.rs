//! One keeper against a Consul that answers at once and wrongly. The rate of its requests must fall, whatever the answers say.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use uuid::Uuid;

use super::consul::{Consul, SEMAPHORES, TTL};
use slotkeeper_consul_dev::store::kv::Write;
use slotkeeper_semaphore::{
    Command, Commit, Event, Form, Identity, Keeper, LOCK_FLAGS, Moment, Name, Notice, OnLost, Pair, Phase,
    Primitive, Reading, Record, SessionId, Settings, Start, Wall,
};

const NAME: &str = SEMAPHORES[0];
/// The time from a request to its answer.
const AWAY: Duration = Duration::from_millis(1);
/// Another client's session.
const OTHER: u128 = 7;
const LOCK: Primitive = Primitive::Lock { stays: true };

/// The answers to watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Watches {
    /// The real value, after a change.
    Honest,
    /// At once, the value before the last change.
    Older,
    /// At once, that the key does not exist.
    Missing,
    /// At once, a later change that never happened.
    Newer,
}

struct Storm {
    consul: Consul,
    keeper: Keeper,
    watches: Watches,
    now: Moment,
    number: u64,
    answers: BTreeMap<(Moment, u64), Event>,
    /// The watches that wait, each with its end.
    waiting: Vec<(Command, Moment)>,
    /// The number of requests, by kind.
    asked: BTreeMap<&'static str, usize>,
    /// The number of writes that a lock-delay rejected.
    delayed: usize,
    notices: Vec<Notice>,
}

impl Storm {
    fn new(primitive: Primitive) -> Self {
        let now = Moment::from_boot(Duration::from_secs(1000));
        let start = Start {
            ttl: TTL,
            watch_grace: None,
            who: Identity::default(),
            wall: Wall::new(SystemTime::UNIX_EPOCH, now),
            seed: 1,
            resume: None,
            semaphores: vec![(Name::from(NAME), settings(primitive))],
            together: Vec::new(),
        };
        Self {
            consul: Consul::new(TTL, 2, primitive, if primitive == LOCK { Duration::ZERO } else { TTL }),
            keeper: Keeper::new(start, now),
            watches: Watches::Honest,
            now,
            number: 0,
            answers: BTreeMap::new(),
            waiting: Vec::new(),
            asked: BTreeMap::new(),
            delayed: 0,
            notices: Vec::new(),
        }
    }

    /// A keeper that holds, or that waits for another client's slot.
    fn begun(primitive: Primitive, holds: bool) -> Self {
        let mut storm = Self::new(primitive);
        if !holds {
            storm.add_other_holder();
        }
        storm.run(Duration::from_secs(3));
        assert_eq!(storm.holds(), holds, "{:?}", storm.phase());
        storm.asked.clear();
        storm.notices.clear();
        storm
    }

    fn phase(&self) -> Phase {
        self.keeper.machine(NAME).expect("one").phase()
    }

    fn holds(&self) -> bool {
        matches!(self.phase(), Phase::Held { .. })
    }

    fn session(&self) -> SessionId {
        self.keeper.session().expect("a session").clone()
    }

    fn contender_key(&self) -> String {
        format!("{NAME}/{}", self.session())
    }

    /// Changes the answers to watches from now on.
    fn lie(&mut self, watches: Watches) {
        self.watches = watches;
        for (command, until) in std::mem::take(&mut self.waiting) {
            self.watch(command, until);
        }
    }

    /// Gives the own contender key to another session, or to none.
    fn occupy(&mut self, by: Option<u128>) {
        let key = self.contender_key();
        self.consul.store.delete(&key, self.now);
        let write = Write { key, value: "".into(), flags: 0 };
        let Some(id) = by.map(Uuid::from_u128) else { return self.consul.store.set(write, self.now) };
        self.consul.create_lasting_session(id, self.now);
        self.consul.store.lock(write, &id.to_string(), self.now).expect("a free key");
    }

    fn add_other_holder(&mut self) {
        let (id, now) = (Uuid::from_u128(OTHER), self.now);
        self.consul.create_lasting_session(id, now);
        let store = &mut self.consul.store;
        let session = id.to_string();
        let write = |key: String, value: Vec<u8>, flags| Write { key, value: value.into(), flags };
        if self.keeper.machine(NAME).expect("one").settings().is_lock() {
            store.lock(write(NAME.into(), Vec::new(), LOCK_FLAGS), &session, now).expect("a free key");
            return;
        }
        store.lock(write(format!("{NAME}/{session}"), Vec::new(), 0), &session, now).expect("a free key");
        store.set(write(format!("{NAME}/.lock"), record(&[&session]), 0), now);
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            while let Some(command) = self.keeper.next_command() {
                self.serve(command);
            }
            self.wake();
            let next = self.answers.first_key_value().map(|((at, _), _)| *at);
            let waits = self.waiting.iter().map(|(_, until)| *until).min();
            let at = [next, waits, self.keeper.deadline()].into_iter().flatten().min();
            let Some(at) = at.filter(|at| *at <= end) else {
                self.now = end;
                return;
            };
            self.now = self.now.max(at);
            match self.answers.first_key_value() {
                Some(((at, _), _)) if *at <= self.now => {
                    let (_, event) = self.answers.pop_first().expect("an answer");
                    self.keeper.handle(event, self.now);
                }
                _ => self.keeper.tick(self.now),
            }
        }
    }

    fn serve(&mut self, command: Command) {
        let kind = match &command {
            Command::Notify(notice) => return self.notices.push(notice.clone()),
            Command::StopWatch { key, .. } => {
                let stopped =
                    |command: &Command| matches!(command, Command::Watch { key: of, .. } if of == key);
                self.waiting.retain(|(command, _)| !stopped(command));
                return self
                    .answers
                    .retain(|_, event| !matches!(event, Event::Watched(_, of, _) if of == key));
            }
            Command::Watch { .. } => "watch",
            Command::List { .. } | Command::ReadLock { .. } | Command::ReadKeys { .. } => "read",
            Command::Commit { .. } => "write",
            Command::CreateSession | Command::RenewSession { .. } | Command::DestroySession { .. } => {
                "session"
            }
        };
        *self.asked.entry(kind).or_default() += 1;
        self.number += 1;
        if let Command::Watch { wait, .. } = &command {
            let until = self.now + *wait;
            return self.watch(command, until);
        }
        let id = Uuid::from_u128(u128::from(self.number) << 64);
        let event = self.consul.serve(&command, id, self.now).expect("an answer");
        self.delayed += usize::from(matches!(event, Event::Committed(_, Ok(Commit::Delayed { .. }))));
        self.answer(event);
    }

    fn watch(&mut self, command: Command, until: Moment) {
        let Command::Watch { name, key, after, .. } = &command else { return };
        match self.wrong_answer(key, *after) {
            Some(reading) => self.answer(Event::Watched(name.clone(), key.clone(), Ok(reading))),
            None => self.waiting.push((command, until)),
        }
    }

    fn answer(&mut self, event: Event) {
        self.answers.insert((self.now + AWAY, self.number), event);
        self.number += 1;
    }

    fn wrong_answer(&self, key: &str, after: u64) -> Option<Reading> {
        let Reading { pair, index } = self.consul.read(key);
        match self.watches {
            Watches::Honest => None,
            Watches::Missing => Some(Reading { pair: None, index: index.max(after) + 1 }),
            Watches::Older => pair.map(|pair| Reading {
                pair: Some(at_index(pair, after.max(2) - 1)),
                index: after.max(2) - 1,
            }),
            Watches::Newer => pair.map(|pair| {
                let index = pair.modify_index + 1000;
                Reading { pair: Some(Pair { session: None, ..at_index(pair, index) }), index }
            }),
        }
    }

    fn wake(&mut self) {
        let (now, consul) = (self.now, &self.consul);
        let due = |command: &Command, until: Moment| {
            let Command::Watch { key, after, .. } = command else { return false };
            until <= now || consul.read(key).index > *after
        };
        let all = std::mem::take(&mut self.waiting);
        let (woken, waiting): (Vec<_>, _) =
            all.into_iter().partition(|(command, until)| due(command, *until));
        self.waiting = waiting;
        for (command, _) in woken {
            let Command::Watch { name, key, .. } = command else { continue };
            let reading = self.consul.read(&key);
            self.answer(Event::Watched(name, key, Ok(reading)));
        }
    }

    fn asked(&self, kind: &str) -> usize {
        self.asked.get(kind).copied().unwrap_or_default()
    }
}

fn at_index(pair: Pair, index: u64) -> Pair {
    Pair { modify_index: index, create_index: pair.create_index.min(index), ..pair }
}

fn settings(primitive: Primitive) -> Settings {
    let plain = Settings::of_lock(NAME.into(), true);
    Settings { primitive, on_lost: OnLost::Reacquire, ..plain }
}

#[test]
fn a_contender_under_lock_delay_is_locked_again_only_once_the_session_was_looked_at() {
    let mut storm = Storm::begun(Primitive::Semaphore, false);
    let session = storm.session();
    storm.consul.destroy(&session, storm.now);
    storm.run(Duration::from_secs(1));
    // One write is rejected; then the keeper reads its session, and joins with a new one.
    assert_eq!(storm.delayed, 1, "{:?}", storm.asked);
    assert!(storm.notices.contains(&Notice::SessionEnded { session: session.clone() }));
    assert_ne!(storm.session(), session);
}

#[test]
fn a_contender_key_under_lock_delay_is_waited_for_where_the_session_lives() {
    let mut storm = Storm::begun(Primitive::Semaphore, false);
    let session = storm.session();
    storm.occupy(Some(8));
    storm.run(Duration::from_secs(1));
    storm.asked.clear();
    storm.consul.destroy(&SessionId::from(Uuid::from_u128(8).to_string()), storm.now);
    storm.run(TTL * 2);
    assert!(storm.delayed > 0 && storm.delayed < 30, "{} of {:?}", storm.delayed, storm.asked);
    assert_eq!((storm.phase(), storm.session()), (Phase::Waiting, session));
}

#[test]
fn a_free_lock_in_lock_delay_is_tried_about_once_a_second() {
    const DELAY: Duration = Duration::from_secs(10);
    let mut storm = Storm::new(LOCK);
    storm.consul.lock_delay = DELAY;
    storm.add_other_holder();
    storm.run(Duration::from_secs(3));
    storm.asked.clear();
    storm.consul.destroy(&SessionId::from(Uuid::from_u128(OTHER).to_string()), storm.now);
    storm.run(DELAY - Duration::from_millis(1));
    assert!(!storm.holds() && (10..=13).contains(&storm.delayed), "{} of {:?}", storm.delayed, storm.asked);
    assert_eq!((storm.asked("write"), storm.asked("watch")), (storm.delayed, 1), "{:?}", storm.asked);
    let told = storm.notices.iter().filter(|notice| matches!(notice, Notice::LockDelayed { .. }));
    assert_eq!(told.count(), 1, "{:?}", storm.notices);
    storm.run(Duration::from_millis(1100));
    assert!(storm.holds(), "{:?}", storm.asked);
}

/// Checks the number of requests in the first and the second minute in which watches contradict consistent reads.
fn assert_calm(primitive: Primitive, holds: bool, watches: Watches) {
    let which = format!("{primitive:?}, holding: {holds}, {watches:?}");
    let mut storm = Storm::begun(primitive, holds);
    storm.lie(watches);
    storm.run(Duration::from_secs(60));
    let first: usize = storm.asked.values().sum();
    assert!(first < 600, "{which}: {:?}", storm.asked);
    storm.asked.clear();
    storm.run(Duration::from_secs(60));
    let second: usize = storm.asked.values().sum();
    assert!(second < 300, "{which}: {:?}", storm.asked);
    assert_eq!(storm.holds(), holds, "{which}: {:?}", storm.notices);
    let not_so = |notice: &&Notice| matches!(notice, Notice::Leader { .. } | Notice::Lost { .. });
    assert_eq!(storm.notices.iter().find(not_so), None, "{which}");
    // The keeper relies on watches again.
    storm.lie(Watches::Honest);
    storm.run(Duration::from_secs(10));
    storm.asked.clear();
    if !holds {
        storm.consul.destroy(&SessionId::from(Uuid::from_u128(OTHER).to_string()), storm.now);
        storm.run(TTL * 3);
        assert!(storm.holds(), "{which}: {:?}", storm.notices);
    }
}

#[test]
fn where_watches_and_consistent_reads_disagree_requests_become_rare_and_nothing_is_lost() {
    for primitive in [Primitive::Semaphore, LOCK] {
        for watches in [Watches::Older, Watches::Missing, Watches::Newer] {
            assert_calm(primitive, true, watches);
            assert_calm(primitive, false, watches);
        }
    }
}

#[test]
fn a_leader_is_announced_once_a_consistent_read_shows_it() {
    let mut storm = Storm::begun(LOCK, false);
    let other = SessionId::from(Uuid::from_u128(OTHER).to_string());
    // The leader has left, and another client has the lock before the keeper reads.
    storm.consul.destroy(&other, storm.now);
    let id = Uuid::from_u128(8);
    storm.consul.create_lasting_session(id, storm.now);
    let write = Write { key: NAME.into(), value: "".into(), flags: LOCK_FLAGS };
    storm.consul.store.lock(write, &id.to_string(), storm.now).expect("no delay");
    storm.run(Duration::from_secs(1));
    let leader = |notice: &Notice| {
        let Notice::Leader { leader, .. } = notice else { return None };
        Some(leader.as_ref().map(|leader| leader.session.clone()))
    };
    let leaders: Vec<_> = storm.notices.iter().filter_map(leader).collect();
    assert_eq!(leaders, [Some(SessionId::from(id.to_string()))]);
    assert_eq!((storm.asked("watch"), storm.asked("read")), (1, 1), "{:?}", storm.asked);
}

#[test]
fn what_lies_unlocked_under_the_own_contender_key_is_replaced() {
    for holds in [true, false] {
        for keeps_entry in [true, false] {
            let mut storm = Storm::begun(Primitive::Semaphore, holds);
            let (session, key) = (storm.session(), storm.contender_key());
            let entry = storm.consul.read(&key).pair.expect("a contender").value;
            storm.consul.store.delete(&key, storm.now);
            let value = if keeps_entry { entry } else { b"junk".to_vec() };
            storm.consul.store.set(Write { key: key.clone(), value: value.into(), flags: 0 }, storm.now);
            storm.run(Duration::from_secs(2));
            assert_eq!((storm.holds(), storm.session()), (holds, session.clone()), "{:?}", storm.notices);
            let found = storm.consul.read(&key).pair.expect("a contender");
            assert_eq!(found.session, Some(session));
            assert!(storm.asked("write") < 6, "{:?}", storm.asked);
        }
    }
}

#[test]
fn a_contender_key_that_another_session_has_locked_is_reported() {
    for holds in [true, false] {
        let mut storm = Storm::begun(Primitive::Semaphore, holds);
        let (session, key) = (storm.session(), storm.contender_key());
        storm.occupy(Some(8));
        storm.run(Duration::from_secs(2));
        let Phase::Blocked { obstacle, .. } = storm.phase() else { panic!("{:?}", storm.notices) };
        let why = obstacle.why;
        assert!(why.contains(&key) && why.contains(&Uuid::from_u128(8).to_string()), "{why}");
        let blocked =
            |notices: &[Notice]| notices.iter().filter(|it| matches!(it, Notice::Blocked { .. })).count();
        assert_eq!(blocked(&storm.notices), 1);
        storm.asked.clear();
        storm.run(Duration::from_secs(20));
        assert!(storm.asked("read") + storm.asked("write") < 10, "{:?}", storm.asked);
        // After the key is deleted, the keeper joins with its current session.
        storm.consul.store.delete(&key, storm.now);
        storm.run(Duration::from_secs(2));
        assert_eq!((storm.holds(), storm.session()), (holds, session), "{:?}", storm.notices);
    }
}

/// Replaces the keeper by a new one, and returns how long that waits for a slot.
fn successor(storm: &mut Storm) -> Duration {
    let Storm { keeper, .. } = Storm::new(Primitive::Semaphore);
    storm.keeper = keeper;
    (storm.answers, storm.waiting) = (BTreeMap::new(), Vec::new());
    // Session IDs derive from the number.
    storm.number += 1000;
    let came = storm.now;
    while !storm.holds() {
        storm.run(Duration::from_millis(1));
        assert!(storm.now.since(came) < Duration::from_secs(5), "{:?}", storm.notices);
    }
    let waited = storm.now.since(came);
    storm.keeper.drain(storm.now);
    while !storm.keeper.has_ended() {
        storm.run(Duration::from_millis(1));
    }
    waited
}

#[test]
fn an_idle_foreign_contender_gets_one_turn_from_each_client() {
    let mut storm = Storm::new(Primitive::Semaphore);
    let (id, now) = (Uuid::from_u128(OTHER).to_string(), storm.now);
    storm.consul.create_lasting_session(Uuid::from_u128(OTHER), now);
    let contender = Write { key: format!("{NAME}/{id}"), value: "".into(), flags: 0 };
    storm.consul.store.lock(contender, &id, now).expect("a free key");
    storm.consul.store.set(free_record(), now);
    let turn = Duration::from_millis(300);
    let turns: Vec<_> = (0..5).map(|_| successor(&mut storm)).collect();
    assert!(turns.iter().all(|waited| (turn..turn + turn / 10).contains(waited)), "{turns:?}");
}

#[test]
fn the_turn_of_a_foreign_client_ends_when_it_leaves_the_queue() {
    let mut storm = Storm::new(Primitive::Semaphore);
    storm.add_other_holder();
    // The foreign client has left the record but not the queue before the keeper reads.
    storm.consul.store.set(free_record(), storm.now);
    storm.run(Duration::from_millis(100));
    assert!(!storm.holds());
    storm.consul.store.delete(&format!("{NAME}/{}", Uuid::from_u128(OTHER)), storm.now);
    storm.run(Duration::from_millis(20));
    assert!(storm.holds(), "{:?}", storm.notices);
}

/// A record that a foreign client has written.
fn record(holders: &[&str]) -> Vec<u8> {
    let mut record = Record::new(Form::List, 1);
    record.hints = None;
    record.holders = holders.iter().map(|holder| SessionId::from(*holder)).collect();
    record.encode()
}

fn free_record() -> Write {
    Write { key: format!("{NAME}/.lock"), value: record(&[]).into(), flags: 0 }
}
