//! A unix socket that belongs to this process alone.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rustix::fs::Mode;
use rustix::process::umask;
use tokio::net::{UnixListener, UnixStream};

use crate::files::{self, FileError};
use slotkeeper_serve::Listen;

/// Access for owner and group: other users of the folder must not acquire slots.
const MODE: u32 = 0o660;

/// A listening socket. It is removed when this value is dropped.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
    _lock: File,
}

impl Socket {
    /// Listens at `path`, and creates its folder if it is missing. A socket that a killed process left is replaced.
    ///
    /// # Errors
    ///
    /// Another process listens there, `path` exists and is not a socket, or the folder is not writable.
    pub fn bind(path: &Path) -> anyhow::Result<Self> {
        let is_left = match fs::symlink_metadata(path) {
            Ok(there) if there.file_type().is_socket() => true,
            Ok(_) => return Err(FileError::misplaced(path, "it exists and is not a socket").into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(error).with_context(|| format!("cannot inspect {}", path.display())),
        };
        files::make_folder(path)?;
        let lock = files::lock_beside(path)?;
        if is_left {
            // A killed process left it: the lock proves that no process listens there.
            remove(path).with_context(|| format!("cannot remove the socket {}", path.display()))?;
        }
        let cannot = || format!("cannot listen at {}", path.display());
        // Under another name until it listens. That name belongs to this process, whatever is there.
        let hidden = beside(path);
        remove(&hidden).with_context(|| format!("cannot remove {}", hidden.display()))?;
        // The mode is set at creation: before a later chmod any user could connect, or replace the socket by a link.
        let usual = umask(Mode::from_raw_mode(!MODE & 0o777));
        let listener = UnixListener::bind(&hidden);
        umask(usual);
        let listener = listener.with_context(cannot)?;
        let placed = fs::rename(&hidden, path);
        if placed.is_err() {
            let _ = fs::remove_file(&hidden);
        }
        placed.with_context(cannot)?;
        Ok(Self { listener, path: path.to_owned(), _lock: lock })
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// A short name, since the path of a socket has a limit of about a hundred bytes.
fn beside(path: &Path) -> PathBuf {
    path.with_file_name(format!(".{}", std::process::id()))
}

impl Listen for Socket {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<UnixStream> {
        self.listener.accept().await.map(|(stream, _)| stream)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // If it remains, the next process replaces it.
        let _ = fs::remove_file(&self.path);
    }
}
