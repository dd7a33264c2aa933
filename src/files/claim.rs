//! A claim on a file: while one process has it, no other of ours takes it.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
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

/// A claim, by a lock on `<file>.lock` beside the file. The kernel lets go of it even when the process is killed.
#[derive(Debug)]
pub struct Claim(#[allow(dead_code, reason = "held for its lock")] File);

impl Claim {
    /// Claims `path`, whose folder must be there.
    ///
    /// # Errors
    ///
    /// [`ClaimError`]: the folder is read-only or missing, or another process has the file.
    pub fn take(path: &Path) -> Result<Self, ClaimError> {
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        let beside = PathBuf::from(name);
        super::refuse_special(&beside)?;
        let file = open(&beside).map_err(|cause| FileError::open(&beside, cause))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(ClaimError::InUse { path: path.to_owned() }),
            Err(error) => Err(FileError::open(&beside, error.into()).into()),
        }
    }
}

/// Opens the lock file, or makes it. Nothing is ever written to it: whatever it is linked to stays as it is.
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
    fn a_folder_that_is_not_there_is_said() {
        let refused = Claim::take(Path::new("/nonexistent/ready")).unwrap_err().to_string();
        assert!(refused.starts_with("cannot open /nonexistent/ready.lock: No such file"), "{refused}");
    }
}
