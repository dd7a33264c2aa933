//! The moments behind the dates and durations of a status.

use slotkeeper_semaphore::Moment;

/// The moments on the agent's clock from which a report computes its dates and durations. A status that was read has none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moments {
    /// The time of the grant.
    pub held_since: Option<Moment>,
    /// The start of the wait, while it is not held.
    pub asked_at: Option<Moment>,
    /// The last read of the whole prefix or key; `None` before the first.
    pub seen_at: Option<Moment>,
    /// The expiry of a client's lease, unless it is renewed.
    pub expires_at: Option<Moment>,
}

impl Moments {
    /// The time of the grant, or else the start of the wait.
    pub(super) fn since(&self) -> Option<Moment> {
        self.held_since.or(self.asked_at)
    }
}
