//! What a lease of one agent costs beside others: clients that acquire and release on demand, while so many leases are held.

use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use slotkeeper::internals::clock;
use tokio::time::timeout;

use crate::desk::Desk;
use crate::latencies::Latencies;
use crate::server::Server;
use crate::support::processes::{memory, processor_time};
use crate::table::{NONE, Table, figure, millis, number};

/// Held beside what is measured.
const HELD: [usize; 5] = [0, 30, 60, 120, 250];
const CLIENTS: usize = 4;
const MEASURED: Duration = Duration::from_secs(10);
/// From the taking of the leases to the measurement.
const SETTLING: Duration = Duration::from_secs(3);
/// A third of what a lease lasts by default or less.
const RENEWAL: Duration = Duration::from_secs(10);

const COLUMNS: [&str; 10] = [
    "held beside",
    "taken in/s",
    "acquires/a second",
    "acquire/p50 ms",
    "acquire/p99 ms",
    "requests/an acquire",
    "agent's/CPU, cores",
    "agent's/RSS, MB",
    "kB/a lease",
    "cores/all",
];

/// What was measured with some leases held.
struct Measured {
    taking: Duration,
    acquires: Vec<Duration>,
    elapsed: Duration,
    requests: u64,
    processor: Duration,
    resident: u64,
    cores: f64,
}

/// Measures and prints, and says what was wrong.
pub(crate) async fn measure() -> Vec<String> {
    println!(
        "\nLeases of one agent: {CLIENTS} clients that acquire and release, beside leases that are held"
    );
    let table = Table::begin(12, &COLUMNS);
    let mut without = None;
    let mut faults = Vec::new();
    for held in HELD {
        match beside(held).await {
            Ok(measured) => {
                table.row(row(held, &measured, *without.get_or_insert(measured.resident)));
            }
            Err(why) => faults.push(format!("leases, {held} held: {why}")),
        }
    }
    faults
}

async fn beside(held: usize) -> Result<Measured, String> {
    let server = Server::start().await;
    let desk = Desk::open(&server, HELD[HELD.len() - 1] + 2 * CLIENTS).await;
    let begun = clock::now();
    let shares = (0..CLIENTS).map(|client| (client..held).step_by(CLIENTS).count());
    let taken = try_join_all(shares.map(|share| take(&desk, share))).await?;
    let taking = clock::now().since(begun);
    let taken: Vec<_> = taken.into_iter().flatten().collect();
    let renewals = async {
        loop {
            tokio::time::sleep(RENEWAL).await;
            for lease in &taken {
                if let Err(why) = desk.renew(lease).await {
                    return why;
                }
            }
        }
    };
    let clients = async {
        tokio::time::sleep(SETTLING).await;
        let (meter, counts) = (server.meter(), server.proxy().counts());
        let processor = processor_time(desk.pid());
        let acquires = join_all((0..CLIENTS).map(|_| acquire_and_release(&desk))).await;
        let acquires = acquires.into_iter().collect::<Result<Vec<_>, _>>()?.concat();
        Ok(Measured {
            taking,
            acquires,
            elapsed: meter.elapsed(),
            requests: (server.proxy().counts() - counts).requests(),
            processor: processor_time(desk.pid()) - processor,
            resident: memory(desk.pid()).resident,
            cores: meter.load().machine,
        })
    };
    tokio::select! {
        measured = clients => measured,
        why = renewals => Err(why),
    }
}

async fn take(desk: &Desk, number: usize) -> Result<Vec<String>, String> {
    let mut leases = Vec::new();
    for _ in 0..number {
        leases.push(desk.acquire().await?);
    }
    Ok(leases)
}

/// How long each acquire took.
async fn acquire_and_release(desk: &Desk) -> Result<Vec<Duration>, String> {
    let mut times = Vec::new();
    let again_and_again = async {
        loop {
            let asked = clock::now();
            let lease = desk.acquire().await?;
            times.push(clock::now().since(asked));
            desk.release(&lease).await?;
        }
    };
    match timeout(MEASURED, again_and_again).await {
        Ok(Err(why)) => Err(why),
        Ok(Ok(())) | Err(_) => Ok(times),
    }
}

fn row(held: usize, measured: &Measured, without: u64) -> Vec<String> {
    let count = number(measured.acquires.len() as u64);
    let latencies: Latencies = measured.acquires.iter().copied().collect();
    let elapsed = measured.elapsed.as_secs_f64();
    let more = number(measured.resident) - number(without);
    vec![
        held.to_string(),
        figure(measured.taking.as_secs_f64()),
        figure(count / elapsed),
        millis(latencies.percentile(50)),
        millis(latencies.percentile(99)),
        figure(number(measured.requests) / count),
        figure(measured.processor.as_secs_f64() / elapsed),
        figure(number(measured.resident) / 1e6),
        if held == 0 { NONE.to_owned() } else { figure(more / number(held as u64) / 1e3) },
        figure(measured.cores),
    ]
}
