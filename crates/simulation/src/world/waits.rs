//! Blocking reads that wait, by key.

use std::collections::{BTreeSet, HashMap};

use super::Watches;
use crate::consul::Consul;
use crate::store_state::Change;
use slotkeeper_semaphore::{Command, Reading};

/// A blocking read that waits.
pub(super) struct Waiting {
    pub(super) agent: usize,
    pub(super) life: u64,
    pub(super) command: Command,
    pub(super) watch: u64,
    /// The known value, for a game in which no watch reports a change.
    pub(super) known: Option<Reading>,
}

#[derive(Default)]
pub(super) struct Waits {
    all: HashMap<u64, Waiting>,
    by_key: HashMap<String, BTreeSet<u64>>,
    /// The reads that any write may end: reads of folders and of missing keys.
    loose: BTreeSet<u64>,
}

impl Waiting {
    /// The key, and the index above which the read is answered.
    fn after(&self) -> (&str, u64) {
        let Command::Watch { key, after, .. } = &self.command else { unreachable!("only a watch waits") };
        (key, *after)
    }

    fn is_over(&self, consul: &Consul) -> bool {
        let (key, after) = self.after();
        consul.index_of(key) > after
    }
}

impl Waits {
    pub(super) fn begin(&mut self, number: u64, waiting: Waiting, consul: &Consul, watches: Watches) {
        let (key, _) = waiting.after();
        if watches == Watches::Never {
            // Only its time-out ends the read.
        } else if key.ends_with('/') || consul.store.key(key).found.is_none() {
            self.loose.insert(number);
        } else {
            self.by_key.entry(key.to_owned()).or_default().insert(number);
        }
        self.all.insert(number, waiting);
    }

    pub(super) fn end(&mut self, number: u64) -> Option<Waiting> {
        let waiting = self.all.remove(&number)?;
        let (key, _) = waiting.after();
        if !self.loose.remove(&number)
            && let Some(numbers) = self.by_key.get_mut(key)
        {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.by_key.remove(key);
            }
        }
        Some(waiting)
    }

    /// Removes the reads that these changes end, in the order in which they began.
    pub(super) fn changed(&mut self, changes: &[Change], consul: &Consul) -> Vec<Waiting> {
        let of_keys = changes.iter().filter_map(|change| self.by_key.get(change.key())).flatten();
        let over = |number: &&u64| self.all.get(number).is_some_and(|waiting| waiting.is_over(consul));
        let numbers: BTreeSet<_> = of_keys.chain(&self.loose).filter(over).copied().collect();
        numbers.into_iter().filter_map(|number| self.end(number)).collect()
    }
}
