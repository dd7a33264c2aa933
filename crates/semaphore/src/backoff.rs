//! Waits between attempts: they double, have a ceiling, and are random in their upper half, so that agents that failed
//! together do not come back together.

use std::time::Duration;

/// Counts failures in a row and says how long to wait after each.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Counts a failure; the time to wait before the next attempt. The waits go from the first to the longest of `waits`.
    pub(super) fn next(&mut self, waits: (Duration, Duration), rng: &mut fastrand::Rng) -> Duration {
        let (first, longest) = waits;
        let factor = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        self.failures = self.failures.saturating_add(1).min(31);
        jittered(first.saturating_mul(factor).min(longest), 0.5, rng)
    }

    /// Counts a success.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }
}

/// `time`, shortened at random by up to the given share of it.
pub(super) fn jittered(time: Duration, share: f64, rng: &mut fastrand::Rng) -> Duration {
    time.mul_f64(1.0 - share * rng.f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_to_the_ceiling_and_starts_again_after_success() {
        let mut rng = fastrand::Rng::with_seed(1);
        let (mut backoff, waits) = (Backoff::default(), (Duration::from_millis(100), Duration::from_secs(1)));
        for expected in [100, 200, 400, 800, 1000, 1000, 1000] {
            let wait = backoff.next(waits, &mut rng);
            let expected = Duration::from_millis(expected);
            assert!(wait <= expected && wait >= expected / 2, "{wait:?} of {expected:?}");
        }
        backoff.reset();
        assert!(backoff.next(waits, &mut rng) <= Duration::from_millis(100));
        for _ in 0..100 {
            assert!(backoff.next(waits, &mut rng) <= Duration::from_secs(1));
        }
    }
}
