//! The hidden commands that `run` starts of itself: the guard, and the last step before the command.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;

use super::{Exit, block_on};
use crate::semaphore::Moment;
use crate::workload::{exec, guard};

/// Look after a command on behalf of an agent.
#[derive(Debug, Args)]
#[command(hide = true)]
pub(super) struct Guard {
    /// The abstract socket at which the agent listens.
    #[arg(long)]
    socket: String,
    /// When the lease ends, in milliseconds on the lease clock.
    #[arg(long)]
    lease_ends: u64,
    /// Milliseconds that the command has for stopping.
    #[arg(long)]
    kill_after: u64,
    /// Whether the command gets the terminal.
    #[arg(long)]
    terminal: bool,
    /// Program and arguments.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

impl Guard {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let start = guard::Start {
            socket: self.socket,
            lease_ends: Moment::from_boot(Duration::from_millis(self.lease_ends)),
            kill_after: Duration::from_millis(self.kill_after),
            terminal: self.terminal,
            command: self.command,
        };
        block_on(guard::run(start))??;
        Ok(Exit::Done)
    }
}

/// Become a command on behalf of a guard.
#[derive(Debug, Args)]
#[command(hide = true)]
pub(super) struct Exec {
    /// The guard's process id.
    #[arg(long)]
    parent: i32,
    /// Whether to take the terminal.
    #[arg(long)]
    terminal: bool,
    /// Program and arguments.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

impl Exec {
    pub(super) fn run(self) -> Exit {
        Exit::PassedOn(exec::run(self.parent, self.terminal, &self.command))
    }
}
