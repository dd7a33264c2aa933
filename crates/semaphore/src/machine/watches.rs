//! The blocking queries of one machine, each on a single key. What they tell is never decided upon: it only wakes.

use std::collections::BTreeMap;

use super::{Backoff, Command, Context, Moment, Name};
use crate::backoff::jittered;
use crate::plan::Watch;
use crate::timing::{DENIED_WATCH_WAIT, MIN_WATCH_TIME, SPURIOUS_WATCH_WAIT, WATCH_WAIT};

#[derive(Clone, Copy, Debug)]
enum Watching {
    /// The query is under way.
    Since { begun: Moment, after: u64 },
    /// None is sent before.
    Not(Moment),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Watches {
    keys: BTreeMap<String, Watching>,
    /// The index that a key had before its last watch told of a change. A reading may deny the change.
    told_after: BTreeMap<String, u64>,
    spurious: Backoff,
    /// After changes that a reading has denied.
    denied: Backoff,
    /// Since when the watches fail, or readings in their place.
    pub(super) failing_since: Option<Moment>,
}

impl Watches {
    /// Makes the watches those that are wanted.
    pub(super) fn want(&mut self, wanted: Vec<Watch>, name: &Name, cx: &mut Context<'_>) {
        self.keys.retain(|key, state| {
            let keeps = wanted.iter().any(|one| one.key == *key);
            if !keeps && matches!(state, Watching::Since { .. }) {
                cx.out.push_back(Command::StopWatch { name: name.clone(), key: key.clone() });
            }
            keeps
        });
        self.told_after.retain(|key, _| wanted.iter().any(|one| one.key == *key));
        if wanted.is_empty() {
            self.failing_since = None;
        }
        for Watch { key, after } in wanted {
            match self.keys.get(&key) {
                Some(Watching::Since { .. }) => continue,
                Some(Watching::Not(until)) if cx.now < *until => continue,
                Some(Watching::Not(_)) | None => {}
            }
            // A reading has denied the change, as where the watch is answered by a server that was the leader once.
            if self.told_after.get(&key) == Some(&after) {
                self.told_after.remove(&key);
                self.keys.insert(key, Watching::Not(cx.now + self.denied.next(DENIED_WATCH_WAIT, cx.rng)));
                continue;
            }
            self.keys.insert(key.clone(), Watching::Since { begun: cx.now, after });
            let wait = jittered(WATCH_WAIT, 0.1, cx.rng);
            cx.out.push_back(Command::Watch { name: name.clone(), key, after, wait });
        }
    }

    /// A query has been answered with that index of its key, or has failed (`None`). Returns whether the key has changed, as
    /// far as is known; `None` where no query was under way.
    pub(super) fn answered(
        &mut self,
        key: &str,
        index: Option<u64>,
        now: Moment,
        rng: &mut fastrand::Rng,
    ) -> Option<bool> {
        let Some(Watching::Since { begun, after }) = self.keys.get(key).copied() else { return None };
        self.keys.remove(key);
        let Some(index) = index else { return Some(false) };
        // A watch of the folder that is not answered says nothing of those of keys.
        if now.since(begun) >= MIN_WATCH_TIME && !key.ends_with('/') {
            self.denied.reset();
        }
        if index != after {
            self.told_after.insert(key.to_owned(), after);
            return Some(true);
        }
        if now.since(begun) < MIN_WATCH_TIME {
            // The folder tells of rare events.
            let waits = if key.ends_with('/') { DENIED_WATCH_WAIT } else { SPURIOUS_WATCH_WAIT };
            self.keys.insert(key.to_owned(), Watching::Not(now + self.spurious.next(waits, rng)));
        } else {
            self.spurious.reset();
        }
        Some(false)
    }

    /// Whether the key is watched, so that what is known of it is new.
    pub(super) fn follows(&self, key: &str) -> bool {
        self.failing_since.is_none() && matches!(self.keys.get(key), Some(Watching::Since { .. }))
    }

    /// Whether nothing is watched.
    pub(super) fn is_idle(&self) -> bool {
        self.keys.is_empty()
    }

    /// When a query that rests may be sent.
    pub(super) fn timers(&self) -> impl Iterator<Item = Moment> {
        self.keys
            .values()
            .filter_map(|state| if let Watching::Not(until) = state { Some(*until) } else { None })
    }
}
