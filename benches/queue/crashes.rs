//! How soon the slot of a dead holder is granted again: from the end of its session to the next grant.
//!
//! The holder is an agent in this process that is dropped, and leaves its session behind. Its session is ended from outside
//! some time later, so that the instant is known; on its own, Consul would end it after one to two TTLs.

use std::time::Duration;

use fastrand::Rng;
use futures_util::stream;
use slotkeeper::internals::clock;
use slotkeeper::internals::shutdown::SignalRequests;
use slotkeeper::internals::status::Snapshot;
use slotkeeper_semaphore::Moment;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, LocalSet, spawn_local};
use tokio::time::timeout;

use crate::agents::{Agent, Status, holds, standing, waits};
use crate::arguments::Arguments;
use crate::floor;
use crate::latencies::Latencies;
use crate::point::Point;
use crate::server::{Server, until};
use crate::table::{Table, millis};

const TRIALS: usize = 10;
/// For a grant.
const PATIENCE: Duration = Duration::from_secs(120);
/// From a grant to the next death, and from a death to the end of the session, in milliseconds.
const PAUSE: std::ops::Range<u64> = 500..1500;

/// Agents in line for one semaphore, none of which leaves by itself.
struct Line {
    agents: Vec<(Status, AbortHandle)>,
    /// Which agent came to hold, and when.
    grants: mpsc::UnboundedReceiver<(usize, Moment)>,
}

/// Measures and prints, and says what was wrong.
pub(crate) async fn measure(arguments: &Arguments, seed: u64) -> Vec<String> {
    println!("\nCrashes: from the end of a dead holder's session to the next grant, {TRIALS} times each");
    let mut points: Vec<Point> = Vec::new();
    for point in &arguments.points {
        let is_there = points.iter().any(|one| (one.clients, one.limit) == (point.clients, point.limit));
        let has_queue = point.clients as usize >= point.limit as usize + TRIALS;
        if has_queue && !is_there {
            points.push(*point);
        }
    }
    let table = Table::begin(10, &["clients", "limit", "median/ms ", "worst/ms ", "floor/ms ", "cores/all"]);
    let mut faults = Vec::new();
    for point in points {
        match at(point, &mut Rng::with_seed(seed)).await {
            Ok(cells) => table.row(cells),
            Err(why) => {
                faults.push(format!("crashes, {} clients, limit {}: {why}", point.clients, point.limit));
            }
        }
    }
    faults
}

async fn at(point: Point, rng: &mut Rng) -> Result<[String; 6], String> {
    let server = Server::start().await;
    let floor = floor::wake(server.proxy().addr()).await;
    let (times, cores) = LocalSet::new()
        .run_until(async {
            let mut line = Line::form(&server, point).await?;
            let meter = server.meter();
            let mut times = Vec::new();
            for _ in 0..TRIALS {
                pause(rng).await;
                times.push(line.crash(&server, rng).await?);
            }
            Ok::<_, String>((times, meter.load().machine))
        })
        .await?;
    let times: Latencies = times.into_iter().collect();
    let [median, worst, floor] =
        [times.percentile(50), times.percentile(100), floor.percentile(50)].map(millis);
    Ok([point.clients.to_string(), point.limit.to_string(), median, worst, floor, format!("{cores:.2}")])
}

impl Line {
    async fn form(server: &Server, point: Point) -> Result<Self, String> {
        let (granted, mut grants) = mpsc::unbounded_channel();
        let start = |number| {
            let agent = Agent::new(server.proxy().addr(), "bench/crashes", point.limit);
            let (status, mut shown, granted) = (agent.status(), agent.status(), granted.clone());
            let task = spawn_local(async move {
                let tells = async {
                    if shown.wait_for(|status| holds(status)).await.is_ok() {
                        let _ = granted.send((number, clock::now()));
                    }
                };
                let _ = tokio::join!(agent.run(SignalRequests::of(stream::pending())), tells);
            });
            (status, task.abort_handle())
        };
        let agents: Vec<_> = (0..point.clients as usize).map(start).collect();
        let count =
            |is: fn(&Snapshot) -> bool| agents.iter().filter(|(status, _)| is(&status.borrow())).count();
        let (limit, clients) = (point.limit as usize, point.clients as usize);
        if !until(point.patience(), || count(holds) == limit && count(waits) == clients - limit).await {
            let statuses: Vec<_> = agents.into_iter().map(|(status, _)| status).collect();
            return Err(format!("not all came in line: {}", standing(&statuses)));
        }
        while grants.try_recv().is_ok() {}
        Ok(Self { agents, grants })
    }

    /// Has a holder die, and says how long after the end of its session the next grant came.
    async fn crash(&mut self, server: &Server, rng: &mut Rng) -> Result<Duration, String> {
        let holders: Vec<_> =
            (0..self.agents.len()).filter(|number| holds(&self.agents[*number].0.borrow())).collect();
        let (status, task) = self.agents.swap_remove(holders[rng.usize(..holders.len())]);
        let session = status.borrow().session.as_ref().expect("a holder has a session").id.clone();
        task.abort();
        pause(rng).await;
        if self.grants.try_recv().is_ok() {
            return Err("a slot was granted that nobody had left".to_owned());
        }
        let ended = clock::now();
        server.destroy_session(&session).await;
        match timeout(PATIENCE, self.grants.recv()).await {
            Ok(Some((_, granted))) => Ok(granted.since(ended)),
            Ok(None) | Err(_) => Err("no grant came".to_owned()),
        }
    }
}

async fn pause(rng: &mut Rng) {
    tokio::time::sleep(Duration::from_millis(rng.u64(PAUSE))).await;
}
