//! The clock of the store, on which sessions end.

use rustix::time::{ClockId, clock_gettime};
use slotkeeper_semaphore::Moment;
use std::time::Duration;

/// The time of `CLOCK_BOOTTIME`: sessions expire also while the machine is suspended.
pub(crate) fn now() -> Moment {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    Moment::from_boot(Duration::new(seconds, nanos))
}
