//! The claimant of a file: what an agent writes into its lock file, and how another process finds the agent by that.
//!
//! The content may be old, or of another PID namespace. So a process counts as the agent only while it has that file open, with
//! the lock on it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::claim::beside;
use super::custom_flags;
use crate::reload_report::Reloaded;

/// Maximum size of a lock file.
const MAX_BYTES: usize = 64 * 1024;
/// Maximum characters of a refusal in it.
const MAX_REFUSAL: usize = 4 * 1024;

/// The agent that has claimed a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claimant {
    /// Its process id, in its own PID namespace.
    pub pid: u32,
    /// Whether SIGHUP makes it reload. Under `slotkeeper run`, SIGHUP goes to the command.
    pub takes_sighup: bool,
    pub signals: Signals,
}

/// Reloads by SIGHUP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signals {
    /// Requests.
    pub asked: u64,
    /// Requests that were answered.
    pub answered: u64,
    /// The outcome of the last one.
    pub answer: Option<SignalAnswer>,
}

/// The outcome of a reload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignalAnswer {
    /// The changes.
    Reloaded(Reloaded),
    /// Why nothing has changed.
    Refused(String),
}

impl Claimant {
    /// The content of the lock file, of bounded size.
    pub(super) fn to_text(&self) -> String {
        let text = |one: &Self| serde_json::to_string(one).unwrap_or_default() + "\n";
        let whole = text(self);
        if whole.len() <= MAX_BYTES {
            return whole;
        }
        let mut shorter = self.clone();
        shorter.signals.answer = self.signals.answer.as_ref().map(|answer| match answer {
            SignalAnswer::Reloaded(_) => SignalAnswer::Reloaded(Reloaded::default()),
            SignalAnswer::Refused(why) => SignalAnswer::Refused(why.chars().take(MAX_REFUSAL).collect()),
        });
        text(&shorter)
    }
}

/// A running agent.
#[derive(Debug)]
pub struct Found {
    pub claimant: Claimant,
    /// Its process, even if its number is reused.
    pub process: OwnedFd,
}

/// Why no agent is found.
#[derive(Debug, Error)]
pub enum NotFound {
    /// The lock file names no agent. It may be under construction: look again.
    #[error("{0}")]
    Unclear(String),
    /// No agent has it locked, or it cannot be read.
    #[error("{0}")]
    NoAgent(String),
}

/// Finds the agent that has claimed `path`. It does not try the lock, since that would make an agent fail that starts now.
///
/// # Errors
///
/// There is none, or it cannot be found.
pub fn find(path: &Path) -> Result<Found, NotFound> {
    let lock = beside(path);
    let shown = lock.display();
    let (file, claimant) =
        read(&lock).map_err(|error| NotFound::NoAgent(format!("{shown} cannot be read: {error}")))?;
    let Some(claimant) = claimant else {
        let why = format!("{shown} names no agent: the agent is starting, or has an earlier version");
        return Err(NotFound::Unclear(why));
    };
    let number = claimant.pid;
    let gone = || {
        NotFound::NoAgent(format!(
            "{shown} names process {number}, which has not locked it: the agent has ended, or runs in another container"
        ))
    };
    let pid = i32::try_from(number).ok().and_then(Pid::from_raw).ok_or_else(gone)?;
    let process = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => process,
        Err(rustix::io::Errno::SRCH) => return Err(gone()),
        Err(error) => {
            let why = format!("process {number}, which {shown} names, cannot be opened: {error}");
            return Err(NotFound::NoAgent(why));
        }
    };
    match has_locked(number, &file) {
        Ok(true) => Ok(Found { claimant, process }),
        Ok(false) => Err(gone()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(gone()),
        Err(error) => Err(NotFound::NoAgent(format!(
            "process {number}, which {shown} names, cannot be looked at: {error}; be the user that it runs as"
        ))),
    }
}

/// The content of the lock file. `None`: it is empty or invalid.
fn read(lock: &Path) -> io::Result<(File, Option<Claimant>)> {
    let flags = custom_flags(OFlags::NOFOLLOW | OFlags::NONBLOCK);
    let file = OpenOptions::new().read(true).custom_flags(flags).open(lock)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut text = vec![0; MAX_BYTES];
    let length = file.read_at(&mut text, 0)?;
    let claimant = serde_json::from_slice(&text[..length]).ok();
    Ok((file, claimant))
}

/// Whether the process has this file open with a lock on it.
fn has_locked(pid: u32, file: &File) -> io::Result<bool> {
    let wanted = file.metadata()?;
    match has_open_and_locked(pid, &wanted) {
        // Only root sees the open files of an agent; every user sees its locks. `hidepid=invisible` hides the whole process.
        Err(error) if matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound) => {
            Ok(is_among(&fs::read_to_string("/proc/locks")?, pid, wanted.ino()))
        }
        told => told,
    }
}

/// Whether `/proc/locks` has a lock of this process on this inode. The device is not compared: some file systems show another
/// one there.
fn is_among(locks: &str, pid: u32, inode: u64) -> bool {
    locks.lines().any(|line| {
        // `1: FLOCK  ADVISORY  WRITE 1234 00:2f:5678 0 EOF`
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [_, "FLOCK", _, "WRITE", owner, file, ..] = fields[..] else { return false };
        let number = file.rsplit(':').next();
        owner.parse() == Ok(pid) && number.and_then(|number| number.parse().ok()) == Some(inode)
    })
}

fn has_open_and_locked(pid: u32, wanted: &fs::Metadata) -> io::Result<bool> {
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let entry = entry?;
        // The descriptor was closed meanwhile.
        let Ok(about) = fs::metadata(entry.path()) else { continue };
        if (about.dev(), about.ino()) != (wanted.dev(), wanted.ino()) {
            continue;
        }
        let number = entry.file_name();
        let information = fs::read_to_string(format!("/proc/{pid}/fdinfo/{}", number.to_string_lossy()));
        let locks =
            |line: &str| line.starts_with("lock:") && line.contains("FLOCK") && line.contains("WRITE");
        if information.is_ok_and(|text| text.lines().any(locks)) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Claim;

    fn claimant(pid: u32) -> Claimant {
        Claimant { pid, takes_sighup: true, signals: Signals::default() }
    }

    #[test]
    fn an_agent_is_found_for_as_long_as_it_has_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ready");
        let why = || find(&path).unwrap_err().to_string();
        assert!(why().contains("ready.lock cannot be read: No such file"), "{}", why());
        let mut claim = Claim::take(&path).unwrap();
        assert!(why().contains("names no agent"), "{}", why());
        claim.introduce(&claimant(std::process::id()).to_text());
        assert_eq!(find(&path).unwrap().claimant, claimant(std::process::id()));
        // A text that is shorter than the one before.
        let mut long = claimant(std::process::id());
        long.signals.answer = Some(SignalAnswer::Refused("why".repeat(9)));
        for claimant in [&long, &claimant(std::process::id())] {
            claim.introduce(&claimant.to_text());
            assert_eq!(find(&path).unwrap().claimant, *claimant);
        }
        drop(claim);
        assert!(why().contains("which has not locked it"), "{}", why());
        // The next claimant is not taken for the one before.
        let _next = Claim::take(&path).unwrap();
        assert!(why().contains("names no agent"), "{}", why());
    }

    #[test]
    fn a_process_that_has_not_the_lock_is_no_agent() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ready");
        let mut claim = Claim::take(&path).unwrap();
        // This one has it, and another one is named; and the other way round.
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        for pid in [child.id(), u32::MAX, 0] {
            claim.introduce(&claimant(pid).to_text());
            let why = find(&path).unwrap_err().to_string();
            assert!(why.contains("which has not locked it"), "{why}");
        }
        child.kill().unwrap();
        child.wait().unwrap();
        drop(claim);
        let _open = File::open(folder.path().join("ready.lock")).unwrap();
        fs::write(folder.path().join("ready.lock"), claimant(std::process::id()).to_text()).unwrap();
        assert!(find(&path).unwrap_err().to_string().contains("which has not locked it"));
    }

    #[test]
    fn what_may_be_somebody_elses_is_not_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let precious = folder.path().join("precious");
        fs::write(&precious, "precious").unwrap();
        fs::hard_link(&precious, folder.path().join("ready.lock")).unwrap();
        let mut claim = Claim::take(&folder.path().join("ready")).unwrap();
        claim.introduce(&claimant(1).to_text());
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
    }

    #[test]
    fn it_is_bounded() {
        let mut long = claimant(1);
        long.signals.answer = Some(SignalAnswer::Refused("é".repeat(MAX_BYTES)));
        let text = long.to_text();
        assert!(text.len() < MAX_BYTES && serde_json::from_str::<Claimant>(&text).is_ok());
        let many = Reloaded { added: vec!["x".repeat(63); 2000], ..Reloaded::default() };
        long.signals.answer = Some(SignalAnswer::Reloaded(many));
        assert!(long.to_text().len() < 200);
    }

    #[test]
    fn a_lock_is_known_by_its_process_and_its_file() {
        let locks = "1: POSIX  ADVISORY  WRITE 1234 00:2f:5678 0 EOF\n2: FLOCK  ADVISORY  WRITE 1234 00:2f:5678 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 99 00:2f:5678 0 EOF\n3: FLOCK  ADVISORY  READ 7 fe:01:8 0 EOF\n";
        let found =
            [(1234, 5678), (1234, 8), (99, 5678), (7, 8)].map(|(pid, inode)| is_among(locks, pid, inode));
        assert_eq!(
            found,
            [true, false, false, false],
            "one that waits has none, and one that shares none of its own"
        );
    }
}
