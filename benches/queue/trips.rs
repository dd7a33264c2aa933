//! What a life costs where Consul is far away: its times in round trips, from the start of a process that has no connection yet.

use std::path::Path;
use std::time::Duration;

use futures_util::future::try_join_all;
use slotkeeper::internals::clock;
use slotkeeper_semaphore::Moment;
use tokio::time::timeout;

use crate::arguments::Arguments;
use crate::commands::{self, Takes};
use crate::latencies::Latencies;
use crate::play::Program;
use crate::server::Server;
use crate::table::{NONE, Table, figure, millis};
use crate::tap::Tap;
use crate::turns::{self, Turn};
use crate::work::Work;

const ROUND_TRIP: Duration = Duration::from_millis(40);
const LIMIT: u32 = 3;
/// Lives that follow each other.
const LIVES: usize = 11;
/// Lives that begin at once, for the handoffs, and how long each holds.
const CROWD: usize = 18;
const HOLD: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(60);

/// Measures and prints, and says what was wrong.
pub(crate) async fn measure(arguments: &Arguments) -> Vec<String> {
    println!(
        "\nRound trips of {ROUND_TRIP:?}, limit {LIMIT}: medians of {LIVES} lives alone, with their connections and processes; \
         handoffs of {CROWD} lives"
    );
    let heads = [
        "program",
        "whole life/round trips",
        "least",
        "until the/command runs",
        "least",
        "handoff/p50",
        "handoff/p99",
        "whole life/at 0 ms, ms",
    ];
    let table = Table::begin(14, &heads);
    let mut faults = Vec::new();
    for program in arguments.programs() {
        match timeout(PATIENCE, row(program)).await {
            Ok(Ok(row)) => table.row(row),
            Ok(Err(why)) => faults.push(format!("round trips, {}: {why}", program.as_str())),
            Err(_) => faults.push(format!("round trips, {}: not over within {PATIENCE:?}", program.as_str())),
        }
    }
    faults
}

async fn row(program: Program) -> Result<Vec<String>, String> {
    let server = Server::start().await;
    let folder = tempfile::tempdir().unwrap();
    let near = Way::new(&server, Duration::ZERO, program, folder.path());
    let far = Way::new(&server, ROUND_TRIP, program, folder.path());
    let (there, _) = near.lives("near").await?;
    let (whole, starts) = far.lives("far").await?;
    let crowd = (0..CROWD).map(|number| far.life("crowd", number, HOLD));
    let crowd: Vec<_> = try_join_all(crowd).await?.into_iter().map(|(_, turn)| turn).collect();
    let peak = turns::peak(&crowd);
    if peak > LIMIT as usize {
        return Err(format!("{peak} slots were held at once"));
    }
    let handoffs = turns::handoffs(&crowd, LIMIT);
    let times = [(&whole, 50), (&whole, 0), (&starts, 50), (&starts, 0), (&handoffs, 50), (&handoffs, 99)];
    let trips = |time: Duration| figure(time.as_secs_f64() / ROUND_TRIP.as_secs_f64());
    let times = times.map(|(times, percent)| times.percentile(percent).map_or(NONE.to_owned(), trips));
    let name = program.as_str().to_owned();
    Ok([name].into_iter().chain(times).chain([millis(there.percentile(50))]).collect())
}

/// A way to Consul for one program.
struct Way<'a> {
    tap: Tap,
    program: Program,
    folder: &'a Path,
}

impl<'a> Way<'a> {
    fn new(server: &Server, round_trip: Duration, program: Program, folder: &'a Path) -> Self {
        Self { tap: Tap::start(server.consul(), round_trip), program, folder }
    }

    /// One life after another: how long each was as a whole, and until its command began.
    async fn lives(&self, name: &str) -> Result<(Latencies, Latencies), String> {
        let (mut whole, mut starts) = (Vec::new(), Vec::new());
        for number in 0..LIVES {
            let (begun, turn) = self.life(name, number, Duration::ZERO).await?;
            whole.push(clock::now().since(begun));
            starts.push(turn.from.since(begun));
        }
        Ok((whole.into_iter().collect(), starts.into_iter().collect()))
    }

    async fn life(&self, name: &str, number: usize, hold: Duration) -> Result<(Moment, Turn), String> {
        let work = Work::new(hold, self.folder, &format!("{name}-{number}"));
        let (begun, takes) = (clock::now(), Takes::Slot { of: LIMIT });
        let child = commands::start(self.program, self.tap.addr(), &format!("bench/{name}"), takes, &work);
        Ok((begun, commands::end(child, &work).await?))
    }
}
