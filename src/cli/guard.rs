//! The hidden commands that an agent starts itself: the guard, and the last step before a command or hook.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;

use super::{Exit, block_on};
use crate::workload::{exec, guard};
use crate::{console, telemetry};

/// How the agent speaks on standard error, as [`console::pass_on`] tells it.
#[derive(Debug, Args)]
struct Voice {
    /// The format of the agent's log.
    #[arg(long)]
    log_format: Option<String>,
    /// The job of the agent.
    #[arg(long)]
    job: Option<String>,
}

impl Voice {
    fn take_on(self) {
        console::speak_for(self.job);
        if self.log_format.as_deref() == Some("json") {
            telemetry::start_json();
        }
    }
}

/// Supervise a command on behalf of an agent.
#[derive(Debug, Args)]
#[command(hide = true)]
pub(super) struct Guard {
    /// The abstract socket at which the agent listens.
    #[arg(long)]
    socket: String,
    /// Milliseconds from SIGTERM to SIGKILL.
    #[arg(long)]
    kill_after: u64,
    /// Milliseconds from an outside request to end until SIGKILL.
    #[arg(long)]
    stop_after: Option<u64>,
    /// The soft limit of open files that the command gets.
    #[arg(long)]
    open_files: Option<u64>,
    /// Whether the command gets the terminal.
    #[arg(long)]
    terminal: bool,
    #[command(flatten)]
    voice: Voice,
    /// Program and arguments.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

impl Guard {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        self.voice.take_on();
        let start = guard::Start {
            socket: self.socket,
            kill_after: Duration::from_millis(self.kill_after),
            stop_after: self.stop_after.map(Duration::from_millis),
            open_files: self.open_files,
            terminal: self.terminal,
            command: self.command,
        };
        block_on(guard::run(start))??;
        Ok(Exit::Done)
    }
}

/// Become a command on behalf of a guard, or a hook on behalf of an agent.
#[derive(Debug, Args)]
#[command(hide = true)]
pub(super) struct Exec {
    /// The guard's process id.
    #[arg(long)]
    parent: Option<i32>,
    /// The soft limit of open files that the program gets.
    #[arg(long)]
    open_files: Option<u64>,
    /// Whether to take the terminal.
    #[arg(long)]
    terminal: bool,
    #[command(flatten)]
    voice: Voice,
    /// Program and arguments.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

impl Exec {
    pub(super) fn run(self) -> Exit {
        let Self { parent, open_files, terminal, voice, command } = self;
        voice.take_on();
        Exit::PassedOn(exec::run(&exec::Start { parent, terminal, open_files, command }))
    }
}
