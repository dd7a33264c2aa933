//! Whether the agent's loop makes progress, and whether a client reads its status. Independent of Consul.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use slotkeeper_semaphore::Moment;

/// Maximum time of a round of the loop, also without events.
pub const HEARTBEAT: Duration = Duration::from_secs(5);
/// Reads within this time count as one, so that a client in a loop costs little.
const VIEW_INTERVAL: Duration = Duration::from_millis(100);
/// Without a round for this long the loop counts as stuck.
const STUCK_AFTER: Duration = Duration::from_secs(20);

/// The watchdog of the loop.
#[derive(Debug)]
pub struct Watchdog {
    /// Milliseconds on the lease clock.
    last_heartbeat: AtomicU64,
    /// A client has read the status.
    viewed: Notify,
    /// The last notification, in milliseconds on the lease clock.
    told: AtomicU64,
}

impl Watchdog {
    pub fn new(now: Moment) -> Self {
        Self { last_heartbeat: AtomicU64::new(millis(now)), viewed: Notify::new(), told: AtomicU64::new(0) }
    }

    /// Notes that a client reads the status: it is worth a read of Consul to refresh it.
    pub fn view(&self, now: Moment) {
        let (now, told) = (millis(now), self.told.load(Ordering::Relaxed));
        let is_another = u128::from(now.saturating_sub(told)) >= VIEW_INTERVAL.as_millis();
        // Of two concurrent reads one notifies.
        let swap = || self.told.compare_exchange(told, now, Ordering::Relaxed, Ordering::Relaxed);
        if is_another && swap().is_ok() {
            self.viewed.notify_one();
        }
    }

    /// Resolves after the next read of the status.
    pub async fn viewed(&self) {
        self.viewed.notified().await;
    }

    /// Notes a round of the loop.
    pub fn heartbeat(&self, now: Moment) {
        self.last_heartbeat.store(millis(now), Ordering::Relaxed);
    }

    /// Time since the last round of the loop.
    pub fn silence(&self, now: Moment) -> Duration {
        Duration::from_millis(millis(now).saturating_sub(self.last_heartbeat.load(Ordering::Relaxed)))
    }

    /// Whether the loop makes progress.
    pub fn is_alive(&self, now: Moment) -> bool {
        self.silence(now) < STUCK_AFTER
    }
}

fn millis(moment: Moment) -> u64 {
    u64::try_from(moment.since_boot().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn is_told(watchdog: &Watchdog) -> bool {
        tokio::select! {
            biased;
            () = watchdog.viewed() => true,
            () = std::future::ready(()) => false,
        }
    }

    #[tokio::test]
    async fn one_who_looks_on_and_on_is_told_of_now_and_then() {
        let begun = Moment::from_boot(Duration::from_secs(7));
        let watchdog = Watchdog::new(begun);
        assert!(!is_told(&watchdog).await);
        for (millis, expected) in
            [(0, true), (50, false), (99, false), (100, true), (150, false), (5000, true)]
        {
            watchdog.view(begun + Duration::from_millis(millis));
            assert_eq!(is_told(&watchdog).await, expected, "after {millis} ms");
        }
    }
}
