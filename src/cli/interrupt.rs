//! Commands that a signal ends.

use std::convert::Infallible;
use std::future::{Future, pending};
use std::sync::mpsc;
use std::time::Duration;
use std::{io, process, thread};

use rustix::process::getpid;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use tokio::sync::oneshot;

use super::{Exit, block_on};

/// The longest that a signal waits for `last`.
const LAST: Duration = Duration::from_secs(3);

/// Runs a command's work until it ends or a signal arrives, then `last`. If the work is blocked in a write without a reader, `last`
/// cannot run, and the process ends all the same.
pub(super) fn interruptible<T>(
    work: impl Future<Output = T>,
    last: impl Future<Output = ()>,
) -> io::Result<T> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let (interrupt, interrupted) = oneshot::channel();
    let (busy, until_done) = mpsc::channel::<Infallible>();
    // For the rest of the process: later output may have no reader either.
    thread::Builder::new().name("signals".into()).spawn(move || {
        if let Some(signal) = signals.forever().next() {
            // The receiver is gone if the work is done already.
            let _ = interrupt.send(());
            let _ = until_done.recv_timeout(LAST);
            end_by(signal);
        }
    })?;
    block_on(async {
        let done = tokio::select! {
            done = work => Some(done),
            Ok(()) = interrupted => None,
        };
        last.await;
        drop(busy);
        match done {
            Some(done) => done,
            None => pending().await,
        }
    })
}

/// Ends the process by the signal itself, so that a shell sees its cause.
fn end_by(signal: i32) -> ! {
    // The kernel withholds such signals from the first process of a container, even its own.
    if !getpid().is_init() {
        // This does not return.
        let _ = emulate_default_handler(signal);
    }
    process::exit(Exit::PassedOn(u8::try_from(128 + signal).unwrap_or(u8::MAX)).code().into())
}
