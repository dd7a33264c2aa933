//! The keepers of leases that have something to do, so that an event of one does not cost a pass over all. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::Key;
use slotkeeper_semaphore::Moment;

/// The leases whose keepers have something to do, and when.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    /// Leases with events since their commands were last executed.
    touched: BTreeSet<Key>,
    /// Leases whose commands were executed, and that may have ended by it.
    carried_out: BTreeSet<Key>,
    /// Deadlines, the earliest first, and by lease.
    wakes: BTreeSet<(Moment, Key)>,
    wake_of: BTreeMap<Key, Moment>,
}

impl Agenda {
    /// The lease has an event.
    pub(super) fn touch(&mut self, key: Key) {
        self.touched.insert(key);
    }

    /// The next lease with an event.
    pub(super) fn next_touched(&mut self) -> Option<Key> {
        self.touched.pop_first()
    }

    /// The commands of the lease were executed, and its keeper has this deadline.
    pub(super) fn carried_out(&mut self, key: Key, wake: Option<Moment>) {
        self.carried_out.insert(key);
        self.wake(key, wake);
    }

    /// Leases whose commands were executed since the last call.
    pub(super) fn take_carried_out(&mut self) -> BTreeSet<Key> {
        std::mem::take(&mut self.carried_out)
    }

    /// Leases whose deadline is at `now` or earlier, each once.
    pub(super) fn due(&mut self, now: Moment) -> Vec<Key> {
        let mut due = Vec::new();
        while let Some((at, key)) = self.wakes.first().copied().filter(|(at, _)| *at <= now) {
            self.wakes.remove(&(at, key));
            self.wake_of.remove(&key);
            due.push(key);
        }
        due
    }

    /// The next deadline.
    pub(super) fn deadline(&self) -> Option<Moment> {
        self.wakes.first().map(|(at, _)| *at)
    }

    /// Those to which something has happened that has not been carried out.
    pub(super) fn touched(&self) -> impl Iterator<Item = Key> {
        self.touched.iter().copied()
    }

    /// The lease has ended.
    pub(super) fn forget(&mut self, key: Key) {
        self.touched.remove(&key);
        self.carried_out.remove(&key);
        self.wake(key, None);
    }

    fn wake(&mut self, key: Key, at: Option<Moment>) {
        let before = match at {
            Some(at) => self.wake_of.insert(key, at),
            None => self.wake_of.remove(&key),
        };
        if let Some(before) = before {
            self.wakes.remove(&(before, key));
        }
        self.wakes.extend(at.map(|at| (at, key)));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_boot(Duration::from_secs(seconds))
    }

    #[test]
    fn each_is_due_once_at_the_last_time_that_was_said() {
        let mut agenda = Agenda::default();
        let [a, b, c] = [0, 1, 2].map(Key::numbered);
        for (key, wake) in [(a, Some(at(5))), (b, Some(at(3))), (c, Some(at(4))), (a, Some(at(9))), (c, None)]
        {
            agenda.carried_out(key, wake);
        }
        assert_eq!(agenda.deadline(), Some(at(3)));
        assert_eq!(agenda.due(at(2)), []);
        assert_eq!(agenda.due(at(8)), [b]);
        assert_eq!(agenda.due(at(8)), [], "until it says when it wants to be told again");
        assert_eq!(agenda.deadline(), Some(at(9)));
        agenda.carried_out(b, Some(at(1)));
        assert_eq!(agenda.due(at(9)), [b, a]);
        assert_eq!(agenda.deadline(), None);
    }

    #[test]
    fn what_has_happened_is_looked_after_once() {
        let mut agenda = Agenda::default();
        let [a, b, c] = [0, 1, 2].map(Key::numbered);
        for key in [b, a, b, c] {
            agenda.touch(key);
        }
        agenda.forget(c);
        assert_eq!(agenda.next_touched(), Some(a));
        agenda.touch(a);
        assert_eq!(agenda.touched().collect::<Vec<_>>(), [a, b]);
        assert_eq!(
            [agenda.next_touched(), agenda.next_touched(), agenda.next_touched()],
            [Some(a), Some(b), None]
        );
        agenda.carried_out(b, None);
        agenda.carried_out(a, Some(at(1)));
        agenda.forget(a);
        assert_eq!(agenda.take_carried_out().into_iter().collect::<Vec<_>>(), [b]);
        assert!(agenda.take_carried_out().is_empty() && agenda.due(at(2)).is_empty());
    }
}
