//! Where progress is told: one line that is drawn again and again on a terminal, or lines of text.

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

/// Time between two drawings; short enough to look alive.
const DRAWN: Duration = Duration::from_millis(100);
/// A wait that is over before is none that anybody needs to see.
const SHORT: Duration = Duration::from_millis(300);
/// Time between two looks where nobody watches, and from the beginning to the first.
const LOOKED: Duration = Duration::from_secs(1);
/// The least time between two lines of text: a fast queue must not fill a log.
const BETWEEN: Duration = Duration::from_secs(5);
/// What is taken for the width of a terminal that does not know it.
const WIDTH: u16 = 80;
/// Columns that are left free at its end.
const FREE: u16 = 4;

/// Standard error, as progress uses it.
pub(super) enum Screen {
    /// A terminal, with one line that changes.
    Drawn(ProgressBar),
    /// Anything else: what was told last, and when.
    Lines(Option<(View, Moment)>),
}

impl Screen {
    /// What standard error is, where anything is to be told there.
    pub(super) fn of_stderr(lines: bool) -> Option<Self> {
        if !isatty(stderr()) || !moves_its_cursor() {
            return lines.then_some(Self::Lines(None));
        }
        let bar =
            ProgressBar::with_draw_target(None, ProgressDrawTarget::term_like(Box::new(Terminal::default())));
        // Cut off at the terminal's edge, never wrapped. Without colours.
        bar.set_style(ProgressStyle::with_template("{spinner} {wide_msg}").ok()?);
        Some(Self::Drawn(bar))
    }

    /// From the beginning of the wait to the first look.
    pub(super) fn first(&self) -> Duration {
        match self {
            Self::Drawn(_) => SHORT,
            Self::Lines(_) => LOOKED,
        }
    }

    /// From one look to the next.
    pub(super) fn pause(&self) -> Duration {
        match self {
            Self::Drawn(_) => DRAWN,
            Self::Lines(_) => LOOKED,
        }
    }

    /// Shows what is seen, after so long.
    pub(super) fn show(&mut self, view: &View, now: Moment, waited: Duration) {
        match self {
            Self::Drawn(bar) => match view.line() {
                Some(line) => {
                    bar.set_message(line);
                    bar.tick();
                }
                None => self.wipe(),
            },
            Self::Lines(told) => {
                let is_new =
                    |(before, at): &(View, Moment)| *before != view.place() && now.since(*at) >= BETWEEN;
                let tells = told.as_ref().map_or_else(|| !view.is_vague() || waited >= BETWEEN, is_new);
                if let Some(entry) = view.entry().filter(|_| tells) {
                    *told = Some((view.place(), now));
                    Stderr::say(&entry);
                }
            }
        }
    }

    /// Takes the line away, where there is one.
    pub(super) fn wipe(&mut self) {
        if let Self::Drawn(_) = self
            && log::line_is_drawn()
        {
            put(log::WIPE);
            log::line_drawn(false);
        }
    }
}

/// Those without a name are none that one could draw on, as other programs see it too.
fn moves_its_cursor() -> bool {
    env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb")
}

/// Whether the terminal is another job's at the moment. To write there from the background would garble what the shell shows, and
/// stop us where the terminal says so (`stty tostop`).
fn is_ours() -> bool {
    tcgetpgrp(stderr()).map_or(true, |group| group == getpgrp())
}

/// Writes to the terminal, where it is ours and unless it stands still. It may begin to stand still after we have looked, and
/// then this thread does too: not by way of `io::stderr()`, whose lock the log would wait for.
fn put(text: &str) {
    // The kernel stops who writes in the background; between the look and the write we may get there.
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

/// Collects what belongs to one drawing, and writes it at once.
#[derive(Debug, Default)]
struct Terminal(Mutex<String>);

impl Terminal {
    fn add(&self, text: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_str(text);
    }

    /// Where the line is one line, the cursor moves along it alone.
    fn stay(n: usize) {
        debug_assert_eq!(n, 0, "the line has become several");
    }
}

impl TermLike for Terminal {
    /// Some columns stay free for what a terminal shows of Ctrl-C and Ctrl-Z: in the next row it would stay.
    fn width(&self) -> u16 {
        let columns = tcgetwinsize(stderr()).map_or(0, |size| size.ws_col);
        (if columns == 0 { WIDTH } else { columns }).saturating_sub(FREE).max(1)
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        Self::stay(n);
        Ok(())
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        Self::stay(n);
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
        // First, since a line of the log that comes meanwhile is to take its place.
        log::line_drawn(is_ours());
        // The library fills the line up with blanks; the cursor belongs behind the text.
        put(&format!("{}\x1b[K", text.trim_end_matches(' ')));
        Ok(())
    }
}
