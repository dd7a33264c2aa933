//! A simulated agent: a keeper and its workload.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, SystemTime};

use slotkeeper_semaphore::{Identity, Keeper, Moment, Name, Phase, Resume, SessionId, Start, Wall};

use super::configuration::Configuration;
use super::consul::TTL;

pub(super) struct Agent {
    pub(super) keeper: Keeper,
    /// The number of this process. Messages to an earlier process are dropped.
    pub(super) life: u64,
    /// Whether an earlier process left a session. Its last requests may arrive at any time.
    pub(super) is_heir: bool,
    pub(super) configuration: Configuration,
    /// The time of the last reload.
    pub(super) configured_at: Moment,
    /// How long the workload runs on the slot.
    pub(super) work: Duration,
    pub(super) paused_until: Moment,
    pub(super) cut_until: Moment,
    /// Until when its requests and their answers take seconds.
    pub(super) slow_until: Moment,
    /// Whether the process is stopped, or was killed, until `paused_until`. Its guard ends the workload in time.
    pub(super) stopped: bool,
    /// Whether the process, or its guard, sees to the offers that it made when it left. Otherwise it dies then.
    pub(super) guarded: bool,
    /// When the last request is answered or timed out.
    pub(super) answered_by: Moment,
    /// The numbers of the watches in flight, by key. The answer to an older watch is dropped.
    pub(super) watches: HashMap<String, u64>,
    /// The number of the valid timer.
    pub(super) timer: u64,
    pub(super) leaves_at: Option<Moment>,
    /// Since when the agent acquires nothing more and drains once its workload has stopped.
    pub(super) ending: Option<Moment>,
    pub(super) draining: bool,
    /// The earliest time at which the agent requested each slot.
    pub(super) asked_at: BTreeMap<&'static str, Moment>,
    /// Whether an acquire timed out, so that the agent leaves.
    pub(super) gave_up: bool,
    /// Since when the acquire group has held one slot and waited for another.
    pub(super) has_and_waits_since: Option<Moment>,
    /// The workloads that are being stopped, by semaphore.
    pub(super) stopping: BTreeMap<Name, Stopping>,
    /// Since when the agent has been evicted and has not left, by semaphore.
    pub(super) evicted_since: BTreeMap<&'static str, Moment>,
    /// Since when the agent has been blocked by one of its semaphores and had keys at another.
    pub(super) lingers_since: Option<Moment>,
}

/// A workload that is being stopped.
pub(super) struct Stopping {
    /// The session that held the slot.
    pub(super) session: SessionId,
    /// The number of this stop.
    pub(super) number: u64,
    /// Whether the holder was evicted: the slot is released only after the stop.
    pub(super) evicted: bool,
}

impl Agent {
    pub(super) fn new(
        life: u64,
        configuration: Configuration,
        resume: Option<Resume>,
        rng: &mut fastrand::Rng,
        now: Moment,
    ) -> Self {
        let (semaphores, is_heir) = (configuration.wants.iter(), resume.is_some());
        let start = Start {
            ttl: TTL,
            watch_grace: None,
            who: Identity::default(),
            wall: Wall::new(SystemTime::UNIX_EPOCH, now),
            seed: rng.u64(..),
            resume,
            semaphores: semaphores.map(|name| (Name::from(*name), configuration.of(name))).collect(),
            together: if configuration.together { configuration.names() } else { Vec::new() },
        };
        Self {
            keeper: Keeper::new(start, now),
            life,
            is_heir,
            asked_at: configuration.wants.iter().map(|name| (*name, now)).collect(),
            configuration,
            configured_at: now,
            work: work(rng),
            paused_until: now,
            cut_until: now,
            slow_until: now,
            stopped: false,
            guarded: rng.bool(),
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
            lingers_since: None,
        }
    }

    /// The content of the state file after a crash; `None` from the start of a drain.
    pub(super) fn state(&self) -> Option<Resume> {
        if self.draining { None } else { Resume::of(&self.keeper) }
    }

    pub(super) fn requests_again(&mut self, name: &str, now: Moment) {
        if let Some(asked_at) = self.asked_at.get_mut(name) {
            *asked_at = now;
        }
    }

    pub(super) fn phase(&self, name: &str) -> Option<Phase> {
        self.keeper.machine(name).map(|machine| machine.phase())
    }

    /// Whether the agent considers the slot held. This ignores the clock: a workload runs until its agent has noticed that the
    /// lease has expired.
    pub(super) fn holds(&self, name: &str) -> bool {
        matches!(self.phase(name), Some(Phase::Held { .. }))
    }

    /// Whether the workload may run on the slot: the agent considers it held, or was evicted and has not stopped the workload yet.
    pub(super) fn occupies(&self, name: &str, now: Moment) -> bool {
        let lives = self.keeper.lease().is_some_and(|lease| lease.is_valid(now));
        let stops = |it: &Stopping| it.evicted && self.keeper.session() == Some(&it.session);
        let holds = self.holds(name) && (lives || !self.stopped);
        holds || lives && self.stopping.get(name).is_some_and(stops)
    }

    /// Until when the agent cannot act.
    pub(super) fn troubled_until(&self) -> Moment {
        self.paused_until.max(self.cut_until).max(self.slow_until).max(self.answered_by)
    }

    /// Whether it asks for slots, and nothing but its turn keeps it from having them.
    pub(super) fn wants_slots(&self) -> bool {
        !self.draining && self.ending.is_none() && !self.gave_up
    }

    /// Whether it has left, and nothing is done in its name any more.
    pub(super) fn is_gone(&self) -> bool {
        self.keeper.has_ended() || self.dies_while_it_owes()
    }

    /// Whether it dies although slots that it offered are not accepted yet.
    pub(super) fn dies_while_it_owes(&self) -> bool {
        let mut machines = self.keeper.machines();
        !self.guarded && self.draining && machines.all(|one| one.is_gone() && one.owes())
    }

    /// Whether its workload can run.
    pub(super) fn is_ready(&self) -> bool {
        self.configuration.wants.iter().all(|name| self.holds(name))
    }

    pub(super) fn is_blocked(&self, name: &str) -> bool {
        matches!(self.phase(name), Some(Phase::Blocked { .. }))
    }
}

/// Most workloads are short. Some are long enough for leases to expire meanwhile.
fn work(rng: &mut fastrand::Rng) -> Duration {
    let longest = if rng.u32(..4) == 0 { TTL * 3 } else { TTL / 5 };
    longest.mul_f64(rng.f64())
}
