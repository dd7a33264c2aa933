//! Tells the service manager, such as systemd, how far the agent is: sd_notify(3), for units of `Type=notify`.
//!
//! The reporter follows the snapshots on the servers' thread and never delays the loop. It reports that the loop makes progress
//! only while it does, so that a stuck agent is ended by `WatchdogSec=`.

mod words;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use crate::clock;
use crate::config::Naming;
use crate::http::servers::Stop;
use crate::log_events::SERVICE_MANAGER_NOT_NOTIFIED;
use crate::status::Snapshot;
use crate::termination::in_time;
use crate::watchdog::{HEARTBEAT, Watchdog};
use slotkeeper_semaphore::Moment;

/// Names the service manager's socket.
const SOCKET: &str = "NOTIFY_SOCKET";
/// The shortest time between two reports: a crowd moves many times a second.
const MIN_INTERVAL: Duration = Duration::from_millis(200);
/// The longest time between two reports of an agent that starts, stops or has a watchdog.
const MAX_INTERVAL: Duration = Duration::from_secs(10);
/// While the agent starts or stops, each report extends its time-outs by this much.
const EXTENSION: Duration = Duration::from_secs(30);
/// Reports within `WatchdogSec=`, so that two may be late.
const REPORTS_PER_WATCHDOG: u32 = 3;
/// Without a round of the loop for this long, its progress is not reported. `WatchdogSec=` begins after this time, and both together
/// must end before the lease does.
const MAX_SILENCE: Duration = HEARTBEAT.saturating_mul(2);

/// What the service manager is told. Systemd ignores what it knows already.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Report {
    /// All required slots were held at some time: the start is complete.
    ready: bool,
    /// A stop was requested, or the agent has decided to end.
    stopping: bool,
    status: String,
    /// The loop makes progress, and the time-out of the start or of the stop counts.
    extends: bool,
    /// The loop makes progress, and the service manager has a watchdog for this process.
    watchdog: bool,
}

impl Report {
    fn send(&self) -> io::Result<()> {
        let micros = EXTENSION.as_micros().try_into().unwrap_or(u32::MAX);
        let states = [
            self.ready.then_some(NotifyState::Ready),
            self.stopping.then_some(NotifyState::Stopping),
            Some(NotifyState::Status(&self.status)),
            self.watchdog.then_some(NotifyState::Watchdog),
            self.extends.then_some(NotifyState::ExtendTimeoutUsec(micros)),
        ];
        sd_notify::notify(&states.into_iter().flatten().collect::<Vec<_>>())
    }
}

/// Reports to the service manager that started this process.
#[derive(Debug)]
pub struct Reporter {
    /// For messages to operators.
    socket: PathBuf,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    stopping: watch::Receiver<bool>,
    watchdog: Arc<Watchdog>,
    naming: Naming,
    /// The time of `WatchdogSec=`, if it is meant for this process.
    watchdog_time: Option<Duration>,
    /// The last report that was sent.
    sent: Report,
    /// The last report could not be sent, which is logged once.
    failed: bool,
}

impl Reporter {
    /// A reporter, if a service manager wants reports.
    pub fn of_process(
        snapshots: watch::Receiver<Arc<Snapshot>>,
        stopping: watch::Receiver<bool>,
        watchdog: Arc<Watchdog>,
        naming: Naming,
    ) -> Option<Self> {
        let socket = std::env::var_os(SOCKET).filter(|path| !path.is_empty())?.into();
        let (watchdog_time, sent) = (sd_notify::watchdog_enabled(), Report::default());
        Some(Self { socket, snapshots, stopping, watchdog, naming, watchdog_time, sent, failed: false })
    }

    /// Reports until the servers end.
    ///
    /// # Errors
    ///
    /// None: without a service manager the agent goes on.
    pub async fn run(mut self, mut stop: Stop) -> io::Result<()> {
        let interval = self.watchdog_time.map_or(MAX_INTERVAL, |time| time / REPORTS_PER_WATCHDOG);
        let pause = MIN_INTERVAL.min(interval);
        loop {
            self.report().await;
            let news = async {
                sleep(pause).await;
                // Its end is an occasion too.
                let _ = timeout(interval.saturating_sub(pause), self.snapshots.changed()).await;
            };
            tokio::select! {
                () = &mut stop => {
                    self.report().await;
                    return Ok(());
                }
                changed = self.stopping.changed() => if changed.is_err() {
                    // The agent has gone, and this thread follows.
                    stop.await;
                    return Ok(());
                },
                () = news => {}
            }
        }
    }

    /// Sends what is due.
    async fn report(&mut self) {
        let report = self.compose(clock::now());
        if report == self.sent && !report.extends && !report.watchdog {
            return;
        }
        let message = report.clone();
        // A send blocks while the service manager does not read.
        let sent = tokio::task::spawn_blocking(move || message.send()).await;
        match sent.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(()) => {
                self.failed = false;
                self.sent = report;
            }
            Err(error) if std::mem::replace(&mut self.failed, true) => {
                debug!(%error, socket = %self.socket.display(), "{SERVICE_MANAGER_NOT_NOTIFIED}");
            }
            Err(error) => {
                warn!(%error, socket = %self.socket.display(), "{SERVICE_MANAGER_NOT_NOTIFIED}; retrying");
            }
        }
    }

    fn compose(&mut self, now: Moment) -> Report {
        let stopping = *self.stopping.borrow_and_update();
        // Clone the snapshot: a borrow would block the agent.
        let snapshot = Arc::clone(&self.snapshots.borrow_and_update());
        let (ready, stopping) = (self.sent.ready || snapshot.started_up, self.sent.stopping || stopping);
        let status = words::status(&snapshot, stopping, self.naming, now);
        let alive = self.watchdog.silence(now) < MAX_SILENCE;
        let (extends, watchdog) = (alive && (!ready || stopping), alive && self.watchdog_time.is_some());
        Report { ready, stopping, status, extends, watchdog }
    }
}

/// Reports why this process ends, which `systemctl status` shows. A failure changes nothing else.
pub(crate) fn report_end(why: &str) {
    if std::env::var_os(SOCKET).is_some() {
        let why = words::one_line(why);
        let _ = in_time(move || sd_notify::notify(&[NotifyState::Status(&why)]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_outs_are_extended_well_before_they_end() {
        assert!(MAX_INTERVAL * 2 + MAX_SILENCE <= EXTENSION);
    }
}
