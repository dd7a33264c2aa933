//! Progress for people: while `run` or `wait` has nothing to do but wait, one line on a terminal says for what, and
//! elsewhere a line now and then.
//!
//! It is written by a thread of its own. Whoever waits for a slot never waits for a terminal: see [`crate::stderr`].

mod screen;
mod text;

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::clock;
use screen::Screen;
use slotkeeper_semaphore::Moment;
pub use text::{View, time};

/// The longest that anybody waits for a line to be taken off the terminal. One that is stuck keeps it.
const WIPE_TIMEOUT: Duration = Duration::from_millis(100);

/// For how long it is looked all the time where there is no terminal: until the first line is told.
const AT_FIRST: Duration = Duration::from_secs(6);

/// From one look to the next there. A wait may last for days, and whoever waits is to cost next to nothing.
const AGAIN: Duration = Duration::from_secs(60);

/// The hand on what is told. It ends with the last one, or when it is asked to.
#[derive(Clone, Debug)]
pub struct Progress {
    asks: Sender<Ask>,
    /// Whether somebody sits at a terminal.
    drawn: bool,
    began: Moment,
    looked: Moment,
}

/// What the one that tells is asked for. It says when that is done.
enum Ask {
    /// Take the line away; it comes back by itself.
    Wipe(oneshot::Sender<()>),
    /// Take it away for good.
    End(oneshot::Sender<()>),
}

impl Progress {
    /// Begins to tell of what is seen. `lines`: whether to do so by lines too, where there is no terminal to draw on.
    pub fn start(look: impl FnMut() -> View + Send + 'static, lines: bool) -> Option<Self> {
        let screen = Screen::of_stderr(lines)?;
        let (drawn, now) = (matches!(screen, Screen::Drawn(_)), clock::now());
        let (asks, asked) = channel();
        // Where there is no thread to be had nothing is told, and all else goes on.
        std::thread::Builder::new().name("progress".into()).spawn(move || tell(look, screen, &asked)).ok()?;
        Some(Self { asks, drawn, began: now, looked: now })
    }

    /// Whether what is told is worth a read of Consul by now.
    pub fn looks(&mut self, now: Moment) -> bool {
        let looks = self.drawn || now.since(self.began) < AT_FIRST || now.since(self.looked) >= AGAIN;
        if looks {
            self.looked = now;
        }
        looks
    }

    /// Takes the line off the terminal, for whoever is to write there next for a moment.
    pub async fn wipe(&self) {
        self.ask(Ask::Wipe).await;
    }

    /// Takes the line off the terminal and ends.
    pub async fn end(&self) {
        self.ask(Ask::End).await;
    }

    async fn ask(&self, ask: impl FnOnce(oneshot::Sender<()>) -> Ask) {
        let (done, is_done) = oneshot::channel();
        if self.asks.send(ask(done)).is_ok() {
            let _ = tokio::time::timeout(WIPE_TIMEOUT, is_done).await;
        }
    }
}

fn tell(mut look: impl FnMut() -> View, mut screen: Screen, asked: &Receiver<Ask>) {
    let began = clock::now();
    loop {
        match asked.recv_timeout(screen.pause()) {
            Err(RecvTimeoutError::Timeout) => {
                let now = clock::now();
                let waited = now.since(began);
                if waited >= screen.first() {
                    screen.show(&look(), now, waited);
                }
            }
            Ok(Ask::Wipe(done)) => {
                screen.wipe();
                let _ = done.send(());
            }
            Ok(Ask::End(done)) => {
                screen.wipe();
                let _ = done.send(());
                return;
            }
            Err(RecvTimeoutError::Disconnected) => return screen.wipe(),
        }
    }
}
