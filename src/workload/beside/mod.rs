//! The workload whose processes share the process namespace with the agent: those of other containers that have mounted the same
//! volume. In a pod that is `shareProcessNamespace: true`.
//!
//! SIGTERM does not say that the workload has ended: a kubelet sends it to all containers at once where the pod's grace period is
//! over (Kubernetes 1.36, `killContainer`). `/proc` shows the end.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::{Signal, getpid};

use super::process::{Process, Stat};

pub mod fence;
mod mounts;

use mounts::{Mounts, Volume};

/// Why the workload's processes cannot be found.
#[derive(Debug, thiserror::Error)]
#[error("workload.volume: {what}; {advice}")]
pub struct Unfit {
    what: String,
    advice: &'static str,
}

const SHARE: &str = "give the pod `shareProcessNamespace: true`, or remove the section `workload`";

/// Finds the workload's processes.
#[derive(Debug)]
pub struct Sight {
    volume: Volume,
    /// The mount of the root of the agent's container. Processes with the same one are in the same container.
    own: u64,
    /// Processes that were found to be the workload's. They stay so.
    known: HashSet<Process>,
}

/// The result of one look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// All living processes.
    all: Vec<Process>,
    /// Processes without a parent among them: the first ones of containers, and orphans.
    first: Vec<Process>,
    /// There may be more: `/proc` did not show where some process belongs.
    is_unsure: bool,
}

impl Sight {
    /// Prepares to find the processes that have mounted the volume of `folder`.
    ///
    /// # Errors
    ///
    /// `folder` is on no volume, or only processes of the own container can be seen.
    pub fn of(folder: &Path) -> Result<Self, Unfit> {
        let unfit = |what: String, advice| Unfit { what, advice };
        if let Some(why) = super::unfit_proc() {
            return Err(unfit(why.to_owned(), SHARE));
        }
        if getpid().as_raw_nonzero().get() == 1 {
            return Err(unfit("no processes but this container's can be seen".into(), SHARE));
        }
        let own = Mounts::of(getpid()).unwrap_or_default();
        let folder = fs::canonicalize(folder).unwrap_or_else(|_| PathBuf::from(folder));
        let volume = own.volume(&folder).ok_or_else(|| {
            let what = format!("{} is on no volume of its own", folder.display());
            unfit(what, "mount there what the workload's containers have mounted too")
        })?;
        let own = own.root().ok_or_else(|| unfit("/proc/self/mountinfo shows no root".into(), SHARE))?;
        Ok(Self { volume, own, known: HashSet::new() })
    }

    /// Looks for the processes.
    pub fn look(&mut self) -> Seen {
        let seen = self.look_once();
        // A process of the list that ended before it was read may have left a child that is not in the list.
        if seen.all.is_empty() { self.look_once() } else { seen }
    }

    fn look_once(&mut self) -> Seen {
        let own = getpid();
        let (mut alive, is_whole) = super::process::all();
        alive.retain(Stat::is_alive);
        let (mut found, mut is_unsure) = (HashSet::new(), !is_whole);
        for process in alive.iter().map(|stat| stat.process).filter(|process| process.pid() != own) {
            match self.is_workload(process) {
                Some(true) => drop(found.insert(process)),
                Some(false) => {}
                None => is_unsure = true,
            }
        }
        let seen = Seen { is_unsure, ..Seen::of(&alive, found) };
        // A mount can be removed, and a child may never have had it: a process of the workload stays one.
        if is_whole {
            self.known.clear();
        }
        self.known.extend(&seen.all);
        seen
    }

    /// Whether a process is the workload's. `None`: it lives, and `/proc` does not show it.
    fn is_workload(&self, process: Process) -> Option<bool> {
        if self.known.contains(&process) {
            return Some(true);
        }
        match Mounts::of(process.pid()) {
            Some(mounts) => Some(mounts.root() != Some(self.own) && mounts.have(&self.volume)),
            None => {
                let now = super::process::stat(process.pid());
                let lives = now.is_some_and(|stat| stat.process == process && stat.is_alive());
                if lives { None } else { Some(false) }
            }
        }
    }
}

impl Seen {
    /// `found` and their descendants in `alive`.
    fn of(alive: &[Stat], mut found: HashSet<Process>) -> Self {
        // A process is younger than its parent: one pass in that order finds all.
        let mut by_age: Vec<&Stat> = alive.iter().collect();
        by_age.sort_by_key(|stat| (stat.process.started(), stat.process.pid().as_raw_nonzero()));
        let mut pids: HashSet<i32> = found.iter().map(|one| one.pid().as_raw_nonzero().get()).collect();
        for stat in by_age {
            if pids.contains(&stat.parent) && found.insert(stat.process) {
                pids.insert(stat.process.pid().as_raw_nonzero().get());
            }
        }
        let of = |stat: &&Stat| found.contains(&stat.process);
        let all = alive.iter().filter(of).map(|stat| stat.process).collect();
        let first =
            alive.iter().filter(of).filter(|stat| !pids.contains(&stat.parent)).map(|stat| stat.process);
        Self { first: first.collect(), all, is_unsure: false }
    }

    /// Whether a process of the workload may live.
    pub fn lives(&self) -> bool {
        self.is_unsure || !self.all.is_empty()
    }

    /// The number of processes.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// Sends SIGTERM to the first process of each container, as a kubelet does.
    ///
    /// # Errors
    ///
    /// As [`Self::kill`].
    pub fn terminate(&self) -> Result<(), NotAllowed> {
        signal(&self.first, Signal::TERM)
    }

    /// Kills all processes.
    ///
    /// # Errors
    ///
    /// A process belongs to another user.
    pub fn kill(&self) -> Result<(), NotAllowed> {
        signal(&self.all, Signal::KILL)
    }
}

/// A process of the workload that this user may not signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAllowed {
    pub pid: i32,
}

fn signal(processes: &[Process], signal: Signal) -> Result<(), NotAllowed> {
    let mut denied = Ok(());
    for process in processes {
        // A process may have ended meanwhile.
        if process.signal(signal) == Err(Errno::PERM) {
            denied = Err(NotAllowed { pid: process.pid().as_raw_nonzero().get() });
        }
    }
    denied
}

#[cfg(test)]
mod tests {
    use rustix::process::Pid;

    use super::*;

    fn stat(pid: i32, parent: i32, started: u64) -> Stat {
        // 52 fields; those between are of no interest.
        let between = "0 ".repeat(14);
        let line = format!("{pid} (a b) S {parent} {between}0 1 0 {started} 0");
        Stat::of(Pid::from_raw(pid).unwrap(), &line).unwrap()
    }

    #[test]
    fn what_descends_from_the_workload_is_the_workload() {
        let alive =
            [stat(1, 0, 1), stat(9, 7, 30), stat(7, 0, 20), stat(30, 9, 30), stat(40, 1, 50), stat(12, 0, 5)];
        let seen = Seen::of(&alive, HashSet::from([alive[2].process, alive[4].process]));
        let pids = |processes: &[Process]| -> Vec<i32> {
            processes.iter().map(|one| one.pid().as_raw_nonzero().get()).collect()
        };
        assert_eq!(pids(&seen.all), [9, 7, 30, 40]);
        assert_eq!(pids(&seen.first), [7, 40], "an orphan has its parent no more");
    }

    #[test]
    fn nothing_in_our_own_container_is_the_workload() {
        // What has the same root; /proc is a volume that all have.
        let own = Mounts::of(getpid()).unwrap();
        let (volume, root) = (own.volume(Path::new("/proc")).unwrap(), own.root().unwrap());
        let mut sight = Sight { volume: volume.clone(), own: root, known: HashSet::new() };
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let shows = |seen: Seen| seen.all.iter().any(|process| process.pid() == pid);
        assert!(!shows(sight.look()));
        // Of another root it would be.
        let mut other = Sight { volume, own: root + 1, known: HashSet::new() };
        assert!(shows(other.look()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!shows(other.look()));
    }

    #[test]
    fn a_folder_on_no_volume_is_refused() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let own = Mounts::of(getpid()).unwrap();
        let shown = fs::canonicalize(folder.path()).unwrap();
        // Where the source itself lies on a volume this says nothing.
        if own.volume(&shown).is_none() {
            let error = Sight::of(folder.path()).unwrap_err().to_string();
            assert!(error.contains("on no volume of its own"), "{error}");
        }
    }
}
