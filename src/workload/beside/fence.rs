//! When the agent ends the workload of the section `workload` (`stop: true`). A pure decision, without clock, process or signal.
//!
//! The workload may run while its slots are held and the lease is valid, as a command under `slotkeeper run` ([`Fence`]). A
//! workload without slots, such as a restarted container, is ended at once.

use std::time::Duration;

use crate::workload::guard::fence::{Act, Fence, Why};
use slotkeeper_semaphore::Moment;

/// How long a workload may run before it is known whether the slots of an earlier agent process are still held.
const RESUME_TIMEOUT: Duration = Duration::from_secs(5);

/// More than the slack of a fence, so that all of the time for stopping is left.
const FENCE_MARGIN: Duration = Duration::from_secs(1);

/// The current situation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Situation {
    /// A process of the workload lives.
    pub lives: bool,
    /// The end of the lease on which all required slots are held. `None`: they are not held.
    pub held_until: Option<Moment>,
    /// Slots of an earlier process may still be held.
    pub may_be_held: bool,
}

/// What is due, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    pub act: Act,
    pub why: Why,
}

/// Decides when to end the workload.
#[derive(Clone, Copy, Debug)]
pub struct WorkloadFence {
    kill_after: Duration,
    fence: Option<Fence>,
    /// Since when the workload has run without its slots.
    without_since: Option<Moment>,
}

impl WorkloadFence {
    /// `kill_after` is the time from SIGTERM to SIGKILL.
    pub fn new(kill_after: Duration) -> Self {
        Self { kill_after, fence: None, without_since: None }
    }

    /// Whether the workload is being ended.
    pub fn is_stopping(&self) -> bool {
        self.fence.is_some_and(|fence| fence.stopping().is_some())
    }

    /// When to call [`Self::due`] next.
    pub fn deadline(&self) -> Option<Moment> {
        self.fence.map(|fence| fence.deadline()).or(self.without_since.map(|since| since + RESUME_TIMEOUT))
    }

    /// Takes the current situation. Returns what is due, once.
    pub fn due(&mut self, now: Situation, at: Moment) -> Option<Due> {
        if !now.lives {
            (self.fence, self.without_since) = (None, None);
            return None;
        }
        match (now.held_until, &mut self.fence) {
            (Some(ends), None) => {
                self.fence = Some(Fence::new(ends, self.kill_after, None));
                self.without_since = None;
            }
            (Some(ends), Some(fence)) => fence.renewed(ends),
            (None, Some(fence)) => fence.stop(Why::Asked, at),
            (None, None) => {
                let since = *self.without_since.get_or_insert(at);
                let timed_out = at.since(since) >= RESUME_TIMEOUT;
                if !now.may_be_held || timed_out {
                    // Slots that may still be held leave time for stopping.
                    let time = if now.may_be_held { self.kill_after } else { Duration::ZERO };
                    let mut fence = Fence::new(at + time + FENCE_MARGIN, time, None);
                    fence.stop(Why::Asked, at);
                    self.fence = Some(fence);
                }
            }
        }
        let fence = self.fence.as_mut()?;
        let act = fence.due(at)?;
        Some(Due { act, why: fence.stopping()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Moment = Moment::from_boot(Duration::from_secs(1000));

    fn at(seconds: u64) -> Moment {
        START + Duration::from_secs(seconds)
    }

    fn held(until: u64) -> Situation {
        Situation { lives: true, held_until: Some(at(until)), may_be_held: false }
    }

    const WITHOUT: Situation = Situation { lives: true, held_until: None, may_be_held: false };
    const GONE: Situation = Situation { lives: false, held_until: None, may_be_held: false };

    fn fence() -> WorkloadFence {
        WorkloadFence::new(Duration::from_secs(5))
    }

    #[test]
    fn it_lives_while_the_lease_is_sure() {
        let mut fence = fence();
        for second in 0..100 {
            assert_eq!(fence.due(held(second + 20), at(second)), None);
        }
        let due = |act, why| Some(Due { act, why });
        let stops = fence.deadline().unwrap();
        assert!(stops < at(119 - 5), "{stops:?}");
        assert_eq!(fence.due(held(119), stops), due(Act::Terminate, Why::Lease));
        assert!(fence.is_stopping());
        assert_eq!(fence.due(held(119), stops), None);
        let ends = fence.deadline().unwrap();
        assert!(ends < at(119), "before the lease ends");
        assert_eq!(fence.due(held(150), ends), due(Act::Kill, Why::Lease), "a late renewal changes nothing");
        // And again, for what was born meanwhile.
        assert_eq!(fence.due(held(150), fence.deadline().unwrap()), due(Act::Kill, Why::Lease));
        assert_eq!(fence.due(GONE, ends), None);
        assert_eq!((fence.deadline(), fence.is_stopping()), (None, false));
    }

    #[test]
    fn one_that_has_lost_its_slot_is_asked_and_then_ended() {
        let mut fence = fence();
        fence.due(held(30), at(0));
        assert_eq!(fence.due(WITHOUT, at(1)), Some(Due { act: Act::Terminate, why: Why::Asked }));
        assert_eq!(fence.due(WITHOUT, at(5)), None);
        // The slot that it has again is not the one that it ran on.
        assert_eq!(fence.due(held(60), at(5)), None);
        assert_eq!(fence.due(WITHOUT, at(6)), Some(Due { act: Act::Kill, why: Why::Asked }));
    }

    #[test]
    fn one_that_begins_without_its_slot_is_ended_at_once() {
        assert_eq!(fence().due(WITHOUT, at(0)), Some(Due { act: Act::Kill, why: Why::Asked }));
    }

    #[test]
    fn after_a_restart_it_waits_until_it_is_known_what_is_held() {
        let unknown = Situation { may_be_held: true, ..WITHOUT };
        let mut fence = fence();
        assert_eq!(fence.due(unknown, at(0)), None);
        assert_eq!(fence.deadline(), Some(at(0) + RESUME_TIMEOUT));
        assert_eq!(fence.due(held(30), at(1)), None);
        assert!(!fence.is_stopping());
        let mut fence = self::fence();
        assert_eq!(fence.due(unknown, at(0)), None);
        let due = |act| Some(Due { act, why: Why::Asked });
        assert_eq!(fence.due(unknown, at(0) + RESUME_TIMEOUT), due(Act::Terminate));
        assert_eq!(fence.due(unknown, at(4) + RESUME_TIMEOUT), None);
        assert_eq!(fence.due(unknown, at(5) + RESUME_TIMEOUT), due(Act::Kill));
        let mut fence = self::fence();
        assert_eq!(fence.due(unknown, at(0)), None);
        assert_eq!(fence.due(WITHOUT, at(1)), Some(Due { act: Act::Kill, why: Why::Asked }), "it is known");
    }
}
