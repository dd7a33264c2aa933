//! The workload beside us, whose processes are in our process namespace: those of other containers that have a volume of ours
//! mounted. In a pod that is `shareProcessNamespace: true`.
//!
//! Being told to stop does not say that the workload has ended: a kubelet tells a sidecar at the same instant where the pod's grace
//! is used up (Kubernetes 1.36, `killContainer`). What `/proc` shows does.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::{Signal, getpid};

use super::process::{Process, Stat};

pub mod custody;
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
    /// The mount of our own container's root: who has the same one is in our container.
    own: u64,
    /// Those that have been found to be the workload's: they stay so.
    known: HashSet<Process>,
}

/// What was seen in one look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// All that live.
    all: Vec<Process>,
    /// Those of them that no other one of them has started: the first ones of containers, and what has lost its parent.
    first: Vec<Process>,
    /// Whether there may be more: `/proc` did not show whose some process is.
    is_unsure: bool,
}

impl Sight {
    /// Gets ready to find the processes that have the volume mounted on which `folder` lies.
    ///
    /// # Errors
    ///
    /// `folder` lies on no volume, or no processes but our own container's can be seen.
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

    /// Looks for them now.
    pub fn look(&mut self) -> Seen {
        let seen = self.look_once();
        // A process that was seen in the list and had ended when it was looked at may have left a child behind that is not on it.
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
        // A mount can be undone, and a child may never have had it: what was the workload's once stays so.
        if is_whole {
            self.known.clear();
        }
        self.known.extend(&seen.all);
        seen
    }

    /// Whether it is the workload's; `None` where it lives and that is not shown.
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
    /// `found`, and whatever of `alive` descends from these.
    fn of(alive: &[Stat], mut found: HashSet<Process>) -> Self {
        // A process is younger than its parent: once through in that order finds all.
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

    /// Whether anything of it lives, as far as is known.
    pub fn lives(&self) -> bool {
        self.is_unsure || !self.all.is_empty()
    }

    /// How many processes there are.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// Asks it to end, as a kubelet does: the first process of each container.
    ///
    /// # Errors
    ///
    /// As [`Self::kill`].
    pub fn terminate(&self) -> Result<(), NotAllowed> {
        signal(&self.first, Signal::TERM)
    }

    /// Ends it.
    ///
    /// # Errors
    ///
    /// One of them may not be signalled: it is another user's.
    pub fn kill(&self) -> Result<(), NotAllowed> {
        signal(&self.all, Signal::KILL)
    }
}

/// A process of the workload that may not be signalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAllowed {
    /// Its number.
    pub pid: i32,
}

fn signal(processes: &[Process], signal: Signal) -> Result<(), NotAllowed> {
    let mut denied = Ok(());
    for process in processes {
        // One that has ended meanwhile is what is wanted.
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
