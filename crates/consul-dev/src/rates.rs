//! Consul's request limits: a bucket of reads and one of writes for the whole server.

use std::sync::{Mutex, PoisonError};

use super::dialect::Kind;
use slotkeeper_semaphore::Moment;

/// The size of a bucket, in seconds of its rate, as in Consul.
const BURST: f64 = 10.0;

/// The two buckets. Requests of a kind without a rate are not limited.
#[derive(Debug)]
pub(crate) struct Rates {
    reads: Option<Mutex<Bucket>>,
    writes: Option<Mutex<Bucket>>,
}

#[derive(Debug)]
struct Bucket {
    rate: f64,
    tokens: f64,
    filled_at: Option<Moment>,
}

impl Rates {
    pub(crate) fn new(reads: Option<u32>, writes: Option<u32>) -> Self {
        let bucket = |rate: u32| {
            let rate = f64::from(rate);
            Mutex::new(Bucket { rate, tokens: rate * BURST, filled_at: None })
        };
        Self { reads: reads.map(bucket), writes: writes.map(bucket) }
    }

    /// Takes one request from the bucket. Returns whether the bucket had one left.
    pub(crate) fn admits(&self, kind: Kind, now: Moment) -> bool {
        let bucket = match kind {
            Kind::Read => &self.reads,
            Kind::Write => &self.writes,
        };
        let Some(bucket) = bucket else { return true };
        bucket.lock().unwrap_or_else(PoisonError::into_inner).take(now)
    }
}

impl Bucket {
    fn take(&mut self, now: Moment) -> bool {
        let passed = self.filled_at.map_or(0.0, |at| now.since(at).as_secs_f64());
        self.filled_at = Some(now);
        self.tokens = (self.tokens + passed * self.rate).min(self.rate * BURST);
        let admits = self.tokens >= 1.0;
        if admits {
            self.tokens -= 1.0;
        }
        admits
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn ten_seconds_worth_may_come_at_once_and_then_the_rate() {
        let rates = Rates::new(Some(2), None);
        let at = |ms: u64| Moment::from_boot(Duration::from_millis(1000 + ms));
        let admitted = |now| (0..100).filter(|_| rates.admits(Kind::Read, now)).count();
        assert_eq!(admitted(at(0)), 20);
        assert_eq!(admitted(at(499)), 0);
        assert_eq!(admitted(at(500)), 1);
        assert_eq!(admitted(at(1500)), 2);
        assert_eq!(admitted(at(3_600_000)), 20);
        assert!((0..100).all(|_| rates.admits(Kind::Write, at(0))));
    }
}
