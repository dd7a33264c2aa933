//! A claim on a file: while one process has it, no other of ours takes it.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use thiserror::Error;

use super::FileError;

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
        // Never through a link that somebody else has laid.
        let no_follow = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or(0);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(MODE).custom_flags(no_follow);
        let file = options.open(&beside).map_err(|cause| FileError::open(&beside, cause))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(ClaimError::InUse { path: path.to_owned() }),
            Err(error) => Err(FileError::open(&beside, error.into()).into()),
        }
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
