//! How long after `kill -9` of a holder the next one starts: from the kill to the first thing that the successor's command
//! does. The commands end on SIGTERM. And what the guard costs, which makes the difference.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::consul::{Consul, binary};
use crate::support::processes::{self, Memory, memory};
use crate::{SLOTKEEPER, until};

const TRIALS: usize = 10;

/// What was measured.
pub(crate) struct Killed {
    /// Median.
    pub(crate) ours: Duration,
    /// Of one trial: it takes a TTL and a lock-delay.
    pub(crate) theirs: Duration,
    pub(crate) guard: Memory,
}

/// Starts one on the slot at `prefix`, whose command runs the script.
type Start = fn(consul: &str, prefix: &str, script: &str) -> Command;

fn ours(consul: &str, prefix: &str, script: &str) -> Command {
    let mut command = Command::new(SLOTKEEPER);
    command.args(["run", prefix, "-n", "1", "--http-addr", consul, "--", "sh", "-c", script]);
    command
}

fn theirs(consul: &str, prefix: &str, script: &str) -> Command {
    let mut command = Command::new(binary());
    command.args(["lock", "-n", "1", "-shell=false", "-http-addr", consul, prefix, "sh", "-c", script]);
    command
}

pub(crate) async fn measure(consul: &Consul) -> Killed {
    let address = consul.addr().to_string();
    let (mut times, mut guard) = (Vec::new(), None);
    for n in 0..TRIALS {
        let (time, memory) = trial(&address, &format!("bench/killed/{n}"), ours).await;
        times.push(time);
        guard = guard.or(memory);
    }
    times.sort();
    let (theirs, _) = trial(&address, "bench/killed/theirs", theirs).await;
    Killed { ours: times[TRIALS / 2], theirs, guard: guard.expect("a guard") }
}

async fn trial(consul: &str, prefix: &str, start: Start) -> (Duration, Option<Memory>) {
    let folder = tempfile::tempdir().unwrap();
    let life = |name: &str| folder.path().join(name);
    let mut first = live(start, consul, prefix, &life("first"));
    until(|| life("first").exists()).await;
    let mut second = live(start, consul, prefix, &life("second"));
    // In line by then, with its watches.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let guard = processes::guard_of(Pid::from_child(&first));
    let memory = guard.and_then(|guard| u32::try_from(guard.as_raw_nonzero().get()).ok()).map(memory);
    let killed = Instant::now();
    first.kill().unwrap();
    until(|| life("second").exists()).await;
    let took = killed.elapsed();
    first.wait().unwrap();
    kill_process(Pid::from_child(&second), Signal::TERM).unwrap();
    until(|| second.try_wait().unwrap().is_some()).await;
    // What nobody has ended.
    for left in processes::mentioning(&folder.path().display().to_string()) {
        let _ = kill_process(left, Signal::KILL);
    }
    (took, memory)
}

fn live(start: Start, consul: &str, prefix: &str, file: &Path) -> Child {
    let script = format!(": > {}; while :; do sleep 0.1; done", file.display());
    let mut command = start(consul, prefix, &script);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}
