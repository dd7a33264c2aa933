//! `--watch`: what is shown follows what changes.

use std::convert::Infallible;
use std::io::{self, IsTerminal, Write};
use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::complain;
use crate::operator;

/// Time between two pictures on a terminal while nothing but time changes.
const EVERY: Duration = Duration::from_secs(1);
/// The shortest time between two looks, however much changes.
const PACE: Duration = Duration::from_millis(400);
/// The wait after a look that failed, first and longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

/// Where pictures are shown, on standard output.
pub(super) struct Screen {
    in_place: bool,
    /// Stands between two pictures.
    gap: &'static str,
    shown: bool,
}

impl Screen {
    /// For people: on a terminal one in place of the other, elsewhere one after the other.
    pub(super) fn live() -> Self {
        Self { in_place: io::stdout().is_terminal(), gap: "\n", shown: false }
    }

    /// For programs, and for what is shown once: one after the other.
    pub(super) fn plain() -> Self {
        Self { in_place: false, gap: "", shown: false }
    }

    /// Shows a picture by one write, so that none is seen half drawn.
    pub(super) fn show(&mut self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        if self.in_place {
            let rows = rustix::termios::tcgetwinsize(&out).map_or(0, |size| usize::from(size.ws_row));
            out.write_all(in_place(text, rows).as_bytes())?;
        } else {
            let gap = if self.shown { self.gap } else { "" };
            out.write_all(format!("{gap}{text}").as_bytes())?;
        }
        self.shown = true;
        out.flush()
    }
}

/// A picture over the one before, cut to a terminal of so many rows (0: not known). Lines are not wrapped, so that each
/// takes one row.
fn in_place(text: &str, rows: usize) -> String {
    let lines: Vec<_> = text.lines().collect();
    // The cursor stands in the last row.
    let room = if rows < 3 { usize::MAX } else { rows - 1 };
    let mut picture = String::from("\x1b[?7l\x1b[H");
    let shown = if lines.len() > room { room - 1 } else { lines.len() };
    for line in &lines[..shown] {
        picture.push_str(line);
        picture.push_str("\x1b[K\n");
    }
    if shown < lines.len() {
        picture.push_str(&format!("… {} more lines\x1b[K\n", lines.len() - shown));
    }
    picture.push_str("\x1b[J\x1b[?7h");
    picture
}

/// Shows what `next` finds, which waits for a change but for the first time, until it is dropped. On a terminal each second
/// anew, with how much time has passed. Where a look fails it goes on with what was seen last, and says so.
///
/// # Errors
///
/// The first look failed, or nothing can be shown any more.
pub(super) async fn follow<T: PartialEq>(
    json: bool,
    mut next: impl AsyncFnMut() -> Result<T, operator::Error>,
    show: impl Fn(&T) -> anyhow::Result<String>,
) -> anyhow::Result<Infallible> {
    let mut screen = if json { Screen::plain() } else { Screen::live() };
    let mut seen = next().await?;
    let mut seen_at = Instant::now();
    let mut trouble: Option<String> = None;
    let mut pause = PAUSE.0;
    screen.show(&show(&seen)?)?;
    loop {
        let wait = if trouble.is_some() { pause.mul_f64(0.5 + fastrand::f64() / 2.0) } else { PACE };
        let looked = {
            let mut looking = pin!(async {
                sleep(wait).await;
                next().await
            });
            loop {
                tokio::select! {
                    looked = &mut looking => break looked,
                    () = sleep(EVERY), if screen.in_place => {
                        screen.show(&(remark(trouble.as_deref(), seen_at) + &show(&seen)?))?;
                    }
                }
            }
        };
        match looked {
            Ok(now) => {
                let is_news = now != seen || (screen.in_place && trouble.is_some());
                (seen, seen_at, pause) = (now, Instant::now(), PAUSE.0);
                if trouble.take().is_some() && !screen.in_place {
                    complain("Consul answers again")?;
                }
                if is_news {
                    screen.show(&show(&seen)?)?;
                }
            }
            Err(error) => {
                let error = error.to_string();
                if screen.in_place {
                    screen.show(&(remark(Some(&error), seen_at) + &show(&seen)?))?;
                } else if trouble.as_ref() != Some(&error) {
                    complain(format!("{error}; trying again"))?;
                }
                trouble = Some(error);
                pause = (pause * 2).min(PAUSE.1);
            }
        }
    }
}

/// What is said above a picture that is not of now, where no window is too small for it.
fn remark(trouble: Option<&str>, seen_at: Instant) -> String {
    trouble.map_or(String::new(), |trouble| {
        format!("as of {} s ago; {trouble}\n\n", seen_at.elapsed().as_secs())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_is_cut_to_the_terminal() {
        assert_eq!(in_place("a\nb\n", 24), "\x1b[?7l\x1b[Ha\x1b[K\nb\x1b[K\n\x1b[J\x1b[?7h");
        assert_eq!(
            in_place("a\nb\nc\nd\n", 4),
            "\x1b[?7l\x1b[Ha\x1b[K\nb\x1b[K\n… 2 more lines\x1b[K\n\x1b[J\x1b[?7h"
        );
        assert!(in_place("a\nb\nc\n", 4).contains('c'));
        assert!(in_place(&"line\n".repeat(9), 0).matches("line").count() == 9);
    }
}
