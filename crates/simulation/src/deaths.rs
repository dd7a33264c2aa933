//! Games in which processes die exactly between two steps: between a listing and the transaction that follows from it, or between a
//! transaction and its answer.

use std::time::Duration;

use super::world::{Chaos, Game, Watches};
use super::{GAME, LOCKS, play, play_some};

const DEATHS: Chaos = Chaos { dies: 0.05, ..Chaos::CALM };

#[test]
fn an_agent_that_dies_between_two_steps_leaves_no_key_and_blocks_no_waiter() {
    for (watches, share) in [(Watches::Usual, 1.0), (Watches::Arrive, 1.0), (Watches::Never, 0.1)] {
        play_some(Game { watches, chaos: DEATHS, ..GAME }, share);
        play_some(Game { watches, limit: 1, weights: false, chaos: DEATHS, ..GAME }, share);
    }
    play(Game { priorities: true, chaos: Chaos { lost: 0.02, pause: 0.02, cut: 0.01, ..DEATHS }, ..GAME });
    play_some(Game { groups: true, chaos: DEATHS, ..GAME }, 0.5);
    play_some(Game { foreigners: 2, chaos: Chaos { expire: 0.02, ..DEATHS }, ..GAME }, 0.5);
    play_some(Game { policies: true, chaos: Chaos { reload: 0.02, resize: 0.01, ..DEATHS }, ..GAME }, 0.5);
    play_some(Game { chaos: DEATHS, ..LOCKS }, 0.5);
    let storm = Some(Duration::from_secs(1));
    play_some(Game { agents: 12, limit: 6, weights: false, storm, chaos: DEATHS, ..GAME }, 0.3);
}

#[test]
fn after_holders_and_lookout_died_together_the_next_client_is_served_however_short_its_wait() {
    let chaos = Chaos { joint: 0.01, ..Chaos::CALM };
    let game = Game { waits: true, watches: Watches::Arrive, lasts: 2, chaos, ..GAME };
    play(game);
    play(Game { agents: 3, limit: 1, weights: false, ..game });
    play(Game { priorities: true, ..game });
    play_some(Game { agents: 40, limit: 4, weights: false, ..game }, 0.2);
}

#[test]
fn foreign_clients_that_die_or_poll_block_no_waiter() {
    let expire = Chaos { expire: 0.03, ..Chaos::CALM };
    play(Game { foreigners: 3, weights: false, chaos: expire, ..GAME });
    play(Game { foreigners: 1, pollers: 2, weights: false, ..GAME });
    play(Game { foreigners: 1, pollers: 1, idlers: 1, weights: false, chaos: expire, ..GAME });
    let chaos = Chaos { lost: 0.02, crash: 0.01, pause: 0.02, cut: 0.01, ..expire };
    play(Game { foreigners: 2, pollers: 2, limit: 1, weights: false, chaos, ..GAME });
}
