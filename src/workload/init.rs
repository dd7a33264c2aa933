//! The first process of a container.
//!
//! It inherits every process that has lost its parent and must reap it, or they fill the process table. That is all it
//! does, with passing signals on: the agent runs in a process below it, where its own children are nobody else's.

use std::io;
use std::process::Command;

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, wait};
use signal_hook::iterator::Signals;

use super::exec::THIS_PROGRAM;
use super::signals;

/// Where this is the first process: runs this same command line in a process below, and gives its exit code. `None`
/// where it is not.
///
/// # Errors
///
/// The process below cannot be started.
pub fn run_below() -> io::Result<Option<u8>> {
    if !getpid().is_init() {
        return Ok(None);
    }
    // Before there is anybody to pass one on to.
    let mut signals = Signals::new(signals::taken_over())?;
    let below = Command::new(THIS_PROGRAM).args(std::env::args_os().skip(1)).spawn()?;
    let below = i32::try_from(below.id())
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| io::Error::other("no process id"))?;
    std::thread::spawn(move || {
        for number in &mut signals {
            if let Some(signal) = Signal::from_named_raw(number) {
                // It may have ended a moment ago.
                let _ = kill_process(below, signal);
            }
        }
    });
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == below => {
                let signal = status.terminating_signal().map(|signal| 128 + signal);
                let code = signal.or(status.exit_status()).unwrap_or(1);
                return Ok(Some(u8::try_from(code).unwrap_or(u8::MAX)));
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
