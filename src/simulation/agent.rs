//! One simulated agent: a keeper, and the life of the workload beside it.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use crate::semaphore::{
    Identity, Keeper, LimitPolicy, Moment, Name, OnLost, Phase, Resume, Settings, Start, Wall,
};

use super::consul::{SEMAPHORES, TTL};
use super::world::Game;

pub(super) struct Agent {
    pub(super) keeper: Keeper,
    /// Which process this is; what was sent to an earlier one reaches nobody.
    pub(super) life: u64,
    pub(super) slots: u32,
    priority: i32,
    /// The semaphores that it wants a slot of each of.
    pub(super) wants: Vec<&'static str>,
    /// Whether it takes them together.
    pub(super) together: bool,
    /// How long the workload wants the slot.
    pub(super) work: Duration,
    pub(super) paused_until: Moment,
    pub(super) cut_until: Moment,
    /// Numbers of the watches under way by their keys; an older one's answer is called off.
    pub(super) watches: HashMap<String, u64>,
    /// Number of the timer that counts.
    pub(super) timer: u64,
    pub(super) leaves_at: Option<Moment>,
    pub(super) draining: bool,
}

impl Agent {
    pub(super) fn new(
        life: u64,
        game: Game,
        one_by_one: bool,
        resume: Option<(Resume, &Self)>,
        rng: &mut fastrand::Rng,
        now: Moment,
    ) -> Self {
        let (resume, before) = resume.unzip();
        let slots = if game.weights && rng.u32(..4) == 0 { rng.u32(2..=game.limit.max(2)) } else { 1 };
        let priority = if game.priorities && rng.u32(..4) == 0 { rng.i32(0..=2) } else { 0 };
        // A process that is started again has the configuration that it had.
        let (slots, priority) = before.map_or((slots, priority), |before| (before.slots, before.priority));
        let wants = match before {
            Some(before) => before.wants.clone(),
            None if game.parties => {
                let from = rng.usize(..SEMAPHORES.len());
                // Most want all of them.
                SEMAPHORES[if rng.u32(..4) > 0 { 0..SEMAPHORES.len() } else { from..from + 1 }].to_vec()
            }
            None => vec![SEMAPHORES[0]],
        };
        // Two that took one after the other could wait for each other for ever.
        let together = game.parties && wants.len() > 1 && !one_by_one;
        let semaphore = |name: &&str| (Name::from(*name), settings(game, name, slots, priority));
        let start = Start {
            ttl: TTL,
            watch_grace: None,
            who: Identity::default(),
            wall: Wall::new(SystemTime::UNIX_EPOCH, now),
            seed: rng.u64(..),
            resume,
            semaphores: wants.iter().map(semaphore).collect(),
            together: if together {
                wants.iter().map(|name| Name::from(*name)).collect()
            } else {
                Vec::new()
            },
        };
        Self {
            keeper: Keeper::new(start, now),
            life,
            slots,
            priority,
            wants,
            together,
            work: work(rng),
            paused_until: now,
            cut_until: now,
            watches: HashMap::new(),
            timer: 0,
            leaves_at: None,
            draining: false,
        }
    }

    /// What its state file holds; there is none from the beginning of a drain on.
    pub(super) fn state(&self) -> Option<Resume> {
        if self.draining {
            return None;
        }
        let session = self.keeper.session()?.clone();
        let token = |name: &&str| {
            let phase = self.keeper.machine(name)?.phase();
            if let Phase::Held { token, .. } = phase { Some(*token) } else { None }
        };
        let prefixes = self.wants.iter().map(|name| ((*name).to_owned(), token(name))).collect();
        Some(Resume { session, prefixes })
    }

    /// Whether the agent, as it last looked, takes the slot for its own. Not asked with the time: a workload goes on
    /// until its agent has noticed that the lease has ended.
    pub(super) fn believes(&self, name: &str) -> bool {
        self.keeper.machine(name).is_some_and(|machine| matches!(machine.phase(), Phase::Held { .. }))
    }

    /// Whether its workload can run.
    pub(super) fn is_ready(&self) -> bool {
        self.wants.iter().all(|name| self.believes(name))
    }
}

/// Mostly short; now and then long enough for leases to run out meanwhile.
fn work(rng: &mut fastrand::Rng) -> Duration {
    let longest = if rng.u32(..4) == 0 { TTL * 3 } else { TTL / 5 };
    longest.mul_f64(rng.f64())
}

fn settings(game: Game, name: &str, slots: u32, priority: i32) -> Settings {
    Settings {
        prefix: name.into(),
        limit: game.limit,
        slots,
        priority,
        wait: None,
        on_lost: OnLost::Reacquire,
        limit_policy: LimitPolicy::Adopt,
        prune_delay: Duration::ZERO,
        form: game.form,
        body: None,
    }
}
