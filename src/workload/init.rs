//! The first process of a container.
//!
//! It inherits and reaps every orphan, or they fill the process table, and passes signals on. The agent runs in a child process,
//! whose children it reaps itself. If the agent is killed, its guard needs the container for a while: every process of a
//! container ends with the first one.

use std::io;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, wait};
use signal_hook::iterator::Signals;

use super::exec::THIS_PROGRAM;
use super::signals;
use crate::clock;

/// Interval of looks for processes that a killed agent has left behind.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// How the child process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Below {
    /// It has ended with this exit code.
    Ended(u8),
    /// It was killed by this signal.
    Killed(u8),
}

/// In the first process of a container: runs the same command line in a child process, and returns how that has ended.
/// Otherwise `None`. If the child is killed, the processes that it leaves behind have `linger` for their end.
///
/// # Errors
///
/// The child process cannot be started.
pub fn run_below(linger: Duration) -> io::Result<Option<Below>> {
    if !getpid().is_init() {
        return Ok(None);
    }
    // Before there is a child to pass a signal to.
    let mut signals = Signals::new(signals::taken_over())?;
    let below = Command::new(THIS_PROGRAM).args(std::env::args_os().skip(1)).spawn()?;
    let below = i32::try_from(below.id())
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| io::Error::other("no process id"))?;
    let has_ended = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&has_ended);
    std::thread::spawn(move || {
        for number in &mut signals {
            if let Some(signal) = Signal::from_named_raw(number).filter(|_| !ended.load(Ordering::Relaxed)) {
                // It may have ended a moment ago.
                let _ = kill_process(below, signal);
            }
        }
    });
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == below => {
                has_ended.store(true, Ordering::Relaxed);
                let low = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
                if let Some(signal) = status.terminating_signal() {
                    await_all(linger);
                    return Ok(Some(Below::Killed(low(signal))));
                }
                return Ok(Some(Below::Ended(low(status.exit_status().unwrap_or(1)))));
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Waits until no process is left, at most so long.
#[allow(clippy::disallowed_methods, reason = "this process renews nothing: it may sleep")]
fn await_all(linger: Duration) {
    let until = clock::now() + linger;
    while clock::now() < until {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            Ok(None) => std::thread::sleep(LOOK_INTERVAL),
            Err(_no_child) => return,
        }
    }
}
