//! Many keepers against one Consul, in simulated time: requests and answers are delayed and lost, agents crash, pause
//! and are cut off, sessions run out. After every step the invariants are checked; at the end, that everybody was
//! served and nothing is left.
//!
//! The Consul is the embedded server's store, which the conformance suite holds to a real one. Its sessions end after
//! exactly one TTL here, the earliest that Consul promises, and not after two as in practice.
//!
//! A failing run prints its seed; `SLOTKEEPER_SIM_SEED=<seed>` plays that run alone, `SLOTKEEPER_SIM_RUNS=<n>` more.

mod agent;
mod consul;
mod world;

use std::time::Duration;

use world::{Chaos, World};

/// Runs of each kind in an ordinary test run.
const RUNS: u64 = 25;

fn seeds() -> Vec<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    match number("SLOTKEEPER_SIM_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("SLOTKEEPER_SIM_RUNS").unwrap_or(RUNS)).collect(),
    }
}

fn play(chaos: Chaos, clients: usize, limit: u32) {
    for seed in seeds() {
        let mut world = World::new(seed, chaos, clients, limit);
        world.run(Duration::from_secs(40));
        world.come_to_rest();
    }
}

#[test]
fn in_calm_weather_everybody_is_served() {
    play(Chaos::CALM, 8, 3);
}

#[test]
fn lost_and_late_answers_break_nothing() {
    play(Chaos { lost: 0.05, ..Chaos::CALM }, 6, 2);
}

#[test]
fn crashes_pauses_and_partitions_break_nothing() {
    play(Chaos { lost: 0.02, crash: 0.02, pause: 0.02, cut: 0.02, meddle: 0.0 }, 6, 2);
}

#[test]
fn with_one_slot_there_is_mutual_exclusion() {
    play(Chaos { lost: 0.03, crash: 0.01, pause: 0.02, cut: 0.03, meddle: 0.0 }, 4, 1);
}

#[test]
fn whatever_operators_do_everybody_is_served_and_no_token_falls() {
    play(Chaos { lost: 0.02, crash: 0.01, pause: 0.02, cut: 0.01, meddle: 0.1 }, 5, 2);
}
