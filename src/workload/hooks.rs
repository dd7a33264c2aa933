//! Commands that are run on changes, each for a bounded time and in a process group of its own.
//!
//! `on_lost` may be what stops a workload before its slot is another's. It waits for no other hook and runs in a process of
//! its own, however many slots are lost at once. All other hooks run one after the other; of the same slot, none begins beside
//! its `on_lost`, which kills an `on_acquired` that runs. An `on_leader_changed` that runs goes on: what it tells is told once.

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
use tracing::{info, warn};

use super::exec;
use crate::log_events::{HOOK_FAILED, HOOK_KILLED, HOOK_NOT_STARTED, HOOK_SUCCEEDED, HOOKS_KILLED};
use slotkeeper_semaphore::Name;

/// Time that a hook has before it is killed.
const MAX_RUNTIME: Duration = Duration::from_secs(30);
/// `on_lost` hooks of one slot that may run at once. Where it is acquired and lost again and again while they hang, the oldest
/// is killed for the newest.
const MAX_LOST_HOOKS: usize = 8;
/// How often a start of `on_lost` that failed is tried again, and for how long: the machine may be short of processes.
const START_RETRY_INTERVAL: Duration = Duration::from_millis(100);
const MAX_STARTS: u32 = 300;

/// What a hook is run on.
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
    /// What the hook is told.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Acquired => "acquired",
            Self::Lost => "lost",
            Self::LeaderChanged => "leader_changed",
        }
    }
}

/// A hook to run: the command, and what it is told by its environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The semaphore or lock that it is about, by the core's name, which goes on when it is renamed.
    pub slot: Name,
    /// The same, as people call it.
    pub label: Name,
    /// What has happened to that.
    pub event: Event,
    /// Program and arguments; not a shell line.
    pub command: Vec<String>,
    /// Variables in addition to our own.
    pub environment: Vec<(&'static str, String)>,
}

/// A hook has run, and ended with 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Succeeded;

/// Process groups of hooks: of those that run, and of those that have ended and left something running. For whoever ends
/// everything else that descends from this process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Groups(Arc<Mutex<HashSet<Pid>>>);

impl Groups {
    /// Whether the group is a hook's.
    pub(super) fn contains(&self, group: Pid) -> bool {
        self.with(|groups| groups.contains(&group))
    }

    /// Forgets those of which nothing is left: their numbers may be other groups' from now on.
    fn forget_ended(&self) {
        self.with(|groups| groups.retain(|group| test_kill_process_group(*group) != Err(Errno::SRCH)));
    }

    fn with<T>(&self, what: impl FnOnce(&mut HashSet<Pid>) -> T) -> T {
        what(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A call that is still to be run.
#[derive(Debug)]
struct Pending {
    call: Call,
    /// Is told if it has succeeded; one that has failed, or was not run, closes it.
    done: oneshot::Sender<Succeeded>,
    /// How often a start has failed.
    failed: u32,
}

/// A hook that runs.
#[derive(Debug)]
struct Running {
    call: Call,
    /// None of one that was killed: it only has to be reaped, and nothing waits for that.
    done: Option<oneshot::Sender<Succeeded>>,
    child: Child,
    group: Option<Pid>,
    time: Pin<Box<Sleep>>,
}

/// What happens next.
enum Change {
    /// The hook at this place has used up its time.
    Late(usize),
    /// It has ended.
    Ended(usize, io::Result<ExitStatus>),
    /// A failed start is due again.
    Retry,
}

/// The hooks that run and wait. [`Hooks::ended`] has to be waited for: only that reaps them, and starts the next one.
#[derive(Debug)]
pub struct Hooks {
    /// In order. Of one slot there is at most one of each kind.
    waiting: VecDeque<Pending>,
    running: Vec<Running>,
    /// `on_lost` that could not be started, and when to try again.
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
    /// The processes that run and are not reaped.
    pub fn processes(&self) -> Vec<Option<u32>> {
        self.running.iter().map(|hook| hook.child.id()).collect()
    }

    /// The process groups of hooks, also of later ones.
    pub(crate) fn groups(&self) -> Groups {
        self.groups.clone()
    }

    /// Has the hook run: `on_lost` at once, any other after those called before it. What it gives tells when it has, or
    /// closes where it has not.
    pub fn call(&mut self, call: Call) -> oneshot::Receiver<Succeeded> {
        let (done, over) = oneshot::channel();
        let pending = Pending { call, done, failed: 0 };
        match pending.call.event {
            Event::Lost => {
                self.overtake(&pending.call.slot);
                self.start(pending);
            }
            // Of events of one kind only the newest matters.
            event @ (Event::Acquired | Event::LeaderChanged) => {
                let slot = pending.call.slot.clone();
                self.waiting.retain(|known| known.call.slot != slot || known.call.event != event);
                self.waiting.push_back(pending);
            }
        }
        self.start_next();
        over
    }

    /// A slot was lost: nothing may say any more that it was acquired, and what says so at the moment is killed.
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

    /// Waits until a hook has ended, and starts what has waited for that. For ever where none runs. May be dropped and called
    /// again.
    pub async fn ended(&mut self) {
        match poll_fn(|context| self.poll(context)).await {
            Change::Late(place) => {
                let after = self.max_runtime.as_secs();
                if let Some(hook) = self.running.get_mut(place) {
                    hook.kill(&format!("it has run for {after} s"));
                }
            }
            Change::Ended(place, ended) => {
                // It is reaped. What it has left running keeps the number of its group.
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

    /// Waits until all have run, at most `patience` long. What runs then is killed.
    pub async fn finish(mut self, patience: Duration) {
        let all = async {
            while !self.running.is_empty() || !self.unstarted.is_empty() {
                self.ended().await;
            }
        };
        if tokio::time::timeout(patience, all).await.is_err() {
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

    /// Starts the first that waits and may run: where none of the others runs, and none of its slot's `on_lost`.
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
                    let Call { label, event, .. } = &pending.call;
                    warn!(
                        hook = program,
                        semaphore = &**label,
                        event = event.as_str(),
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
    /// Whoever ends without waiting for them ends them.
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
        let Call { label, event, command, .. } = &self.call;
        warn!(hook = command.first(), semaphore = &**label, event = event.as_str(), reason = %why, "{HOOK_KILLED}");
    }

    /// Its first process is not reaped yet, so that the number is nobody else's.
    fn kill_group(&self) {
        if let Some(group) = self.group.filter(|_| self.child.id().is_some()) {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    /// Tells of its end. Of one that was killed it was told then.
    fn ended(self, ended: io::Result<ExitStatus>) {
        let Call { label, event, command, .. } = &self.call;
        let (hook, event) = (command.first(), event.as_str());
        let Some(done) = self.done else { return };
        match ended {
            Ok(status) if status.success() => {
                info!(hook, semaphore = &**label, event, "{HOOK_SUCCEEDED}");
                // Nobody need wait for it.
                let _ = done.send(Succeeded);
            }
            Ok(status) => warn!(hook, semaphore = &**label, event, %status, "{HOOK_FAILED}"),
            Err(error) => warn!(hook, semaphore = &**label, event, %error, "{HOOK_FAILED}"),
        }
    }
}

#[cfg(test)]
mod tests;
