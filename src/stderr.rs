//! Standard error that never blocks.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A writable pipe takes at least this many bytes without blocking (POSIX).
const MAX_LINE_BYTES: usize = 4096;

/// Lines dropped since the last written one.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// A progress line is drawn, which changes in place (`progress`).
static DRAWN: AtomicBool = AtomicBool::new(false);
/// The log is JSON, and so is every other line.
static JSON: AtomicBool = AtomicBool::new(false);
/// Erases that line. It is drawn again below the written text.
pub(crate) const WIPE: &str = "\r\x1b[2K";

/// Standard error, a whole line at a time. A line that would block, as on a pipe whose reader is suspended or a terminal after
/// Ctrl-S, is dropped: neither a renewal nor the end of a command may wait for the log. The next line says how many were
/// dropped.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stderr;

impl Stderr {
    /// Writes one line for people, with the prefix `slotkeeper: `; or as an error of the log, if that is JSON.
    pub fn say(what: &str) {
        if log_is_json() {
            return tracing::error!("{what}");
        }
        // A write never fails.
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
            text.extend(format!("slotkeeper: dropped {dropped} lines before this one\n").into_bytes());
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

/// Notes that the log of this process is JSON.
pub(crate) fn log_in_json() {
    JSON.store(true, Ordering::Relaxed);
}

/// Whether the log of this process is JSON.
pub(crate) fn log_is_json() -> bool {
    JSON.load(Ordering::Relaxed)
}

/// Sets whether a progress line is drawn.
pub(crate) fn line_drawn(is_drawn: bool) {
    DRAWN.store(is_drawn, Ordering::Relaxed);
}

/// Whether a progress line is drawn.
pub(crate) fn line_is_drawn() -> bool {
    DRAWN.load(Ordering::Relaxed)
}

/// Cuts a line that might block since it is too long. It stays a whole line.
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

/// Whether a write to standard error does not block.
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
