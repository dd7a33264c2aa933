//! The agent's end of a command that runs under its guard.

use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener as StdUnixListener};
use std::os::unix::process::CommandExt;
use std::pin::Pin;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, getpid, kill_process_group, set_child_subreaper};
use tokio::net::{UnixListener, UnixStream};
use tokio::process::Child;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Sleep, sleep};
use tracing::{error, warn};
use uuid::Uuid;

use super::exec::THIS_PROGRAM;
use super::guard::fence::Why;
use super::guard::holdings::Holdings;
use super::guard::tree;
use super::guard::wire::{self, Order, Outcome, Reader, Report, Writer};
use super::hooks::Groups;
use super::{open_files, terminal};
use crate::log_events::{GUARD_GONE, GUARD_NOT_CONNECTED, GUARD_SILENT, GUARD_START_STUCK, GUARD_STUCK};
use slotkeeper_semaphore::Moment;

/// Orders that may wait for the guard. A guard that reads none is stopped: then the lease it knows of runs out.
const MAX_QUEUED_ORDERS: usize = 64;
/// Time that the guard has for starting, as far as the lease is renewed meanwhile. Much, since a machine may be busy.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Time that the guard has for ending a command besides what the command has.
const GUARD_GRACE: Duration = Duration::from_secs(1);
/// How often it is looked whether a command whose guard is gone is gone too.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// What to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Program and arguments.
    pub words: Vec<OsString>,
    /// Time that it has for stopping, once it is told to.
    pub kill_after: Duration,
    /// Time that it has once a signal from outside has asked it to end; none: as long as it likes.
    pub stop_after: Option<Duration>,
}

/// What has become of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandEvent {
    /// It runs.
    Started,
    /// It does not run, and nothing is left of its guard: why.
    NotStarted(String),
    /// It was suspended from its terminal.
    Suspended,
    /// It is being stopped, since the guard saw to it.
    Stopping(Why),
    /// Nothing of it is left. How it ended; none where only its guard would have known.
    Gone(Option<Outcome>),
}

/// A command, its guard, and all that descends from it. [`Running::next`] has to be waited for.
#[derive(Debug)]
pub struct Running {
    guard: Child,
    link: Link,
    orders: mpsc::Sender<Order>,
    /// The command's group, while its first process is not reaped.
    group: Option<Pid>,
    /// The guard has said that the command runs.
    started: bool,
    /// Why it does not run, where the guard could not say so.
    failed: Option<String>,
    outcome: Option<Outcome>,
    /// The guard has said that nothing is left.
    gone: bool,
    /// It was told that the guard has gone without saying so.
    said_gone: bool,
    kill_after: Duration,
    /// When nothing may be left of it, whatever its guard does.
    lease_ends: Moment,
    told_to_stop: bool,
    /// What the guard is to release, should we be killed, as it was told last.
    holdings: Option<Holdings>,
    /// What descends from us and is no command's.
    hooks: Groups,
}

/// The connection with the guard.
#[derive(Debug)]
enum Link {
    /// It is still to come.
    Awaited(Awaited),
    /// What the guard says, and who passes orders on to it.
    Open(Reader, JoinHandle<()>),
    /// It has ended.
    Closed,
}

#[derive(Debug)]
struct Awaited {
    listener: UnixListener,
    /// The guard's process.
    guard: Option<u32>,
    /// When it is not waited for any more.
    until: Pin<Box<Sleep>>,
    /// What is to be passed on then.
    orders: mpsc::Receiver<Order>,
}

impl Running {
    /// Starts it, with `environment` beside our own, under a lease that ends then. [`Running::next`] tells whether it runs:
    /// a guard may need long for its start on a busy machine, and the lease is renewed meanwhile.
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
        // Should the guard be killed, what descends from it is ours to end, and gets away no more than from the guard.
        set_child_subreaper(Some(getpid()))?;
        if let Some(why) = tree::unfit_proc() {
            anyhow::bail!(why);
        }
        if terminal::is_there() {
            // A log line of ours must not stop us while the command has the terminal (`stty tostop`).
            terminal::may_be_set()?;
        }
        // In the abstract namespace: no file to be left behind, and it ends with us.
        let name = format!("slotkeeper-{}", Uuid::new_v4());
        let listener = StdUnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)
            .context("cannot make the guard's socket")?;
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
            told_to_stop: false,
            holdings: None,
            hooks,
        })
    }

    /// The lease was renewed, or not.
    pub fn lease(&mut self, ends: Moment) {
        if ends > self.lease_ends {
            self.lease_ends = ends;
            // One that is still to come is told as it comes.
            if matches!(self.link, Link::Open(..)) {
                self.order(Order::Lease(millis(ends)));
            }
        }
    }

    /// What the guard is to release, should we be killed. Said to it where it has changed.
    pub(crate) fn holds(&mut self, holdings: Holdings) {
        if self.holdings.as_ref() == Some(&holdings) {
            return;
        }
        let told = match self.link {
            Link::Awaited(_) => true,
            // Said with the next round where the guard does not listen: that it does not is said with the lease.
            Link::Open(..) => self.orders.try_send(Order::Holdings(Box::new(holdings.clone()))).is_ok(),
            Link::Closed => return,
        };
        if told {
            self.holdings = Some(holdings);
        }
    }

    /// Whether the guard has not connected yet, so that nothing can be passed on.
    pub fn awaits_guard(&self) -> bool {
        !self.started && !matches!(self.link, Link::Open(..))
    }

    /// The guard's process, until it is reaped.
    pub fn guard(&self) -> Option<u32> {
        self.guard.id()
    }

    /// When nothing may be left of it, whatever its guard does.
    pub fn deadline(&self) -> Moment {
        self.lease_ends
    }

    /// Passes a signal on to the command's group.
    pub fn signal(&self, signal: i32) {
        self.order(Order::Signal(signal));
    }

    /// Has it stopped: asked to end, and ended. However often it is wanted, it is said once; and where the guard does not
    /// hear it, both are killed when that should have been over.
    pub fn stop(&mut self, now: Moment) {
        if !std::mem::replace(&mut self.told_to_stop, true) {
            if let Link::Awaited(_) = self.link {
                // It has not been told yet to start the command.
                let _ = self.guard.start_kill();
                return;
            }
            self.order(Order::Stop);
            self.lease_ends = self.lease_ends.min(now + self.kill_after + GUARD_GRACE);
        }
    }

    /// Our own job was continued.
    pub fn resume(&self) {
        self.order(Order::Continue);
    }

    /// Ends the command and its guard at once, where the guard should have and has not.
    pub fn kill(&mut self) {
        if self.started {
            error!("{GUARD_STUCK}; killing both");
        } else {
            error!("{GUARD_START_STUCK}; killing the guard");
        }
        self.kill_group();
        // One that is gone already is reaped by `next`.
        let _ = self.guard.start_kill();
        // Once killed it must not be asked for again.
        self.lease_ends = Moment::from_boot(Duration::MAX);
    }

    /// What has become of it. May be dropped and called again; not after [`CommandEvent::Gone`] or [`CommandEvent::NotStarted`].
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
            // All that it leaves behind descends from us now.
            end_all(&self.hooks).await;
        }
        if !self.started {
            return CommandEvent::NotStarted(self.why_not_started());
        }
        CommandEvent::Gone(self.outcome)
    }

    fn why_not_started(&mut self) -> String {
        if self.told_to_stop {
            return "it was to be stopped before it could begin".to_owned();
        }
        let failed = self.failed.take();
        failed.unwrap_or_else(|| "its guard could not start it; see what it said above".to_owned())
    }

    /// The guard is there. It starts the command as soon as it is told what that runs on.
    fn begin(&mut self, stream: UnixStream) {
        let Link::Awaited(awaited) = std::mem::replace(&mut self.link, Link::Closed) else { return };
        let (reports, writer) = wire::split(stream);
        let holdings = self.holdings.clone().map(Box::new);
        let first = Order::Begin { lease_ends: millis(self.lease_ends), holdings };
        self.link = Link::Open(reports, tokio::spawn(pass_on(first, awaited.orders, writer)));
    }

    /// Takes in what the guard has said, or that it says nothing any more; what there is to tell of it.
    fn reported(&mut self, report: Option<Report>) -> Option<CommandEvent> {
        match report {
            Some(Report::Started(pid)) => {
                (self.group, self.started) = (Pid::from_raw(pid), true);
                return Some(CommandEvent::Started);
            }
            Some(Report::Suspended) => return Some(CommandEvent::Suspended),
            Some(Report::Stopping(why)) => return Some(CommandEvent::Stopping(why)),
            Some(Report::Ended(outcome)) => {
                // It is reaped: its number may be somebody else's.
                self.group = None;
                self.outcome = Some(outcome);
            }
            Some(Report::Gone) => {
                self.gone = true;
                // What is held is ours to release.
                self.order(Order::Over);
            }
            None => {
                self.end_link();
                if !self.gone {
                    // One that says nothing any more, or nonsense, cannot be relied on.
                    let _ = self.guard.start_kill();
                }
            }
        }
        None
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

    /// Whether it will be passed on.
    fn order(&self, order: Order) -> bool {
        let sent = self.orders.try_send(order);
        if let Err(error) = &sent {
            warn!(%error, "{GUARD_SILENT}");
        }
        sent.is_ok()
    }
}

impl Drop for Running {
    /// The guard sees the connection end, and the command with it.
    fn drop(&mut self) {
        self.end_link();
    }
}

impl Awaited {
    /// Waits for the guard. May be dropped and called again.
    async fn connected(&mut self, guard: &mut Child) -> anyhow::Result<UnixStream> {
        tokio::select! {
            stream = accept(&self.listener, self.guard) => Ok(stream?),
            ended = guard.wait() => anyhow::bail!("its guard ended at once: {}", describe(ended)),
            () = self.until.as_mut() => anyhow::bail!("{GUARD_NOT_CONNECTED} ({START_TIMEOUT:?})"),
        }
    }
}

/// How the guard of a command is started, which connects to the socket of that name.
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
    if let Some(soft) = open_files::before() {
        guard.arg("--open-files").arg(soft.to_string());
    }
    guard.arg("--").args(&command.words);
    // A group of its own: whatever is sent to ours, the guard stays.
    guard.process_group(0);
    // What an outer one of us has said of its slots says nothing of ours.
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(super::is_child_variable) {
            guard.env_remove(name);
        }
    }
    guard.arg0("slotkeeper").envs(environment);
    guard.into()
}

/// Passes orders on; the connection ends with this task.
async fn pass_on(first: Order, mut orders: mpsc::Receiver<Order>, mut writer: Writer) {
    let mut next = Some(first);
    while let Some(order) = next {
        if writer.send(&order).await.is_err() {
            break;
        }
        next = orders.recv().await;
    }
    std::future::pending::<()>().await;
}

/// Ends all that a guard which is gone has left behind: it descends from us now.
async fn end_all(hooks: &Groups) {
    while tree::end_orphans(|group| hooks.contains(group)) {
        sleep(LOOK_INTERVAL).await;
    }
}

/// The guard's connection; anybody else's is dropped.
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
