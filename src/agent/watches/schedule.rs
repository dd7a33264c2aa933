//! Which watched keys have a long poll, and when the others are read. Pure.
//!
//! Consul counts a long poll against its limit of connections until the poll ends, even after the client has closed the
//! connection. So no poll is cancelled: after its answer its place goes to the most urgent key. Several watchers of a key share
//! one request. Keys without a long poll are read together, by read-only transactions. A folder, which no transaction can read
//! without all values, is read alone and half as often.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::agent::driver::Owner;
use crate::bridge::{Found, is_folder};
use slotkeeper_consul::{MAX_LONG_POLLS, TXN_OPERATIONS};
use slotkeeper_semaphore::{Failure, FailureKind, Moment, Name, Reading};

/// Long polls that are reserved for waiters, also while there are none: polls take minutes, and an unseen grant is an unused
/// slot.
const MIN_WAITER_POLLS: usize = 16;
/// Concurrent transactions that read keys. Each may return values of several MiB.
const MAX_BATCHES: usize = 2;
/// Maximum interval of reads of a key without a long poll.
const MAX_PERIOD: Duration = Duration::from_secs(20);
/// A failure is remembered for this long, which exceeds the retry interval of the core.
const FAILURE_MEMORY: Duration = Duration::from_secs(60);

/// The purpose of a watch, the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::agent) enum Class {
    /// A holder's own contender key, which shows an eviction or a loss.
    Held,
    /// A waiter's own contender key, or the record for the head of the queue: it shows an offer or a free slot.
    Waiting,
    /// The keys below a semaphore. Some waiters watch them for dead holders, on behalf of all waiters.
    Folder,
    /// The record, for a holder: a holder that knows it releases in one request.
    Record,
    /// The contender key of another client, which shows whether it has accepted an offer, or is there.
    Other,
}

/// A keeper and one of its semaphores.
pub(in crate::agent) type Watcher = (Owner, Name);

/// A key to be watched.
#[derive(Clone, Debug)]
pub(in crate::agent) struct Watch {
    pub(in crate::agent) watcher: Watcher,
    /// The full key. With a slash at its end it stands for the names of all keys below it.
    pub(in crate::agent) key: String,
    /// The known index; 0 requests the current value.
    pub(in crate::agent) after: u64,
    /// Maximum wait of a poll.
    pub(in crate::agent) wait: Duration,
    pub(in crate::agent) class: Class,
}

/// A request to Consul. Its answer is the [`Answer`] of the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::agent) enum Ask {
    /// A blocking read of a key.
    Poll { key: String, after: u64, wait: Duration },
    /// A plain read of a key.
    Read { key: String },
    /// A plain read of several keys, by one transaction.
    Batch { keys: Vec<String> },
}

/// The answer to a request.
#[derive(Clone, Debug)]
pub(in crate::agent) enum Answer {
    Poll(String, Result<Reading, Failure>),
    Read(String, Result<Reading, Failure>),
    Batch(Vec<String>, Result<Found, Failure>),
}

/// An answer for a watcher.
#[derive(Clone, Debug)]
pub(in crate::agent) struct WatchAnswer {
    pub(in crate::agent) watcher: Watcher,
    pub(in crate::agent) key: String,
    pub(in crate::agent) answer: Result<Reading, Failure>,
}

/// The number of a request, which tells whether a request is older than a watcher.
type Number = u64;

#[derive(Debug)]
struct Entry {
    watcher: Watcher,
    after: u64,
    wait: Duration,
    class: Class,
    /// The next read answers it, even without a change.
    must_answer: bool,
    /// The number of the last request before it.
    came: Number,
}

#[derive(Clone, Copy, Debug)]
struct Poll {
    number: Number,
    /// The index after which it waits.
    after: u64,
}

#[derive(Debug)]
struct Key {
    watchers: Vec<Entry>,
    /// The long poll under way.
    poll: Option<Poll>,
    /// The plain read under way.
    look: Option<Number>,
    /// It is read alone, at once.
    read_now: bool,
    /// When it is read next without a long poll.
    due: Moment,
}

/// The watches of all keepers of an agent.
#[derive(Debug)]
pub(in crate::agent) struct Schedule {
    period: Duration,
    keys: BTreeMap<String, Key>,
    last: Number,
    batches: usize,
    /// There was no request to send, and nothing has happened since. When there is one by time alone.
    rests: Option<Option<Moment>>,
    /// Watchers with a failure, and its time: their next answer ends the failure and must not wait for a change.
    failed: BTreeMap<(Watcher, String), Moment>,
}

impl Schedule {
    /// A schedule that reads a key without a long poll at least three times in a TTL.
    pub(in crate::agent) fn new(ttl: Duration) -> Self {
        // A little less, since the request takes time as well.
        let period = (ttl / 10 * 3).min(MAX_PERIOD);
        let (keys, failed) = (BTreeMap::new(), BTreeMap::new());
        Self { period, keys, last: 0, batches: 0, rests: None, failed }
    }

    /// Watches a key until its watcher has one answer.
    pub(in crate::agent) fn watch(&mut self, watch: Watch, now: Moment) {
        self.rests = None;
        let Watch { watcher, key, after, wait, class } = watch;
        let failed = self.failed.remove(&(watcher.clone(), key.clone())).is_some();
        let (came, due) = (self.last, now + self.period_of(&key));
        let entry = self.keys.entry(key);
        let key = entry.or_insert_with(|| Key {
            watchers: Vec::new(),
            poll: None,
            look: None,
            read_now: false,
            due,
        });
        key.watchers.retain(|one| one.watcher != watcher);
        if key.watchers.is_empty() {
            key.due = due;
        }
        // The poll under way does not show changes before its start.
        let behind = key.poll.is_some_and(|poll| after < poll.after);
        let must_answer = after == 0 || failed;
        if after == 0 || behind || (failed && key.poll.is_some()) {
            key.read_now = true;
        } else if failed {
            key.due = now;
        }
        key.watchers.push(Entry { watcher, after, wait, class, must_answer, came });
    }

    /// Forgets a watch. Its long poll goes on, for the next watcher of the key.
    pub(in crate::agent) fn unwatch(&mut self, watcher: &Watcher, key: &str) {
        self.rests = None;
        self.failed.remove(&(watcher.clone(), key.to_owned()));
        if let Some(key) = self.keys.get_mut(key) {
            key.watchers.retain(|one| one.watcher != *watcher);
        }
        self.forget_idle(key);
    }

    /// The next request. Call it until it returns `None`.
    pub(in crate::agent) fn next(&mut self, now: Moment) -> Option<Ask> {
        if self.rests.is_some_and(|until| until.is_none_or(|until| now < until)) {
            return None;
        }
        let ask = self.next_read(now).or_else(|| self.next_poll(now)).or_else(|| self.next_batch(now));
        self.rests = ask.is_none().then(|| self.next_due());
        ask
    }

    /// When the next request is due.
    pub(in crate::agent) fn deadline(&self) -> Option<Moment> {
        self.rests.unwrap_or_else(|| self.next_due())
    }

    fn next_due(&self) -> Option<Moment> {
        let folders = self.keys.iter().filter(|(name, key)| is_folder(name) && key.is_idle());
        folders.map(|(_, key)| key.due).chain(self.batch_due()).min()
    }

    /// When the next transaction is due.
    fn batch_due(&self) -> Option<Moment> {
        if self.batches >= MAX_BATCHES {
            return None;
        }
        let keys = self.keys.iter().filter(|(name, key)| !is_folder(name) && key.is_idle());
        keys.map(|(_, key)| key.due).min()
    }

    /// Interval of reads of a key without a long poll. A folder shows ended sessions, which took a TTL or two to end.
    fn period_of(&self, key: &str) -> Duration {
        if is_folder(key) { self.period * 2 } else { self.period }
    }

    /// Handles an answer. Returns the answers for watchers.
    pub(in crate::agent) fn answered(&mut self, answer: Answer, now: Moment) -> Vec<WatchAnswer> {
        self.rests = None;
        match answer {
            Answer::Poll(key, answer) => self.poll_ended(&key, &answer, now),
            Answer::Read(key, answer) => {
                let Some(known) = self.keys.get_mut(&key) else { return Vec::new() };
                let Some(number) = known.look.take() else { return Vec::new() };
                self.tell(&key, &answer, number, false, now)
            }
            Answer::Batch(keys, answer) => {
                self.batches = self.batches.saturating_sub(1);
                self.batch_answered(&keys, answer, now)
            }
        }
    }

    fn poll_ended(&mut self, key: &str, answer: &Result<Reading, Failure>, now: Moment) -> Vec<WatchAnswer> {
        let due = now + self.period_of(key);
        let Some(known) = self.keys.get_mut(key) else { return Vec::new() };
        let Some(poll) = known.poll.take() else { return Vec::new() };
        known.due = due;
        // Its end is an answer too: the watcher decides when to watch again.
        self.tell(key, answer, poll.number, true, now)
    }

    fn batch_answered(
        &mut self,
        keys: &[String],
        answer: Result<Found, Failure>,
        now: Moment,
    ) -> Vec<WatchAnswer> {
        let mut told = Vec::new();
        for (place, key) in keys.iter().enumerate() {
            let Some(known) = self.keys.get_mut(key) else { continue };
            let Some(number) = known.look.take() else { continue };
            let answer = match &answer {
                Ok(Found::Pairs(pairs)) => match pairs.iter().find(|pair| pair.key == *key) {
                    Some(pair) => Ok(Reading { index: pair.modify_index, pair: Some(pair.clone()) }),
                    None => {
                        known.read_now = true;
                        continue;
                    }
                },
                Ok(Found::Refused(places)) if places.contains(&place) => {
                    // A read of the key alone shows the reason, and has an index.
                    known.read_now = true;
                    continue;
                }
                Ok(Found::Refused(_)) => {
                    known.due = now;
                    continue;
                }
                Err(failure) if failure.kind.is_transient() => Err(failure.clone()),
                // Too much for one answer, or some of it is hidden from the token: each alone.
                Err(_) => {
                    known.read_now = true;
                    continue;
                }
            };
            told.extend(self.tell(key, &answer, number, false, now));
        }
        for key in keys {
            self.forget_idle(key);
        }
        told
    }

    /// Answers the watchers of a key that a reading concerns. `ends`: it ends their long poll.
    fn tell(
        &mut self,
        key: &str,
        answer: &Result<Reading, Failure>,
        number: Number,
        ends: bool,
        now: Moment,
    ) -> Vec<WatchAnswer> {
        let Some(known) = self.keys.get_mut(key) else { return Vec::new() };
        let poll = known.poll;
        let concerns = |one: &mut Entry| {
            let was_there = one.came < number;
            match answer {
                Ok(Reading { pair: Some(pair), .. }) if pair.modify_index > one.after => true,
                // Consul was restored, unless the request is older than what the watcher knows.
                Ok(Reading { pair: Some(pair), .. }) if pair.modify_index < one.after => was_there,
                Ok(Reading { pair: None, .. }) => was_there,
                Ok(_) => was_there && (ends || one.must_answer),
                // A watcher that the long poll serves learns how that ends.
                Err(_) => was_there && (one.must_answer || poll.is_none_or(|poll| one.after < poll.after)),
            }
        };
        let concerned: Vec<_> = known.watchers.extract_if(.., concerns).collect();
        // A cut is no failure that has to end.
        if answer.as_ref().is_err_and(|failure| failure.kind != FailureKind::Cut) {
            self.failed.retain(|_, at| now.since(*at) < FAILURE_MEMORY);
            let key = || key.to_owned();
            self.failed.extend(concerned.iter().map(|one| ((one.watcher.clone(), key()), now)));
        }
        self.forget_idle(key);
        let told =
            |one: Entry| WatchAnswer { watcher: one.watcher, key: key.to_owned(), answer: answer.clone() };
        concerned.into_iter().map(told).collect()
    }

    fn next_read(&mut self, now: Moment) -> Option<Ask> {
        let wanted = |key: &Key| key.read_now && key.look.is_none() && !key.watchers.is_empty();
        let due = |name: &str, key: &Key| is_folder(name) && key.is_idle() && key.due <= now;
        let found = self.keys.iter().find(|(name, key)| wanted(key) || due(name, key));
        let name = found.map(|(name, _)| name.clone())?;
        let due = now + self.period_of(&name);
        let key = self.keys.get_mut(&name)?;
        key.read_now = false;
        key.due = due;
        self.last += 1;
        key.look = Some(self.last);
        Some(Ask::Read { key: name })
    }

    fn next_poll(&mut self, now: Moment) -> Option<Ask> {
        let polled = || self.keys.values().filter(|key| key.poll.is_some());
        if polled().count() >= MAX_LONG_POLLS {
            return None;
        }
        let waits = |key: &Key| key.class() == Some(Class::Waiting);
        let yields = polled().filter(|key| !waits(key)).count() >= MAX_LONG_POLLS - MIN_WAITER_POLLS;
        // Of waiters the oldest first: it is nearest to the head of its queue.
        let rank = |key: &Key| {
            let first = key.watchers.iter().min_by_key(|one| (one.class, &one.watcher))?;
            Some((first.class, first.watcher.clone()))
        };
        let may = |key: &Key| key.is_idle() && !key.must_answer() && (!yields || waits(key));
        let free = self.keys.iter_mut().filter(|(_, key)| may(key));
        let (name, key) = free.min_by_key(|(_, key)| rank(key))?;
        let after = key.watchers.iter().map(|one| one.after).min()?;
        let wait = key.watchers.iter().map(|one| one.wait).max()?;
        key.due = now + self.period;
        self.last += 1;
        key.poll = Some(Poll { number: self.last, after });
        Some(Ask::Poll { key: name.clone(), after, wait })
    }

    fn next_batch(&mut self, now: Moment) -> Option<Ask> {
        if self.batch_due()? > now {
            return None;
        }
        let keys = self.keys.iter_mut().filter(|(name, key)| !is_folder(name) && key.is_idle());
        let mut waiting: Vec<_> = keys.collect();
        // Also those that are not due yet: full transactions are the fewest.
        waiting.sort_by_key(|(_, key)| key.due);
        waiting.truncate(TXN_OPERATIONS);
        self.last += 1;
        let mut keys = Vec::new();
        for (name, key) in waiting {
            key.due = now + self.period;
            key.look = Some(self.last);
            keys.push(name.clone());
        }
        match <[String; 1]>::try_from(keys) {
            Ok([key]) => Some(Ask::Read { key }),
            Err(keys) => {
                self.batches += 1;
                Some(Ask::Batch { keys })
            }
        }
    }

    fn forget_idle(&mut self, name: &str) {
        let is_over = |key: &Key| key.watchers.is_empty() && key.poll.is_none() && key.look.is_none();
        if self.keys.get(name).is_some_and(is_over) {
            self.keys.remove(name);
        }
    }
}

impl Key {
    /// Whether it has watchers, and no request is under way.
    fn is_idle(&self) -> bool {
        !self.watchers.is_empty() && self.poll.is_none() && self.look.is_none()
    }

    fn must_answer(&self) -> bool {
        self.watchers.iter().any(|one| one.must_answer)
    }

    fn class(&self) -> Option<Class> {
        self.watchers.iter().map(|one| one.class).min()
    }
}

#[cfg(test)]
mod tests;
