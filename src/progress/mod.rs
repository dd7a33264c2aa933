//! Progress of a wait, for an operator: one line on a terminal that is redrawn, otherwise a log line now and then.
//!
//! A thread of its own writes it, so that a wait for a slot never waits for a terminal: see [`crate::stderr`].

mod screen;
mod text;

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::clock;
use screen::Screen;
use slotkeeper_semaphore::Moment;
pub use text::View;

/// The longest wait for the removal of the line; a terminal that is stuck keeps it.
const WIPE_TIMEOUT: Duration = Duration::from_millis(100);

/// Without a terminal: the time of frequent polls, until the first line is printed.
const AT_FIRST: Duration = Duration::from_secs(6);

/// The time between two polls afterwards. A wait may last for days, and should cost next to nothing.
const AGAIN: Duration = Duration::from_secs(60);

/// The handle of the progress thread, which ends when this is dropped or on request.
#[derive(Clone, Debug)]
pub struct Progress {
    commands: Sender<Command>,
    /// Whether standard error is a terminal.
    drawn: bool,
    began: Moment,
    looked: Moment,
    held: bool,
}

/// A command to the thread, with the channel for its completion.
enum Command {
    /// Remove the line until the next redraw.
    Wipe(oneshot::Sender<()>),
    /// Show nothing, or show something again.
    Hold(bool),
    /// Remove the line for good.
    End(oneshot::Sender<()>),
}

impl Progress {
    /// Starts the thread. `lines`: whether to print lines where there is no terminal.
    pub fn start(look: impl FnMut() -> View + Send + 'static, lines: bool) -> Option<Self> {
        let screen = Screen::of_stderr(lines)?;
        let (drawn, now) = (matches!(screen, Screen::Drawn(_)), clock::now());
        let (commands, received) = channel();
        // If the thread cannot start, there is no progress, and everything else continues.
        std::thread::Builder::new()
            .name("progress".into())
            .spawn(move || run(look, screen, &received))
            .ok()?;
        Some(Self { commands, drawn, began: now, looked: now, held: false })
    }

    /// Whether the progress needs another read of Consul by now.
    pub fn looks(&mut self, now: Moment) -> bool {
        let looks = self.drawn || now.since(self.began) < AT_FIRST || now.since(self.looked) >= AGAIN;
        if looks {
            self.looked = now;
        }
        looks
    }

    /// Shows nothing for a time, or something again.
    pub fn hold(&mut self, held: bool) {
        if self.held != held && self.commands.send(Command::Hold(held)).is_ok() {
            self.held = held;
        }
    }

    /// Removes the line from the terminal, for a moment in which other output is written.
    pub async fn wipe(&self) {
        self.send(Command::Wipe).await;
    }

    /// Removes the line from the terminal and ends the thread.
    pub async fn end(&self) {
        self.send(Command::End).await;
    }

    async fn send(&self, command: impl FnOnce(oneshot::Sender<()>) -> Command) {
        let (done, is_done) = oneshot::channel();
        if self.commands.send(command(done)).is_ok() {
            let _ = tokio::time::timeout(WIPE_TIMEOUT, is_done).await;
        }
    }
}

fn run(mut look: impl FnMut() -> View, mut screen: Screen, received: &Receiver<Command>) {
    let began = clock::now();
    let mut held = false;
    loop {
        match received.recv_timeout(screen.pause()) {
            Err(RecvTimeoutError::Timeout) => {
                let now = clock::now();
                let waited = now.since(began);
                if waited >= screen.first() && !held {
                    screen.show(&look(), now, waited);
                }
            }
            Ok(Command::Hold(hold)) => {
                held = hold;
                screen.wipe();
            }
            Ok(Command::Wipe(done)) => {
                screen.wipe();
                let _ = done.send(());
            }
            Ok(Command::End(done)) => {
                screen.wipe();
                let _ = done.send(());
                return;
            }
            Err(RecvTimeoutError::Disconnected) => return screen.wipe(),
        }
    }
}
