//! A claim on a file: a lock that keeps other agents away from it.

use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FlockOperation, OFlags, StatxFlags, flock, statx};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{FileError, claimant, custom_flags};

/// Only this user needs the lock file.
const MODE: u32 = 0o600;

/// Why a file was not claimed.
#[derive(Debug, Error)]
pub enum ClaimError {
    /// The lock file cannot be opened.
    #[error(transparent)]
    File(#[from] FileError),
    /// Another process has claimed it.
    #[error(
        "{} is in use by another agent that runs now{}; agents on one host need different files and addresses. If they share a \
         configuration, set SLOTKEEPER_READINESS_FILE, SLOTKEEPER_STATE_FILE, SLOTKEEPER_CONTROL_LISTEN and \
         SLOTKEEPER_HTTP_LISTEN for one of them",
        path.display(), pid.map_or(String::new(), |pid| format!(" (process {pid})"))
    )]
    InUse {
        path: PathBuf,
        /// Its process id, as far as this process sees it.
        pid: Option<u32>,
    },
}

impl ClaimError {
    /// The file error, if it is one.
    pub(super) fn file(&self) -> Option<&FileError> {
        match self {
            Self::File(file) => Some(file),
            Self::InUse { .. } => None,
        }
    }
}

/// Identifies a lock file for a later process. The number of the device is not part of it, since it may change with a reboot, a
/// remount or a restart of the container. The creation time distinguishes files with the same inode: on another file system, as
/// after a copy of the state file, or after the inode was reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimId {
    inode: u64,
    /// The creation time in nanoseconds since 1970. Some file systems have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    made: Option<u64>,
}

impl ClaimId {
    fn of(file: &File) -> io::Result<Self> {
        Ok(Self { inode: file.metadata()?.ino(), made: made(file) })
    }

    /// Whether both identify the same file, as far as is known.
    #[must_use]
    pub fn agrees(self, other: Self) -> bool {
        let differ = self.made.zip(other.made).is_some_and(|(one, other)| one != other);
        self.inode == other.inode && !differ
    }
}

/// The creation time of a file. A kernel or a sandbox without the call has none.
fn made(file: &File) -> Option<u64> {
    let about = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BTIME).ok()?;
    let known = StatxFlags::from_bits_retain(about.stx_mask).contains(StatxFlags::BTIME);
    let (seconds, nanoseconds) = (about.stx_btime.tv_sec, about.stx_btime.tv_nsec);
    let whole = u64::try_from(seconds).ok().filter(|_| known)?.checked_mul(1_000_000_000)?;
    whole.checked_add(nanoseconds.into())
}

/// A lock file on this machine: no other file has both numbers while this one is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    device: u64,
    inode: u64,
}

impl Place {
    fn of(about: &Metadata) -> Self {
        Self { device: about.dev(), inode: about.ino() }
    }
}

/// A claim by a lock on `<file>.lock`. The kernel releases it when the process ends, also by SIGKILL.
#[derive(Debug)]
pub struct Claim {
    path: PathBuf,
    id: ClaimId,
    place: Place,
    /// It has the lock.
    file: File,
    /// The content of the lock file.
    written: String,
}

/// The state of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// It is unchanged.
    Stands,
    /// Its lock file was removed or replaced, and the new one is locked.
    Again,
    /// Another process has claimed the file.
    Lost,
}

impl Claim {
    /// Claims `path`. Its folder must exist.
    ///
    /// # Errors
    ///
    /// The folder is read-only or missing, or another process has claimed the file.
    pub fn take(path: &Path) -> Result<Self, ClaimError> {
        let beside = beside(path);
        super::refuse_special(&beside)?;
        let cannot = |cause| FileError::open(&beside, cause);
        let file = open(&beside).map_err(cannot)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                let id = ClaimId::of(&file).map_err(cannot)?;
                let place = Place::of(&file.metadata().map_err(cannot)?);
                // The earlier claimant has ended.
                let _ = write(&file, "");
                Ok(Self { path: path.to_owned(), id, place, file, written: String::new() })
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let pid = claimant::find(path).ok().map(|found| found.claimant.pid);
                Err(ClaimError::InUse { path: path.to_owned(), pid })
            }
            Err(error) => Err(cannot(error.into()).into()),
        }
    }

    /// Writes the claimant into the lock file, for `slotkeeper reload`, which verifies it. A failed write is retried with the next
    /// text: nothing else depends on it.
    pub(super) fn introduce(&mut self, claimant: &str) {
        if self.written != claimant && write(&self.file, claimant).is_ok() {
            claimant.clone_into(&mut self.written);
        }
    }

    pub fn id(&self) -> ClaimId {
        self.id
    }

    /// Checks the lock file, and locks a new one if it was removed or replaced. The lock is on a file and not on its name: a lock
    /// on a removed file keeps no process away.
    ///
    /// # Errors
    ///
    /// The lock file was removed and cannot be created again.
    pub fn keep(&mut self) -> Result<Kept, FileError> {
        if beside(&self.path).symlink_metadata().is_ok_and(|about| Place::of(&about) == self.place) {
            return Ok(Kept::Stands);
        }
        super::make_folder(&self.path)?;
        match Self::take(&self.path) {
            Ok(again) => {
                *self = again;
                Ok(Kept::Again)
            }
            Err(ClaimError::InUse { .. }) => Ok(Kept::Lost),
            Err(ClaimError::File(error)) => Err(error),
        }
    }
}

/// Unlocks the file. Closing it is not enough: a child between fork and exec has a copy of the descriptor, and the lock with it.
impl Drop for Claim {
    fn drop(&mut self) {
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

/// Writes into a lock file of this user. One with another owner or several names may be another user's.
fn write(file: &File, text: &str) -> io::Result<()> {
    let about = file.metadata()?;
    if about.nlink() == 1 && about.uid() == rustix::process::geteuid().as_raw() {
        file.write_all_at(text.as_bytes(), 0)?;
        file.set_len(text.len() as u64)?;
    }
    Ok(())
}

/// The lock file of a file.
pub(super) fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}

/// Opens or creates the lock file.
fn open(path: &Path) -> io::Result<File> {
    match OpenOptions::new().write(true).create_new(true).mode(MODE).open(path) {
        // The umask has reduced the mode above.
        Ok(made) => made.set_permissions(Permissions::from_mode(MODE)).map(|()| made),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // Without following another user's link, and without blocking on a pipe.
            let flags = custom_flags(OFlags::NOFOLLOW | OFlags::NONBLOCK);
            let there = OpenOptions::new().write(true).custom_flags(flags).open(path)?;
            if there.metadata()?.is_file() {
                Ok(there)
            } else {
                Err(io::Error::other("it is not a regular file"))
            }
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_claimed_once_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ready");
        let first = Claim::take(&path).unwrap();
        let refused = Claim::take(&path).unwrap_err().to_string();
        assert!(refused.contains("in use by another agent"), "{refused}");
        drop(first);
        Claim::take(&path).unwrap();
    }

    #[test]
    fn a_lock_file_that_is_removed_is_made_again_unless_another_process_was_faster() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/ready");
        super::super::make_folder(&path).unwrap();
        let mut claim = Claim::take(&path).unwrap();
        let first = claim.id();
        assert_eq!(claim.keep().unwrap(), Kept::Stands);
        std::fs::remove_dir_all(folder.path().join("run")).unwrap();
        assert_eq!(claim.keep().unwrap(), Kept::Again);
        assert!(claim.id() != first && Claim::take(&path).is_err());
        std::fs::remove_file(beside(&path)).unwrap();
        let other = Claim::take(&path).unwrap();
        assert_eq!(claim.keep().unwrap(), Kept::Lost);
        assert_eq!(claim.keep().unwrap(), Kept::Lost);
        drop(other);
        assert_eq!(claim.keep().unwrap(), Kept::Again);
    }

    #[test]
    fn one_file_is_known_again_and_no_other_is_taken_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ready");
        let first = Claim::take(&path).unwrap().id();
        assert!(Claim::take(&path).unwrap().id().agrees(first));
        let other = Claim::take(&folder.path().join("other")).unwrap().id();
        assert!(!other.agrees(first));
        // The same inode of another file system.
        let id = |made| ClaimId { inode: 7, made };
        assert!(!id(Some(1)).agrees(id(Some(2))));
        assert!(id(Some(1)).agrees(id(Some(1))));
        // Where it is not known, the inode alone counts.
        assert!(id(None).agrees(id(Some(2))) && id(None).agrees(id(None)));
        assert!(!id(None).agrees(ClaimId { inode: 8, made: None }));
    }

    #[test]
    fn whoever_gives_a_claim_back_gives_back_all_copies_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ready");
        let claim = Claim::take(&path).unwrap();
        // As a process has it that was forked meanwhile.
        let _copy = claim.file.try_clone().unwrap();
        drop(claim);
        Claim::take(&path).unwrap();
    }

    #[test]
    fn a_folder_that_is_not_there_is_said() {
        let refused = Claim::take(Path::new("/nonexistent/ready")).unwrap_err().to_string();
        assert!(refused.starts_with("cannot open /nonexistent/ready.lock: No such file"), "{refused}");
    }
}
