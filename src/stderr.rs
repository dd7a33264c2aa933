//! Standard error that never holds us up.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// What a pipe that can be written to takes at once without blocking, POSIX's least.
const AT_ONCE: usize = 4096;

/// Lines that were dropped since the last one that was written.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Whether a line is drawn there that changes in place (`progress`).
static DRAWN: AtomicBool = AtomicBool::new(false);
/// Takes that line away. It is drawn again soon, below what is written in its place.
pub(crate) const WIPE: &str = "\r\x1b[2K";

/// Standard error, a whole line at a time. A line that nobody takes – a pipe whose reader stands still, a terminal stopped by
/// Ctrl-S – is dropped: whoever renews a lease, or ends a command in time, must not wait for the log. How many were dropped is
/// said with the next one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stderr;

impl Stderr {
    /// Writes one line, with our name before it.
    pub fn say(what: &str) {
        // It never fails.
        let _ = Self.write(format!("slotkeeper: {what}\n").as_bytes());
    }
}

impl Write for Stderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let dropped = DROPPED.swap(0, Ordering::Relaxed);
        let mut text = Vec::new();
        if line_is_drawn() {
            text.extend(WIPE.as_bytes());
        }
        if dropped > 0 {
            text.extend(format!("slotkeeper: nobody took {dropped} lines before this one\n").into_bytes());
        }
        text.extend(line);
        // Too long a one might block all the same.
        text.truncate(AT_ONCE);
        if !(takes_more() && io::stderr().write_all(&text).is_ok()) {
            DROPPED.fetch_add(dropped + 1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Says whether a line is drawn that what is written has to take the place of.
pub(crate) fn line_drawn(is_drawn: bool) {
    DRAWN.store(is_drawn, Ordering::Relaxed);
}

/// Whether there is such a line.
pub(crate) fn line_is_drawn() -> bool {
    DRAWN.load(Ordering::Relaxed)
}

/// Whether standard error takes what is written without making us wait.
pub(crate) fn takes_more() -> bool {
    let stderr = io::stderr();
    let mut wanted = [PollFd::new(&stderr, PollFlags::OUT)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut wanted, Some(&at_once)).is_ok_and(|ready| ready > 0)
        && wanted[0].revents().contains(PollFlags::OUT)
}
