//! A model check: of a few agents *every* order in which requests reach Consul and answers come back, with crashes,
//! lost answers and requests that arrive when nobody waits for them any more. The simulation plays long games at
//! random; this plays all of the small ones.
//!
//! What runs is the real core: whole [`Keeper`](slotkeeper_semaphore::Keeper)s, cloned at each branch, on the embedded
//! store. [`State`] says what can happen next; `stateright` goes through all of it, breadth first, so that what breaks
//! a rule is shown by a shortest path to it. The rules about what stands in Consul are the simulation's
//! ([`rules`](super::rules)). Here also nobody may wait for a slot that is there when nothing but the clock is left, and
//! a newcomer may pass nobody of whom it knew. What was left out, so that it comes to an end:
//!
//! - **Time** passes only by timers. A short one (a retry, mostly) fires at any moment; any other only when nothing
//!   else is left to happen, the earliest first. The TTL is a day, so that no lease ends; a session ends only where its
//!   process has crashed. Leases are the simulation's.
//! - **States that differ in times** by less than a second are taken for one and the same, so not every difference in
//!   a wait is followed up.
//! - **Sessions** are created and renewed without delay or loss. A watch's wait never ends without news.
//! - **Agents that want the same** send their first request in one order only: with other names it is the same game.
//! - **Operators and clients of other kinds** do not play, and limits do not move.
//! - **Acquire groups** are two at most, and their reads are answered at once: each has the watches and requests of two
//!   semaphores on its way, so that two of them are as many states as four agents. What goes wrong between groups is
//!   played from where both have come, and two that come at once for some steps only.
//!
//! An ordinary test run plays what takes seconds. The larger games take minutes and some gigabytes:
//!
//! ```text
//! SLOTKEEPER_MODEL=full cargo test --release --lib model:: -- --nocapture --test-threads 1
//! ```
//!
//! Each prints how many states it has. The number varies a little, since it depends on which of two states that are
//! taken for the same is seen first.

mod agent;
mod digest;
mod game;
mod state;

use stateright::{Checker, DiscoveryClassification, HasDiscoveries, Model, Property};

use game::{DOUBLE, GROUP, Game, ONE, URGENT};
use state::{Action, State};
use std::time::Instant;

/// Two agents, one slot, and nothing goes wrong.
const TWO: Game = Game {
    players: &[ONE, ONE],
    limit: 1,
    crashes: 0,
    returns: false,
    losses: 0,
    quits: 0,
    lulls: 0,
    prompt: false,
    settled: 0,
    depth: 0,
};

/// Three are many more states.
const THREE: Game = Game { players: &[ONE, ONE, ONE], prompt: true, ..TWO };

/// Two that want a slot of each of two semaphores.
const GROUPS: Game = Game { players: &[GROUP, GROUP], prompt: true, ..TWO };

/// One of those, and one that wants a slot of one.
const MIXED: Game = Game { players: &[GROUP, ONE], ..GROUPS };

impl Model for Game {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend(state.actions(self));
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        next.play(self, &action);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            always("no more slots are believed to be held than there are", |game, state| {
                state.believes_no_more_than(game.limit)
            }),
            always(".lock never lists more", |game, state| state.lists_no_more_than(game.limit)),
            always("every slot has one number, and one owner", |_, state| state.numbers_are_unique()),
            always("every step keeps order and tokens", |_, state| !state.is_broken()),
            always("nobody waits for a slot that is free, or to be gone", |_, state| !state.is_stuck()),
            always("at rest nothing is left", |game, state| !state.is_at_rest(game) || state.is_clean()),
        ];
        // That the rules above were put to the test.
        if self.depth == 0 {
            properties.push(sometimes("all come to rest", |game, state| state.is_at_rest(game)));
        }
        if self.depth == 0 && self.is_contended() {
            properties.push(sometimes("a slot is handed on", |_, state| state.handed_on()));
        }
        if self.depth == 0 && self.crashes > 0 {
            properties.push(sometimes("a dead holder is pruned", |_, state| state.pruned()));
        }
        properties
    }
}

fn always(rule: &'static str, holds: fn(&Game, &State) -> bool) -> Property<Game> {
    Property::always(rule, holds)
}

fn sometimes(rule: &'static str, holds: fn(&Game, &State) -> bool) -> Property<Game> {
    Property::sometimes(rule, holds)
}

/// Plays all of a game. The first path that breaks a rule is shown state by state.
fn play(game: Game) {
    #[allow(clippy::disallowed_methods, reason = "it only says how long the game took")]
    let began = Instant::now();
    let mut checker = game.checker().threads(2).finish_when(HasDiscoveries::AnyFailures);
    if game.depth > 0 {
        checker = checker.target_max_depth(game.depth);
    }
    let checker = checker.spawn_bfs().join();
    println!(
        "{game:?}: {} states, {} steps between them, {} deep, {:.1?}",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        began.elapsed()
    );
    for (rule, path) in checker.discoveries() {
        if matches!(checker.discovery_classification(rule), DiscoveryClassification::Counterexample) {
            let steps = path.into_vec().into_iter().map(|(state, action)| {
                let action = action.map(|action| state.describe(&action)).unwrap_or_default();
                format!("{state:?}\n  {action}\n")
            });
            panic!("{game:?}: it is not so that {rule}:\n{}", steps.collect::<String>());
        }
    }
    checker.assert_properties();
}

fn play_larger(games: &[Game]) {
    if std::env::var("SLOTKEEPER_MODEL").is_ok_and(|which| which == "full") {
        for game in games {
            play(*game);
        }
    }
}

#[test]
fn two_agents_in_every_order() {
    play(TWO);
    play(Game { limit: 2, ..TWO });
    play(Game { lulls: 1, settled: 1, ..TWO });
    play(Game { settled: 2, quits: 1, ..TWO });
    play_larger(&[
        Game { quits: 2, ..TWO },
        Game { lulls: 9, ..TWO },
        Game { limit: 2, quits: 1, settled: 1, ..TWO },
        Game { players: &[DOUBLE, ONE], limit: 2, quits: 1, lulls: 1, ..TWO },
    ]);
}

#[test]
fn two_agents_with_a_crash_and_a_loss() {
    play(Game { crashes: 1, settled: 1, ..TWO });
    play(Game { losses: 1, prompt: true, depth: 16, ..TWO });
    play(Game { losses: 1, settled: 2, depth: 16, ..TWO });
    play(Game { crashes: 1, returns: true, prompt: true, settled: 1, depth: 24, ..TWO });
    play_larger(&[
        Game { crashes: 1, ..TWO },
        Game { crashes: 1, returns: true, prompt: true, ..TWO },
        Game { losses: 1, ..TWO },
        Game { crashes: 1, losses: 1, ..TWO },
        Game { crashes: 1, returns: true, lulls: 1, ..TWO },
        Game { crashes: 1, returns: true, losses: 1, prompt: true, ..TWO },
        Game { losses: 1, quits: 1, settled: 2, ..TWO },
        Game { limit: 2, crashes: 1, losses: 1, settled: 2, ..TWO },
    ]);
}

#[test]
fn three_agents_in_every_order() {
    play(Game { settled: 3, depth: 15, ..THREE });
    play(Game { settled: 1, depth: 14, ..THREE });
    play(Game { settled: 1, limit: 2, depth: 13, ..THREE });
    play(Game { players: &[ONE, ONE, URGENT], settled: 2, depth: 14, ..THREE });
    play(Game { players: &[ONE, DOUBLE, ONE], limit: 2, settled: 2, depth: 14, ..THREE });
    play_larger(&[
        Game { settled: 3, ..THREE },
        THREE,
        Game { limit: 2, settled: 2, ..THREE },
        Game { quits: 1, settled: 2, ..THREE },
        Game { lulls: 1, settled: 2, ..THREE },
        Game { players: &[ONE, ONE, URGENT], settled: 1, ..THREE },
        Game { players: &[ONE, DOUBLE, ONE], limit: 2, quits: 1, settled: 2, ..THREE },
    ]);
}

#[test]
fn three_agents_with_a_crash_and_a_loss() {
    play(Game { crashes: 1, settled: 3, depth: 14, ..THREE });
    play_larger(&[
        Game { crashes: 1, settled: 3, ..THREE },
        Game { crashes: 1, settled: 2, ..THREE },
        Game { crashes: 1, limit: 2, settled: 2, ..THREE },
        Game { losses: 1, settled: 3, ..THREE },
        Game { losses: 1, crashes: 1, settled: 3, ..THREE },
        Game { crashes: 1, returns: true, settled: 3, ..THREE },
    ]);
}

#[test]
fn groups() {
    play(Game { settled: 1, ..MIXED });
    play(Game { settled: 2, depth: 14, ..GROUPS });
    play(Game { depth: 16, ..GROUPS });
    play_larger(&[
        MIXED,
        Game { settled: 1, ..GROUPS },
        Game { crashes: 1, settled: 1, ..MIXED },
        Game { losses: 1, settled: 1, ..MIXED },
        Game { depth: 19, ..GROUPS },
        Game { lulls: 1, settled: 2, depth: 14, ..GROUPS },
        Game { quits: 1, settled: 2, ..GROUPS },
        Game { crashes: 1, settled: 2, ..GROUPS },
    ]);
}
