//! Games in which clients of the previous version of slotkeeper take part.

use super::world::{Chaos, Game};
use super::{GAME, play, play_some};

const MIXED: Game = Game { agents: 4, earlier_clients: 4, weights: false, ..GAME };

#[test]
fn two_versions_share_a_semaphore() {
    play(MIXED);
    play(Game { limit: 1, ..MIXED });
    play(Game { agents: 2, earlier_clients: 8, limit: 3, ..MIXED });
    play(Game { agents: 8, earlier_clients: 2, limit: 3, ..MIXED });
    // The previous version almost alone.
    play(Game { agents: 1, earlier_clients: 8, ..MIXED });
    play_some(Game { agents: 40, earlier_clients: 20, limit: 10, ..MIXED }, 0.05);
    play(Game { chaos: Chaos { resize: 0.02, ..Chaos::CALM }, ..MIXED });
}

#[test]
fn two_versions_of_which_some_are_killed_share_a_semaphore() {
    let crash = Chaos { crash: 0.02, ..Chaos::CALM };
    play(Game { chaos: crash, ..MIXED });
    play(Game { limit: 1, chaos: crash, ..MIXED });
    play(Game { agents: 2, earlier_clients: 8, limit: 3, chaos: crash, ..MIXED });
    play(Game { chaos: Chaos { dies: 0.05, ..crash }, ..MIXED });
    play(Game { chaos: Chaos { lost: 0.02, pause: 0.02, cut: 0.01, ..crash }, ..MIXED });
}

#[test]
fn two_versions_and_foreign_clients_share_a_semaphore() {
    let crash = Chaos { crash: 0.01, expire: 0.02, ..Chaos::CALM };
    let mixed = Game { agents: 3, earlier_clients: 3, foreigners: 2, ..MIXED };
    play(mixed);
    play(Game { pollers: 1, ..mixed });
    play(Game { chaos: crash, ..mixed });
    play(Game { limit: 1, chaos: Chaos { lost: 0.02, cut: 0.01, ..crash }, ..mixed });
}
