//! The simulated Consul: commands in, events out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use slotkeeper_consul_dev::store::Store;
use slotkeeper_consul_dev::store::kv::{Entry, Write};
use slotkeeper_consul_dev::store::session::{Request, Rules, SessionId};
use slotkeeper_consul_dev::store::txn::{Op as StoreOp, OpError};
use slotkeeper_semaphore::{
    Command, Commit, Event, Failure, FailureKind, Listing, Moment, Name, Op, Pair, Part, Primitive, Reading,
    SessionId as Id, View,
};

/// The semaphores, by their names, which are their prefixes too.
pub(super) const SEMAPHORES: [&str; 2] = ["one", "two"];
pub(super) const TTL: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub(super) struct Consul {
    pub(super) store: Store,
    ttl: Duration,
    primitive: Primitive,
    /// The lock-delay of new sessions.
    pub(super) lock_delay: Duration,
    /// The earliest time at which a session or a lock-delay ends by itself.
    due: Option<Moment>,
}

impl Consul {
    /// `lasts`: the number of TTLs between the last renewal of a session and its end.
    pub(super) fn new(ttl: Duration, lasts: u32, primitive: Primitive, lock_delay: Duration) -> Self {
        let rules = Rules { min_ttl: ttl, expiry_factor: lasts };
        Self { store: Store::new("sim".into(), rules), ttl, primitive, lock_delay, due: None }
    }

    /// Executes a command. `None`: a blocking read waits for a change.
    pub(super) fn serve(&mut self, command: &Command, id: Uuid, now: Moment) -> Option<Event> {
        self.tick(now);
        Some(match command {
            Command::CreateSession => {
                self.store.create_session(id, self.request(), now).expect("a session");
                self.due = self.store.next_deadline();
                Event::SessionCreated(Ok(id.to_string().into()))
            }
            Command::RenewSession { session, sent, .. } => {
                let renewed = self.store.renew_session(&parse(session), now);
                Event::SessionRenewed(*sent, renewed.map(|_| self.ttl).ok_or_else(not_found))
            }
            Command::DestroySession { session } => {
                self.store.destroy_session(&parse(session), now);
                Event::SessionDestroyed(Ok(()))
            }
            Command::List { name } => {
                // The name of a listing for a previous process ends with the prefix.
                let prefix = name.rsplit(' ').next().unwrap_or(name);
                Event::Listed(name.clone(), Ok(self.list(prefix)))
            }
            Command::ReadLock { name, key, .. } => Event::LockRead(name.clone(), Ok(self.read(key))),
            Command::ReadKeys { name, keys } => {
                Event::KeysRead(name.clone(), Ok(keys.iter().map(|key| self.read(key)).collect()))
            }
            Command::Watch { name, key, after, .. } => {
                if *after != 0 && self.index_of(key) <= *after {
                    return None;
                }
                Event::Watched(name.clone(), key.clone(), Ok(self.read(key)))
            }
            Command::Commit { parts } => {
                let ops: Vec<_> = parts.iter().flat_map(|part| part.ops.iter().cloned()).collect();
                Event::Committed(names(parts), Ok(self.commit(&ops, now)))
            }
            Command::StopWatch { .. } | Command::Notify(_) => unreachable!("no request"),
        })
    }

    /// Ends the sessions and lock-delays that are due.
    pub(super) fn tick(&mut self, now: Moment) {
        if self.due.is_some_and(|due| due <= now) {
            self.store.tick(now);
            self.due = self.store.next_deadline();
        }
    }

    pub(super) fn destroy(&mut self, session: &Id, now: Moment) {
        self.store.destroy_session(&parse(session), now);
    }

    pub(super) fn has_session(&self, session: &Id) -> bool {
        self.store.session(&parse(session)).found.is_some()
    }

    /// Creates a session without a TTL.
    pub(super) fn create_lasting_session(&mut self, id: Uuid, now: Moment) {
        let request = Request { ttl: String::new(), ..self.request() };
        self.store.create_session(id, request, now).expect("a session");
    }

    fn request(&self) -> Request {
        let stays = matches!(self.primitive, Primitive::Lock { stays: true });
        Request {
            name: "sim".into(),
            node: None,
            lock_delay: i64::try_from(self.lock_delay.as_nanos()).expect("a short delay"),
            behavior: if stays { "release" } else { "delete" }.into(),
            ttl: format!("{}s", self.ttl.as_secs()),
            node_checks: Some(Vec::new()),
            service_checks: None,
            checks: Vec::new(),
        }
    }

    /// The current state of a semaphore or a lock.
    pub(super) fn view(&self, name: &str) -> View {
        if let Primitive::Lock { .. } = self.primitive {
            let Reading { pair, index } = self.read(name);
            return View::of_key(name, pair, index.max(self.store.index()));
        }
        let Listing { pairs, index, .. } = self.list(name);
        View::new(name, pairs, index.max(self.store.index()))
    }

    pub(super) fn list(&self, name: &str) -> Listing {
        self.list_all(&format!("{name}/"))
    }

    fn list_all(&self, prefix: &str) -> Listing {
        let read = self.store.list(prefix);
        Listing {
            index: read.index,
            pairs: read.found.iter().map(|entry| pair(entry)).collect(),
            filtered: false,
        }
    }

    /// Reads a key like Consul: a missing key has the index of the latest write to any key.
    pub(super) fn read(&self, key: &str) -> Reading {
        if key.ends_with('/') {
            let read = self.store.list(key);
            let keys = read.found.iter().map(|entry| entry.key.clone());
            return Reading { index: read.index, pair: Some(Pair::of_folder(key, keys, read.index)) };
        }
        let read = self.store.key(key);
        Reading { index: read.index, pair: read.found.map(|entry| pair(&entry)) }
    }

    /// The index of the answer of [`Self::read`].
    pub(super) fn index_of(&self, key: &str) -> u64 {
        if key.ends_with('/') { self.store.list(key).index } else { self.store.key(key).index }
    }

    /// All entries, in the order of the keys.
    pub(super) fn all(&self) -> Vec<Arc<Entry>> {
        self.store.list("").found
    }

    pub(super) fn commit(&mut self, ops: &[Op], now: Moment) -> Commit {
        assert_writes_once(ops);
        let is_list = |op: &&Op| matches!(op, Op::List { .. });
        let lists: Vec<_> = ops.iter().filter(is_list).map(|op| op.key().to_owned()).collect();
        // Else a listing would not be of the state after the transaction.
        for (step, list) in ops.iter().enumerate().filter(|(_, op)| is_list(op)) {
            let mut later = ops[step..].iter().filter(|op| !is_list(op));
            assert!(later.all(|op| !op.key().starts_with(list.key())), "a write after its listing: {ops:?}");
        }
        let ops = ops.iter().cloned().map(|op| match op {
            Op::Lock { key, value, flags, session } => {
                StoreOp::Lock(Write { key, value: value.into(), flags }, session.to_string())
            }
            Op::Unlock { key, value, flags, session } => {
                StoreOp::Unlock(Write { key, value: value.into(), flags }, session.to_string())
            }
            Op::Cas { key, value, flags, index } => {
                StoreOp::Cas(Write { key, value: value.into(), flags }, index)
            }
            Op::Delete { key } => StoreOp::Delete(key),
            Op::DeleteCas { key, index } => StoreOp::DeleteCas(key, index),
            Op::CheckIndex { key, index } => StoreOp::CheckIndex(key, index),
            Op::List { prefix } => StoreOp::GetTree(prefix),
            Op::CheckNotExists { key } => StoreOp::CheckNotExists(key),
            Op::CheckSession { key, session } => StoreOp::CheckSession(key, session.to_string()),
        });
        match self.store.txn(ops.collect(), now) {
            Ok(found) => {
                let index = found.iter().map(|found| found.entry.modify_index).max().unwrap_or(0);
                let read: Vec<_> = lists.iter().map(|prefix| self.list_all(prefix)).collect();
                let known = read.iter().map(|listing| listing.index).max().unwrap_or(0);
                let pairs = |one: Listing| one.pairs.into_iter().map(|pair| (pair.key.clone(), pair));
                let pairs: BTreeMap<_, _> = read.into_iter().flat_map(pairs).collect();
                let pairs = pairs.into_values().collect();
                let listing = (!lists.is_empty()).then_some(Listing { pairs, index: known, filtered: false });
                Commit::Done { index, listing }
            }
            // The agent classifies Consul's answer the same way.
            Err(faults) if faults.iter().all(|(_, fault)| matches!(fault, OpError::Session(_))) => {
                Commit::SessionGone
            }
            Err(faults) if faults.iter().all(|(_, fault)| matches!(fault, OpError::LockDelay(_))) => {
                Commit::Delayed { steps: faults.into_iter().map(|(step, _)| step).collect() }
            }
            Err(faults) => Commit::Stale { steps: faults.into_iter().map(|(step, _)| step).collect() },
        }
    }
}

pub(super) fn pair(entry: &Entry) -> Pair {
    Pair {
        key: entry.key.clone(),
        value: entry.value.to_vec(),
        flags: entry.flags,
        session: entry.session.as_deref().map(Id::from),
        times_locked: entry.lock_index,
        create_index: entry.create_index,
        modify_index: entry.modify_index,
    }
}

/// The event of a request without an answer.
pub(super) fn unanswered(command: &Command) -> Event {
    let failure = Failure { kind: FailureKind::Unavailable, text: "no answer".into() };
    match command {
        Command::CreateSession => Event::SessionCreated(Err(failure)),
        Command::RenewSession { sent, .. } => Event::SessionRenewed(*sent, Err(failure)),
        Command::DestroySession { .. } => Event::SessionDestroyed(Err(failure)),
        Command::ReadKeys { name, .. } => Event::KeysRead(name.clone(), Err(failure)),
        Command::List { name } => Event::Listed(name.clone(), Err(failure)),
        Command::ReadLock { name, .. } => Event::LockRead(name.clone(), Err(failure)),
        Command::Watch { name, key, .. } => Event::Watched(name.clone(), key.clone(), Err(failure)),
        Command::Commit { parts } => Event::Committed(names(parts), Err(failure)),
        Command::StopWatch { .. } | Command::Notify(_) => unreachable!("no request"),
    }
}

fn names(parts: &[Part]) -> Vec<Name> {
    parts.iter().map(|part| part.name.clone()).collect()
}

/// The time-out of a request.
pub(super) fn patience(command: &Command) -> Duration {
    match command {
        Command::RenewSession { timeout, .. } => *timeout,
        // Keep-alive finds a dead connection long before the wait ends.
        Command::Watch { wait, .. } => {
            (*wait + *wait / 16 + Duration::from_secs(5)).min(Duration::from_secs(45))
        }
        Command::CreateSession
        | Command::DestroySession { .. }
        | Command::List { .. }
        | Command::ReadLock { .. }
        | Command::ReadKeys { .. }
        | Command::Commit { .. }
        | Command::StopWatch { .. }
        | Command::Notify(_) => Duration::from_secs(10),
    }
}

fn not_found() -> Failure {
    Failure { kind: FailureKind::NotFound, text: "no such session".into() }
}

fn parse(session: &Id) -> SessionId {
    SessionId::parse(session.as_str()).expect("an id that Consul gave")
}

/// A second write of a key by check-and-set is always refused, since the first one has changed the key's index. A contender
/// that moves to the end of the queue is deleted and locked again, in this order.
fn assert_writes_once(ops: &[Op]) {
    let writes = |op: &Op| matches!(op, Op::Lock { .. } | Op::Unlock { .. } | Op::Cas { .. });
    let deletes = |op: &Op| matches!(op, Op::Delete { .. } | Op::DeleteCas { .. });
    for (place, op) in ops.iter().enumerate().filter(|(_, op)| writes(op)) {
        let again = ops
            .iter()
            .skip(place + 1)
            .find(|other| other.key() == op.key() && (writes(other) || deletes(other)));
        assert!(again.is_none(), "one transaction writes {} twice: {ops:?}", op.key());
    }
}
