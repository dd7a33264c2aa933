//! A file that is kept as it ought to be by a task of its own, so that a slow disk never delays a renewal.

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{debug, error};

use super::{FileError, make_folder, remove, replace};

/// Failures in a row of which one is logged: one in five minutes.
const SELDOM: u32 = 60;
/// Wait before a failed write is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// The handle on the file.
#[derive(Debug)]
pub struct KeptFile {
    path: PathBuf,
    wanted: watch::Sender<Wanted>,
    done: watch::Receiver<u64>,
    task: JoinHandle<()>,
}

/// What the file ought to be: the content, or no file. Numbered, so that one can wait for it.
#[derive(Clone, Debug, Default)]
struct Wanted {
    number: u64,
    content: Option<String>,
}

impl KeptFile {
    /// Removes what an earlier process left, and begins to keep the file, with this mode.
    ///
    /// # Errors
    ///
    /// The folder cannot be made, or the file in it cannot be removed.
    pub fn start_absent(path: PathBuf, mode: u32) -> Result<Self, FileError> {
        make_folder(&path)?;
        remove(&path)?;
        Ok(Self::start(path, mode))
    }

    /// Begins to keep the file, and leaves it as it is until [`Self::set`] says otherwise.
    pub fn start(path: PathBuf, mode: u32) -> Self {
        let (wanted, wishes) = watch::channel(Wanted::default());
        let (doing, done) = watch::channel(0);
        let task = tokio::spawn(keep(path.clone(), mode, wishes, doing));
        Self { path, wanted, done, task }
    }

    /// Says what the file ought to be; nothing happens where it is that already.
    pub fn set(&self, content: Option<String>) {
        self.wanted.send_if_modified(|wanted| {
            let changes = wanted.content != content;
            if changes {
                wanted.content = content;
                wanted.number += 1;
            }
            changes
        });
    }

    /// The task that keeps it, which ends only with this handle.
    pub fn task(&self) -> &JoinHandle<()> {
        &self.task
    }

    /// Waits until the file is what was last asked for, at most `patience` long.
    pub async fn settled(&mut self, patience: Duration) {
        let number = self.wanted.borrow().number;
        let settled = self.done.wait_for(|done| *done >= number);
        if tokio::time::timeout(patience, settled).await.is_err() {
            error!("{} is not as it should be in time; going on", self.path.display());
        }
    }
}

async fn keep(path: PathBuf, mode: u32, mut wishes: watch::Receiver<Wanted>, doing: watch::Sender<u64>) {
    while wishes.changed().await.is_ok() {
        let mut failures = 0_u32;
        loop {
            let Wanted { number, content } = wishes.borrow_and_update().clone();
            let there = content.is_some();
            let target = path.clone();
            let done = tokio::task::spawn_blocking(move || match content {
                Some(content) => replace(&target, content.as_bytes(), mode),
                None => remove(&target),
            });
            match done.await {
                Ok(Ok(())) => {
                    debug!(path = %path.display(), "file {}", if there { "written" } else { "removed" });
                    doing.send_replace(number);
                    break;
                }
                // Said at once, and then once in a while.
                Ok(Err(failure)) if failures.is_multiple_of(SELDOM) => error!("{failure}; trying again"),
                Ok(Err(_)) => {}
                Err(failure) => error!("{} could not be kept: {failure}", path.display()),
            }
            failures = failures.wrapping_add(1);
            // Tried again after a while, or at once where something else is wanted meanwhile.
            if let Ok(Err(_sender_gone)) = tokio::time::timeout(RETRY, wishes.changed()).await {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn follows_what_is_wanted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ready");
        std::fs::write(&path, "stale").unwrap();
        let mut file = KeptFile::start_absent(path.clone(), 0o644).unwrap();
        assert!(!path.exists());
        for content in ["a", "b"] {
            file.set(Some(content.into()));
            file.settled(PATIENCE).await;
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
        }
        file.set(None);
        file.settled(PATIENCE).await;
        assert!(!path.exists());
    }
}
