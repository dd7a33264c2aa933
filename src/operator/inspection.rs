//! What an operator sees of a prefix: its kind, its record and its participants, joined from keys and sessions. Pure.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde::ser::Error as _;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::schema_version::SchemaVersion;
use crate::status::{self, Health};
use slotkeeper_consul::{Indexed, Session};
use slotkeeper_semaphore::contender::{Entry, WaiterState};
use slotkeeper_semaphore::plan::{Membership, MembershipKind};
use slotkeeper_semaphore::record::Form;
use slotkeeper_semaphore::{Contender, Identity, LockKeyState, Pair, SessionId, View};

/// What was found at a prefix, as JSON shows it: no field is ever omitted.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Inspection {
    /// The version of the document.
    pub schema_version: SchemaVersion,
    /// The prefix.
    pub prefix: String,
    /// Its kind and its record.
    #[serde(flatten, serialize_with = "with_nulls")]
    pub found: Found,
    /// The session of the waiter that is next.
    pub next: Option<String>,
    /// The holders, dead ones too, in the record's order; of a lock, its holder.
    pub holders: Vec<Participant>,
    /// The queue, in order.
    pub queue: Vec<Participant>,
    /// Other sessions with a locked key: a single key, or the contender key of an evicted participant that has not noticed.
    pub others: Vec<Participant>,
    /// Contender keys of ended sessions.
    pub leftovers: usize,
    /// What is hidden from the token.
    pub hidden: Hidden,
    /// Rings with other semaphores, once they are sought.
    pub rings: Vec<Ring>,
    /// Time of the read, in UTC, once it is set.
    pub seen_at: String,
    /// What explains an empty result.
    #[serde(skip)]
    pub hint: String,
}

/// What a prefix is, and the record of what coordinates its clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Found {
    /// There is neither the prefix nor `.lock` below it.
    Nothing,
    /// Unknown: the key may be hidden from the token.
    Unknown { key: String },
    /// A semaphore. No fencing token is larger than the index of its last change.
    Semaphore { key: String, form: Form, limit: u32, slots_taken: u32, slots_free: u32, modify_index: u64 },
    /// A single-key lock at the prefix, or at `.lock` below it. `lock_index` is the number of its acquisitions.
    Lock { key: String, modify_index: u64, lock_index: u64 },
    /// Any other key, which slotkeeper does not change, with its content in words.
    Other { key: String, description: String },
}

/// The fields of all kinds, in the order of JSON. Those that a kind does not have are `null`.
fn with_nulls<S: Serializer>(found: &Found, serializer: S) -> Result<S::Ok, S::Error> {
    let fields = "kind key description form limit slots_taken slots_free modify_index lock_index";
    let found = serde_json::to_value(found).map_err(S::Error::custom)?;
    serializer.collect_map(fields.split(' ').map(|name| (name, &found[name])))
}

/// What is hidden from the token, by the rules that show it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Hidden {
    /// Keys below the prefix: live holders may look dead, and waiters may be missing.
    pub keys: Option<String>,
    /// Sessions of participants.
    pub sessions: Option<String>,
}

/// Two clients, each of which waits for a slot that the other holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Ring {
    /// The session of the one that holds a slot here and waits for one of `prefix`.
    pub holder: String,
    /// The session of the one that holds a slot of `prefix` and waits here.
    pub waiter: String,
    /// The other semaphore.
    pub prefix: String,
}

/// A participant's state at a prefix, in the order of display.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ParticipantState {
    /// It has a single key locked: the prefix, `.lock`, or a key below that is no contender key.
    #[default]
    Locked,
    /// `.lock` lists it, and it has a locked key below the prefix.
    Held,
    /// `.lock` lists it, since another client has offered it its slots, which it has not accepted yet. Nothing runs on them.
    Offered,
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

impl ParticipantState {
    /// The state of a session that has a locked key at a semaphore's prefix, or is listed in `.lock`.
    fn of(view: &View, session: &SessionId) -> Self {
        use MembershipKind::{Dead, Holds, Waits};
        let contender = view.contender(session);
        // `.lock` may be hidden and list it.
        let may_hold = view.is_filtered() && view.lock == LockKeyState::Missing;
        match Membership::of(view, session).map(|membership| membership.part) {
            Some(Holds) if view.lives(session).is_none() => Self::Unknown,
            Some(Holds) if contender.and_then(Contender::state) == Some(WaiterState::Offered) => {
                Self::Offered
            }
            Some(Holds) => Self::Held,
            Some(Waits) | None if may_hold && contender.is_some_and(|one| !one.says_waiting()) => {
                Self::Unknown
            }
            Some(Waits) if contender.is_some_and(Contender::is_evicted) => Self::Leaving,
            Some(Waits) => Self::Waiting,
            Some(Dead) => Self::Dead,
            None if contender.is_some() => Self::Removed,
            None => Self::Locked,
        }
    }
}

/// The name of a value without data in JSON, for other texts.
pub fn word(value: &impl Serialize) -> String {
    let value = serde_json::to_value(value).ok();
    value.as_ref().and_then(Value::as_str).map(str::to_owned).unwrap_or_default()
}

/// A session. As JSON it has all fields, which are `null` if Consul does not show it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionRow {
    /// Its id. In a hand-written record this may be any text.
    pub id: String,
    /// The session, if Consul has it and shows it.
    pub found: Option<Session>,
}

impl From<Session> for SessionRow {
    fn from(session: Session) -> Self {
        Self { id: session.id.clone(), found: Some(session) }
    }
}

impl Serialize for SessionRow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let found = self.found.as_ref();
        let fields = json!({
            "session": self.id,
            "found": found.is_some(),
            "name": found.map(|session| &session.name),
            "node": found.map(|session| &session.node),
            "ttl_seconds": found.and_then(|session| session.ttl).map(|ttl| ttl.as_secs_f64()),
            "behavior": found.map(|session| session.behavior),
            "lock_delay_seconds": found.map(|session| session.lock_delay.as_secs_f64()),
            "node_checks": found.map(|session| &session.node_checks),
            "service_checks": found.map(|session| &session.service_checks),
            "create_index": found.map(|session| session.create_index),
        });
        fields.serialize(serializer)
    }
}

/// A session with a role at a prefix, as its keys show it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Participant {
    /// Its session.
    #[serde(flatten)]
    pub session: SessionRow,
    /// Its state.
    pub state: ParticipantState,
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
    /// The time since then, once that is computed ([`Participant::date`]).
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
    /// Its position in the queue, from 1.
    pub position: Option<usize>,
    /// Of a waiter, whether it needs more slots than the limit, or several in a form that cannot express them.
    pub passed_over: Option<bool>,
    /// Whether it was asked for a sign of life, and has not answered: waiters behind it are served first.
    pub asked: bool,
    /// The prefixes of its acquire group.
    pub together: Vec<String>,
    /// Whether the session may exist although Consul does not show it.
    #[serde(skip)]
    pub hidden: bool,
    /// Its place in the queue, and the create index of its first key.
    #[serde(skip)]
    pub order: (Option<usize>, u64),
}

impl Participant {
    /// Its session's id.
    pub fn id(&self) -> &str {
        &self.session.id
    }

    /// Sets the age at that time.
    pub fn date(&mut self, now: SystemTime) {
        self.age_seconds = age(self.since.as_deref(), now);
    }

    /// The same participant with what its contender key says.
    fn described_by(self, entry: Entry) -> Self {
        let is_dead = self.state == ParticipantState::Dead;
        Self {
            slot_indexes: if is_dead { Vec::new() } else { entry.indexes },
            priority: Some(entry.priority),
            since: Some(entry.since).filter(|since| status::date(since).is_some()),
            who: Some(entry.who).filter(|who| *who != Identity::default()),
            body: entry.body,
            evicted_by: entry.evicted_by,
            asked: entry.asked,
            together: entry.together,
            ..self
        }
    }
}

/// Whole seconds since a participant's own time stamp. Its clock may be ahead of this one.
pub fn age(since: Option<&str>, now: SystemTime) -> Option<u64> {
    let since = status::date(since?)?;
    Some(now.duration_since(since).map_or(0, |age| age.as_secs()))
}

impl Inspection {
    /// All participants: the holders, the queue in order, and the others.
    pub fn all(&self) -> impl Iterator<Item = &Participant> {
        self.holders.iter().chain(&self.queue).chain(&self.others)
    }

    /// All participants by their states, the queue in order.
    pub fn participants(&self) -> Vec<&Participant> {
        let mut all: Vec<_> = self.all().collect();
        all.sort_by_key(|one| (one.state, one.order, one.id()));
        all
    }
}

/// The participants: each session that is in the view's record or has one of the pairs locked. The pairs are those at and below the
/// view's prefix.
pub(super) fn participants(
    view: &View,
    pairs: &[Pair],
    shown: &Indexed<Vec<Session>>,
) -> BTreeMap<SessionId, Participant> {
    use ParticipantState::{Dead, Held, Leaving, Locked, Offered, Removed, Unknown, Waiting};
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
    let sessions: BTreeMap<_, _> = shown.value.iter().map(|session| (session.id.as_str(), session)).collect();
    // Consul before 1.11 hides sessions without a notice. Each locked key has a session, so a list without any is hidden.
    let is_hidden =
        |(id, keys): (&&SessionId, &Vec<_>)| !keys.is_empty() && !sessions.contains_key(id.as_str());
    let hides = shown.filtered || sessions.is_empty() || locked.iter().any(is_hidden);
    let participant = |(id, keys): (&SessionId, Vec<&Pair>)| {
        let taken = record.map_or(0, |record| record.slots_of(id));
        let state = ParticipantState::of(view, id);
        // A dead holder's key still describes it, although it is not locked.
        let key = format!("{below}{id}");
        let own = pairs.iter().find(|pair| pair.key == key).or(keys.first().copied());
        let entry = own.and_then(|pair| Entry::decode(&pair.value));
        let session = sessions.get(id.as_str());
        let one = Participant {
            state,
            health: match session {
                _ if state == Dead => Health::Dead,
                Some(_) => Health::Live,
                None if hides => Health::Unknown,
                None => Health::Dead,
            },
            slots: match state {
                Unknown if keys.is_empty() => Some(taken),
                Held | Offered | Dead => Some(taken),
                Waiting | Leaving | Removed | Unknown => Some(entry.as_ref().map_or(1, |entry| entry.slots)),
                Locked => None,
            },
            foreign: own.map(|_| entry.is_none()),
            body: own
                .map(|pair| String::from_utf8_lossy(&pair.value).into_owned())
                .filter(|body| !body.is_empty()),
            keys: keys.iter().map(|pair| pair.key.clone()).collect(),
            order: (None, keys.iter().map(|pair| pair.create_index).min().unwrap_or(u64::MAX)),
            hidden: session.is_none() && hides,
            session: SessionRow { id: id.to_string(), found: session.map(|session| (*session).clone()) },
            ..Participant::default()
        };
        (id.clone(), if let Some(entry) = entry { one.described_by(entry) } else { one })
    };
    locked.into_iter().map(participant).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::PrefixSnapshot;
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
            ttl: Some(Duration::from_secs(30)),
            lock_delay: Duration::ZERO,
            node_checks: Vec::new(),
            service_checks: Vec::new(),
            create_index: 1,
        }
    }

    fn of(prefix: &str, pairs: &[Pair], sessions: Vec<Session>) -> Vec<Participant> {
        let (at_prefix, pairs): (Vec<_>, Vec<_>) = pairs.iter().cloned().partition(|pair| pair.key == prefix);
        let below = pairs.into_iter().filter(|pair| pair.key.starts_with(&format!("{prefix}/"))).collect();
        let listing = Listing { pairs: below, index: 500, filtered: false };
        let sessions = Indexed { index: 500, filtered: false, value: sessions };
        let snapshot = PrefixSnapshot::of(prefix, at_prefix.into_iter().next(), listing, sessions);
        snapshot.inspect().participants().into_iter().cloned().collect()
    }

    fn shown(participants: &[Participant]) -> Vec<(&str, ParticipantState, Option<u32>, Option<bool>)> {
        participants.iter().map(|one| (one.id(), one.state, one.slots, one.foreign)).collect()
    }

    fn waiting(priority: i32) -> String {
        format!(r#"{{"slotkeeper":1,"state":"waiting","slots":2,"priority":{priority}}}"#)
    }

    #[test]
    fn holders_then_the_queue_then_the_dead() {
        let asked = waiting(9).replace('}', r#","evicted_by":"root@vm"}"#);
        let pairs = [
            pair("p/.lock", r#"{"Limit":5,"Holders":["h","offered","gone","h","foreign","alias"]}"#, "", 9),
            pair("p/h", r#"{"slotkeeper":1,"state":"held","slots":2}"#, "h", 5),
            pair("p/foreign", "db-node-1", "foreign", 6),
            pair("p/by-another-name", "", "alias", 7),
            pair("p/late", &waiting(0), "late", 20),
            pair("p/early", "", "early", 19),
            pair("p/urgent", &waiting(3), "urgent", 21),
            pair("p/left", &waiting(0), "", 3),
            pair("p/out", r#"{"slotkeeper":1,"state":"held","slots":1}"#, "out", 2),
            pair("p/asked", &asked, "asked", 1),
            pair("p/offered", r#"{"slotkeeper":1,"state":"offered","slots":1}"#, "offered", 8),
            pair("p-2/other", "", "other", 4),
        ];
        let found = of("p", &pairs, ["h", "foreign", "unrelated"].map(session).into());
        assert_eq!(
            shown(&found),
            [
                ("h", ParticipantState::Held, Some(2), Some(false)),
                ("foreign", ParticipantState::Held, Some(1), Some(true)),
                ("alias", ParticipantState::Held, Some(1), Some(true)),
                ("offered", ParticipantState::Offered, Some(1), Some(false)),
                ("urgent", ParticipantState::Waiting, Some(2), Some(false)),
                ("early", ParticipantState::Waiting, Some(1), Some(true)),
                ("late", ParticipantState::Waiting, Some(2), Some(false)),
                ("asked", ParticipantState::Leaving, Some(2), Some(false)),
                ("out", ParticipantState::Removed, Some(1), Some(false)),
                ("gone", ParticipantState::Dead, Some(1), None),
            ]
        );
        assert_eq!(found[1].body.as_deref(), Some("db-node-1"));
        assert_eq!(found[0].session, SessionRow::from(session("h")));
        assert_eq!((&found[9].session.found, found[9].health), (&None, Health::Dead));
    }

    #[test]
    fn a_dead_holder_is_described_by_its_old_key() {
        let left = r#"{"slotkeeper":1,"state":"held","slots":1,"who":{"host":"vm","pid":7}}"#;
        let record = pair("p/.lock", r#"{"Limit":1,"Holders":{"a":true}}"#, "", 9);
        let pairs = [Pair { flags: SEMAPHORE_FLAGS, ..record }, pair("p/a", left, "", 5)];
        let found = of("p", &pairs, vec![session("a")]);
        assert_eq!(shown(&found), [("a", ParticipantState::Dead, Some(1), Some(false))]);
        assert_eq!(found[0].who.as_ref().unwrap().pid, Some(7));
        assert!(found[0].session.found.is_some(), "its contender was deleted and it lives on");
    }

    /// That key is no contender key of the semaphore.
    #[test]
    fn a_holder_with_only_the_prefix_itself_locked_is_dead() {
        let pairs = [pair("p", "", "a", 2), pair("p/.lock", r#"{"Limit":1,"Holders":["a"]}"#, "", 3)];
        let found = of("p", &pairs, vec![session("a")]);
        assert_eq!(shown(&found), [("a", ParticipantState::Dead, Some(1), Some(true))]);
        assert_eq!(found[0].keys, ["p"]);
    }

    #[test]
    fn a_session_that_is_nowhere_and_has_nothing_locked_has_ended_unless_others_or_all_are_hidden() {
        let record =
            |holders: &str| pair("p/.lock", &format!(r#"{{"Limit":2,"Holders":[{holders}]}}"#), "", 9);
        let health = |pairs: &[Pair], sessions: &[&str]| -> Vec<_> {
            let found = of("p", pairs, sessions.iter().copied().map(session).collect());
            found.iter().map(|one| (one.health, one.hidden)).collect()
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
            let found = PrefixSnapshot::of("p", None, listing(keys), shown).inspect();
            found.participants().iter().map(|one| (one.id().to_owned(), one.state, one.health)).collect()
        };
        let row = |id: &str, part, health| (id.to_owned(), part, health);
        let a = row("a", ParticipantState::Held, Health::Live);
        let w = row("w", ParticipantState::Waiting, Health::Live);
        let dead = row("hidden", ParticipantState::Dead, Health::Dead);
        let unknown = |health| row("hidden", ParticipantState::Unknown, health);
        assert_eq!(seen(false, false), [a.clone(), w.clone(), dead.clone()]);
        assert_eq!(seen(false, true), [a.clone(), w.clone(), dead]);
        assert_eq!(seen(true, false), [a.clone(), w.clone(), unknown(Health::Dead)]);
        assert_eq!(seen(true, true), [a, w, unknown(Health::Unknown)]);
        // Without `.lock` the holders are unknown; a contender key that says it waits is a waiter's.
        let held = r#"{"slotkeeper":1,"state":"held","slots":2}"#;
        let pairs = [pair("p/a", "", "a", 5), pair("p/h", held, "h", 6), pair("p/w", &waiting(0), "w", 7)];
        let listing = Listing { pairs: pairs.to_vec(), index: 500, filtered: true };
        let none = Indexed { index: 500, filtered: false, value: Vec::new() };
        let found = PrefixSnapshot::of("p", None, listing, none).inspect();
        let found: Vec<_> = found.participants().into_iter().cloned().collect();
        assert_eq!(
            shown(&found),
            [
                ("w", ParticipantState::Waiting, Some(2), Some(false)),
                ("h", ParticipantState::Unknown, Some(2), Some(false)),
                ("a", ParticipantState::Unknown, Some(1), Some(true)),
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
        let keys: Vec<_> = found.iter().map(|one| (one.state, one.keys.join(" "))).collect();
        let expected = ["p", "p/.lock", "p/shard/1"].map(|key| (ParticipantState::Locked, key.to_owned()));
        assert_eq!(keys, expected);
    }

    #[test]
    fn what_is_no_semaphore_has_no_holders() {
        let pairs = [pair("p/.lock", "oops", "", 2), pair("p/a", "\x1b[2J", "a", 3)];
        assert_eq!(
            shown(&of("p", &pairs, Vec::new())),
            [("a", ParticipantState::Waiting, Some(1), Some(true))]
        );
        assert_eq!(of("p", &[], vec![session("a")]), []);
    }
}
