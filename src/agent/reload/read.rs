//! The read of a reload. It has a thread of its own, since a file system may not answer and the agent's loop renews leases. There
//! is one read at a time, with a time limit.

use std::future::pending;
use std::mem;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::{JoinError, JoinHandle, spawn_blocking};
use tracing::{info, warn};

use super::compare::keep_fixed;
use super::settle::Fingerprints;
use super::watch::{fingerprints, tls_files};
use super::{Caller, Manner};
use crate::agent::ReadConfig;
use crate::agent::observer::client;
use crate::config::{Config, Faults, Loaded};
use crate::log_events::{RELOAD_QUEUED, RELOAD_READ_STUCK};
use crate::metrics::Metrics;
use slotkeeper_consul::Client;
use slotkeeper_semaphore::Moment;

/// The maximum time for reading the configuration and its TLS files.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(10);

/// A configuration that was read, and a client for it.
pub(in crate::agent) struct Fresh {
    pub(super) config: Config,
    pub(super) client: Client,
    pub(super) warnings: Vec<String>,
}

/// The reason why a reload failed.
#[derive(Debug, thiserror::Error)]
pub(in crate::agent) enum Failed {
    #[error("the configuration is wrong:\n{0}")]
    Config(Faults),
    #[error("{0:#}")]
    Client(anyhow::Error),
    #[error(
        "reading {what} timed out after {} s; it may be on a file system that does not answer, or a pipe without a writer. \
         Until that read ends, the agent cannot read it again and keeps its configuration",
        RELOAD_TIMEOUT.as_secs()
    )]
    TimedOut { what: &'static str },
    #[error("the thread that reads the configuration failed: {0}")]
    Thread(JoinError),
}

/// The result of a read.
pub(in crate::agent) struct Outcome {
    pub(super) manner: Manner,
    pub(super) callers: Vec<Caller>,
    pub(super) read: Result<Fresh, Failed>,
    /// The fingerprints of the files before they were read; none: not known.
    pub(super) seen: Option<Fingerprints>,
}

/// The running reload, if there is one, and the queued one.
#[derive(Default)]
pub(in crate::agent) struct Reload {
    read: Option<Read>,
    /// The queued reload.
    queued: Option<Manner>,
    /// The callers that wait for the queued reload.
    callers: Vec<Caller>,
}

struct Read {
    manner: Manner,
    callers: Vec<Caller>,
    task: JoinHandle<(Result<Fresh, Failed>, Fingerprints)>,
    /// Whether the configuration has been read, and its TLS files are next.
    has_config: Arc<AtomicBool>,
    /// Its time limit; `None` when the read has timed out and its result is discarded.
    until: Option<Moment>,
}

impl Reload {
    /// Starts a read, or queues one behind the running read. Returns the caller if the running read has timed out, since it
    /// may never end.
    pub(super) fn begin(
        &mut self,
        manner: Manner,
        caller: Option<Caller>,
        source: Source,
        now: Moment,
    ) -> Option<Caller> {
        match &self.read {
            Some(Read { until: Some(_), .. }) => {
                self.queued = self.queued.max(Some(manner));
                self.callers.extend(caller);
                info!("{RELOAD_QUEUED}");
                None
            }
            Some(Read { until: None, .. }) => {
                self.queued = self.queued.max(Some(manner));
                warn!("{RELOAD_READ_STUCK}");
                caller
            }
            None => {
                let has_config = Arc::new(AtomicBool::new(false));
                let progress = Arc::clone(&has_config);
                let task = spawn_blocking(move || source.read(&progress));
                let callers = mem::take(&mut self.callers).into_iter().chain(caller).collect();
                let until = Some(now + RELOAD_TIMEOUT);
                self.read = Some(Read { manner, callers, task, has_config, until });
                None
            }
        }
    }

    /// When [`Self::give_up`] is due.
    pub(in crate::agent) fn deadline(&self) -> Option<Moment> {
        self.read.as_ref()?.until
    }

    /// Gives up a read that has timed out.
    pub(super) fn give_up(&mut self, now: Moment) -> Option<(Failed, Vec<Caller>)> {
        let read = self.read.as_mut()?;
        read.until.take_if(|until| *until <= now)?;
        if read.manner == Manner::Automatic {
            // No caller will retry an automatic reload.
            self.queued = self.queued.max(Some(Manner::Automatic));
        }
        let has_config = read.has_config.load(Ordering::Relaxed);
        let what = if has_config { "the TLS files" } else { "the configuration" };
        // The queued read may never start, so its callers get the failure too.
        let callers = mem::take(&mut read.callers).into_iter().chain(self.callers.drain(..));
        Some((Failed::TimedOut { what }, callers.collect()))
    }

    /// The result of the running read, `None` if it had timed out. Waits for ever if there is no read. Cancel-safe.
    pub(in crate::agent) async fn ended(&mut self) -> Option<Outcome> {
        let Some(read) = &mut self.read else { return pending().await };
        let ended = (&mut read.task).await;
        let Read { manner, callers, until, .. } = self.read.take()?;
        until?;
        let (read, seen) = match ended {
            Ok((read, seen)) => (read, Some(seen)),
            Err(error) => (Err(Failed::Thread(error)), None),
        };
        Some(Outcome { manner, callers, read, seen })
    }

    /// Takes the queued reload.
    pub(super) fn take_queued(&mut self) -> Option<Manner> {
        self.queued.take()
    }
}

/// The input of a reload.
pub(super) struct Source {
    /// The files of the configuration itself.
    pub(super) files: Vec<PathBuf>,
    pub(super) read_config: ReadConfig,
    /// The configuration in force.
    pub(super) old: Config,
    pub(super) metrics: Arc<Metrics>,
}

impl Source {
    /// Reads the configuration and its TLS files, with their fingerprints before the read.
    fn read(self, has_config: &AtomicBool) -> (Result<Fresh, Failed>, Fingerprints) {
        let mut seen = fingerprints(self.files.iter().cloned().chain(tls_files(&self.old.consul.tls)));
        let fresh = self.read_config(&mut seen, has_config);
        if let Ok(fresh) = &fresh {
            let counts: Vec<_> = self.files.into_iter().chain(tls_files(&fresh.config.consul.tls)).collect();
            seen.retain(|path, _| counts.contains(path));
        }
        (fresh, seen)
    }

    fn read_config(&self, seen: &mut Fingerprints, has_config: &AtomicBool) -> Result<Fresh, Failed> {
        let Loaded { config, warnings } = (self.read_config)().map_err(Failed::Config)?;
        has_config.store(true, Ordering::Relaxed);
        let mut in_force = config.clone();
        keep_fixed(&self.old, &mut in_force, &mut Vec::new());
        let others = tls_files(&in_force.consul.tls).filter(|path| !seen.contains_key(path));
        seen.extend(fingerprints(others.collect::<Vec<_>>()));
        let client = client(&in_force, &self.metrics).map_err(Failed::Client)?;
        Ok(Fresh { config, client, warnings })
    }
}
