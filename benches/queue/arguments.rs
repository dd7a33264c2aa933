//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};

use crate::play::{Manner, Program};
use crate::point::{Point, Spread};

/// Processes of ours that one machine bears without being what is measured.
const MAX_PROCESSES: u32 = 300;
/// The same of the peer's, which are larger.
const MAX_PEERS: u32 = 120;

/// What queues of slotkeeper cost, and agents at rest, beside `consul lock`.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Arguments {
    /// Play these alone: clients, limit, hold time.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "20x3x200ms,120x3x200ms,400x3x200ms,120x30x1s,300x30x1s,300x100x3s,1000x100x3s"
    )]
    pub(crate) points: Vec<Point>,
    /// Leave the spread hold times out.
    #[arg(long, conflicts_with = "spread_only")]
    equal_only: bool,
    /// Leave the equal hold times out.
    #[arg(long)]
    spread_only: bool,
    /// What the spread hold times are drawn from; by default a random one.
    #[arg(long)]
    seed: Option<u64>,
    /// Leave `consul lock` out.
    #[arg(long)]
    pub(crate) no_peer: bool,
    /// Play all clients of ours as processes of `slotkeeper run`; by default, up to 300 at once.
    #[arg(long, conflicts_with = "in_process")]
    processes: bool,
    /// Play all clients of ours as agents in this process.
    #[arg(long)]
    in_process: bool,
    /// Print requests by their kind too.
    #[arg(long)]
    pub(crate) breakdown: bool,
    /// Draw the figures into this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Run these parts alone.
    #[arg(long, value_delimiter = ',')]
    only: Vec<Part>,
    /// How long the clients at rest are watched.
    #[arg(long, default_value = "60s", value_parser = some_time)]
    pub(crate) rest_for: Duration,
    /// The TTL of our sessions at rest; by default the programs' own.
    #[arg(long, value_parser = some_time)]
    pub(crate) rest_ttl: Option<Duration>,
    /// How long the clients of two programs share a semaphore.
    #[arg(long, default_value = "60s", value_parser = some_time)]
    pub(crate) fair_for: Duration,
    /// What `cargo bench` passes to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
    #[command(subcommand)]
    pub(crate) role: Option<Role>,
}

/// What this program is for itself.
#[derive(Debug, Subcommand)]
pub(crate) enum Role {
    /// The command that a client runs while it holds a slot.
    #[command(hide = true)]
    Work { nanoseconds: u64, notes: PathBuf },
}

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// Whole lives in a queue.
    Queue,
    /// Requests and processor time of clients that only hold or wait.
    Rest,
    /// Connections of the same.
    Connections,
    /// Leases beside others at one agent.
    Leases,
    /// Crowds with dead, stopped and cut-off waiters, and deaths of holders.
    Deaths,
    /// Entries of Consul's log, and refused writes.
    Entries,
    /// Times in round trips, where Consul is far away.
    Trips,
    /// Turns beside `consul lock` on one semaphore.
    Fair,
}

impl Arguments {
    pub(crate) fn plays(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    /// The programs, where the peer can be played.
    pub(crate) fn programs(&self) -> impl Iterator<Item = Program> + use<> {
        let peer = (!self.no_peer).then_some(Program::ConsulLock);
        [Program::Slotkeeper].into_iter().chain(peer)
    }

    pub(crate) fn spreads(&self) -> Vec<Spread> {
        match (self.equal_only, self.spread_only) {
            (true, _) => vec![Spread::Equal],
            (_, true) => vec![Spread::Spread],
            (false, false) => vec![Spread::Equal, Spread::Spread],
        }
    }

    pub(crate) fn seed(&self) -> u64 {
        // Few digits are enough, and easier to copy.
        self.seed.unwrap_or_else(|| fastrand::u32(..).into())
    }

    /// How so many clients of ours are played.
    pub(crate) fn manner(&self, clients: u32) -> Manner {
        let processes = self.processes || (!self.in_process && clients <= MAX_PROCESSES);
        if processes { Manner::Processes } else { Manner::InProcess }
    }

    /// Whether so many clients of the peer are played.
    pub(crate) fn has_peer(&self, clients: u32) -> bool {
        !self.no_peer && clients <= MAX_PEERS
    }
}

fn some_time(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(time) if time.is_zero() => Err("write more than 0s".into()),
        parsed => parsed.map_err(|error| error.to_string()),
    }
}
