//! The command that runs on the slots: when it begins, what it is told, and what its end means.
//!
//! Nothing is given back while it lives: the keeper is told that its slots are occupied, and the drain begins when
//! nothing of it is left.

use std::collections::BTreeSet;

use rustix::process::{Signal, getpid, kill_current_process_group, kill_process};
use signal_hook::consts::{SIGCONT, SIGTSTP};
use tracing::{debug, error, info, warn};

use super::{Agent, translate};
use crate::clock;
use crate::config::{self, Behavior};
use crate::exit::Exit;
use crate::shutdown::ECHO;
use crate::status::{Mode, Snapshot};
use crate::workload::guard::fence::{self, Why};
use crate::workload::orphans::{self, Orphans};
use crate::workload::{Command, Holdings, Running, Told, signals};
use slotkeeper_semaphore::{Lease, Moment, Resume};

/// What has become of the command; waits for ever where there is none.
pub(super) async fn next(running: &mut Option<Running>) -> Told {
    match running {
        Some(running) => running.next().await,
        None => std::future::pending().await,
    }
}

/// Waits until a child has ended that may be nobody's.
pub(super) async fn orphan_ended(orphans: &mut Option<Orphans>) {
    match orphans {
        Some(orphans) => orphans.ended().await,
        None => std::future::pending().await,
    }
}

impl Agent {
    /// Reaps what a hook has left behind.
    pub(super) fn reap_orphans(&self) {
        let mut own = self.hooks.processes();
        own.push(self.running.as_ref().and_then(Running::guard));
        orphans::reap(&own);
    }

    /// Begins the command once all that it needs is held, tells it of renewals, and of the end.
    pub(super) async fn mind_command(&mut self, now: Moment) {
        let lease = self.own.keeper.lease().map(Lease::ends);
        let holdings = self.running.as_ref().and_then(|_| self.holdings());
        if let Some(running) = &mut self.running {
            if let Some(holdings) = holdings {
                running.holds(holdings);
            }
            if self.ending.is_some() {
                running.stop(now);
            } else if let Some(ends) = lease {
                running.lease(ends);
            }
            if running.deadline() <= now {
                running.kill();
            }
        } else if self.ready
            && let Some((command, ends)) = self.parts.command.clone().zip(lease)
            && fence::may_start(ends, command.kill_after, now)
        {
            self.start_command(&command, ends).await;
        }
    }

    async fn start_command(&mut self, command: &Command, lease_ends: Moment) {
        match Orphans::new() {
            Ok(orphans) => self.orphans = Some(orphans),
            Err(error) => warn!("cannot listen for the end of orphans, which will not be reaped: {error}"),
        }
        let occupied = translate::required(&self.parts.config).collect();
        // Its terminal is as it was before.
        if let Some(progress) = self.parts.progress.take() {
            progress.end().await;
        }
        // Before it is there: what is lost from here on is lost under a command.
        self.own.keeper.occupy(occupied, clock::now());
        let environment = environment(&self.parts.status.borrow());
        match Running::start(command, environment, lease_ends, self.hooks.groups()) {
            Ok(mut running) => {
                if let Some(holdings) = self.holdings() {
                    running.holds(holdings);
                }
                self.running = Some(running);
            }
            Err(failure) => self.command_does_not_run(&format!("{failure:#}")),
        }
    }

    fn command_does_not_run(&mut self, why: &str) {
        if self.ending.is_some() {
            info!("the command does not run: {why}");
        } else {
            error!("the command does not run: {why}");
        }
        self.command_is_over();
        self.fail(Exit::Failed, &format!("the command does not run: {why}"));
    }

    /// What the guard is to release, should this process be killed; `None` without a session.
    fn holdings(&self) -> Option<Holdings> {
        let left = Resume::of(&self.own.keeper)?;
        let config = &self.parts.config;
        let locks_stay = config.session.behavior == Behavior::Release;
        Some(Holdings::new(&config.consul, self.client.login_token(), left, locks_stay))
    }

    /// What the command's guard has to say.
    pub(super) fn command_told(&mut self, told: Told) {
        match told {
            Told::Started => {
                info!("the command runs");
                self.reap_orphans();
            }
            Told::NotStarted(why) => self.command_does_not_run(&why),
            // The whole of the shell's job, as the terminal would have had it.
            Told::Suspended => drop(kill_current_process_group(Signal::STOP)),
            Told::Stopping(Why::Lease) => {
                // Whether it is lost is not known, and so it counts as lost.
                self.own.keeper.forfeit(clock::now());
                self.fail(
                    Exit::SlotLost,
                    "the lease was not renewed in time, and the command is being stopped",
                );
            }
            Told::Stopping(why @ (Why::AgentGone | Why::Asked | Why::Ended | Why::Overdue)) => {
                debug!(?why, "stopping the command");
                if why == Why::Overdue && self.ending.is_none() {
                    // The code will be the command's own, and the reason ours.
                    let why =
                        "the command had not ended in the time that --stop-after gives it, and was killed";
                    self.why = Some(why.to_owned());
                }
            }
            Told::Gone(outcome) => {
                self.command_is_over();
                match outcome {
                    Some(outcome) => {
                        info!(code = outcome.code(), "the command has ended");
                        self.end(Exit::PassedOn(outcome.code()), "the command has ended");
                    }
                    None => self.fail(Exit::Failed, "the command was killed with its guard"),
                }
            }
        }
    }

    /// Passes a signal on, or does what it asks for where there is no command; whether to leave at once.
    pub(super) async fn signalled(&mut self, signal: i32) -> bool {
        let now = clock::now();
        if signals::ends(signal) && self.running.as_ref().is_some_and(Running::awaits_guard) {
            // What waits for its guard would hear of it only then: it is stopped instead, with the next round.
            let why = format!("ended by {} before the command could begin", signals::name(signal));
            self.fail(passed_on(signal), &why);
        } else if let Some(running) = self.running.as_ref() {
            match signal {
                SIGCONT => running.resume(),
                SIGTSTP => {
                    running.signal(signal);
                    // Said before we stand still.
                    tokio::task::yield_now().await;
                    suspend();
                }
                _ => running.signal(signal),
            }
        } else if signal == SIGTSTP {
            if let Some(progress) = &self.parts.progress {
                progress.wipe().await;
            }
            suspend();
        } else if signals::ends(signal) {
            // What signals a process and its group sends the same twice.
            let echo = self.signalled_at.is_some_and(|last| now.since(last) < ECHO);
            if self.ending.is_none() && self.drain.is_none() {
                // Its command will not run any more.
                self.parts.command = None;
                let awaited = self.awaited().map(|awaited| format!(" while it waited for {awaited}"));
                let why = format!("ended by {}{}", signals::name(signal), awaited.unwrap_or_default());
                self.fail(passed_on(signal), &why);
            } else if !echo {
                warn!(
                    "told to stop again: leaving at once; what is not given back yet ends with the session's TTL"
                );
                return true;
            }
        }
        if signals::ends(signal) {
            self.signalled_at = Some(now);
        }
        false
    }

    fn command_is_over(&mut self) {
        self.running = None;
        self.parts.command = None;
        self.evictions.end_all(clock::now());
        self.own.keeper.occupy(BTreeSet::new(), clock::now());
    }
}

/// How what a signal has ended ends.
fn passed_on(signal: i32) -> Exit {
    Exit::PassedOn(u8::try_from(signal).unwrap_or(0).saturating_add(128))
}

/// Stands still until a shell continues us, as the command does. Meanwhile nobody renews the lease: the guard ends a
/// command that is suspended for longer than that.
fn suspend() {
    // One that cannot be stopped, such as process 1, goes on.
    let _ = kill_process(getpid(), Signal::STOP);
}

/// What the command is told of the slots that it runs on.
fn environment(snapshot: &Snapshot) -> Vec<(String, String)> {
    let mut variables = vec![("CONSUL_LOCK_HELD".to_owned(), "true".to_owned())];
    variables.extend(
        snapshot.session.as_ref().map(|session| ("SLOTKEEPER_SESSION".to_owned(), session.id.clone())),
    );
    let semaphores = snapshot.semaphores.iter().filter(|one| one.mode == Mode::Hold);
    let semaphores =
        semaphores.map(|one| (&one.name, one.fencing_token, one.slot_indexes.first().copied(), None));
    // A lock is one slot, which has the first number.
    let locks = snapshot.locks.iter().filter(|one| one.mode == Mode::Hold);
    let locks = locks.map(|one| {
        let held = one.fencing_token.is_some();
        (&one.name, one.fencing_token, held.then_some(0), one.lock_index.filter(|_| held))
    });
    for (place, (name, token, slot, lock_index)) in semaphores.chain(locks).enumerate() {
        let token = token.map(|token| ("SLOTKEEPER_FENCING_TOKEN", token.to_string()));
        let slot = slot.map(|slot| ("SLOTKEEPER_SLOT", slot.to_string()));
        let lock_index = lock_index.map(|index| ("SLOTKEEPER_LOCK_INDEX", index.to_string()));
        let suffix = format!("_{}", config::variable_part(name));
        for (variable, value) in token.into_iter().chain(slot).chain(lock_index) {
            if place == 0 {
                variables.push((variable.to_owned(), value.clone()));
            }
            variables.push((format!("{variable}{suffix}"), value));
        }
    }
    variables
}
