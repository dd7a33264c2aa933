//! Who takes part at a prefix, as its keys and Consul's sessions show it together. Pure.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::consul::Session;
use crate::semaphore::contender::Entry;
use crate::semaphore::{Pair, Record, SessionId};

/// What a session does at a prefix. In the order in which people are shown them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// It has a single key locked: the prefix, `.lock`, or one below that is no contender of a semaphore.
    Locked,
    /// `.lock` lists it, and it has a key below the prefix locked.
    Held,
    /// It has its contender locked, and `.lock` does not list it.
    Waiting,
    /// `.lock` lists it, and nothing below the prefix is locked by it: its slots are given on soon.
    Dead,
}

impl Part {
    /// Its name in tables and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Locked => "locked",
            Self::Held => "held",
            Self::Waiting => "waiting",
            Self::Dead => "dead",
        }
    }
}

/// A session that takes part at a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Participant {
    /// Its id, as the keys have it. A hand-written record may name what is no session's.
    pub id: SessionId,
    /// What it does there.
    pub part: Part,
    /// The slots that it has, or wants; `None` for a single-key lock.
    pub slots: Option<u32>,
    /// What it says of itself, where slotkeeper wrote it.
    pub entry: Option<Entry>,
    /// What another client wrote instead.
    pub said: Option<String>,
    /// The keys that it has locked.
    pub keys: Vec<String>,
    /// The session, where Consul has and shows it.
    pub session: Option<Session>,
    /// When its first key was made: its place in line among its priority.
    create_index: u64,
}

impl Participant {
    /// Whether it is another client's; `None` where it has left nothing to tell it by.
    pub fn is_foreign(&self) -> Option<bool> {
        match (&self.entry, &self.said) {
            (Some(_), _) => Some(false),
            (None, Some(_)) => Some(true),
            (None, None) => None,
        }
    }

    fn place(&self) -> (Part, Reverse<i32>, u64, SessionId) {
        let priority = match (self.part, &self.entry) {
            (Part::Waiting, Some(entry)) => entry.priority,
            // Clients of other kinds stand in line with this one.
            (Part::Waiting | Part::Locked | Part::Held | Part::Dead, _) => 0,
        };
        (self.part, Reverse(priority), self.create_index, self.id.clone())
    }
}

/// Makes one of each session that the pairs name: those at `prefix` and below it. Waiters come in the order of the line.
pub(super) fn of(prefix: &str, pairs: &[Pair], sessions: Vec<Session>) -> Vec<Participant> {
    let below = format!("{prefix}/");
    let lock = format!("{below}.lock");
    let record = pairs.iter().find(|pair| pair.key == lock);
    let record = record.and_then(|pair| Record::decode(&pair.value, pair.flags).ok());
    let mut locked: BTreeMap<&SessionId, Vec<&Pair>> = BTreeMap::new();
    for holder in record.iter().flat_map(|record| &record.holders) {
        locked.entry(holder).or_default();
    }
    for pair in pairs.iter().filter(|pair| pair.key == prefix || pair.key.starts_with(&below)) {
        if let Some(session) = &pair.session {
            locked.entry(session).or_default().push(pair);
        }
    }
    let mut sessions: BTreeMap<_, _> =
        sessions.into_iter().map(|session| (session.id.clone(), session)).collect();
    let mut participants: Vec<_> = locked
        .into_iter()
        .map(|(id, keys)| {
            let taken = record.as_ref().map_or(0, |record| record.slots_of(id));
            let contender = format!("{below}{id}");
            let is_contender = keys.iter().any(|pair| pair.key == contender);
            let part = if taken > 0 {
                // Any key tells that a holder lives, as for the guide and for Go's client.
                if keys.iter().any(|pair| pair.key != prefix) { Part::Held } else { Part::Dead }
            } else if is_contender {
                Part::Waiting
            } else {
                Part::Locked
            };
            // What the dead have left is theirs still, although nobody has it locked.
            let own = pairs.iter().find(|pair| pair.key == contender).or(keys.first().copied());
            let entry = own.and_then(|pair| Entry::decode(&pair.value));
            let slots = match part {
                Part::Held | Part::Dead => Some(taken),
                Part::Waiting => Some(entry.as_ref().map_or(1, |entry| entry.slots)),
                Part::Locked => None,
            };
            let said = own.filter(|_| entry.is_none());
            Participant {
                id: id.clone(),
                part,
                slots,
                entry,
                said: said.map(|pair| String::from_utf8_lossy(&pair.value).into_owned()),
                create_index: keys.iter().map(|pair| pair.create_index).min().unwrap_or(u64::MAX),
                keys: keys.iter().map(|pair| pair.key.clone()).collect(),
                session: sessions.remove(id.as_str()),
            }
        })
        .collect();
    participants.sort_by_cached_key(Participant::place);
    participants
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::consul::Behavior;
    use crate::semaphore::record::{LOCK_FLAGS, SEMAPHORE_FLAGS};

    fn pair(key: &str, value: &str, session: &str, create_index: u64) -> Pair {
        Pair {
            key: key.to_owned(),
            value: value.as_bytes().to_vec(),
            flags: 0,
            session: (!session.is_empty()).then(|| session.into()),
            times_locked: 0,
            create_index,
            modify_index: create_index,
        }
    }

    fn session(id: &str) -> Session {
        Session {
            id: id.to_owned(),
            name: "n".into(),
            node: "vm".into(),
            behavior: Behavior::Delete,
            ttl: "30s".into(),
            lock_delay: Duration::ZERO,
            node_checks: Vec::new(),
            service_checks: Vec::new(),
            create_index: 1,
            modify_index: 1,
        }
    }

    fn shown(participants: &[Participant]) -> Vec<(&str, Part, Option<u32>, Option<bool>)> {
        participants.iter().map(|one| (one.id.as_str(), one.part, one.slots, one.is_foreign())).collect()
    }

    fn waiting(priority: i32) -> String {
        format!(r#"{{"slotkeeper":1,"state":"waiting","slots":2,"priority":{priority}}}"#)
    }

    #[test]
    fn holders_then_the_line_then_the_dead() {
        let pairs = [
            pair("p/.lock", r#"{"Limit":4,"Holders":["h","gone","h","foreign","alias"]}"#, "", 9),
            pair("p/h", r#"{"slotkeeper":1,"state":"held","slots":2}"#, "h", 5),
            pair("p/foreign", "db-node-1", "foreign", 6),
            pair("p/by-another-name", "", "alias", 7),
            pair("p/late", &waiting(0), "late", 20),
            pair("p/early", "", "early", 19),
            pair("p/urgent", &waiting(3), "urgent", 21),
            pair("p/left", &waiting(0), "", 3),
            pair("p-2/other", "", "other", 4),
        ];
        let found = of("p", &pairs, ["h", "foreign", "unrelated"].map(session).into());
        assert_eq!(
            shown(&found),
            [
                ("h", Part::Held, Some(2), Some(false)),
                ("foreign", Part::Held, Some(1), Some(true)),
                ("alias", Part::Held, Some(1), Some(true)),
                ("urgent", Part::Waiting, Some(2), Some(false)),
                ("early", Part::Waiting, Some(1), Some(true)),
                ("late", Part::Waiting, Some(2), Some(false)),
                ("gone", Part::Dead, Some(1), None),
            ]
        );
        assert_eq!(found[1].said.as_deref(), Some("db-node-1"));
        assert_eq!(found[0].session, Some(session("h")));
        assert_eq!(found[6].session, None);
    }

    #[test]
    fn the_dead_are_known_by_what_they_left() {
        let left = r#"{"slotkeeper":1,"state":"held","slots":1,"who":{"host":"vm","pid":7}}"#;
        let record = pair("p/.lock", r#"{"Limit":1,"Holders":{"a":true}}"#, "", 9);
        let pairs = [Pair { flags: SEMAPHORE_FLAGS, ..record }, pair("p/a", left, "", 5)];
        let found = of("p", &pairs, vec![session("a")]);
        assert_eq!(shown(&found), [("a", Part::Dead, Some(1), Some(false))]);
        assert_eq!(found[0].entry.as_ref().unwrap().who.pid, Some(7));
        assert!(found[0].session.is_some(), "its contender was deleted and it lives on");
    }

    #[test]
    fn single_key_locks_at_the_prefix_at_its_lock_and_below() {
        let lock = pair("p/.lock", "", "consul-lock", 5);
        let pairs = [
            pair("p", "leader-1", "leader", 4),
            Pair { flags: LOCK_FLAGS, ..lock },
            pair("p/shard/1", "", "shard", 6),
        ];
        let found = of("p", &pairs, Vec::new());
        let keys: Vec<_> = found.iter().map(|one| (one.part, one.keys.join(" "))).collect();
        let expected = ["p", "p/.lock", "p/shard/1"].map(|key| (Part::Locked, key.to_owned()));
        assert_eq!(keys, expected);
    }

    #[test]
    fn what_is_no_semaphore_has_no_holders() {
        let pairs = [pair("p/.lock", "oops", "", 2), pair("p/a", "\x1b[2J", "a", 3)];
        assert_eq!(shown(&of("p", &pairs, Vec::new())), [("a", Part::Waiting, Some(1), Some(true))]);
        assert_eq!(of("p", &[], vec![session("a")]), []);
    }
}
