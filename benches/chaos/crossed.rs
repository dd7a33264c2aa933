//! Crossed jobs, at one server: see `support::crossed`.

use slotkeeper_test_seed::VARIABLE;

use crate::support::consul::Consul;
use crate::support::crossed::Crossed;

/// Plays so many rounds, and says whether one failed.
pub(crate) async fn play(rounds: u32, seed: Option<u64>) -> bool {
    let seed = seed.unwrap_or_else(|| fastrand::u32(..).into());
    println!("base seed {seed}; to repeat the plan: {VARIABLE}={seed} scripts/chaos --crossed {rounds}");
    let consul = Consul::start().await;
    let folder = tempfile::tempdir().unwrap();
    let mut game = Crossed::new(consul.url(), folder.path(), seed);
    let failure = (0..rounds).find_map(|_| {
        let ended = game.round();
        if game.counts.rounds.is_multiple_of(20) {
            println!("{}", game.counts);
        }
        ended.err()
    });
    println!("{}", game.counts);
    match &failure {
        Some(why) => println!("VIOLATED: {why}"),
        None => println!("verdict: all jobs ended"),
    }
    failure.is_some()
}
