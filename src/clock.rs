//! The only module that reads a clock.
//!
//! Leases count on `CLOCK_BOOTTIME`: it never jumps, and unlike the monotonic clock it goes on while the machine is
//! suspended, as Consul's own clock does meanwhile.

use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};

use crate::semaphore::Moment;

/// Now, on the clock that leases count on.
pub fn now() -> Moment {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    Moment::from_boot(Duration::new(seconds, nanos))
}

/// The wall clock, for what people and Prometheus read. Nothing is decided by it.
#[allow(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
pub fn wall() -> SystemTime {
    SystemTime::now()
}
