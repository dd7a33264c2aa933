//! The moments behind the dates and durations of a status.

use std::time::Duration;

use slotkeeper_semaphore::Moment;

/// The moments on the agent's clock from which a report computes its dates and durations. A status that was read has none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moments {
    /// Since when it is held.
    pub held_since: Option<Moment>,
    /// Since when it is waited for, while it is not held.
    pub asked_at: Option<Moment>,
    /// When Consul's view of it was last read as a whole; `None` where nothing is known.
    pub seen_at: Option<Moment>,
    /// Of a lock: when its lock-delay ends, as far as is known.
    pub delayed_until: Option<Moment>,
    /// Of a client's lease: when it expires unless it is renewed.
    pub expires_at: Option<Moment>,
}

/// To the millisecond: more is noise.
pub(super) fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1000.0).round() / 1000.0
}
