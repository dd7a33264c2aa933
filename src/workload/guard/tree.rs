//! The processes of a command, and signals to them.

use std::collections::HashMap;
use std::fs;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, getpgid, getpid, kill_process_group, test_kill_process, waitpid,
};

use crate::workload::process::{self, Process};

/// All descendants of this process. As a subreaper it is the parent of orphans, so that no process escapes by leaving its group
/// or its session.
pub(super) fn descendants() -> Vec<Process> {
    let mut children: HashMap<i32, Vec<Process>> = HashMap::new();
    for stat in process::all().0 {
        children.entry(stat.parent).or_default().push(stat.process);
    }
    let mut found = Vec::new();
    let mut next = vec![getpid().as_raw_nonzero().get()];
    // Each has one parent, and so is found once.
    while let Some(pid) = next.pop() {
        let own = children.remove(&pid).unwrap_or_default();
        next.extend(own.iter().map(|child| child.pid().as_raw_nonzero().get()));
        found.extend(own);
    }
    found
}

/// The children of a process that have ended and are not reaped.
pub(in crate::workload) fn ended_children(of: Pid) -> Vec<Pid> {
    let of = of.as_raw_nonzero().get();
    let ended = process::all().0.into_iter().filter(|stat| stat.parent == of && stat.state == 'Z');
    ended.map(|stat| stat.process.pid()).collect()
}

/// Signals the command's group. `leader` is not reaped yet, so that its number is not reused.
pub(super) fn signal_group(leader: Pid, signal: Signal) {
    // That there is none any more is what is wanted.
    let _ = kill_process_group(leader, signal);
}

/// Signals all descendants of this process: the command's group at once if its leader is there, and then each process.
/// Returns a process of another user, which this one may not signal.
pub(super) fn signal_all(leader: Option<Pid>, signal: Signal) -> Option<i32> {
    if let Some(leader) = leader {
        signal_group(leader, signal);
    }
    let in_group = |pid: Pid| leader.is_some() && getpgid(Some(pid)).ok() == leader;
    let mut denied = None;
    for process in descendants() {
        // A group is signalled in silence where only some of it may be.
        let in_group = in_group(process.pid());
        let signalled = if in_group { test_kill_process(process.pid()) } else { process.signal(signal) };
        if signalled == Err(Errno::PERM) {
            denied = Some(process.pid().as_raw_nonzero().get());
        }
    }
    denied
}

/// Why the descendants of a command could not be found in `/proc`, and what to do; `None` where they can.
pub(crate) fn unfit_proc() -> Option<&'static str> {
    let own = getpid().as_raw_nonzero().to_string();
    // By the own number in the namespace of `/proc`: another one, or none if that namespace is no ancestor.
    let shows_us = fs::read_link("/proc/self").is_ok_and(|link| link.as_os_str() == own.as_str());
    if !shows_us && fs::symlink_metadata("/proc/self").is_ok() {
        return Some(
            "/proc belongs to another PID namespace, so what the command starts could not be found there and ended; \
             mount a fresh one: `unshare --pid --fork --mount-proc`, `bwrap --unshare-pid --proc /proc`",
        );
    }
    match fs::read_to_string("/proc/1/stat") {
        Ok(_) if shows_us => None,
        Ok(_) => Some(unshown(None)),
        Err(error) => Some(unshown(Errno::from_io_error(&error))),
    }
}

/// Why `/proc` does not show all processes.
fn unshown(error: Option<Errno>) -> &'static str {
    if let Some(Errno::MFILE | Errno::NFILE) = error {
        return "too many files are open to read /proc, so what the command starts could not be found there and ended; \
                raise the limit of open files (`ulimit -n`, LimitNOFILE=)";
    }
    "not all processes are shown in /proc (it is not mounted, or with hidepid), so what the command starts could not be \
     found there and ended; mount it without hidepid"
}

/// Kills and reaps the descendants of a guard that has gone. Returns whether any was left. `is_spared`: the process group is a
/// hook's.
pub(in crate::workload) fn end_orphans(is_spared: impl Fn(Pid) -> bool) -> bool {
    let orphans = descendants().into_iter().filter(|process| {
        // One that has ended meanwhile has no group.
        getpgid(Some(process.pid())).is_ok_and(|group| !is_spared(group))
    });
    let mut any = false;
    for process in orphans {
        any = true;
        let _ = process.signal(Signal::KILL);
        // Children of a killed process are found by the next call.
        let _ = waitpid(Some(process.pid()), WaitOptions::NOHANG);
    }
    any
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_open_files_are_no_hidden_processes() {
        for (error, expected) in
            [(Some(Errno::MFILE), "ulimit -n"), (Some(Errno::NOENT), "hidepid"), (None, "hidepid")]
        {
            assert!(unshown(error).contains(expected), "{error:?}");
        }
    }

    #[test]
    fn a_child_descends_from_us_until_it_is_reaped() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let found = || descendants().into_iter().find(|one| one.pid().as_raw_nonzero().get() == pid);
        let process = found().unwrap();
        process.signal(Signal::KILL).unwrap();
        child.wait().unwrap();
        assert_eq!(found(), None);
        assert_eq!(process.signal(Signal::KILL), Err(Errno::SRCH));
    }
}
