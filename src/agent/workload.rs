//! The command of `slotkeeper run`: its start, its environment, and the meaning of its end.
//!
//! Nothing is released while the command lives: the keeper counts its slots as occupied, and the drain begins when no process
//! of the command is left.

use std::collections::BTreeSet;

use rustix::process::{Signal, getpid, kill_current_process_group, kill_process};
use signal_hook::consts::{SIGCONT, SIGTSTP};
use tracing::{debug, info, warn};

use super::{Agent, translate};
use crate::clock;
use crate::config;
use crate::console;
use crate::exit::Exit;
use crate::log_events::{
    COMMAND_ENDED, COMMAND_NOT_STARTED, COMMAND_STARTED, COMMAND_STOPPING, ORPHANS_NOT_REAPED, STOP_REPEATED,
};
use crate::shutdown::REPEATED_SIGNAL;
use crate::status::{Mode, Snapshot};
use crate::workload::guard::fence::{self, Why};
use crate::workload::orphans::{self, Orphans};
use crate::workload::{Command, CommandEvent, HELD_VARIABLE, Holdings, Running, signals};
use slotkeeper_consul::Behavior;
use slotkeeper_semaphore::{Lease, Moment, Resume};

/// The next event of the command. Without a command it never resolves.
pub(super) async fn next(running: &mut Option<Running>) -> CommandEvent {
    match running {
        Some(running) => running.next().await,
        None => std::future::pending().await,
    }
}

/// Waits for the end of a child that may be an orphan.
pub(super) async fn orphan_ended(orphans: &mut Option<Orphans>) {
    match orphans {
        Some(orphans) => orphans.ended().await,
        None => std::future::pending().await,
    }
}

impl Agent {
    /// Reaps processes that hooks have left behind.
    pub(super) fn reap_orphans(&self) {
        let mut own = self.hooks.processes();
        own.push(self.running.as_ref().or(self.guard.as_ref()).and_then(Running::guard));
        orphans::reap(&own);
    }

    /// Starts the command when all required slots are held, and passes it renewals and the end.
    pub(super) fn advance_command(&mut self, now: Moment) {
        let lease = self.own.keeper.lease().map(Lease::ends);
        let holdings = self.running.as_ref().and_then(|_| self.holdings());
        if let Some(running) = &mut self.running {
            if let Some(holdings) = holdings {
                running.holds(holdings);
            }
            if self.ending.is_decided() {
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
            self.start_command(&command, ends);
        }
    }

    fn start_command(&mut self, command: &Command, lease_ends: Moment) {
        let _ = command.times.acquired.set(clock::now());
        match Orphans::new() {
            Ok(orphans) => self.orphans = Some(orphans),
            Err(error) => warn!(%error, "{ORPHANS_NOT_REAPED}"),
        }
        let occupied = translate::required(&self.parts.config).collect();
        // The terminal is the command's.
        self.wait = None;
        console::draw(None);
        // Before the start: a slot that is lost from here on is lost under the command.
        self.own.keeper.set_occupied(occupied, clock::now());
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
        info!(reason = %why, "{COMMAND_NOT_STARTED}");
        self.command_is_over();
        self.fail(Exit::Failed, &format!("the command does not run: {why}"));
    }

    /// What the guard releases if this process is killed. `None` without a session.
    pub(super) fn holdings(&self) -> Option<Holdings> {
        let left = Resume::of(&self.own.keeper)?;
        let config = &self.parts.config;
        let locks_stay = config.session.behavior == Behavior::Release;
        Some(Holdings::new(&config.consul, self.client.login_token(), left, locks_stay))
    }

    /// Handles an event of the command.
    pub(super) fn command_told(&mut self, told: CommandEvent) {
        match told {
            CommandEvent::Started => {
                info!("{COMMAND_STARTED}");
                if let Some(command) = &self.parts.command {
                    let _ = command.times.started.set(clock::now());
                }
                self.reap_orphans();
            }
            CommandEvent::NotStarted(why) => self.command_does_not_run(&why),
            // Suspends the whole job of the shell, as the terminal would.
            CommandEvent::Suspended => drop(kill_current_process_group(Signal::STOP)),
            CommandEvent::Stopping(Why::Lease) => {
                // The slot may still be held, but counts as lost.
                self.own.keeper.lose_occupied(clock::now());
                self.fail(Exit::SlotLost, "the lease was not renewed in time");
            }
            CommandEvent::Stopping(why @ (Why::AgentGone | Why::Asked | Why::Ended | Why::Overdue)) => {
                debug!(?why, "{COMMAND_STOPPING}");
                if why == Why::Overdue {
                    // The exit code will be the command's own.
                    let why = "the command did not end within --stop-after, and was killed";
                    self.ending.explain(why);
                }
            }
            CommandEvent::Gone(outcome) => {
                if let Some(command) = &self.parts.command {
                    let code = outcome.as_ref().map(|outcome| outcome.code());
                    let _ = command.times.ended.set((clock::now(), code));
                }
                self.command_is_over();
                match outcome {
                    Some(outcome) => {
                        info!(code = outcome.code(), "{COMMAND_ENDED}");
                        self.end(Exit::PassedOn(outcome.code()), "the command has ended");
                    }
                    None => self.fail(Exit::Failed, "the command was killed with its guard"),
                }
            }
        }
    }

    /// Passes a signal to the command, or acts on it without one. Returns whether to exit at once.
    pub(super) async fn signalled(&mut self, signal: i32) -> bool {
        let now = clock::now();
        if signals::ends(signal) && self.running.as_ref().is_some_and(Running::awaits_guard) {
            // The guard takes no orders yet: the next round stops the command instead.
            let why = format!("ended by {} before the command could begin", signals::name(signal));
            self.fail(passed_on(signal), &why);
        } else if let Some(running) = self.running.as_ref() {
            match signal {
                SIGCONT => running.resume(),
                SIGTSTP => {
                    running.signal(signal);
                    // The order is sent before this process is suspended.
                    tokio::task::yield_now().await;
                    suspend();
                }
                _ => running.signal(signal),
            }
        } else if signal == SIGTSTP {
            console::draw(None);
            suspend();
        } else if signals::ends(signal) {
            // A sender that signals a process and its group sends the same signal twice.
            let echo = self.signalled_at.is_some_and(|last| now.since(last) < REPEATED_SIGNAL);
            if !self.ending.is_decided() {
                // The command does not start any more.
                self.parts.command = None;
                let awaited = self.awaited().map(|one| format!(" while it waited for {}", one.text()));
                let why = format!("ended by {}{}", signals::name(signal), awaited.unwrap_or_default());
                self.fail(passed_on(signal), &why);
            } else if !echo {
                warn!(
                    "{STOP_REPEATED}: exiting at once; slots that are not released yet end with the session's TTL"
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
        self.guard = self.running.take().filter(Running::has_guard);
        self.parts.command = None;
        self.evictions.end_all(clock::now());
        self.own.keeper.set_occupied(BTreeSet::new(), clock::now());
    }
}

/// The exit code after a signal.
fn passed_on(signal: i32) -> Exit {
    Exit::PassedOn(u8::try_from(signal).unwrap_or(0).saturating_add(128))
}

/// Suspends this process until a shell continues it. Meanwhile the lease is not renewed: the guard ends a command that is
/// suspended for longer than its lease.
fn suspend() {
    // A process that cannot be suspended, such as process 1, goes on.
    let _ = kill_process(getpid(), Signal::STOP);
}

/// The environment variables that describe the slots to the command.
fn environment(snapshot: &Snapshot) -> Vec<(String, String)> {
    let mut variables = vec![("CONSUL_LOCK_HELD".to_owned(), "true".to_owned())];
    variables.extend(
        snapshot.session.as_ref().map(|session| ("SLOTKEEPER_SESSION".to_owned(), session.id.clone())),
    );
    let semaphores = snapshot.semaphores.iter();
    let semaphores = semaphores.map(|one| (&one.entry, one.slot_indexes.first().copied(), None));
    let prefixes = snapshot.semaphores.iter().map(|one| (&one.entry, &one.prefix));
    let places = prefixes.chain(snapshot.locks.iter().map(|one| (&one.entry, &one.key)));
    let held = places.filter(|(entry, _)| entry.fencing_token.is_some()).map(|(_, place)| place.clone());
    let around = std::env::var(HELD_VARIABLE).ok().filter(|held| !held.is_empty());
    variables.push((HELD_VARIABLE.to_owned(), held.chain(around).collect::<Vec<_>>().join(" ")));
    // A lock is slot 0.
    let locks = snapshot.locks.iter().map(|one| {
        let held = one.entry.fencing_token.is_some();
        (&one.entry, held.then_some(0), one.lock_index.filter(|_| held))
    });
    let own = semaphores.chain(locks).filter(|(entry, ..)| entry.mode == Mode::Hold);
    for (place, (entry, slot, lock_index)) in own.enumerate() {
        let token = entry.fencing_token.map(|token| ("SLOTKEEPER_FENCING_TOKEN", token.to_string()));
        let slot = slot.map(|slot| ("SLOTKEEPER_SLOT", slot.to_string()));
        let lock_index = lock_index.map(|index| ("SLOTKEEPER_LOCK_INDEX", index.to_string()));
        let suffix = format!("_{}", config::variable_part(&entry.name));
        for (variable, value) in token.into_iter().chain(slot).chain(lock_index) {
            if place == 0 {
                variables.push((variable.to_owned(), value.clone()));
            }
            variables.push((format!("{variable}{suffix}"), value));
        }
    }
    variables
}
