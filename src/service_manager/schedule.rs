//! When the service manager hears from the agent again; pure.

use std::time::Duration;

use super::report::Message;
use crate::watchdog::HEARTBEAT;
use slotkeeper_semaphore::Moment;

/// The text of the status changes at most this often: a crowd moves many times a second.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);
/// While the agent starts or stops, its time-outs are extended by this much, and this often.
const EXTENSION: Duration = Duration::from_secs(30);
const EXTENSION_INTERVAL: Duration = Duration::from_secs(10);
/// Reports within `WatchdogSec=`, so that two may be late.
const REPORTS_PER_WATCHDOG: u32 = 3;
/// The shortest time between two looks at what is due.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// Without a round of the loop for this long, its progress is not reported. `WatchdogSec=` begins after this time, and both together
/// must end before the lease does.
const MAX_SILENCE: Duration = HEARTBEAT.saturating_mul(2);

/// The times of what is sent again and again.
#[derive(Debug)]
pub(super) struct Schedule {
    /// The status that was sent is not that of the last snapshot.
    is_stale: bool,
    status_due: Moment,
    is_timed: bool,
    extension_due: Moment,
    watchdog_due: Moment,
    /// The time between two reports to the watchdog of the service manager, if it has one for this process.
    watchdog_interval: Option<Duration>,
}

impl Schedule {
    /// All is due; `watchdog` is the time of `WatchdogSec=`.
    pub(super) fn new(watchdog: Option<Duration>, now: Moment) -> Self {
        let interval = |within: Duration| (within / REPORTS_PER_WATCHDOG).max(MIN_INTERVAL);
        let watchdog_interval = watchdog.map(interval);
        Self {
            is_stale: true,
            status_due: now,
            is_timed: true,
            extension_due: now,
            watchdog_due: now,
            watchdog_interval,
        }
    }

    /// The snapshot has changed, or a status was not sent.
    pub(super) fn stale(&mut self) {
        self.is_stale = true;
    }

    /// Whether to compute the status. It counts as sent.
    pub(super) fn take_status(&mut self, now: Moment) -> bool {
        let due = self.is_stale && self.status_due <= now;
        if due {
            self.is_stale = false;
            self.status_due = now + STATUS_INTERVAL;
        }
        due
    }

    /// The messages of an agent that makes progress: `silence` is the time since the last round of its loop. `is_timed`: the service
    /// manager has a time-out for its start or its stop.
    pub(super) fn progress(&mut self, is_timed: bool, silence: Duration, now: Moment) -> Vec<Message> {
        if is_timed && !self.is_timed {
            self.extension_due = now;
        }
        self.is_timed = is_timed;
        let mut messages = Vec::new();
        if silence >= MAX_SILENCE {
            return messages;
        }
        if let Some(interval) = self.watchdog_interval.filter(|_| self.watchdog_due <= now) {
            self.watchdog_due = now + interval;
            messages.push(Message::Watchdog);
        }
        if is_timed && self.extension_due <= now {
            self.extension_due = now + EXTENSION_INTERVAL;
            messages.push(Message::Extend(EXTENSION));
            // The ages in it.
            self.is_stale = true;
        }
        messages
    }

    /// When to look again.
    pub(super) fn next(&self, now: Moment) -> Moment {
        let status = self.is_stale.then_some(self.status_due);
        let extension = self.is_timed.then_some(self.extension_due);
        let watchdog = self.watchdog_interval.map(|_| self.watchdog_due);
        let due = [status, extension, watchdog].into_iter().flatten().fold(now + HEARTBEAT, Moment::min);
        // What is not sent for a loop that is stuck stays due.
        due.max(now + MIN_INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN: Moment = Moment::from_boot(Duration::from_secs(1000));
    const WATCHDOG: Duration = Duration::from_secs(9);

    fn at(seconds: u64) -> Moment {
        BEGIN + Duration::from_secs(seconds)
    }

    #[test]
    fn a_loop_that_is_stuck_is_reported_as_nothing() {
        for is_timed in [true, false] {
            let mut schedule = Schedule::new(Some(WATCHDOG), BEGIN);
            assert!(schedule.progress(is_timed, MAX_SILENCE, at(0)).is_empty());
            let almost = schedule.progress(is_timed, MAX_SILENCE - Duration::from_millis(1), at(0));
            assert!(almost.contains(&Message::Watchdog), "{almost:?}");
            assert_eq!(almost.contains(&Message::Extend(EXTENSION)), is_timed);
            assert!(schedule.progress(is_timed, MAX_SILENCE, at(60)).is_empty());
        }
    }

    #[test]
    fn the_watchdog_hears_three_times_within_its_time() {
        let mut schedule = Schedule::new(Some(WATCHDOG), BEGIN);
        let mut sent = |now| schedule.progress(false, Duration::ZERO, now).len();
        let sent: Vec<_> = (0..10).map(|seconds| sent(at(seconds))).collect();
        assert_eq!(sent, [1, 0, 0, 1, 0, 0, 1, 0, 0, 1]);
        let mut none = Schedule::new(None, BEGIN);
        assert!(none.progress(false, Duration::ZERO, at(60)).is_empty());
    }

    #[test]
    fn a_time_out_is_extended_well_before_it_ends() {
        assert!(EXTENSION_INTERVAL * 2 + MAX_SILENCE <= EXTENSION);
    }

    #[test]
    fn a_stop_is_extended_at_once() {
        let mut schedule = Schedule::new(None, BEGIN);
        assert_eq!(schedule.progress(true, Duration::ZERO, at(0)), [Message::Extend(EXTENSION)]);
        assert!(schedule.progress(false, Duration::ZERO, at(1)).is_empty());
        assert_eq!(schedule.progress(true, Duration::ZERO, at(2)), [Message::Extend(EXTENSION)]);
        assert!(schedule.progress(true, Duration::ZERO, at(3)).is_empty());
    }

    #[test]
    fn a_status_follows_the_snapshots_once_a_second() {
        let mut schedule = Schedule::new(None, BEGIN);
        assert!(schedule.take_status(at(0)));
        assert!(!schedule.take_status(at(9)));
        schedule.stale();
        assert!(schedule.take_status(at(9)));
        schedule.stale();
        assert!(!schedule.take_status(at(9)));
        schedule.progress(false, Duration::ZERO, at(9));
        assert_eq!(schedule.next(at(9)), at(10));
        assert!(schedule.take_status(at(10)));
    }

    #[test]
    fn a_stuck_loop_does_not_keep_this_thread_busy() {
        let mut schedule = Schedule::new(Some(WATCHDOG), BEGIN);
        schedule.take_status(at(0));
        assert_eq!(schedule.next(at(60)), at(60) + MIN_INTERVAL);
    }
}
