//! A model check: *every* order in which the requests of a few agents reach Consul and the answers come back, with crashes, lost
//! answers and requests that arrive after their time-out. The simulation plays long games at random; the model plays all small
//! ones.
//!
//! The model runs the real core: whole [`Keeper`](slotkeeper_semaphore::Keeper)s, cloned at each branch, on the embedded store.
//! [`State`] lists the possible next steps. `stateright` explores them breadth first, so that a violation comes with a shortest
//! path. The rules about the state in Consul are the simulation's ([`rules`](super::rules)). The model has two more rules: no
//! waiter waits for a free slot when only timers are left, and a new client passes no waiter that it knew of. To stay finite, the
//! model leaves out:
//!
//! - **Time** passes only by timers. A short timer (usually a retry) fires at any moment. Other timers fire only when no other step
//!   is possible, the earliest first. The TTL is a day, so that no lease expires. A session ends only after its process has
//!   crashed. The simulation covers leases.
//! - **States that differ in times** by less than a second count as the same state, so not every difference in a wait is explored.
//! - **Sessions** are created and renewed without delay or loss. The wait of a watch never ends without a change.
//! - **Agents of the same kind** send their first request in one order only: another order is the same game with other names.
//! - **Operators and foreign clients** do not take part, and limits do not change.
//! - **Acquire groups** are at most two, and their reads are answered at once. Each group has the watches and requests of two
//!   semaphores in flight, so two groups have as many states as four agents. Games with faults begin after both groups have joined.
//!   Games in which both join at once have a limited number of steps.
//!
//! An ordinary test run plays the games that take seconds. The larger games take minutes and some gigabytes:
//!
//! ```text
//! SLOTKEEPER_MODEL=full cargo test --release --lib model:: -- --nocapture --test-threads 1
//! ```
//!
//! Each game prints its number of states. The number varies a little: it depends on which of two states that count as the same is
//! visited first.

mod agent;
mod digest;
mod game;
mod state;

use stateright::{Checker, DiscoveryClassification, HasDiscoveries, Model, Property};

use game::{DOUBLE, GROUP, Game, ONE, URGENT};
use state::{Action, State};
use std::time::Instant;

/// Two agents, one slot, and no faults.
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

/// Three agents have many more states.
const THREE: Game = Game { players: &[ONE, ONE, ONE], prompt: true, ..TWO };

/// Two acquire groups of the same two semaphores.
const GROUPS: Game = Game { players: &[GROUP, GROUP], prompt: true, ..TWO };

/// An acquire group, and an agent of one semaphore.
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
            always("agents consider no more slots held than the limit", |game, state| {
                state.holds_no_more_than(game.limit)
            }),
            always(".lock never lists more holders than the limit", |game, state| {
                state.lists_no_more_than(game.limit)
            }),
            always("every slot index has one holder", |_, state| state.numbers_are_unique()),
            always("every step keeps order and tokens", |_, state| !state.is_broken()),
            always("no agent waits for a free slot, or drains, for too long", |_, state| !state.is_stuck()),
            always("at rest no key and no session is left", |game, state| {
                !state.is_at_rest(game) || state.is_clean()
            }),
        ];
        // The rules above were tested only if these states occur.
        if self.depth == 0 {
            properties.push(sometimes("all agents come to rest", |game, state| state.is_at_rest(game)));
        }
        if self.depth == 0 && self.is_contended() {
            properties.push(sometimes("a slot goes to a waiter", |_, state| state.granted_to_waiter()));
        }
        if self.depth == 0 && self.crashes > 0 {
            properties.push(sometimes("a dead holder is pruned", |_, state| state.pruned()));
        }
        // Within as many steps of time, the session of a dead taker still lives.
        if self.depth == 0 && self.crashes > 0 && self.lulls > 3 {
            properties.push(sometimes("an offer is taken back", |_, state| state.withdrawn()));
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

/// Plays all of a game. Panics with the first path that breaks a rule, state by state.
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
            panic!("{game:?}: rule broken: {rule}:\n{}", steps.collect::<String>());
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
    play(Game { crashes: 1, lulls: 4, prompt: true, settled: 2, ..TWO });
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
        // Two find the offer to a dead taker; or one alone, as who made it has died too.
        Game { crashes: 1, lulls: 4, settled: 3, ..THREE },
        Game { crashes: 2, lulls: 6, settled: 3, ..THREE },
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
