//! How an agent ends: it gives everything back, within `drain.timeout`.

use std::time::Duration;

use tracing::{error, info, warn};

use super::Agent;
use super::files::PATIENCE;
use crate::clock;
use crate::config::{self, Release};
use crate::exit::{Ended, Exit};
use crate::shutdown::Ask;
use crate::status::What;
use crate::workload::signals;
use slotkeeper_semaphore::{Keeper, Machine, Moment, Phase};

/// The longest that a request may take while draining, and its share of the drain's time: a connection that has gone
/// dead must leave time for another attempt on a new one.
const REQUEST: (Duration, u32) = (Duration::from_secs(2), 5);
/// Time that hooks have after a clean drain that nothing has forced.
const HOOKS: Duration = Duration::from_secs(2);

/// Time in which those who follow us hear the last of it, whatever is left, and at most.
const LAST_WORDS: (Duration, Duration) = (Duration::from_millis(150), Duration::from_secs(1));

/// The longest time that is kept for giving everything back, where the workload is waited for before, and its share.
const GIVING_BACK: (Duration, u32) = (Duration::from_secs(5), 4);

/// Names of sessions that are told of one by one.
const MAX_NAMES: usize = 4;

/// The bounds of waiting for the workload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// From here on it is not waited for any more.
    pub(super) holds_until: Moment,
    /// When all has to be over.
    ends: Moment,
    /// The workload is to say that it is done (`drain.release: after_workload`); or nothing is known of it (`drain.hold`).
    is_told: bool,
}

/// The bounds of a drain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drain {
    /// From here on what cannot be given back is left, and the session destroyed all the same.
    pub(super) abandon_at: Moment,
    /// The end.
    pub(super) ends: Moment,
    /// How long a request may take.
    pub(super) request: Duration,
    /// It began while the session was not this agent's alone.
    contested: bool,
}

/// Why the slots of a session that was resumed are not given back.
const CONTESTED: &str = "the session was resumed from an agent that may still run, and belongs to this one only two TTLs after that \
     agent was told";

/// What is said of creations whose outcome is not known.
struct Unanswered {
    /// The sessions' names; empty where there are none.
    names: String,
    /// Why Consul does not say whether they are there, where it refuses.
    refused: Option<String>,
}

impl Agent {
    /// Told to stop, for the first time.
    pub(super) fn stop(&mut self) {
        self.told_to_stop = true;
        let config::Drain { timeout, release, hold } = self.parts.config.drain;
        // What was lost counts while its workload is being stopped.
        let has = |one: &Machine| matches!(one.phase(), Phase::Held { .. }) || one.stopping().is_some();
        let holds = self.own.keeper.machines().any(has) || self.leases.any_held();
        let now = clock::now();
        let (waits, ends) = match release {
            Release::AtOnce => (hold, now + hold + timeout),
            Release::AfterWorkload => (timeout - GIVING_BACK.0.min(timeout / GIVING_BACK.1), now + timeout),
        };
        if release == Release::AtOnce {
            // Whoever stops us has stopped the workload first, or does not mean to.
            self.evictions.end_all(now + hold);
        }
        let ended = self.ending.is_some() && !self.withholds();
        if waits.is_zero() || !holds || ended {
            return self.end(Exit::Done, "told to stop");
        }
        let is_told = release == Release::AfterWorkload;
        self.patience = Some(Patience { holds_until: now + waits, ends, is_told });
        if is_told {
            info!(
                "told to stop: holding on until the workload says that it is done (POST /v1/drain), at most {waits:?}; a \
                 second signal ends the wait"
            );
        } else {
            info!("told to stop: holding on for {waits:?}, in which the workload may still live");
        }
    }

    /// Whether it goes on holding although it was told to stop.
    pub(super) fn holds_on(&self) -> bool {
        self.patience.is_some() && (self.ending.is_none() || self.withholds())
    }

    /// Waits for the workload no longer than it may.
    pub(super) fn mind_patience(&mut self, now: Moment) {
        let over = self.patience.filter(|patience| patience.holds_until <= now && self.holds_on());
        match over {
            Some(Patience { is_told: true, .. }) => {
                warn!(
                    "the workload has not said that it is done in time: what it held may be somebody else's now"
                );
                self.wait_no_longer("the workload was waited for in vain");
            }
            Some(_) => self.wait_no_longer("told to stop"),
            None => {}
        }
    }

    /// Whether it waits for a word of the workload's, which a second signal stands for.
    pub(super) fn awaits_word(&self) -> bool {
        self.holds_on() && self.patience.is_some_and(|patience| patience.is_told)
    }

    /// The workload says that it is done.
    pub(super) fn workload_is_done(&mut self) {
        match &mut self.running {
            // Its end ends us, with its code.
            Some(running) => running.stop(clock::now()),
            None if self.parts.command.is_some() => {
                self.fail(Exit::Timeout, "told to drain before the command had its slot");
            }
            None => self.wait_no_longer("the workload is done"),
        }
    }

    /// Ends, and waits for no workload any more.
    pub(super) fn wait_no_longer(&mut self, why: &str) {
        if self.ending.is_some() {
            info!("the workload is not waited for any more: {why}");
        }
        self.evictions.end_all(clock::now());
        self.end(Exit::Done, why);
    }

    /// Asks for an end that is not the workload's doing, nor one in order: the first reason is what is told of it in the end.
    pub(super) fn fail(&mut self, exit: Exit, why: &str) {
        if self.ending.is_none() {
            self.why = Some(why.to_owned());
        }
        self.end(exit, why);
    }

    /// Asks for the end; the first one to ask says how. From here on nobody takes us for ready, and nothing new is taken.
    pub(super) fn end(&mut self, exit: Exit, why: &str) {
        if self.ending.is_none() {
            let now = clock::now();
            let timeout = self.drain_time(now);
            self.own.keeper.ask_no_more(now);
            self.leases.ask_no_more(now);
            self.look_beside();
            if self.workload_lives() {
                info!(
                    "draining, once the workload has ended: {why}; then at most {timeout:?}. A second signal leaves at once, and \
                     without giving anything back"
                );
            } else if self.withholds() {
                info!(
                    "draining, once the workload has had its time to stop: {why}; then at most {timeout:?}"
                );
            } else {
                info!("draining: {why}; at most {timeout:?}, and a second signal ends at once");
            }
            self.ending = Some(exit);
            self.journal.note(What::Draining, None, Some(why.to_owned()));
        }
    }

    /// Begins to give everything back: nobody may take us for ready when the first slot goes.
    pub(super) async fn begin_drain(&mut self) {
        let now = clock::now();
        let timeout = self.drain_time(now);
        let request = REQUEST.0.min(timeout / REQUEST.1);
        let contested = self.own.keeper.is_contested();
        self.drain =
            Some(Drain { abandon_at: now + timeout * 3 / 4, ends: now + timeout, request, contested });
        self.publish(now);
        self.unready(PATIENCE.min(timeout / 8)).await;
        // Whoever came back with it after we were killed meanwhile would take up what our last requests, still on
        // their way, are about to give back. Of a session that another process may still use, nothing is given back yet.
        if !contested {
            self.forget_session(timeout).await;
        }
        // What was asked for before has no more time than what is to come, and stands before it in the line.
        self.client.hurry(request);
        let now = clock::now();
        self.own.keeper.drain(now);
        self.leases.drain(now);
    }

    /// Removes the state file that was kept since another process might still use the session, where it has ended by now.
    pub(super) async fn forget_contested(&mut self) {
        if self.own.keeper.has_ended() && self.drain.is_some_and(|drain| drain.contested) {
            self.forget_session(self.parts.config.drain.timeout).await;
        }
    }

    /// Removes the state file, so that nobody takes the session up.
    async fn forget_session(&mut self, timeout: Duration) {
        if let Some(state) = &mut self.parts.files.state {
            state.clear(PATIENCE.min(timeout / 8)).await;
        }
    }

    /// Whether what is left cannot be given back within the drain, since another process may believe in it until later.
    pub(super) fn leaves_contested(&self, now: Moment) -> bool {
        let contested = self.drain.zip(self.own.keeper.contest_ends(now));
        contested.is_some_and(|(drain, ends)| drain.abandon_at <= ends) && self.leases.is_empty()
    }

    /// Whether nothing is left to be given back.
    pub(super) fn everything_has_ended(&self) -> bool {
        self.own.keeper.has_ended() && self.leases.is_empty()
    }

    /// Time for giving everything back: what waiting for the workload has left of `drain.timeout`.
    fn drain_time(&self, now: Moment) -> Duration {
        self.patience.map_or(self.parts.config.drain.timeout, |patience| patience.ends.since(now))
    }

    /// Waits until the readiness file is gone, where it ought to be.
    pub(super) async fn unready(&mut self, patience: Duration) {
        if let Some(readiness) = &mut self.parts.files.readiness {
            readiness.settled(patience).await;
        }
    }

    /// The sessions that Consul may have created although it never said so.
    fn unanswered(&self) -> Unanswered {
        let keepers =
            || std::iter::once(&self.own.keeper).chain(self.leases.iter().map(|(_, keeper)| keeper));
        let names: Vec<_> = keepers().flat_map(Keeper::unanswered).collect();
        let shown = names.iter().take(MAX_NAMES).map(|mark| format!("`{} {mark}`", self.spec.name));
        let more = names.len().checked_sub(MAX_NAMES).filter(|more| *more > 0);
        let shown: Vec<_> = shown.chain(more.map(|more| format!("and {more} more"))).collect();
        let refused = keepers().find_map(Keeper::unanswered_refused).filter(|_| !names.is_empty());
        Unanswered { names: shown.join(", "), refused: refused.map(str::to_owned) }
    }

    /// What is left to do once everything was given back, or the time for that is over. A second signal ends it.
    pub(super) async fn finish(mut self) -> Ended {
        let unanswered = self.unanswered();
        let clean = self.everything_has_ended() && !self.abandoned && unanswered.refused.is_none();
        let keepers =
            || std::iter::once(&self.own.keeper).chain(self.leases.iter().map(|(_, keeper)| keeper));
        // One with nothing to hold has asked nothing.
        let in_vain = self.own.keeper.machines().next().is_some() && !self.own.keeper.has_reached_consul();
        let exit = match self.ending {
            Some(Exit::Done) | None if !clean => Exit::Failed,
            ending => ending.unwrap_or(Exit::Done),
        };
        if clean && !unanswered.names.is_empty() {
            info!(
                "drained: neither slot nor session of ours is left in Consul, unless it still creates the session that \
                 it was asked for without an answer ({}), which then ends by its TTL",
                unanswered.names
            );
        } else if clean && in_vain && !self.leases.have_reached_consul() {
            info!("drained: Consul has never answered, so there is nothing to give back");
        } else if clean {
            info!("drained: neither slot nor session of ours is left in Consul");
        } else if self.leaves_contested(clock::now()) {
            self.leaves(format!(
                "slots and session are left as they are: {CONTESTED}. The next agent with this session.state_file takes \
                 them up; otherwise they are given on once the session has ended, by its TTL"
            ));
        } else if let Some(why) =
            unanswered.refused.filter(|_| self.everything_has_ended() && !self.abandoned)
        {
            self.leaves(format!(
                "everything that is known was given back, but the creation of a session was not answered, and Consul \
                 does not say whether there is one ({}): {why}. It ends by its TTL; to destroy it before, find it by its \
                 name with slotkeeper sessions",
                unanswered.names
            ));
        } else {
            let machines = keepers().flat_map(Keeper::machines).filter_map(Machine::trouble);
            let contested = self.own.keeper.is_contested().then_some(CONTESTED);
            let why = keepers().filter_map(Keeper::trouble).chain(machines).chain(contested).next();
            let why = why.unwrap_or("it takes too long");
            let besides = if unanswered.names.is_empty() {
                String::new()
            } else {
                let names = unanswered.names;
                format!(
                    ". Whether it has created a session of ours without having said so is not known ({names})"
                )
            };
            let left = format!(
                "not everything could be given back within drain.timeout ({:?}): {why}. What is left in Consul is \
                 given on once the session has ended, within two of its TTLs{besides}",
                self.parts.config.drain.timeout
            );
            self.leaves(left);
        }
        let left = self.drain.map_or(Duration::ZERO, |drain| drain.ends.since(clock::now()));
        // Last of all, since everything before it needs the token.
        let client = self.client.within(left.min(REQUEST.0));
        let log_out = async {
            if let Err(error) = client.log_out_for_good().await {
                warn!("{error}. The token of the login stays until its auth method's MaxTokenTTL");
            }
        };
        // Whoever follows us is told how it ended, and that it has.
        drop(self.parts.status);
        // After a loss a hook may be what stops the workload; otherwise it must not hold us up.
        let patience = if exit == Exit::SlotLost { left } else { left.min(HOOKS) };
        let mut asks = self.parts.asks;
        tokio::select! {
            ((), ()) = async { tokio::join!(self.hooks.finish(patience), log_out) } => {}
            () = told_to_stop(&mut asks) => {
                warn!("told to stop again: leaving at once, without waiting for hooks");
                return Ended { exit, why: self.why };
            }
        }
        let left = self.drain.map_or(Duration::ZERO, |drain| drain.ends.since(clock::now()));
        self.parts.servers.end(left.clamp(LAST_WORDS.0, LAST_WORDS.1)).await;
        Ended { exit, why: self.why }
    }

    /// Something is left in Consul, which is what the end is told to be about where all else went as it should.
    fn leaves(&mut self, what: String) {
        error!("{what}");
        if matches!(self.ending, Some(Exit::Done) | None) {
            self.why = Some(what);
        }
    }
}

async fn told_to_stop(asks: &mut crate::shutdown::Asks) {
    loop {
        match asks.next().await {
            Ask::Stop => return,
            Ask::Signal(signal) if signals::ends(signal) => return,
            Ask::Reload | Ask::Signal(_) => {}
        }
    }
}
