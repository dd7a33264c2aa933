//! Times and their percentiles.

use std::time::Duration;

/// Times, the shortest first.
#[derive(Debug)]
pub(crate) struct Latencies(Vec<Duration>);

impl Latencies {
    /// The time that `percent` of them do not exceed; `None` where there are none.
    pub(crate) fn percentile(&self, percent: usize) -> Option<Duration> {
        let rank = (self.0.len() * percent).div_ceil(100);
        self.0.get(rank.saturating_sub(1)).copied()
    }
}

impl FromIterator<Duration> for Latencies {
    fn from_iter<I: IntoIterator<Item = Duration>>(times: I) -> Self {
        let mut times: Vec<_> = times.into_iter().collect();
        times.sort_unstable();
        Self(times)
    }
}
