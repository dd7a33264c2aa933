//! A client of the previous version of slotkeeper, simplified: what it does on the wire, and no more.
//!
//! It knows `.lock` and the contender keys by their JSON alone, so that no change of today's code changes it. It joins by a listing and a
//! transaction, which takes a free slot if the queue is empty, and else locks its contender key. It watches its own contender key and
//! that of the waiter ahead. At the head it watches `.lock` and one holder, names itself and those behind it in `Next`, and takes free
//! slots. When it leaves it hands off by name. It lists everything again now and then.
//!
//! Left out: the map format, several slots and priorities of its own, acquire groups, the lease (its process renews while it lives),
//! lost answers, operators.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::consul::{Consul, SEMAPHORES, TTL};
use slotkeeper_semaphore::{Commit, Moment, Op, Pair, SessionId};

/// The semaphore that they are after.
const NAME: &str = SEMAPHORES[0];
/// Waiters that are named in `Next`, and that one transaction lets in.
const NAMED: usize = 16;
/// How long a slot is left to a client of another kind that stands ahead.
const THEIR_TURN: Duration = Duration::from_millis(300);
/// The waits after a transaction that came too late, first and longest.
const CONTENTION: (Duration, Duration) = (Duration::from_millis(4), Duration::from_secs(1));
/// Stands in `Next` for clients that let themselves in.
const OTHERS: &str = "";

/// What one does next.
#[derive(Debug)]
enum Step {
    Enter,
    List,
    /// A listing has arrived.
    Decide(Seen),
    /// What it leaves by has been read.
    Leave(Seen),
    Commit(Vec<Op>),
    /// The answer to a transaction has arrived.
    Answered(Commit),
    /// Nothing, until something that it watches changes, or its time comes.
    Rest,
}

/// A contender as it reads it.
#[derive(Clone, Debug)]
struct One {
    session: String,
    created: u64,
    index: u64,
    /// Ours; else it is another client's.
    entry: Option<Map<String, Value>>,
}

/// What was read.
#[derive(Debug)]
struct Seen {
    /// The object under `.lock`.
    record: Map<String, Value>,
    index: u64,
    contenders: Vec<One>,
    alive: BTreeSet<String>,
}

pub(super) struct EarlierClient {
    id: Uuid,
    limit: u32,
    deaf: bool,
    step: Step,
    work: Duration,
    leaves_at: Option<Moment>,
    list_at: Moment,
    free_since: Option<Moment>,
    failures: u32,
    watches: Vec<(String, u64)>,
    /// Number of the timer that counts.
    pub(super) timer: u64,
    pub(super) holds: bool,
    pub(super) done: bool,
}

impl One {
    fn of(pair: &Pair, name: &str) -> Option<Self> {
        let session = pair.session.as_ref().filter(|session| session.as_str() == name)?.to_string();
        let entry = serde_json::from_slice::<Map<_, _>>(&pair.value).ok();
        let entry = entry.filter(|entry| entry.get("slotkeeper").and_then(Value::as_u64) == Some(1));
        Some(Self { session, created: pair.create_index, index: pair.modify_index, entry })
    }

    fn is(&self, state: &str) -> bool {
        self.entry.as_ref().is_some_and(|entry| entry.get("state").and_then(Value::as_str) == Some(state))
    }

    fn slots(&self) -> usize {
        let slots = self.entry.as_ref().and_then(|entry| entry.get("slots")?.as_u64());
        slots.unwrap_or(1) as usize
    }

    fn priority(&self) -> i64 {
        self.entry.as_ref().and_then(|entry| entry.get("priority")?.as_i64()).unwrap_or_default()
    }

    fn numbers(&self) -> Vec<u32> {
        let numbers = self.entry.as_ref().and_then(|entry| entry.get("indexes")?.as_array());
        numbers.into_iter().flatten().filter_map(|number| Some(number.as_u64()? as u32)).collect()
    }

    /// Its entry once it is let in.
    fn held(&self, numbers: &[u32]) -> Vec<u8> {
        let mut entry = self.entry.clone().unwrap_or_default();
        // What this version does not know it does not keep.
        entry.retain(|name, _| KNOWN.contains(&name.as_str()));
        entry.insert("state".into(), json!("held"));
        entry.insert("indexes".into(), json!(numbers));
        Value::Object(entry).to_string().into_bytes()
    }
}

/// The fields of an entry that this version knows.
const KNOWN: [&str; 11] = [
    "slotkeeper",
    "state",
    "slots",
    "indexes",
    "priority",
    "together",
    "since",
    "who",
    "body",
    "evicted_by",
    "nonce",
];

/// The entry of one of whom nothing else is known.
fn entry(state: &str, slots: usize, numbers: &[u32]) -> Vec<u8> {
    let mut entry =
        json!({"slotkeeper": 1, "state": state, "slots": slots, "priority": 0, "since": "", "who": {}});
    if !numbers.is_empty() {
        entry["indexes"] = json!(numbers);
    }
    entry.to_string().into_bytes()
}

impl Seen {
    fn of(pairs: &[Pair], limit: u32) -> Self {
        let name = |pair: &Pair| pair.key.strip_prefix(NAME)?.strip_prefix('/').map(str::to_owned);
        let lock = pairs.iter().find(|pair| name(pair).is_some_and(|name| name == ".lock"));
        let record = lock.and_then(|lock| serde_json::from_slice(&lock.value).ok());
        let none = || Map::from_iter([("Limit".into(), json!(limit)), ("Holders".into(), json!([]))]);
        let mut contenders: Vec<_> = pairs.iter().filter_map(|pair| One::of(pair, &name(pair)?)).collect();
        contenders.sort_by_key(|one| one.created);
        Self {
            record: record.unwrap_or_else(none),
            index: lock.map_or(0, |lock| lock.modify_index),
            contenders,
            alive: pairs.iter().filter_map(|pair| Some(pair.session.as_ref()?.to_string())).collect(),
        }
    }

    fn names(&self, field: &str) -> Vec<String> {
        let names = self.record.get(field).and_then(Value::as_array);
        names.into_iter().flatten().filter_map(|name| Some(name.as_str()?.to_owned())).collect()
    }

    fn set(&mut self, field: &str, names: &[String]) {
        if names.is_empty() && field == "Next" {
            self.record.remove(field);
        } else {
            self.record.insert(field.into(), json!(names));
        }
    }

    fn free(&self) -> usize {
        let limit = self.record.get("Limit").and_then(Value::as_u64).unwrap_or_default() as usize;
        limit.saturating_sub(self.names("Holders").len())
    }

    fn contender(&self, session: &str) -> Option<&One> {
        self.contenders.iter().find(|one| one.session == session)
    }

    /// Those in line, in order.
    fn line(&self) -> Vec<One> {
        let holders = self.names("Holders");
        let evicted = |one: &One| one.entry.as_ref().is_some_and(|entry| entry.contains_key("evicted_by"));
        let waits = |one: &&One| !one.is("held") && !evicted(one) && !holders.contains(&one.session);
        let mut line: Vec<_> = self.contenders.iter().filter(waits).cloned().collect();
        line.sort_by_key(|one| (-one.priority(), one.created));
        line
    }

    fn take_out(&mut self, leaves: impl Fn(&str) -> bool) {
        let holders: Vec<_> = self.names("Holders").into_iter().filter(|holder| !leaves(holder)).collect();
        self.set("Holders", &holders);
    }

    /// The numbers that no holder has, `freed` first.
    fn numbers(&self, freed: &[u32]) -> Vec<u32> {
        let limit = self.record.get("Limit").and_then(Value::as_u64).unwrap_or_default() as u32;
        let holders = self.names("Holders").into_iter();
        let used: Vec<_> =
            holders.filter_map(|one| Some(self.contender(&one)?.numbers())).flatten().collect();
        let freed = freed.iter().copied();
        let numbers =
            freed.clone().chain((0..limit).filter(|number| !freed.clone().any(|one| one == *number)));
        numbers.filter(|number| !used.contains(number)).collect()
    }

    /// Gives the free slots to the first in line, and says by which steps. While it is their turn, other clients ahead find
    /// a slot left for each; whether there is one.
    fn fill(&mut self, line: &[One], freed: &[u32], their_turn: bool) -> (Vec<Op>, bool) {
        let (mut free, mut left, mut ops) = (self.free(), false, Vec::new());
        let (mut holders, mut numbers) = (self.names("Holders"), self.numbers(freed));
        for one in line.iter().filter(|one| one.slots() > 0) {
            if free == 0 || ops.len() == NAMED {
                break;
            }
            if one.entry.is_none() {
                (free, left) = if their_turn { (free - 1, true) } else { (free, left) };
                continue;
            }
            if one.slots() > free {
                break;
            }
            free -= one.slots();
            let own: Vec<_> = numbers.drain(..one.slots()).collect();
            holders.extend(std::iter::repeat_n(one.session.clone(), one.slots()));
            let (key, value) = (format!("{NAME}/{}", one.session), one.held(&own));
            ops.push(Op::Cas { key, value, flags: 0, index: one.index });
        }
        self.set("Holders", &holders);
        (ops, left)
    }

    /// Names who is next in line.
    fn name_next(&mut self, line: &[One]) -> Vec<Op> {
        let (holders, before) = (self.names("Holders"), self.names("Next"));
        let mut next: Vec<String> = Vec::new();
        let mut checks = Vec::new();
        for one in line.iter().filter(|one| !holders.contains(&one.session)).take(NAMED) {
            if one.entry.is_some() {
                next.extend(std::iter::repeat_n(one.session.clone(), one.slots()));
                if !before.contains(&one.session) {
                    let key = format!("{NAME}/{}", one.session);
                    checks.push(Op::CheckIndex { key, index: one.index });
                }
            } else if next.last().is_none_or(|last| last != OTHERS) {
                next.push(OTHERS.to_owned());
            }
        }
        next.pop_if(|last| last == OTHERS);
        self.set("Next", &next);
        checks
    }

    fn write(&self) -> Op {
        let value = Value::Object(self.record.clone()).to_string().into_bytes();
        Op::Cas { key: format!("{NAME}/.lock"), value, flags: 0, index: self.index }
    }
}

impl EarlierClient {
    /// `deaf`: its watches tell nothing.
    pub(super) fn new(limit: u32, deaf: bool, rng: &mut fastrand::Rng, now: Moment) -> Self {
        Self {
            id: Uuid::from_u128(rng.u128(..)),
            limit,
            deaf,
            step: Step::Enter,
            work: Duration::from_millis(rng.u64(1..2000)),
            leaves_at: None,
            list_at: now,
            free_since: None,
            failures: 0,
            watches: Vec::new(),
            timer: 0,
            holds: false,
            done: false,
        }
    }

    pub(super) fn session(&self) -> SessionId {
        SessionId::from(self.me())
    }

    fn me(&self) -> String {
        self.id.to_string()
    }

    fn own_key(&self) -> String {
        format!("{NAME}/{}", self.id)
    }

    /// Something has changed; whether that is what it watches, and it comes before its time.
    pub(super) fn hears(&mut self, consul: &Consul) -> bool {
        let changed = |(key, after): &(String, u64)| consul.index_of(key) > *after;
        let wakes = !self.deaf && matches!(self.step, Step::Rest) && self.watches.iter().any(changed);
        if wakes {
            self.watches.clear();
        }
        wakes
    }

    /// Does what is next; after how long to come again.
    pub(super) fn step(&mut self, consul: &mut Consul, rng: &mut fastrand::Rng, now: Moment) -> Duration {
        let near = Duration::from_micros(rng.u64(200..5000));
        // Then its workload has ended.
        self.holds &= !self.is_leaving(now);
        match std::mem::replace(&mut self.step, Step::List) {
            Step::Enter => {
                consul.create_lasting_session(self.id, now);
                near
            }
            Step::Rest if self.is_leaving(now) => {
                let keys = [format!("{NAME}/.lock"), self.own_key()];
                let pairs: Vec<_> = keys.iter().filter_map(|key| consul.read(key).pair).collect();
                self.step = Step::Leave(Seen::of(&pairs, self.limit));
                near
            }
            Step::List | Step::Rest => {
                self.step = Step::Decide(Seen::of(&consul.list(NAME).pairs, self.limit));
                near
            }
            Step::Decide(seen) if self.is_leaving(now) && seen.contender(&self.me()).is_none() => {
                self.end(consul, now);
                near
            }
            Step::Decide(seen) => match self.decide(seen, rng, now) {
                Some(ops) => {
                    self.step = Step::Commit(ops);
                    near
                }
                None => {
                    self.step = Step::Rest;
                    if self.hears(consul) {
                        return near;
                    }
                    let wakes = [Some(self.list_at), self.leaves_at].into_iter().flatten().min();
                    wakes.map_or(near, |at| at.since(now))
                }
            },
            Step::Leave(seen) => {
                self.step = self.hand_off(seen).map_or(Step::List, Step::Commit);
                near
            }
            Step::Commit(ops) => {
                self.step = Step::Answered(consul.commit(&ops, now));
                near
            }
            Step::Answered(commit) => self.answered(&commit, consul, rng, now),
        }
    }

    fn answered(
        &mut self,
        commit: &Commit,
        consul: &mut Consul,
        rng: &mut fastrand::Rng,
        now: Moment,
    ) -> Duration {
        if !matches!(commit, Commit::Done { .. }) {
            let wait = CONTENTION.0.saturating_mul(1 << self.failures.min(10)).min(CONTENTION.1);
            self.failures += 1;
            return wait.mul_f64(0.5 + rng.f64() / 2.0);
        }
        self.failures = 0;
        if self.is_leaving(now) && consul.read(&self.own_key()).pair.is_none() {
            self.end(consul, now);
        }
        Duration::from_micros(rng.u64(200..5000))
    }

    fn end(&mut self, consul: &mut Consul, now: Moment) {
        consul.destroy(&self.session(), now);
        self.done = true;
    }

    fn is_leaving(&self, now: Moment) -> bool {
        self.leaves_at.is_some_and(|at| at <= now)
    }

    /// What to write by what was listed; if nothing, what to wait for.
    fn decide(&mut self, mut seen: Seen, rng: &mut fastrand::Rng, now: Moment) -> Option<Vec<Op>> {
        let me = self.me();
        let own = seen.contender(&me).cloned();
        let holds = seen.names("Holders").contains(&me);
        let holders = seen.names("Holders");
        let about = holders.iter().position(|one| *one == me).unwrap_or_default();
        let neighbour =
            holders[about.min(holders.len())..].iter().skip(1).chain(&holders).find(|one| **one != me);
        let neighbour = neighbour.and_then(|one| seen.contender(one)).cloned();
        let (before, alive) = (seen.record.clone(), seen.alive.clone());
        seen.take_out(|holder| holder != me && !alive.contains(holder));
        self.free_since = (seen.free() > 0).then(|| self.free_since.unwrap_or(now));
        let their_turn = self.free_since.is_some_and(|since| now < since + THEIR_TURN);
        let mut line = seen.line();
        let place = line.iter().position(|one| one.session == me);
        let heads = place.is_some_and(|place| line[..place].iter().all(|one| one.entry.is_none()));
        self.wait_for(&seen, own.as_ref(), &line[..place.unwrap_or_default()], neighbour.as_ref(), rng, now);

        let leaves = self.is_leaving(now);
        let own = match own {
            Some(own) if leaves => {
                seen.take_out(|holder| holder == me);
                line.retain(|one| one.session != me);
                let (granted, _) = seen.fill(&line, &own.numbers(), their_turn);
                let checks = seen.name_next(&line);
                return Some(self.and_delete(&own, seen.write(), checks, granted));
            }
            // It was taken out, and goes to the end.
            Some(own) if !holds && own.is("held") => {
                (self.holds, self.leaves_at) = (false, None);
                return Some(vec![Op::DeleteCas { key: self.own_key(), index: own.index }]);
            }
            own => own,
        };
        let Some(own) = own else {
            let (key, session) = (self.own_key(), self.session());
            let check = Op::CheckNotExists { key: key.clone() };
            let lock = |value| Op::Lock { key, value, flags: 0, session };
            if line.is_empty() && seen.free() > 0 {
                let numbers: Vec<_> = seen.numbers(&[]).into_iter().take(1).collect();
                let holders: Vec<_> = seen.names("Holders").into_iter().chain([me]).collect();
                seen.set("Holders", &holders);
                return Some(vec![seen.write(), check, lock(entry("held", 1, &numbers))]);
            }
            let stands = Op::CheckIndex { key: format!("{NAME}/.lock"), index: seen.index };
            let openly = (seen.free() > 0 && seen.index > 0).then_some(stands);
            return Some(openly.into_iter().chain([check, lock(entry("waiting", 1, &[]))]).collect());
        };
        if holds && own.is("held") && !self.holds {
            self.holds = true;
            self.leaves_at = Some(now + self.work);
        }
        // Who stands behind another of ours leaves it all to those ahead.
        if !holds && !heads {
            return None;
        }
        let (granted, left) = seen.fill(&line, &[], their_turn);
        if left {
            self.list_at = self.list_at.min(self.free_since.unwrap_or(now) + THEIR_TURN);
        }
        let first = seen.names("Next").into_iter().find(|name| name != OTHERS);
        let names = granted.is_empty() && heads && first.is_none_or(|first| first != me);
        let checks = if names || seen.record != before { seen.name_next(&line) } else { Vec::new() };
        if seen.record == before {
            return None;
        }
        // A transaction may have 64 steps.
        Some([seen.write()].into_iter().chain(checks).chain(granted).collect())
    }

    /// Notes what to watch, and when to list everything again.
    fn wait_for(
        &mut self,
        seen: &Seen,
        own: Option<&One>,
        ahead: &[One],
        holder: Option<&One>,
        rng: &mut fastrand::Rng,
        now: Moment,
    ) {
        let key = |one: &One| (format!("{NAME}/{}", one.session), one.index);
        let lock = (format!("{NAME}/.lock"), seen.index);
        let holds = own.is_some_and(|own| own.is("held"));
        let ahead = ahead.iter().rfind(|one| one.entry.is_some());
        let others = match ahead {
            Some(ahead) if !holds => vec![key(ahead)],
            None if !holds => {
                [lock].into_iter().chain(holder.map(key)).filter(|(_, index)| *index > 0).collect()
            }
            _ => holder.map(key).into_iter().collect(),
        };
        self.watches = own.map(key).into_iter().chain(others).collect();
        let all = Duration::from_millis(500) * seen.contenders.len() as u32;
        let every = if ahead.is_some() && !holds { all.clamp(TTL / 2, TTL * 60) } else { TTL / 2 };
        self.list_at = now + every.mul_f64(1.0 - 0.3 * rng.f64());
    }

    /// Hands its slot on to the first of those named, without knowing more of them.
    fn hand_off(&self, mut seen: Seen) -> Option<Vec<Op>> {
        let me = self.me();
        let own = seen.contender(&me)?.clone();
        if !seen.names("Holders").contains(&me) {
            return None;
        }
        seen.take_out(|holder| holder == me);
        let mut freed = own.numbers().into_iter();
        let (mut holders, mut rest, mut ops) = (seen.names("Holders"), Vec::new(), Vec::new());
        for name in seen.names("Next") {
            if name == me || holders.contains(&name) {
                continue;
            }
            let twice = seen.names("Next").iter().filter(|one| **one == name).count() > 1;
            let number = if rest.is_empty() && name != OTHERS && !twice && seen.free() > 0 {
                freed.next()
            } else {
                None
            };
            let Some(number) = number else {
                rest.push(name);
                continue;
            };
            let (key, session) = (format!("{NAME}/{name}"), SessionId::from(&name));
            ops.push(Op::CheckSession { key: key.clone(), session: session.clone() });
            ops.push(Op::Lock { key, value: entry("held", 1, &[number]), flags: 0, session });
            holders.push(name);
        }
        seen.set("Holders", &holders);
        // Where nobody holds any more, whoever lives sees the free slots.
        seen.set("Next", if holders.is_empty() { &[] } else { &rest });
        Some(self.and_delete(&own, seen.write(), Vec::new(), ops))
    }

    /// A transaction that deletes the own contender besides.
    fn and_delete(&self, own: &One, write: Op, checks: Vec<Op>, granted: Vec<Op>) -> Vec<Op> {
        let (key, index) = (self.own_key(), own.index);
        let gone = [Op::CheckIndex { key: key.clone(), index }, Op::DeleteCas { key, index }];
        [write].into_iter().chain(checks).chain(granted).chain(gone).collect()
    }
}
