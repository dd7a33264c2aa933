//! Keepers before a small Consul. Each semaphore has its name as its prefix, and each session of a keeper is called `me`.

#![allow(clippy::wildcard_enum_match_arm, reason = "a test looks at a few of many cases")]

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use super::*;
use crate::command::{Listing, Op, Reading};
use crate::contender::{Entry, WaiterState};
use crate::record::{Form, Hints};
use crate::settings::OnLost;
use crate::view::Pair;
use crate::{FailureKind, Phase, Record, Wall};

mod groups;
mod hidden;
mod lost;
mod offers;
mod renewals;
mod resumed;

const NOW: Moment = Moment::from_boot(Duration::from_secs(1000));
const TTL: Duration = Duration::from_secs(30);

fn after(millis: u64) -> Moment {
    NOW + Duration::from_millis(millis)
}

fn settings(name: &str) -> Settings {
    Settings { on_lost: OnLost::Reacquire, ..Settings::of_prefix(name.into()) }
}

/// An agent that wants a slot of each.
fn start(names: &[&str]) -> Start {
    Start {
        ttl: TTL,
        watch_grace: None,
        who: Identity::default(),
        wall: Wall::new(SystemTime::UNIX_EPOCH, NOW),
        seed: 0,
        resume: None,
        semaphores: names.iter().map(|name| ((*name).into(), settings(name))).collect(),
        together: Vec::new(),
    }
}

/// A keeper, and the Consul that answers it at once.
struct Game {
    keeper: Keeper,
    now: Moment,
    keys: BTreeMap<String, Pair>,
    index: u64,
    watches: BTreeMap<String, u64>,
    /// The requests since they were taken last, without renewals.
    asked: Vec<String>,
    notices: Vec<Notice>,
    /// Requests that begin so are not answered.
    withheld: &'static str,
    unanswered: Vec<Command>,
    /// Listings leave keys out.
    hides: bool,
    /// With what renewals fail.
    fails: Option<FailureKind>,
}

impl Game {
    fn new(start: Start) -> Self {
        Self::with(start, Vec::new())
    }

    /// In a Consul with these keys.
    fn with(start: Start, pairs: Vec<Pair>) -> Self {
        let (keys, watches) = (BTreeMap::new(), BTreeMap::new());
        let mut game = Self {
            keeper: Keeper::new(start, NOW),
            now: NOW,
            keys,
            index: 100,
            watches,
            asked: Vec::new(),
            notices: Vec::new(),
            withheld: "-",
            unanswered: Vec::new(),
            hides: false,
            fails: None,
        };
        game.keys.extend(pairs.into_iter().map(|pair| (pair.key.clone(), pair)));
        game.run();
        game
    }

    /// Executes what the keeper commands.
    fn run(&mut self) {
        while let Some(command) = self.keeper.next_command() {
            let words = self.words(&command);
            self.asked.extend(words.clone().filter(|_| !matches!(command, Command::RenewSession { .. })));
            if words.is_some_and(|words| words.starts_with(self.withheld)) {
                self.unanswered.push(command);
            } else {
                self.answer(command);
            }
        }
    }

    fn answer(&mut self, command: Command) {
        let prefix = |name: &Name| self.keeper.machine(name).map(|one| one.settings().prefix.clone());
        let event = match command {
            Command::CreateSession => Event::SessionCreated(Ok("me".into())),
            Command::RenewSession { sent, .. } => {
                let answer = self.fails.map_or(Ok(TTL), |kind| Err(failure(kind)));
                Event::SessionRenewed(sent, answer)
            }
            Command::DestroySession { .. } => Event::SessionDestroyed(Ok(())),
            Command::List { name } => {
                let folder = format!("{}/", prefix(&name).unwrap());
                Event::Listed(name, Ok(self.listing(&folder)))
            }
            Command::ReadLock { name, key, .. } => Event::LockRead(name, Ok(self.reading(&key))),
            Command::ReadKeys { name, keys } => {
                // A transaction that reads tells of no index but those of the keys.
                let index = |reading: &Reading| reading.pair.as_ref().map_or(0, |pair| pair.modify_index);
                let read = keys.iter().map(|key| self.reading(key));
                let read = read.map(|reading| Reading { index: index(&reading), ..reading });
                Event::KeysRead(name, Ok(read.collect()))
            }
            Command::Watch { key, after, .. } => {
                self.watches.insert(key, after);
                return self.wake();
            }
            Command::StopWatch { key, .. } => {
                self.watches.remove(&key);
                return;
            }
            Command::Commit { parts } => {
                let names = parts.iter().map(|part| part.name.clone()).collect();
                let ops: Vec<_> = parts.into_iter().flat_map(|part| part.ops).collect();
                Event::Committed(names, Ok(self.commit(&ops)))
            }
            Command::Notify(notice) => return self.notices.push(notice),
        };
        self.keeper.handle(event, self.now);
    }

    /// Answers the requests that were withheld.
    fn release(&mut self) {
        self.withheld = "-";
        for command in std::mem::take(&mut self.unanswered) {
            self.answer(command);
        }
        self.run();
    }

    fn reading(&self, key: &str) -> Reading {
        Reading { pair: self.keys.get(key).cloned(), index: self.index }
    }

    fn listing(&self, prefix: &str) -> Listing {
        let pairs = self.keys.values().filter(|pair| pair.key.starts_with(prefix)).cloned().collect();
        Listing { pairs, index: self.index, filtered: self.hides }
    }

    fn commit(&mut self, ops: &[Op]) -> Commit {
        let (before, index) = (self.keys.clone(), self.index + 1);
        let mut listing: Option<Listing> = None;
        for (step, op) in ops.iter().enumerate() {
            let known = self.keys.get(op.key()).cloned();
            let at = known.as_ref().map_or(0, |pair| pair.modify_index);
            let owner = known.as_ref().and_then(|pair| pair.session.clone());
            let holds = match op {
                Op::Lock { session, .. } => owner.as_ref().is_none_or(|owner| owner == session),
                Op::Unlock { session, .. } | Op::CheckSession { session, .. } => {
                    owner.as_ref() == Some(session)
                }
                Op::Cas { index, .. } | Op::CheckIndex { index, .. } => *index == at,
                Op::DeleteCas { index, .. } => known.is_none() || *index == at,
                Op::CheckNotExists { .. } => known.is_none(),
                Op::Delete { .. } | Op::List { .. } => true,
            };
            if !holds {
                self.keys = before;
                return Commit::Stale { steps: vec![step] };
            }
            match op {
                Op::Lock { key, value, flags, session } => {
                    self.store(key, value, *flags, Some(session.clone()), index);
                }
                Op::Unlock { key, value, flags, .. } => self.store(key, value, *flags, None, index),
                Op::Cas { key, value, flags, .. } => self.store(key, value, *flags, owner, index),
                Op::Delete { key } | Op::DeleteCas { key, .. } => drop(self.keys.remove(key)),
                Op::CheckIndex { .. } | Op::CheckNotExists { .. } | Op::CheckSession { .. } => {}
                Op::List { prefix } => {
                    let pairs = self.listing(prefix).pairs;
                    let empty = Listing { pairs: Vec::new(), index, filtered: self.hides };
                    listing.get_or_insert(empty).pairs.extend(pairs);
                }
            }
        }
        self.index = index;
        Commit::Done { index, listing }
    }

    fn store(&mut self, key: &str, value: &[u8], flags: u64, session: Option<SessionId>, index: u64) {
        let create_index = self.keys.get(key).map_or(index, |pair| pair.create_index);
        let (key, value) = (key.to_owned(), value.to_vec());
        let pair = Pair {
            key: key.clone(),
            value,
            flags,
            session,
            times_locked: 1,
            create_index,
            modify_index: index,
        };
        self.keys.insert(key, pair);
    }

    /// Another client or an operator changes keys, by one write. A key without a value goes.
    fn change(&mut self, changes: Vec<(&str, Option<Pair>)>) {
        self.index += 1;
        for (key, pair) in changes {
            match pair {
                Some(pair) => self.store(key, &pair.value, pair.flags, pair.session, self.index),
                None => drop(self.keys.remove(key)),
            }
        }
        self.wake();
        self.run();
    }

    fn set(&mut self, pairs: Vec<Pair>) {
        let keys: Vec<_> = pairs.iter().map(|pair| pair.key.clone()).collect();
        self.change(keys.iter().map(String::as_str).zip(pairs.into_iter().map(Some)).collect());
    }

    /// Answers watches of keys that have changed.
    fn wake(&mut self) {
        for (key, after) in self.watches.clone() {
            let folder = || {
                let index = self.keys.values().filter(|pair| pair.key.starts_with(&key));
                let index = index.map(|pair| pair.modify_index).max().unwrap_or_default().max(self.index);
                Pair::of_folder(&key, self.keys.keys().cloned(), index)
            };
            let pair = if key.ends_with('/') { Some(folder()) } else { self.keys.get(&key).cloned() };
            let index = pair.as_ref().map_or(0, |pair| pair.modify_index);
            if index != after {
                self.watches.remove(&key);
                let name: Name = key.split('/').next().unwrap().into();
                self.keeper
                    .handle(Event::Watched(name, key, Ok(Reading { pair, index: self.index })), self.now);
            }
        }
    }

    fn tick(&mut self, now: Moment) {
        self.now = now;
        self.keeper.tick(now);
        self.run();
    }

    /// Lets time pass.
    fn passes(&mut self, until: Moment) {
        while let Some(next) = self.keeper.deadline().filter(|next| *next <= until) {
            self.tick(next);
        }
        self.tick(until);
    }

    fn take_asked(&mut self) -> Vec<String> {
        std::mem::take(&mut self.asked)
    }

    /// The request, in words.
    fn words(&self, command: &Command) -> Option<String> {
        Some(match command {
            Command::CreateSession => "create".into(),
            Command::RenewSession { .. } => "renew".into(),
            Command::DestroySession { .. } => "destroy".into(),
            Command::List { name } => format!("list {name}"),
            Command::ReadLock { key, .. } => format!("read {key}"),
            Command::ReadKeys { keys, .. } => format!("read {}", keys.join(" ")),
            Command::Watch { key, .. } => format!("watch {key}"),
            Command::Commit { parts } => {
                let keys: Vec<_> = parts.iter().flat_map(|part| &part.ops).map(Op::key).collect();
                format!("commit {}", keys.join(" "))
            }
            Command::StopWatch { .. } | Command::Notify(_) => return None,
        })
    }

    fn phase(&self, name: &str) -> Option<Phase> {
        self.keeper.machine(name).map(Machine::phase)
    }

    fn holds(&self, name: &str) -> bool {
        self.keeper.machine(name).is_some_and(Machine::holds)
    }

    fn token(&self, name: &str) -> Option<u64> {
        if let Some(Phase::Held { token, .. }) = self.phase(name) { Some(token) } else { None }
    }

    /// The holders and the handoff list of `a`.
    fn record(&self) -> String {
        let record = Record::decode(&self.keys["a/.lock"].value, 0).unwrap();
        let names = |all: &[SessionId]| all.iter().map(SessionId::as_str).collect::<Vec<_>>().join(" ");
        format!("{} | {}", names(&record.holders), names(record.next()))
    }

    fn entry(&self, key: &str) -> Entry {
        Entry::decode(&self.keys[key].value).unwrap()
    }

    fn losses(&self) -> Vec<LossReason> {
        let reason =
            |notice: &Notice| if let Notice::Lost { reason, .. } = notice { Some(*reason) } else { None };
        self.notices.iter().filter_map(reason).collect()
    }
}

fn failure(kind: FailureKind) -> Failure {
    Failure { kind, text: "no".into() }
}

fn pair(key: &str, value: Vec<u8>, session: Option<&str>) -> Pair {
    let (key, session) = (key.to_owned(), session.map(SessionId::from));
    Pair { key, value, flags: 0, session, times_locked: 1, create_index: 50, modify_index: 50 }
}

/// `<name>/.lock` as slotkeeper clients write it.
fn lock(name: &str, limit: u32, holders: &[&str], next: &[&str]) -> Pair {
    let mut record = Record::new(Form::List, limit);
    record.holders = holders.iter().map(|one| (*one).into()).collect();
    let (indexes, waiting) = ((0..record.taken()).collect(), u32::try_from(next.len()).unwrap());
    let next = next.iter().map(|one| (*one).into()).collect();
    record.hints = Some(Hints { indexes, next, waiting, ..Hints::default() });
    pair(&format!("{name}/.lock"), record.encode(), None)
}

fn key(name: &str, session: &str, state: WaiterState) -> Pair {
    key_with(name, session, state, |_| {})
}

fn key_with(name: &str, session: &str, state: WaiterState, change: impl FnOnce(&mut Entry)) -> Pair {
    let mut entry = Entry::new(state, 1, 0, String::new(), Identity::default());
    if state != WaiterState::Waiting {
        entry.indexes = vec![0];
    }
    change(&mut entry);
    pair(&format!("{name}/{session}"), entry.encode(), Some(session))
}

/// What lies there while `x` has the only slot of it.
fn taken(name: &str) -> Vec<Pair> {
    vec![lock(name, 1, &["x"], &[]), key(name, "x", WaiterState::Held)]
}

/// An agent that holds the slot of `a`.
fn holder() -> Game {
    let mut game = Game::new(start(&["a"]));
    assert!(game.holds("a"));
    game.asked.clear();
    game
}

/// An agent that waits for the slot of `a`, which `x` has.
fn waiter(start: Start) -> Game {
    let mut game = Game::with(start, taken("a"));
    game.passes(after(100));
    assert_eq!(game.phase("a"), Some(Phase::Waiting));
    assert_eq!(game.record(), "x | me");
    game.asked.clear();
    game
}

#[test]
fn a_life_alone_takes_two_round_trips_and_four_writes() {
    let mut game = Game::new(start(&["a"]));
    assert_eq!(game.take_asked(), ["read a/.lock", "create", "commit a/.lock a/me a/me"]);
    assert_eq!(game.token("a"), Some(game.keys["a/me"].modify_index));
    game.now = after(200);
    game.keeper.drain(game.now);
    game.run();
    assert_eq!(game.take_asked(), ["commit a/.lock a/me a/me", "destroy"]);
    assert!(game.keeper.has_ended() && game.keys.len() == 1);
}

#[test]
fn without_anything_to_hold_there_is_no_session() {
    let mut game = Game::new(start(&[]));
    assert_eq!(game.take_asked(), [""; 0]);
    game.keeper.add("a".into(), settings("a"), NOW);
    game.run();
    assert!(game.holds("a"));
    game.keeper.remove(&"a".into(), NOW);
    game.run();
    assert!(
        game.phase("a").is_none() && game.keeper.session().is_some(),
        "a session is kept for the next slot"
    );
}

#[test]
fn a_creation_without_an_answer_is_repeated_with_growing_pauses_and_delays_no_end() {
    let mut game = Game::new(Start { semaphores: Vec::new(), ..start(&[]) });
    game.withheld = "create";
    game.keeper.add("a".into(), settings("a"), NOW);
    game.run();
    let mut pauses = Vec::new();
    for _ in 0..8 {
        game.keeper.handle(Event::SessionCreated(Err(failure(FailureKind::Unavailable))), game.now);
        game.run();
        let at = game.keeper.deadline().expect("another creation");
        pauses.push(at.since(game.now));
        game.tick(at);
    }
    assert_eq!(game.asked.iter().filter(|asked| *asked == "create").count(), 9);
    assert!(pauses[7] >= Duration::from_secs(2) && pauses[0] < Duration::from_secs(1), "{pauses:?}");
    game.keeper.handle(Event::SessionCreated(Err(failure(FailureKind::Unavailable))), game.now);
    game.keeper.drain(game.now);
    assert!(game.keeper.has_ended());
}

#[test]
fn a_newcomer_waits_for_an_announced_queue_by_its_own_key_alone() {
    let mut game = Game::with(
        start(&["a"]),
        vec![
            lock("a", 1, &["x"], &["b"]),
            key("a", "x", WaiterState::Held),
            key("a", "b", WaiterState::Waiting),
        ],
    );
    let joins = "commit a/me a/me a/.lock a/me a/x";
    assert_eq!(game.take_asked(), ["read a/.lock", "create", joins, "watch a/me"]);
    let waits =
        |notice: &Notice| matches!(notice, Notice::Waiting { position: None, taken: 1, limit: 1, .. });
    assert!(game.notices.iter().any(waits), "of its position it knows nothing: {:?}", game.notices);
}

#[test]
fn every_change_of_the_stored_limit_is_reported_once() {
    let mut game = holder();
    let told = |game: &mut Game| {
        let notices = std::mem::take(&mut game.notices);
        let of_limit = |notice: &Notice| match notice {
            Notice::LimitChanged { from, to, .. } => Some(format!("{from} to {to}")),
            Notice::LimitDiffers { stored, configured, .. } => Some(format!("{stored} and not {configured}")),
            Notice::LimitSet { to, .. } => Some(format!("set {to}")),
            _ => None,
        };
        notices.iter().filter_map(of_limit).collect::<Vec<_>>()
    };
    assert_eq!(told(&mut game), [""; 0]);
    for (limit, report) in [(2, vec!["2 and not 1"]), (3, vec!["3 and not 1"]), (1, vec!["3 to 1"])] {
        game.set(vec![lock("a", limit, &["me"], &[])]);
        game.passes(game.now + Duration::from_secs(61));
        assert_eq!(told(&mut game), report);
        game.passes(game.now + Duration::from_secs(61));
        assert_eq!(told(&mut game), [""; 0]);
    }
}

#[test]
fn a_client_that_sets_its_limit_reports_that_and_sets_it_once() {
    let sets = Settings { limit: 2, limit_policy: crate::LimitPolicy::Set, ..settings("a") };
    let semaphores = vec![("a".into(), sets)];
    let mut game = Game::with(Start { semaphores, ..start(&[]) }, taken("a"));
    game.passes(after(100));
    assert!(
        game.holds("a")
            && game.notices.iter().any(|one| matches!(one, Notice::LimitSet { from: 1, to: 2, .. }))
    );
    game.set(vec![lock("a", 7, &["x", "me"], &[])]);
    game.passes(after(120_000));
    assert_eq!(Record::decode(&game.keys["a/.lock"].value, 0).unwrap().limit, 7, "an operator's limit lasts");
}

#[test]
fn a_client_that_requests_again_after_a_time_out_reads_first() {
    let once = Settings { wait: Some(Duration::ZERO), ..settings("a") };
    let semaphores = vec![("a".into(), once)];
    let mut game = Game::with(Start { semaphores, ..start(&[]) }, taken("a"));
    assert_eq!(game.phase("a"), Some(Phase::TimedOut));
    assert!(!game.keys.contains_key("a/me"));
    game.asked.clear();
    game.change(vec![("a/.lock", Some(lock("a", 1, &[], &[]))), ("a/x", None)]);
    game.keeper.reconfigure(&"a".into(), settings("a"), NOW);
    game.run();
    assert!(game.holds("a") && game.asked[0].starts_with("read"), "{:?}", game.asked);
}

#[test]
fn an_agent_that_is_about_to_end_keeps_its_slots_and_leaves_every_queue() {
    let mut game = Game::with(start(&["a", "b"]), taken("b"));
    game.passes(after(100));
    assert!(game.holds("a") && game.keys.contains_key("b/me"));
    game.keeper.stop_acquiring(game.now);
    game.run();
    assert!(game.holds("a") && !game.keys.contains_key("b/me"));
    assert_eq!(game.phase("b"), Some(Phase::Released));
}

#[test]
fn an_agent_that_has_lost_all_slots_and_requests_none_creates_no_session() {
    let mut game = holder();
    game.keeper.stop_acquiring(NOW);
    game.fails = Some(FailureKind::NotFound);
    game.passes(after(10_000));
    assert_eq!(game.losses(), [LossReason::SessionGone]);
    assert!(!game.asked.contains(&"create".to_owned()), "{:?}", game.asked);
}

#[test]
fn nothing_of_another_cluster_is_acted_on() {
    let mut game = Game::new(start(&[]));
    game.withheld = "commit";
    game.keeper.add("a".into(), settings("a"), NOW);
    game.run();
    game.keeper.change_cluster(NOW);
    game.withheld = "-";
    game.run();
    assert_eq!(game.asked.iter().filter(|asked| *asked == "create").count(), 2);
    assert!(!game.holds("a"));
    // The answer of the old one grants the slot.
    game.keeper.handle(Event::Committed(vec!["a".into()], Ok(Commit::Done { index: 7, listing: None })), NOW);
    assert!(!game.holds("a"));
    game.run();
    assert_eq!(game.token("a"), Some(101), "by what the new one says");
}

#[test]
fn a_lost_answer_is_read_again_before_anything_else() {
    let mut game = Game::new(start(&[]));
    game.withheld = "commit";
    game.keeper.add("a".into(), settings("a"), NOW);
    game.run();
    // The transaction was done, and its answer is lost.
    let Some(Command::Commit { parts }) = game.unanswered.pop() else { panic!("no write") };
    let ops: Vec<_> = parts.into_iter().flat_map(|part| part.ops).collect();
    assert!(matches!(game.commit(&ops), Commit::Done { .. }));
    game.withheld = "-";
    game.asked.clear();
    game.keeper.handle(Event::Committed(vec!["a".into()], Err(failure(FailureKind::Unavailable))), NOW);
    game.passes(after(1000));
    assert_eq!((game.asked[0].as_str(), game.holds("a")), ("list a", true));
}

#[test]
fn a_holder_reads_its_key_and_the_record_once_a_minute() {
    let mut game = holder();
    game.passes(after(999));
    assert_eq!(game.take_asked(), [""; 0], "a short hold pays for no watch");
    game.passes(after(1000));
    assert_eq!(game.take_asked(), ["read a/.lock a/me", "watch a/me"], "somebody may have come since");
    game.passes(after(62_000));
    assert_eq!(game.take_asked(), ["read a/.lock a/me"]);
}

#[test]
fn a_holder_of_a_few_slots_that_others_wait_for_watches_the_record_and_leaves_without_a_read() {
    let mut game = holder();
    game.set(vec![lock("a", 1, &["me"], &["b"]), key("a", "b", WaiterState::Waiting)]);
    game.passes(after(1000));
    assert_eq!(game.take_asked(), ["read a/.lock a/me", "watch a/me", "watch a/.lock"]);
    game.change(vec![("a/.lock", Some(lock("a", 1, &["me"], &["b", "c"])))]);
    game.set(vec![key("a", "c", WaiterState::Waiting)]);
    game.passes(after(3000));
    assert_eq!(game.take_asked(), ["watch a/.lock"]);
    game.keeper.drain(game.now);
    game.run();
    assert_eq!(game.take_asked()[0], "commit a/.lock a/b a/b a/me a/me");
    assert_eq!(game.record(), "b | c");
}

#[test]
fn a_changed_limit_is_written_although_nothing_was_to_be_done_before() {
    let mut game = holder();
    let sets = |limit| Settings { limit, limit_policy: crate::LimitPolicy::Set, ..settings("a") };
    for limit in [4, 3] {
        game.keeper.reconfigure(&"a".into(), sets(limit), game.now);
        game.passes(game.now + Duration::from_secs(1));
        let record = Record::decode(&game.keys["a/.lock"].value, 0).unwrap();
        assert_eq!(record.limit, limit);
        // A reader of the status has all keys listed.
        game.keeper.refresh_soon(game.now);
        game.passes(game.now + Duration::from_secs(2));
    }
}

#[test]
fn a_wait_ends_in_time_although_the_first_read_gets_no_answer() {
    let wait = Some(Duration::from_secs(4));
    let mut game = Game::new(start(&[]));
    game.withheld = "";
    game.keeper.add("a".into(), Settings { wait, ..settings("a") }, NOW);
    game.run();
    assert_eq!(game.take_asked(), ["read a/.lock", "create"]);
    game.passes(after(4000));
    assert!(
        game.notices.iter().any(|notice| matches!(notice, Notice::TimedOut { .. })),
        "{:?}",
        game.notices
    );
}

#[test]
fn what_consul_refuses_the_name_of_delays_no_drain() {
    let mut game = Game::new(start(&[]));
    game.withheld = "read";
    game.keeper.add("a".into(), settings("a"), NOW);
    game.run();
    let refused = Err(failure(FailureKind::InvalidKey));
    game.keeper.handle(Event::LockRead("a".into(), refused), NOW);
    game.keeper.drain(NOW);
    game.run();
    assert!(game.keeper.has_ended());
    assert_eq!(game.take_asked(), ["read a/.lock", "create", "destroy"]);
}

#[test]
fn a_forced_eviction_is_a_loss_only_by_a_listing() {
    let mut game = holder();
    game.passes(after(1000));
    game.asked.clear();
    game.set(vec![lock("a", 1, &["x"], &[]), key("a", "x", WaiterState::Held)]);
    game.change(vec![("a/me", None)]);
    assert_eq!(game.losses(), [LossReason::Evicted]);
    assert_eq!(game.asked[0], "list a");
}
