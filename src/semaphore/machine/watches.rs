//! The blocking queries of one machine, each on a single key.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Backoff, Command, Context, Moment, Name, jittered, plan};

/// The wait after a watch that answered early with nothing new, first and longest. Consul promises no more than that
/// something *may* have changed, and advises clients to bound how often they ask.
const SPURIOUS: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(500));
/// A watch that ends before this has not waited.
const EARLY: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
enum Watching {
    /// The query is under way, since then.
    Since(Moment),
    /// None is sent before.
    Not(Moment),
}

#[derive(Clone, Debug)]
pub(super) struct Watches {
    keys: BTreeMap<String, Watching>,
    spurious: Backoff,
}

impl Default for Watches {
    fn default() -> Self {
        Self { keys: BTreeMap::new(), spurious: Backoff::new(SPURIOUS.0, SPURIOUS.1) }
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

    /// A query has been answered; `news`: with something that was not known. Whether it was under way.
    pub(super) fn answered(&mut self, key: &str, news: bool, now: Moment, rng: &mut fastrand::Rng) -> bool {
        let Some(Watching::Since(since)) = self.keys.get(key).copied() else { return false };
        self.keys.remove(key);
        if news {
            self.spurious.reset();
        } else if now.since(since) < EARLY {
            self.keys.insert(key.to_owned(), Watching::Not(now + self.spurious.next(rng)));
        }
        true
    }

    /// When a query that rests may be sent.
    pub(super) fn timers(&self) -> impl Iterator<Item = Moment> {
        self.keys.values().filter_map(|state| match state {
            Watching::Not(until) => Some(*until),
            Watching::Since(_) => None,
        })
    }
}
