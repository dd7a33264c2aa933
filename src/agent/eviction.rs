//! Slots that an operator wants back. Their workload is told, as of a lost slot, and what it was told to leave is given on
//! when it has stopped, as far as that can be known.

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;
use tracing::{info, warn};

use super::Agent;
use super::files::PATIENCE;
use crate::clock;
use crate::config::Release;
use crate::exit::Exit;
use crate::workload::hooks::Succeeded;
use slotkeeper_semaphore::{Machine, Moment, Name, OnLost};

/// What is kept for a workload that is being stopped.
#[derive(Default)]
pub(super) struct Evictions {
    kept: Vec<Kept>,
    hooks: FuturesUnordered<BoxFuture<'static, (u64, Result<Succeeded, RecvError>)>>,
    number: u64,
}

/// A slot that was lost, although nobody else can have it yet.
struct Kept {
    /// Tells it from another time of the same.
    number: u64,
    name: Name,
    token: u64,
    /// When it has had its time; `None`: its hook is the one to say, which ends by itself.
    until: Option<Moment>,
    /// When it has had it without a hook that has stopped it.
    at_the_latest: Moment,
    /// The workload that runs on it can be seen: it is not given on while that lives.
    seen: bool,
}

impl Evictions {
    /// Whether anything is kept.
    pub(super) fn keeps_any(&self) -> bool {
        !self.kept.is_empty()
    }

    /// The next one whose hook has ended, and how; `None` where none runs.
    pub(super) async fn stopped(&mut self) -> Option<(u64, Result<Succeeded, RecvError>)> {
        self.hooks.next().await
    }

    /// That one's hook has ended. One that has failed has stopped nothing, as far as is known.
    pub(super) fn hook_ended(&mut self, number: u64, how: Result<Succeeded, RecvError>, now: Moment) {
        for kept in self.kept.iter_mut().filter(|kept| kept.number == number) {
            kept.until = Some(if how.is_ok() { now } else { kept.at_the_latest });
        }
    }

    /// Everything has had its time by then.
    pub(super) fn end_all(&mut self, by: Moment) {
        for kept in &mut self.kept {
            kept.until = Some(kept.until.map_or(by, |until| until.min(by)));
        }
    }
}

impl Agent {
    /// When something that is kept has been kept for long enough.
    pub(super) fn evictions_deadline(&self) -> Option<Moment> {
        let lives = self.workload_lives();
        self.evictions.kept.iter().filter_map(|kept| kept.until.filter(|_| !(kept.seen && lives))).min()
    }

    /// An operator wants it out. What it holds it loses, which is told next; what it only waits for it does not get.
    pub(super) fn evicted(&mut self, name: &Name, held: bool, by: &str) {
        let exits =
            self.own.keeper.machine(name).is_some_and(|machine| machine.settings().on_lost == OnLost::Exit);
        let awaits_command = self.parts.command.is_some() && self.running.is_none();
        let evicted = format!("evicted from {} by {by}", self.labels.of(name));
        if awaits_command && self.is_required(name) {
            self.fail(Exit::Timeout, &format!("{evicted} before the command had its slot"));
        } else if exits && held && self.withholds() {
            // Its lease had run out before, which was told.
            self.fail(Exit::SlotLost, &format!("{evicted}, and on_lost is `exit`"));
        } else if exits && !held {
            self.fail(Exit::Timeout, &format!("{evicted} while in line, and on_lost is `exit`"));
        }
    }

    /// Keeps a slot that was lost until the workload has stopped, or has had its time: it is not given on before where an
    /// operator wants it, or has wanted it without our having seen that yet. A command's own is kept while it lives.
    pub(super) fn keep(&mut self, name: &Name, hook: Option<oneshot::Receiver<Succeeded>>) {
        let Some(token) = self.own.keeper.machine(name).and_then(Machine::stopping) else { return };
        let now = clock::now();
        let drain = self.parts.config.drain;
        // Whatever looks at our readiness has until the slot would be another's if the lease ran out instead: that is
        // what it is set up for.
        let at_the_latest = self.own.keeper.lease().map_or(now, |lease| lease.ends() + lease.ttl() / 10);
        self.evictions.number += 1;
        let number = self.evictions.number;
        let until = match (drain.release, hook) {
            // There is no workload yet.
            _ if self.parts.command.is_some() && self.running.is_none() => Some(now),
            // Whoever stops us has stopped it, or has by then.
            (Release::AtOnce, _) if self.told_to_stop => {
                Some(self.patience.map_or(now, |patience| patience.holds_until))
            }
            (Release::AfterWorkload, _) => Some(now + drain.timeout),
            // The hook is what stops it.
            (Release::AtOnce, Some(hook)) => {
                self.evictions.hooks.push(hook.map(move |how| (number, how)).boxed());
                None
            }
            (Release::AtOnce, None) => Some(at_the_latest),
        };
        let seen = self.beside.is_some() && self.is_required(name);
        self.evictions.kept.push(Kept { number, name: name.clone(), token, until, at_the_latest, seen });
    }

    /// Whether anything is not given on yet for its workload's sake: an operator wants it, or the agent ends.
    pub(super) fn withholds(&self) -> bool {
        let withheld =
            |kept: &Kept| self.own.keeper.machine(&kept.name).and_then(Machine::withheld) == Some(kept.token);
        self.evictions.kept.iter().any(withheld)
    }

    /// The hook of one has ended that was to stop its workload.
    pub(super) fn hook_ended(&mut self, number: u64, how: Result<Succeeded, RecvError>) {
        let known = self.evictions.kept.iter().find(|kept| kept.number == number);
        if let (Some(Kept { name, .. }), Err(_)) = (known, &how)
            && self.own.keeper.machine(name).is_some_and(|machine| machine.withheld().is_some())
        {
            warn!(
                semaphore = %self.labels.of(name),
                "the hook has not told that the workload has stopped: the slot is kept until the lease of its loss would \
                 have ended"
            );
        }
        self.evictions.hook_ended(number, how, clock::now());
    }

    /// Gives on what has been kept for long enough.
    pub(super) async fn mind_evictions(&mut self, now: Moment) {
        let lives = self.workload_lives();
        let keeper = &self.own.keeper;
        let machine = |kept: &Kept| keeper.machine(&kept.name);
        // What has gone with its session, or is held again, needs nothing more.
        self.evictions.kept.retain(|kept| machine(kept).and_then(Machine::stopping) == Some(kept.token));
        let is_over = |kept: &mut Kept| kept.until.is_some_and(|until| until <= now) && !(kept.seen && lives);
        let over: Vec<_> = self.evictions.kept.extract_if(.., is_over).collect();
        if over.is_empty() {
            return;
        }
        let withheld = |kept: &&Kept| machine(kept).is_some_and(|machine| machine.withheld().is_some());
        let given_on: Vec<_> = over.iter().filter(withheld).collect();
        for kept in &given_on {
            info!(semaphore = %self.labels.of(&kept.name), "the workload has had its time to stop: the slot is given on");
        }
        if !given_on.is_empty() {
            self.unready(PATIENCE).await;
        }
        for kept in over {
            self.own.keeper.give_on(&kept.name, clock::now());
        }
        // What that has led to goes before anything else is waited for.
        self.carry_out(clock::now());
    }
}
