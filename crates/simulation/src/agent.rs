//! One simulated agent: a keeper, and the life of the workload beside it.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, SystemTime};

use slotkeeper_semaphore::{Identity, Keeper, Moment, Name, Phase, Resume, SessionId, Start, Wall};

use super::configuration::Configuration;
use super::consul::TTL;

pub(super) struct Agent {
    pub(super) keeper: Keeper,
    /// Which process this is; what was sent to an earlier one reaches nobody.
    pub(super) life: u64,
    /// Its state file is its own; not so where another process has resumed its session.
    pub(super) has_files: bool,
    /// An earlier process has left a session; its last requests may arrive at any time.
    pub(super) is_heir: bool,
    pub(super) configuration: Configuration,
    /// When it was read last.
    pub(super) configured_at: Moment,
    /// How long the workload wants the slot.
    pub(super) work: Duration,
    pub(super) paused_until: Moment,
    pub(super) cut_until: Moment,
    /// When the last of its requests is answered, or given up.
    pub(super) answered_by: Moment,
    /// Numbers of the watches under way by their keys; an older one's answer is called off.
    pub(super) watches: HashMap<String, u64>,
    /// Number of the timer that counts.
    pub(super) timer: u64,
    pub(super) leaves_at: Option<Moment>,
    /// Since when it goes once its workload has stopped, and asks for nothing more.
    pub(super) ending: Option<Moment>,
    pub(super) draining: bool,
    /// Since when it has asked for a slot, at the earliest.
    pub(super) asked_at: BTreeMap<&'static str, Moment>,
    /// It has given a semaphore up, and goes.
    pub(super) gave_up: bool,
    /// Since when it has had one of the slots that it takes together and stood in line for another.
    pub(super) has_and_waits_since: Option<Moment>,
    /// Of what it has lost the workload is being stopped.
    pub(super) stopping: BTreeMap<Name, Stopping>,
    /// Since when it has been told to leave what, and has not.
    pub(super) evicted_since: BTreeMap<&'static str, Moment>,
    /// Since when `.lock` has listed it, and it does not know.
    pub(super) let_in_since: Option<Moment>,
    /// Since when it has stood in the way although one of its semaphores keeps it out.
    pub(super) lingers_since: Option<Moment>,
}

/// A workload that is being stopped.
pub(super) struct Stopping {
    /// The session by which it had the slot.
    pub(super) session: SessionId,
    /// Which time this is.
    pub(super) number: u64,
    /// An operator wants the slot: it is not given on before.
    pub(super) evicted: bool,
}

impl Agent {
    pub(super) fn new(
        life: u64,
        configuration: Configuration,
        (resume, contested): (Option<Resume>, bool),
        slow_reconcile: bool,
        rng: &mut fastrand::Rng,
        now: Moment,
    ) -> Self {
        // The keeper has no such switch yet: it always lists now and then.
        let _ = slow_reconcile;
        let (semaphores, is_heir) = (configuration.wants.iter(), resume.is_some());
        let start = Start {
            ttl: TTL,
            watch_grace: None,
            who: Identity::default(),
            wall: Wall::new(SystemTime::UNIX_EPOCH, now),
            seed: rng.u64(..),
            nonce: rng.u64(..),
            resume,
            contested,
            semaphores: semaphores.map(|name| (Name::from(*name), configuration.of(name))).collect(),
            together: if configuration.together { configuration.names() } else { Vec::new() },
        };
        Self {
            keeper: Keeper::new(start, now),
            life,
            has_files: true,
            is_heir,
            asked_at: configuration.wants.iter().map(|name| (*name, now)).collect(),
            configuration,
            configured_at: now,
            work: work(rng),
            paused_until: now,
            cut_until: now,
            answered_by: now,
            watches: HashMap::new(),
            timer: 0,
            leaves_at: None,
            ending: None,
            draining: false,
            gave_up: false,
            has_and_waits_since: None,
            stopping: BTreeMap::new(),
            evicted_since: BTreeMap::new(),
            let_in_since: None,
            lingers_since: None,
        }
    }

    /// What it finds in its state file once it was killed; none is there from the beginning of a drain on.
    pub(super) fn state(&self) -> Option<Resume> {
        if self.draining || !self.has_files {
            return None;
        }
        Resume::of(&self.keeper)
    }

    pub(super) fn asks_again(&mut self, name: &str, now: Moment) {
        if let Some(asked_at) = self.asked_at.get_mut(name) {
            *asked_at = now;
        }
    }

    pub(super) fn phase(&self, name: &str) -> Option<Phase> {
        self.keeper.machine(name).map(|machine| machine.phase())
    }

    /// Whether the agent, as it last looked, takes the slot for its own. Not asked with the time: a workload goes on
    /// until its agent has noticed that the lease has ended.
    pub(super) fn believes(&self, name: &str) -> bool {
        matches!(self.phase(name), Some(Phase::Held { .. }))
    }

    /// Whether its workload may run on the slot: the agent takes it for its own, or was told to leave it and has not stopped
    /// the workload yet.
    pub(super) fn occupies(&self, name: &str, now: Moment) -> bool {
        let lives = self.keeper.lease().is_some_and(|lease| lease.is_valid(now));
        let stops = |it: &Stopping| it.evicted && self.keeper.session() == Some(&it.session);
        self.believes(name) || lives && self.stopping.get(name).is_some_and(stops)
    }

    /// Until when something keeps it from acting.
    pub(super) fn troubled_until(&self) -> Moment {
        self.paused_until.max(self.cut_until).max(self.answered_by)
    }

    /// Whether its workload can run.
    pub(super) fn is_ready(&self) -> bool {
        self.configuration.wants.iter().all(|name| self.believes(name))
    }

    pub(super) fn is_kept_out(&self, name: &str) -> bool {
        matches!(self.phase(name), Some(Phase::Blocked { .. }))
    }
}

/// Mostly short; now and then long enough for leases to run out meanwhile.
fn work(rng: &mut fastrand::Rng) -> Duration {
    let longest = if rng.u32(..4) == 0 { TTL * 3 } else { TTL / 5 };
    longest.mul_f64(rng.f64())
}
