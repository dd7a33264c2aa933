//! A snapshot of a prefix for an operator: the keys and their sessions, read once or after each change.

use std::future::pending;

use super::inspection::{self, Found, Hidden, Inspection, ParticipantState};
use super::poll::Poll;
use super::{Error, sessions};
use crate::bridge;
use slotkeeper_consul::{Blocking, Client, Indexed, Read, Session};
use slotkeeper_semaphore::plan;
use slotkeeper_semaphore::{
    Failure, FailureKind, Listing, LockKeyState, NotASemaphore, Pair, SessionId, SingleKeyLock, View,
    printable,
};

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

/// Reads a prefix again after each change.
pub struct Watch<'a> {
    poll: Poll,
    prefix: &'a str,
    /// The index of the prefix's own key, if it exists. A wait for a missing key ends with every write to any key (Consul up to 1.9).
    at_prefix: Option<u64>,
}

impl<'a> Watch<'a> {
    /// A watch that has not read yet.
    pub fn new(client: &Client, prefix: &'a str) -> Self {
        Self { poll: Poll::new(client), prefix, at_prefix: None }
    }

    /// The snapshot: at first at once, then after a change, or after a while in any case.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`]. The next call reads at once.
    pub async fn next(&mut self) -> Result<PrefixSnapshot, Error> {
        let (prefix, at_prefix) = (self.prefix, self.at_prefix.take());
        let answer = self.poll.next(async |client: &Client, read: Read| {
            let has_changed = async {
                match (at_prefix, read.blocking) {
                    (Some(index), Some(below)) if below.index > 0 => {
                        let read = Read { blocking: Some(Blocking { index, ..below }), ..read };
                        bridge::read(client, prefix, read).await.map(drop)
                    }
                    _ => pending().await,
                }
            };
            let below = tokio::select! {
                below = bridge::list(client, prefix, read) => below,
                changed = has_changed => match changed {
                    Ok(()) => bridge::list(client, prefix, Read::consistent()).await,
                    Err(failure) => Err(failure),
                },
            };
            let below = below.map_err(Error::Failed)?;
            let at_prefix = key_at(client, prefix, !below.pairs.is_empty()).await?;
            // Sessions last: a session with a key that is not in the list has ended in between, or is hidden.
            let sessions = sessions(client, Read::consistent()).await?;
            let (index, filtered) = (below.index, below.filtered);
            Ok(Indexed { index, filtered, value: PrefixSnapshot::of(prefix, at_prefix, below, sessions) })
        });
        let snapshot = answer.await?.value;
        self.at_prefix = snapshot.pair(prefix).map(|pair| pair.modify_index);
        Ok(snapshot)
    }
}

/// The key of the prefix itself.
async fn key_at(client: &Client, prefix: &str, has_below: bool) -> Result<Option<Pair>, Error> {
    let reading = bridge::watched(client, prefix, Read::consistent()).await;
    match reading.map_err(|error| bridge::failure(&error)) {
        Ok(reading) => Ok(reading.pair),
        // The rule for a semaphore's clients is about the keys below.
        Err(failure) if failure.kind == FailureKind::Denied && has_below => Ok(None),
        Err(failure) if failure.kind == FailureKind::Denied => {
            let text = format!(
                "{}; the token needs {} for a semaphore, `key \"{}\" {{ policy = \"read\" }}` for a lock",
                failure.text,
                plan::acl_rule(prefix, "read"),
                printable(prefix, 500)
            );
            Err(Error::Failed(Failure { text, ..failure }))
        }
        Err(failure) => Err(Error::Failed(failure)),
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

    fn pair(&self, key: &str) -> Option<&Pair> {
        self.pairs.iter().find(|pair| pair.key == key)
    }

    /// The single-key lock at the prefix or at `.lock` below it, in a view of its own.
    pub fn lock(&self) -> Option<View> {
        let below = self.view.lock_key();
        let key = match &self.view.lock {
            LockKeyState::Missing => &self.prefix,
            LockKeyState::Conflict { found: NotASemaphore::SingleKeyLock, .. } => &below,
            LockKeyState::Conflict { .. } | LockKeyState::Record { .. } | LockKeyState::Single(_) => {
                return None;
            }
        };
        self.pair(key).map(|_| self.lock_at(key))
    }

    /// A key in a view of its own.
    pub(super) fn lock_at(&self, key: &str) -> View {
        let pair = self.pair(key).cloned();
        let index = pair.as_ref().map_or(0, |pair| pair.modify_index);
        View::of_key(key, pair, index)
    }

    /// Kind, record and participants.
    pub fn inspect(&self) -> Inspection {
        let (found, listed) = self.found();
        let mut rest = inspection::participants(&self.view, &self.pairs, &self.sessions);
        // Consul before 1.11 hides sessions without a notice, but each locked key has a session.
        let hides_sessions =
            rest.values().any(|one| one.hidden && (self.sessions.filtered || !one.keys.is_empty()));
        let hidden = Hidden {
            keys: self.view.is_filtered().then(|| plan::acl_rule(&self.prefix, "read")),
            sessions: hides_sessions.then(|| SESSIONS.to_owned()),
        };
        let holders = listed.iter().filter_map(|holder| rest.remove(holder)).collect();
        let mut queue = Vec::new();
        // The waiters that were asked for a sign of life are served last.
        let (mut next, mut last) = (None, None);
        for (place, (session, is_served)) in plan::queue(&self.view).into_iter().enumerate() {
            let Some(one) = rest.get_mut(&session) else { continue };
            one.order.0 = Some(place);
            // A participant that may hold a slot is not shown in the queue.
            if one.state == ParticipantState::Unknown {
                continue;
            }
            let Some(mut one) = rest.remove(&session) else { continue };
            one.passed_over = Some(!is_served);
            // Hidden waiters may be ahead.
            if hidden.keys.is_none() {
                one.position = Some(queue.len() + 1);
                let is_next = is_served && matches!(found, Found::Semaphore { .. });
                let place = if one.asked { &mut last } else { &mut next };
                if is_next && place.is_none() {
                    *place = Some(session.to_string());
                }
            }
            queue.push(one);
        }
        Inspection {
            schema_version: Default::default(),
            prefix: self.prefix.clone(),
            found,
            next: next.or(last),
            holders,
            queue,
            others: rest.into_values().collect(),
            leftovers: self.view.leftovers.len(),
            hidden,
            rings: Vec::new(),
            seen_at: String::new(),
            hint: String::new(),
        }
    }

    /// The kind, and the sessions that hold.
    fn found(&self) -> (Found, Vec<SessionId>) {
        let key = self.view.lock_key();
        match &self.view.lock {
            LockKeyState::Record { record, index } => {
                let (limit, slots_taken) = (record.limit, record.taken());
                let found = Found::Semaphore {
                    key,
                    form: record.form(),
                    limit,
                    slots_taken,
                    slots_free: limit.saturating_sub(slots_taken),
                    modify_index: *index,
                };
                return (found, record.holders.clone());
            }
            LockKeyState::Conflict { found, .. } if *found != NotASemaphore::SingleKeyLock => {
                return (Found::Other { key, description: found.to_string() }, Vec::new());
            }
            LockKeyState::Conflict { .. } | LockKeyState::Missing | LockKeyState::Single(_) => {}
        }
        let Some(lock) = self.lock() else {
            let is_hidden = self.view.is_filtered();
            return (if is_hidden { Found::Unknown { key } } else { Found::Nothing }, Vec::new());
        };
        let key = lock.lock_key();
        match lock.single() {
            Some(SingleKeyLock { wrong: Some(wrong), .. }) => {
                (Found::Other { key, description: wrong.why.clone() }, Vec::new())
            }
            Some(SingleKeyLock { owner, index, times_locked, .. }) => {
                let found = Found::Lock { key, modify_index: *index, lock_index: *times_locked };
                (found, owner.iter().cloned().collect())
            }
            None => (Found::Nothing, Vec::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Arc;

    use tokio::time::timeout;

    use super::super::poll::WAIT;
    use super::*;
    use slotkeeper_consul::{Settings, Txn, TxnOp, Unobserved};
    use slotkeeper_consul_dev::Server;
    use slotkeeper_semaphore::LOCK_FLAGS;

    #[tokio::test]
    async fn a_watch_notices_changes_below_the_prefix_and_at_it() {
        let server = Server::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let settings =
            Settings { address: server.addr().to_string().parse().unwrap(), ..Settings::default() };
        let client = Client::new(&settings, Arc::new(Unobserved)).unwrap();
        tokio::spawn(server.run(pending()));
        let put = async |key: &str, value: &str, flags| {
            let (key, value) = (key.to_owned(), value.as_bytes().to_vec());
            let ops = [TxnOp::Delete { key: key.clone() }, TxnOp::Cas { key, value, flags, index: 0 }];
            assert!(matches!(client.txn(&ops).await, Ok(Txn::Committed(_))));
        };
        put("p", "", LOCK_FLAGS).await;
        let mut watch = Watch::new(&client, "p");
        assert!(matches!(watch.next().await.unwrap().inspect().found, Found::Lock { .. }));
        for (key, value) in [("p", "x"), ("p/.lock", r#"{"Limit":1,"Holders":[]}"#), ("p/.lock", "y")] {
            // Well before the watch reads in any case.
            let (next, ()) = tokio::join!(timeout(WAIT / 2, watch.next()), put(key, value, 0));
            let snapshot = next.expect("a change that is noticed").unwrap();
            let pair = snapshot.pairs.iter().find(|pair| pair.key == key).unwrap();
            assert_eq!(pair.value, value.as_bytes());
        }
    }
}
