//! The files that `run` writes for other programs: the metrics file.
//!
//! Their paths are checked before anything is acquired. A thread of their own writes them, so that a slow disk delays neither a
//! renewal nor the end. A failed write is logged and ends nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use tracing::error;

use crate::clock;
use crate::config::no_system_path;
use crate::files::{refuse_special, replace};
use crate::log_events::{FILE_LATE, FILE_NOT_KEPT, FILE_WRITE_FAILED};
use crate::metrics::{Metrics, Run};

/// Interval of writes while the command waits or runs.
const WRITE_INTERVAL: Duration = Duration::from_secs(15);
/// The last write delays the end at most this long.
const LAST_WRITE_TIMEOUT: Duration = Duration::from_secs(1);
/// Other users' programs read the files, which hold no secret.
const READABLE: u32 = 0o644;

/// The files, and their thread as soon as there is something to write.
#[derive(Debug)]
pub(in crate::cli) struct OutputFiles {
    metrics: Option<MetricsFile>,
    thread: Option<Thread>,
}

#[derive(Debug)]
struct Thread {
    /// For messages.
    path: PathBuf,
    orders: Sender<Order>,
    done: Receiver<()>,
}

#[derive(Debug)]
enum Order {
    /// Write these metrics from now on.
    Follow(Arc<Metrics>),
    /// Write for the last time.
    Finish {
        /// The exit code.
        code: u8,
    },
}

impl OutputFiles {
    /// Checks the paths. An empty one means no file.
    ///
    /// # Errors
    ///
    /// Something else than a regular file is at a path. The text names `flag`.
    pub(super) fn check(flag: &str, metrics: Option<PathBuf>) -> Result<Self, String> {
        let path = metrics.map(|path| own_path(flag, &path)).transpose()?.flatten();
        Ok(Self { metrics: path.map(MetricsFile::new), thread: None })
    }

    /// Writes the files now, and then at intervals.
    pub(in crate::cli) fn follow(&mut self, metrics: &Arc<Metrics>) {
        self.order(Order::Follow(Arc::clone(metrics)));
    }

    /// Writes nothing: another process has written the files.
    pub(super) fn leave(&mut self) {
        self.metrics = None;
    }

    /// Writes the files for the last time.
    pub(super) fn finish(mut self, code: u8) {
        self.order(Order::Finish { code });
        let Some(thread) = self.thread else { return };
        if let Err(RecvTimeoutError::Timeout) = thread.done.recv_timeout(LAST_WRITE_TIMEOUT) {
            error!(path = %thread.path.display(), "{FILE_LATE}; continuing");
        }
    }

    /// Starts the thread with the first order, after the process has started the one below it.
    fn order(&mut self, order: Order) {
        if let Some(file) = self.metrics.take() {
            let path = file.path.clone();
            let (orders, receiver) = channel();
            let (done_sender, done) = channel();
            let thread = thread::Builder::new().name("output files".into());
            match thread.spawn(move || write_files(file, &receiver, &done_sender)) {
                Ok(_) => self.thread = Some(Thread { path, orders, done }),
                Err(error) => error!(path = %path.display(), %error, "{FILE_NOT_KEPT}"),
            }
        }
        if let Some(thread) = &self.thread {
            // Without a receiver the thread has ended by a panic, which was printed.
            let _ = thread.orders.send(order);
        }
    }
}

fn write_files(mut file: MetricsFile, orders: &Receiver<Order>, done: &Sender<()>) {
    loop {
        match orders.recv_timeout(WRITE_INTERVAL) {
            Ok(Order::Follow(metrics)) => file.metrics = Some(metrics),
            Ok(Order::Finish { code }) => {
                file.run.ended = Some((code, clock::now()));
                file.write();
                // If nobody waits for it any more, the process is about to end.
                let _ = done.send(());
                return;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        file.write();
    }
}

/// The file of `--metrics-file`.
#[derive(Debug)]
struct MetricsFile {
    path: PathBuf,
    run: Run,
    /// `None` before the agent has started.
    metrics: Option<Arc<Metrics>>,
    failed: bool,
}

impl MetricsFile {
    fn new(path: PathBuf) -> Self {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let run = Run { name, started: clock::now(), ended: None };
        Self { path, run, metrics: None, failed: false }
    }

    /// Writes the file. The first failure is logged.
    fn write(&mut self) {
        if let Err(error) = self.try_write()
            && !std::mem::replace(&mut self.failed, true)
        {
            error!(error = %format_args!("{error:#}"), "{FILE_WRITE_FAILED}; retrying");
        }
    }

    fn try_write(&mut self) -> anyhow::Result<()> {
        let metrics = match &self.metrics {
            Some(metrics) => Arc::clone(metrics),
            None => Arc::new(Metrics::new()?),
        };
        let text = metrics.textfile(&self.run, clock::wall())?;
        replace(&self.path, text.as_bytes(), READABLE)?;
        Ok(())
    }
}

/// The absolute path of a file that `run` may replace. `None` for an empty one.
fn own_path(flag: &str, path: &Path) -> Result<Option<PathBuf>, String> {
    if path.as_os_str().is_empty() {
        return Ok(None);
    }
    let refused = |why: String| format!("{flag} {}: {why}", path.display());
    let absolute = std::path::absolute(path).map_err(|error| refused(error.to_string()))?;
    no_system_path(&absolute).map_err(refused)?;
    refuse_special(&absolute).map_err(|error| refused(error.to_string()))?;
    Ok(Some(absolute))
}
