//! What a game is about.

use std::fmt;

use crate::consul::SEMAPHORES;

/// What one agent wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Player {
    /// As many slots of each semaphore that it wants.
    pub(super) slots: u32,
    pub(super) priority: i32,
    /// Whether it wants slots of both semaphores, and takes them together. Else it wants those of the first.
    pub(super) together: bool,
}

/// One that wants one slot.
pub(super) const ONE: Player = Player { slots: 1, priority: 0, together: false };
/// One that wants two slots of the same semaphore.
pub(super) const DOUBLE: Player = Player { slots: 2, ..ONE };
/// One that goes before those without a priority.
pub(super) const URGENT: Player = Player { priority: 1, ..ONE };
/// One that wants a slot of each semaphore at once.
pub(super) const GROUP: Player = Player { together: true, ..ONE };

impl Player {
    pub(super) fn wants(self) -> &'static [&'static str] {
        if self.together { &SEMAPHORES } else { &SEMAPHORES[..1] }
    }
}

/// Who plays for what, and what may go wrong.
#[derive(Clone, Copy)]
pub(super) struct Game {
    pub(super) players: &'static [Player],
    /// Slots of each semaphore.
    pub(super) limit: u32,
    /// As many processes may crash.
    pub(super) crashes: u32,
    /// One that crashed may come back with its state file.
    pub(super) returns: bool,
    /// As many requests may go unanswered; what they ask for may still be done, at any later time.
    pub(super) losses: u32,
    /// As many agents may be told to leave before they hold.
    pub(super) quits: u32,
    /// As many times nothing happens for a while although somebody could leave.
    pub(super) lulls: u32,
    /// Reads are answered in one step with their arrival, and sessions destroyed at once: two answers to one agent then
    /// come in the order in which they were given. Commits keep their two steps.
    pub(super) prompt: bool,
    /// As many agents have come, one after the other, before the game begins.
    pub(super) settled: usize,
    /// As many steps are played; 0 for all, to the end.
    pub(super) depth: usize,
}

impl Game {
    /// The semaphores that somebody wants.
    pub(super) fn semaphores(&self) -> &'static [&'static str] {
        let all = self.players.iter().any(|player| player.together);
        if all { &SEMAPHORES } else { &SEMAPHORES[..1] }
    }

    /// One that looks after all of them.
    pub(super) fn visitor(&self) -> Player {
        if self.semaphores().len() > 1 { GROUP } else { ONE }
    }

    /// Whether somebody has to wait for another.
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
