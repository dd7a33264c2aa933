//! How an agent ends: it gives everything back, within `drain.timeout`.

use std::time::Duration;

use tracing::{error, info, warn};

use super::Agent;
use super::files::PATIENCE;
use crate::cli::Exit;
use crate::clock;
use crate::semaphore::{Machine, Moment};
use crate::shutdown::Ask;
use crate::status::Stage;

/// The longest that a request may take while draining, and its share of the drain's time: a connection that has gone
/// dead must leave time for another attempt on a new one.
const REQUEST: (Duration, u32) = (Duration::from_secs(2), 5);
/// Time that hooks have after a clean drain that nothing has forced.
const HOOKS: Duration = Duration::from_secs(2);

/// The bounds of a drain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drain {
    /// From here on what cannot be given back is left, and the session destroyed all the same.
    pub(super) abandon_at: Moment,
    /// The end.
    pub(super) ends: Moment,
    /// How long a request may take.
    pub(super) request: Duration,
}

impl Agent {
    /// Asks for the end; the first one to ask says how.
    pub(super) fn end(&mut self, exit: Exit, why: &str) {
        if self.ending.is_none() {
            let timeout = self.parts.config.drain.timeout;
            info!("draining: {why}; at most {timeout:?}, and a second signal ends at once");
            self.ending = Some(exit);
        }
    }

    /// Begins to give everything back: nobody may take us for ready when the first slot goes.
    pub(super) async fn begin_drain(&mut self) {
        let (now, timeout) = (clock::now(), self.parts.config.drain.timeout);
        let request = REQUEST.0.min(timeout / REQUEST.1);
        self.drain = Some(Drain { abandon_at: now + timeout * 3 / 4, ends: now + timeout, request });
        self.stage = Stage::Draining;
        self.publish(now);
        self.unready(PATIENCE.min(timeout / 8)).await;
        // Whoever came back with it after we were killed meanwhile would take up what our last requests, still on
        // their way, are about to give back.
        if let Some(state) = &mut self.parts.files.state {
            state.clear(PATIENCE.min(timeout / 8)).await;
        }
        self.keeper.drain(clock::now());
    }

    /// Waits until the readiness file is gone, where it ought to be.
    pub(super) async fn unready(&mut self, patience: Duration) {
        if let Some(readiness) = &mut self.parts.files.readiness {
            readiness.settled(patience).await;
        }
    }

    /// What is left to do once everything was given back, or the time for that is over. A second signal ends it.
    pub(super) async fn finish(self) -> Exit {
        let clean = self.keeper.has_ended() && !self.abandoned;
        let exit = match self.ending {
            Some(Exit::Done) | None if !clean => Exit::Failed,
            ending => ending.unwrap_or(Exit::Done),
        };
        if clean && !self.keeper.has_reached_consul() {
            info!("drained: Consul has never answered, so there is nothing to give back");
        } else if clean {
            info!("drained: nothing of ours is left in Consul");
        } else {
            let machines = self.keeper.machines().filter_map(Machine::trouble);
            let why = self.keeper.trouble().into_iter().chain(machines).next().unwrap_or("it takes too long");
            error!(
                "not everything could be given back within drain.timeout ({:?}): {why}. What is left in Consul is \
                 given on once the session has ended, by its TTL at the latest",
                self.parts.config.drain.timeout
            );
        }
        let left = self.drain.map_or(Duration::ZERO, |drain| drain.ends.since(clock::now()));
        // After a loss a hook may be what stops the workload; otherwise it must not hold us up.
        let patience = if exit == Exit::SlotLost { left } else { left.min(HOOKS) };
        let mut asks = self.parts.asks;
        tokio::select! {
            () = self.hooks.finish(patience) => exit,
            () = told_to_stop(&mut asks) => {
                warn!("told to stop again: leaving at once, without waiting for hooks");
                exit
            }
        }
    }
}

async fn told_to_stop(asks: &mut crate::shutdown::Asks) {
    while asks.next().await == Ask::Reload {}
}
