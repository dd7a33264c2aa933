//! Slots that an operator wants back. Their workload is told, as of a lost slot, and what it was told to leave is given on
//! when it has stopped, as far as that can be known.

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::oneshot;
use tracing::info;

use super::Agent;
use super::files::PATIENCE;
use crate::cli::Exit;
use crate::clock;
use crate::config::Release;
use crate::semaphore::{Machine, Moment, Name, OnLost};

/// A slot that is kept: of that name, held under that token.
type Slot = (Name, u64);

/// What is kept for a workload that is being stopped.
#[derive(Default)]
pub(super) struct Evictions {
    /// Each until then at the latest; `None`: until its hook has ended, which ends by itself.
    kept: Vec<(Slot, Option<Moment>)>,
    hooks: FuturesUnordered<BoxFuture<'static, Slot>>,
}

impl Evictions {
    pub(super) fn any(&self) -> bool {
        !self.kept.is_empty()
    }

    pub(super) fn deadline(&self) -> Option<Moment> {
        self.kept.iter().filter_map(|(_, until)| *until).min()
    }

    /// The next one whose hook has ended; `None` where none runs.
    pub(super) async fn stopped(&mut self) -> Option<Slot> {
        self.hooks.next().await
    }

    /// From here on that one is kept no longer.
    pub(super) fn end(&mut self, slot: &Slot, now: Moment) {
        for (_, until) in self.kept.iter_mut().filter(|(kept, _)| kept == slot) {
            *until = Some(now);
        }
    }

    pub(super) fn end_all(&mut self, now: Moment) {
        for (_, until) in &mut self.kept {
            *until = Some(now);
        }
    }
}

impl Agent {
    /// An operator wants it out. What it holds it loses, which is told next; what it only waits for it does not get.
    pub(super) fn evicted(&mut self, name: &Name, held: bool) {
        let exits =
            self.own.keeper.machine(name).is_some_and(|machine| machine.settings().on_lost == OnLost::Exit);
        let awaits_command = self.parts.command.is_some() && self.running.is_none();
        if awaits_command && self.is_required(name) {
            self.end(Exit::NotInTime, "evicted before the command had its slot");
        } else if exits && !held {
            self.end(Exit::NotInTime, "evicted from the line, and on_lost is `exit`");
        }
    }

    /// Keeps a slot that was lost by an eviction until the workload has stopped, or has had its time. A command's own
    /// is kept while it lives.
    pub(super) fn withhold(&mut self, name: &Name, hook: Option<oneshot::Receiver<()>>) {
        let Some(token) = self.own.keeper.machine(name).and_then(Machine::withheld) else { return };
        let slot = (name.clone(), token);
        let now = clock::now();
        let drain = self.parts.config.drain;
        let until = match (drain.release, hook) {
            // There is no workload yet.
            _ if self.parts.command.is_some() && self.running.is_none() => Some(now),
            (Release::AfterWorkload, _) => Some(now + drain.timeout),
            // The hook is what stops it.
            (Release::AtOnce, Some(hook)) => {
                let slot = slot.clone();
                self.evictions.hooks.push(hook.map(move |_over| slot).boxed());
                None
            }
            // Whatever looks at our readiness has until the slot would be another's if the lease ran out instead: that is
            // what it is set up for.
            (Release::AtOnce, None) => {
                Some(self.own.keeper.lease().map_or(now, |lease| lease.ends() + lease.ttl() / 10))
            }
        };
        self.evictions.kept.push((slot, until));
    }

    /// Gives on what has been kept for long enough.
    pub(super) async fn mind_evictions(&mut self, now: Moment) {
        let withheld =
            |(name, token): &Slot| self.own.keeper.machine(name).and_then(Machine::withheld) == Some(*token);
        // What has gone with its session needs nothing more.
        self.evictions.kept.retain(|(slot, _)| withheld(slot));
        let is_over = |until: &mut Option<Moment>| until.is_some_and(|until| until <= now);
        let over: Vec<_> = self.evictions.kept.extract_if(.., |(_, until)| is_over(until)).collect();
        if over.is_empty() {
            return;
        }
        self.unready(PATIENCE).await;
        for ((name, _), _) in over {
            info!(semaphore = %name, "the workload has had its time to stop: the slot is given on");
            self.own.keeper.give_on(&name, clock::now());
        }
        // What that has led to goes before anything else is waited for.
        self.carry_out();
    }
}
