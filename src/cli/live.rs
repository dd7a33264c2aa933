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
/// The wait after a failed read, before jitter.
const PAUSE: Duration = Duration::from_secs(1);

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
    let is_drawn = !json && window::is_there();
    let mut seen = next().await.map_err(Into::into)?;
    let (mut seen_at, mut failure) = (Instant::now(), None::<String>);
    let draw = |seen: &T, seen_at, failure: Option<&str>| {
        let text = show(seen)?;
        print(&if is_drawn { in_place(&(remark(failure, seen_at) + &text), window::size()) } else { text })
    };
    draw(&seen, seen_at, None)?;
    loop {
        let wait = if failure.is_some() { PAUSE.mul_f64(0.5 + fastrand::f64()) } else { PACE };
        let mut looking = pin!(async {
            sleep(wait).await;
            next().await
        });
        let looked = loop {
            // A check of its own: without a change there is no write, which would fail.
            if reader_is_gone() {
                return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
            }
            tokio::select! {
                looked = &mut looking => break looked.map_err(|error| error.to_string()),
                () = sleep(EVERY) => if is_drawn {
                    draw(&seen, seen_at, failure.as_deref())?;
                }
            }
        };
        let mut is_news = is_drawn;
        match looked {
            Ok(now) => {
                is_news |= now != seen;
                (seen, seen_at) = (now, Instant::now());
                if failure.take().is_some() && !is_drawn {
                    print_message("recovered")?;
                }
            }
            Err(error) => {
                if !is_drawn && failure.as_ref() != Some(&error) {
                    print_message(format!("{error}; retrying"))?;
                }
                failure = Some(error);
            }
        }
        if is_news {
            if !json && !is_drawn {
                print("\n")?;
            }
            draw(&seen, seen_at, failure.as_deref())?;
        }
    }
}

/// Prints with a single write, so that nothing is ever half drawn.
fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
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
