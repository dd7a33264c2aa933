//! The result of a `run` as JSON, for its caller: the exit codes alone do not tell slotkeeper's 75 from the command's.

use std::sync::OnceLock;

use serde::Serialize;

use crate::cli::{Ended, exit_of};
use crate::duration::seconds;
use crate::exit::Exit;
use crate::schema_version::SchemaVersion;
use crate::workload::CommandTimes;
use slotkeeper_semaphore::Moment;

/// How a `run` ended.
#[derive(Debug)]
pub(super) struct Outcome {
    exit: Exit,
    reason: Option<String>,
}

impl Outcome {
    pub(super) fn of(ended: &anyhow::Result<Ended>) -> Self {
        match ended {
            Ok(Ended { exit, why }) => Self { exit: *exit, reason: why.clone() },
            Err(error) => Self { exit: exit_of(error), reason: Some(format!("{error:#}")) },
        }
    }

    /// The exit code of this process.
    pub(super) fn code(&self) -> u8 {
        self.exit.code()
    }
}

/// The result of `slotkeeper run`.
#[derive(Debug, Serialize)]
pub(in crate::cli) struct RunResult {
    schema_version: SchemaVersion,
    /// What ended it.
    outcome: OutcomeName,
    /// Whether all required slots were held, so that the command could start.
    acquired: bool,
    /// The time from the start to the acquisition, or to the end without one.
    waited_seconds: f64,
    /// The time for which the command ran; null if it did not start.
    ran_seconds: Option<f64>,
    /// The exit code of `slotkeeper run`.
    exit_code: u8,
    /// The command's own exit code, or 128 and the number of the signal that ended it; null if it did not run, or its end was
    /// not seen.
    command_exit_code: Option<u8>,
    /// Why it ended; null if the command ended by itself.
    reason: Option<String>,
}

/// What ended a `run`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::cli) enum OutcomeName {
    /// The command ended; `exit_code` is its own.
    CommandEnded,
    /// A signal ended the wait for a slot (128 and its number).
    Interrupted,
    /// No slot was acquired in time (75).
    TimedOut,
    /// Consul could not be reached, or what answered is not Consul (69).
    Unavailable,
    /// Consul denied it (77).
    Denied,
    /// The command line is invalid (64).
    Usage,
    /// The configuration is invalid, or something in Consul stands in the way (78).
    Configuration,
    /// The slot was lost, and the command was stopped (80).
    SlotLost,
    /// Any other failure (1), or a command that cannot be executed (126, 127).
    Failed,
}

impl RunResult {
    /// The result of a run that has ended now.
    pub(super) fn new(began: Moment, times: &CommandTimes, outcome: &Outcome, now: Moment) -> Self {
        let at = |time: &OnceLock<Moment>| time.get().copied();
        let (started, ended) = (at(&times.started), times.ended.get());
        let over = ended.map_or(now, |(at, _)| *at);
        Self {
            schema_version: SchemaVersion::default(),
            outcome: outcome_name(outcome.exit, started.is_some()),
            acquired: times.acquired.get().is_some(),
            waited_seconds: seconds(at(&times.acquired).unwrap_or(now).since(began)),
            ran_seconds: started.map(|started| seconds(over.since(started))),
            exit_code: outcome.code(),
            command_exit_code: ended.and_then(|(_, code)| *code),
            reason: outcome.reason.clone(),
        }
    }
}

fn outcome_name(exit: Exit, ran: bool) -> OutcomeName {
    match exit {
        Exit::PassedOn(_) | Exit::Done if ran => OutcomeName::CommandEnded,
        Exit::PassedOn(..128) | Exit::Failed => OutcomeName::Failed,
        Exit::PassedOn(_) | Exit::Done => OutcomeName::Interrupted,
        Exit::Usage => OutcomeName::Usage,
        Exit::Unavailable => OutcomeName::Unavailable,
        Exit::Timeout => OutcomeName::TimedOut,
        Exit::Denied => OutcomeName::Denied,
        Exit::Config => OutcomeName::Configuration,
        Exit::SlotLost => OutcomeName::SlotLost,
    }
}
