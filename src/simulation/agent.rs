//! One simulated agent: a keeper, and the life of the workload beside it.

use std::time::{Duration, SystemTime};

use crate::semaphore::{
    Form, Identity, Keeper, LimitPolicy, Moment, Name, OnLost, Phase, Resume, Settings, Start, Wall,
};

use super::consul::TTL;

pub(super) const NAME: &str = "s";

pub(super) struct Agent {
    pub(super) keeper: Keeper,
    /// Which process this is; what was sent to an earlier one reaches nobody.
    pub(super) life: u64,
    pub(super) slots: u32,
    /// How long the workload wants the slot.
    pub(super) work: Duration,
    pub(super) paused_until: Moment,
    pub(super) cut_until: Moment,
    /// Number of the watch under way; an older one's answer is called off.
    pub(super) watch: u64,
    /// Number of the timer that counts.
    pub(super) timer: u64,
    pub(super) leaves_at: Option<Moment>,
    pub(super) draining: bool,
}

impl Agent {
    pub(super) fn new(
        life: u64,
        limit: u32,
        resume: Option<Resume>,
        rng: &mut fastrand::Rng,
        now: Moment,
    ) -> Self {
        let slots = if limit > 1 && rng.u32(..4) == 0 { 2 } else { 1 };
        let start = Start {
            ttl: TTL,
            watch_grace: None,
            who: Identity::default(),
            wall: Wall::new(SystemTime::UNIX_EPOCH, now),
            seed: rng.u64(..),
            resume,
            semaphores: vec![(Name::from(NAME), settings(limit, slots))],
        };
        Self {
            keeper: Keeper::new(start, now),
            life,
            slots,
            work: work(rng),
            paused_until: now,
            cut_until: now,
            watch: 0,
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
        let phase = self.keeper.machine(NAME)?.phase();
        let token = if let Phase::Held { token, .. } = phase { Some(*token) } else { None };
        Some(Resume { session, prefixes: [("sim".to_owned(), token)].into() })
    }

    /// Whether the agent, as it last looked, takes the slot for its own. Not asked with the time: a workload goes on
    /// until its agent has noticed that the lease has ended.
    pub(super) fn believes(&self) -> bool {
        self.keeper.machine(NAME).is_some_and(|machine| matches!(machine.phase(), Phase::Held { .. }))
    }
}

/// Mostly short; now and then long enough for leases to run out meanwhile.
fn work(rng: &mut fastrand::Rng) -> Duration {
    let longest = if rng.u32(..4) == 0 { TTL * 3 } else { TTL / 5 };
    longest.mul_f64(rng.f64())
}

fn settings(limit: u32, slots: u32) -> Settings {
    Settings {
        prefix: "sim".into(),
        limit,
        slots,
        priority: 0,
        wait: None,
        on_lost: OnLost::Reacquire,
        limit_policy: LimitPolicy::Adopt,
        prune_delay: Duration::ZERO,
        form: Form::List,
        body: None,
    }
}
