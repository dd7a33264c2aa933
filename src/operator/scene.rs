//! What lies at a prefix, and how an operator learns of it: the keys and the sessions behind them, at once or whenever
//! something has changed.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::participants::{self, Participant};
use super::{Error, Health, Part, sessions};
use crate::bridge;
use slotkeeper_consul::{Client, Indexed, Read, Session};
use slotkeeper_semaphore::plan::{self, Queued};
use slotkeeper_semaphore::{
    Failure, FailureKind, Listing, LockKeyState, NotASemaphore, Pair, Record, SessionId, SingleKeyLock, View,
    printable,
};

/// The longest that a watch waits before it looks again in any case. Within this time it notices what no key tells of: a
/// session that a dead holder had, and a lock that comes to be at the prefix itself.
pub const WAIT: Duration = Duration::from_secs(15);

/// The rule by which a token may see all sessions.
pub const SESSIONS: &str = "`session_prefix \"\" { policy = \"read\" }`";

/// What Consul shows at a prefix.
pub struct Scene {
    /// What lies below the prefix, as a semaphore is seen.
    pub view: View,
    prefix: String,
    /// The key that is called as the prefix itself, and all below.
    pairs: Vec<Pair>,
    sessions: Indexed<Vec<Session>>,
}

/// What there is at a prefix.
#[derive(Clone, Debug, PartialEq)]
pub enum Found {
    /// Neither the prefix nor `.lock` below it.
    Nothing,
    /// Whether there is anything cannot be told: this key may be hidden from the token.
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
        /// How it stands.
        single: Box<SingleKeyLock>,
    },
    /// Something else, which slotkeeper leaves alone.
    Other {
        /// Its key.
        key: String,
        /// What it is.
        what: String,
    },
}

/// Somebody in line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// Who it is.
    pub participant: Participant,
    /// Whether it waits for a slot; else it is passed over, since it wants what the semaphore cannot give.
    pub is_served: bool,
}

/// What there is at a prefix, and who.
#[derive(Clone, Debug, PartialEq)]
pub struct Inspection {
    /// What there is.
    pub found: Found,
    /// Who holds, or is listed as a holder and dead, in the record's order; of a lock, who has it.
    pub holders: Vec<Participant>,
    /// The line, in order.
    pub queue: Vec<Waiter>,
    /// Who else has a key locked there: a single key, or the contender of one that was taken out of `.lock` and has not noticed.
    pub others: Vec<Participant>,
    /// Entries of ours that ended sessions have left.
    pub leftovers: usize,
    /// What is not shown.
    pub hidden: Hidden,
}

/// What the token may not see, by the rules that would show it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Hidden {
    /// Keys below the prefix: then holders may live that look dead, and waiters may be missing.
    pub keys: Option<String>,
    /// Sessions of some who take part.
    pub sessions: Option<String>,
}

/// A prefix that is looked at again whenever something has changed there.
pub struct Watch<'a> {
    client: Client,
    prefix: &'a str,
    /// The index of the listing of what lies below the prefix.
    below: u64,
    /// The index of the key that is called as the prefix, where there is one. To wait for a missing key would mean to be
    /// woken by all others (Consul up to 1.9).
    at_prefix: Option<u64>,
}

impl<'a> Watch<'a> {
    /// One that has not looked yet.
    pub fn new(client: &Client, prefix: &'a str) -> Self {
        Self { client: client.clone(), prefix, below: 0, at_prefix: None }
    }

    /// What there is: at first at once, then when something has changed, or after a while in any case.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`]. The next call looks at once.
    pub async fn next(&mut self) -> Result<Scene, Error> {
        let (below, at_prefix) = (self.below, self.at_prefix.unwrap_or(0));
        (self.below, self.at_prefix) = (0, None);
        if below == 0 {
            // It looks anew, be it at another cluster.
            self.client = self.client.bound();
        }
        let (client, prefix) = (&self.client, self.prefix);
        // Many who watch the same are not to come at the same instant.
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
            // The end of a wait for news is no failure: it looks.
            Err(failure) if failure.kind == FailureKind::Cut => {
                bridge::list(client, prefix, Read::consistent()).await
            }
            listing => listing,
        };
        let listing = listing.map_err(Error::Failed)?;
        let at_prefix = match bridge::read(client, prefix, Read::consistent()).await {
            Ok(reading) => reading.pair,
            // The rule that a semaphore's clients need is for what lies below.
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
        // The sessions come last: whoever had a key and is not among them has ended in between, or is hidden.
        let sessions = sessions(client, Read::consistent()).await?;
        // An index that has gone back means to begin anew, which an index of 0 does.
        self.below = if listing.index < below { 0 } else { listing.index };
        self.at_prefix = at_prefix.as_ref().map(|pair| pair.modify_index);
        Ok(Scene::of(prefix, at_prefix, listing, sessions))
    }
}

impl Scene {
    /// Of the key that is called as the prefix, the listing of what lies below, and the sessions that are shown.
    pub fn of(
        prefix: &str,
        at_prefix: Option<Pair>,
        below: Listing,
        sessions: Indexed<Vec<Session>>,
    ) -> Self {
        let pairs = at_prefix.into_iter().chain(below.pairs.iter().cloned()).collect();
        Self { view: View::of_listing(prefix, below), prefix: prefix.to_owned(), pairs, sessions }
    }

    /// Who takes part: in a semaphore there, or in a single-key lock at the prefix or below it.
    pub fn participants(&self) -> Vec<Participant> {
        participants::of(&self.view, &self.pairs, &self.sessions)
    }

    /// What the token may not see of them.
    pub fn hidden(&self, participants: &[Participant]) -> Hidden {
        // Consul before 1.11 does not say that it hides sessions; whoever has a key locked has one.
        let is_hidden = |one: &Participant| {
            one.health == Health::Unknown && (self.sessions.filtered || !one.keys.is_empty())
        };
        Hidden {
            keys: self.view.is_filtered().then(|| plan::acl_rule(&self.prefix, "read")),
            sessions: participants.iter().any(is_hidden).then(|| SESSIONS.to_owned()),
        }
    }

    /// How many keys lie below the prefix that are neither the semaphore's record nor an entry of ours.
    pub fn others_below(&self) -> usize {
        let lock = self.view.lock_key();
        let is_ours = |key: &str| {
            let session = self.view.session_of(key);
            let contends = session.is_some_and(|session| self.view.contender(&session).is_some());
            contends || key == lock || self.view.leftovers.iter().any(|leftover| leftover.key == key)
        };
        self.pairs.iter().filter(|pair| pair.key != self.prefix && !is_ours(&pair.key)).count()
    }

    /// The single-key lock there, as it is seen alone, where there is one.
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

    /// A key there, as it is seen alone.
    pub(super) fn lock_at(&self, key: &str) -> View {
        let pair = self.pairs.iter().find(|pair| pair.key == key).cloned();
        let index = pair.as_ref().map_or(0, |pair| pair.modify_index);
        View::of_key(key, pair, index)
    }

    /// What there is, and who.
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
            // One that may hold is not shown in the queue.
            rest.get(&one.session).filter(|one| one.part != Part::Unknown)?;
            let participant = rest.remove(&one.session)?;
            Some(Waiter { participant, is_served: one.is_served })
        };
        let queue = plan::queue(&self.view).into_iter().filter_map(waiter).collect();
        let others = rest.into_values().collect();
        Inspection { found, holders, queue, others, leftovers: self.view.leftovers.len(), hidden }
    }

    fn found_lock(&self) -> Found {
        let Some(view) = self.lock() else {
            let key = self.view.lock_key();
            return if self.view.is_filtered() { Found::Unknown { key } } else { Found::Nothing };
        };
        let key = view.lock_key();
        match view.lock {
            LockKeyState::Single(single) => match single.wrong {
                Some(what) => Found::Other { key, what },
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
    async fn a_watch_tells_of_what_changes_below_the_prefix_and_at_it() {
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
                // Well before it would look in any case.
                timeout(WAIT / 2, watch.next()),
                client.kv_put(key, value.as_bytes(), Put::Plain, 0)
            );
            assert!(put.unwrap());
            let scene = next.expect("a change that is told of").unwrap();
            let pair = scene.pairs.iter().find(|pair| pair.key == key).unwrap();
            assert_eq!(pair.value, value.as_bytes());
        }
    }
}
