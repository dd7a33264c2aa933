//! The agent's side of a command under its guard.

use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener as StdUnixListener};
use std::os::unix::process::CommandExt;
use std::pin::Pin;
use std::process::ExitStatus;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, getpid, kill_process_group, set_child_subreaper};
use tokio::net::{UnixListener, UnixStream};
use tokio::process::Child;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Sleep, sleep, timeout};
use tracing::{error, warn};
use uuid::Uuid;

use super::exec::THIS_PROGRAM;
use super::guard::MAX_RELEASE;
use super::guard::fence::Why;
use super::guard::holdings::Holdings;
use super::guard::tree;
use super::guard::wire::{self, Offer, Order, Outcome, Reader, Report, Writer};
use super::hooks::Groups;
use super::{open_files, terminal};
use crate::console;
use crate::log_events::{GUARD_GONE, GUARD_NOT_CONNECTED, GUARD_SILENT, GUARD_START_STUCK, GUARD_STUCK};
use slotkeeper_semaphore::Moment;

/// Orders that may wait for the guard. A guard that reads none is suspended, and its lease expires.
const MAX_QUEUED_ORDERS: usize = 64;
/// Time for the start of the guard, on a busy machine too. The lease is renewed meanwhile.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for the guard to end a command, in addition to the command's own time.
const GUARD_GRACE: Duration = Duration::from_secs(1);
/// Time for the last order to a guard, which waits for it.
const DISMISS_TIMEOUT: Duration = Duration::from_millis(100);
/// Interval of looks for remains of a command whose guard has gone.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// When a command had its slots, ran and ended, for the process that reports it.
#[derive(Debug, Default)]
pub struct CommandTimes {
    /// All required slots were held, and the command was about to start.
    pub acquired: OnceLock<Moment>,
    /// It ran.
    pub started: OnceLock<Moment>,
    /// It had ended with this code; none if its end was not seen.
    pub ended: OnceLock<(Moment, Option<u8>)>,
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Command {
    /// Program and arguments.
    pub words: Vec<OsString>,
    /// Time from SIGTERM to SIGKILL.
    pub kill_after: Duration,
    /// Time to end after a signal from outside. `None`: unlimited.
    pub stop_after: Option<Duration>,
    /// Where its times are reported.
    pub times: Arc<CommandTimes>,
}

/// An event of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandEvent {
    /// It runs.
    Started,
    /// It was not started, and its guard has ended. Why.
    NotStarted(String),
    /// It was suspended from its terminal.
    Suspended,
    /// The guard stops it.
    Stopping(Why),
    /// No process is left. The outcome is `None` if the guard was killed before it told.
    Gone(Option<Outcome>),
}

/// A command, its guard, and all descendants. [`Running::next`] has to be polled until the command has ended. The guard stays until it
/// is dismissed.
#[derive(Debug)]
pub struct Running {
    guard: Child,
    link: Link,
    orders: mpsc::Sender<Order>,
    /// The command's group, while its first process is not reaped.
    group: Option<Pid>,
    /// The guard has reported the start.
    started: bool,
    /// Why it was not started, where the guard cannot tell.
    failed: Option<String>,
    outcome: Option<Outcome>,
    /// The guard has reported that no process is left.
    gone: bool,
    /// The unexpected end of the guard was logged.
    said_gone: bool,
    kill_after: Duration,
    /// When the command has to have ended, whatever its guard does.
    lease_ends: Moment,
    stop_requested: bool,
    /// The holdings that the guard knows.
    holdings: Option<Holdings>,
    /// Descendants of the agent that do not belong to the command.
    hooks: Groups,
}

/// The connection with the guard.
#[derive(Debug)]
enum Link {
    /// The guard has not connected yet.
    Awaited(Awaited),
    /// Reports of the guard, and the task that sends orders.
    Open(Reader, JoinHandle<bool>),
    /// It has ended.
    Closed,
}

#[derive(Debug)]
struct Awaited {
    listener: UnixListener,
    /// The guard's process.
    guard: Option<u32>,
    /// When the wait times out.
    until: Pin<Box<Sleep>>,
    /// Orders for the connected guard.
    orders: mpsc::Receiver<Order>,
}

impl Running {
    /// Starts the guard, with `environment` in addition to the agent's, under a lease that ends then. It does not wait for the
    /// guard: [`Running::next`] tells whether the command runs, and the agent renews its lease meanwhile.
    ///
    /// # Errors
    ///
    /// The guard cannot be started.
    pub(crate) fn start(
        command: &Command,
        environment: Vec<(String, String)>,
        lease_ends: Moment,
        hooks: Groups,
    ) -> anyhow::Result<Self> {
        // If the guard is killed, its descendants become children of this process, which ends them.
        set_child_subreaper(Some(getpid()))?;
        if let Some(why) = tree::unfit_proc() {
            anyhow::bail!(why);
        }
        if terminal::is_there() {
            // A log line must not suspend this process while the command has the terminal (`stty tostop`).
            terminal::may_be_set()?;
        }
        // An abstract socket leaves no file behind and ends with this process.
        let name = format!("slotkeeper-{}", Uuid::new_v4());
        let listener = StdUnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)
            .context("cannot create the guard's socket")?;
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        let guard = guard(command, &name, environment).spawn().context("cannot start the guard")?;
        let (orders, waiting) = mpsc::channel(MAX_QUEUED_ORDERS);
        let until = Box::pin(sleep(START_TIMEOUT));
        let link = Link::Awaited(Awaited { listener, guard: guard.id(), until, orders: waiting });
        Ok(Self {
            guard,
            link,
            orders,
            group: None,
            started: false,
            failed: None,
            outcome: None,
            gone: false,
            said_gone: false,
            kill_after: command.kill_after,
            lease_ends,
            stop_requested: false,
            holdings: None,
            hooks,
        })
    }

    /// Passes a renewed lease to the guard.
    pub fn lease(&mut self, ends: Moment) {
        if ends > self.lease_ends {
            self.lease_ends = ends;
            // A guard that connects later gets it then.
            if matches!(self.link, Link::Open(..)) {
                self.order(Order::Lease(millis(ends)));
            }
        }
    }

    /// Passes what the guard releases if this process is killed, where it has changed.
    pub(crate) fn holds(&mut self, holdings: Holdings) {
        if self.holdings.as_ref() == Some(&holdings) {
            return;
        }
        let told = match self.link {
            Link::Awaited(_) => true,
            // If the queue is full, the next round tries again; the order of the lease logs it.
            Link::Open(..) => self.orders.try_send(Order::Holdings(Box::new(holdings.clone()))).is_ok(),
            Link::Closed => return,
        };
        if told {
            self.holdings = Some(holdings);
        }
    }

    /// Whether the guard takes no orders yet.
    pub fn awaits_guard(&self) -> bool {
        !self.started && !matches!(self.link, Link::Open(..))
    }

    /// The guard's process, until it is reaped.
    pub fn guard(&self) -> Option<u32> {
        self.guard.id()
    }

    /// When the command has to have ended, whatever its guard does.
    pub fn deadline(&self) -> Moment {
        self.lease_ends
    }

    /// Passes a signal on to the command's group.
    pub fn signal(&self, signal: i32) {
        self.order(Order::Signal(signal));
    }

    /// Stops the command. Further calls change nothing. If the guard does not act, both are killed at the deadline.
    pub fn stop(&mut self, now: Moment) {
        if !std::mem::replace(&mut self.stop_requested, true) {
            if let Link::Awaited(_) = self.link {
                // The guard has not got the order to start the command.
                let _ = self.guard.start_kill();
                return;
            }
            self.order(Order::Stop);
            self.lease_ends = self.lease_ends.min(now + self.kill_after + GUARD_GRACE);
        }
    }

    /// The job of this process was continued.
    pub fn resume(&self) {
        self.order(Order::Continue);
    }

    /// Kills the command and its guard, after the guard has missed the deadline.
    pub fn kill(&mut self) {
        if self.started {
            error!("{GUARD_STUCK}; killing both");
        } else {
            error!("{GUARD_START_STUCK}; killing the guard");
        }
        self.kill_group();
        // `next` reaps a guard that has ended already.
        let _ = self.guard.start_kill();
        // It is killed once.
        self.lease_ends = Moment::from_boot(Duration::MAX);
    }

    /// The next event. Cancel-safe. Not to be called after [`CommandEvent::Gone`] or [`CommandEvent::NotStarted`].
    pub async fn next(&mut self) -> CommandEvent {
        loop {
            match &mut self.link {
                Link::Awaited(awaited) => match awaited.connected(&mut self.guard).await {
                    Ok(stream) => self.begin(stream),
                    Err(failure) => {
                        self.failed = Some(format!("{failure:#}"));
                        let _ = self.guard.start_kill();
                        self.link = Link::Closed;
                    }
                },
                Link::Open(reports, _) => {
                    let report = reports.next().await;
                    if let Some(told) = self.reported(report) {
                        return told;
                    }
                }
                Link::Closed => break,
            }
        }
        let ended = self.guard.wait().await;
        if !self.gone {
            if self.started && !std::mem::replace(&mut self.said_gone, true) {
                warn!(status = %describe(ended), "{GUARD_GONE}; ending the command");
            }
            // Its descendants are children of this process now.
            end_all(&self.hooks).await;
        }
        if !self.started {
            return CommandEvent::NotStarted(self.why_not_started());
        }
        CommandEvent::Gone(self.outcome)
    }

    fn why_not_started(&mut self) -> String {
        if self.stop_requested {
            return "it was stopped before it could begin".to_owned();
        }
        let failed = self.failed.take();
        failed.unwrap_or_else(|| "its guard could not start it; see the error above".to_owned())
    }

    /// The guard has connected. Its first order starts the command.
    fn begin(&mut self, stream: UnixStream) {
        let Link::Awaited(awaited) = std::mem::replace(&mut self.link, Link::Closed) else { return };
        let (reports, writer) = wire::split(stream);
        let holdings = self.holdings.clone().map(Box::new);
        let first = Order::Begin { lease_ends: millis(self.lease_ends), holdings };
        self.link = Link::Open(reports, tokio::spawn(pass_on(first, awaited.orders, writer)));
    }

    /// Handles a report of the guard, or the end of the connection.
    fn reported(&mut self, report: Option<Report>) -> Option<CommandEvent> {
        match report {
            Some(Report::Started(pid)) => {
                (self.group, self.started) = (Pid::from_raw(pid), true);
                return Some(CommandEvent::Started);
            }
            Some(Report::Suspended) => return Some(CommandEvent::Suspended),
            Some(Report::Stopping(why)) => return Some(CommandEvent::Stopping(why)),
            Some(Report::Ended(outcome)) => {
                // It is reaped: its number may be reused.
                self.group = None;
                self.outcome = Some(outcome);
            }
            Some(Report::Gone) => {
                self.gone = true;
                return Some(CommandEvent::Gone(self.outcome));
            }
            None => {
                self.end_link();
                if !self.gone {
                    // A guard without a connection, or with invalid reports, is not reliable.
                    let _ = self.guard.start_kill();
                }
            }
        }
        None
    }

    /// Whether the guard is still there after the end of the command.
    pub(crate) fn has_guard(&self) -> bool {
        self.gone && matches!(self.link, Link::Open(..))
    }

    /// Lets the guard of an ended command go, and leaves it these offers. Returns whether it got them.
    pub(crate) async fn dismiss(&mut self, offers: Vec<Offer>) -> bool {
        let queued = self.order(Order::Over(offers));
        // The channel ends with its sender.
        self.orders = mpsc::channel(1).0;
        match std::mem::replace(&mut self.link, Link::Closed) {
            Link::Open(_, writer) => {
                queued && timeout(DISMISS_TIMEOUT, writer).await.is_ok_and(|sent| sent.unwrap_or(false))
            }
            Link::Awaited(_) | Link::Closed => false,
        }
    }

    /// Waits for the end of the guard's process.
    pub(crate) async fn guard_ended(&mut self) {
        let _ = timeout(MAX_RELEASE, self.guard.wait()).await;
    }

    fn end_link(&mut self) {
        if let Link::Open(_, writer) = std::mem::replace(&mut self.link, Link::Closed) {
            writer.abort();
        }
    }

    fn kill_group(&self) {
        if let Some(group) = self.group {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    /// Returns whether the order is queued.
    fn order(&self, order: Order) -> bool {
        let sent = self.orders.try_send(order);
        if let Err(error) = &sent {
            warn!(%error, "{GUARD_SILENT}");
        }
        sent.is_ok()
    }
}

impl Drop for Running {
    /// The guard sees the end of the connection and ends the command.
    fn drop(&mut self) {
        self.end_link();
    }
}

impl Awaited {
    /// Waits for the guard. Cancel-safe.
    async fn connected(&mut self, guard: &mut Child) -> anyhow::Result<UnixStream> {
        tokio::select! {
            stream = accept(&self.listener, self.guard) => Ok(stream?),
            ended = guard.wait() => anyhow::bail!("its guard ended at once: {}", describe(ended)),
            () = self.until.as_mut() => anyhow::bail!("{GUARD_NOT_CONNECTED} ({START_TIMEOUT:?})"),
        }
    }
}

/// The process of a guard, which connects to the socket of that name.
fn guard(command: &Command, socket: &str, environment: Vec<(String, String)>) -> tokio::process::Command {
    let mut guard = std::process::Command::new(THIS_PROGRAM);
    guard.arg("guard").arg("--socket").arg(socket);
    guard.arg("--kill-after").arg(command.kill_after.as_millis().to_string());
    if let Some(time) = command.stop_after {
        guard.arg("--stop-after").arg(u64::try_from(time.as_millis()).unwrap_or(u64::MAX).to_string());
    }
    if terminal::is_there() {
        guard.arg("--terminal");
    }
    console::pass_on(&mut guard);
    if let Some(soft) = open_files::before() {
        guard.arg("--open-files").arg(soft.to_string());
    }
    guard.arg("--").args(&command.words);
    // A group of its own: signals to the group of this process do not reach it.
    guard.process_group(0);
    // An outer slotkeeper's variables describe other slots.
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(super::is_child_variable) {
            guard.env_remove(name);
        }
    }
    guard.arg0("slotkeeper").envs(environment);
    guard.into()
}

/// Sends orders. The connection ends with this task. Returns whether all were sent.
async fn pass_on(first: Order, mut orders: mpsc::Receiver<Order>, mut writer: Writer) -> bool {
    let mut next = Some(first);
    while let Some(order) = next {
        if writer.send(&order).await.is_err() {
            // That it is gone is told by its reports.
            return std::future::pending().await;
        }
        next = orders.recv().await;
    }
    true
}

/// Ends the descendants of a guard that has gone.
async fn end_all(hooks: &Groups) {
    while tree::end_orphans(|group| hooks.contains(group)) {
        sleep(LOOK_INTERVAL).await;
    }
}

/// Accepts the connection of the guard, and drops others.
async fn accept(listener: &UnixListener, guard: Option<u32>) -> io::Result<UnixStream> {
    loop {
        let (stream, _) = listener.accept().await?;
        let peer = stream.peer_cred()?.pid().and_then(|pid| u32::try_from(pid).ok());
        if peer.is_some() && peer == guard {
            return Ok(stream);
        }
    }
}

fn describe(ended: io::Result<ExitStatus>) -> String {
    ended.map_or_else(|error| error.to_string(), |status| status.to_string())
}

fn millis(moment: Moment) -> u64 {
    u64::try_from(moment.since_boot().as_millis()).unwrap_or(u64::MAX)
}
