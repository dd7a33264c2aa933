//! The configuration of a game.

use std::fmt;

use crate::consul::SEMAPHORES;

/// The demand of one agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Player {
    /// The number of slots of each semaphore.
    pub(super) slots: u32,
    pub(super) priority: i32,
    /// Whether both semaphores are an acquire group. Otherwise the agent uses the first one.
    pub(super) together: bool,
}

/// An agent that acquires one slot.
pub(super) const ONE: Player = Player { slots: 1, priority: 0, together: false };
/// An agent that acquires two slots of the same semaphore.
pub(super) const DOUBLE: Player = Player { slots: 2, ..ONE };
/// An agent with a higher priority than the default.
pub(super) const URGENT: Player = Player { priority: 1, ..ONE };
/// An acquire group of one slot of each semaphore.
pub(super) const GROUP: Player = Player { together: true, ..ONE };

impl Player {
    pub(super) fn wants(self) -> &'static [&'static str] {
        if self.together { &SEMAPHORES } else { &SEMAPHORES[..1] }
    }
}

/// The agents of a game, and its faults.
#[derive(Clone, Copy)]
pub(super) struct Game {
    pub(super) players: &'static [Player],
    /// The number of slots of each semaphore.
    pub(super) limit: u32,
    /// The number of crashes.
    pub(super) crashes: u32,
    /// Whether a crashed process may restart with its state file.
    pub(super) returns: bool,
    /// The number of requests without an answer. Consul may still apply them at any later time.
    pub(super) losses: u32,
    /// The number of agents that may be stopped before they hold.
    pub(super) quits: u32,
    /// How often time may pass without a step although an agent could leave.
    pub(super) lulls: u32,
    /// Whether reads are answered in the step of their arrival, and sessions are destroyed at once. Answers to one agent then keep
    /// their order. Commits keep their two steps.
    pub(super) prompt: bool,
    /// The number of agents that have joined, one after the other, before the game begins.
    pub(super) settled: usize,
    /// The maximum number of steps; 0: no maximum.
    pub(super) depth: usize,
}

impl Game {
    /// The semaphores of the game.
    pub(super) fn semaphores(&self) -> &'static [&'static str] {
        let all = self.players.iter().any(|player| player.together);
        if all { &SEMAPHORES } else { &SEMAPHORES[..1] }
    }

    /// An agent that uses all semaphores of the game.
    pub(super) fn visitor(&self) -> Player {
        if self.semaphores().len() > 1 { GROUP } else { ONE }
    }

    /// Whether the agents need more slots than there are.
    pub(super) fn is_contended(&self) -> bool {
        self.players.iter().map(|player| player.slots).sum::<u32>() > self.limit
    }
}

impl fmt::Debug for Game {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let player = |player: &Player| {
            let kind = if player.together { " together" } else { "" };
            let urgent = if player.priority > 0 { " urgent" } else { "" };
            format!("{}{kind}{urgent}", player.slots)
        };
        let players: Vec<_> = self.players.iter().map(player).collect();
        write!(out, "[{}] of {}", players.join(", "), self.limit)?;
        let counts = [
            (self.crashes, "crashes"),
            (self.losses, "losses"),
            (self.quits, "quits"),
            (self.lulls, "lulls"),
            (u32::try_from(self.settled).unwrap_or(u32::MAX), "settled"),
        ];
        for (count, what) in counts.into_iter().filter(|(count, _)| *count > 0) {
            write!(out, ", {count} {what}")?;
        }
        for what in [(self.returns, "returns"), (self.prompt, "prompt")].into_iter().filter(|(is, _)| *is) {
            write!(out, ", {}", what.1)?;
        }
        if self.depth > 0 {
            write!(out, ", {} steps", self.depth)?;
        }
        Ok(())
    }
}
