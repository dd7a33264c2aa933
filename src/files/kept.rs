//! A file that a task of its own keeps up to date, so that a slow disk never delays a renewal.

use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::error;

use crate::log_events::{FILE_LATE, FILE_NOT_KEPT, FILE_WRITE_FAILED};

/// Of so many failures in a row one is logged: one in five minutes.
const FAILURES_PER_LOG_LINE: u32 = 60;
/// Time from a failure to the next attempt.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The handle of the file. Dropping it leaves the file as it is.
#[derive(Debug)]
pub struct KeptFile<T> {
    path: PathBuf,
    wanted: watch::Sender<Wanted<T>>,
    done: watch::Receiver<u64>,
    task: JoinHandle<()>,
}

/// The wanted content, `None` for no file. Numbered, so that the agent can wait for it. Before number 1 nothing is wanted.
#[derive(Clone, Debug)]
struct Wanted<T> {
    number: u64,
    content: Option<T>,
}

impl<T: Clone + PartialEq + Send + Sync + 'static> KeptFile<T> {
    /// Begins to keep the file by `write`, which may block, is called with each wanted content, and again at each [`Self::look`].
    pub fn start<E: Display + Send + 'static>(
        path: PathBuf,
        write: impl FnMut(Option<&T>) -> Result<(), E> + Send + 'static,
    ) -> Self {
        let (wanted, changes) = watch::channel(Wanted { number: 0, content: None });
        let (done_sender, done) = watch::channel(0);
        let task = tokio::spawn(keep(path.clone(), write, changes, done_sender));
        Self { path, wanted, done, task }
    }

    /// Sets the wanted content. `None`: no file.
    pub fn set(&self, content: Option<T>) {
        self.wanted.send_if_modified(|wanted| {
            let changes = wanted.content != content;
            if changes {
                *wanted = Wanted { number: wanted.number + 1, content };
            }
            changes
        });
    }

    /// Compares the file with the wanted content, and writes it again if another process has changed or removed it.
    pub fn look(&self) {
        self.wanted.send_if_modified(|wanted| {
            let is_kept = wanted.number > 0;
            wanted.number += u64::from(is_kept);
            is_kept
        });
    }

    /// The task, which ends only with this handle.
    pub fn task(&self) -> &JoinHandle<()> {
        &self.task
    }

    /// Waits until the file has the wanted content.
    pub async fn settled(&mut self, timeout: Duration) {
        let number = self.wanted.borrow().number;
        let settled = self.done.wait_for(|done| *done >= number);
        if tokio::time::timeout(timeout, settled).await.is_err() {
            error!(path = %self.path.display(), "{FILE_LATE}; continuing");
        }
    }
}

async fn keep<T: Clone + Send + Sync + 'static, E: Display + Send + 'static>(
    path: PathBuf,
    mut write: impl FnMut(Option<&T>) -> Result<(), E> + Send + 'static,
    mut changes: watch::Receiver<Wanted<T>>,
    done: watch::Sender<u64>,
) {
    let mut failures = 0_u32;
    loop {
        let change = changes.changed();
        let is_open = match failures {
            0 => change.await.is_ok(),
            _ => tokio::time::timeout(RETRY_INTERVAL, change).await.unwrap_or(Ok(())).is_ok(),
        };
        if !is_open {
            return;
        }
        let Wanted { number, content } = changes.borrow_and_update().clone();
        let work = tokio::task::spawn_blocking(move || {
            let made = write(content.as_ref());
            (write, made)
        });
        match work.await {
            Ok((back, Ok(()))) => {
                (write, failures) = (back, 0);
                done.send_replace(number);
            }
            Ok((back, Err(failure))) => {
                write = back;
                if failures.is_multiple_of(FAILURES_PER_LOG_LINE) {
                    error!(error = %failure, "{FILE_WRITE_FAILED}; retrying");
                }
                failures = failures.wrapping_add(1).max(1);
            }
            Err(failure) => return error!(path = %path.display(), error = %failure, "{FILE_NOT_KEPT}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[tokio::test]
    async fn the_latest_content_wins_and_a_failed_write_is_repeated() {
        let written = Arc::new(Mutex::new(Vec::new()));
        let to = Arc::clone(&written);
        let mut fails = true;
        let mut file = KeptFile::start("x".into(), move |content: Option<&u32>| {
            to.lock().unwrap().push(content.copied());
            if std::mem::take(&mut fails) { Err("full") } else { Ok(()) }
        });
        // Before there is any content, the file of an earlier process stays.
        file.look();
        file.set(None);
        tokio::task::yield_now().await;
        assert_eq!(*written.lock().unwrap(), []);
        for content in 0..9 {
            file.set(Some(content));
        }
        file.settled(RETRY_INTERVAL * 2).await;
        assert_eq!(*written.lock().unwrap(), [Some(8), Some(8)]);
        file.look();
        file.settled(RETRY_INTERVAL).await;
        file.set(None);
        file.settled(RETRY_INTERVAL).await;
        assert_eq!(written.lock().unwrap()[2..], [Some(8), None]);
    }
}
