//! `cargo bench --bench addresses`: what it costs to lose the used one of several servers, which does not lead. Arguments:
//! `--trials N` and `--watch SECONDS`, for how long each trial looks for losses; longer than the TTL.
//!
//! Three servers; sessions tied to a node that is none of theirs; in each trial three commands under `slotkeeper run` and three
//! agents, at their defaults, hold slots by way of one server, which is killed by SIGKILL. It prints; it asserts nothing.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a benchmark that cannot go on says so"
)]
#![allow(clippy::print_stdout, reason = "its result is what it prints")]
#![allow(clippy::disallowed_methods, reason = "it measures, and holds no lease of its own")]

#[path = "../../tests/support/mod.rs"]
mod support;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use slotkeeper::internals::log_events;
use support::cluster::Cluster;
use support::{http, processes};

const SLOTKEEPER: &str = env!("CARGO_BIN_EXE_slotkeeper");
/// Of each kind.
const HOLDERS: usize = 3;
const POLL: Duration = Duration::from_millis(20);

/// One that holds a slot.
struct Holder {
    child: Child,
    log: PathBuf,
    is_agent: bool,
}

impl Holder {
    fn start(folder: &Path, addresses: &str, name: &str, is_agent: bool) -> Self {
        let mut command = Command::new(SLOTKEEPER);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        if is_agent {
            let config = folder.join(format!("{name}.yaml"));
            let text = format!(
                "consul: {{address: '{addresses}'}}\nsession: {{node: slots}}\nhttp: {{listen: off}}\n\
                 semaphores: [{{name: s, prefix: bench/agents, limit: {HOLDERS}, on_lost: exit}}]\n"
            );
            std::fs::write(&config, text).unwrap();
            command.args(["agent", "--config"]).arg(config);
        } else {
            let limit = HOLDERS.to_string();
            let run = ["run", "bench/processes", "-n", &limit, "--node", "slots", "--verbose", "--http-addr"];
            command.args(run).args([addresses, "--", "sleep", "1000"]);
        }
        let log = folder.join(name);
        let errors = File::create(&log).unwrap();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors).spawn().unwrap();
        Self { child, log, is_agent }
    }

    fn has_said(&self, text: &str) -> bool {
        std::fs::read_to_string(&self.log).unwrap_or_default().contains(text)
    }

    fn has_lost(&mut self) -> bool {
        self.has_said(log_events::SLOT_LOST) || self.child.try_wait().unwrap().is_some()
    }

    async fn end(mut self) {
        processes::end(&mut self.child, Signal::TERM, Duration::from_secs(20)).await;
    }
}

/// What became of the holders of one trial.
#[derive(Default)]
struct Trial {
    /// From the kill until each used another server.
    moved: Vec<Duration>,
    processes_lost: usize,
    agents_lost: usize,
}

async fn until(mut condition: impl FnMut() -> bool) {
    while !condition() {
        tokio::time::sleep(POLL).await;
    }
}

async fn trial(cluster: &mut Cluster, watch: Duration) -> Trial {
    let leader = cluster.await_leader().await;
    let used = (leader + 1) % 3;
    let addresses = [used, leader, (leader + 2) % 3].map(|server| cluster.addr(server).to_string()).join(",");
    let folder = tempfile::tempdir().unwrap();
    let start = |n: usize| Holder::start(folder.path(), &addresses, &format!("holder-{n}"), n >= HOLDERS);
    let mut holders: Vec<_> = (0..2 * HOLDERS).map(start).collect();
    until(|| holders.iter().all(|holder| holder.has_said(log_events::SLOT_ACQUIRED))).await;
    // At any phase of their renewals.
    tokio::time::sleep(Duration::from_millis(fastrand::u64(0..12_000))).await;
    cluster.stop(used, Signal::KILL).await;
    let killed = Instant::now();
    let mut moved = [None; 2 * HOLDERS];
    while killed.elapsed() < watch {
        for (holder, moved) in holders.iter().zip(&mut moved) {
            if moved.is_none() && holder.has_said(log_events::CONSUL_ADDRESS_CHANGED) {
                *moved = Some(killed.elapsed());
            }
        }
        tokio::time::sleep(POLL).await;
    }
    let mut of = Trial { moved: moved.into_iter().flatten().collect(), ..Trial::default() };
    for holder in &mut holders {
        let lost = usize::from(holder.has_lost());
        *(if holder.is_agent { &mut of.agents_lost } else { &mut of.processes_lost }) += lost;
    }
    for holder in holders {
        holder.end().await;
    }
    cluster.restart(used).await;
    of
}

fn argument(name: &str, default: u64) -> u64 {
    let all: Vec<String> = std::env::args().collect();
    let value = all.iter().position(|argument| argument == name).and_then(|at| all.get(at + 1));
    value.map_or(default, |value| value.parse().unwrap())
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let (trials, watch) = (argument("--trials", 20), Duration::from_secs(argument("--watch", 60)));
    let mut cluster = Cluster::start().await;
    let leader = cluster.await_leader().await;
    let node = r#"{"Node": "slots", "Address": "127.0.0.1", "NodeMeta": {"external-node": "true"}}"#;
    while http::put(cluster.addr(leader), "/v1/catalog/register", node).await.status != 200 {
        tokio::time::sleep(POLL).await;
    }
    let mut all = Trial::default();
    println!(
        "{:>5} {:>16} {:>13} {:>26}",
        "trial", "processes lost", "agents lost", "moved after, s (slowest)"
    );
    for number in 1..=trials {
        let one = trial(&mut cluster, watch).await;
        let slowest = one.moved.iter().max().map_or(f64::NAN, Duration::as_secs_f64);
        println!("{number:>5} {:>16} {:>13} {slowest:>26.2}", one.processes_lost, one.agents_lost);
        all.processes_lost += one.processes_lost;
        all.agents_lost += one.agents_lost;
        all.moved.extend(one.moved);
    }
    all.moved.sort();
    let holders = usize::try_from(trials).unwrap() * HOLDERS;
    println!(
        "of {holders} processes {} lost their slot, of {holders} agents {}",
        all.processes_lost, all.agents_lost
    );
    if let (Some(median), Some(slowest)) = (all.moved.get(all.moved.len() / 2), all.moved.last()) {
        let (median, slowest) = (median.as_secs_f64(), slowest.as_secs_f64());
        println!("{} moved, after {median:.2} s at the median and {slowest:.2} s at most", all.moved.len());
    }
}
