//! The readiness file: there while all required slots are held, gone before the first is given back.
//!
//! A task of its own writes it, so that a slow disk never delays a renewal.

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::watch;
use tracing::{error, info};

use crate::files::{self, FileError};

/// Anybody may read it; it holds no secret.
const MODE: u32 = 0o644;
/// Wait before a failed write is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// The handle on the file.
#[derive(Debug)]
pub struct ReadinessFile {
    wanted: watch::Sender<Wanted>,
    done: watch::Receiver<u64>,
}

/// What the file ought to be: the content, or no file. Numbered, so that one can wait for it.
#[derive(Clone, Debug, Default)]
struct Wanted {
    number: u64,
    content: Option<String>,
}

impl ReadinessFile {
    /// Removes what an earlier process left, and begins to keep the file.
    ///
    /// # Errors
    ///
    /// The folder cannot be made, or the file in it cannot be removed.
    pub fn start(path: PathBuf) -> Result<Self, FileError> {
        files::make_folder(&path)?;
        files::remove(&path)?;
        let (wanted, wishes) = watch::channel(Wanted::default());
        let (doing, done) = watch::channel(0);
        tokio::spawn(keep(path, wishes, doing));
        Ok(Self { wanted, done })
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

    /// Waits until the file is what was last asked for, at most `patience` long.
    pub async fn settled(&mut self, patience: Duration) {
        let number = self.wanted.borrow().number;
        let settled = self.done.wait_for(|done| *done >= number);
        if tokio::time::timeout(patience, settled).await.is_err() {
            error!("the readiness file's folder does not answer; going on without it");
        }
    }
}

async fn keep(path: PathBuf, mut wishes: watch::Receiver<Wanted>, doing: watch::Sender<u64>) {
    while wishes.changed().await.is_ok() {
        loop {
            let Wanted { number, content } = wishes.borrow_and_update().clone();
            let there = content.is_some();
            let target = path.clone();
            let done = tokio::task::spawn_blocking(move || match content {
                Some(content) => files::replace(&target, content.as_bytes(), MODE),
                None => files::remove(&target),
            });
            match done.await {
                Ok(Ok(())) => {
                    info!(path = %path.display(), "readiness file {}", if there { "written" } else { "removed" });
                    doing.send_replace(number);
                    break;
                }
                Ok(Err(failure)) => error!("the readiness file is not as it should be: {failure}"),
                Err(failure) => error!("the readiness file could not be kept: {failure}"),
            }
            // Tried again after a while, or at once where something else is wanted meanwhile.
            if let Ok(Err(_sender_gone)) = tokio::time::timeout(RETRY, wishes.changed()).await {
                return;
            }
        }
    }
}
