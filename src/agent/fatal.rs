//! Which failures and obstacles waiting cannot cure, and when that is certain; pure.
//!
//! A new token or node may be unknown to one server for a moment, so one answer is not enough.

use std::time::Duration;

use crate::exit::Exit;
use slotkeeper_semaphore::{Failing, FailureKind, Moment, Obstacle, ObstacleKind};

/// Answers of the same kind in a row, and the time from the first to the last one.
const ANSWERS: u32 = 3;
const LASTING: Duration = Duration::from_secs(3);

/// The exit code for a failure that waiting cannot cure. `None` for one that may pass.
pub(super) fn exit_of_failure(kind: FailureKind) -> Option<Exit> {
    match kind {
        FailureKind::Denied => Some(Exit::Denied),
        FailureKind::NoToken | FailureKind::Misconfigured | FailureKind::InvalidKey => Some(Exit::Config),
        FailureKind::Mismatch | FailureKind::NotConsul => Some(Exit::Unavailable),
        FailureKind::NotFound
        | FailureKind::NoLeader
        | FailureKind::Unavailable
        | FailureKind::RateLimited
        | FailureKind::Cut
        | FailureKind::Rejected => None,
    }
}

/// The exit code for an obstacle that waiting cannot cure. `None` for one that other clients may remove.
pub(super) fn exit_of_obstacle(kind: ObstacleKind) -> Option<Exit> {
    match kind {
        ObstacleKind::OtherContent | ObstacleKind::Limit => Some(Exit::Config),
        ObstacleKind::OtherContentHeld | ObstacleKind::LimitBelowGroup => None,
    }
}

/// The exit code once it is certain that the failure lasts.
pub(super) fn verdict_on_failure(failing: &Failing) -> Option<Exit> {
    let kind = failing.failure.kind;
    // Consul's rule for names, and a file of this machine: no server knows better.
    let at_once = matches!(kind, FailureKind::InvalidKey | FailureKind::NoToken);
    let lasts = failing.times >= ANSWERS && failing.latest.since(failing.since) >= LASTING;
    exit_of_failure(kind).filter(|_| at_once || lasts)
}

/// The exit code once it is certain that the obstacle lasts: `since` it was read, a watch has reported no change of the key.
pub(super) fn verdict_on_obstacle(obstacle: &Obstacle, since: Moment, now: Moment) -> Option<Exit> {
    exit_of_obstacle(obstacle.kind).filter(|_| now.since(since) >= LASTING)
}

/// When [`verdict_on_obstacle`] is certain.
pub(super) fn certain_at(since: Moment) -> Moment {
    since + LASTING
}

/// The exit code of a wait that timed out.
pub(super) fn exit_at_the_bound(
    failure: Option<FailureKind>,
    obstacle: Option<ObstacleKind>,
    reached: bool,
) -> Exit {
    let permanent = obstacle.and_then(exit_of_obstacle).or(failure.and_then(exit_of_failure));
    permanent.unwrap_or(if reached { Exit::Timeout } else { Exit::Unavailable })
}

#[cfg(test)]
mod tests {
    use super::*;
    use slotkeeper_semaphore::Failure;

    fn at(millis: u64) -> Moment {
        Moment::from_boot(Duration::from_millis(millis))
    }

    fn failing(kind: FailureKind, times: u32, latest: u64) -> Failing {
        Failing { failure: Failure { kind, text: String::new() }, since: at(1000), latest: at(latest), times }
    }

    #[test]
    fn three_answers_over_three_seconds_are_certain() {
        for (times, latest, exit) in [
            (1, 1000, None),
            (2, 4000, None),
            (30, 3999, None),
            (3, 4000, Some(Exit::Denied)),
            (7, 9000, Some(Exit::Denied)),
        ] {
            assert_eq!(
                verdict_on_failure(&failing(FailureKind::Denied, times, latest)),
                exit,
                "{times} {latest}"
            );
        }
    }

    #[test]
    fn each_kind_has_its_code_and_what_may_pass_has_none() {
        for (kind, exit) in [
            (FailureKind::Misconfigured, Some(Exit::Config)),
            (FailureKind::Mismatch, Some(Exit::Unavailable)),
            (FailureKind::NotConsul, Some(Exit::Unavailable)),
            (FailureKind::NoLeader, None),
            (FailureKind::Unavailable, None),
            (FailureKind::RateLimited, None),
            (FailureKind::Rejected, None),
        ] {
            assert_eq!(verdict_on_failure(&failing(kind, 100, 60_000)), exit, "{kind:?}");
        }
    }

    #[test]
    fn a_name_that_consul_refuses_and_a_missing_token_file_are_certain_at_once() {
        for kind in [FailureKind::InvalidKey, FailureKind::NoToken] {
            assert_eq!(verdict_on_failure(&failing(kind, 1, 1000)), Some(Exit::Config));
        }
    }

    #[test]
    fn content_that_a_session_holds_is_waited_for() {
        let of = |kind| Obstacle { kind, why: String::new() };
        let verdict = |kind, now| verdict_on_obstacle(&of(kind), at(1000), at(now));
        assert_eq!(verdict(ObstacleKind::OtherContent, 3999), None);
        assert_eq!(certain_at(at(1000)), at(4000));
        assert_eq!(verdict(ObstacleKind::OtherContent, 4000), Some(Exit::Config));
        assert_eq!(verdict(ObstacleKind::Limit, 4000), Some(Exit::Config));
        for kind in [ObstacleKind::OtherContentHeld, ObstacleKind::LimitBelowGroup] {
            assert_eq!(verdict(kind, 60_000), None);
        }
    }

    #[test]
    fn at_the_bound_a_permanent_fault_has_its_own_code() {
        for (failure, obstacle, reached, exit) in [
            (None, None, true, Exit::Timeout),
            (None, None, false, Exit::Unavailable),
            (Some(FailureKind::Unavailable), None, true, Exit::Timeout),
            (Some(FailureKind::Denied), None, true, Exit::Denied),
            (Some(FailureKind::NotConsul), None, false, Exit::Unavailable),
            (None, Some(ObstacleKind::OtherContent), true, Exit::Config),
            (None, Some(ObstacleKind::OtherContentHeld), true, Exit::Timeout),
        ] {
            assert_eq!(exit_at_the_bound(failure, obstacle, reached), exit, "{failure:?} {obstacle:?}");
        }
    }
}
