//! The files that `run` writes for other programs: the metrics file and the result file.
//!
//! Their paths are checked before anything is acquired. A thread of their own writes them, so that a slow disk delays neither a
//! renewal nor the end. A failed write is logged and ends nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use tracing::error;

use super::result::{Outcome, RunResult};
use crate::clock;
use crate::config::no_system_path;
use crate::files::{refuse_special, remove, replace};
use crate::log_events::{FILE_LATE, FILE_NOT_KEPT, FILE_WRITE_FAILED};
use crate::metrics::{Metrics, Run};
use crate::workload::CommandTimes;
use slotkeeper_semaphore::Moment;

/// Interval of writes while the command waits or runs.
const WRITE_INTERVAL: Duration = Duration::from_secs(15);
/// The last write delays the end at most this long.
const LAST_WRITE_TIMEOUT: Duration = Duration::from_secs(1);
/// Other users' programs read the files, which hold no secret.
const READABLE: u32 = 0o644;

/// The files, and their thread as soon as there is something to write.
#[derive(Debug)]
pub(in crate::cli) struct OutputFiles {
    files: Option<Files>,
    times: Arc<CommandTimes>,
    thread: Option<Thread>,
}

#[derive(Debug)]
struct Thread {
    orders: Sender<Order>,
    done: Receiver<()>,
}

#[derive(Debug)]
enum Order {
    /// Write these metrics from now on.
    Follow(Arc<Metrics>),
    /// Write for the last time.
    Finish(Outcome),
}

/// Where a path is from, for messages, and the path.
type Named = (&'static str, Option<PathBuf>);

impl OutputFiles {
    /// Checks the paths. An empty one means no file.
    ///
    /// # Errors
    ///
    /// Something else than a regular file is at a path. The text names the flag or variable.
    pub(super) fn check(metrics: Named, result: Named) -> Result<Self, String> {
        let checked = |(name, path): Named| match path {
            Some(path) => own_path(name, &path),
            None => Ok(None),
        };
        let times = Arc::new(CommandTimes::default());
        let files = Files {
            metrics: checked(metrics)?.map(MetricsFile::new),
            result: checked(result)?.map(|path| ResultFile {
                path,
                began: clock::now(),
                times: Arc::clone(&times),
            }),
        };
        let any = files.metrics.is_some() || files.result.is_some();
        Ok(Self { files: any.then_some(files), times, thread: None })
    }

    /// The times of the command, which its agent reports.
    pub(super) fn times(&self) -> &Arc<CommandTimes> {
        &self.times
    }

    /// Writes the files now, and then at intervals.
    pub(in crate::cli) fn follow(&mut self, metrics: &Arc<Metrics>) {
        self.order(Order::Follow(Arc::clone(metrics)));
    }

    /// Writes nothing: another process has written the files.
    pub(super) fn leave(&mut self) {
        self.files = None;
    }

    /// Writes the files for the last time.
    pub(super) fn finish(mut self, outcome: Outcome) {
        self.order(Order::Finish(outcome));
        let Some(thread) = self.thread else { return };
        if let Err(RecvTimeoutError::Timeout) = thread.done.recv_timeout(LAST_WRITE_TIMEOUT) {
            error!("{FILE_LATE}; continuing");
        }
    }

    /// Starts the thread with the first order, after the process has started the one below it.
    fn order(&mut self, order: Order) {
        if let Some(files) = self.files.take() {
            let (orders, receiver) = channel();
            let (done_sender, done) = channel();
            let thread = thread::Builder::new().name("output files".into());
            match thread.spawn(move || files.write(&receiver, &done_sender)) {
                Ok(_) => self.thread = Some(Thread { orders, done }),
                Err(error) => error!(%error, "{FILE_NOT_KEPT}"),
            }
        }
        if let Some(thread) = &self.thread {
            // Without a receiver the thread has ended by a panic, which was printed.
            let _ = thread.orders.send(order);
        }
    }
}

#[derive(Debug)]
struct Files {
    metrics: Option<MetricsFile>,
    result: Option<ResultFile>,
}

impl Files {
    /// Writes them until the end.
    fn write(mut self, orders: &Receiver<Order>, done: &Sender<()>) {
        // The result of an earlier run would be taken for that of this one, if it is killed.
        if let Some(Err(error)) = self.result.as_ref().map(|file| remove(&file.path)) {
            report(&error.into());
        }
        loop {
            match orders.recv_timeout(WRITE_INTERVAL) {
                Ok(Order::Follow(metrics)) => {
                    if let Some(file) = &mut self.metrics {
                        file.metrics = Some(metrics);
                    }
                }
                Ok(Order::Finish(outcome)) => {
                    if let Some(file) = &mut self.metrics {
                        file.run.ended = Some((outcome.code(), clock::now()));
                        file.write();
                    }
                    if let Some(Err(error)) = self.result.map(|file| file.write(&outcome)) {
                        report(&error);
                    }
                    // If nobody waits for it any more, the process is about to end.
                    let _ = done.send(());
                    return;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if let Some(file) = &mut self.metrics {
                file.write();
            }
        }
    }
}

fn report(error: &anyhow::Error) {
    error!(error = %format_args!("{error:#}"), "{FILE_WRITE_FAILED}");
}

/// The file of `--result-file`.
#[derive(Debug)]
struct ResultFile {
    path: PathBuf,
    began: Moment,
    times: Arc<CommandTimes>,
}

impl ResultFile {
    fn write(&self, outcome: &Outcome) -> anyhow::Result<()> {
        let result = RunResult::new(self.began, &self.times, outcome, clock::now());
        let text = serde_json::to_string(&result)? + "\n";
        replace(&self.path, text.as_bytes(), READABLE)?;
        Ok(())
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
