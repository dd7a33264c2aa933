//! The keys of a semaphore as the previous version reads and writes them.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::{MAX_NEXT, NAME, OTHERS};
use slotkeeper_semaphore::{Op, Pair};

/// A contender as this version reads it.
#[derive(Clone, Debug)]
pub(super) struct Contender {
    pub(super) session: String,
    pub(super) created: u64,
    pub(super) index: u64,
    /// The entry of a slotkeeper; `None` for a foreign client.
    pub(super) entry: Option<Map<String, Value>>,
}

/// The result of a read.
#[derive(Debug)]
pub(super) struct Snapshot {
    /// The object under `.lock`.
    pub(super) record: Map<String, Value>,
    pub(super) index: u64,
    pub(super) contenders: Vec<Contender>,
    pub(super) alive: BTreeSet<String>,
}

impl Contender {
    pub(super) fn of(pair: &Pair, name: &str) -> Option<Self> {
        let session = pair.session.as_ref().filter(|session| session.as_str() == name)?.to_string();
        let entry = serde_json::from_slice::<Map<_, _>>(&pair.value).ok();
        let entry = entry.filter(|entry| entry.get("slotkeeper").and_then(Value::as_u64) == Some(1));
        Some(Self { session, created: pair.create_index, index: pair.modify_index, entry })
    }

    pub(super) fn is(&self, state: &str) -> bool {
        self.entry.as_ref().is_some_and(|entry| entry.get("state").and_then(Value::as_str) == Some(state))
    }

    pub(super) fn slots(&self) -> usize {
        let slots = self.entry.as_ref().and_then(|entry| entry.get("slots")?.as_u64());
        slots.unwrap_or(1) as usize
    }

    pub(super) fn priority(&self) -> i64 {
        self.entry.as_ref().and_then(|entry| entry.get("priority")?.as_i64()).unwrap_or_default()
    }

    pub(super) fn numbers(&self) -> Vec<u32> {
        let numbers = self.entry.as_ref().and_then(|entry| entry.get("indexes")?.as_array());
        numbers.into_iter().flatten().filter_map(|number| Some(number.as_u64()? as u32)).collect()
    }

    /// The entry of this contender as a holder.
    pub(super) fn held(&self, numbers: &[u32]) -> Vec<u8> {
        let mut entry = self.entry.clone().unwrap_or_default();
        // This version drops unknown fields.
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

/// The entry of a new contender.
pub(super) fn entry(state: &str, slots: usize, numbers: &[u32]) -> Vec<u8> {
    let mut entry =
        json!({"slotkeeper": 1, "state": state, "slots": slots, "priority": 0, "since": "", "who": {}});
    if !numbers.is_empty() {
        entry["indexes"] = json!(numbers);
    }
    entry.to_string().into_bytes()
}

impl Snapshot {
    pub(super) fn of(pairs: &[Pair], limit: u32) -> Self {
        let name = |pair: &Pair| pair.key.strip_prefix(NAME)?.strip_prefix('/').map(str::to_owned);
        let lock = pairs.iter().find(|pair| name(pair).is_some_and(|name| name == ".lock"));
        let record = lock.and_then(|lock| serde_json::from_slice(&lock.value).ok());
        let none = || Map::from_iter([("Limit".into(), json!(limit)), ("Holders".into(), json!([]))]);
        let mut contenders: Vec<_> =
            pairs.iter().filter_map(|pair| Contender::of(pair, &name(pair)?)).collect();
        contenders.sort_by_key(|one| one.created);
        Self {
            record: record.unwrap_or_else(none),
            index: lock.map_or(0, |lock| lock.modify_index),
            contenders,
            alive: pairs.iter().filter_map(|pair| Some(pair.session.as_ref()?.to_string())).collect(),
        }
    }

    pub(super) fn names(&self, field: &str) -> Vec<String> {
        let names = self.record.get(field).and_then(Value::as_array);
        names.into_iter().flatten().filter_map(|name| Some(name.as_str()?.to_owned())).collect()
    }

    pub(super) fn set(&mut self, field: &str, names: &[String]) {
        if names.is_empty() && field == "Next" {
            self.record.remove(field);
        } else {
            self.record.insert(field.into(), json!(names));
        }
    }

    pub(super) fn free(&self) -> usize {
        let limit = self.record.get("Limit").and_then(Value::as_u64).unwrap_or_default() as usize;
        limit.saturating_sub(self.names("Holders").len())
    }

    pub(super) fn contender(&self, session: &str) -> Option<&Contender> {
        self.contenders.iter().find(|one| one.session == session)
    }

    /// The queue.
    pub(super) fn queue(&self) -> Vec<Contender> {
        let holders = self.names("Holders");
        let evicted =
            |one: &Contender| one.entry.as_ref().is_some_and(|entry| entry.contains_key("evicted_by"));
        let waits = |one: &&Contender| !one.is("held") && !evicted(one) && !holders.contains(&one.session);
        let mut queue: Vec<_> = self.contenders.iter().filter(waits).cloned().collect();
        queue.sort_by_key(|one| (-one.priority(), one.created));
        queue
    }

    pub(super) fn remove_holders(&mut self, leaves: impl Fn(&str) -> bool) {
        let holders: Vec<_> = self.names("Holders").into_iter().filter(|holder| !leaves(holder)).collect();
        self.set("Holders", &holders);
    }

    /// The free slot indexes, `freed` first.
    pub(super) fn numbers(&self, freed: &[u32]) -> Vec<u32> {
        let limit = self.record.get("Limit").and_then(Value::as_u64).unwrap_or_default() as u32;
        let holders = self.names("Holders").into_iter();
        let used: Vec<_> =
            holders.filter_map(|one| Some(self.contender(&one)?.numbers())).flatten().collect();
        let freed = freed.iter().copied();
        let numbers =
            freed.clone().chain((0..limit).filter(|number| !freed.clone().any(|one| one == *number)));
        numbers.filter(|number| !used.contains(number)).collect()
    }

    /// Grants the free slots to the head of the queue. Returns the operations, and whether a slot is left to a foreign client
    /// ahead. `foreign_turn`: each foreign client ahead keeps a slot.
    pub(super) fn fill(&mut self, queue: &[Contender], freed: &[u32], foreign_turn: bool) -> (Vec<Op>, bool) {
        let (mut free, mut left, mut ops) = (self.free(), false, Vec::new());
        let (mut holders, mut numbers) = (self.names("Holders"), self.numbers(freed));
        for one in queue.iter().filter(|one| one.slots() > 0) {
            if free == 0 || ops.len() == MAX_NEXT {
                break;
            }
            if one.entry.is_none() {
                (free, left) = if foreign_turn { (free - 1, true) } else { (free, left) };
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

    /// Writes the next waiters to `Next`.
    pub(super) fn write_next(&mut self, queue: &[Contender]) -> Vec<Op> {
        let (holders, before) = (self.names("Holders"), self.names("Next"));
        let mut next: Vec<String> = Vec::new();
        let mut checks = Vec::new();
        for one in queue.iter().filter(|one| !holders.contains(&one.session)).take(MAX_NEXT) {
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

    pub(super) fn write(&self) -> Op {
        let value = Value::Object(self.record.clone()).to_string().into_bytes();
        Op::Cas { key: format!("{NAME}/.lock"), value, flags: 0, index: self.index }
    }
}
