//! Output of the progress: one line that is redrawn on a terminal, or lines of text.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use std::{env, io, mem};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};
use rustix::process::getpgrp;
use rustix::stdio::stderr;
use rustix::termios::{isatty, tcgetpgrp, tcgetwinsize};

use super::View;
use crate::stderr::{self as log, Stderr};
use crate::workload::terminal;
use slotkeeper_semaphore::Moment;

/// Time between two redraws, short enough to look alive.
const DRAWN: Duration = Duration::from_millis(100);
/// The shortest wait that is shown.
const SHORT: Duration = Duration::from_millis(300);
/// Time between two reads without a terminal, and until the first one.
const LOOKED: Duration = Duration::from_secs(1);
/// The shortest time between two lines of text: a fast queue must not fill a log.
const BETWEEN: Duration = Duration::from_secs(5);
/// The longest time between two lines of text: many CI systems end a job that prints nothing for ten minutes.
const AGAIN: Duration = Duration::from_secs(5 * 60);
/// The width of a terminal that does not report one.
const WIDTH: u16 = 80;
/// Columns that stay free at its end.
const FREE: u16 = 4;

/// Standard error, as progress uses it.
pub(super) enum Screen {
    /// A terminal, with one line that is redrawn.
    Drawn(ProgressBar),
    /// Any other output: the last line, and its time.
    Lines(Option<(View, Moment)>),
}

impl Screen {
    /// The kind of standard error, if progress is to be shown.
    pub(super) fn of_stderr(lines: bool) -> Option<Self> {
        if !isatty(stderr()) || !moves_its_cursor() {
            return lines.then_some(Self::Lines(None));
        }
        let bar =
            ProgressBar::with_draw_target(None, ProgressDrawTarget::term_like(Box::new(Terminal::default())));
        // Cut at the terminal's edge, never wrapped. Without colours.
        bar.set_style(ProgressStyle::with_template("{spinner} {wide_msg}").ok()?);
        Some(Self::Drawn(bar))
    }

    /// From the start of the wait to the first read.
    pub(super) fn first(&self) -> Duration {
        match self {
            Self::Drawn(_) => SHORT,
            Self::Lines(_) => LOOKED,
        }
    }

    /// From one read to the next.
    pub(super) fn pause(&self) -> Duration {
        match self {
            Self::Drawn(_) => DRAWN,
            Self::Lines(_) => LOOKED,
        }
    }

    /// Shows a view after this time.
    pub(super) fn show(&mut self, view: &View, now: Moment, waited: Duration) {
        match self {
            Self::Drawn(bar) => match view.line() {
                Some(line) => {
                    bar.set_message(line);
                    bar.tick();
                }
                None => self.wipe(),
            },
            Self::Lines(last) => {
                let entry = if last.is_some() { view.later_entry() } else { view.entry() };
                if let Some(entry) = entry.filter(|_| is_due(last.as_ref(), view, now, waited)) {
                    *last = Some((view.place(), now));
                    Stderr::say(&entry);
                }
            }
        }
    }

    /// Removes the line, if there is one.
    pub(super) fn wipe(&mut self) {
        if let Self::Drawn(_) = self
            && log::line_is_drawn()
        {
            put(log::WIPE);
            log::line_drawn(false);
        }
    }
}

/// Whether a line of text is due. `last`: the place that the last one told, and its time.
fn is_due(last: Option<&(View, Moment)>, view: &View, now: Moment, waited: Duration) -> bool {
    match last {
        None => !view.is_vague() || waited >= BETWEEN,
        Some((place, at)) => {
            let quiet = now.since(*at);
            // The holders are read again within `super::AGAIN` and a renewal.
            let again = if view.is_old() { AGAIN + 2 * super::AGAIN } else { AGAIN };
            quiet >= again || *place != view.place() && quiet >= BETWEEN
        }
    }
}

/// A terminal without a name cannot be drawn on, as other programs see it too.
fn moves_its_cursor() -> bool {
    env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb")
}

/// Whether another job controls the terminal now. A write from the background would garble the shell's output, and stop this process
/// if the terminal is set so (`stty tostop`).
fn is_ours() -> bool {
    tcgetpgrp(stderr()).map_or(true, |group| group == getpgrp())
}

/// Writes to the terminal if this job controls it and it accepts output. If it stops accepting output after the check, this thread
/// blocks: so do not use `io::stderr()`, whose lock the log needs.
fn put(text: &str) {
    // The kernel stops a background process that writes, and this process may enter the background after the check.
    let _ = terminal::may_be_set();
    let mut rest = text.as_bytes();
    while !rest.is_empty() && is_ours() && log::takes_more() {
        match rustix::io::write(stderr(), rest) {
            Ok(written) => rest = &rest[written..],
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

/// Collects one redraw, and writes it at once.
#[derive(Debug, Default)]
struct Terminal(Mutex<String>);

impl Terminal {
    fn add(&self, text: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_str(text);
    }

    /// The cursor moves only along the line.
    fn assert_one_line(n: usize) {
        debug_assert_eq!(n, 0, "the line has become several");
    }
}

impl TermLike for Terminal {
    /// Some columns stay free for the terminal's echo of Ctrl-C and Ctrl-Z, which would remain in the next row.
    fn width(&self) -> u16 {
        let columns = tcgetwinsize(stderr()).map_or(0, |size| size.ws_col);
        (if columns == 0 { WIDTH } else { columns }).saturating_sub(FREE).max(1)
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        Self::assert_one_line(n);
        Ok(())
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        Self::assert_one_line(n);
        Ok(())
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.add(&format!("\x1b[{n}C"));
        Ok(())
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.add(&format!("\x1b[{n}D"));
        Ok(())
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.add(text);
        Ok(())
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.add(text);
        Ok(())
    }

    fn clear_line(&self) -> io::Result<()> {
        self.add(log::WIPE);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let text = mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        // First, since a log line that arrives meanwhile replaces it.
        log::line_drawn(is_ours());
        // The library pads the line with blanks; the cursor belongs after the text.
        put(&format!("{}\x1b[K", text.trim_end_matches(' ')));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_due_at_a_change_and_every_five_minutes() {
        let view = |words: &str| View::Else(words.to_owned());
        let at = |seconds| Moment::from_boot(Duration::from_secs(seconds));
        let told = (view("a").place(), at(100));
        for (words, now, expected) in
            [("a", 101, false), ("a", 399, false), ("a", 400, true), ("b", 104, false), ("b", 105, true)]
        {
            let due = is_due(Some(&told), &view(words), at(now), Duration::from_secs(now));
            assert_eq!(due, expected, "{words} at {now}");
        }
        assert!(is_due(None, &view("a"), at(1), Duration::from_secs(1)));
    }
}
