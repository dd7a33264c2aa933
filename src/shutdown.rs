//! What the agent is asked for from outside, above all by signals.

use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::panic::resume_unwind;
use std::time::Duration;

use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook_tokio::Signals;
use tokio::task::spawn_blocking;

use crate::clock;
use crate::workload::signals;
use slotkeeper_semaphore::Moment;

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// SIGTERM or SIGINT: give everything back and exit; the second time, exit at once.
    ///
    /// What signals a process and its group, as coreutils' `timeout` does, sends the same twice within a millisecond.
    /// That is one ask: signals that follow the first within [`REPEATED_SIGNAL`] are passed over.
    Stop,
    /// SIGHUP: read the configuration again.
    Reload,
    /// A signal that is meant for the command that runs on the slot, where there is one.
    Signal(i32),
}

/// What one agent is asked for, in order.
pub struct Asks {
    asks: BoxStream<'static, Ask>,
    /// What was asked for while nothing could be done about it.
    deferred: VecDeque<Ask>,
    stopped_at: Option<Moment>,
}

/// Time within which a second signal to stop is the first one's echo.
pub const REPEATED_SIGNAL: Duration = Duration::from_millis(250);

impl Asks {
    /// Takes the signals over from their default actions.
    ///
    /// # Errors
    ///
    /// The process has no descriptor left.
    pub fn listen() -> io::Result<Self> {
        let signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
        Ok(Self::of(signals.map(|signal| if signal == SIGHUP { Ask::Reload } else { Ask::Stop })))
    }

    /// Takes all signals over that a command is to be passed.
    ///
    /// # Errors
    ///
    /// As [`Self::listen`].
    pub fn to_pass_on() -> io::Result<Self> {
        Ok(Self::of(Signals::new(signals::taken_over())?.map(Ask::Signal)))
    }

    /// Those of a stream: for an agent that is not alone in its process, where a signal would reach all of them.
    pub fn of(asks: impl Stream<Item = Ask> + Send + 'static) -> Self {
        Self { asks: asks.fuse().boxed(), deferred: VecDeque::new(), stopped_at: None }
    }

    /// Has a thread of its own do what may wait for a file system, and waits for that, but not when told to end: what hangs is
    /// left behind.
    ///
    /// # Errors
    ///
    /// What asked for the end.
    pub async fn unless_stopped<T: Send + 'static>(
        &mut self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Ask> {
        let mut task = spawn_blocking(work);
        loop {
            tokio::select! {
                done = &mut task => return match done {
                    Ok(done) => Ok(done),
                    Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
                    // The runtime ends, and so do we.
                    Err(_) => pending().await,
                },
                ask = self.new_one() => match ask {
                    Ask::Stop => return Err(ask),
                    Ask::Signal(signal) if signals::ends(signal) => return Err(ask),
                    Ask::Reload | Ask::Signal(_) if self.deferred.contains(&ask) => {}
                    Ask::Reload | Ask::Signal(_) => self.deferred.push_back(ask),
                },
            }
        }
    }

    /// The next one. Never ends: a stream that closed means that nothing can be asked for any more.
    pub async fn next(&mut self) -> Ask {
        match self.deferred.pop_front() {
            Some(ask) => ask,
            None => self.new_one().await,
        }
    }

    async fn new_one(&mut self) -> Ask {
        loop {
            match self.asks.next().await {
                Some(ask @ (Ask::Reload | Ask::Signal(_))) => return ask,
                Some(Ask::Stop) => {
                    let now = clock::now();
                    let echo = self.stopped_at.is_some_and(|first| now.since(first) < REPEATED_SIGNAL);
                    self.stopped_at = self.stopped_at.or(Some(now));
                    if !echo {
                        return Ask::Stop;
                    }
                }
                None => pending().await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt, stream};

    use super::*;

    #[tokio::test]
    async fn an_echo_is_passed_over_and_the_end_of_the_stream_asks_for_nothing() {
        let mut asks = Asks::of(stream::iter([Ask::Reload, Ask::Stop, Ask::Stop, Ask::Reload]));
        for expected in [Ask::Reload, Ask::Stop, Ask::Reload] {
            assert_eq!(asks.next().await, expected);
        }
        assert_eq!(asks.next().now_or_never(), None);
    }

    #[tokio::test]
    async fn what_hangs_is_left_behind_when_told_to_end_and_nothing_else_is_forgotten() {
        let mut asks = Asks::of(stream::iter([Ask::Reload, Ask::Reload, Ask::Stop]));
        let (go_on, gate) = std::sync::mpsc::channel::<()>();
        assert_eq!(asks.unless_stopped(move || gate.recv()).await, Err(Ask::Stop));
        drop(go_on);
        assert_eq!(asks.unless_stopped(|| 7).await, Ok(7));
        assert_eq!(asks.next().await, Ask::Reload);
        assert_eq!(asks.next().now_or_never(), None);
    }
}
