//! Connections to Consul of clients at rest: as many clients at one address as are to fit below Consul's default limit.

use std::time::Duration;

use tokio::process::Child;

use crate::arguments::Arguments;
use crate::commands::{Takes, command};
use crate::play::Program;
use crate::server::Server;
use crate::support::processes;
use crate::table::Table;
use crate::work::Work;

const LIMIT: usize = 3;
/// That are to fit one address.
const WAITERS: usize = 150;
/// Each of these takes more memory.
const PEERS: usize = 30;
/// For all to stand in line.
const PATIENCE: Duration = Duration::from_secs(90);
/// From then on to the measurement.
const SETTLING: Duration = Duration::from_secs(30);
const SAMPLES: usize = 30;
const PACE: Duration = Duration::from_secs(1);
/// Counts connections and prints them.
pub(crate) async fn measure(arguments: &Arguments) {
    println!(
        "\nConnections to Consul at rest: clients at one address, of which Consul takes 200 connections"
    );
    let heads = [
        "program",
        "holders",
        "waiters",
        "there",
        "a holder:/median",
        "most",
        "a waiter:/median",
        "most",
        "of all:/median",
        "most",
    ];
    let table = Table::begin(14, &heads);
    table.row(row(Program::Slotkeeper, WAITERS).await);
    if !arguments.no_peer {
        table.row(row(Program::ConsulLock, PEERS).await);
    }
}

async fn row(program: Program, waiters: usize) -> Vec<String> {
    let server = Server::start().await;
    let start = || {
        let takes = Takes::Slot { of: u32::try_from(LIMIT).unwrap() };
        let mut command =
            command(program, server.consul(), "bench/connections", takes, &[], &Work::endless());
        command.spawn().unwrap()
    };
    let came = async |number| server.await_contenders("bench/connections", number, PATIENCE).await;
    let holders: Vec<_> = (0..LIMIT).map(|_| start()).collect();
    came(LIMIT).await;
    let waiters: Vec<_> = (0..waiters).map(|_| start()).collect();
    came(LIMIT + waiters.len()).await;
    tokio::time::sleep(SETTLING).await;
    let (mut of_holders, mut of_waiters, mut of_all) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..SAMPLES {
        let before = (of_holders.len(), of_waiters.len());
        of_holders.extend(holders.iter().map(|child| connections(&server, child)));
        of_waiters.extend(waiters.iter().map(|child| connections(&server, child)));
        let all = of_holders[before.0..].iter().chain(&of_waiters[before.1..]);
        of_all.push(all.sum());
        tokio::time::sleep(PACE).await;
    }
    let there = server.contenders("bench/connections").await;
    let counts = [holders.len(), waiters.len(), there].map(|count| count.to_string());
    let figures = [of_holders, of_waiters, of_all].into_iter().flat_map(median_and_most);
    [program.as_str().to_owned()].into_iter().chain(counts).chain(figures).collect()
}

/// None of a process that has ended.
fn connections(server: &Server, child: &Child) -> usize {
    child.id().map_or(0, |process| processes::connections(process, server.consul()))
}

fn median_and_most(mut counts: Vec<usize>) -> [String; 2] {
    counts.sort_unstable();
    [counts[counts.len() / 2], counts[counts.len() - 1]].map(|count| count.to_string())
}
