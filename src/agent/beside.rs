//! The workload beside us, where its processes can be seen: nothing is given back while it lives, and where that is asked for, we
//! end it ourselves.

use std::collections::BTreeSet;
use std::time::Duration;

use tracing::{error, info, warn};

use super::{Agent, translate};
use crate::clock;
use crate::config;
use crate::workload::beside::custody::{Custody, Due, Situation};
use crate::workload::beside::{NotAllowed, Seen, Sight, Unfit};
use crate::workload::guard::fence::{Act, Why};
use slotkeeper_semaphore::{Lease, Machine, Moment, Name, Phase};

/// How often its processes are looked for while its end is waited for.
const ENDING: Duration = Duration::from_millis(50);
/// The same while it may run without its slots, and while it may run on them, where we are to end it.
const WITHOUT: Duration = Duration::from_millis(250);
const HELD: Duration = Duration::from_secs(1);
/// From the end of one container of a pod to the begin of the next one, where the image is there. A kubelet takes one to two seconds.
const BETWEEN: Duration = Duration::from_secs(10);

/// What is known of it.
pub(super) struct Beside {
    sight: Sight,
    /// Where we are to end it.
    custody: Option<Custody>,
    seen: Seen,
    looked_at: Moment,
    /// Since when nothing of it lives that did.
    gone_since: Option<Moment>,
    /// What it runs on, where we are to end it; nothing while it does not run.
    runs_on: Option<BTreeSet<Name>>,
    told_denied: bool,
}

impl Beside {
    /// Gets ready to look.
    ///
    /// # Errors
    ///
    /// Its processes cannot be seen.
    pub(super) fn of(workload: &config::Workload) -> Result<Self, Unfit> {
        let mut sight = Sight::of(&workload.volume)?;
        Ok(Self {
            seen: sight.look(),
            looked_at: clock::now(),
            gone_since: None,
            sight,
            custody: workload.kill_after.map(Custody::new),
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

    /// Whether it has ended, and is not about to go on: not between two of its containers, and not before the first.
    fn has_ended(&self, now: Moment) -> bool {
        self.gone_since.is_some_and(|since| now.since(since) >= BETWEEN)
    }

    /// When what was seen counts no more; `None`: nothing depends on it.
    fn look_at(&self, end_is_near: bool, held: bool) -> Option<Moment> {
        let interval = match &self.custody {
            _ if end_is_near => ENDING,
            Some(custody) if custody.is_stopping() => ENDING,
            Some(_) if held => HELD,
            Some(_) => WITHOUT,
            None => return None,
        };
        Some(self.looked_at + interval)
    }

    fn signal(&mut self, act: Act) {
        // With what was born meanwhile.
        self.look();
        let signalled = match act {
            Act::Terminate => self.seen.terminate(),
            Act::Kill => self.seen.kill(),
        };
        if let Err(NotAllowed { pid }) = signalled
            && !std::mem::replace(&mut self.told_denied, true)
        {
            error!(
                "process {pid} of the workload runs as another user and cannot be ended: it may outlive its slot; run the agent as \
                 the same user (runAsUser)"
            );
        }
    }
}

impl Agent {
    /// Whether anything of the workload beside us lived at the last look.
    pub(super) fn workload_lives(&self) -> bool {
        self.beside.as_ref().is_some_and(Beside::lives)
    }

    /// Whether anything of it lives now.
    pub(super) fn sees_workload(&mut self) -> bool {
        self.look_beside();
        self.workload_lives()
    }

    /// Looks now.
    pub(super) fn look_beside(&mut self) {
        if let Some(beside) = &mut self.beside {
            beside.look();
        }
    }

    /// Whether the workload beside us, which we are to end, runs on this one.
    pub(super) fn runs_beside_on(&self, name: &Name) -> bool {
        self.beside
            .as_ref()
            .and_then(|beside| beside.runs_on.as_ref())
            .is_some_and(|names| names.contains(name))
    }

    /// When there is something to do here although nothing happens.
    pub(super) fn beside_deadline(&self) -> Option<Moment> {
        let beside = self.beside.as_ref()?;
        let custody = beside.custody.and_then(|custody| custody.deadline());
        beside.look_at(self.end_is_near(), self.held_until().is_some()).into_iter().chain(custody).min()
    }

    /// Looks where it is time to, and does what is due.
    pub(super) fn mind_beside(&mut self, now: Moment) {
        let (end_is_near, held_until) = (self.end_is_near(), self.held_until());
        let may_be_held = self.may_still_hold();
        let drains_next = self.ending.is_some() && self.drain.is_none() && !self.workload_lives();
        let Some(beside) = &mut self.beside else { return };
        let look_at = beside.look_at(end_is_near, held_until.is_some());
        // What is given back goes by what is so now.
        if drains_next || look_at.is_some_and(|at| at <= now) {
            beside.look();
        }
        let lives = beside.lives();
        // What was kept for its sake. While anything is, it is looked again and again. Whoever stops us starts nothing more.
        if !lives && (self.told_to_stop || beside.has_ended(now)) {
            self.evictions.end_all(now);
        }
        let Some(custody) = &mut beside.custody else { return };
        let stops = custody.is_stopping();
        let due = custody.mind(Situation { lives, held_until, may_be_held }, now);
        if lives != beside.runs_on.is_some() {
            // As under a command of ours: what is lost from here on is lost under it, and not asked for again.
            beside.runs_on = lives.then(|| translate::required(&self.parts.config).collect());
            self.own.keeper.set_occupied(beside.runs_on.clone().unwrap_or_default(), now);
            info!(
                processes = beside.seen.count(),
                "{}",
                if lives { "the workload runs" } else { "the workload has ended" }
            );
        }
        let Some(Due { act, why }) = due else { return };
        if !stops {
            let processes = beside.seen.count();
            match why {
                Why::Lease => warn!(processes, "the lease was not renewed in time: ending the workload"),
                Why::Asked | Why::AgentGone | Why::Ended | Why::Overdue => {
                    warn!(processes, "the workload runs without its slot: ending it");
                }
            }
        }
        beside.signal(act);
        if why == Why::Lease && !stops {
            // Whether it is lost is not known, and so it counts as lost.
            self.own.keeper.lose_occupied(now);
            self.carry_out(now);
        }
    }

    /// Whether it is its end that is waited for.
    fn end_is_near(&self) -> bool {
        self.ending.is_some() && self.drain.is_none() || self.evictions.keeps_any()
    }

    /// Until when everything is held that the workload needs.
    fn held_until(&self) -> Option<Moment> {
        let is_held = |name: Name| {
            let phase = self.own.keeper.machine(&name).map(Machine::phase);
            matches!(phase, Some(Phase::Held { .. }))
        };
        let lease = self.own.keeper.lease().map(Lease::ends);
        lease.filter(|_| translate::required(&self.parts.config).all(is_held))
    }

    /// Whether what the process before this one held may be held although it is not known yet.
    fn may_still_hold(&self) -> bool {
        let is_unknown = |name: Name| {
            let phase = self.own.keeper.machine(&name).map(Machine::phase);
            matches!(phase, Some(Phase::Starting))
        };
        self.resumes && translate::required(&self.parts.config).any(is_unknown)
    }
}
