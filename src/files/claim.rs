//! A claim on a file: while one process has it, no other of ours takes it.

use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FlockOperation, OFlags, StatxFlags, flock, statx};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{FileError, custom_flags};

/// The claim is nobody else's business.
const MODE: u32 = 0o600;

/// Why a file cannot be claimed.
#[derive(Debug, Error)]
pub enum ClaimError {
    /// The lock file beside it cannot be had.
    #[error(transparent)]
    File(#[from] FileError),
    /// Another process has it.
    #[error(
        "{} is in use by another agent that runs now; give each agent a file of its own, where they share a \
         configuration by SLOTKEEPER_READINESS_FILE, SLOTKEEPER_STATE_FILE and SLOTKEEPER_CONTROL_LISTEN",
        path.display()
    )]
    InUse {
        /// The file.
        path: PathBuf,
    },
}

impl ClaimError {
    /// What is wrong with a file, where that is it.
    pub(super) fn file(&self) -> Option<&FileError> {
        match self {
            Self::File(file) => Some(file),
            Self::InUse { .. } => None,
        }
    }
}

/// Which file a lock is on, for a later process. The device is not in it: its number may be another one after a reboot, a
/// remount or a container's restart. When the file was made tells it from one of another file system with the same inode, as
/// where a state file was copied, and from a later one that has got the inode of one that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimId {
    inode: u64,
    /// Nanoseconds since 1970; some file systems do not know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    made: Option<u64>,
}

impl ClaimId {
    fn of(file: &File) -> io::Result<Self> {
        Ok(Self { inode: file.metadata()?.ino(), made: made(file) })
    }

    /// Whether the two are one file, as far as is known.
    #[must_use]
    pub fn agrees(self, other: Self) -> bool {
        let differ = self.made.zip(other.made).is_some_and(|(one, other)| one != other);
        self.inode == other.inode && !differ
    }
}

/// When a file was made, where that is known. A kernel or a sandbox without the call knows it of no file.
fn made(file: &File) -> Option<u64> {
    let about = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BTIME).ok()?;
    let known = StatxFlags::from_bits_retain(about.stx_mask).contains(StatxFlags::BTIME);
    let (seconds, nanoseconds) = (about.stx_btime.tv_sec, about.stx_btime.tv_nsec);
    let whole = u64::try_from(seconds).ok().filter(|_| known)?.checked_mul(1_000_000_000)?;
    whole.checked_add(nanoseconds.into())
}

/// Where a lock file is: no other has both numbers while this one is open.
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

/// A claim, by a lock on `<file>.lock` beside the file. The kernel lets go of it even when the process is killed.
#[derive(Debug)]
pub struct Claim {
    path: PathBuf,
    id: ClaimId,
    place: Place,
    /// Held for its lock.
    file: File,
    /// What was written into it.
    written: String,
}

/// What has become of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// It stands.
    Stands,
    /// Its lock file was removed or replaced, and the one that is there now is claimed.
    Again,
    /// Another process has claimed the file.
    Lost,
}

impl Claim {
    /// Claims `path`, whose folder must be there.
    ///
    /// # Errors
    ///
    /// [`ClaimError`]: the folder is read-only or missing, or another process has the file.
    pub fn take(path: &Path) -> Result<Self, ClaimError> {
        let beside = beside(path);
        super::refuse_special(&beside)?;
        let cannot = |cause| FileError::open(&beside, cause);
        let file = open(&beside).map_err(cannot)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                let id = ClaimId::of(&file).map_err(cannot)?;
                let place = Place::of(&file.metadata().map_err(cannot)?);
                // Whoever had it before is gone.
                let _ = write(&file, "");
                Ok(Self { path: path.to_owned(), id, place, file, written: String::new() })
            }
            Err(rustix::io::Errno::WOULDBLOCK) => Err(ClaimError::InUse { path: path.to_owned() }),
            Err(error) => Err(cannot(error.into()).into()),
        }
    }

    /// Writes down who has the claim, for `slotkeeper reload`, which verifies it. Without it nothing else is missing, so that it
    /// may fail; it is then tried again with the next text.
    pub(super) fn introduce(&mut self, claimant: &str) {
        if self.written != claimant && write(&self.file, claimant).is_ok() {
            claimant.clone_into(&mut self.written);
        }
    }

    /// Which lock file it is on.
    pub fn id(&self) -> ClaimId {
        self.id
    }

    /// Looks whether the lock file is still the one by which others are kept away. The lock is on a file and not on its
    /// name: one that was removed keeps nobody away any more.
    ///
    /// # Errors
    ///
    /// It was removed and cannot be made again.
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

/// Writes into a lock file of our own. One that has another name too, or another owner, somebody else may have put there.
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

/// Opens the lock file, or makes it.
fn open(path: &Path) -> io::Result<File> {
    match OpenOptions::new().write(true).create_new(true).mode(MODE).open(path) {
        // The umask has taken its share of the mode above.
        Ok(made) => made.set_permissions(Permissions::from_mode(MODE)).map(|()| made),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // Never through a link that somebody else has laid, and without waiting for a pipe's other end.
            let flags = custom_flags(OFlags::NOFOLLOW | OFlags::NONBLOCK);
            let there = OpenOptions::new().write(true).custom_flags(flags).open(path)?;
            if there.metadata()?.is_file() { Ok(there) } else { Err(io::Error::other("it is no file")) }
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
