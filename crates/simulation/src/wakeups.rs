//! Games about wake-ups. In one kind every watch is answered, so that no client has to list. In the other no watch is answered, so
//! that listings find everything.

use std::time::Duration;

use super::world::{Chaos, Game, Watches};
use super::{GAME, play, play_some};

const ARRIVE: Game = Game { watches: Watches::Arrive, weights: false, ..GAME };
const NEVER: Game = Game { watches: Watches::Never, weights: false, ..GAME };

#[test]
fn where_every_watch_arrives_all_are_served_at_once() {
    play(Game { weights: true, priorities: true, ..ARRIVE });
    play_some(Game { agents: 20, limit: 5, ..ARRIVE }, 0.3);
    play_some(Game { agents: 60, limit: 15, ..ARRIVE }, 0.05);
    play_some(Game { agents: 20, limit: 5, storm: Some(Duration::from_secs(1)), ..ARRIVE }, 0.3);
    play(Game { agents: 10, limit: 3, chaos: Chaos { resize: 0.05, ..Chaos::CALM }, ..ARRIVE });
    play(Game { chaos: Chaos { evict: 0.05, ..Chaos::CALM }, ..ARRIVE });
}

#[test]
fn where_every_watch_arrives_a_dead_holder_is_noticed_at_once() {
    for crash in [0.005, 0.02] {
        let chaos = Chaos { crash, ..Chaos::CALM };
        play(Game { chaos, ..ARRIVE });
        play(Game { agents: 4, limit: 1, chaos, ..ARRIVE });
        play_some(Game { agents: 20, limit: 5, priorities: true, chaos, ..ARRIVE }, 0.3);
        play(Game { prune_delay: Duration::from_secs(3), chaos, ..ARRIVE });
    }
    let chaos = Chaos { lost: 0.02, crash: 0.01, pause: 0.02, cut: 0.02, ..Chaos::CALM };
    play(Game { chaos, ..ARRIVE });
}

#[test]
fn where_every_watch_arrives_foreign_clients_delay_no_waiter() {
    play(Game { foreigners: 3, ..ARRIVE });
    play(Game { foreigners: 2, pollers: 1, idlers: 1, ..ARRIVE });
    let chaos = Chaos { crash: 0.01, expire: 0.02, ..Chaos::CALM };
    play(Game { foreigners: 2, chaos, ..ARRIVE });
}

#[test]
fn where_no_watch_reports_a_change_listings_serve_every_agent() {
    // Each game is long.
    let play = |game| play_some(game, 0.05);
    play(NEVER);
    play(Game { agents: 4, limit: 1, ..NEVER });
    play(Game { agents: 12, limit: 4, priorities: true, ..NEVER });
    play(Game { chaos: Chaos { crash: 0.005, ..Chaos::CALM }, ..NEVER });
    let chaos = Chaos { lost: 0.02, crash: 0.002, pause: 0.01, cut: 0.01, ..Chaos::CALM };
    play(Game { chaos, ..NEVER });
    play(Game { chaos: Chaos { evict: 0.01, ..Chaos::CALM }, ..NEVER });
    play(Game { foreigners: 2, chaos: Chaos { expire: 0.002, ..Chaos::CALM }, ..NEVER });
}
