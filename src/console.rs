//! Standard error: the lines of this process, and the one line of a wait that is drawn in place. Nothing here ever blocks.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::process::getpgrp;
use rustix::stdio::stderr;
use rustix::termios::{tcgetpgrp, tcgetwinsize};
use tracing::error;
use unicode_width::UnicodeWidthChar;

use crate::exit::{Ended, Exit};
use crate::log_events::FAILED;

/// A writable pipe takes at least this many bytes without blocking (POSIX).
const MAX_LINE_BYTES: usize = 4096;
/// Erases the drawn line.
const WIPE: &str = "\r\x1b[2K";
/// Columns that stay free behind it, for the terminal's echo of Ctrl-C, and the width of a terminal that does not report one.
const FREE: usize = 4;
const WIDTH: usize = 80;

static CONSOLE: Mutex<Console> =
    Mutex::new(Console { job: None, is_json: false, expected: None, is_drawn: false, dropped: 0 });

#[derive(Debug)]
struct Console {
    /// The job of `run`, which each line names.
    job: Option<String>,
    /// The log is JSON, and so is every other line.
    is_json: bool,
    /// The exit that goes without saying.
    expected: Option<Exit>,
    is_drawn: bool,
    /// Lines dropped since the last written one.
    dropped: u64,
}

fn console() -> MutexGuard<'static, Console> {
    CONSOLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From here on each line begins with this job.
pub(crate) fn speak_for(job: Option<String>) {
    console().job = job;
}

/// The log has started in this format.
pub(crate) fn log_in_json(is_json: bool) {
    console().is_json = is_json;
}

/// An end with this code is expected: it prints nothing.
pub(crate) fn expect(exit: Exit) {
    console().expected = Some(exit);
}

/// Has a helper process of this program speak as this one does.
pub(crate) fn pass_on(helper: &mut Command) {
    let console = console();
    if console.is_json {
        helper.args(["--log-format", "json"]);
    }
    if let Some(job) = &console.job {
        helper.arg(format!("--job={job}"));
    }
}

/// Writes one line; as an error of the log, if that is JSON.
pub(crate) fn say(what: &str) {
    let mut console = console();
    if console.is_json {
        drop(console);
        return error!("{what}");
    }
    let line = console.line(what);
    console.write(&line);
}

/// Writes why this process fails, and its exit code. Nothing else writes that.
pub(crate) fn end(Ended { exit, why }: &Ended) {
    draw(None);
    let (is_json, expected) = {
        let console = console();
        (console.is_json, console.expected)
    };
    let is_failure = *exit != Exit::Done && expected != Some(*exit);
    let lines = why.iter().filter(|_| is_failure).flat_map(|why| why.lines());
    let mut lines = lines.filter(|line| !line.trim().is_empty()).peekable();
    while let Some(line) = lines.next() {
        if is_json {
            error!(error = line, exit_code = exit.code(), "{FAILED}");
        } else if lines.peek().is_some() {
            say(line);
        } else {
            say(&format!("{line}; exit {}", exit.code()));
        }
    }
}

/// Whether a line can be drawn in place: a terminal without a name cannot, as other programs see it too.
pub(crate) fn can_draw() -> bool {
    let has_name = std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb");
    has_name && terminal().is_some()
}

/// Draws a line in the place of the one before, cut to the width, or removes that. While another job has the terminal, nothing is
/// drawn.
pub(crate) fn draw(what: Option<&str>) {
    let mut console = console();
    if what.is_none() && !console.is_drawn || tcgetpgrp(stderr()).is_ok_and(|group| group != getpgrp()) {
        return;
    }
    let columns = tcgetwinsize(stderr()).map_or(0, |size| usize::from(size.ws_col));
    let columns = if columns == 0 { WIDTH } else { columns }.saturating_sub(FREE).max(1);
    let line = what.map(|what| cut(console.line(what).trim_end(), columns)).unwrap_or_default();
    console.is_drawn = put(&format!("{WIPE}{line}")) && what.is_some();
}

impl Console {
    /// The whole line. What names the job itself does not name it again.
    fn line(&self, what: &str) -> String {
        let Some(job) = &self.job else { return format!("slotkeeper: {what}\n") };
        let what = what.strip_prefix(&format!("{job}: ")).unwrap_or(what);
        format!("slotkeeper: {job}: {}\n", what.replacen(&format!(" for {job}: "), ": ", 1))
    }

    /// Writes a line that ends with a line break, or drops it: neither a renewal nor the end of a command may wait for a pipe whose reader
    /// is suspended, or for a terminal after Ctrl-S. The next line says how many were dropped.
    fn write(&mut self, line: &str) {
        let mut text = if std::mem::take(&mut self.is_drawn) { WIPE } else { "" }.to_owned();
        if self.dropped > 0 {
            text.push_str(&self.line(&format!("dropped {} lines before this one", self.dropped)));
        }
        text.push_str(line);
        shorten(&mut text);
        self.dropped = if put(&text) { 0 } else { self.dropped + 1 };
    }
}

/// The log's writer: a whole line at a time.
pub(crate) struct LogLines;

impl Write for LogLines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (mut console, line) = (console(), String::from_utf8_lossy(bytes));
        let is_text = !console.is_json && console.job.is_some();
        let line = if is_text { console.line(line.trim()) } else { line.into_owned() };
        console.write(&line);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Cuts a line that might block since it is too long. It stays a whole line.
fn shorten(text: &mut String) {
    const END: &str = "…\n";
    if text.len() > MAX_LINE_BYTES {
        let fits = (0..=MAX_LINE_BYTES - END.len()).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(fits.unwrap_or(0));
        text.push_str(END);
    }
}

/// The part of a line that fits.
fn cut(line: &str, columns: usize) -> String {
    let mut left = columns;
    let fits = |character: &char| {
        let rest = left.checked_sub(character.width().unwrap_or(0));
        left = rest.unwrap_or(0);
        rest.is_some()
    };
    line.chars().take_while(fits).collect()
}

/// The terminal. It may block although it has room for some bytes, so it is opened again without that: its flags are those of all processes
/// that have it. That of another user, as under `su`, cannot be opened.
fn terminal() -> Option<&'static File> {
    static TERMINAL: OnceLock<Option<File>> = OnceLock::new();
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let reopened = || open("/proc/self/fd/2", flags, Mode::empty()).ok().map(File::from);
    TERMINAL.get_or_init(|| io::stderr().is_terminal().then(reopened).flatten()).as_ref()
}

/// Writes the text if there is room for it. Returns whether it did.
fn put(text: &str) -> bool {
    let out = io::stderr();
    let mut wanted = [PollFd::new(&out, PollFlags::OUT)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let has_room = poll(&mut wanted, Some(&at_once)).is_ok_and(|ready| ready > 0)
        && wanted[0].revents().contains(PollFlags::OUT);
    has_room
        && match terminal() {
            Some(mut terminal) => terminal.write_all(text.as_bytes()),
            None => out.lock().write_all(text.as_bytes()),
        }
        .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_cut_is_a_line_of_whole_characters() {
        for length in MAX_LINE_BYTES - 8..MAX_LINE_BYTES + 8 {
            for begin in ["", "x", "xx"] {
                let long = format!("{begin}{}\n", "☃".repeat(length / 3));
                let mut line = long.clone();
                shorten(&mut line);
                assert!(line.len() <= MAX_LINE_BYTES);
                assert!(line == long || line.ends_with("☃…\n"), "{}", line.len());
            }
        }
        // Two columns each.
        assert_eq!((cut("漢字", 3), cut("éé☃", 2), cut("ab", 9)), ("漢".into(), "éé".into(), "ab".into()));
    }

    #[test]
    fn a_line_names_the_job_once() {
        let of = |job: Option<&str>, what: &str| {
            let job = job.map(str::to_owned);
            Console { job, is_json: false, expected: None, is_drawn: false, dropped: 0 }.line(what)
        };
        let waits = "waiting for p/one: 1st of 2 in the queue";
        for (job, what, line) in [
            (None, waits, "slotkeeper: waiting for p/one: 1st of 2 in the queue\n"),
            (Some("p/one"), waits, "slotkeeper: p/one: waiting: 1st of 2 in the queue\n"),
            (Some("p"), waits, "slotkeeper: p: waiting for p/one: 1st of 2 in the queue\n"),
            (Some("p/one"), "p/one: evicted by root@vm", "slotkeeper: p/one: evicted by root@vm\n"),
        ] {
            assert_eq!(of(job, what), line);
        }
    }
}
