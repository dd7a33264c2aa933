//! How an agent ends: it releases everything, within `drain.timeout`.

mod state;

use std::time::Duration;

use rustix::process::{Pid, getppid};
use tracing::{error, info, warn};

use super::Agent;
use super::files::FILE_TIMEOUT;
use crate::about::log_about;
use crate::bridge;
use crate::clock;
use crate::config::{self, Release};
use crate::exit::{Ended, Exit};
use crate::log_events::{
    DRAIN_AWAITS_STOP_TIME, DRAIN_AWAITS_WORKLOAD, DRAIN_STARTED, DRAIN_TIMED_OUT, DRAINED, HOLDING_FOR_TIME,
    HOLDING_UNTIL_DONE, LEASES_LEFT, LOGOUT_FAILED, STOP_REPEATED, WORKLOAD_NOT_DONE, WORKLOAD_WAIT_ENDED,
};
use crate::shutdown::SignalRequest;
use crate::status::Event;
use crate::workload::{Offer, signals};
use slotkeeper_semaphore::{Keeper, Machine, Moment, Phase};

pub(super) use state::{Drain, DrainDeadlines, Ending};

/// A request while draining takes at most this long, and at most this share of the drain: a dead connection must leave time
/// for an attempt on a new one.
const MAX_REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
const REQUESTS_PER_DRAIN: u32 = 5;
/// The drain of an agent without a session, and of a `run` whose wait timed out. A session may exist whose creation Consul has not
/// answered, and a contender key: both end by the TTL. With [`MIN_SHUTDOWN_FLUSH`] it is less than a second.
const MAX_DRAIN_OF_NOTHING: Duration = Duration::from_millis(500);
/// Time that hooks have after a clean drain that nothing has forced.
const HOOKS_TIMEOUT: Duration = Duration::from_secs(2);

/// Time in which followers of the endpoints hear of the end: at least, and at most.
const MIN_SHUTDOWN_FLUSH: Duration = Duration::from_millis(150);
const MAX_SHUTDOWN_FLUSH: Duration = Duration::from_secs(1);

/// Where the workload is waited for before, releasing keeps this share of `drain.timeout`, and at most this time.
const RELEASE_SHARE: u32 = 4;
const MAX_RELEASE_TIME: Duration = Duration::from_secs(5);

impl Agent {
    /// A stop was requested, for the first time.
    pub(super) fn stop(&mut self) {
        let config::Drain { timeout, release, hold } = self.parts.config.drain;
        let holds = self.holds();
        let now = clock::now();
        let (waits, ends) = match release {
            Release::AtOnce => (hold, now + hold + timeout),
            Release::AfterWorkload => {
                (timeout - MAX_RELEASE_TIME.min(timeout / RELEASE_SHARE), now + timeout)
            }
        };
        if release == Release::AtOnce {
            // The workload was stopped before the agent, or is not meant to be stopped.
            self.evictions.end_all(now + hold);
        }
        let ended = self.ending.is_decided() && !self.withholds();
        if waits.is_zero() || !holds || ended {
            self.end(Exit::Done, "stop requested");
            return self.ending.note_stop();
        }
        let until_done = release == Release::AfterWorkload;
        self.ending.hold(DrainDeadlines { hold_until: now + waits, ends, until_done });
        if until_done {
            info!(at_most = ?waits, "{HOLDING_UNTIL_DONE} (POST /v1/drain); a second signal ends the wait");
        } else {
            info!(hold = ?waits, "{HOLDING_FOR_TIME}");
        }
    }

    /// Whether the agent or one of its clients holds a slot. What was lost counts while its workload is being stopped.
    pub(super) fn holds(&self) -> bool {
        let has = |one: &Machine| matches!(one.phase(), Phase::Held { .. }) || one.stopping().is_some();
        self.own.keeper.machines().any(has) || !self.leases.out().is_empty()
    }

    /// Until when the agent holds its slots for the workload although a stop was requested.
    pub(super) fn holds_on(&self) -> Option<DrainDeadlines> {
        self.ending.deadlines().filter(|_| !self.ending.is_decided() || self.withholds())
    }

    /// Ends the wait for the workload at its deadline.
    pub(super) fn advance_drain_deadlines(&mut self, now: Moment) {
        match self.holds_on().filter(|deadlines| deadlines.hold_until <= now) {
            Some(DrainDeadlines { until_done: true, .. }) => {
                warn!("{WORKLOAD_NOT_DONE}: its slots are released while it may still run");
                self.wait_no_longer("the workload did not say in time that it is done");
            }
            Some(_) => self.wait_no_longer("stop requested"),
            None => {}
        }
    }

    /// Whether the agent waits for the workload to say that it is done. A second signal says it too.
    pub(super) fn awaits_done(&self) -> bool {
        self.holds_on().is_some_and(|deadlines| deadlines.until_done)
    }

    /// The workload says that it is done.
    pub(super) fn workload_is_done(&mut self) {
        match &mut self.running {
            // Its end ends the agent, with its code.
            Some(running) => running.stop(clock::now()),
            None if self.parts.command.is_some() => {
                self.fail(Exit::Timeout, "drain requested before the command had its slot");
            }
            None => self.wait_no_longer("the workload is done"),
        }
    }

    /// Ends the agent without waiting for the workload any longer.
    pub(super) fn wait_no_longer(&mut self, why: &str) {
        if self.ending.is_decided() {
            info!(reason = %why, "{WORKLOAD_WAIT_ENDED}");
        }
        self.evictions.end_all(clock::now());
        self.end(Exit::Done, why);
    }

    /// Decides on an end that has to be explained. The first decision counts.
    pub(super) fn fail(&mut self, exit: Exit, why: &str) {
        self.decide(exit, why, Some(why));
    }

    /// Decides on the end. The first decision counts. From here on the agent is not ready and acquires nothing.
    pub(super) fn end(&mut self, exit: Exit, why: &str) {
        self.decide(exit, why, None);
    }

    fn decide(&mut self, exit: Exit, why: &str, explanation: Option<&str>) {
        if !self.ending.is_decided() {
            let now = clock::now();
            let timeout = self.drain_time(Some(exit), now);
            self.own.keeper.stop_acquiring(now);
            self.leases.ask_no_more(now);
            self.look_beside();
            if self.workload_lives() {
                log_about!(
                    info, Event::Draining, reason = %why, ?timeout,
                    "{DRAIN_AWAITS_WORKLOAD}; a second signal ends the agent at once, without releasing anything"
                );
            } else if self.withholds() {
                log_about!(info, Event::Draining, reason = %why, ?timeout, "{DRAIN_AWAITS_STOP_TIME}");
            } else {
                log_about!(info, Event::Draining, reason = %why, ?timeout, "{DRAIN_STARTED}; a second signal ends the agent at once");
            }
            self.ending.decide(exit, explanation);
            self.journal.note(Event::Draining, None, Some(why.to_owned()));
        }
    }

    /// Begins to release everything. The readiness file goes before the first slot does.
    pub(super) async fn begin_drain(&mut self) {
        let now = clock::now();
        let timeout = self.drain_time(self.ending.exit(), now);
        let request_timeout =
            (timeout / REQUESTS_PER_DRAIN).max(MAX_DRAIN_OF_NOTHING / 2).min(MAX_REQUEST_TIMEOUT);
        self.ending.begin_drain(Drain {
            abandon_at: Some(now + timeout * 3 / 4),
            abandoned: false,
            ends: now + timeout,
            request_timeout,
        });
        self.publish(now);
        self.unready(FILE_TIMEOUT.min(timeout / 8)).await;
        // Killed from here on, the next process must not resume the session: requests under way would release what it
        // holds.
        if let Some(state) = &mut self.parts.files.state {
            state.clear(FILE_TIMEOUT.min(timeout / 8)).await;
        }
        // Requests under way get no more time than those of the drain, which wait behind them.
        self.client.hurry(request_timeout);
        let now = clock::now();
        self.own.keeper.drain(now);
        // No process of the workload is left. Without that knowledge a lease stays its client's.
        if self.is_run || self.beside.is_some() {
            self.leases.drain(now);
        }
    }

    /// Whether nothing is left to be released.
    pub(super) fn everything_has_ended(&self) -> bool {
        self.has_released() && self.leases.is_empty()
    }

    /// Whether everything is released except the leases that their clients may still use.
    pub(super) fn is_released(&self) -> bool {
        self.has_released() && self.leases.out().len() == self.leases.iter().count()
    }

    fn has_released(&self) -> bool {
        self.own.keeper.has_ended() || self.handed_over
    }

    /// Whether all slots are released, and some of them are not accepted by those to whom they were offered.
    pub(super) fn only_awaits_takers(&self) -> bool {
        let mut machines = self.own.keeper.machines();
        machines.all(Machine::is_gone) && self.own.keeper.machines().any(Machine::owes)
    }

    /// Whether nothing is left to do but to wait until waiters accept the slots that were offered to them, and a guard is there that
    /// can wait: the exit code of the command does not.
    pub(super) fn may_hand_over(&self) -> bool {
        let mut machines = self.own.keeper.machines();
        let is_left =
            self.own.keeper.session().is_some() && machines.any(|one| one.open_offers().next().is_some());
        is_left
            && self.guard.is_some()
            && self.ending.drain().is_some()
            && self.own.keeper.machines().all(Machine::is_gone)
            && self.leases.is_empty()
    }

    /// Leaves the open offers to the guard, if that is still there.
    pub(super) async fn hand_over(&mut self) {
        let offer = |one: &Machine| {
            let prefix = &one.settings().prefix;
            let offers = one.open_offers().map(|(taker, index)| Offer {
                prefix: prefix.clone(),
                taker: taker.as_str().to_owned(),
                index,
            });
            offers.collect::<Vec<_>>()
        };
        let offers = self.own.keeper.machines().flat_map(offer).collect();
        let holdings = self.holdings();
        if let Some(mut guard) = self.guard.take() {
            // The token may be another one by now.
            if let Some(holdings) = holdings {
                guard.holds(holdings);
            }
            self.handed_over = guard.dismiss(offers).await;
            self.guard = Some(guard).filter(|_| self.handed_over);
        }
    }

    /// Lets the guard of the ended command go, with nothing to do.
    pub(super) async fn dismiss_guard(&mut self) {
        if let Some(guard) = self.guard.as_mut().filter(|guard| guard.has_guard()) {
            guard.dismiss(Vec::new()).await;
        }
    }

    /// Time for releasing everything: what the wait for the workload has left of `drain.timeout`.
    fn drain_time(&self, exit: Option<Exit>, now: Moment) -> Duration {
        let deadlines = self.ending.deadlines();
        let time = deadlines.map_or(self.parts.config.drain.timeout, |deadlines| deadlines.ends.since(now));
        let has_none = self.keepers().all(|keeper| keeper.session().is_none()) && !self.resumes;
        let timed_out = self.is_run && matches!(exit, Some(Exit::Timeout | Exit::Unavailable));
        if (has_none || timed_out) && !self.holds() { time.min(MAX_DRAIN_OF_NOTHING) } else { time }
    }

    fn keepers(&self) -> impl Iterator<Item = &Keeper> {
        std::iter::once(&self.own.keeper).chain(self.leases.iter().map(|(_, keeper)| keeper))
    }

    /// Waits until the readiness file is as it should be.
    pub(super) async fn unready(&mut self, timeout: Duration) {
        if let Some(readiness) = &mut self.parts.files.readiness {
            readiness.settled(timeout).await;
        }
    }

    /// Ends the agent after the drain: logs the outcome, runs the last hooks, logs out. A second signal cuts it short.
    pub(super) async fn finish(mut self) -> Ended {
        // An agent with nothing to hold has sent no request.
        let in_vain = self.own.keeper.machines().next().is_some() && !self.own.keeper.has_reached_consul();
        let never_answered = in_vain && !self.resumes && !self.leases.have_reached_consul();
        let clean = never_answered || self.is_released() && !self.ending.has_abandoned();
        self.dismiss_guard().await;
        let out = self.leases.out();
        let exit = match self.ending.exit() {
            Some(Exit::Done) | None if !clean || !out.is_empty() => Exit::Failed,
            exit => exit.unwrap_or(Exit::Done),
        };
        if let Some(until) = out.iter().max().filter(|_| clean) {
            let (leases, until) = (out.len(), clock::wall().text(*until));
            let what = format!(
                "{LEASES_LEFT}: {leases} at the end of the drain. They are the clients' until they expire, at the latest at \
                 {until}, and their slots are free once the sessions have ended, within two TTLs"
            );
            warn!("{what}");
            self.ending.explain_left(what);
        } else if clean && never_answered {
            info!("{DRAINED}: Consul has never answered, so there is nothing to release");
        } else if clean && self.handed_over {
            info!("{DRAINED}: the guard waits until the next holders have begun, and ends the session");
        } else if clean {
            info!("{DRAINED}: no slot and no session of this agent is left in Consul");
        } else {
            let machines = self.keepers().flat_map(Keeper::machines).filter_map(Machine::failure);
            let why = self.keepers().filter_map(Keeper::failure).chain(machines).next();
            let why = why.unwrap_or("Consul has not answered in time");
            let left = format!(
                "{DRAIN_TIMED_OUT}: not everything was released in time: {why}. What is left in Consul is free once the \
                 session has ended, within two of its TTLs"
            );
            self.leaves(left);
        }
        let drain_ends = self.ending.drain().map(|drain| drain.ends);
        let left = || drain_ends.map_or(Duration::ZERO, |ends| ends.since(clock::now()));
        // Last of all, since everything before it needs the token.
        let client = self.client.within(left().min(MAX_REQUEST_TIMEOUT));
        let handed_over = self.handed_over;
        // The guard needs the token, and logs out.
        let log_out = async {
            if !handed_over && let Err(error) = client.log_out_for_good().await {
                warn!(
                    error = %bridge::message(&error),
                    "{LOGOUT_FAILED}; the token stays valid for the auth method's MaxTokenTTL"
                );
            }
        };
        // Followers of the endpoints see the end.
        drop(self.parts.status);
        // After a loss a hook may be what stops the workload; otherwise it must not delay the end.
        let hooks_timeout = if exit == Exit::SlotLost { left() } else { left().min(HOOKS_TIMEOUT) };
        let mut signals = self.parts.signals;
        // A container ends with its first process, and the guard with the container.
        let guard = self.guard.filter(|_| handed_over && getppid().is_some_and(Pid::is_init));
        let guard_end = async {
            if let Some(mut guard) = guard {
                guard.guard_ended().await;
            }
        };
        tokio::select! {
            ((), (), ()) = async { tokio::join!(self.hooks.finish(hooks_timeout), log_out, guard_end) } => {}
            () = stop_requested(&mut signals) => {
                warn!("{STOP_REPEATED}: exiting at once, without waiting for hooks");
                return self.ending.ended(exit);
            }
        }
        self.parts.servers.end(left().clamp(MIN_SHUTDOWN_FLUSH, MAX_SHUTDOWN_FLUSH)).await;
        self.ending.ended(exit)
    }

    /// Something is left in Consul, which explains the end unless the exit code says something else.
    fn leaves(&mut self, what: String) {
        error!("{what}");
        self.ending.explain_left(what);
    }
}

async fn stop_requested(signals: &mut crate::shutdown::SignalRequests) {
    loop {
        match signals.next().await {
            SignalRequest::Stop => return,
            SignalRequest::Signal(signal) if signals::ends(signal) => return,
            SignalRequest::Reload | SignalRequest::Signal(_) => {}
        }
    }
}
