//! The fence: until when a command may live. A pure decision, without clock, process or signal.
//!
//! A command may run only while the lease is valid. So it gets SIGTERM early enough that its time for stopping, and SIGKILL, are
//! over before the lease expires; and at once when the lease is not renewed any more. After a signal from outside the command
//! may have a limit of its own (`--stop-after`). The earlier limit counts.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use slotkeeper_semaphore::{Moment, Terms};

/// From SIGKILL to the end of the lease: time for the kernel to end every process.
const SLACK: Duration = Duration::from_millis(500);
/// Interval of further SIGKILLs: a process may have been started meanwhile.
const KILL_INTERVAL: Duration = Duration::from_millis(50);

/// Why a command is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// The lease was not renewed in time. The slot may be lost.
    Lease,
    /// The agent, which renews the lease, is gone.
    AgentGone,
    /// The agent requested it.
    Asked,
    /// The command has ended, and its remaining descendants are ended too.
    Ended,
    /// It did not end within `--stop-after` of a signal from outside.
    Overdue,
}

/// What to send to all processes of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// SIGTERM.
    Terminate,
    /// SIGKILL.
    Kill,
}

/// The time limits of a command.
#[derive(Clone, Copy, Debug)]
pub struct Fence {
    lease_ends: Moment,
    kill_after: Duration,
    /// Time to end after a signal from outside. `None`: unlimited.
    stop_after: Option<Duration>,
    /// When that is over.
    overdue_at: Option<Moment>,
    stop: Option<Stop>,
}

#[derive(Clone, Copy, Debug)]
struct Stop {
    why: Why,
    told: bool,
    kill_at: Moment,
}

impl Fence {
    /// A command under a lease. From SIGTERM it has `kill_after`, as far as the lease reaches; after a signal from outside it has
    /// `stop_after`.
    pub fn new(lease_ends: Moment, kill_after: Duration, stop_after: Option<Duration>) -> Self {
        Self { lease_ends, kill_after, stop_after, overdue_at: None, stop: None }
    }

    /// The lease was renewed. That gives no time to a command that is being stopped.
    pub fn renewed(&mut self, lease_ends: Moment) {
        if self.stop.is_none() {
            self.lease_ends = self.lease_ends.max(lease_ends);
        }
    }

    /// A signal from outside asked the command to end. The first one counts.
    pub fn asked_to_end(&mut self, now: Moment) {
        let overdue_at = self.overdue_at.or(self.stop_after.map(|time| now + time));
        self.overdue_at = overdue_at;
        if let Some((stop, overdue_at)) = self.stop.as_mut().zip(overdue_at) {
            stop.kill_at = stop.kill_at.min(overdue_at);
        }
    }

    /// Stops the command. The first reason counts.
    pub fn stop(&mut self, why: Why, now: Moment) {
        let kill_at = (now + self.kill_after).min(self.last_chance());
        let kill_at = self.overdue_at.map_or(kill_at, |overdue_at| kill_at.min(overdue_at));
        self.stop.get_or_insert(Stop { why, told: false, kill_at });
    }

    /// Why the command is being stopped.
    pub fn stopping(&self) -> Option<Why> {
        self.stop.map(|stop| stop.why)
    }

    /// What is due at `now`. It is returned once.
    pub fn due(&mut self, now: Moment) -> Option<Act> {
        if now >= self.stops_at() {
            self.stop(Why::Lease, now);
        }
        if self.overdue_at.is_some_and(|overdue_at| now >= overdue_at) {
            self.stop(Why::Overdue, now);
        }
        let stop = self.stop.as_mut()?;
        if now >= stop.kill_at {
            stop.kill_at = now + KILL_INTERVAL;
            stop.told = true;
            return Some(Act::Kill);
        }
        (!std::mem::replace(&mut stop.told, true)).then_some(Act::Terminate)
    }

    /// When to call [`Self::due`] next.
    pub fn deadline(&self) -> Moment {
        let stops_at = self.overdue_at.map_or(self.stops_at(), |overdue_at| overdue_at.min(self.stops_at()));
        self.stop.map_or(stops_at, |stop| stop.kill_at)
    }

    /// When the command gets SIGTERM if the lease is not renewed.
    fn stops_at(&self) -> Moment {
        self.last_chance().back(self.kill_after)
    }

    /// The latest time for SIGKILL.
    fn last_chance(&self) -> Moment {
        self.lease_ends.back(SLACK)
    }
}

/// Whether a command may start under a lease that ends then, without having to be stopped at once.
pub fn may_start(lease_ends: Moment, kill_after: Duration, now: Moment) -> bool {
    const MIN_RUNTIME: Duration = Duration::from_secs(1);
    now + MIN_RUNTIME < Fence::new(lease_ends, kill_after, None).stops_at()
}

/// The longest outage of Consul that a command survives which has that long for stopping.
pub fn tolerates(ttl: Duration, kill_after: Duration) -> Duration {
    Terms::new(ttl).tolerates(kill_after + SLACK)
}

/// The longest that a command may have for stopping under a session of this TTL: an outage as long as an attempt to renew may
/// take is survived then.
pub fn max_kill_after(ttl: Duration) -> Duration {
    tolerates(ttl, Terms::new(ttl).renew_timeout())
}

/// The shortest TTL, in whole seconds, under which a command may have that long for stopping; `None`: under none that
/// Consul allows.
pub fn shortest_ttl(kill_after: Duration) -> Option<Duration> {
    (10..=86_400).map(Duration::from_secs).find(|ttl| max_kill_after(*ttl) >= kill_after)
}

#[cfg(test)]
mod outage;
#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const START: Moment = Moment::from_boot(Duration::from_secs(1000));
    const KILL_AFTER: Duration = Duration::from_secs(5);

    fn at(seconds: u64) -> Moment {
        START + Duration::from_secs(seconds)
    }

    #[test]
    fn without_a_renewal_the_command_gets_sigterm_and_sigkill_before_the_lease_expires() {
        let mut fence = Fence::new(at(27), KILL_AFTER, None);
        assert_eq!(fence.due(at(21)), None);
        assert_eq!(fence.deadline(), at(21) + SLACK);
        assert_eq!(fence.due(fence.deadline()), Some(Act::Terminate));
        assert_eq!(fence.due(at(22)), None);
        assert_eq!(fence.deadline(), at(26) + SLACK);
        assert_eq!(fence.due(fence.deadline()), Some(Act::Kill));
        assert_eq!(fence.due(at(27)), Some(Act::Kill), "until nothing is left");
    }

    #[test]
    fn a_renewal_extends_the_limit_but_not_of_a_command_that_is_being_stopped() {
        let mut fence = Fence::new(at(27), KILL_AFTER, None);
        fence.renewed(at(37));
        assert_eq!(fence.due(at(30)), None);
        fence.renewed(at(20));
        assert_eq!(fence.due(at(31)), None, "an older renewal says nothing");
        fence.stop(Why::Asked, at(31));
        fence.renewed(at(60));
        assert_eq!(fence.due(at(31)), Some(Act::Terminate));
        assert_eq!(fence.deadline(), at(36));
    }

    #[test]
    fn a_guard_that_wakes_too_late_kills_at_once() {
        let mut fence = Fence::new(at(27), KILL_AFTER, None);
        assert_eq!(fence.due(at(100)), Some(Act::Kill));
        assert_eq!(fence.stopping(), Some(Why::Lease));
    }

    #[test]
    fn a_command_asked_to_end_has_its_time_once_and_is_then_killed() {
        let mut fence = Fence::new(at(100), KILL_AFTER, Some(Duration::from_secs(10)));
        assert_eq!(fence.due(at(50)), None, "no signal has come");
        fence.asked_to_end(at(50));
        fence.asked_to_end(at(55));
        assert_eq!((fence.due(at(59)), fence.deadline()), (None, at(60)));
        fence.renewed(at(200));
        assert_eq!(fence.due(at(60)), Some(Act::Kill));
        assert_eq!(fence.stopping(), Some(Why::Overdue));
        assert!(fence.deadline() > at(60), "it is not looked at all the time");
        assert_eq!(fence.due(at(61)), Some(Act::Kill), "until nothing is left");
    }

    #[test]
    fn the_earlier_limit_counts() {
        // The lease does.
        let mut fence = Fence::new(at(27), KILL_AFTER, Some(Duration::from_secs(60)));
        fence.asked_to_end(at(1));
        assert_eq!(fence.deadline(), at(21) + SLACK);
        assert_eq!(fence.due(at(22)), Some(Act::Terminate));
        assert_eq!((fence.stopping(), fence.deadline()), (Some(Why::Lease), at(26) + SLACK));
        // What it was asked for before does, whatever stops it besides.
        for why in [Why::Asked, Why::AgentGone, Why::Ended] {
            let mut fence = Fence::new(at(100), KILL_AFTER, Some(Duration::from_secs(10)));
            fence.asked_to_end(at(1));
            fence.stop(why, at(8));
            assert_eq!(fence.due(at(8)), Some(Act::Terminate));
            assert_eq!((fence.stopping(), fence.deadline()), (Some(why), at(11)));
            assert_eq!(fence.due(at(11)), Some(Act::Kill));
        }
        // And so does what it is asked for while it is being stopped.
        let mut fence = Fence::new(at(100), KILL_AFTER, Some(Duration::from_secs(1)));
        fence.stop(Why::Ended, at(1));
        assert_eq!(fence.due(at(1)), Some(Act::Terminate));
        fence.asked_to_end(at(2));
        assert_eq!(fence.deadline(), at(3));
        // Without a bound nothing changes.
        let mut fence = Fence::new(at(27), KILL_AFTER, None);
        fence.asked_to_end(at(1));
        assert_eq!(fence.deadline(), at(21) + SLACK);
    }

    #[test]
    fn the_shortest_ttl_is_the_first_that_leaves_the_time() {
        for seconds in [0, 1, 3, 5, 10, 30, 300, 3600] {
            let kill_after = Duration::from_secs(seconds);
            let ttl = shortest_ttl(kill_after).unwrap();
            assert!(max_kill_after(ttl) >= kill_after);
            let shorter = ttl.saturating_sub(Duration::from_secs(1));
            assert!(ttl == Duration::from_secs(10) || max_kill_after(shorter) < kill_after);
        }
        assert!(max_kill_after(Duration::from_secs(10)) >= Duration::from_secs(2));
        assert_eq!(shortest_ttl(Duration::from_secs(100_000)), None);
    }

    proptest! {
        #![proptest_config(slotkeeper_test_seed::cases())]

        /// In any order of events, a prompt guard has killed before the last lease that it knew
        /// expires, and before a command that was asked to end has had more than its time.
        #[test]
        fn a_prompt_guard_kills_before_the_lease_ends(
            kill_after in 0_u64..20_000,
            stop_after in prop::option::of(0_u64..20_000),
            events in prop::collection::vec((0_u64..5_000, 0_u8..5), 0..60),
        ) {
            let stop_after = stop_after.map(Duration::from_millis);
            let mut fence =
                Fence::new(START + Duration::from_secs(9), Duration::from_millis(kill_after), stop_after);
            let mut asked = None;
            let mut known = START + Duration::from_secs(9);
            let (mut now, mut killed) = (START, None);
            let mut look = |fence: &mut Fence, now: Moment| {
                if fence.due(now) == Some(Act::Kill) {
                    killed = killed.or(Some(now));
                }
            };
            for (wait, event) in events {
                let next = now + Duration::from_millis(wait);
                // Prompt: it wakes at each deadline on the way.
                while fence.deadline() <= next {
                    let wakes = fence.deadline().max(now);
                    look(&mut fence, wakes);
                }
                now = next;
                match event {
                    0 if fence.stopping().is_none() => {
                        fence.renewed(now + Duration::from_secs(9));
                        known = known.max(now + Duration::from_secs(9));
                    }
                    1 => fence.stop(Why::Asked, now),
                    2 => {
                        fence.asked_to_end(now);
                        asked = asked.or(Some(now));
                    }
                    _ => look(&mut fence, now),
                }
            }
            while fence.deadline() <= known {
                let wakes = fence.deadline();
                look(&mut fence, wakes);
            }
            prop_assert!(killed.is_some_and(|killed| killed <= known), "{:?} {:?}", killed, known);
            if let Some(overdue) = asked.zip(stop_after).map(|(asked, time)| asked + time) {
                prop_assert!(killed.is_some_and(|killed| killed <= overdue), "{:?} {:?}", killed, overdue);
            }
        }
    }
}
