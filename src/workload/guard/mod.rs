//! The guard: a small process between the agent and the command that runs on its slot.
//!
//! The guard ends the command in time, whatever happens to the agent: killed, suspended, stuck, or cut off from Consul. It is
//! the parent of the command, so that only the guard reaps it, and the subreaper of all its descendants, so that none escapes.
//! While the agent lives, the guard sends no request to Consul: the agent passes it the end of the lease, until which the
//! command may live. If the agent is killed, the guard releases what the agent held, after the end of the command. The guard also
//! sees to the slots that an agent has offered to others on its way out (`release.rs`). If the guard is killed, the kernel kills the command (`PR_SET_PDEATHSIG`, which follows the only thread of the
//! guard), and the agent, as the next subreaper, ends all other descendants.

use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream as StdUnixStream};
use std::os::unix::process::CommandExt;
use std::time::Duration;

use futures_util::StreamExt;
use rustix::process::{Pid, Signal, WaitOptions, getpid, getppid, set_child_subreaper, wait};
use rustix::stdio;
use signal_hook::consts::{SIGCHLD, SIGTTIN, SIGTTOU};
use signal_hook_tokio::Signals;
use tokio::net::UnixStream;

use crate::clock::{self, Alarm};
use crate::console;
use slotkeeper_semaphore::Moment;

pub mod fence;
pub(crate) mod holdings;
mod release;
pub(in crate::workload) mod tree;
pub(crate) mod wire;

use fence::{Act, Fence, Why};
use holdings::Holdings;
use release::Duty;
use wire::{Order, Outcome, Reader, Report, Writer};

use super::terminal::{self, Terminal};
use super::{exec, open_files, signals};

/// Maximum time from the end of a killed agent's command to the end of its guard, which releases what the agent held. It
/// includes a second for noticing both.
pub(crate) const MAX_RELEASE: Duration = release::MAX_TIME.saturating_add(Duration::from_secs(1));

/// Time for the agent to drain and end after the command has ended. A suspended agent is not dead.
const AGENT_END_TIMEOUT: Duration = Duration::from_secs(60);

/// The arguments of a guard.
#[derive(Clone, Debug)]
pub struct Start {
    /// The abstract socket at which the agent listens.
    pub socket: String,
    /// Time from SIGTERM to SIGKILL.
    pub kill_after: Duration,
    /// Time to end after a signal from outside. `None`: unlimited.
    pub stop_after: Option<Duration>,
    /// The soft limit of open files of the guard and the command.
    pub open_files: Option<u64>,
    /// Standard input is a terminal, which passes from the agent to the command.
    pub terminal: bool,
    /// Program and arguments.
    pub command: Vec<OsString>,
}

/// Runs the command until no process of it is left.
///
/// # Errors
///
/// The agent is gone, or the command cannot be started. Nothing runs then.
pub async fn run(start: Start) -> io::Result<()> {
    if let Some(why) = tree::unfit_proc() {
        return Err(io::Error::other(why));
    }
    if let Some(soft) = start.open_files {
        open_files::restore(soft);
    }
    let mut signals = Signals::new(signals::taken_over().chain([SIGCHLD]))?;
    terminal::may_be_set()?;
    set_child_subreaper(Some(getpid()))?;
    let alarm = Alarm::new()?;
    let address = SocketAddr::from_abstract_name(&start.socket)?;
    let stream = StdUnixStream::connect_addr(&address)?;
    stream.set_nonblocking(true)?;
    let (mut orders, reports) = wire::split(UnixStream::from_std(stream)?);
    let Some(Order::Begin { lease_ends, holdings }) = orders.next().await else {
        return Err(io::Error::other("the agent ended before the command could begin"));
    };
    let lease_ends = Moment::from_boot(Duration::from_millis(lease_ends));
    let mut fence = Fence::new(lease_ends, start.kill_after, start.stop_after);
    if fence.due(clock::now()).is_some() {
        return Err(io::Error::other("the lease expired before the command could begin"));
    }
    let terminal = start.terminal.then(|| Terminal::of(getppid())).flatten();
    // If its output goes to another program, that one may need the terminal, as a pager does.
    let takes_terminal = terminal::shows_output() && terminal.is_some_and(|terminal| terminal.is_at_hand());
    let child = exec::command(&start.command, takes_terminal).process_group(0).spawn()?;
    let leader = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let leader = leader.ok_or_else(|| io::Error::other("the command has no process id"))?;
    let mut guard = Guard {
        leader: Some(leader),
        fence,
        reports: Some(reports),
        holdings,
        terminal,
        told_why: false,
        told_denied: false,
    };
    guard.report(Report::Started(leader.as_raw_nonzero().get())).await;
    while guard.reap().await {
        guard.act(clock::now()).await;
        tokio::select! {
            order = orders.next(), if guard.reports.is_some() => guard.ordered(order).await,
            // A signal needs no action but the reaping above.
            _ = signals.next() => {}
            rung = alarm.until(guard.fence.deadline()) => rung?,
        }
    }
    guard.report(Report::Gone).await;
    let duty = guard.await_agent(&mut orders).await;
    if let Some((duty, holdings)) = duty.zip(guard.holdings.take()) {
        if matches!(duty, Duty::Offers(_)) {
            // Whoever reads the output of the agent must not wait for the guard.
            leave_standard_streams()?;
        }
        let told = async { while signals.next().await.is_some_and(|signal| !signals::ends(signal)) {} };
        release::in_time(*holdings, duty, told).await;
    }
    Ok(())
}

struct Guard {
    /// The command itself, until it is reaped.
    leader: Option<Pid>,
    fence: Fence,
    /// Where to the agent is told; none once it is gone.
    reports: Option<Writer>,
    /// What the agent holds, as it has said last.
    holdings: Option<Box<Holdings>>,
    /// The terminal on standard input, where the command gets it.
    terminal: Option<Terminal>,
    /// Why the command is being stopped has been told.
    told_why: bool,
    /// That a process cannot be signalled has been told.
    told_denied: bool,
}

impl Guard {
    async fn ordered(&mut self, order: Option<Order>) {
        let now = clock::now();
        match order {
            Some(Order::Lease(ends)) => self.fence.renewed(Moment::from_boot(Duration::from_millis(ends))),
            Some(Order::Signal(number)) => {
                if let Some((leader, signal)) = self.leader.zip(Signal::from_named_raw(number)) {
                    tree::signal_group(leader, signal);
                }
                if signals::stops(number) {
                    self.fence.asked_to_end(now);
                }
            }
            Some(Order::Holdings(holdings)) => self.holdings = Some(holdings),
            Some(Order::Stop) => self.fence.stop(Why::Asked, now),
            // The agent sends neither while the command runs.
            Some(Order::Begin { .. } | Order::Over(_)) => {}
            Some(Order::Continue) => {
                if let Some((terminal, leader)) = self.terminal.zip(self.leader) {
                    terminal.hand_on(leader);
                }
                self.resume();
            }
            None => {
                self.reports = None;
                self.fence.stop(Why::AgentGone, now);
            }
        }
    }

    /// What the agent leaves to the guard when it ends, or is killed.
    async fn await_agent(&mut self, orders: &mut Reader) -> Option<Duty> {
        let until = tokio::time::Instant::now() + AGENT_END_TIMEOUT;
        while self.reports.is_some() {
            match tokio::time::timeout_at(until, orders.next()).await {
                Ok(Some(Order::Over(offers))) => {
                    return (!offers.is_empty()).then_some(Duty::Offers(offers));
                }
                Ok(order) => self.ordered(order).await,
                Err(_) => return None,
            }
        }
        Some(Duty::Everything)
    }

    /// Sends the signals that are due.
    async fn act(&mut self, now: Moment) {
        let Some(act) = self.fence.due(now) else { return };
        // Signals first: reports may block.
        let denied = match act {
            Act::Terminate => {
                let denied = tree::signal_all(self.leader, Signal::TERM);
                // A suspended process handles the signal only when it is continued.
                let _ = tree::signal_all(self.leader, Signal::CONT);
                denied
            }
            Act::Kill => tree::signal_all(self.leader, Signal::KILL),
        };
        if let Some(why) = self.fence.stopping().filter(|_| !std::mem::replace(&mut self.told_why, true)) {
            match why {
                // The agent may be suspended.
                Why::Lease => {
                    console::say(
                        "the lease was not renewed in time, so the slot may be lost: stopping the command",
                    );
                }
                Why::AgentGone => {
                    console::say("the agent is gone, so the lease is not renewed: stopping the command");
                }
                Why::Asked | Why::Ended | Why::Overdue => {}
            }
            self.report(Report::Stopping(why)).await;
        }
        if let Some(pid) = denied.filter(|_| !std::mem::replace(&mut self.told_denied, true)) {
            console::say(&format!(
                "process {pid} runs as another user and cannot be stopped: it may outlive the slot"
            ));
        }
    }

    /// Reaps children that have ended. Returns whether any is left.
    async fn reap(&mut self) -> bool {
        loop {
            match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some((pid, status))) if Some(pid) == self.leader => {
                    if status.stopped() {
                        self.suspended(status.stopping_signal()).await;
                    } else {
                        let signal = status.terminating_signal().map(|it| Outcome::Signaled(low(it)));
                        let outcome =
                            signal.unwrap_or(Outcome::Exited(low(status.exit_status().unwrap_or(1))));
                        self.leader = None;
                        if let Some(terminal) = self.terminal.take() {
                            terminal.take_back(pid);
                        }
                        self.report(Report::Ended(outcome)).await;
                        self.fence.stop(Why::Ended, clock::now());
                    }
                }
                Ok(Some(_other)) => {}
                Ok(None) => return true,
                Err(rustix::io::Errno::INTR) => {}
                Err(_no_child) => return false,
            }
        }
    }

    /// The command was suspended. From a terminal, the agent's job is suspended too.
    async fn suspended(&mut self, by: Option<i32>) {
        let wants_terminal = matches!(by, Some(SIGTTIN | SIGTTOU));
        match &self.terminal {
            Some(terminal) if wants_terminal && terminal.is_at_hand() => {
                if let Some(leader) = self.leader {
                    terminal.hand_on(leader);
                }
                self.resume();
            }
            Some(terminal) if terminal.is_watched() => {
                if let Some(leader) = self.leader {
                    terminal.take_back(leader);
                }
                self.report(Report::Suspended).await;
            }
            // No shell would continue it.
            Some(_) => self.resume(),
            None => {}
        }
    }

    fn resume(&self) {
        if let Some(leader) = self.leader {
            tree::signal_group(leader, Signal::CONT);
        }
    }

    /// Reports to the agent. The command does not wait for an agent that does not read.
    async fn report(&mut self, report: Report) {
        const REPORT_TIMEOUT: Duration = Duration::from_millis(100);
        if let Some(writer) = &mut self.reports {
            let _ = tokio::time::timeout(REPORT_TIMEOUT, writer.send(&report)).await;
        }
    }
}

/// Has nothing more to do with the standard streams.
fn leave_standard_streams() -> io::Result<()> {
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    stdio::dup2_stdin(&null)?;
    stdio::dup2_stdout(&null)?;
    Ok(stdio::dup2_stderr(&null)?)
}

fn low(number: i32) -> u8 {
    u8::try_from(number & 0xff).unwrap_or(u8::MAX)
}
