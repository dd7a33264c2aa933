//! Commands that a signal ends.

use std::future::Future;
use std::{io, process};

use futures_util::StreamExt;
use rustix::process::getpid;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::emulate_default_handler;
use signal_hook_tokio::Signals;

use super::{Exit, block_on};

/// Runs a command's work to its end, or until a signal ends the process; in both cases `last` is done before.
pub(super) fn interruptible<T>(
    work: impl Future<Output = T>,
    last: impl Future<Output = ()>,
) -> io::Result<T> {
    block_on(async {
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let done = tokio::select! {
            done = work => Ok(done),
            Some(signal) = signals.next() => Err(signal),
        };
        last.await;
        done.map_err(end_by)
    })?
}

/// Ends as the signal would have ended it, so that a shell sees that; gives why it could not.
fn end_by(signal: i32) -> io::Error {
    // Of the first process of a container the kernel keeps such signals away, those of its own too.
    if getpid().is_init() {
        process::exit(Exit::PassedOn(u8::try_from(128 + signal).unwrap_or(u8::MAX)).code().into());
    }
    emulate_default_handler(signal).err().unwrap_or_else(|| io::ErrorKind::Interrupted.into())
}
