//! The pace of logins. Neither a missing right nor a missing auth method may cause a flood of logins.

use std::time::Duration;

use tokio::time::Instant;

use super::Refusal;

/// The wait after a failed login; each further failure doubles it.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// Its maximum while requests wait for a token.
const MAX_WAIT_WITHOUT_TOKEN: Duration = Duration::from_secs(10);
/// The minimum age of a token before another login because Consul does not know it; doubled each time.
const UNKNOWN: Duration = Duration::from_secs(1);
/// The same for a missing right. Another login helps only if the binding rules have changed.
const DENIED: Duration = Duration::from_secs(60);
/// The maximum of all waits. After twice this time the count of refused tokens starts again.
const MAX_WAIT: Duration = Duration::from_secs(300);

/// The history of the logins.
#[derive(Debug, Default)]
pub(super) struct Pace {
    failed_at: Option<Instant>,
    /// Failed logins in a row.
    failures: u32,
    succeeded_at: Option<Instant>,
    /// Logins in a row whose tokens were refused soon.
    in_vain: u32,
    /// Random, 0 to 1: spreads the logins of clients that were refused together.
    share: f64,
}

impl Pace {
    /// Whether another attempt is due after failures. `needed`: there is no token to send.
    pub(super) fn may_try(&self, needed: bool, now: Instant) -> bool {
        let longest = if needed { MAX_WAIT_WITHOUT_TOKEN } else { MAX_WAIT };
        let wait = self.wait(AFTER_FAILURE, self.failures.saturating_sub(1), longest);
        self.failed_at.is_none_or(|failed| now.duration_since(failed) >= wait)
    }

    /// Whether the token of the last login is old enough to be replaced after a refusal.
    pub(super) fn may_replace(&self, refusal: Refusal, now: Instant) -> bool {
        let first = match refusal {
            Refusal::Unknown => UNKNOWN,
            Refusal::Denied => DENIED,
        };
        let wait = self.wait(first, self.in_vain, MAX_WAIT);
        self.succeeded_at.is_none_or(|got| now.duration_since(got) >= wait)
    }

    /// A login failed.
    pub(super) fn failed(&mut self, now: Instant, share: f64) {
        self.failed_at = Some(now);
        self.failures = self.failures.saturating_add(1);
        self.share = share;
    }

    /// A login returned a token. `refused`: Consul had refused the previous token.
    pub(super) fn succeeded(&mut self, refused: bool, now: Instant, share: f64) {
        let soon = self.succeeded_at.is_some_and(|got| now.duration_since(got) < MAX_WAIT * 2);
        self.in_vain = if refused && soon { self.in_vain.saturating_add(1) } else { 0 };
        *self = Self { failed_at: None, failures: 0, succeeded_at: Some(now), in_vain: self.in_vain, share };
    }

    /// The doubled wait, with jitter of a quarter.
    fn wait(&self, first: Duration, doublings: u32, longest: Duration) -> Duration {
        let doubled = first.saturating_mul(2_u32.saturating_pow(doublings)).min(longest);
        doubled.mul_f64(0.75 + self.share / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of logins within an hour in which each token is refused, with a request each second.
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
    fn a_missing_right_causes_few_logins() {
        for share in [0.0, 0.5, 1.0] {
            assert!((8..20).contains(&logins(Refusal::Denied, share)), "{}", logins(Refusal::Denied, share));
            assert!((10..30).contains(&logins(Refusal::Unknown, share)));
        }
    }

    #[test]
    fn an_old_token_is_replaced_at_once() {
        let start = Instant::now();
        let mut pace = Pace::default();
        pace.succeeded(false, start, 1.0);
        assert!(!pace.may_replace(Refusal::Unknown, start));
        let later = start + MAX_WAIT * 2;
        assert!(pace.may_replace(Refusal::Unknown, later) && pace.may_replace(Refusal::Denied, later));
        pace.succeeded(true, later, 1.0);
        assert!(pace.may_replace(Refusal::Unknown, later + Duration::from_secs(2)));
    }

    #[test]
    fn failures_slow_down_the_attempts() {
        let mut now = Instant::now();
        let mut pace = Pace::default();
        assert!(pace.may_try(true, now));
        for _ in 0..20 {
            pace.failed(now, 1.0);
            assert!(!pace.may_try(true, now));
            now += MAX_WAIT_WITHOUT_TOKEN.mul_f64(1.25);
            assert!(pace.may_try(true, now));
        }
        assert!(!pace.may_try(false, now), "a token that is still valid leaves time");
        assert!(pace.may_try(false, now + MAX_WAIT.mul_f64(1.25)));
        pace.succeeded(false, now, 1.0);
        assert!(pace.may_try(true, now));
    }
}
