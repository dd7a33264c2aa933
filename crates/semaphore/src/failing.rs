//! A failure, and how often it has come in a row.

use super::Moment;
use super::command::Failure;

/// Requests fail at present, all for the same kind of reason, and none has succeeded in between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failing {
    /// The last failure.
    pub failure: Failure,
    /// When the first one of this kind came.
    pub since: Moment,
    /// When the last one came.
    pub latest: Moment,
    /// How many came.
    pub times: u32,
}

impl Failing {
    /// Notes another failure. Returns whether its kind differs from that of the last one.
    pub(super) fn note(current: &mut Option<Self>, failure: &Failure, now: Moment) -> bool {
        match current {
            Some(failing) if failing.failure.kind == failure.kind => {
                failing.failure = failure.clone();
                failing.latest = now;
                failing.times = failing.times.saturating_add(1);
                false
            }
            other => {
                *other = Some(Self { failure: failure.clone(), since: now, latest: now, times: 1 });
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::FailureKind;

    #[test]
    fn failures_of_one_kind_are_counted_until_another_kind_comes() {
        let at = |seconds| Moment::from_boot(Duration::from_secs(seconds));
        let of = |kind, text: &str| Failure { kind, text: text.into() };
        let mut current = None;
        assert!(Failing::note(&mut current, &of(FailureKind::Denied, "a"), at(1)));
        assert!(!Failing::note(&mut current, &of(FailureKind::Denied, "b"), at(3)));
        let failing = current.clone().unwrap();
        assert_eq!((failing.times, failing.since, failing.latest), (2, at(1), at(3)));
        assert_eq!(failing.failure.text, "b");
        assert!(Failing::note(&mut current, &of(FailureKind::Unavailable, "c"), at(4)));
        assert_eq!(current.map(|failing| (failing.times, failing.since)), Some((1, at(4))));
    }
}
