//! Processes as `/proc` shows them.

use std::path::Path;

use rustix::process::Pid;

/// The guard of the `slotkeeper run` that is this process, while it has one.
pub fn guard_of(run: Pid) -> Option<Pid> {
    all().find(|pid| parent(*pid) == Some(run) && command_line(*pid).contains("guard --socket"))
}

/// The process that has started it, or has inherited it.
pub fn parent(pid: Pid) -> Option<Pid> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok().and_then(Pid::from_raw)
}

/// Those in whose command line this occurs; none that only waits to be reaped.
pub fn mentioning(what: &str) -> Vec<Pid> {
    all().filter(|pid| command_line(*pid).contains(what)).collect()
}

fn all() -> impl Iterator<Item = Pid> {
    let processes = Path::new("/proc").read_dir().unwrap().flatten();
    processes.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
}

/// Its words.
pub fn command_line(pid: Pid) -> String {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&words).replace('\0', " ")
}
