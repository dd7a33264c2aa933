//! What was last seen of a semaphore: `.lock` and the contenders, with their indexes.

use std::collections::BTreeSet;

use super::contender::{Entry, Standing};
use super::record::{NotASemaphore, Record};
use super::{Op, SessionId};

/// The last part of the coordinating key.
const LOCK: &str = ".lock";

/// One key as Consul lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The full key.
    pub key: String,
    /// Its value, decoded from base64.
    pub value: Vec<u8>,
    /// Its flags.
    pub flags: u64,
    /// The session that has it locked.
    pub session: Option<SessionId>,
    /// The index of the write that created it.
    pub create_index: u64,
    /// The index of the last write that changed it.
    pub modify_index: u64,
}

/// What lies under `<prefix>/.lock`.
#[derive(Clone, Debug, PartialEq)]
pub enum Lock {
    /// Nothing: whoever acts first creates it.
    Missing,
    /// A semaphore's record.
    Record {
        /// The decoded record.
        record: Record,
        /// The index of its last change, for check-and-set and as the fencing token of whoever that change let in.
        index: u64,
    },
    /// Something else, which is left alone.
    Conflict(NotASemaphore),
}

/// A live contender: a key under the prefix that a session has locked.
#[derive(Clone, Debug, PartialEq)]
pub struct Contender {
    /// Its session.
    pub session: SessionId,
    /// Its place in line among its priority.
    pub create_index: u64,
    /// Our decoded value; `None` for another client's.
    pub entry: Option<Entry>,
}

/// An entry of ours whose session has ended but whose key has stayed (session behaviour `release`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// The full key.
    pub key: String,
    /// The index of its last change, for a guarded delete.
    pub index: u64,
}

/// A semaphore as it stood at one index.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    prefix: String,
    /// The index that a blocking query goes on from.
    pub index: u64,
    /// The coordinating key.
    pub lock: Lock,
    /// The live contenders under their own session's name, in order of arrival.
    pub contenders: Vec<Contender>,
    /// Entries of ours to be swept up.
    pub leftovers: Vec<Leftover>,
    /// Every session on any listed key. The guide and Go's client take a holder for alive by these, whatever its key
    /// is called, so we do too.
    alive: BTreeSet<SessionId>,
}

impl View {
    /// Makes a view of a listing of `<prefix>/`. Keys that do not lie there are passed over: `<prefix>-2/…` belongs to
    /// another semaphore.
    pub fn new(prefix: &str, pairs: Vec<Pair>, index: u64) -> Self {
        let mut view = Self {
            prefix: prefix.to_owned(),
            index,
            lock: Lock::Missing,
            contenders: Vec::new(),
            leftovers: Vec::new(),
            alive: BTreeSet::new(),
        };
        for pair in pairs {
            view.add(pair);
        }
        view.sort();
        view
    }

    /// The key of the record.
    pub fn lock_key(&self) -> String {
        format!("{}/{LOCK}", self.prefix)
    }

    /// The key of a session's contender entry.
    pub fn contender_key(&self, session: &SessionId) -> String {
        format!("{}/{session}", self.prefix)
    }

    /// The record, where there is one.
    pub fn record(&self) -> Option<&Record> {
        match &self.lock {
            Lock::Record { record, .. } => Some(record),
            Lock::Missing | Lock::Conflict(_) => None,
        }
    }

    /// The index for a check-and-set of `.lock`; 0 creates it.
    pub fn lock_index(&self) -> u64 {
        match &self.lock {
            Lock::Record { index, .. } => *index,
            Lock::Missing | Lock::Conflict(_) => 0,
        }
    }

    /// A session's own contender entry, where it still has it.
    pub fn contender(&self, session: &SessionId) -> Option<&Contender> {
        self.contenders.iter().find(|contender| contender.session == *session)
    }

    /// Whether the session has any key under the prefix.
    pub fn is_alive(&self, session: &SessionId) -> bool {
        self.alive.contains(session)
    }

    /// Live contenders that are not in `.lock`, in the order in which slotkeeper serves: priority, then arrival.
    pub fn waiters(&self) -> Vec<&Contender> {
        let holds = |session| self.record().is_some_and(|record| record.slots_of(session) > 0);
        let mut waiters: Vec<_> = self.contenders.iter().filter(|one| !holds(&one.session)).collect();
        waiters.sort_by_key(|one| {
            let priority = one.entry.as_ref().map_or(0, |entry| entry.priority);
            (std::cmp::Reverse(priority), one.create_index)
        });
        waiters
    }

    /// A session's place among the [`Self::waiters`], from 1.
    pub fn position(&self, session: &SessionId) -> Option<u32> {
        let place = self.waiters().iter().position(|waiter| waiter.session == *session)?;
        Some(u32::try_from(place).unwrap_or(u32::MAX).saturating_add(1))
    }

    /// Brings the view to where a transaction that was committed at `index` has taken it, without a read.
    pub fn apply(&mut self, ops: &[Op], index: u64) {
        for op in ops {
            match op {
                Op::Lock { key, value, flags, session } => {
                    let contender = self.contender(session);
                    let create_index = contender.map_or(index, |contender| contender.create_index);
                    self.contenders.retain(|contender| contender.session != *session);
                    self.add(Pair {
                        key: key.clone(),
                        value: value.clone(),
                        flags: *flags,
                        session: Some(session.clone()),
                        create_index,
                        modify_index: index,
                    });
                }
                Op::Cas { key, value, flags, .. } => self.add(Pair {
                    key: key.clone(),
                    value: value.clone(),
                    flags: *flags,
                    session: None,
                    create_index: index,
                    modify_index: index,
                }),
                Op::Delete { key } | Op::DeleteCas { key, .. } => {
                    let gone = key.strip_prefix(&self.prefix).and_then(|key| key.strip_prefix('/'));
                    self.contenders.retain(|contender| Some(contender.session.as_str()) != gone);
                    self.alive.retain(|session| Some(session.as_str()) != gone);
                    self.leftovers.retain(|leftover| leftover.key != *key);
                }
            }
        }
        self.sort();
    }

    fn add(&mut self, pair: Pair) {
        let Some(name) = pair.key.strip_prefix(&self.prefix).and_then(|key| key.strip_prefix('/')) else {
            return;
        };
        if name == LOCK {
            self.lock = match Record::decode(&pair.value, pair.flags) {
                Ok(record) => Lock::Record { record, index: pair.modify_index },
                Err(conflict) => Lock::Conflict(conflict),
            };
        }
        let entry = Entry::decode(&pair.value);
        match pair.session {
            Some(session) => {
                if name == session.as_str() {
                    let create_index = pair.create_index;
                    self.contenders.push(Contender { session: session.clone(), create_index, entry });
                }
                self.alive.insert(session);
            }
            None if entry.is_some() => {
                self.leftovers.push(Leftover { key: pair.key, index: pair.modify_index });
            }
            None => {}
        }
    }

    fn sort(&mut self) {
        self.contenders.sort_by_key(|contender| contender.create_index);
    }
}

impl Contender {
    /// Whether its own value says that it holds; another client's says nothing.
    pub fn says_held(&self) -> bool {
        self.entry.as_ref().is_some_and(|entry| entry.state == Standing::Held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::semaphore::contender::Identity;

    fn pair(key: &str, value: &[u8], session: Option<&str>, index: u64) -> Pair {
        Pair {
            key: key.into(),
            value: value.into(),
            flags: 0,
            session: session.map(SessionId::from),
            create_index: index,
            modify_index: index,
        }
    }

    fn entry(priority: i32) -> Vec<u8> {
        Entry::new(Standing::Waiting, 1, priority, String::new(), Identity::default()).encode()
    }

    #[test]
    fn sibling_prefixes_are_not_ours() {
        let lock = br#"{"Limit":1,"Holders":[]}"#;
        let pairs = vec![pair("p-2/.lock", lock, None, 4), pair("p-2/x", b"", Some("x"), 5)];
        let view = View::new("p", pairs, 5);
        assert_eq!((&view.lock, view.contenders.len()), (&Lock::Missing, 0));
        assert!(!view.is_alive(&"x".into()));
    }

    #[test]
    fn any_locked_key_keeps_its_session_alive_but_only_its_own_makes_a_contender() {
        let view = View::new("p", vec![pair("p/other-name", b"", Some("x"), 5)], 5);
        assert!(view.is_alive(&"x".into()));
        assert_eq!(view.contender(&"x".into()), None);
    }

    #[test]
    fn waiters_stand_by_priority_then_arrival_and_holders_do_not() {
        let pairs = vec![
            pair("p/.lock", br#"{"Limit":1,"Holders":["h"]}"#, None, 9),
            pair("p/h", b"", Some("h"), 1),
            pair("p/late", &entry(0), Some("late"), 8),
            pair("p/early", &entry(0), Some("early"), 2),
            pair("p/urgent", &entry(5), Some("urgent"), 9),
        ];
        let view = View::new("p", pairs, 9);
        let order: Vec<_> = view.waiters().iter().map(|one| one.session.as_str()).collect();
        assert_eq!(order, ["urgent", "early", "late"]);
    }

    #[test]
    fn only_entries_of_ours_are_swept_up() {
        let pairs = vec![pair("p/gone", &entry(0), None, 3), pair("p/note", b"a note", None, 4)];
        let view = View::new("p", pairs, 4);
        assert_eq!(view.leftovers, [Leftover { key: "p/gone".into(), index: 3 }]);
    }

    #[test]
    fn a_committed_transaction_moves_the_view() {
        let mut view = View::new("p", Vec::new(), 1);
        let me = SessionId::from("me");
        let lock = Op::Lock { key: "p/me".into(), value: entry(0), flags: 0, session: me.clone() };
        let cas = |holders: &str, index| Op::Cas {
            key: "p/.lock".into(),
            value: format!(r#"{{"Limit":1,"Holders":[{holders}]}}"#).into_bytes(),
            flags: 0,
            index,
        };
        view.apply(&[lock, cas("\"me\"", 0)], 7);
        assert_eq!((view.lock_index(), view.record().unwrap().slots_of(&me)), (7, 1));
        assert_eq!(view.contender(&me).unwrap().create_index, 7);
        view.apply(&[cas("", 7), Op::Delete { key: "p/me".into() }], 8);
        assert_eq!((view.lock_index(), view.record().unwrap().taken()), (8, 0));
        assert!(view.contender(&me).is_none() && !view.is_alive(&me));
    }
}
