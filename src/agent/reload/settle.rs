//! Settling of changed files. They are read again once they have been unchanged for a while, so that a writer of several files,
//! or of one in several steps, is done by then.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use slotkeeper_semaphore::Moment;

/// How long changed files must have been unchanged before they are read again.
pub(super) const SETTLE: Duration = Duration::from_secs(2);

/// The files of a configuration, each with the fingerprint of its content. `None`: the file is missing or cannot be read.
pub type Fingerprints = BTreeMap<PathBuf, Option<u64>>;

/// The files as they were read last, and their changes since.
#[derive(Debug)]
pub(super) struct Settling {
    read: Fingerprints,
    /// The changed fingerprints, and the time when they were first seen.
    changed: Option<(Fingerprints, Moment)>,
}

impl Settling {
    /// Starts with the fingerprints of the last read.
    pub(super) fn new(read: Fingerprints) -> Self {
        Self { read, changed: None }
    }

    /// The files to look at.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.read.keys().map(PathBuf::as_path)
    }

    /// Takes the files' current fingerprints. Returns the changed files when they are due for a read; they then count as read.
    ///
    /// A file that is missing or cannot be read counts as unchanged, since a reload would fail.
    pub(super) fn observe(&mut self, seen: &Fingerprints, now: Moment) -> Option<Vec<PathBuf>> {
        let current = |(path, read): (&PathBuf, &Option<u64>)| {
            (path.clone(), seen.get(path).copied().flatten().or(*read))
        };
        let current: Fingerprints = self.read.iter().map(current).collect();
        if current == self.read {
            self.changed = None;
            return None;
        }
        match &self.changed {
            Some((before, since)) if *before == current => {
                if now.since(*since) < SETTLE {
                    return None;
                }
            }
            Some(_) | None => {
                self.changed = Some((current, now));
                return None;
            }
        }
        self.changed = None;
        let before = std::mem::replace(&mut self.read, current);
        let changed = self.read.iter().filter(|(path, print)| before.get(*path) != Some(print));
        Some(changed.map(|(path, _)| path.clone()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_boot(Duration::from_secs(1000 + seconds))
    }

    fn files<const N: usize>(files: [(&str, Option<u64>); N]) -> Fingerprints {
        files.into_iter().map(|(path, print)| (path.into(), print)).collect()
    }

    #[test]
    fn a_change_is_reported_once_after_two_seconds() {
        let mut settling = Settling::new(files([("c", Some(1)), ("t", Some(1))]));
        let changed = files([("c", Some(2)), ("t", Some(1))]);
        for second in 0..2 {
            assert_eq!(settling.observe(&changed, at(second)), None, "after {second} s");
        }
        assert_eq!(settling.observe(&changed, at(2)), Some(vec!["c".into()]));
        // A refused change is not reported again.
        for second in 3..9 {
            assert_eq!(settling.observe(&changed, at(second)), None);
        }
        let again = files([("c", Some(1)), ("t", Some(1))]);
        assert_eq!(settling.observe(&again, at(9)), None);
        assert_eq!(settling.observe(&again, at(11)), Some(vec!["c".into()]));
    }

    #[test]
    fn a_file_settles_after_its_last_change() {
        let mut settling = Settling::new(files([("c", Some(0)), ("t", Some(0))]));
        for second in 0..8 {
            // Either file changes.
            let seen = files([("c", Some(1 + second / 4)), ("t", Some(second))]);
            assert_eq!(settling.observe(&seen, at(second)), None);
        }
        let last = files([("c", Some(2)), ("t", Some(7))]);
        assert_eq!(settling.observe(&last, at(9)), Some(vec!["c".into(), "t".into()]));
        assert_eq!(settling.observe(&files([("c", Some(5))]), at(10)), None);
        assert_eq!(settling.observe(&last, at(11)), None);
        assert_eq!(settling.observe(&files([("c", Some(5))]), at(12)), None, "the time starts again");
    }

    #[test]
    fn a_missing_file_is_no_change_and_one_that_is_back_may_be() {
        let mut settling = Settling::new(files([("c", Some(1)), ("t", None)]));
        for second in 0..9 {
            assert_eq!(settling.observe(&files([("c", None)]), at(second)), None);
        }
        let back = files([("c", Some(1)), ("t", Some(3))]);
        assert_eq!(settling.observe(&back, at(9)), None);
        assert_eq!(settling.observe(&back, at(11)), Some(vec!["t".into()]));
        assert_eq!(settling.paths().count(), 2);
    }
}
