//! Whether the agent's own loop makes progress, and whether anybody looks at the agent; knows nothing of Consul.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::semaphore::Moment;

/// The loop comes round at least this often, even when nothing happens.
pub const BEAT: Duration = Duration::from_secs(5);
/// Silence after which the loop counts as stuck.
const STUCK: Duration = Duration::from_secs(20);

/// The loop's pulse.
#[derive(Debug)]
pub struct Vitals {
    /// Milliseconds on the lease clock.
    beat: AtomicU64,
    /// Somebody has looked at what the agent shows.
    viewed: Notify,
}

impl Vitals {
    /// A pulse that begins now.
    pub fn new(now: Moment) -> Self {
        Self { beat: AtomicU64::new(millis(now)), viewed: Notify::new() }
    }

    /// Somebody looks at what the agent shows: it is worth a read of Consul to show it as it is now.
    pub fn view(&self) {
        self.viewed.notify_one();
    }

    /// Resolves once somebody has looked since it resolved last.
    pub async fn viewed(&self) {
        self.viewed.notified().await;
    }

    /// The loop has come round.
    pub fn beat(&self, now: Moment) {
        self.beat.store(millis(now), Ordering::Relaxed);
    }

    /// Time since the loop came round last.
    pub fn silence(&self, now: Moment) -> Duration {
        Duration::from_millis(millis(now).saturating_sub(self.beat.load(Ordering::Relaxed)))
    }

    /// Whether the loop makes progress.
    pub fn is_alive(&self, now: Moment) -> bool {
        self.silence(now) < STUCK
    }
}

fn millis(moment: Moment) -> u64 {
    u64::try_from(moment.since_boot().as_millis()).unwrap_or(u64::MAX)
}
