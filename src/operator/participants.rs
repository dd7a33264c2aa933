//! The participants at a prefix, derived from its keys and Consul's sessions. Pure.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde::Serialize;

use crate::status::{self, Health};
use slotkeeper_consul::{Indexed, Session};
use slotkeeper_semaphore::contender::{Entry, WaiterState};
use slotkeeper_semaphore::plan::{self, Membership};
use slotkeeper_semaphore::{Contender, Identity, LockKeyState, Pair, SessionId, View};

/// A session's state at a prefix, in the order of display.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// It has a single key locked: the prefix, `.lock`, or a key below that is no contender key.
    Locked,
    /// `.lock` lists it, and it has a locked key below the prefix.
    Held,
    /// It is in the queue.
    Waiting,
    /// It was in the queue, was evicted, and has not left yet.
    Leaving,
    /// It was removed from `.lock`, and has not noticed yet.
    Removed,
    /// `.lock` lists it, and it has no locked key below the prefix: its slots are reclaimed soon.
    Dead,
    /// Unknown, since a key is hidden from the token: whether a session that `.lock` lists is alive, or, if `.lock` is hidden, whether
    /// a session with a key holds a slot.
    Unknown,
}

impl Part {
    /// The state of a session that has a locked key at a semaphore's prefix, or is listed in `.lock`.
    fn of(view: &View, session: &SessionId) -> Self {
        let contender = view.contender(session);
        // `.lock` may be hidden and list it.
        let may_hold = view.is_filtered() && view.lock == LockKeyState::Missing;
        match Membership::of(view, session).map(|membership| membership.part) {
            Some(plan::MembershipKind::Holds) if view.lives(session).is_none() => Self::Unknown,
            Some(plan::MembershipKind::Holds) => Self::Held,
            Some(plan::MembershipKind::Waits) | None
                if may_hold && contender.is_some_and(|one| !one.says_waiting()) =>
            {
                Self::Unknown
            }
            Some(plan::MembershipKind::Waits) if contender.is_some_and(Contender::is_evicted) => {
                Self::Leaving
            }
            Some(plan::MembershipKind::Waits) => Self::Waiting,
            Some(plan::MembershipKind::Dead) => Self::Dead,
            None if contender.is_some() => Self::Removed,
            None => Self::Locked,
        }
    }

    /// The name in JSON; tables show it with blanks.
    pub fn name(self) -> &'static str {
        match self {
            Self::Locked => "locked",
            Self::Held => "held",
            Self::Waiting => "waiting",
            Self::Leaving => "leaving",
            Self::Removed => "removed",
            Self::Dead => "dead",
            Self::Unknown => "unknown",
        }
    }
}

/// A session with a role at a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Participant {
    /// Its id in the keys. In a hand-written record this may be any text.
    pub id: SessionId,
    /// Its role, as its keys show it.
    pub role: Role,
    /// The prefixes of its acquire group.
    pub together: Vec<String>,
    /// The session, if Consul shows it.
    pub session: Option<Session>,
    /// Whether the session may exist although Consul does not show it.
    pub hidden: bool,
    /// The create index of its first key.
    create_index: u64,
}

/// The role of a session at a prefix, as JSON shows it: no field is omitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Role {
    /// Its state.
    pub state: Part,
    /// Its health.
    pub health: Health,
    /// The slots that it holds or waits for; `None` for a single-key lock.
    pub slots: Option<u32>,
    /// The slots that its key names. Those of a dead holder may belong to another holder now, and are left out.
    pub slot_indexes: Vec<u32>,
    /// Its priority in the queue.
    pub priority: Option<i32>,
    /// Since when it holds or waits by its own time stamp, in UTC.
    pub since: Option<String>,
    /// The time since then, once that is computed ([`Role::at`]).
    pub age_seconds: Option<u64>,
    /// Its identity as it wrote it.
    pub who: Option<Identity>,
    /// The text for operators in its key; of a foreign client, the key's whole content.
    pub body: Option<String>,
    /// Whether it is a foreign client; `None` if it has no key that shows it.
    pub foreign: Option<bool>,
    /// The operator who evicts it.
    pub evicted_by: Option<String>,
    /// Its locked keys.
    pub keys: Vec<String>,
}

impl Role {
    /// The role of a client that has written `entry` or, as a foreign client, `said`.
    fn of(
        (state, health): (Part, Health),
        slots: Option<u32>,
        entry: Option<Entry>,
        said: Option<&Pair>,
        keys: &[&Pair],
    ) -> Self {
        let keys = keys.iter().map(|pair| pair.key.clone()).collect();
        let Some(entry) = entry else {
            let body = said.map(|pair| String::from_utf8_lossy(&pair.value).into_owned());
            return Self {
                state,
                health,
                slots,
                slot_indexes: Vec::new(),
                priority: None,
                since: None,
                age_seconds: None,
                who: None,
                body: body.filter(|body| !body.is_empty()),
                foreign: said.map(|_| true),
                evicted_by: None,
                keys,
            };
        };
        // A new holder may not have written its key yet, whose date is then that of its wait.
        let is_of_wait = state == Part::Held && entry.state == WaiterState::Waiting;
        Self {
            state,
            health,
            slots,
            slot_indexes: if state == Part::Dead { Vec::new() } else { entry.indexes },
            priority: Some(entry.priority),
            since: Some(entry.since).filter(|since| !is_of_wait && status::date(since).is_some()),
            age_seconds: None,
            who: Some(entry.who).filter(|who| *who != Identity::default()),
            body: entry.body,
            foreign: Some(false),
            evicted_by: entry.evicted_by,
            keys,
        }
    }

    /// The role with its age at that time. The participant's clock may be ahead of this one.
    #[must_use]
    pub fn at(self, now: SystemTime) -> Self {
        let since = self.since.as_deref().and_then(status::date);
        let age = |since| now.duration_since(since).map_or(0, |age| age.as_secs());
        Self { age_seconds: since.map(age), ..self }
    }
}

/// The participants: each session that is in the view's record or has one of the pairs locked. The pairs are those at and below the
/// view's prefix. Waiters are in the order of the queue.
pub(super) fn of(view: &View, pairs: &[Pair], shown: &Indexed<Vec<Session>>) -> Vec<Participant> {
    let prefix = view.prefix();
    let below = format!("{prefix}/");
    let record = view.record();
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
        shown.value.iter().map(|session| (session.id.clone(), session.clone())).collect();
    // Consul before 1.11 hides sessions without a notice. Each locked key has a session, so a list without any is hidden.
    let is_hidden =
        |(id, keys): (&&SessionId, &Vec<_>)| !keys.is_empty() && !sessions.contains_key(id.as_str());
    let hides = shown.filtered || sessions.is_empty() || locked.iter().any(is_hidden);
    let mut participants: Vec<_> = locked
        .into_iter()
        .map(|(id, keys)| {
            let taken = record.map_or(0, |record| record.slots_of(id));
            let part = Part::of(view, id);
            // A dead holder's key still describes it, although it is not locked.
            let key = format!("{below}{id}");
            let own = pairs.iter().find(|pair| pair.key == key).or(keys.first().copied());
            let entry = own.and_then(|pair| Entry::decode(&pair.value));
            let slots = match part {
                Part::Unknown if keys.is_empty() => Some(taken),
                Part::Held | Part::Dead => Some(taken),
                Part::Waiting | Part::Leaving | Part::Removed | Part::Unknown => {
                    Some(entry.as_ref().map_or(1, |entry| entry.slots))
                }
                Part::Locked => None,
            };
            let session = sessions.remove(id.as_str());
            let health = match session {
                _ if part == Part::Dead => Health::Dead,
                Some(_) => Health::Live,
                None if hides => Health::Unknown,
                None => Health::Dead,
            };
            Participant {
                id: id.clone(),
                together: entry.as_ref().map(|entry| entry.together.clone()).unwrap_or_default(),
                role: Role::of((part, health), slots, entry, own, &keys),
                create_index: keys.iter().map(|pair| pair.create_index).min().unwrap_or(u64::MAX),
                hidden: session.is_none() && hides,
                session,
            }
        })
        .collect();
    let line = plan::queue(view).into_iter().enumerate();
    let line: BTreeMap<SessionId, usize> = line.map(|(place, one)| (one.session, place)).collect();
    participants.sort_by_cached_key(|one| {
        (one.role.state, line.get(&one.id).copied(), one.create_index, one.id.clone())
    });
    participants
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use slotkeeper_consul::Behavior;
    use slotkeeper_semaphore::Listing;
    use slotkeeper_semaphore::record::{LOCK_FLAGS, SEMAPHORE_FLAGS};

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

    fn of(prefix: &str, pairs: &[Pair], sessions: Vec<Session>) -> Vec<Participant> {
        let below = pairs.iter().filter(|pair| pair.key.starts_with(&format!("{prefix}/"))).cloned();
        let sessions = Indexed { index: 500, filtered: false, value: sessions };
        super::of(&View::new(prefix, below.collect(), 500), pairs, &sessions)
    }

    fn shown(participants: &[Participant]) -> Vec<(&str, Part, Option<u32>, Option<bool>)> {
        participants
            .iter()
            .map(|one| (one.id.as_str(), one.role.state, one.role.slots, one.role.foreign))
            .collect()
    }

    fn waiting(priority: i32) -> String {
        format!(r#"{{"slotkeeper":1,"state":"waiting","slots":2,"priority":{priority}}}"#)
    }

    #[test]
    fn holders_then_the_queue_then_the_dead() {
        let asked = waiting(9).replace('}', r#","evicted_by":"root@vm"}"#);
        let pairs = [
            pair("p/.lock", r#"{"Limit":4,"Holders":["h","gone","h","foreign","alias"]}"#, "", 9),
            pair("p/h", r#"{"slotkeeper":1,"state":"held","slots":2}"#, "h", 5),
            pair("p/foreign", "db-node-1", "foreign", 6),
            pair("p/by-another-name", "", "alias", 7),
            pair("p/late", &waiting(0), "late", 20),
            pair("p/early", "", "early", 19),
            pair("p/urgent", &waiting(3), "urgent", 21),
            pair("p/left", &waiting(0), "", 3),
            pair("p/out", r#"{"slotkeeper":1,"state":"held","slots":1}"#, "out", 2),
            pair("p/asked", &asked, "asked", 1),
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
                ("asked", Part::Leaving, Some(2), Some(false)),
                ("out", Part::Removed, Some(1), Some(false)),
                ("gone", Part::Dead, Some(1), None),
            ]
        );
        assert_eq!(found[1].role.body.as_deref(), Some("db-node-1"));
        assert_eq!(found[0].session, Some(session("h")));
        assert_eq!((&found[8].session, found[8].role.health), (&None, Health::Dead));
    }

    #[test]
    fn a_dead_holder_is_described_by_its_old_key() {
        let left = r#"{"slotkeeper":1,"state":"held","slots":1,"who":{"host":"vm","pid":7}}"#;
        let record = pair("p/.lock", r#"{"Limit":1,"Holders":{"a":true}}"#, "", 9);
        let pairs = [Pair { flags: SEMAPHORE_FLAGS, ..record }, pair("p/a", left, "", 5)];
        let found = of("p", &pairs, vec![session("a")]);
        assert_eq!(shown(&found), [("a", Part::Dead, Some(1), Some(false))]);
        assert_eq!(found[0].role.who.as_ref().unwrap().pid, Some(7));
        assert!(found[0].session.is_some(), "its contender was deleted and it lives on");
    }

    /// That key is no contender key of the semaphore.
    #[test]
    fn a_holder_with_only_the_prefix_itself_locked_is_dead() {
        let pairs = [pair("p", "", "a", 2), pair("p/.lock", r#"{"Limit":1,"Holders":["a"]}"#, "", 3)];
        let found = of("p", &pairs, vec![session("a")]);
        assert_eq!(shown(&found), [("a", Part::Dead, Some(1), Some(true))]);
        assert_eq!(found[0].role.keys, ["p"]);
    }

    #[test]
    fn a_session_that_is_nowhere_and_has_nothing_locked_has_ended_unless_others_or_all_are_hidden() {
        let record =
            |holders: &str| pair("p/.lock", &format!(r#"{{"Limit":2,"Holders":[{holders}]}}"#), "", 9);
        let health = |pairs: &[Pair], sessions: &[&str]| -> Vec<_> {
            let found = of("p", pairs, sessions.iter().copied().map(session).collect());
            found.iter().map(|one| (one.role.health, one.hidden)).collect()
        };
        assert_eq!(health(&[record(r#""gone""#)], &["elsewhere"]), [(Health::Dead, false)]);
        assert_eq!(health(&[record(r#""gone""#)], &[]), [(Health::Dead, true)], "it may see none at all");
        let two = [record(r#""gone","a""#), pair("p/a", "", "a", 5)];
        assert_eq!(health(&two, &["a"]), [(Health::Live, false), (Health::Dead, false)]);
        assert_eq!(health(&two, &[]), [(Health::Unknown, true), (Health::Dead, true)]);
    }

    #[test]
    fn what_consul_says_that_it_hides_is_unknown() {
        let lock = r#"{"Limit":3,"Holders":["hidden","a"]}"#;
        let pairs = [pair("p/.lock", lock, "", 9), pair("p/a", "", "a", 5), pair("p/w", "", "w", 6)];
        let listing = |filtered| Listing { pairs: pairs.to_vec(), index: 500, filtered };
        let seen = |keys, sessions| -> Vec<_> {
            let shown = Indexed { index: 500, filtered: sessions, value: vec![session("a"), session("w")] };
            let found = super::of(&View::of_listing("p", listing(keys)), &pairs, &shown);
            found.iter().map(|one| (one.id.to_string(), one.role.state, one.role.health)).collect()
        };
        let row = |id: &str, part, health| (id.to_owned(), part, health);
        let a = row("a", Part::Held, Health::Live);
        let w = row("w", Part::Waiting, Health::Live);
        let dead = row("hidden", Part::Dead, Health::Dead);
        let unknown = |health| row("hidden", Part::Unknown, health);
        assert_eq!(seen(false, false), [a.clone(), w.clone(), dead.clone()]);
        assert_eq!(seen(false, true), [a.clone(), w.clone(), dead]);
        assert_eq!(seen(true, false), [a.clone(), w.clone(), unknown(Health::Dead)]);
        assert_eq!(seen(true, true), [a, w, unknown(Health::Unknown)]);
        // Without `.lock` the holders are unknown; a contender key that says it waits is a waiter's.
        let held = r#"{"slotkeeper":1,"state":"held","slots":2}"#;
        let pairs = [pair("p/a", "", "a", 5), pair("p/h", held, "h", 6), pair("p/w", &waiting(0), "w", 7)];
        let listing = Listing { pairs: pairs.to_vec(), index: 500, filtered: true };
        let none = Indexed { index: 500, filtered: false, value: Vec::new() };
        let found = super::of(&View::of_listing("p", listing), &pairs, &none);
        assert_eq!(
            shown(&found),
            [
                ("w", Part::Waiting, Some(2), Some(false)),
                ("h", Part::Unknown, Some(2), Some(false)),
                ("a", Part::Unknown, Some(1), Some(true)),
            ]
        );
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
        let keys: Vec<_> = found.iter().map(|one| (one.role.state, one.role.keys.join(" "))).collect();
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
