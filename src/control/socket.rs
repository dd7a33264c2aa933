//! A unix socket that is this process's alone.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rustix::fs::Mode;
use rustix::process::umask;
use tokio::net::{UnixListener, UnixStream};

use crate::files::{self, FileError, claim::Claim};
use slotkeeper_serve::Listen;

/// For its owner and group: who shares the folder and is neither must not take slots.
const MODE: u32 = 0o660;

/// One that listens. It is removed with this value.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
    _claim: Claim,
}

impl Socket {
    /// Listens at `path`, whose folder is made where it is missing. What a killed process has left there is replaced.
    ///
    /// # Errors
    ///
    /// Another process listens there, something that is no socket is there, or the folder cannot be written to.
    pub fn bind(path: &Path) -> anyhow::Result<Self> {
        let is_left = match fs::symlink_metadata(path) {
            Ok(there) if there.file_type().is_socket() => true,
            Ok(_) => return Err(FileError::misplaced(path, "it is there and is no socket").into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(error).with_context(|| format!("cannot look at {}", path.display())),
        };
        files::make_folder(path)?;
        let claim = Claim::take(path)?;
        if is_left {
            // What a killed process has left: the claim says that nobody listens there.
            remove(path).with_context(|| format!("cannot remove the socket {}", path.display()))?;
        }
        let cannot = || format!("cannot listen at {}", path.display());
        // Under another name until it listens. The name is this process's own, whatever lies there.
        let hidden = beside(path);
        remove(&hidden).with_context(|| format!("cannot remove {}", hidden.display()))?;
        // It has its mode from its first instant: before a later chmod anybody could connect, or lay a link in its place.
        let usual = umask(Mode::from_raw_mode(!MODE & 0o777));
        let listener = UnixListener::bind(&hidden);
        umask(usual);
        let listener = listener.with_context(cannot)?;
        let placed = fs::rename(&hidden, path);
        if placed.is_err() {
            let _ = fs::remove_file(&hidden);
        }
        placed.with_context(cannot)?;
        Ok(Self { listener, path: path.to_owned(), _claim: claim })
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// A short name, since a socket's path has a hundred bytes or so.
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
        // One that stays is replaced by the next process.
        let _ = fs::remove_file(&self.path);
    }
}
