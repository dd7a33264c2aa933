//! The only module that reads a clock.
//!
//! Leases count on `CLOCK_BOOTTIME`: it never jumps, and unlike the monotonic clock it goes on while the machine is
//! suspended, as Consul's own clock does meanwhile.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, SystemTime};

use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;

use slotkeeper_semaphore::{Moment, Wall};

/// Now, on the clock that leases count on.
pub fn now() -> Moment {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    Moment::from_boot(Duration::new(seconds, nanos))
}

/// The processor time of this process, with all its threads.
pub fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The wall clock, for dates in output and metrics. No decision depends on it.
#[allow(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
pub fn wall() -> Wall {
    Wall::new(SystemTime::now(), now())
}

/// A timer on the clock that leases count on. The runtime's own timers stand still in suspend, and so would notice
/// the end of a lease only as much later as the machine has slept.
#[derive(Debug)]
pub struct Alarm {
    timer: AsyncFd<OwnedFd>,
}

impl Alarm {
    /// A timer that is not set.
    ///
    /// # Errors
    ///
    /// No file descriptor is left.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Boottime, flags)?;
        // The successor is `unsafe` since a type might give out another descriptor each time; `OwnedFd` does not.
        #[allow(deprecated, reason = "see above")]
        let timer = AsyncFd::new(timer)?;
        Ok(Self { timer })
    }

    /// Waits until the instant. A past one resolves at once. Cancel-safe: the next call sets the timer anew.
    ///
    /// # Errors
    ///
    /// The timer's descriptor failed, which nothing but a programming error explains.
    pub async fn until(&self, at: Moment) -> io::Result<()> {
        let since = at.since_boot().max(Duration::from_nanos(1));
        let value = Timespec {
            tv_sec: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: since.subsec_nanos().into(),
        };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &once)?;
        loop {
            let mut ready = self.timer.readable().await?;
            let mut expirations = [0_u8; 8];
            match ready.try_io(|timer| Ok(rustix::io::read(timer, &mut expirations)?)) {
                Ok(read) => return read.map(drop),
                Err(_not_yet) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn rings_at_the_instant_and_at_once_for_a_past_one() {
        let alarm = Alarm::new().unwrap();
        let at = now() + Duration::from_millis(20);
        alarm.until(at).await.unwrap();
        assert!(now() >= at);
        alarm.until(at).await.unwrap();
        // A dropped wait leaves nothing behind that would end the next one early.
        let later = now() + Duration::from_millis(40);
        let _ = tokio::time::timeout(Duration::from_millis(1), alarm.until(later)).await;
        let latest = now() + Duration::from_millis(80);
        alarm.until(latest).await.unwrap();
        assert!(now() >= latest);
    }
}
