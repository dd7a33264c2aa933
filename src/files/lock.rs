//! Locks on files, by which no two agents use the same one.

use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::OFlags;
use thiserror::Error;

use super::{FileError, custom_flags, refuse_special, remove};

/// Only this user needs a locked file: a session's id allows to act in its name, as far as a token does.
const MODE: u32 = 0o600;
/// The lock of a killed process lasts until a child of it between fork and exec has closed the file.
const ATTEMPTS: u32 = 5;
const ATTEMPT_EVERY: Duration = Duration::from_millis(20);

/// Why a file was not locked.
#[derive(Debug, Error)]
pub enum LockError {
    /// It cannot be opened.
    #[error(transparent)]
    File(#[from] FileError),
    /// Another process has locked it.
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

/// Opens or creates a file, and locks it. The kernel unlocks it when the process ends, also by SIGKILL.
///
/// # Errors
///
/// The folder is read-only or missing, something else than a regular file is there, or another process has locked it.
#[allow(clippy::disallowed_methods, reason = "files are locked on threads that may block")]
pub fn lock(path: &Path) -> Result<File, LockError> {
    refuse_special(path)?;
    let cannot = |cause| FileError::open(path, cause);
    for _ in 0..ATTEMPTS {
        let file = open(path).map_err(cannot)?;
        match file.try_lock() {
            Ok(()) if is_at(&file, path) => return Ok(file),
            // The process that had it has removed it meanwhile.
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => sleep(ATTEMPT_EVERY),
            Err(TryLockError::Error(cause)) => return Err(cannot(cause).into()),
        }
    }
    Err(in_use(path, path))
}

/// Locks the lock file beside a file that is replaced by renames, or that is a socket.
///
/// # Errors
///
/// As [`lock`].
pub fn lock_beside(path: &Path) -> Result<File, LockError> {
    let beside = beside(path);
    // As another user may have planted it, of a file that somebody locks.
    if beside.symlink_metadata().is_ok_and(|about| about.nlink() > 1) {
        remove(&beside)?;
    }
    lock(&beside).map_err(|error| match error {
        LockError::InUse { pid, .. } => LockError::InUse { path: path.to_owned(), pid },
        LockError::File(_) => error,
    })
}

/// The lock file beside a file.
pub fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}

/// Checks that no agent has locked `file`, which `path` is used with.
///
/// # Errors
///
/// [`LockError::InUse`].
pub fn check_unlocked(file: &Path, path: &Path) -> Result<(), LockError> {
    // Shared and for an instant, so that an agent that starts now is not refused.
    let tried = File::open(file).map(|file| file.try_lock_shared());
    if matches!(tried, Ok(Err(TryLockError::WouldBlock))) { Err(in_use(file, path)) } else { Ok(()) }
}

/// Whether the path leads to the open file.
pub fn is_at(file: &File, path: &Path) -> bool {
    let place = |about: fs::Metadata| (about.dev(), about.ino());
    let there = path.symlink_metadata().map(place);
    file.metadata().map(place).is_ok_and(|own| there.is_ok_and(|there| there == own))
}

/// The process that has locked `file` is looked up by the inode alone: some file systems have another device in `/proc/locks`.
fn in_use(file: &Path, path: &Path) -> LockError {
    let inode = file.metadata().map_or(0, |about| about.ino()).to_string();
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let pid = locks.lines().find_map(|line| {
        // `1: FLOCK  ADVISORY  WRITE 1234 00:2f:5678 0 EOF`
        let fields: Vec<_> = line.split_ascii_whitespace().collect();
        let [_, "FLOCK", _, "WRITE", owner, place, ..] = fields[..] else { return None };
        owner.parse().ok().filter(|_| place.rsplit(':').next() == Some(&inode))
    });
    LockError::InUse { path: path.to_owned(), pid }
}

/// Lets only this user read and write the file, as far as the file system has modes.
pub fn make_private(file: &File) {
    let _ = file.set_permissions(Permissions::from_mode(MODE));
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    // Without following another user's link, and without blocking on a pipe.
    let flags = custom_flags(OFlags::NOFOLLOW | OFlags::NONBLOCK);
    options.read(true).write(true).mode(MODE).custom_flags(flags);
    match options.clone().create_new(true).open(path) {
        // The umask has reduced the mode above.
        Ok(made) => {
            make_private(&made);
            Ok(made)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => options.open(path),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_locked_once_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ready");
        check_unlocked(&beside(&path), &path).unwrap();
        let first = lock_beside(&path).unwrap();
        let own = format!("ready is in use by another agent that runs now (process {})", std::process::id());
        for refused in [lock_beside(&path).unwrap_err(), check_unlocked(&beside(&path), &path).unwrap_err()] {
            assert!(refused.to_string().contains(&own), "{refused}");
        }
        drop(first);
        lock_beside(&path).unwrap();
    }

    #[test]
    fn a_folder_that_is_not_there_is_said() {
        let refused = lock_beside(Path::new("/nonexistent/ready")).unwrap_err().to_string();
        assert!(refused.starts_with("cannot open /nonexistent/ready.lock: No such file"), "{refused}");
    }
}
