//! Processes as `/proc` shows them.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use rustix::param::clock_ticks_per_second;
use rustix::process::{Pid, Signal, kill_process};

const POLL: Duration = Duration::from_millis(20);

/// The guard of the `slotkeeper run` that is this process, while it has one.
pub fn guard_of(run: Pid) -> Option<Pid> {
    all().find(|pid| parent(*pid) == Some(run) && command_line(*pid).contains("guard --socket"))
}

/// The process that has started it, or has inherited it.
pub fn parent(pid: Pid) -> Option<Pid> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok().and_then(Pid::from_raw)
}

/// Whether each of its threads is stopped by a signal.
pub fn has_stopped(pid: Pid) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let stats = threads.map(|thread| std::fs::read_to_string(thread.unwrap().path().join("stat")));
    // A thread may end while they are read.
    stats.filter_map(Result::ok).all(|stat| stat.contains(") T "))
}

/// Processor time that it has taken so far, itself and not its children.
pub fn processor_time(process: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    // Behind its name, which may have spaces.
    let fields: Vec<_> = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().collect();
    ticks(fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap())
}

/// Processor time that all processes of the machine have taken so far, and the kernel.
pub fn machine_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/stat").unwrap();
    let fields: Vec<u64> =
        stat.lines().next().unwrap().split_ascii_whitespace().skip(1).map(|n| n.parse().unwrap()).collect();
    // user, nice, system, idle, iowait, irq, softirq.
    ticks([0, 1, 2, 5, 6].into_iter().map(|field| fields[field]).sum())
}

fn ticks(number: u64) -> Duration {
    Duration::from_secs(number) / u32::try_from(clock_ticks_per_second()).unwrap()
}

/// Memory of a process, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    pub resident: u64,
    /// The part of it that no other process shares.
    pub private: u64,
}

/// What it takes now.
pub fn memory(process: u32) -> Memory {
    let smaps = std::fs::read_to_string(format!("/proc/{process}/smaps_rollup")).unwrap();
    let of = |name: &str| -> u64 {
        let lines = smaps.lines().filter(|line| line.starts_with(name));
        lines.map(|line| line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024).sum()
    };
    Memory { resident: of("Rss:"), private: of("Private_Clean:") + of("Private_Dirty:") }
}

/// Those in whose command line this occurs; none that only waits to be reaped.
pub fn mentioning(what: &str) -> Vec<Pid> {
    all().filter(|pid| command_line(*pid).contains(what)).collect()
}

fn all() -> impl Iterator<Item = Pid> {
    let processes = Path::new("/proc").read_dir().unwrap().flatten();
    processes.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
}

/// Ends a process by `signal`, and by SIGKILL if that has not ended it within `patience`. Says whether `signal` did.
pub async fn end(child: &mut Child, signal: Signal, patience: Duration) -> bool {
    let _ = kill_process(Pid::from_child(child), signal);
    let ended = async {
        while child.try_wait().unwrap().is_none() {
            tokio::time::sleep(POLL).await;
        }
    };
    let in_time = tokio::time::timeout(patience, ended).await.is_ok();
    if !in_time {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    in_time
}

/// Its words.
pub fn command_line(pid: Pid) -> String {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&words).replace('\0', " ")
}

/// How many TCP connections a process has to that address, established ones.
pub fn connections(process: u32, to: SocketAddr) -> usize {
    const ESTABLISHED: &str = "01";
    let sockets: BTreeSet<_> = std::fs::read_dir(format!("/proc/{process}/fd"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|descriptor| {
            let leads_to = std::fs::read_link(descriptor.path()).ok()?;
            Some(leads_to.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
        })
        .collect();
    let port = format!(":{:04X}", to.port());
    let table = std::fs::read_to_string(format!("/proc/{process}/net/tcp")).unwrap_or_default();
    let is_one = |line: &&str| {
        let fields: Vec<_> = line.split_ascii_whitespace().collect();
        matches!(fields[..], [_, _, remote, ESTABLISHED, _, _, _, _, _, inode, ..]
            if remote.ends_with(&port) && sockets.contains(inode))
    };
    table.lines().filter(is_one).count()
}
