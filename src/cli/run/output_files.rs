//! The files that `run` writes for other programs: the metrics file and the result file.
//!
//! Their paths are checked before anything is acquired. A thread of their own writes them, so that a slow disk delays neither a
//! renewal nor the end. A failed write is logged and ends nothing.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tracing::error;

use super::result::{Outcome, RunResult};
use crate::clock;
use crate::config::no_system_path;
use crate::files::{refuse_special, remove, replace};
use crate::log_events::{FILE_LATE, FILE_NOT_KEPT, FILE_WRITE_FAILED};
use crate::metrics::{Metrics, Run};
use crate::termination::in_time;
use crate::workload::CommandTimes;
use slotkeeper_semaphore::Moment;

/// Interval of writes while the command waits or runs.
const WRITE_INTERVAL: Duration = Duration::from_secs(15);
/// Other users' programs read the files, which hold no secret.
const READABLE: u32 = 0o644;

/// The files, which a thread of their own shares.
#[derive(Debug)]
pub(in crate::cli) struct OutputFiles {
    files: Option<Arc<Mutex<Files>>>,
    times: Arc<CommandTimes>,
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
            has_ended: false,
            metrics: checked(metrics)?.map(MetricsFile::new),
            result: checked(result)?.map(|path| ResultFile {
                path,
                began: clock::now(),
                times: Arc::clone(&times),
            }),
        };
        let any = files.metrics.is_some() || files.result.is_some();
        Ok(Self { files: any.then(|| Arc::new(Mutex::new(files))), times })
    }

    /// The times of the command, which its agent reports.
    pub(super) fn times(&self) -> &Arc<CommandTimes> {
        &self.times
    }

    /// Writes the files now, and then at intervals.
    #[allow(clippy::disallowed_methods, reason = "its thread renews nothing: it may sleep")]
    pub(in crate::cli) fn follow(&self, metrics: &Arc<Metrics>) {
        let Some(files) = self.files.clone() else { return };
        let metrics = Arc::clone(metrics);
        let thread = thread::Builder::new().name("output files".into()).spawn(move || {
            lock(&files).begin(metrics);
            while lock(&files).write() {
                thread::sleep(WRITE_INTERVAL);
            }
        });
        if let Err(error) = thread {
            error!(%error, "{FILE_NOT_KEPT}");
        }
    }

    /// Writes nothing: another process has written the files.
    pub(super) fn leave(&mut self) {
        self.files = None;
    }

    /// Writes the files for the last time.
    pub(super) fn finish(self, outcome: Outcome) {
        let Some(files) = self.files else { return };
        let last = move || {
            lock(&files).end(&outcome);
            Ok(())
        };
        if in_time(last).is_err() {
            error!("{FILE_LATE}; continuing");
        }
    }
}

fn lock(files: &Mutex<Files>) -> MutexGuard<'_, Files> {
    files.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
struct Files {
    metrics: Option<MetricsFile>,
    result: Option<ResultFile>,
    /// They were written for the last time.
    has_ended: bool,
}

impl Files {
    fn begin(&mut self, metrics: Arc<Metrics>) {
        // The result of an earlier run would be taken for that of this one, if it is killed.
        let result = self.result.as_ref().filter(|_| !self.has_ended);
        if let Some(Err(error)) = result.map(|file| remove(&file.path)) {
            report(&error.into());
        }
        self.metrics.iter_mut().for_each(|file| file.metrics = Some(Arc::clone(&metrics)));
    }

    /// Returns whether there is a next time.
    fn write(&mut self) -> bool {
        self.metrics.iter_mut().filter(|_| !self.has_ended).for_each(MetricsFile::write);
        !self.has_ended && self.metrics.is_some()
    }

    fn end(&mut self, outcome: &Outcome) {
        self.metrics.iter_mut().for_each(|file| file.run.ended = Some((outcome.code(), clock::now())));
        self.write();
        self.has_ended = true;
        if let Some(Err(error)) = self.result.as_ref().map(|file| file.write(outcome)) {
            report(&error);
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
