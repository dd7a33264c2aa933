//! The terminal on standard input, which belongs to one group of processes at a time.
//!
//! The command has a group of its own, so that nothing but it gets a signal twice; to read from the terminal, and to be
//! reached by its Ctrl-C and Ctrl-Z, that group must be the one in the foreground.

use std::io;

use nix::sys::signal::{SigSet, Signal};
use rustix::process::{Pid, getpgid, getpgrp, getsid};
use rustix::stdio::{stdin, stdout};
use rustix::termios::{isatty, tcgetpgrp, tcsetpgrp};

use super::process;

/// Whether standard input is the terminal of this process's session.
pub(super) fn is_there() -> bool {
    isatty(stdin()) && tcgetpgrp(stdin()).is_ok()
}

/// Whether standard output is a terminal, and no pipe to another program.
pub(super) fn shows_output() -> bool {
    isatty(stdout())
}

/// Lets this thread set the terminal's group while it is in the background. By default the kernel suspends a process that tries.
/// Child processes do not inherit it: the standard library clears the mask.
pub(crate) fn may_be_set() -> io::Result<()> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTTOU);
    Ok(signals.thread_block()?)
}

/// Takes the terminal for this process's own group.
pub(super) fn take() -> io::Result<()> {
    may_be_set()?;
    Ok(tcsetpgrp(stdin(), getpgrp())?)
}

/// The terminal between the agent's group and the command's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terminal {
    /// The agent's group, which had it first.
    group: Pid,
}

impl Terminal {
    /// `None` where the agent is gone already.
    pub(super) fn of(agent: Option<Pid>) -> Option<Self> {
        Some(Self { group: getpgid(Some(agent?)).ok()? })
    }

    /// Whether the agent's group has it. In the background it has not.
    pub(super) fn is_at_hand(&self) -> bool {
        tcgetpgrp(stdin()) == Ok(self.group)
    }

    /// Passes it to the command, if the agent has it.
    pub(super) fn hand_on(&self, command: Pid) {
        self.pass(self.group, command);
    }

    /// Returns it to the agent, if the command has it.
    pub(super) fn take_back(&self, command: Pid) {
        self.pass(command, self.group);
    }

    fn pass(&self, from: Pid, to: Pid) {
        if tcgetpgrp(stdin()) == Ok(from) {
            // A terminal that has hung up has no group.
            let _ = tcsetpgrp(stdin(), to);
        }
    }

    /// Whether a shell can continue the agent's job: the parent of the group's first process is in the same
    /// session and another group.
    pub(super) fn is_watched(&self) -> bool {
        let parent = process::stat(self.group).and_then(|stat| Pid::from_raw(stat.parent));
        parent.is_some_and(|parent| {
            getsid(Some(parent)) == getsid(Some(self.group)) && getpgid(Some(parent)) != Ok(self.group)
        })
    }
}
