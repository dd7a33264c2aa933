//! The workload of the section `workload`, whose processes the agent sees: nothing is released while it lives, and with
//! `stop: true` the agent ends it.

use std::collections::BTreeSet;
use std::time::Duration;

use tracing::{error, info, warn};

use super::{Agent, translate};
use crate::clock;
use crate::config;
use crate::log_events::{ENDING_WORKLOAD, WORKLOAD_ENDED, WORKLOAD_NOT_ENDED, WORKLOAD_STARTED};
use crate::workload::beside::fence::{Due, Situation, WorkloadFence};
use crate::workload::beside::{NotAllowed, Seen, Sight, Unfit};
use crate::workload::guard::fence::{Act, Why};
use slotkeeper_semaphore::{Lease, Machine, Moment, Name, Phase};

/// Interval of looks at the processes while the agent waits for their end.
const ENDING_LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// The same under `stop: true`: while the workload may run without its slots, and while it runs on them.
const UNHELD_LOOK_INTERVAL: Duration = Duration::from_millis(250);
const HELD_LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// From the end of one container of a pod to the start of the next one. A kubelet takes one to two seconds if it has the image.
const CONTAINER_RESTART_TIME: Duration = Duration::from_secs(10);

/// What the agent knows of the workload.
pub(super) struct Beside {
    sight: Sight,
    /// Under `stop: true`.
    fence: Option<WorkloadFence>,
    seen: Seen,
    looked_at: Moment,
    /// Since when no process lives, after one did.
    gone_since: Option<Moment>,
    /// The slots that the workload runs on, under `stop: true`. `None` while it does not run.
    runs_on: Option<BTreeSet<Name>>,
    told_denied: bool,
}

impl Beside {
    /// Prepares to look at the processes.
    ///
    /// # Errors
    ///
    /// The processes cannot be seen.
    pub(super) fn of(workload: &config::Workload) -> Result<Self, Unfit> {
        let mut sight = Sight::of(&workload.volume)?;
        Ok(Self {
            seen: sight.look(),
            looked_at: clock::now(),
            gone_since: None,
            sight,
            fence: workload.kill_after.map(WorkloadFence::new),
            runs_on: None,
            told_denied: false,
        })
    }

    fn lives(&self) -> bool {
        self.seen.lives()
    }

    fn look(&mut self) {
        let lived = self.lives();
        self.seen = self.sight.look();
        self.looked_at = clock::now();
        match self.lives() {
            true => self.gone_since = None,
            false if lived => self.gone_since = Some(self.looked_at),
            false => {}
        }
    }

    /// Whether the workload has ended: not between two of its containers, and not before the first.
    fn has_ended(&self, now: Moment) -> bool {
        self.gone_since.is_some_and(|since| now.since(since) >= CONTAINER_RESTART_TIME)
    }

    /// When to look again. `None`: nothing depends on it.
    fn look_at(&self, end_is_near: bool, held: bool) -> Option<Moment> {
        let interval = match &self.fence {
            _ if end_is_near => ENDING_LOOK_INTERVAL,
            Some(fence) if fence.is_stopping() => ENDING_LOOK_INTERVAL,
            Some(_) if held => HELD_LOOK_INTERVAL,
            Some(_) => UNHELD_LOOK_INTERVAL,
            None => return None,
        };
        Some(self.looked_at + interval)
    }

    fn signal(&mut self, act: Act) {
        // With processes that were started meanwhile.
        self.look();
        let signalled = match act {
            Act::Terminate => self.seen.terminate(),
            Act::Kill => self.seen.kill(),
        };
        if let Err(NotAllowed { pid }) = signalled
            && !std::mem::replace(&mut self.told_denied, true)
        {
            error!(
                %pid,
                "{WORKLOAD_NOT_ENDED}, since it runs as another user: it may outlive its slot; run the agent as the same user \
                 (runAsUser)"
            );
        }
    }
}

impl Agent {
    /// Whether a process of the workload lived at the last look.
    pub(super) fn workload_lives(&self) -> bool {
        self.beside.as_ref().is_some_and(Beside::lives)
    }

    /// Whether a process of the workload lives now.
    pub(super) fn sees_workload(&mut self) -> bool {
        self.look_beside();
        self.workload_lives()
    }

    pub(super) fn look_beside(&mut self) {
        if let Some(beside) = &mut self.beside {
            beside.look();
        }
    }

    /// Whether the workload, under `stop: true`, runs on this slot.
    pub(super) fn runs_beside_on(&self, name: &Name) -> bool {
        self.beside
            .as_ref()
            .and_then(|beside| beside.runs_on.as_ref())
            .is_some_and(|names| names.contains(name))
    }

    /// When the next look or signal is due.
    pub(super) fn beside_deadline(&self) -> Option<Moment> {
        let beside = self.beside.as_ref()?;
        let fence = beside.fence.and_then(|fence| fence.deadline());
        beside.look_at(self.end_is_near(), self.held_until().is_some()).into_iter().chain(fence).min()
    }

    /// Looks at the processes when that is due, and ends them when that is.
    pub(super) fn advance_beside(&mut self, now: Moment) {
        let (end_is_near, held_until) = (self.end_is_near(), self.held_until());
        let may_be_held = self.may_still_hold();
        let drains_next = self.ending.awaits_workload() && !self.workload_lives();
        let Some(beside) = &mut self.beside else { return };
        let look_at = beside.look_at(end_is_near, held_until.is_some());
        // A release needs a fresh look.
        if drains_next || look_at.is_some_and(|at| at <= now) {
            beside.look();
        }
        let lives = beside.lives();
        // While a slot is kept, the looks are frequent. After a stop no new container starts.
        if !lives && (self.ending.stop_was_requested() || beside.has_ended(now)) {
            self.evictions.end_all(now);
        }
        let Some(fence) = &mut beside.fence else { return };
        let stops = fence.is_stopping();
        let due = fence.due(Situation { lives, held_until, may_be_held }, now);
        if lives != beside.runs_on.is_some() {
            // As under `slotkeeper run`: a slot that is lost from here on is not acquired again.
            beside.runs_on = lives.then(|| translate::required(&self.parts.config).collect());
            self.own.keeper.set_occupied(beside.runs_on.clone().unwrap_or_default(), now);
            info!(
                processes = beside.seen.count(),
                "{}",
                if lives { WORKLOAD_STARTED } else { WORKLOAD_ENDED }
            );
        }
        let Some(Due { act, why }) = due else { return };
        if !stops {
            let processes = beside.seen.count();
            match why {
                Why::Lease => warn!(processes, "{ENDING_WORKLOAD}: the lease was not renewed in time"),
                Why::Asked | Why::AgentGone | Why::Ended | Why::Overdue => {
                    warn!(processes, "{ENDING_WORKLOAD}: it runs without its slot");
                }
            }
        }
        beside.signal(act);
        if why == Why::Lease && !stops {
            // The slot may still be held, but counts as lost.
            self.own.keeper.lose_occupied(now);
            self.carry_out(now);
        }
    }

    /// Whether the agent waits for the workload's end.
    fn end_is_near(&self) -> bool {
        self.ending.awaits_workload() || self.evictions.keeps_any()
    }

    /// The end of the lease on which all required slots are held.
    fn held_until(&self) -> Option<Moment> {
        let is_held = |name: Name| {
            let phase = self.own.keeper.machine(&name).map(Machine::phase);
            matches!(phase, Some(Phase::Held { .. }))
        };
        let lease = self.own.keeper.lease().map(Lease::ends);
        lease.filter(|_| translate::required(&self.parts.config).all(is_held))
    }

    /// Whether slots of an earlier process may still be held, before that is known.
    fn may_still_hold(&self) -> bool {
        let is_unknown = |name: Name| {
            let phase = self.own.keeper.machine(&name).map(Machine::phase);
            matches!(phase, Some(Phase::Starting))
        };
        self.resumes && translate::required(&self.parts.config).any(is_unknown)
    }
}
