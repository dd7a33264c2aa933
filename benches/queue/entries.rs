//! What lives cost Consul's servers: entries of their Raft log, and writes that are refused, each of which is an entry for nothing.
//!
//! The log's last index is read from `/v1/agent/self`, which writes nothing itself. What an idle Consul writes in the same time is
//! taken off.

use std::time::Duration;

use futures_util::future::try_join_all;
use slotkeeper::internals::clock;
use tokio::time::timeout;

use crate::arguments::Arguments;
use crate::commands::{self, Takes};
use crate::play::Program;
use crate::point::Point;
use crate::server::Server;
use crate::table::{Table, figure, number};
use crate::tap::Tap;
use crate::turns;
use crate::work::Work;

/// Lives of a client that is alone follow each other; those of a crowd begin at once.
const POINTS: [(u32, Point); 3] = [
    (40, Point { clients: 1, limit: 3, hold: Duration::from_millis(200) }),
    (1, Point { clients: 60, limit: 3, hold: Duration::from_millis(200) }),
    (1, Point { clients: 120, limit: 30, hold: Duration::from_secs(1) }),
];
/// How long an idle Consul is watched.
const IDLE: Duration = Duration::from_secs(20);

/// Measures and prints, and says what was wrong.
pub(crate) async fn measure(arguments: &Arguments) -> Vec<String> {
    let server = Server::start().await;
    let before = server.log_index().await;
    tokio::time::sleep(IDLE).await;
    let idle = number(server.log_index().await - before) / IDLE.as_secs_f64();
    println!(
        "\nEntries of Consul's Raft log, less {} a minute of an idle Consul; and refused writes",
        figure(idle * 60.0)
    );
    let heads = ["program", "clients", "limit", "hold  ", "lives", "entries/a life", "refused/in all"];
    let table = Table::begin(14, &heads);
    let mut faults = Vec::new();
    for (times, point) in POINTS {
        for program in arguments.programs() {
            // In front of the proxy, which spreads the connections over many addresses.
            let tap = Tap::start(server.proxy().addr(), Duration::ZERO);
            let (begun, before) = (clock::now(), server.log_index().await);
            let play = async {
                for time in 0..times {
                    play(program, point, &tap, time).await?;
                }
                Ok::<_, String>(())
            };
            let name = || format!("entries, {}: {point}", program.as_str());
            match timeout(point.patience(), play).await {
                Ok(Ok(())) => (),
                Ok(Err(why)) => faults.push(format!("{}: {why}", name())),
                Err(_) => faults.push(format!("{}: a client did not end", name())),
            }
            let entries = number(server.log_index().await - before);
            let entries = entries - idle * clock::now().since(begun).as_secs_f64();
            let lives = times * point.clients;
            table.row([
                program.as_str().to_owned(),
                point.clients.to_string(),
                point.limit.to_string(),
                humantime::format_duration(point.hold).to_string(),
                lives.to_string(),
                figure(entries / f64::from(lives)),
                tap.refused().to_string(),
            ]);
        }
    }
    faults
}

async fn play(program: Program, point: Point, tap: &Tap, time: u32) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    // `consul lock` does not read the form that a new semaphore of ours has.
    let prefix = format!("bench/entries/{}/{point}", program.as_str().replace(' ', ""));
    let takes = Takes::Slot { of: point.limit };
    let lives = (0..point.clients).map(async |number| {
        let work = Work::new(point.hold, folder.path(), &format!("{time}-{number}"));
        commands::end(commands::start(program, tap.addr(), &prefix, takes, &work), &work).await
    });
    let peak = turns::peak(&try_join_all(lives).await?);
    if peak > point.limit as usize { Err(format!("{peak} slots were held at once")) } else { Ok(()) }
}
