//! A simulation of many keepers that share one Consul, in simulated time. Requests and answers are delayed and lost; agents crash, pause
//! and are partitioned; sessions expire; operators change limits and configurations, evict participants and write invalid values. After
//! every step the invariants are checked; at the end, that every waiter was served and no key is left.
//!
//! Consul is played by the store of the embedded development server, which the conformance suite compares with a real Consul. Its
//! sessions end after exactly one TTL here, the earliest that Consul promises.
//!
//! The module `model` explores all states of the small games.
//!
//! # How to run
//!
//! ```text
//! cargo test -p slotkeeper-simulation                              12 runs of each game, with new seeds each time
//! SLOTKEEPER_SIM_RUNS=1000 cargo test -p slotkeeper-simulation     as many runs of each game
//! SLOTKEEPER_SIM_SEED=<seed> cargo test -p slotkeeper-simulation --lib <test>     one run, as a failing test prints it
//! TEST_SEED=<base seed> cargo test -p slotkeeper-simulation --lib <test>          the same runs again
//! ```
//!
//! The seeds of the runs follow the base seed, which is random unless `TEST_SEED` sets it. A failing test prints the seeds that failed
//! and the command that repeats the first. `SLOTKEEPER_SIM_TRACE=1` prints every step with its time.

#![cfg(test)]

mod agent;
mod configuration;
mod consul;
mod crowds;
mod deaths;
mod earlier_version;
mod earlier_versions;
mod foreign;
mod intervals;
mod model;
mod referee;
mod rules;
mod store_state;
mod storm;
mod wakeups;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use slotkeeper_semaphore::{Form, Primitive};
use slotkeeper_test_seed as seed;
use world::{Chaos, Game, Watches, World};

/// Runs of each kind in an ordinary test run.
const RUNS: u64 = 12;

/// The variable with the seed of the only run to play.
const ONE_RUN: &str = "SLOTKEEPER_SIM_SEED";

const GAME: Game = Game {
    primitive: Primitive::Semaphore,
    agents: 6,
    earlier_clients: 0,
    foreigners: 0,
    pollers: 0,
    idlers: 0,
    limit: 2,
    form: Form::List,
    weights: true,
    priorities: false,
    groups: false,
    policies: false,
    waits: false,
    prune_delay: Duration::ZERO,
    lasts: 1,
    watches: Watches::Usual,
    storm: None,
    chaos: Chaos::CALM,
};

/// As many seeds as `share` of the runs.
fn seeds(share: f64) -> Vec<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    if let Some(seed) = number(ONE_RUN) {
        return vec![seed];
    }
    let base = seed::base();
    let runs = number("SLOTKEEPER_SIM_RUNS").unwrap_or(RUNS) as f64 * share;
    (0..runs.ceil() as u64).map(|run| base.wrapping_add(run)).collect()
}

/// Plays all runs of a game, and says which ones failed.
fn play(game: Game) {
    play_some(game, 1.0);
}

/// Plays that share of the runs of a game that takes long.
fn play_some(game: Game, share: f64) {
    let run = |seed| {
        let mut world = World::new(seed, game);
        world.run(game.time());
        world.come_to_rest();
    };
    let fails = |seed: &u64| catch_unwind(AssertUnwindSafe(|| run(*seed))).is_err();
    let failed: Vec<_> = seeds(share).into_iter().filter(fails).collect();
    let Some(first) = failed.first() else { return };
    panic!("{game:?}: seeds {failed:?} failed; to replay one: {}", seed::command(ONE_RUN, *first));
}

#[test]
fn in_calm_weather_everybody_is_served() {
    play(Game { agents: 20, limit: 3, weights: false, ..GAME });
}

#[test]
fn lost_and_late_answers_break_nothing() {
    play(Game { chaos: Chaos { lost: 0.05, ..Chaos::CALM }, ..GAME });
}

#[test]
fn sessions_whose_creation_got_no_answer_do_not_pile_up() {
    play(Game { lasts: 6, agents: 4, chaos: Chaos { lost: 0.3, ..Chaos::CALM }, ..GAME });
}

#[test]
fn crashes_pauses_and_partitions_break_nothing() {
    let chaos = Chaos { lost: 0.02, crash: 0.02, pause: 0.02, cut: 0.02, ..Chaos::CALM };
    play(Game { priorities: true, chaos, ..GAME });
}

#[test]
fn who_has_lost_its_session_to_another_process_believes_in_nothing_of_it() {
    for chaos in [
        Chaos { twin: 0.02, ..Chaos::CALM },
        Chaos { twin: 0.02, cut: 0.05, pause: 0.02, ..Chaos::CALM },
        // Also where the second one is killed before the first one was told.
        Chaos { twin: 0.01, cut: 0.02, pause: 0.02, crash: 0.01, ..Chaos::CALM },
    ] {
        play(Game { agents: 4, limit: 1, weights: false, chaos, ..GAME });
        play(Game { priorities: true, chaos, ..GAME });
        play(Game { groups: true, chaos, ..GAME });
        play(Game { chaos, ..LOCKS });
        play(Game { primitive: Primitive::Lock { stays: false, delay: Duration::ZERO }, chaos, ..LOCKS });
    }
}

#[test]
fn with_one_slot_there_is_mutual_exclusion() {
    let chaos = Chaos { lost: 0.03, crash: 0.01, pause: 0.02, cut: 0.03, ..Chaos::CALM };
    play(Game { agents: 4, limit: 1, weights: false, chaos, ..GAME });
}

#[test]
fn a_limit_that_moves_throws_nobody_out_and_is_filled_at_once() {
    play(Game { agents: 10, limit: 3, chaos: Chaos { resize: 0.05, ..Chaos::CALM }, ..GAME });
    let chaos = Chaos { lost: 0.02, crash: 0.01, pause: 0.01, cut: 0.01, resize: 0.05, ..Chaos::CALM };
    play(Game { priorities: true, limit: 3, chaos, ..GAME });
}

#[test]
fn clients_of_other_kinds_and_ours_all_have_their_turn() {
    for form in [Form::List, Form::Map] {
        play(Game { foreigners: 4, form, weights: form == Form::List, ..GAME });
        let chaos = Chaos { lost: 0.02, crash: 0.01, pause: 0.02, cut: 0.01, ..Chaos::CALM };
        play(Game { foreigners: 3, limit: 1, form, weights: false, chaos, ..GAME });
    }
}

#[test]
fn whoever_comes_ahead_of_the_first_of_ours_beside_other_clients_is_not_overtaken() {
    let shared = Game { foreigners: 2, priorities: true, weights: false, ..GAME };
    play(shared);
    let chaos = Chaos { reload: 0.02, pause: 0.01, ..Chaos::CALM };
    play(Game { waits: true, policies: true, chaos, ..shared });
    play(Game { limit: 1, chaos: Chaos { crash: 0.01, lost: 0.01, expire: 0.005, ..chaos }, ..shared });
    play(Game { groups: true, waits: true, ..shared });
    play(Game { groups: true, limit: 2, chaos, ..shared });
}

#[test]
fn foreign_clients_that_never_act_are_passed_over() {
    for form in [Form::List, Form::Map] {
        play(Game { idlers: 2, form, weights: form == Form::List, ..GAME });
        let chaos = Chaos { lost: 0.02, crash: 0.01, pause: 0.02, cut: 0.01, ..Chaos::CALM };
        play(Game { foreigners: 2, idlers: 1, limit: 1, form, weights: false, chaos, ..GAME });
    }
}

#[test]
fn who_takes_slots_together_never_has_one_and_waits_and_all_are_served() {
    play(Game { groups: true, priorities: true, ..GAME });
    let chaos = Chaos { lost: 0.02, crash: 0.01, pause: 0.02, cut: 0.01, ..Chaos::CALM };
    play(Game { groups: true, limit: 1, weights: false, chaos, ..GAME });
    play(Game { groups: true, foreigners: 2, chaos: Chaos { meddle: 0.1, ..chaos }, ..GAME });
}

#[test]
fn whatever_operators_do_everybody_is_served_and_no_token_falls() {
    let chaos =
        Chaos { lost: 0.02, crash: 0.01, pause: 0.02, cut: 0.01, meddle: 0.1, resize: 0.01, ..Chaos::CALM };
    play(Game { agents: 5, priorities: true, chaos, ..GAME });
}

#[test]
fn an_operator_who_prunes_and_destroys_harms_nobody() {
    // There is nobody now and then.
    let seldom = Game { agents: 1, weights: false, chaos: Chaos { tidy: 1.0, ..Chaos::CALM }, ..GAME };
    play(seldom);
    play(Game { agents: 1, foreigners: 1, form: Form::Map, ..seldom });
    let chaos = Chaos { lost: 0.02, crash: 0.03, pause: 0.02, cut: 0.02, tidy: 0.2, ..Chaos::CALM };
    play(Game { agents: 4, priorities: true, foreigners: 2, chaos, ..GAME });
    play(Game { agents: 3, limit: 1, weights: false, chaos, ..GAME });
    play(Game { agents: 4, groups: true, chaos, ..GAME });
}

#[test]
fn who_is_evicted_stops_first_and_then_goes_to_the_end_of_the_line() {
    let evict = Chaos { evict: 0.1, ..Chaos::CALM };
    play(Game { priorities: true, chaos: evict, ..GAME });
    play(Game { groups: true, foreigners: 2, chaos: evict, ..GAME });
    // A foreign client joins while the handoff list names a lookout.
    play(Game { foreigners: 1, limit: 1, weights: false, chaos: evict, ..GAME });
    play(Game { waits: true, chaos: Chaos { reload: 0.02, ..evict }, ..GAME });
    let chaos = Chaos { lost: 0.02, crash: 0.02, pause: 0.02, cut: 0.01, resize: 0.01, ..evict };
    play(Game { priorities: true, chaos, ..GAME });
    play(Game { groups: true, limit: 1, weights: false, chaos, ..GAME });
    play(Game { chaos: Chaos { meddle: 0.05, ..chaos }, ..GAME });
    play(Game { chaos: Chaos { spoil: 0.01, ..chaos }, ..GAME });
    for stays in [true, false] {
        let primitive = Primitive::Lock { stays, delay: Duration::ZERO };
        play(Game { primitive, chaos: evict, ..LOCKS });
        play(Game { primitive, chaos, ..LOCKS });
    }
}

#[test]
fn who_learns_of_it_after_its_lease_has_run_out_stops_first_too() {
    let chaos = Chaos { cut: 0.1, evict: 0.1, ..Chaos::CALM };
    play(Game { agents: 4, lasts: 2, limit: 1, weights: false, chaos, ..GAME });
}

#[test]
fn limits_that_are_set_adopted_or_refused_are_so_by_those_who_are_told_to() {
    play(Game { policies: true, chaos: Chaos { resize: 0.01, ..Chaos::CALM }, ..GAME });
    let chaos = Chaos { lost: 0.02, crash: 0.01, pause: 0.01, cut: 0.01, resize: 0.02, ..Chaos::CALM };
    play(Game { policies: true, priorities: true, chaos, ..GAME });
}

#[test]
fn who_gives_up_does_so_in_time_and_leaves_nothing_behind() {
    play(Game { waits: true, ..GAME });
    let chaos = Chaos { lost: 0.02, crash: 0.01, pause: 0.02, cut: 0.02, ..Chaos::CALM };
    play(Game { waits: true, priorities: true, chaos, ..GAME });
    play(Game { waits: true, groups: true, limit: 1, weights: false, chaos, ..GAME });
}

#[test]
fn the_dead_rest_for_as_long_as_is_configured() {
    let chaos = Chaos { lost: 0.02, crash: 0.03, pause: 0.02, cut: 0.02, ..Chaos::CALM };
    play(Game { prune_delay: Duration::from_secs(3), chaos, ..GAME });
}

#[test]
fn a_configuration_may_change_at_any_time_and_over_a_restart() {
    let chaos = Chaos { reload: 0.02, resize: 0.01, ..Chaos::CALM };
    let game = Game { policies: true, waits: true, priorities: true, ..GAME };
    play(Game { chaos, ..game });
    let chaos = Chaos { lost: 0.02, crash: 0.03, pause: 0.01, cut: 0.01, ..chaos };
    play(Game { chaos, ..game });
    play(Game { groups: true, waits: false, chaos, ..game });
    play(Game { groups: true, policies: false, chaos: Chaos { crash: 0.05, ..chaos }, ..game });
}

const LOCK: Primitive = Primitive::Lock { stays: true, delay: Duration::ZERO };
const LOCKS: Game = Game { primitive: LOCK, agents: 5, limit: 1, weights: false, ..GAME };

#[test]
fn a_lock_has_one_owner_and_is_handed_on_at_once() {
    play(LOCKS);
    let deleted = Primitive::Lock { stays: false, delay: Duration::ZERO };
    play(Game { primitive: deleted, chaos: Chaos { reload: 0.02, ..Chaos::CALM }, ..LOCKS });
    play(Game { waits: true, ..LOCKS });
}

#[test]
fn a_lock_delay_is_waited_out_whatever_goes_wrong() {
    let chaos = Chaos { lost: 0.02, crash: 0.02, pause: 0.02, cut: 0.02, ..Chaos::CALM };
    for (stays, seconds) in [(true, 0), (true, 3), (false, 3)] {
        let primitive = Primitive::Lock { stays, delay: Duration::from_secs(seconds) };
        play(Game { primitive, chaos: Chaos { meddle: 0.05, ..Chaos::CALM }, ..LOCKS });
        play(Game { primitive, chaos, ..LOCKS });
        play(Game { primitive, chaos: Chaos { meddle: 0.1, ..chaos }, ..LOCKS });
        play(Game { primitive, waits: seconds == 0, chaos: Chaos { reload: 0.02, ..chaos }, ..LOCKS });
    }
}

#[test]
fn whatever_is_written_under_lock_everybody_is_served_once_it_is_mended() {
    let chaos = Chaos { spoil: 0.02, ..Chaos::CALM };
    play(Game { chaos, ..GAME });
    play(Game { groups: true, policies: true, chaos: Chaos { resize: 0.01, ..chaos }, ..GAME });
    let chaos = Chaos { lost: 0.02, crash: 0.01, pause: 0.01, cut: 0.01, ..chaos };
    play(Game { groups: true, priorities: true, chaos, ..GAME });
}
