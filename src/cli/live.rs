//! `--watch`: output that follows changes.

use std::convert::Infallible;
use std::fmt::Display;
use std::io::{self, Write};
use std::pin::pin;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::time::{Instant, sleep};

use super::{print_message, window};

/// Time between two redraws on a terminal if nothing changes, and between two checks for a reader.
const EVERY: Duration = Duration::from_secs(1);
/// The shortest time between two reads, at any rate of changes.
pub(super) const PACE: Duration = Duration::from_millis(400);
/// The wait after a failed read, first and longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

/// How standard output shows one state after the other.
pub(super) struct Screen {
    in_place: bool,
    /// The separator of two states.
    gap: &'static str,
    shown: bool,
}

impl Screen {
    /// For operators: redrawn in place on a terminal, else appended.
    pub(super) fn live() -> Self {
        Self { in_place: window::is_there(), gap: "\n", shown: false }
    }

    /// For programs, and for a single state: appended.
    pub(super) fn plain() -> Self {
        Self { in_place: false, gap: "", shown: false }
    }

    /// Shows a state with a single write, so that it is never half drawn.
    pub(super) fn show(&mut self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        if self.in_place {
            out.write_all(in_place(text, window::size()).as_bytes())?;
        } else {
            let gap = if self.shown { self.gap } else { "" };
            out.write_all(format!("{gap}{text}").as_bytes())?;
        }
        self.shown = true;
        out.flush()
    }
}

/// Draws over the state before, cut to a window of that many rows and columns.
fn in_place(text: &str, (rows, columns): (usize, usize)) -> String {
    let lines: Vec<_> = text.lines().collect();
    // The cursor needs the last row.
    let room = if rows < 3 { window::ENDLESS } else { rows - 1 };
    // No wrapping: the terminal may count a character as wider, or the window may have just become smaller.
    let mut picture = String::from("\x1b[?7l\x1b[H");
    let mut add = |line: &str| {
        // Clear before the text: at the end of a full row, the cursor is still on the last character.
        picture.push_str(&format!("\x1b[2K{}\n", window::cut(line, columns)));
    };
    let shown = if lines.len() > room { room - 1 } else { lines.len() };
    lines[..shown].iter().for_each(|line| add(line));
    if shown < lines.len() {
        add(&format!("… {} more lines", lines.len() - shown));
    }
    picture.push_str("\x1b[J\x1b[?7h");
    picture
}

/// Shows each state that `next` returns, until it is dropped. `next` waits for a change, except in its first call. On a terminal the
/// state is redrawn each second with its age. If a read fails, the last state stays, with the failure above it.
///
/// # Errors
///
/// The first read failed, or the reader of standard output is gone.
pub(super) async fn follow<T: PartialEq, E: Display + Into<anyhow::Error>>(
    json: bool,
    mut next: impl AsyncFnMut() -> Result<T, E>,
    show: impl Fn(&T) -> anyhow::Result<String>,
) -> anyhow::Result<Infallible> {
    let mut screen = if json { Screen::plain() } else { Screen::live() };
    let mut seen = next().await.map_err(Into::into)?;
    let mut seen_at = Instant::now();
    let mut failure: Option<String> = None;
    let mut pause = PAUSE.0;
    screen.show(&show(&seen)?)?;
    loop {
        let wait = if failure.is_some() { pause.mul_f64(0.5 + fastrand::f64() / 2.0) } else { PACE };
        let looked = {
            let mut looking = pin!(async {
                sleep(wait).await;
                next().await
            });
            loop {
                // A check of its own: without a change there is no write, which would fail.
                if reader_is_gone() {
                    return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
                }
                tokio::select! {
                    looked = &mut looking => break looked,
                    () = sleep(EVERY) => if screen.in_place {
                        screen.show(&(remark(failure.as_deref(), seen_at) + &show(&seen)?))?;
                    }
                }
            }
        };
        match looked {
            Ok(now) => {
                // Times go on, even if nothing else changes.
                let is_news = now != seen || screen.in_place;
                (seen, seen_at, pause) = (now, Instant::now(), PAUSE.0);
                if failure.take().is_some() && !screen.in_place {
                    print_message("recovered")?;
                }
                if is_news {
                    screen.show(&show(&seen)?)?;
                }
            }
            Err(error) => {
                let error = error.to_string();
                if screen.in_place {
                    screen.show(&(remark(Some(&error), seen_at) + &show(&seen)?))?;
                } else if failure.as_ref() != Some(&error) {
                    print_message(format!("{error}; retrying"))?;
                }
                failure = Some(error);
                pause = (pause * 2).min(PAUSE.1);
            }
        }
    }
}

/// The remark above an outdated state, however small the window.
fn remark(failure: Option<&str>, seen_at: Instant) -> String {
    failure.map_or(String::new(), |failure| {
        let text = format!("as of {} s ago; {failure}", seen_at.elapsed().as_secs());
        window::wrap(&text, window::size().1) + "\n"
    })
}

/// Whether a pipe's reader, or the terminal, has gone.
fn reader_is_gone() -> bool {
    let stdout = io::stdout();
    let mut asked = [PollFd::new(&stdout, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut asked, Some(&at_once)).is_ok() && asked[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_is_cut_to_the_terminal() {
        let plain = |text: &str, rows| {
            let picture = in_place(text, (rows, 80));
            let lines =
                picture.strip_prefix("\x1b[?7l\x1b[H").unwrap().strip_suffix("\x1b[J\x1b[?7h").unwrap();
            lines.replace("\x1b[2K", "")
        };
        assert_eq!(in_place("a\nb\n", (24, 80)), "\x1b[?7l\x1b[H\x1b[2Ka\n\x1b[2Kb\n\x1b[J\x1b[?7h");
        assert_eq!(plain("a\nb\nc\nd\n", 4), "a\nb\n… 2 more lines\n");
        assert_eq!(plain("a\nb\nc\n", 4), "a\nb\nc\n");
        assert_eq!(plain(&"line\n".repeat(9), 2), "line\n".repeat(9));
        let wide = format!("{}end", "x".repeat(78));
        assert_eq!(plain(&wide, 24), format!("{}e…\n", "x".repeat(78)));
    }
}
