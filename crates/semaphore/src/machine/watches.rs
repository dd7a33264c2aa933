//! The blocking queries of one machine, each on a single key.

use crate::timing::{DENIED_WATCH_WAIT, FOLDER_WATCH_WAIT, MIN_WATCH_TIME, SPURIOUS_WATCH_WAIT};
use std::collections::BTreeMap;
use std::time::Duration;

use super::{Backoff, Command, Context, FailureKind, Moment, Name, jittered, plan};

#[derive(Clone, Copy, Debug)]
enum Watching {
    /// The query is under way, since then.
    Since(Moment),
    /// None is sent before.
    Not(Moment),
}

/// Whether the query before the present one was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    Answered,
    /// It was cut off by what lies between.
    Cut,
    Failed,
}

/// What is to be thought of a key's watch: by how it went, and by what consistent reads say.
#[derive(Clone, Debug)]
struct Trust {
    before: Before,
    /// The watch reported a change that no consistent read has shown yet: the key's index before it.
    told_after: Option<u64>,
    /// Whether the last such change was denied.
    denied: bool,
    rest: Backoff,
}

impl Default for Trust {
    fn default() -> Self {
        Self {
            before: Before::Answered,
            told_after: None,
            denied: false,
            rest: Backoff::new(DENIED_WATCH_WAIT.0, DENIED_WATCH_WAIT.1),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Watches {
    keys: BTreeMap<String, Watching>,
    trust: BTreeMap<String, Trust>,
    spurious: Backoff,
}

impl Default for Watches {
    fn default() -> Self {
        let spurious = Backoff::new(SPURIOUS_WATCH_WAIT.0, SPURIOUS_WATCH_WAIT.1);
        Self { keys: BTreeMap::new(), trust: BTreeMap::new(), spurious }
    }
}

impl Watches {
    /// Makes the watches those that are wanted; each lasts for `wait` at most.
    pub(super) fn want(
        &mut self,
        wanted: Vec<plan::Watch>,
        wait: Duration,
        name: &Name,
        cx: &mut Context<'_>,
    ) {
        self.keys.retain(|key, state| {
            let keeps = wanted.iter().any(|one| one.key == *key);
            if !keeps && matches!(state, Watching::Since(_)) {
                cx.out.push_back(Command::StopWatch { name: name.clone(), key: key.clone() });
            }
            keeps
        });
        self.trust.retain(|key, _| wanted.iter().any(|one| one.key == *key));
        for plan::Watch { key, after } in wanted {
            match self.keys.get(&key) {
                Some(Watching::Since(_)) => continue,
                Some(Watching::Not(until)) if cx.now < *until => continue,
                Some(Watching::Not(_)) | None => {}
            }
            self.keys.insert(key.clone(), Watching::Since(cx.now));
            let wait = jittered(wait, 0.1, cx.rng);
            cx.out.push_back(Command::Watch { name: name.clone(), key, after, wait });
        }
    }

    /// A query has been answered with that index of its key, or has failed so; `known` is the index that was known. `None` where
    /// no query was under way; else whether one has been all the time, so that what it tells has happened just now.
    pub(super) fn answered(
        &mut self,
        key: &str,
        answer: Result<u64, FailureKind>,
        known: u64,
        now: Moment,
        rng: &mut fastrand::Rng,
    ) -> Option<bool> {
        let Some(Watching::Since(since)) = self.keys.get(key).copied() else { return None };
        self.keys.remove(key);
        let early = now.since(since) < MIN_WATCH_TIME;
        let trust = self.trust.entry(key.to_owned()).or_default();
        let goes = match answer {
            Ok(_) => Before::Answered,
            Err(FailureKind::Cut) if trust.before != Before::Failed => Before::Cut,
            Err(_) => Before::Failed,
        };
        let in_time = match std::mem::replace(&mut trust.before, goes) {
            Before::Answered => true,
            // A new query reports earlier changes at once.
            Before::Cut => !early,
            Before::Failed => false,
        };
        if key.ends_with('/') {
            self.keys.insert(key.to_owned(), Watching::Not(now + jittered(FOLDER_WATCH_WAIT, 0.3, rng)));
        }
        match answer {
            Ok(index) if index != known => {
                self.spurious.reset();
                trust.told_after.get_or_insert(known);
            }
            Ok(_) if early => {
                self.keys.insert(key.to_owned(), Watching::Not(now + self.spurious.next(rng)));
            }
            Ok(_) | Err(_) => {}
        }
        Some(in_time)
    }

    /// Consistent reads show the keys with these indexes, where they show them at all. A key whose watch told a change that
    /// did not happen rests, each time for longer.
    pub(super) fn proved(
        &mut self,
        index_of: impl Fn(&str) -> Option<u64>,
        now: Moment,
        rng: &mut fastrand::Rng,
    ) {
        for (key, trust) in &mut self.trust {
            let (Some(before), Some(index)) = (trust.told_after, index_of(key)) else { continue };
            trust.told_after = None;
            trust.denied = index == before;
            if !trust.denied {
                trust.rest.reset();
                continue;
            }
            let rests = Watching::Not(now + trust.rest.next(rng));
            self.keys
                .entry(key.clone())
                .and_modify(|state| {
                    if let Watching::Not(_) = state {
                        *state = rests;
                    }
                })
                .or_insert(rests);
        }
    }

    /// Whether a consistent read denied the last change that the watch reported.
    pub(super) fn doubts(&self, key: &str) -> bool {
        self.trust.get(key).is_some_and(|trust| trust.denied)
    }

    /// Whether nothing is watched.
    pub(super) fn is_idle(&self) -> bool {
        self.keys.is_empty()
    }

    /// When a query that rests may be sent.
    pub(super) fn timers(&self) -> impl Iterator<Item = Moment> {
        self.keys.values().filter_map(|state| match state {
            Watching::Not(until) => Some(*until),
            Watching::Since(_) => None,
        })
    }
}
