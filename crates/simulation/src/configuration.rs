//! The configuration of a simulated agent.

use std::time::Duration;

use super::consul::{SEMAPHORES, TTL};
use super::world::Game;
use slotkeeper_semaphore::{LimitPolicy, Name, OnLost, Settings};

#[derive(Clone, Debug)]
pub(super) struct Configuration {
    /// The semaphores of the agent.
    pub(super) wants: Vec<&'static str>,
    /// Whether the semaphores are an acquire group.
    pub(super) together: bool,
    /// The settings of each semaphore, except for the prefix.
    pub(super) terms: Settings,
}

impl Configuration {
    pub(super) fn new(game: Game, one_by_one: bool, rng: &mut fastrand::Rng) -> Self {
        let slots = if game.weights && rng.u32(..4) == 0 { rng.u32(2..=game.limit.max(2)) } else { 1 };
        let terms = terms(game, slots, rng);
        let wants = if game.groups {
            let from = rng.usize(..SEMAPHORES.len());
            // Most agents use all semaphores.
            SEMAPHORES[if rng.u32(..4) > 0 { 0..SEMAPHORES.len() } else { from..from + 1 }].to_vec()
        } else {
            vec![SEMAPHORES[0]]
        };
        let together = wants.len() > 1 && !one_by_one;
        Self { wants, together, terms }
    }

    /// The configuration after a reload, which changes neither the semaphores nor the number of slots.
    pub(super) fn reloaded(&self, game: Game, rng: &mut fastrand::Rng) -> Self {
        Self { terms: terms(game, self.terms.slots, rng), ..self.clone() }
    }

    /// The same configuration with another limit.
    pub(super) fn with_limit(&self, limit: u32) -> Self {
        Self { terms: Settings { limit, ..self.terms.clone() }, ..self.clone() }
    }

    pub(super) fn of(&self, name: &str) -> Settings {
        Settings { prefix: name.into(), ..self.terms.clone() }
    }

    pub(super) fn names(&self) -> Vec<Name> {
        self.wants.iter().map(|name| Name::from(*name)).collect()
    }
}

fn terms(game: Game, slots: u32, rng: &mut fastrand::Rng) -> Settings {
    let priority = if game.priorities && rng.u32(..4) == 0 { rng.i32(0..=2) } else { 0 };
    let policies = [LimitPolicy::Adopt, LimitPolicy::Set, LimitPolicy::Refuse];
    let limit_policy = if game.policies { policies[rng.usize(..3)] } else { LimitPolicy::Adopt };
    let another = game.policies && rng.u32(..4) == 0;
    let limit = if another { rng.u32(slots..=(game.limit * 2).max(slots)) } else { game.limit };
    let wait = match rng.u32(..4) {
        // A client that tries once lists, and so finds what is free.
        0 if game.waits && game.chaos.node > 0.0 => Some((TTL * 3).mul_f64(rng.f64())),
        0 if game.waits => Some(Duration::ZERO),
        1 if game.waits => Some((TTL / 2).mul_f64(rng.f64())),
        _ => None,
    };
    Settings {
        primitive: game.primitive,
        prefix: String::new(),
        limit,
        slots,
        priority,
        wait,
        on_lost: OnLost::Reacquire,
        limit_policy,
        prune_delay: game.prune_delay,
        form: game.form,
        body: rng.bool().then(|| "for people".to_owned()),
    }
}
