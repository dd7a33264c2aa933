//! Tells the service manager, such as systemd, how far the agent is: sd_notify(3), for units of `Type=notify`.
//!
//! The reporter follows the snapshots on the servers' thread and never delays the loop. It reports that the loop makes progress
//! only while it does, so that a stuck agent is ended by `WatchdogSec=`.

mod report;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::sync::watch;
use tracing::{debug, warn};

use crate::clock;
use crate::config::Naming;
use crate::http::servers::Stop;
use crate::log_events::SERVICE_MANAGER_NOT_NOTIFIED;
use crate::status::Snapshot;
use crate::watchdog::{HEARTBEAT, Watchdog};
use report::{Message, Report, Told, one_line};
use slotkeeper_semaphore::Moment;

/// Names the service manager's socket.
const SOCKET: &str = "NOTIFY_SOCKET";

/// The text of the status changes at most this often: a crowd moves many times a second.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);
/// While the agent starts or stops, its time-outs are extended by this much, and this often.
const EXTENSION: Duration = Duration::from_secs(30);
const EXTENSION_INTERVAL: Duration = Duration::from_secs(10);
/// Reports within `WatchdogSec=`, so that two may be late.
const REPORTS_PER_WATCHDOG: u32 = 3;
const MIN_WATCHDOG_INTERVAL: Duration = Duration::from_millis(100);
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The longest wait for the last message.
const MAX_TIME: Duration = Duration::from_secs(1);

/// What the snapshots do not say about the agent's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lifecycle {
    /// The number of reloads that have begun.
    pub reloads: u64,
    /// A reload is running.
    pub reloading: bool,
    /// A stop was requested, or the agent has decided to end.
    pub stopping: bool,
}

/// Reports to the service manager that started this process.
#[derive(Debug)]
pub struct Reporter {
    /// For messages to operators.
    socket: PathBuf,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    lifecycle: watch::Receiver<Lifecycle>,
    watchdog: Arc<Watchdog>,
    naming: Naming,
    /// The time between two reports to the service manager's watchdog, if it has one for this process.
    watchdog_interval: Option<Duration>,
    told: Told,
    /// The status was not computed from the last snapshot.
    is_stale: bool,
    status_due: Moment,
    extension_due: Moment,
    watchdog_due: Moment,
    /// The last message could not be sent, which is logged once.
    failed: bool,
}

impl Reporter {
    /// A reporter, if a service manager wants reports.
    pub fn of_process(
        snapshots: watch::Receiver<Arc<Snapshot>>,
        lifecycle: watch::Receiver<Lifecycle>,
        watchdog: Arc<Watchdog>,
        naming: Naming,
    ) -> Option<Self> {
        let socket = std::env::var_os(SOCKET)?.into();
        let interval = |within: Duration| (within / REPORTS_PER_WATCHDOG).max(MIN_WATCHDOG_INTERVAL);
        let now = clock::now();
        Some(Self {
            socket,
            snapshots,
            lifecycle,
            watchdog,
            naming,
            watchdog_interval: sd_notify::watchdog_enabled().map(interval),
            told: Told::default(),
            is_stale: true,
            status_due: now,
            extension_due: now,
            watchdog_due: now,
            failed: false,
        })
    }

    /// Reports until the servers end.
    ///
    /// # Errors
    ///
    /// None: without a service manager the agent goes on.
    pub async fn run(mut self, mut stop: Stop) -> io::Result<()> {
        loop {
            let due = self.report().await;
            let pause = tokio::time::sleep(due.since(clock::now()));
            tokio::select! {
                () = &mut stop => {
                    self.report().await;
                    return Ok(());
                }
                () = pause => {}
                changed = self.lifecycle.changed() => if changed.is_err() {
                    // The agent has gone, and this thread follows.
                    stop.await;
                    return Ok(());
                },
                Ok(()) = self.snapshots.changed() => self.is_stale = true,
            }
        }
    }

    /// Sends what is due. Returns when the next message is.
    async fn report(&mut self) -> Moment {
        let now = clock::now();
        let lifecycle = *self.lifecycle.borrow_and_update();
        // Clone the snapshot: a borrow would block the agent.
        let snapshot = Arc::clone(&self.snapshots.borrow_and_update());
        let status = (self.is_stale && self.status_due <= now).then(|| {
            self.is_stale = false;
            self.status_due = now + STATUS_INTERVAL;
            report::status(&snapshot, lifecycle, self.naming, now)
        });
        let report = Report { started_up: snapshot.started_up, lifecycle, status };
        let (mut messages, told) = self.told.news(report);
        if self.watchdog.is_alive(now) {
            if let Some(interval) = self.watchdog_interval.filter(|_| self.watchdog_due <= now) {
                self.watchdog_due = now + interval;
                messages.push(Message::Watchdog);
            }
            if told.is_timed() && self.extension_due <= now {
                self.extension_due = now + EXTENSION_INTERVAL;
                messages.push(Message::Extend(EXTENSION));
                // The ages in it.
                self.is_stale = true;
            }
        }
        if messages.is_empty() {
            self.told = told;
        } else {
            self.send(messages, told).await;
        }
        let status = self.is_stale.then_some(self.status_due);
        let extension = self.told.is_timed().then_some(self.extension_due);
        let watchdog = self.watchdog_interval.map(|_| self.watchdog_due);
        let retry = self.failed.then_some(now + RETRY_INTERVAL);
        let due = [status, extension, watchdog, retry].into_iter().flatten();
        due.fold(now + HEARTBEAT, Moment::min)
    }

    async fn send(&mut self, messages: Vec<Message>, told: Told) {
        // A send blocks while the service manager does not read.
        let sent = tokio::task::spawn_blocking(move || messages.iter().try_for_each(send));
        match sent.await.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(()) => {
                self.failed = false;
                self.told = told;
            }
            Err(error) => {
                // The status that was not sent.
                self.is_stale = true;
                if std::mem::replace(&mut self.failed, true) {
                    debug!(%error, socket = %self.socket.display(), "{SERVICE_MANAGER_NOT_NOTIFIED}");
                } else {
                    warn!(%error, socket = %self.socket.display(), "{SERVICE_MANAGER_NOT_NOTIFIED}; retrying");
                }
            }
        }
    }
}

fn send(message: &Message) -> io::Result<()> {
    match message {
        Message::Ready => sd_notify::notify(&[NotifyState::Ready]),
        // `Type=notify-reload` compares the time with that of its signal. The service manager's clock is not the leases'.
        Message::Reloading => {
            sd_notify::notify(&[NotifyState::Reloading, NotifyState::monotonic_usec_now()?])
        }
        Message::Stopping => sd_notify::notify(&[NotifyState::Stopping]),
        Message::Status(text) => sd_notify::notify(&[NotifyState::Status(text)]),
        Message::Watchdog => sd_notify::notify(&[NotifyState::Watchdog]),
        Message::Extend(time) => {
            let micros = u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
            sd_notify::notify(&[NotifyState::ExtendTimeoutUsec(micros)])
        }
    }
}

/// Reports why this process ends, which `systemctl status` shows. A failure changes nothing else.
pub(crate) fn report_end(why: &str) {
    if std::env::var_os(SOCKET).is_none() {
        return;
    }
    let message = Message::Status(one_line(why));
    let (done, is_done) = channel();
    let sender = thread::Builder::new().name("last report".into()).spawn(move || {
        // After the timeout the receiver is gone.
        let _ = done.send(send(&message));
    });
    if sender.is_ok() {
        let _ = is_done.recv_timeout(MAX_TIME);
    }
}
