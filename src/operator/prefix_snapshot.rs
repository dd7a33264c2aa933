//! A snapshot of a prefix for an operator: the keys and their sessions, read once or after each change.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::participants::{self, Participant};
use super::rings::Ring;
use super::{Error, Part, sessions};
use crate::bridge;
use slotkeeper_consul::{Client, Indexed, Read, Session};
use slotkeeper_semaphore::plan::{self, Queued};
use slotkeeper_semaphore::{
    Failure, FailureKind, Listing, LockKeyState, NotASemaphore, Pair, Record, SessionId, SingleKeyLock, View,
    printable,
};

/// The longest wait of a watch before it reads anyway. Within this time it notices what no key below the prefix shows: the end of a
/// dead holder's session, and a new lock at the prefix itself.
pub const WAIT: Duration = Duration::from_secs(15);

/// The rule that lets a token read all sessions.
pub const SESSIONS: &str = "`session_prefix \"\" { policy = \"read\" }`";

/// A snapshot of a prefix.
pub struct PrefixSnapshot {
    /// The keys below the prefix, as a semaphore's view.
    pub view: View,
    prefix: String,
    /// The key of the prefix itself, and all keys below.
    pairs: Vec<Pair>,
    sessions: Indexed<Vec<Session>>,
}

/// What a prefix is.
#[derive(Clone, Debug, PartialEq)]
pub enum Found {
    /// There is neither the prefix nor `.lock` below it.
    Nothing,
    /// Unknown: this key may be hidden from the token.
    Unknown {
        /// The key.
        key: String,
    },
    /// A semaphore.
    Semaphore {
        /// Its record.
        record: Record,
        /// The index of the record's last change.
        index: u64,
    },
    /// A single-key lock.
    Lock {
        /// Its key: the prefix, or `.lock` below it.
        key: String,
        /// Its state.
        single: Box<SingleKeyLock>,
    },
    /// Any other key, which slotkeeper does not change.
    Other {
        /// Its key.
        key: String,
        /// Its content in words.
        what: String,
    },
}

/// A waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// The participant.
    pub participant: Participant,
    /// Whether it is in the order of grants; otherwise it is passed over, since the semaphore cannot grant its slots.
    pub is_served: bool,
}

/// The kind of a prefix, and its participants.
#[derive(Clone, Debug, PartialEq)]
pub struct Inspection {
    /// The kind.
    pub found: Found,
    /// The holders, dead ones too, in the record's order; of a lock, its holder.
    pub holders: Vec<Participant>,
    /// The queue, in order.
    pub queue: Vec<Waiter>,
    /// Other sessions with a locked key: a single key, or the contender key of an evicted participant that has not noticed.
    pub others: Vec<Participant>,
    /// Contender keys of ended sessions.
    pub leftovers: usize,
    /// What is hidden.
    pub hidden: Hidden,
    /// Rings with other semaphores, once they are sought.
    pub rings: Vec<Ring>,
}

/// What is hidden from the token, by the rules that show it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Hidden {
    /// Keys below the prefix: live holders may look dead, and waiters may be missing.
    pub keys: Option<String>,
    /// Sessions of participants.
    pub sessions: Option<String>,
}

/// Reads a prefix again after each change.
pub struct Watch<'a> {
    client: Client,
    prefix: &'a str,
    /// The index of the listing below the prefix.
    below: u64,
    /// The index of the prefix's own key, if it exists. A wait for a missing key ends with every write to any key (Consul up to 1.9).
    at_prefix: Option<u64>,
}

impl<'a> Watch<'a> {
    /// A watch that has not read yet.
    pub fn new(client: &Client, prefix: &'a str) -> Self {
        Self { client: client.clone(), prefix, below: 0, at_prefix: None }
    }

    /// The snapshot: at first at once, then after a change, or after a while in any case.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`]. The next call reads at once.
    pub async fn next(&mut self) -> Result<PrefixSnapshot, Error> {
        let (below, at_prefix) = (self.below, self.at_prefix.unwrap_or(0));
        (self.below, self.at_prefix) = (0, None);
        if below == 0 {
            // Start again from index 0, perhaps at another cluster.
            self.client = self.client.bound();
        }
        let (client, prefix) = (&self.client, self.prefix);
        // Jitter, so that many watches do not read at the same time.
        let wait = WAIT.mul_f64(0.9 + fastrand::f64() / 5.0);
        let blocking = |index| Read::consistent().after(index, wait);
        let has_changed = async {
            if at_prefix == 0 || below == 0 {
                return std::future::pending().await;
            }
            bridge::read(client, prefix, blocking(at_prefix)).await.map(drop)
        };
        let listing = tokio::select! {
            listing = bridge::list(client, prefix, blocking(below)) => listing,
            changed = has_changed => match changed {
                Ok(()) => bridge::list(client, prefix, Read::consistent()).await,
                Err(failure) => Err(failure),
            },
        };
        let listing = match listing {
            // A long poll that was cut is no failure: read without waiting.
            Err(failure) if failure.kind == FailureKind::Cut => {
                bridge::list(client, prefix, Read::consistent()).await
            }
            listing => listing,
        };
        let listing = listing.map_err(Error::Failed)?;
        let at_prefix = bridge::watched(client, prefix, Read::consistent()).await;
        let at_prefix = match at_prefix.map_err(|error| bridge::failure(&error)) {
            Ok(reading) => reading.pair,
            // The rule for a semaphore's clients is about the keys below.
            Err(failure) if failure.kind == FailureKind::Denied && !listing.pairs.is_empty() => None,
            Err(failure) if failure.kind == FailureKind::Denied => {
                let text = format!(
                    "{}; the token needs {} for a semaphore, `key \"{}\" {{ policy = \"read\" }}` for a lock",
                    failure.text,
                    plan::acl_rule(prefix, "read"),
                    printable(prefix, 500)
                );
                return Err(Error::Failed(Failure { text, ..failure }));
            }
            Err(failure) => return Err(Error::Failed(failure)),
        };
        // Sessions last: a session with a key that is not in the list has ended in between, or is hidden.
        let sessions = sessions(client, Read::consistent()).await?;
        // An index that decreased means to start from 0.
        self.below = if listing.index < below { 0 } else { listing.index };
        self.at_prefix = at_prefix.as_ref().map(|pair| pair.modify_index);
        Ok(PrefixSnapshot::of(prefix, at_prefix, listing, sessions))
    }
}

impl PrefixSnapshot {
    /// From the prefix's own key, the listing below it, and the sessions that are shown.
    pub fn of(
        prefix: &str,
        at_prefix: Option<Pair>,
        below: Listing,
        sessions: Indexed<Vec<Session>>,
    ) -> Self {
        let pairs = at_prefix.into_iter().chain(below.pairs.iter().cloned()).collect();
        Self { view: View::of_listing(prefix, below), prefix: prefix.to_owned(), pairs, sessions }
    }

    /// The participants of the semaphore, or of a single-key lock at the prefix or below it.
    pub fn participants(&self) -> Vec<Participant> {
        participants::of(&self.view, &self.pairs, &self.sessions)
    }

    /// What is hidden from the token.
    pub fn hidden(&self, participants: &[Participant]) -> Hidden {
        // Consul before 1.11 hides sessions without a notice, but each locked key has a session.
        let is_hidden =
            |one: &Participant| one.hidden && (self.sessions.filtered || !one.role.keys.is_empty());
        Hidden {
            keys: self.view.is_filtered().then(|| plan::acl_rule(&self.prefix, "read")),
            sessions: participants.iter().any(is_hidden).then(|| SESSIONS.to_owned()),
        }
    }

    /// The number of keys below the prefix that are neither the semaphore's record nor a contender key of slotkeeper.
    pub fn others_below(&self) -> usize {
        let lock = self.view.lock_key();
        let is_ours = |key: &str| {
            let session = self.view.session_of(key);
            let contends = session.is_some_and(|session| self.view.contender(&session).is_some());
            contends || key == lock || self.view.leftovers.iter().any(|leftover| leftover.key == key)
        };
        self.pairs.iter().filter(|pair| pair.key != self.prefix && !is_ours(&pair.key)).count()
    }

    /// The single-key lock at the prefix, in a view of its own.
    pub fn lock(&self) -> Option<View> {
        let lock = self.view.lock_key();
        let is_lock =
            matches!(self.view.lock, LockKeyState::Conflict { found: NotASemaphore::SingleKeyLock, .. });
        let key = match self.view.lock {
            LockKeyState::Missing => &self.prefix,
            LockKeyState::Conflict { .. } if is_lock => &lock,
            LockKeyState::Conflict { .. } | LockKeyState::Record { .. } | LockKeyState::Single(_) => {
                return None;
            }
        };
        Some(self.lock_at(key)).filter(|view| view.lock != LockKeyState::Missing)
    }

    /// A key in a view of its own.
    pub(super) fn lock_at(&self, key: &str) -> View {
        let pair = self.pairs.iter().find(|pair| pair.key == key).cloned();
        let index = pair.as_ref().map_or(0, |pair| pair.modify_index);
        View::of_key(key, pair, index)
    }

    /// Kind and participants.
    pub fn inspect(&self) -> Inspection {
        let found = match &self.view.lock {
            LockKeyState::Record { record, index } => {
                Found::Semaphore { record: record.clone(), index: *index }
            }
            LockKeyState::Conflict { found, .. } if *found != NotASemaphore::SingleKeyLock => {
                Found::Other { key: self.view.lock_key(), what: found.to_string() }
            }
            LockKeyState::Conflict { .. } | LockKeyState::Missing | LockKeyState::Single(_) => {
                self.found_lock()
            }
        };
        let participants = self.participants();
        let hidden = self.hidden(&participants);
        let participants = participants.into_iter().map(|one| (one.id.clone(), one));
        let mut rest: BTreeMap<SessionId, Participant> = participants.collect();
        let listed: Vec<_> = match &found {
            Found::Semaphore { record, .. } => record.holders.iter().collect(),
            Found::Lock { single, .. } => single.owner.iter().collect(),
            Found::Nothing | Found::Unknown { .. } | Found::Other { .. } => Vec::new(),
        };
        let holders = listed.into_iter().filter_map(|holder| rest.remove(holder)).collect();
        let waiter = |one: Queued| {
            // A participant that may hold a slot is not shown in the queue.
            rest.get(&one.session).filter(|one| one.role.state != Part::Unknown)?;
            let participant = rest.remove(&one.session)?;
            Some(Waiter { participant, is_served: one.is_served })
        };
        let queue = plan::queue(&self.view).into_iter().filter_map(waiter).collect();
        let others = rest.into_values().collect();
        Inspection {
            found,
            holders,
            queue,
            others,
            leftovers: self.view.leftovers.len(),
            hidden,
            rings: Vec::new(),
        }
    }

    fn found_lock(&self) -> Found {
        let Some(view) = self.lock() else {
            let key = self.view.lock_key();
            return if self.view.is_filtered() { Found::Unknown { key } } else { Found::Nothing };
        };
        let key = view.lock_key();
        match view.lock {
            LockKeyState::Single(single) => match single.wrong {
                Some(wrong) => Found::Other { key, what: wrong.why },
                None => Found::Lock { key, single },
            },
            LockKeyState::Missing | LockKeyState::Record { .. } | LockKeyState::Conflict { .. } => {
                Found::Nothing
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Arc;

    use tokio::time::timeout;

    use super::*;
    use slotkeeper_consul::{Put, Settings, Unobserved};
    use slotkeeper_consul_dev::Server;
    use slotkeeper_semaphore::LOCK_FLAGS;

    #[tokio::test]
    async fn a_watch_notices_changes_below_the_prefix_and_at_it() {
        let server = Server::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let settings =
            Settings { address: server.addr().to_string().parse().unwrap(), ..Settings::default() };
        let client = Client::new(&settings, Arc::new(Unobserved)).unwrap();
        tokio::spawn(server.run(std::future::pending()));
        client.kv_put("p", b"", Put::Plain, LOCK_FLAGS).await.unwrap();
        let mut watch = Watch::new(&client, "p");
        assert!(matches!(watch.next().await.unwrap().inspect().found, Found::Lock { .. }));
        for (key, value) in [("p", "x"), ("p/.lock", r#"{"Limit":1,"Holders":[]}"#), ("p/.lock", "y")] {
            let (next, put) = tokio::join!(
                // Well before the watch reads in any case.
                timeout(WAIT / 2, watch.next()),
                client.kv_put(key, value.as_bytes(), Put::Plain, 0)
            );
            assert!(put.unwrap());
            let snapshot = next.expect("a change that is noticed").unwrap();
            let pair = snapshot.pairs.iter().find(|pair| pair.key == key).unwrap();
            assert_eq!(pair.value, value.as_bytes());
        }
    }
}
