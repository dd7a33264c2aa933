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

/// The number of runs of each game in an ordinary test run.
const RUNS: u64 = 12;

/// The variable with the seed of the only run to play.
const ONE_RUN: &str = "SLOTKEEPER_SIM_SEED";

const GAME: Game = Game {
    primitive: Primitive::Semaphore,
    agents: 6,
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
    // About the ratio of Consul's default lock-delay to its minimum TTL.
    lock_delay: consul::TTL,
    prune_delay: Duration::ZERO,
    lasts: 1,
    watches: Watches::Usual,
    storm: None,
    run: None,
    chaos: Chaos::CALM,
};

/// The seeds of a share of the runs.
fn seeds(share: f64) -> Vec<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    if let Some(seed) = number(ONE_RUN) {
        return vec![seed];
    }
    let base = seed::base();
    let runs = number("SLOTKEEPER_SIM_RUNS").unwrap_or(RUNS) as f64 * share;
    (0..runs.ceil() as u64).map(|run| base.wrapping_add(run)).collect()
}

/// Plays all runs of a game. Panics with the seeds that failed.
fn play(game: Game) {
    play_some(game, 1.0);
}

/// Plays a share of the runs of a long game.
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
fn without_faults_every_agent_is_served() {
    play(Game { agents: 20, limit: 3, weights: false, ..GAME });
}

#[test]
fn lost_and_late_answers_break_nothing() {
    play(Game { chaos: Chaos { lost: 0.05, ..Chaos::CALM }, ..GAME });
}

#[test]
fn sessions_whose_creation_got_no_answer_hold_up_nobody() {
    play(Game { lasts: 6, agents: 4, chaos: Chaos { lost: 0.3, ..Chaos::CALM }, ..GAME });
}

#[test]
fn crashes_pauses_and_partitions_break_nothing() {
    let chaos = Chaos { lost: 0.02, crash: 0.02, pause: 0.02, cut: 0.02, ..Chaos::CALM };
    play(Game { priorities: true, chaos, ..GAME });
}

#[test]
fn with_one_slot_there_is_mutual_exclusion() {
    let chaos = Chaos { lost: 0.03, crash: 0.01, pause: 0.02, cut: 0.03, ..Chaos::CALM };
    play(Game { agents: 4, limit: 1, weights: false, chaos, ..GAME });
}

#[test]
fn a_changed_limit_evicts_no_holder_and_is_filled_at_once() {
    play(Game { agents: 10, limit: 3, chaos: Chaos { resize: 0.05, ..Chaos::CALM }, ..GAME });
    let chaos = Chaos { lost: 0.02, crash: 0.01, pause: 0.01, cut: 0.01, resize: 0.05, ..Chaos::CALM };
    play(Game { priorities: true, limit: 3, chaos, ..GAME });
}

#[test]
fn foreign_clients_and_agents_are_all_served() {
    for form in [Form::List, Form::Map] {
        play(Game { foreigners: 4, form, weights: form == Form::List, ..GAME });
        let chaos = Chaos { lost: 0.02, crash: 0.01, pause: 0.02, cut: 0.01, ..Chaos::CALM };
        play(Game { foreigners: 3, limit: 1, form, weights: false, chaos, ..GAME });
    }
}

#[test]
fn a_waiter_that_joins_ahead_of_the_first_agent_is_not_overtaken() {
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
fn an_acquire_group_never_holds_one_slot_and_waits_for_another() {
    play(Game { groups: true, priorities: true, ..GAME });
    let chaos = Chaos { lost: 0.02, crash: 0.01, pause: 0.02, cut: 0.01, ..Chaos::CALM };
    play(Game { groups: true, limit: 1, weights: false, chaos, ..GAME });
    play(Game { groups: true, foreigners: 2, chaos: Chaos { meddle: 0.1, ..chaos }, ..GAME });
}

#[test]
fn an_acquire_group_that_wants_more_than_one_limit_keeps_no_other_client_waiting() {
    let resize = Chaos { resize: 0.02, ..Chaos::CALM };
    play(Game { groups: true, priorities: true, limit: 3, chaos: resize, ..GAME });
    play(Game { groups: true, waits: true, policies: true, chaos: Chaos { reload: 0.02, ..resize }, ..GAME });
    let chaos = Chaos { lost: 0.02, crash: 0.02, pause: 0.02, cut: 0.01, evict: 0.01, ..resize };
    play(Game { groups: true, priorities: true, chaos, ..GAME });
    play(Game { groups: true, foreigners: 2, limit: 3, chaos: Chaos { dies: 0.02, ..chaos }, ..GAME });
}

#[test]
fn whatever_operators_do_every_agent_is_served_and_no_token_falls() {
    let chaos =
        Chaos { lost: 0.02, crash: 0.01, pause: 0.02, cut: 0.01, meddle: 0.1, resize: 0.01, ..Chaos::CALM };
    play(Game { agents: 5, priorities: true, chaos, ..GAME });
}

#[test]
fn an_operator_that_prunes_and_destroys_harms_no_live_client() {
    // At times there is no participant.
    let seldom = Game { agents: 1, weights: false, chaos: Chaos { tidy: 1.0, ..Chaos::CALM }, ..GAME };
    play(seldom);
    play(Game { agents: 1, foreigners: 1, form: Form::Map, ..seldom });
    let chaos = Chaos { lost: 0.02, crash: 0.03, pause: 0.02, cut: 0.02, tidy: 0.2, ..Chaos::CALM };
    play(Game { agents: 4, priorities: true, foreigners: 2, chaos, ..GAME });
    play(Game { agents: 3, limit: 1, weights: false, chaos, ..GAME });
    play(Game { agents: 4, groups: true, chaos, ..GAME });
}

#[test]
fn an_evicted_holder_stops_first_and_then_moves_to_the_end_of_the_queue() {
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
        let primitive = Primitive::Lock { stays };
        play(Game { primitive, chaos: evict, ..LOCKS });
        play(Game { primitive, chaos, ..LOCKS });
    }
}

#[test]
fn an_eviction_that_is_noticed_after_the_lease_stops_the_workload_first() {
    let chaos = Chaos { cut: 0.1, evict: 0.1, ..Chaos::CALM };
    play(Game { agents: 4, lasts: 2, limit: 1, weights: false, chaos, ..GAME });
}

#[test]
fn each_agent_follows_its_limit_policy() {
    play(Game { policies: true, chaos: Chaos { resize: 0.01, ..Chaos::CALM }, ..GAME });
    let chaos = Chaos { lost: 0.02, crash: 0.01, pause: 0.01, cut: 0.01, resize: 0.02, ..Chaos::CALM };
    play(Game { policies: true, priorities: true, chaos, ..GAME });
}

#[test]
fn an_agent_that_times_out_does_so_in_time_and_leaves_no_key() {
    play(Game { waits: true, ..GAME });
    let chaos = Chaos { lost: 0.02, crash: 0.01, pause: 0.02, cut: 0.02, ..Chaos::CALM };
    play(Game { waits: true, priorities: true, chaos, ..GAME });
    play(Game { waits: true, groups: true, limit: 1, weights: false, chaos, ..GAME });
}

#[test]
fn a_dead_holder_is_pruned_after_the_prune_delay() {
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

const LOCK: Primitive = Primitive::Lock { stays: true };
const LOCKS: Game =
    Game { primitive: LOCK, lock_delay: Duration::ZERO, agents: 5, limit: 1, weights: false, ..GAME };

#[test]
fn a_lock_has_one_owner_and_is_acquired_again_at_once() {
    play(LOCKS);
    let deleted = Primitive::Lock { stays: false };
    play(Game { primitive: deleted, chaos: Chaos { reload: 0.02, ..Chaos::CALM }, ..LOCKS });
    play(Game { waits: true, ..LOCKS });
}

#[test]
fn a_lock_delay_is_respected_under_every_fault() {
    let chaos = Chaos { lost: 0.02, crash: 0.02, pause: 0.02, cut: 0.02, ..Chaos::CALM };
    for (stays, seconds) in [(true, 0), (true, 3), (false, 3)] {
        let primitive = Primitive::Lock { stays };
        let locks = Game { primitive, lock_delay: Duration::from_secs(seconds), ..LOCKS };
        play(Game { chaos: Chaos { meddle: 0.05, ..Chaos::CALM }, ..locks });
        play(Game { chaos, ..locks });
        play(Game { chaos: Chaos { meddle: 0.1, ..chaos }, ..locks });
        play(Game { waits: seconds == 0, chaos: Chaos { reload: 0.02, ..chaos }, ..locks });
    }
}

#[test]
fn after_an_invalid_lock_key_is_fixed_every_agent_is_served() {
    let chaos = Chaos { spoil: 0.02, ..Chaos::CALM };
    play(Game { chaos, ..GAME });
    play(Game { groups: true, policies: true, chaos: Chaos { resize: 0.01, ..chaos }, ..GAME });
    let chaos = Chaos { lost: 0.02, crash: 0.01, pause: 0.01, cut: 0.01, ..chaos };
    play(Game { groups: true, priorities: true, chaos, ..GAME });
}
