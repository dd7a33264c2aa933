//! The least that a handoff can cost: one write, and the answer of one blocking read of the same key that it wakes. And the
//! same between two commands: the end of one process is noticed before the write, and another one starts behind the read.
//!
//! On an idle Consul, by the agent's own client through the same proxy, and at the pace at which slots change hands in
//! the plays – threads that have slept wake more slowly – so that what is above it is the agent's.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use slotkeeper::internals::clock;
use slotkeeper_consul::{Client, Read, Settings, Unobserved};
use slotkeeper_semaphore::Moment;
use tokio::process::Command;

use crate::latencies::Latencies;
use crate::play::Manner;
use crate::support::kv::{Put, put};
use crate::turns::Turn;
use crate::work::Work;

const TRIALS: u32 = 100;
/// The time from one write to the next.
const PACE: Duration = Duration::from_millis(50);
const KEY: &str = "bench/floor";
/// Longer than any trial.
const WAIT: Duration = Duration::from_secs(10);

/// What was measured.
#[derive(Debug)]
pub(crate) struct Floor {
    wake: Latencies,
    between_commands: Latencies,
}

impl Floor {
    pub(crate) async fn measure(consul: SocketAddr) -> Self {
        Self { wake: wake(consul).await, between_commands: between_commands(consul).await }
    }

    /// What the handoffs of clients of a manner can be measured by.
    pub(crate) fn of(&self, manner: Manner) -> &Latencies {
        match manner {
            Manner::Processes => &self.between_commands,
            Manner::InProcess => &self.wake,
        }
    }
}

/// From a write to the answer of the read that it wakes.
async fn wake(consul: SocketAddr) -> Latencies {
    let (writer, reader, mut index) = pair(consul).await;
    let mut times = Vec::new();
    for _ in 0..TRIALS {
        let sent = async {
            tokio::time::sleep(PACE).await;
            let sent = clock::now();
            write(&writer, Put::Cas(index)).await;
            sent
        };
        let ((next, woken), sent) = tokio::join!(woken(&reader, index), sent);
        index = next;
        times.push(woken.since(sent));
    }
    times.into_iter().collect()
}

async fn between_commands(consul: SocketAddr) -> Latencies {
    let (writer, reader, mut index) = pair(consul).await;
    let folder = tempfile::tempdir().unwrap();
    let mut times = Vec::new();
    for _ in 0..TRIALS {
        let first = async {
            let turn = command(folder.path(), "first", PACE).await;
            write(&writer, Put::Cas(index)).await;
            turn
        };
        let second = async {
            let (next, _) = woken(&reader, index).await;
            (next, command(folder.path(), "second", Duration::ZERO).await)
        };
        let (first, (next, second)) = tokio::join!(first, second);
        index = next;
        times.push(second.from.since(first.to));
    }
    times.into_iter().collect()
}

/// One that writes, one that reads, and the index from which on it waits. One client each, and so one connection each that
/// is kept.
async fn pair(consul: SocketAddr) -> (Client, Client, u64) {
    let settings = Settings { address: format!("http://{consul}").parse().unwrap(), ..Settings::default() };
    let client = || Client::new(&settings, Arc::new(Unobserved)).unwrap();
    let (writer, reader) = (client(), client());
    write(&writer, Put::Plain).await;
    let index = reader.kv_get(KEY, Read::default()).await.unwrap().index;
    (writer, reader, index)
}

/// Writes what was not there before: Consul tells of no write that changes nothing.
async fn write(writer: &Client, condition: Put<'_>) {
    let value = clock::now().since_boot().as_nanos().to_string();
    assert!(put(writer, KEY, value.as_bytes(), condition, 0).await.unwrap());
}

/// The index after the one given, and when it was known.
async fn woken(reader: &Client, index: u64) -> (u64, Moment) {
    let answer = reader.kv_get(KEY, Read::default().after(index, WAIT)).await.unwrap();
    assert!(answer.index > index, "the read was not woken by the write");
    (answer.index, clock::now())
}

async fn command(folder: &Path, name: &str, planned: Duration) -> Turn {
    let work = Work::new(planned, folder, name);
    let [program, arguments @ ..] = work.words();
    let status = Command::new(program).args(arguments).status().await.unwrap();
    assert!(status.success(), "{status}");
    work.turn().unwrap()
}
