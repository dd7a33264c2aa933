//! Hooks: commands that run on events, each for a bounded time and in a process group of its own.
//!
//! `on_lost` may have to stop a workload before another client acquires the slot. It waits for no other hook, however many
//! slots are lost at once. All other hooks run one after the other. Of one slot, none starts while its `on_lost` runs, and
//! `on_lost` kills a running `on_acquired`. A running `on_leader_changed` goes on, since its event is not repeated.

use std::collections::{HashSet, VecDeque};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::process::{Child, Command};
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep};
use tracing::warn;

use super::exec;
use crate::about::log_about;
use crate::log_events::{HOOK_FAILED, HOOK_KILLED, HOOK_NOT_STARTED, HOOK_SUCCEEDED, HOOKS_KILLED};
use crate::status::{self, Subject};
use slotkeeper_semaphore::Name;

/// Time that a hook has before it is killed.
const MAX_RUNTIME: Duration = Duration::from_secs(30);
/// `on_lost` hooks of one slot that may run at once. If a slot is lost repeatedly while they hang, the newest replaces the
/// oldest.
const MAX_LOST_HOOKS: usize = 8;
/// Retries of a failed start of `on_lost`: the machine may be short of processes.
const START_RETRY_INTERVAL: Duration = Duration::from_millis(100);
const MAX_STARTS: u32 = 300;

/// The event of a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A slot was acquired.
    Acquired,
    /// A slot was lost.
    Lost,
    /// A lock has another leader, or none.
    LeaderChanged,
}

impl Event {
    /// The value of `SLOTKEEPER_EVENT`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Acquired => status::Event::Acquired,
            Self::Lost => status::Event::Lost,
            Self::LeaderChanged => status::Event::LeaderChanged,
        }
        .as_str()
    }
}

/// A hook to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The core's name of the semaphore or lock, which a rename does not change.
    pub slot: Name,
    /// What it is about, for the log.
    pub subject: Option<Subject>,
    pub event: Event,
    /// Program and arguments; not a shell line.
    pub command: Vec<String>,
    /// Variables in addition to those of the agent.
    pub environment: Vec<(&'static str, String)>,
}

/// A hook has run, and ended with 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Succeeded;

/// Process groups of hooks that run or have left processes behind. They are spared when other descendants of this process are
/// ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Groups(Arc<Mutex<HashSet<Pid>>>);

impl Groups {
    /// Whether the group is a hook's.
    pub(super) fn contains(&self, group: Pid) -> bool {
        self.with(|groups| groups.contains(&group))
    }

    /// Forgets groups without processes: their numbers may be reused.
    fn forget_ended(&self) {
        self.with(|groups| groups.retain(|group| test_kill_process_group(*group) != Err(Errno::SRCH)));
    }

    fn with<T>(&self, what: impl FnOnce(&mut HashSet<Pid>) -> T) -> T {
        what(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A hook that waits.
#[derive(Debug)]
struct Pending {
    call: Call,
    /// Sent if the hook succeeds. It closes if the hook fails or does not run.
    done: oneshot::Sender<Succeeded>,
    /// How often a start has failed.
    failed: u32,
}

/// A hook that runs.
#[derive(Debug)]
struct Running {
    call: Call,
    /// `None`: the hook was killed and only has to be reaped.
    done: Option<oneshot::Sender<Succeeded>>,
    child: Child,
    group: Option<Pid>,
    time: Pin<Box<Sleep>>,
}

/// What happens next.
enum Change {
    /// The hook at this index has exceeded its time.
    Late(usize),
    /// It has ended.
    Ended(usize, io::Result<ExitStatus>),
    /// A failed start is due again.
    Retry,
}

/// Running and waiting hooks. [`Hooks::ended`] has to be polled: it reaps them and starts the next one.
#[derive(Debug)]
pub struct Hooks {
    /// In order. Of one slot there is at most one of each event.
    waiting: VecDeque<Pending>,
    running: Vec<Running>,
    /// `on_lost` hooks whose start has failed, and when to retry.
    unstarted: Vec<Pending>,
    retry: Option<Pin<Box<Sleep>>>,
    groups: Groups,
    max_runtime: Duration,
}

impl Default for Hooks {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            running: Vec::new(),
            unstarted: Vec::new(),
            retry: None,
            groups: Groups::default(),
            max_runtime: MAX_RUNTIME,
        }
    }
}

impl Hooks {
    /// Processes that are not reaped yet.
    pub fn processes(&self) -> Vec<Option<u32>> {
        self.running.iter().map(|hook| hook.child.id()).collect()
    }

    /// The process groups of hooks, including later ones.
    pub(crate) fn groups(&self) -> Groups {
        self.groups.clone()
    }

    /// Runs the hook: `on_lost` at once, any other after those called before it. The receiver resolves when the hook succeeds,
    /// and closes when it does not.
    pub fn call(&mut self, call: Call) -> oneshot::Receiver<Succeeded> {
        let (done, over) = oneshot::channel();
        let pending = Pending { call, done, failed: 0 };
        match pending.call.event {
            Event::Lost => {
                self.overtake(&pending.call.slot);
                self.start(pending);
            }
            // Only the newest event of a kind matters.
            event @ (Event::Acquired | Event::LeaderChanged) => {
                let slot = pending.call.slot.clone();
                self.waiting.retain(|known| known.call.slot != slot || known.call.event != event);
                self.waiting.push_back(pending);
            }
        }
        self.start_next();
        over
    }

    /// A slot was lost: its waiting `on_acquired` is dropped and a running one is killed.
    fn overtake(&mut self, slot: &Name) {
        self.waiting.retain(|known| known.call.slot != *slot || known.call.event != Event::Acquired);
        let is =
            |hook: &Running, event| !hook.was_killed() && hook.call.slot == *slot && hook.call.event == event;
        for hook in self.running.iter_mut().filter(|hook| is(hook, Event::Acquired)) {
            hook.kill("its slot was lost");
        }
        if self.running.iter().filter(|hook| is(hook, Event::Lost)).count() >= MAX_LOST_HOOKS
            && let Some(oldest) = self.running.iter_mut().find(|hook| is(hook, Event::Lost))
        {
            oldest.kill("its slot was lost again and again meanwhile");
        }
    }

    /// Waits until a hook has ended, and starts the next one. Without a running hook it never resolves. Cancel-safe.
    pub async fn ended(&mut self) {
        match poll_fn(|context| self.poll(context)).await {
            Change::Late(place) => {
                let after = self.max_runtime.as_secs();
                if let Some(hook) = self.running.get_mut(place) {
                    hook.kill(&format!("it has run for {after} s"));
                }
            }
            Change::Ended(place, ended) => {
                // It is reaped. Processes that it has left behind keep its group.
                self.groups.forget_ended();
                self.running.remove(place).ended(ended);
            }
            Change::Retry => {
                self.retry = None;
                for pending in std::mem::take(&mut self.unstarted) {
                    self.start(pending);
                }
            }
        }
        self.start_next();
    }

    /// Waits until all hooks have run. Hooks that run after `limit` are killed.
    pub async fn finish(mut self, limit: Duration) {
        let all = async {
            while !self.running.is_empty() || !self.unstarted.is_empty() {
                self.ended().await;
            }
        };
        if tokio::time::timeout(limit, all).await.is_err() {
            warn!("{HOOKS_KILLED}");
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Change> {
        for (place, hook) in self.running.iter_mut().enumerate() {
            if let Poll::Ready(ended) = pin!(hook.child.wait()).poll(context) {
                return Poll::Ready(Change::Ended(place, ended));
            }
            if !hook.was_killed() && hook.time.as_mut().poll(context).is_ready() {
                return Poll::Ready(Change::Late(place));
            }
        }
        match &mut self.retry {
            Some(retry) => retry.as_mut().poll(context).map(|()| Change::Retry),
            None => Poll::Pending,
        }
    }

    /// Starts the first waiting hook that may run: no other hook runs, and no `on_lost` of its slot.
    fn start_next(&mut self) {
        loop {
            let active = || self.running.iter().filter(|hook| !hook.was_killed());
            if active().any(|hook| hook.call.event != Event::Lost) {
                return;
            }
            let is_free = |pending: &Pending| {
                let slot = &pending.call.slot;
                active().all(|hook| hook.call.slot != *slot)
                    && self.unstarted.iter().all(|pending| pending.call.slot != *slot)
            };
            let next = self.waiting.iter().position(is_free).and_then(|place| self.waiting.remove(place));
            let Some(next) = next else { return };
            self.start(next);
        }
    }

    fn start(&mut self, mut pending: Pending) {
        let Some((program, arguments)) = pending.call.command.split_first() else { return };
        let mut command = Command::from(exec::hook(program, arguments));
        command.envs(pending.call.environment.iter().cloned()).stdin(Stdio::null());
        match command.spawn() {
            Ok(child) => {
                let id = child.id().and_then(|id| i32::try_from(id).ok());
                let group = id.and_then(Pid::from_raw);
                self.groups.forget_ended();
                self.groups.with(|groups| groups.extend(group));
                let Pending { call, done, .. } = pending;
                let (done, time) = (Some(done), Box::pin(sleep(self.max_runtime)));
                self.running.push(Running { call, done, child, group, time });
            }
            Err(error) => {
                pending.failed += 1;
                let again = pending.call.event == Event::Lost && pending.failed < MAX_STARTS;
                if pending.failed == 1 || !again {
                    let Call { subject, event, .. } = &pending.call;
                    log_about!(
                        warn,
                        subject.as_ref(),
                        hook = program,
                        hook_event = event.as_str(),
                        %error,
                        retries = again,
                        "{HOOK_NOT_STARTED}"
                    );
                }
                if again {
                    self.unstarted.push(pending);
                    self.retry.get_or_insert_with(|| Box::pin(sleep(START_RETRY_INTERVAL)));
                }
            }
        }
    }
}

impl Drop for Hooks {
    /// Kills running hooks.
    fn drop(&mut self) {
        for hook in &self.running {
            hook.kill_group();
        }
    }
}

impl Running {
    fn was_killed(&self) -> bool {
        self.done.is_none()
    }

    fn kill(&mut self, why: &str) {
        self.kill_group();
        self.done = None;
        let Call { subject, event, command, .. } = &self.call;
        let (hook, hook_event) = (command.first(), event.as_str());
        log_about!(warn, subject.as_ref(), hook, hook_event, reason = %why, "{HOOK_KILLED}");
    }

    /// Kills the group only while its first process is not reaped: later the number may be reused.
    fn kill_group(&self) {
        if let Some(group) = self.group.filter(|_| self.child.id().is_some()) {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    /// Logs the end of the hook, unless it was killed.
    fn ended(self, ended: io::Result<ExitStatus>) {
        let Call { subject, event, command, .. } = &self.call;
        let (hook, hook_event) = (command.first(), event.as_str());
        let Some(done) = self.done else { return };
        match ended {
            Ok(status) if status.success() => {
                log_about!(info, subject.as_ref(), hook, hook_event, "{HOOK_SUCCEEDED}");
                // The receiver may be gone.
                let _ = done.send(Succeeded);
            }
            Ok(status) => log_about!(warn, subject.as_ref(), hook, hook_event, %status, "{HOOK_FAILED}"),
            Err(error) => log_about!(warn, subject.as_ref(), hook, hook_event, %error, "{HOOK_FAILED}"),
        }
    }
}

#[cfg(test)]
mod tests;
