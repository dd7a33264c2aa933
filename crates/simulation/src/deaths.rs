//! Games in which processes die exactly between two steps: between a listing and the transaction that follows from it, or between a
//! transaction and its answer.

use std::time::Duration;

use super::world::{Chaos, Game, Watches, World};
use super::{GAME, LOCKS, play, play_some, seeds};

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
fn after_the_death_of_a_node_all_others_are_served_however_short_their_wait() {
    let chaos = Chaos { node: 0.01, ..Chaos::CALM };
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

/// Agents that each run a command of this many seconds, as many at a time as the limit. A dead one keeps its session all the time.
fn commands(agents: usize, limit: u32, seconds: u64) -> Game {
    Game { agents, limit, run: Some(Duration::from_secs(seconds)), weights: false, lasts: 12, ..GAME }
}

/// Kills the first waiters of a crowd a moment after it has come. All others are served within so many seconds.
fn first_die(game: Game, dead: usize, bound: u64) {
    for seed in seeds(1.0) {
        let mut world = World::new(seed, game);
        world.run(Duration::from_millis(300));
        world.strike(dead, false);
        let took = world.run_until_served();
        assert!(took <= Duration::from_secs(bound), "seed {seed}: {took:?} with {dead} dead: {game:?}");
    }
}

#[test]
fn the_dead_at_the_head_of_a_crowd_hold_it_up_for_a_moment() {
    // Without the dead it takes 6 s, 12 s and 21 s.
    first_die(commands(24, 3, 1), 6, 9);
    first_die(commands(40, 5, 2), 10, 16);
    first_die(commands(81, 1, 1), 60, 31);
}

#[test]
fn after_the_death_of_a_node_the_one_waiter_of_another_starts_within_seconds() {
    for seed in seeds(1.0) {
        let mut world = World::new(seed, commands(22, 1, 600));
        world.run(Duration::from_millis(300));
        world.strike(20, true);
        while world.holder_died().is_none() {
            world.run(Duration::from_millis(10));
        }
        let died = world.holder_died().expect("a dead holder");
        let started = world.run_until_holds();
        let took = started.saturating_sub(died);
        assert!(
            took <= Duration::from_secs(5),
            "seed {seed}: it started {took:?} after Consul had ended the session"
        );
    }
}
