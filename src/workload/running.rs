//! The agent's end of a command that runs under its guard.

use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener as StdUnixListener};
use std::os::unix::process::CommandExt;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, getpid, kill_process_group, set_child_subreaper};
use tokio::net::UnixListener;
use tokio::process::Child;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tracing::{error, warn};
use uuid::Uuid;

use super::exec::THIS_PROGRAM;
use super::guard::fence::Why;
use super::guard::tree;
use super::guard::wire::{self, Order, Outcome, Reader, Report, Writer};
use super::terminal;
use crate::config;
use crate::semaphore::Moment;

/// Orders that may wait for the guard. A guard that reads none is stopped: then the lease it knows of runs out.
const ORDERS: usize = 64;
/// Time that the guard has for starting. Nobody renews the lease meanwhile.
const PATIENCE: Duration = Duration::from_secs(3);
/// Time in which what a guard has said that is gone already can be read.
const SAID: Duration = Duration::from_millis(200);
/// Time that the guard has for ending a command besides what the command has.
const GRACE: Duration = Duration::from_secs(1);
/// How often it is looked whether a command whose guard is gone is gone too.
const LOOK: Duration = Duration::from_millis(20);

/// What to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Program and arguments.
    pub words: Vec<OsString>,
    /// Time that it has for stopping, once it is told to.
    pub kill_after: Duration,
}

/// What has become of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// It was suspended from its terminal.
    Suspended,
    /// It is being stopped, since the guard saw to it.
    Stopping(Why),
    /// Nothing of it is left. How it ended; none where only its guard would have known.
    Gone(Option<Outcome>),
}

/// A command, its guard, and all that descends from it.
#[derive(Debug)]
pub struct Running {
    guard: Child,
    reports: Option<Reader>,
    orders: mpsc::Sender<Order>,
    writer: JoinHandle<()>,
    /// The command's group, while its first process is not reaped.
    group: Option<Pid>,
    outcome: Option<Outcome>,
    /// The guard has said that nothing is left.
    gone: bool,
    /// It was told that the guard has gone without saying so.
    said_gone: bool,
    kill_after: Duration,
    /// When nothing may be left of it, whatever its guard does.
    lease_ends: Moment,
    told_to_stop: bool,
}

impl Running {
    /// Starts it, with `environment` beside our own, under a lease that ends then.
    ///
    /// # Errors
    ///
    /// The guard cannot be started, or does not come up.
    pub async fn start(
        command: &Command,
        environment: Vec<(String, String)>,
        lease_ends: Moment,
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
        let mut guard = std::process::Command::new(THIS_PROGRAM);
        guard.arg("guard").arg("--socket").arg(&name);
        guard.arg("--lease-ends").arg(millis(lease_ends).to_string());
        guard.arg("--kill-after").arg(command.kill_after.as_millis().to_string());
        if terminal::is_there() {
            guard.arg("--terminal");
        }
        guard.arg("--").args(&command.words);
        // A group of its own: whatever is sent to ours, the guard stays.
        guard.process_group(0);
        // What an outer one of us has said of its slots says nothing of ours.
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(config::is_child_variable) {
                guard.env_remove(name);
            }
        }
        guard.arg0("slotkeeper").envs(environment);
        let mut guard = tokio::process::Command::from(guard).spawn().context("cannot start the guard")?;
        let begun = tokio::time::timeout(PATIENCE, begin(&listener, &mut guard)).await;
        let begun =
            begun.unwrap_or_else(|_late| Err(anyhow::anyhow!("its guard did not come up in {PATIENCE:?}")));
        let (reports, writer, group) = match begun {
            Ok(begun) => begun,
            Err(failure) => {
                // Whatever of it there is by now goes before the slot does.
                let _ = guard.start_kill();
                let _ = guard.wait().await;
                end_all().await;
                return Err(failure);
            }
        };
        let (orders, waiting) = mpsc::channel(ORDERS);
        Ok(Self {
            guard,
            reports: Some(reports),
            orders,
            writer: tokio::spawn(pass_on(waiting, writer)),
            group: Some(group),
            outcome: None,
            gone: false,
            said_gone: false,
            kill_after: command.kill_after,
            lease_ends,
            told_to_stop: false,
        })
    }

    /// The lease was renewed, or not.
    pub fn lease(&mut self, ends: Moment) {
        if ends > self.lease_ends {
            self.lease_ends = ends;
            self.order(Order::Lease(millis(ends)));
        }
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
            self.order(Order::Stop);
            self.lease_ends = self.lease_ends.min(now + self.kill_after + GRACE);
        }
    }

    /// Our own job was continued.
    pub fn resume(&self) {
        self.order(Order::Continue);
    }

    /// Ends the command and its guard at once, where the guard should have and has not.
    pub fn kill(&mut self) {
        error!("the guard has not ended the command in time: killing both");
        self.kill_group();
        // One that is gone already is reaped by `next`.
        let _ = self.guard.start_kill();
        // Once killed it must not be asked for again.
        self.lease_ends = Moment::from_boot(Duration::MAX);
    }

    /// What has become of it. May be dropped and called again; not after [`Told::Gone`].
    pub async fn next(&mut self) -> Told {
        while let Some(reports) = &mut self.reports {
            match reports.next().await {
                Some(Report::Started(_)) => {}
                Some(Report::Suspended) => return Told::Suspended,
                Some(Report::Stopping(why)) => return Told::Stopping(why),
                Some(Report::Ended(outcome)) => {
                    // It is reaped: its number may be somebody else's.
                    self.group = None;
                    self.outcome = Some(outcome);
                }
                Some(Report::Gone) => self.gone = true,
                None => {
                    self.reports = None;
                    if !self.gone {
                        // One that says nothing any more, or nonsense, cannot be relied on.
                        let _ = self.guard.start_kill();
                    }
                }
            }
        }
        let ended = self.guard.wait().await;
        if !self.gone {
            if !std::mem::replace(&mut self.said_gone, true) {
                warn!("the guard of the command is gone ({}): ending the command", describe(ended));
            }
            // All that it leaves behind descends from us now.
            end_all().await;
        }
        Told::Gone(self.outcome)
    }

    fn kill_group(&self) {
        if let Some(group) = self.group {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    fn order(&self, order: Order) {
        if self.orders.try_send(order).is_err() {
            warn!("the guard of the command does not listen: {order:?} was not said");
        }
    }
}

impl Drop for Running {
    /// The guard sees the connection end, and the command with it.
    fn drop(&mut self) {
        self.writer.abort();
    }
}

/// Waits until the guard has begun the command.
async fn begin(listener: &UnixListener, guard: &mut Child) -> anyhow::Result<(Reader, Writer, Pid)> {
    let id = guard.id();
    let first = async {
        let (mut reports, writer) = wire::split(accept(listener, id).await?);
        let Some(Report::Started(pid)) = reports.next().await else {
            anyhow::bail!("its guard could not start it; see what it said above")
        };
        Ok((reports, writer, Pid::from_raw(pid).context("the guard told of no process")?))
    };
    tokio::pin!(first);
    tokio::select! {
        first = &mut first => first,
        // With a short command it may have done all that it had to before we came to look: what it said is there.
        ended = guard.wait() => match tokio::time::timeout(SAID, first).await {
            Ok(first) => first,
            Err(_late) => anyhow::bail!("its guard ended at once: {}", ended?),
        },
    }
}

/// Passes orders on; the connection ends with this task.
async fn pass_on(mut orders: mpsc::Receiver<Order>, mut writer: Writer) {
    while let Some(order) = orders.recv().await {
        if writer.send(&order).await.is_err() {
            break;
        }
    }
    std::future::pending::<()>().await;
}

/// Ends all that a guard which is gone has left behind: it descends from us now.
async fn end_all() {
    while tree::end_orphans() {
        tokio::time::sleep(LOOK).await;
    }
}

/// The guard's connection; anybody else's is dropped.
async fn accept(listener: &UnixListener, guard: Option<u32>) -> io::Result<tokio::net::UnixStream> {
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
