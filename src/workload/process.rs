//! Processes in `/proc`, and signals that reach exactly one process.

use std::fs;
use std::io;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

/// A process in `/proc`. Its number alone may be reused by the time that it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Process {
    pid: Pid,
    /// When it was started, in ticks since the machine was.
    started: u64,
}

/// The content of `/proc/<pid>/stat`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stat {
    /// Which one.
    pub(crate) process: Process,
    /// Its parent's number; 0: that is not in this process namespace.
    pub(crate) parent: i32,
    /// Such as `R`; `Z` of one that has ended and is not reaped.
    pub(crate) state: char,
    threads: u32,
}

impl Process {
    /// Its number.
    pub(crate) fn pid(self) -> Pid {
        self.pid
    }

    /// When it was started, in ticks since the machine was.
    pub(crate) fn started(self) -> u64 {
        self.started
    }

    /// Signals the process, and no other one that has reused its number.
    pub(crate) fn signal(self, signal: Signal) -> rustix::io::Result<()> {
        let file = match pidfd_open(self.pid, PidfdFlags::empty()) {
            Ok(file) => file,
            // A kernel before 5.3, or a seccomp filter.
            Err(Errno::NOSYS | Errno::PERM) => return kill_process(self.pid, signal),
            Err(error) => return Err(error),
        };
        // The descriptor was opened before: if the process still has this number, the descriptor is of it.
        if stat(self.pid).is_none_or(|stat| stat.process.started != self.started) {
            return Err(Errno::SRCH);
        }
        match pidfd_send_signal(&file, signal) {
            Err(Errno::NOSYS) => kill_process(self.pid, signal),
            sent => sent,
        }
    }
}

impl Stat {
    /// Reads the line. The name in it stands in parentheses and may hold any characters.
    pub(crate) fn of(pid: Pid, line: &str) -> Option<Self> {
        let (_, after_name) = line.rsplit_once(')')?;
        let mut fields = after_name.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let parent = fields.next()?.parse().ok()?;
        let threads = fields.nth(15)?.parse().ok()?;
        let started = fields.nth(1)?.parse().ok()?;
        Some(Self { process: Process { pid, started }, parent, state, threads })
    }

    /// Whether the process runs. It shows as ended when its first thread has, while others may go on.
    pub(crate) fn is_alive(&self) -> bool {
        !matches!(self.state, 'Z' | 'X') || self.threads > 1
    }
}

/// The state of a process. `None`: there is none of that number.
pub(crate) fn stat(pid: Pid) -> Option<Stat> {
    read(pid).ok().flatten()
}

/// All processes, and whether the list is complete: without a free descriptor some cannot be read.
pub(crate) fn all() -> (Vec<Stat>, bool) {
    let Ok(entries) = fs::read_dir("/proc") else { return (Vec::new(), false) };
    let (mut found, mut is_whole) = (Vec::new(), true);
    for entry in entries {
        let Ok(entry) = entry else {
            is_whole = false;
            continue;
        };
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        match pid.and_then(Pid::from_raw).map_or(Ok(None), read) {
            Ok(stat) => found.extend(stat),
            Err(_) => is_whole = false,
        }
    }
    (found, is_whole)
}

fn read(pid: Pid) -> io::Result<Option<Stat>> {
    match fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())) {
        // A name may be no UTF-8.
        Ok(line) => Ok(Stat::of(pid, &String::from_utf8_lossy(&line))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        // It has ended while it was read.
        Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::getpid;

    use super::*;

    fn of(line: &str) -> Option<Stat> {
        Stat::of(getpid(), line)
    }

    #[test]
    fn a_name_may_hold_anything() {
        let rest = "1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 3 0 4711 0 0";
        let stat = of(&format!("12 (a) S 7 (b) R 99 {rest}")).unwrap();
        assert_eq!((stat.parent, stat.state, stat.threads, stat.process.started()), (99, 'R', 3, 4711));
        assert!(of("12 (a) S 7").is_none() && of("").is_none());
    }

    #[test]
    fn one_that_has_ended_lives_while_a_thread_of_it_does() {
        let rest = |threads: u32| format!("1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 {threads} 0 4711 0");
        for (state, threads, alive) in [("S", 1, true), ("Z", 1, false), ("X", 0, false), ("Z", 2, true)] {
            let line = format!("12 (a) {state} {}", rest(threads));
            assert_eq!(of(&line).unwrap().is_alive(), alive, "{line}");
        }
    }

    #[test]
    fn our_own_is_shown_as_it_is() {
        let own = stat(getpid()).unwrap();
        assert!(own.is_alive() && all().0.iter().any(|stat| stat.process == own.process));
        assert_eq!(own.process.pid(), getpid());
    }

    #[test]
    fn one_that_has_got_the_number_of_another_is_not_signalled() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let process = stat(pid).unwrap().process;
        let earlier = Process { started: process.started - 1, ..process };
        assert_eq!(earlier.signal(Signal::KILL), Err(Errno::SRCH));
        assert_eq!(child.try_wait().unwrap(), None);
        process.signal(Signal::KILL).unwrap();
        child.wait().unwrap();
    }
}
