//! Signals as a stream of what they ask for.

use std::io;
use std::time::Duration;

use futures_util::StreamExt;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook_tokio::Signals;

use crate::clock;
use crate::semaphore::Moment;

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// SIGTERM or SIGINT: give everything back and exit; the second time, exit at once.
    ///
    /// What signals a process and its group, as coreutils' `timeout` does, sends the same twice within a millisecond.
    /// That is one ask: signals that follow the first within [`ECHO`] are passed over.
    Stop,
    /// SIGHUP: read the configuration again.
    Reload,
}

/// The signals that the agent acts on.
pub struct Asks {
    signals: Signals,
    stopped_at: Option<Moment>,
}

/// Time within which a second signal to stop is the first one's echo.
pub const ECHO: Duration = Duration::from_millis(250);

impl Asks {
    /// Takes the signals over from their default actions.
    ///
    /// # Errors
    ///
    /// The process has no descriptor left.
    pub fn listen() -> io::Result<Self> {
        let signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
        Ok(Self { signals, stopped_at: None })
    }

    /// The next one. Never ends: a stream that closed would mean that no signal can come any more.
    pub async fn next(&mut self) -> Ask {
        loop {
            match self.signals.next().await {
                Some(SIGHUP) => return Ask::Reload,
                Some(_) => {
                    let now = clock::now();
                    let echo = self.stopped_at.is_some_and(|first| now.since(first) < ECHO);
                    self.stopped_at = self.stopped_at.or(Some(now));
                    if !echo {
                        return Ask::Stop;
                    }
                }
                None => std::future::pending().await,
            }
        }
    }
}
