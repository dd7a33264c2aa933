//! Games with many clients, and with clients that join and leave at one instant.

use std::time::Duration;

use super::world::{Chaos, Game, World};
use super::{GAME, play_some, seeds};

/// The maximum number of participants that a semaphore is designed for.
const CROWD: Game = Game { agents: 200, limit: 50, weights: false, ..GAME };
/// So many participants that no agent knows all of them.
const MANY: Game = Game { agents: 60, limit: 15, weights: false, ..GAME };
/// A few agents that join at one instant, often.
const FEW: Game = Game { agents: 12, limit: 6, weights: false, ..GAME };

const FAULTS: Chaos = Chaos { lost: 0.01, crash: 0.005, pause: 0.005, cut: 0.005, ..Chaos::CALM };

fn storm(millis: u64) -> Option<Duration> {
    Some(Duration::from_millis(millis))
}

#[test]
fn a_crowd_is_served() {
    play_some(CROWD, 0.01);
    play_some(Game { weights: true, priorities: true, ..MANY }, 0.1);
    play_some(Game { chaos: FAULTS, ..MANY }, 0.1);
}

#[test]
fn agents_that_join_and_leave_at_one_instant_are_served() {
    play_some(Game { storm: storm(200), ..FEW }, 0.3);
    play_some(Game { limit: 1, storm: storm(100), ..FEW }, 0.3);
    play_some(Game { storm: storm(1000), priorities: true, chaos: FAULTS, ..FEW }, 0.5);
    play_some(Game { storm: storm(1000), foreigners: 2, chaos: FAULTS, ..FEW }, 0.3);
    play_some(Game { storm: storm(2000), ..MANY }, 0.05);
}

#[test]
fn crowds_that_join_and_leave_at_one_instant_are_served() {
    play_some(Game { storm: storm(2000), ..CROWD }, 0.01);
    play_some(Game { storm: storm(2000), chaos: FAULTS, ..CROWD }, 0.01);
}

/// Few transactions of a crowd without faults are refused because another client has changed a key: those of holders that leave within
/// the few milliseconds between another one's read and its write.
#[test]
fn few_transactions_of_a_crowd_are_refused() {
    for (agents, limit) in [(20, 3), (120, 3), (120, 30)] {
        let run = Some(Duration::from_secs(3));
        let game = Game { agents, limit, run, weights: false, ..GAME };
        for seed in seeds(0.1) {
            let mut world = World::new(seed, game);
            // All come at one instant, and all that read a free slot then try to take it.
            world.run(Duration::from_millis(100));
            let (_, before) = world.transactions();
            world.run_until_served();
            let (committed, refused) = world.transactions();
            let refused = refused - before;
            assert!(
                refused * 2 <= agents as u32,
                "seed {seed}: {refused} refused, {committed} committed: {game:?}"
            );
        }
    }
}
