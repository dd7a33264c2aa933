//! The last step before a command runs, in its own process: what the kernel is to know of it is said by itself.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};

use super::terminal;
use crate::stderr::Stderr;

/// As shells have it: the program is not there, or is none.
const NOT_FOUND: u8 = 127;
const NOT_RUNNABLE: u8 = 126;

/// This program as it runs, also where its file has been replaced since.
pub(super) const THIS_PROGRAM: &str = "/proc/self/exe";

/// Starts `command` by way of [`run`], in this program's hidden subcommand `exec`.
pub(super) fn command(command: &[OsString], terminal: bool) -> Command {
    let mut this = Command::new(THIS_PROGRAM);
    this.arg("exec").arg("--parent").arg(getpid().as_raw_nonzero().to_string());
    if terminal {
        this.arg("--terminal");
    }
    this.arg("--").args(command);
    this
}

/// Becomes the command; gives the exit code where it cannot.
pub fn run(parent: i32, terminal: bool, command: &[OsString]) -> u8 {
    // Should the guard be killed, the kernel ends the command.
    let dies_with_parent = set_parent_process_death_signal(Some(Signal::KILL));
    if dies_with_parent.is_err() || getppid() != Pid::from_raw(parent) {
        Stderr::say("the guard is gone");
        return NOT_RUNNABLE;
    }
    if terminal && let Err(error) = terminal::take() {
        Stderr::say(&format!("cannot give the command the terminal: {error}"));
    }
    let Some((program, arguments)) = command.split_first() else { return NOT_FOUND };
    let error = Command::new(program).args(arguments).exec();
    Stderr::say(&format!("cannot run {}: {error}", program.display()));
    if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_RUNNABLE }
}
