//! The last step before a command or a hook runs: settings that a process has to make for itself.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::fs::{Access, access};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};

use super::{open_files, own_variables, terminal};
use crate::console;
use crate::termination;

/// Exit codes as of a shell: the program is missing, or cannot be executed.
pub(crate) const NOT_FOUND: u8 = 127;
const NOT_RUNNABLE: u8 = 126;

/// Where a system without `PATH` looks for programs.
const DEFAULT_PATH: &str = "/usr/local/bin:/bin:/usr/bin";

/// The running program, even if its file has been replaced since.
pub(super) const THIS_PROGRAM: &str = "/proc/self/exe";

/// Settings of a process before it executes its program.
#[derive(Clone, Debug)]
pub struct Start {
    /// The guard's process, with which the kernel ends the command. `None` for a hook, which has no guard.
    pub parent: Option<i32>,
    /// Whether to take the terminal.
    pub terminal: bool,
    /// The soft limit of open files to restore.
    pub open_files: Option<u64>,
    /// Program and arguments.
    pub command: Vec<OsString>,
}

/// Starts `command` by way of [`run`], in this program's hidden subcommand `exec`.
pub(super) fn command(command: &[OsString], terminal: bool) -> Command {
    let mut this = Command::new(THIS_PROGRAM);
    this.arg("exec").arg("--parent").arg(getpid().as_raw_nonzero().to_string());
    console::pass_on(&mut this);
    if terminal {
        this.arg("--terminal");
    }
    this.arg("--").args(command);
    this
}

/// Starts a hook in the same way, in a process group of its own. A program on a file system that hangs blocks only its own
/// process, and not the agent.
pub(super) fn hook(program: &str, arguments: &[String]) -> Command {
    // A unit test's program has no such subcommand.
    let mut this = if !cfg!(test) && Path::new(THIS_PROGRAM).exists() {
        let mut this = Command::new(THIS_PROGRAM);
        this.arg0("slotkeeper").arg("exec");
        console::pass_on(&mut this);
        if let Some(soft) = open_files::before() {
            this.arg("--open-files").arg(soft.to_string());
        }
        this.arg("--").arg(program);
        this
    } else {
        // Without `/proc` the hook keeps the raised limit.
        let mut this = Command::new(program);
        forget_own_variables(&mut this);
        this
    };
    this.args(arguments).process_group(0);
    this
}

fn forget_own_variables(command: &mut Command) {
    for variable in own_variables() {
        command.env_remove(variable);
    }
}

/// Executes the program. Returns the exit code if that fails.
pub fn run(start: &Start) -> u8 {
    if let Some(guard) = start.parent {
        // If the guard is killed, the kernel kills the command.
        let dies_with_parent = set_parent_process_death_signal(Some(Signal::KILL));
        if dies_with_parent.is_err() || getppid() != Pid::from_raw(guard) {
            console::say("the guard is gone");
            return NOT_RUNNABLE;
        }
    }
    if start.terminal
        && let Err(error) = terminal::take()
    {
        console::say(&format!("cannot give the command the terminal: {error}"));
    }
    if let Some(soft) = start.open_files {
        open_files::restore(soft);
    }
    let Some((program, arguments)) = start.command.split_first() else { return NOT_FOUND };
    let mut command = Command::new(program);
    forget_own_variables(&mut command);
    let error = command.args(arguments).exec();
    let (code, why) = failure(program, &error);
    if start.parent.is_some() {
        // The agent takes this exit code for the command's own, so the reason is written here.
        termination::write(&why);
        console::say(&format!("{why}; exit {code}"));
    } else {
        console::say(&why);
    }
    code
}

/// The exit code and the reason of a program that the system does not execute.
fn failure(program: &OsStr, error: &io::Error) -> (u8, String) {
    let code = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_RUNNABLE };
    (code, format!("cannot run {}: {error}", program.display()))
}

/// The exit code and the reason with which [`run`] would fail now, where the file alone tells it. As `execvp` does, it searches `PATH` for
/// a name without a slash, and prefers a file without permission to none.
pub(crate) fn foreseen_failure(program: &OsStr) -> Option<(u8, String)> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    let searched = if program.as_bytes().contains(&b'/') { OsString::new() } else { path };
    let mut why = Errno::NOENT;
    for folder in std::env::split_paths(&searched).filter(|_| !program.is_empty()) {
        let file = folder.join(program);
        match access(&file, Access::EXEC_OK) {
            Ok(()) if file.is_dir() => why = Errno::ACCESS,
            Err(Errno::ACCESS) => why = Errno::ACCESS,
            Err(error @ (Errno::NOENT | Errno::NOTDIR)) if why != Errno::ACCESS => why = error,
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            // Anything else is for the system to tell.
            Ok(()) | Err(_) => return None,
        }
    }
    Some(failure(program, &why.into()))
}
