//! Tells the service manager, such as systemd, how far the agent is: sd_notify(3), for units of `Type=notify`.
//!
//! The reporter follows the snapshots on the servers' thread and never delays the loop. It reports that the loop makes progress
//! only while it does, so that a stuck agent is ended by `WatchdogSec=`.

mod report;
mod schedule;

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
use crate::watchdog::Watchdog;
use report::{Message, Report, Reported, one_line};
use schedule::Schedule;
use slotkeeper_semaphore::Moment;

/// Names the service manager's socket.
const SOCKET: &str = "NOTIFY_SOCKET";

/// The longest wait for the last message.
const MAX_SEND_TIME: Duration = Duration::from_secs(1);

/// Reports to the service manager that started this process.
#[derive(Debug)]
pub struct Reporter {
    /// For messages to operators.
    socket: PathBuf,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    /// A stop was requested, or the agent has decided to end.
    stopping: watch::Receiver<bool>,
    watchdog: Arc<Watchdog>,
    naming: Naming,
    reported: Reported,
    schedule: Schedule,
    /// The last message could not be sent, which is logged once.
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
        let schedule = Schedule::new(sd_notify::watchdog_enabled(), clock::now());
        let reported = Reported::default();
        Some(Self { socket, snapshots, stopping, watchdog, naming, reported, schedule, failed: false })
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
                changed = self.stopping.changed() => if changed.is_err() {
                    // The agent has gone, and this thread follows.
                    stop.await;
                    return Ok(());
                },
                Ok(()) = self.snapshots.changed() => self.schedule.stale(),
            }
        }
    }

    /// Sends what is due. Returns when the next message is.
    async fn report(&mut self) -> Moment {
        let now = clock::now();
        let stopping = *self.stopping.borrow_and_update();
        // Clone the snapshot: a borrow would block the agent.
        let snapshot = Arc::clone(&self.snapshots.borrow_and_update());
        let status = self.schedule.take_status(now);
        let status = status.then(|| report::status(&snapshot, stopping, self.naming, now));
        let report = Report { started_up: snapshot.started_up, stopping, status };
        let (mut messages, reported) = self.reported.news(report);
        messages.extend(self.schedule.progress(reported.is_timed(), self.watchdog.silence(now), now));
        if messages.is_empty() {
            self.reported = reported;
        } else {
            self.send(messages, reported).await;
        }
        self.schedule.next(now)
    }

    async fn send(&mut self, messages: Vec<Message>, reported: Reported) {
        // A send blocks while the service manager does not read.
        let sent = tokio::task::spawn_blocking(move || messages.iter().try_for_each(send));
        match sent.await.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(()) => {
                self.failed = false;
                self.reported = reported;
            }
            Err(error) => {
                // It is due again.
                self.schedule.stale();
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
        let _ = is_done.recv_timeout(MAX_SEND_TIME);
    }
}
