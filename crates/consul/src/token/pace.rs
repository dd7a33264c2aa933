//! How often it is logged in: neither a right that is lacking nor an auth method that is gone may become a storm.

use std::time::Duration;

use tokio::time::Instant;

use super::Refusal;

/// The wait after a login that failed, doubled by each that follows.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// Its longest while requests wait for a token: no more than other attempts of the agent are apart.
const WHILE_NEEDED: Duration = Duration::from_secs(10);
/// The life of a token that another one may follow because Consul does not know it; doubled each time.
const UNKNOWN: Duration = Duration::from_secs(1);
/// The same because a right is lacking. Another login helps only where the binding rules have changed meanwhile.
const DENIED: Duration = Duration::from_secs(60);
/// No wait is longer. A token that was good for twice this long had nothing to do with the one before it.
const LONGEST: Duration = Duration::from_secs(300);

/// When it was logged in, with which success.
#[derive(Debug, Default)]
pub(super) struct Pace {
    failed_at: Option<Instant>,
    /// Logins in a row that failed.
    failures: u32,
    succeeded_at: Option<Instant>,
    /// Logins in a row whose tokens were soon refused.
    in_vain: u32,
    /// 0 to 1: keeps those apart that were refused together.
    share: f64,
}

impl Pace {
    /// Whether an attempt is due after those that failed. `needed`: there is no token to go on with.
    pub(super) fn may_try(&self, needed: bool, now: Instant) -> bool {
        let longest = if needed { WHILE_NEEDED } else { LONGEST };
        let wait = self.wait(AFTER_FAILURE, self.failures.saturating_sub(1), longest);
        self.failed_at.is_none_or(|failed| now.duration_since(failed) >= wait)
    }

    /// Whether the token of the last login has lived long enough to be replaced for being refused.
    pub(super) fn may_replace(&self, refusal: Refusal, now: Instant) -> bool {
        let first = match refusal {
            Refusal::Unknown => UNKNOWN,
            Refusal::Denied => DENIED,
        };
        let wait = self.wait(first, self.in_vain, LONGEST);
        self.succeeded_at.is_none_or(|got| now.duration_since(got) >= wait)
    }

    /// A login failed.
    pub(super) fn failed(&mut self, now: Instant, share: f64) {
        self.failed_at = Some(now);
        self.failures = self.failures.saturating_add(1);
        self.share = share;
    }

    /// A login gave a token, after the one before it was `refused`, or for another reason.
    pub(super) fn succeeded(&mut self, refused: bool, now: Instant, share: f64) {
        let soon = self.succeeded_at.is_some_and(|got| now.duration_since(got) < LONGEST * 2);
        self.in_vain = if refused && soon { self.in_vain.saturating_add(1) } else { 0 };
        *self = Self { failed_at: None, failures: 0, succeeded_at: Some(now), in_vain: self.in_vain, share };
    }

    /// Three quarters to five quarters of what doubling gives.
    fn wait(&self, first: Duration, doublings: u32, longest: Duration) -> Duration {
        let doubled = first.saturating_mul(2_u32.saturating_pow(doublings)).min(longest);
        doubled.mul_f64(0.75 + self.share / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Logins within the hour in which each token is refused so, looked at every second.
    fn logins(refusal: Refusal, share: f64) -> usize {
        let start = Instant::now();
        let mut pace = Pace::default();
        pace.succeeded(false, start, share);
        let due = |second: &u64| {
            let now = start + Duration::from_secs(*second);
            let due = pace.may_replace(refusal, now);
            if due {
                pace.succeeded(true, now, share);
            }
            due
        };
        (0..3600).filter(due).count()
    }

    #[test]
    fn a_right_that_is_lacking_costs_few_logins() {
        for share in [0.0, 0.5, 1.0] {
            assert!((8..20).contains(&logins(Refusal::Denied, share)), "{}", logins(Refusal::Denied, share));
            assert!((10..30).contains(&logins(Refusal::Unknown, share)));
        }
    }

    #[test]
    fn a_token_that_was_good_for_long_is_replaced_at_once() {
        let start = Instant::now();
        let mut pace = Pace::default();
        pace.succeeded(false, start, 1.0);
        assert!(!pace.may_replace(Refusal::Unknown, start));
        let later = start + LONGEST * 2;
        assert!(pace.may_replace(Refusal::Unknown, later) && pace.may_replace(Refusal::Denied, later));
        pace.succeeded(true, later, 1.0);
        assert!(pace.may_replace(Refusal::Unknown, later + Duration::from_secs(2)));
    }

    #[test]
    fn what_fails_is_tried_ever_more_seldom() {
        let mut now = Instant::now();
        let mut pace = Pace::default();
        assert!(pace.may_try(true, now));
        for _ in 0..20 {
            pace.failed(now, 1.0);
            assert!(!pace.may_try(true, now));
            now += WHILE_NEEDED.mul_f64(1.25);
            assert!(pace.may_try(true, now));
        }
        assert!(!pace.may_try(false, now), "a token that still serves leaves time");
        assert!(pace.may_try(false, now + LONGEST.mul_f64(1.25)));
        pace.succeeded(false, now, 1.0);
        assert!(pace.may_try(true, now));
    }
}
