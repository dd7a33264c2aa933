//! The least that a handoff can cost: one write, and the answer of one blocking read of the same key that it wakes.
//!
//! On an idle Consul, by the agent's own client through the same proxy, and at the pace at which slots change hands in
//! the plays – threads that have slept wake more slowly – so that what is above it is the agent's.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slotkeeper::consul::{Client, Put, Read, Settings, Unobserved};

use crate::latencies::Latencies;

const TRIALS: u32 = 100;
const KEY: &str = "bench/floor";
/// Longer than any trial.
const WAIT: Duration = Duration::from_secs(10);

/// `pace`: the time from one write to the next.
pub(crate) async fn measure(consul: SocketAddr, pace: Duration) -> Latencies {
    let settings = Settings { address: format!("http://{consul}").parse().unwrap(), ..Settings::default() };
    // One client each, and so one connection each that is kept.
    let client = || Client::new(&settings, Arc::new(Unobserved)).unwrap();
    let (writer, reader) = (client(), client());
    let write = async |value: u32| {
        writer.kv_put(KEY, value.to_string().as_bytes(), Put::Plain, 0).await.unwrap();
    };
    write(0).await;
    let mut index = reader.kv_get(KEY, Read::default()).await.unwrap().index;
    let mut times = Vec::new();
    for trial in 1..=TRIALS {
        let woken = async {
            let answer = reader.kv_get(KEY, Read::default().after(index, WAIT)).await.unwrap();
            (Instant::now(), answer.index)
        };
        let sent = async {
            tokio::time::sleep(pace).await;
            let sent = Instant::now();
            write(trial).await;
            sent
        };
        let ((woken, next), sent) = tokio::join!(woken, sent);
        assert!(next > index && woken > sent, "the read was not woken by the write");
        index = next;
        times.push(woken - sent);
    }
    times.into_iter().collect()
}
