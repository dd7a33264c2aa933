//! Standard error that never holds us up.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// What a pipe that can be written to takes at once without blocking, POSIX's least.
const MAX_LINE_BYTES: usize = 4096;

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
        shorten(&mut text);
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

/// Too long a line might block all the same. Cut, it is still a line: the next one is not to be taken for its end.
fn shorten(text: &mut Vec<u8>) {
    const END: &[u8] = "…\n".as_bytes();
    if text.len() <= MAX_LINE_BYTES {
        return;
    }
    let goes_on = |byte: u8| byte & 0b1100_0000 == 0b1000_0000;
    let last = (0..=MAX_LINE_BYTES - END.len()).rev().find(|at| !goes_on(text[*at]));
    text.truncate(last.unwrap_or(0));
    text.extend(END);
}

/// Whether standard error takes what is written without making us wait.
pub(crate) fn takes_more() -> bool {
    let stderr = io::stderr();
    let mut wanted = [PollFd::new(&stderr, PollFlags::OUT)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut wanted, Some(&at_once)).is_ok_and(|ready| ready > 0)
        && wanted[0].revents().contains(PollFlags::OUT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_cut_is_a_line_of_whole_characters() {
        for length in MAX_LINE_BYTES - 8..MAX_LINE_BYTES + 8 {
            for begin in ["", "x", "xx"] {
                let long = format!("{begin}{}\n", "☃".repeat(length / 3));
                let mut cut = long.clone().into_bytes();
                shorten(&mut cut);
                assert!(cut.len() <= MAX_LINE_BYTES);
                let cut = String::from_utf8(cut).unwrap();
                assert!(cut == long || cut.ends_with("☃…\n"), "{}", cut.len());
            }
        }
    }
}
