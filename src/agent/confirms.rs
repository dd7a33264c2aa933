//! Combines the reads by which keepers confirm keys at the same time. Pure.

use std::collections::BTreeSet;

use slotkeeper_consul::TXN_OPERATIONS;

/// The keys to read, each set with its asker.
#[derive(Debug)]
pub(super) struct Confirms<Asker> {
    wanted: Vec<(Asker, Vec<String>)>,
}

impl<Asker> Default for Confirms<Asker> {
    fn default() -> Self {
        Self { wanted: Vec::new() }
    }
}

impl<Asker> Confirms<Asker> {
    /// Wants a read of these keys that is sent from here on.
    pub(super) fn want(&mut self, keys: Vec<String>, asker: Asker) {
        self.wanted.push((asker, keys));
    }

    /// The keys to read by one transaction now. Call it until it returns `None`.
    pub(super) fn next(&mut self) -> Option<Vec<(Asker, Vec<String>)>> {
        let mut keys = BTreeSet::new();
        let mut fits = |(_, wanted): &&(Asker, Vec<String>)| {
            keys.extend(wanted.iter().cloned());
            keys.len() <= TXN_OPERATIONS
        };
        let together = self.wanted.iter().take_while(&mut fits).count();
        // A single asker is not split, whatever its size.
        let together = together.max(1).min(self.wanted.len());
        (together > 0).then(|| self.wanted.drain(..together).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_are_read_together_as_a_transaction_takes_and_a_key_of_several_counts_once() {
        let mut confirms = Confirms::default();
        assert!(confirms.next().is_none());
        let apart = |number: usize| vec![format!("a{number}/own"), format!("a{number}/.lock")];
        let shared = |number: usize| vec![format!("s/{number}"), "s/.lock".into()];
        for number in 0..33 {
            confirms.want(apart(number), number);
        }
        for number in 33..110 {
            confirms.want(shared(number), number);
        }
        let mut batches = Vec::new();
        while let Some(batch) = confirms.next() {
            let keys: BTreeSet<_> = batch.iter().flat_map(|(_, keys)| keys).collect();
            assert!(keys.len() <= TXN_OPERATIONS, "{} keys", keys.len());
            batches.push(batch.into_iter().map(|(asker, _)| asker).collect::<Vec<_>>());
        }
        assert_eq!(batches.iter().map(Vec::len).collect::<Vec<_>>(), [32, 62, 16]);
        assert!(batches.concat().into_iter().eq(0..110), "each once and in its turn");
    }
}
