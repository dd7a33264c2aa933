//! `cargo bench --bench life`: what one agent costs, beside `consul lock` in the same run on the same Consul.
//!
//! It prints; it asserts no timing.

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

mod eviction;
mod killed;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use support::consul::{Consul, binary};
use support::processes::{Memory, memory};
use support::proxy::Proxy;
use support::traffic::Counts;

const SLOTKEEPER: &str = env!("CARGO_BIN_EXE_slotkeeper");
/// Lives played for the median.
const LIVES: usize = 20;

/// What was measured of one program.
struct Measured {
    binary: u64,
    memory: Memory,
    life: Counts,
    exit: Duration,
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let consul = Consul::start().await;
    let proxy = Proxy::start(consul.addr()).await;
    let floor = floor(&consul).await;
    // Prefixes of their own: `consul lock` does not read the form that a new semaphore of ours has by default.
    let ours = measure(&proxy, "bench/ours", Path::new(SLOTKEEPER), slotkeeper).await;
    let theirs = measure(&proxy, "bench/theirs", &binary(), consul_lock).await;
    let row = |name: &str, of: &dyn Fn(&Measured) -> String| {
        println!("{name:<44}{:>14}{:>16}", of(&ours), of(&theirs));
    };
    println!("{:<44}{:>14}{:>16}", "", "slotkeeper", "consul lock -n");
    row("binary, MB", &|one| megabytes(one.binary));
    row("resident memory, holding one slot, MB", &|one| megabytes(one.memory.resident));
    row("of it private (not shared with the binary), MB", &|one| megabytes(one.memory.private));
    row("writes a whole life takes", &|one| one.life.writes().to_string());
    row("requests a whole life takes", &|one| one.life.requests().to_string());
    row(&format!("SIGTERM to exit, median of {LIVES}, ms"), &|one| millis(one.exit));
    println!("{:<44}{:>14}", "floor: one write to this Consul, median, ms", millis(floor));
    let (learnt, wake) = eviction::measure(consul.addr()).await;
    println!("{:<44}{:>14}", "evicted: mark to the command's SIGTERM, ms", millis(learnt));
    println!("{:<44}{:>14}", "floor: a write that wakes a watch, ms", millis(wake));
    let killed = killed::measure(&consul).await;
    println!(
        "{:<44}{:>14}{:>16}",
        "kill -9 to the successor's start, ms",
        millis(killed.ours),
        millis(killed.theirs)
    );
    println!("{:<44}{:>14}", "guard of a command: resident memory, MB", megabytes(killed.guard.resident));
    println!("{:<44}{:>14}", "of it private, MB", megabytes(killed.guard.private));
}

/// A program that takes a slot of `prefix` and holds it.
type Start = fn(consul: &str, prefix: &str, folder: &Path) -> Holder;

struct Holder {
    child: Child,
    /// A file that is there once it holds.
    ready: PathBuf,
}

impl Holder {
    fn holds(&mut self) -> bool {
        let ended = self.child.try_wait().unwrap();
        assert!(ended.is_none(), "ended before it held: {ended:?}");
        self.ready.exists()
    }
}

fn slotkeeper(consul: &str, prefix: &str, folder: &Path) -> Holder {
    let (config, ready) = (folder.join("config.yaml"), folder.join("ready"));
    let text = format!(
        "consul: {{address: '{consul}'}}\nhttp: {{listen: '127.0.0.1:0'}}\nreadiness: {{file: '{}'}}\n\
         semaphores: [{{name: s, prefix: {prefix}, limit: 2}}]\n",
        ready.display()
    );
    std::fs::write(&config, text).unwrap();
    let mut command = Command::new(SLOTKEEPER);
    command.arg("agent").arg("--config").arg(&config);
    start(command, ready)
}

fn consul_lock(consul: &str, prefix: &str, folder: &Path) -> Holder {
    let ready = folder.join("ready");
    let mut command = Command::new(binary());
    command.args(["lock", "-n", "2", "-shell=false", "-http-addr", consul, prefix, "sh", "-c"]);
    command.arg(format!("touch {}; exec sleep 600", ready.display()));
    start(command, ready)
}

fn start(mut command: Command, ready: PathBuf) -> Holder {
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    Holder { child, ready }
}

async fn measure(proxy: &Proxy, prefix: &str, binary: &Path, start: Start) -> Measured {
    let mut exits = Vec::new();
    let mut life = Counts::default();
    for n in 0..LIVES {
        let folder = tempfile::tempdir().unwrap();
        let before = proxy.counts();
        let mut holder = start(&proxy.addr().to_string(), &format!("{prefix}/{n}"), folder.path());
        until(|| holder.holds()).await;
        exits.push(exit(&mut holder.child).await);
        life = proxy.counts() - before;
    }
    exits.sort();
    let folder = tempfile::tempdir().unwrap();
    let mut holder = start(&proxy.addr().to_string(), &format!("{prefix}/idle"), folder.path());
    until(|| holder.holds()).await;
    // Beyond the start: it has waited on watches and renewed its session.
    tokio::time::sleep(Duration::from_secs(15)).await;
    let memory = memory(holder.child.id());
    exit(&mut holder.child).await;
    let binary = std::fs::metadata(binary).unwrap().len();
    Measured { binary, memory, life, exit: exits[exits.len() / 2] }
}

/// SIGTERM to the end of the process.
async fn exit(child: &mut Child) -> Duration {
    let told = Instant::now();
    kill_process(Pid::from_child(child), Signal::TERM).unwrap();
    until(|| child.try_wait().unwrap().is_some()).await;
    told.elapsed()
}

async fn until(mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < end, "waited in vain");
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
}

async fn floor(consul: &Consul) -> Duration {
    let mut times = Vec::new();
    for n in 0..50 {
        let sent = Instant::now();
        support::http::put(consul.addr(), "/v1/kv/bench/floor", n.to_string()).await;
        times.push(sent.elapsed());
    }
    times.sort();
    times[times.len() / 2]
}

fn megabytes(bytes: u64) -> String {
    // A size in megabytes is far from where a float would round it.
    #[allow(clippy::cast_precision_loss, reason = "see above")]
    let megabytes = bytes as f64 / 1e6;
    format!("{megabytes:.1}")
}

fn millis(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1e3)
}
