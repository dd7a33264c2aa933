//! A holder and its first waiter die together, and clients with short waits come: how soon one of them is served.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::support::consul::Consul;
use crate::support::joint_death::{self, BOUND, Client};

/// Rounds that are played at once, on prefixes of their own.
const AT_ONCE: u32 = 10;

/// Plays so many rounds, and says whether one was too late.
pub(crate) async fn play(rounds: u32) -> bool {
    let consul = Consul::start().await;
    println!("holder and first waiter killed together, TTL 10 s; served within {BOUND:?}, waits of 5 s");
    println!("{:>6}{:>12}{:>20}", "round", "clients", "one served after");
    let (addr, next, late) = (consul.addr().to_string(), AtomicU32::new(0), AtomicU32::new(0));
    let all = tokio::task::spawn_blocking(move || {
        std::thread::scope(|scope| {
            for _ in 0..AT_ONCE {
                scope.spawn(|| {
                    loop {
                        let round = next.fetch_add(1, Ordering::Relaxed) + 1;
                        if round > rounds {
                            return;
                        }
                        late.fetch_add(u32::from(is_late(&addr, round)), Ordering::Relaxed);
                    }
                });
            }
        });
        late.into_inner()
    });
    let late = all.await.unwrap();
    println!("{late} of {rounds} rounds were too late");
    late > 0
}

fn is_late(consul: &str, round: u32) -> bool {
    let client = if round.is_multiple_of(2) { Client::Run } else { Client::Lease };
    let binary = env!("CARGO_BIN_EXE_slotkeeper");
    let served = joint_death::play(binary, consul, &format!("impatient/{round}"), client);
    let after = served.map_or("never".to_owned(), |served| format!("{:.1} s", served.as_secs_f64()));
    println!("{round:>6}{:>12}{after:>20}", format!("{client:?}"));
    served.is_none_or(|served| served > BOUND)
}
