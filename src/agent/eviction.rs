//! Lost slots that are kept while their workload stops.
//!
//! An evicted slot counts as lost at once. It is released when the workload has stopped, as far as the agent can know that.

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;

use super::Agent;
use super::files::FILE_TIMEOUT;
use crate::about::log_about;
use crate::clock;
use crate::config::Release;
use crate::exit::Exit;
use crate::log_events::{STOP_NOT_CONFIRMED, STOP_TIME_ENDED};
use crate::workload::hooks::Succeeded;
use slotkeeper_semaphore::{Machine, Moment, Name, OnLost};

/// The kept slots, and the hooks that stop their workloads.
#[derive(Default)]
pub(super) struct Evictions {
    kept: Vec<Kept>,
    hooks: FuturesUnordered<BoxFuture<'static, (u64, Result<Succeeded, RecvError>)>>,
    number: u64,
}

/// A lost slot that no other client can acquire yet.
struct Kept {
    /// Distinguishes repeated losses of one slot.
    number: u64,
    name: Name,
    token: u64,
    /// When the slot is released. `None`: when its hook has ended, which has a time limit of its own.
    until: Option<Moment>,
    /// When the slot is released if its hook fails.
    at_the_latest: Moment,
    /// The workload's processes can be seen: the slot is not released while one lives.
    seen: bool,
}

impl Evictions {
    pub(super) fn keeps_any(&self) -> bool {
        !self.kept.is_empty()
    }

    /// The next slot whose hook has ended, and how. `None`: no hook runs.
    pub(super) async fn stopped(&mut self) -> Option<(u64, Result<Succeeded, RecvError>)> {
        self.hooks.next().await
    }

    /// A failed hook has stopped nothing, as far as the agent knows.
    pub(super) fn hook_ended(&mut self, number: u64, how: Result<Succeeded, RecvError>, now: Moment) {
        for kept in self.kept.iter_mut().filter(|kept| kept.number == number) {
            kept.until = Some(if how.is_ok() { now } else { kept.at_the_latest });
        }
    }

    /// Releases every kept slot at `by` at the latest.
    pub(super) fn end_all(&mut self, by: Moment) {
        for kept in &mut self.kept {
            kept.until = Some(kept.until.map_or(by, |until| until.min(by)));
        }
    }
}

impl Agent {
    /// When the next kept slot is released.
    pub(super) fn evictions_deadline(&self) -> Option<Moment> {
        let lives = self.workload_lives();
        self.evictions.kept.iter().filter_map(|kept| kept.until.filter(|_| !(kept.seen && lives))).min()
    }

    /// An operator has evicted the agent. If it holds the slot, the notice of the loss follows.
    pub(super) fn evicted(&mut self, name: &Name, held: bool, by: &str) {
        let exits =
            self.own.keeper.machine(name).is_some_and(|machine| machine.settings().on_lost == OnLost::Exit);
        let awaits_command = self.parts.command.is_some() && self.running.is_none();
        let evicted = format!("evicted from {} by {by}", self.labels.title(name));
        if awaits_command && self.is_required(name) {
            self.fail(
                Exit::Timeout,
                &format!("{}: evicted by {by} while in the queue", self.labels.title(name)),
            );
        } else if exits && held && self.withholds() {
            // Its lease had expired before, which was a loss of its own.
            self.fail(Exit::SlotLost, &format!("{evicted}, and on_lost is `exit`"));
        } else if exits && !held {
            self.fail(Exit::Timeout, &format!("{evicted} while in the queue, and on_lost is `exit`"));
        }
    }

    /// Keeps a lost slot until the workload has stopped, or has had its time for that. An evicted slot is not released before,
    /// also where the eviction has not been seen yet. The slot of a command is kept while the command lives.
    pub(super) fn keep(&mut self, name: &Name, hook: Option<oneshot::Receiver<Succeeded>>) {
        let Some(token) = self.own.keeper.machine(name).and_then(Machine::stopping) else { return };
        let now = clock::now();
        let drain = self.parts.config.drain;
        // A workload that follows the readiness has as much time as after an expired lease.
        let at_the_latest = self.own.keeper.lease().map_or(now, |lease| lease.ends() + lease.ttl() / 10);
        self.evictions.number += 1;
        let number = self.evictions.number;
        let until = match (drain.release, hook) {
            // There is no workload yet.
            _ if self.parts.command.is_some() && self.running.is_none() => Some(now),
            // The workload was stopped before the agent, or is by then.
            (Release::AtOnce, _) if self.ending.stop_was_requested() => {
                Some(self.ending.deadlines().map_or(now, |deadlines| deadlines.hold_until))
            }
            (Release::AfterWorkload, _) => Some(now + drain.timeout),
            // The hook stops the workload.
            (Release::AtOnce, Some(hook)) => {
                self.evictions.hooks.push(hook.map(move |how| (number, how)).boxed());
                None
            }
            (Release::AtOnce, None) => Some(at_the_latest),
        };
        let seen = self.beside.is_some() && self.is_required(name);
        self.evictions.kept.push(Kept { number, name: name.clone(), token, until, at_the_latest, seen });
    }

    /// Whether a slot that is to be released, by an eviction or the end of the agent, is kept for its workload.
    pub(super) fn withholds(&self) -> bool {
        let withheld =
            |kept: &Kept| self.own.keeper.machine(&kept.name).and_then(Machine::withheld) == Some(kept.token);
        self.evictions.kept.iter().any(withheld)
    }

    /// A hook that stops a workload has ended.
    pub(super) fn hook_ended(&mut self, number: u64, how: Result<Succeeded, RecvError>) {
        let known = self.evictions.kept.iter().find(|kept| kept.number == number);
        if let (Some(Kept { name, .. }), Err(_)) = (known, &how)
            && self.own.keeper.machine(name).is_some_and(|machine| machine.withheld().is_some())
        {
            log_about!(
                warn,
                self.labels.titled_by(name).as_ref(),
                "{STOP_NOT_CONFIRMED}: the slot is kept until the lease of its loss would have expired"
            );
        }
        self.evictions.hook_ended(number, how, clock::now());
    }

    /// Releases the slots whose time has come.
    pub(super) async fn advance_evictions(&mut self, now: Moment) {
        let lives = self.workload_lives();
        let keeper = &self.own.keeper;
        let machine = |kept: &Kept| keeper.machine(&kept.name);
        // A slot that has gone with its session, or is held again, needs nothing more.
        self.evictions.kept.retain(|kept| machine(kept).and_then(Machine::stopping) == Some(kept.token));
        let is_over = |kept: &mut Kept| kept.until.is_some_and(|until| until <= now) && !(kept.seen && lives);
        let over: Vec<_> = self.evictions.kept.extract_if(.., is_over).collect();
        if over.is_empty() {
            return;
        }
        let withheld = |kept: &&Kept| machine(kept).is_some_and(|machine| machine.withheld().is_some());
        let released: Vec<_> = over.iter().filter(withheld).collect();
        for kept in &released {
            log_about!(
                info,
                self.labels.titled_by(&kept.name).as_ref(),
                "{STOP_TIME_ENDED}: releasing the slot"
            );
        }
        if !released.is_empty() {
            self.unready(FILE_TIMEOUT).await;
        }
        for kept in over {
            self.own.keeper.workload_stopped(&kept.name, clock::now());
        }
        // The releases are sent before the loop waits for anything else.
        self.carry_out(clock::now());
    }
}
