//! Requests to the agent by signals: to stop, to reload, or to pass a signal on.

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

/// The request of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalRequest {
    /// SIGTERM or SIGINT: release everything and exit; the second time, exit at once.
    ///
    /// A sender that signals a process and its group, as coreutils' `timeout`, sends the same signal twice within a
    /// millisecond. That is one request: signals within [`REPEATED_SIGNAL`] of the first are ignored.
    Stop,
    /// SIGHUP: read the configuration again.
    Reload,
    /// A signal for the command, if there is one.
    Signal(i32),
}

/// The requests to one agent, in order.
pub struct SignalRequests {
    requests: BoxStream<'static, SignalRequest>,
    /// Requests that came during [`Self::unless_stopped`].
    deferred: VecDeque<SignalRequest>,
    stopped_at: Option<Moment>,
}

/// A second stop signal within this time repeats the first one.
pub const REPEATED_SIGNAL: Duration = Duration::from_millis(250);

impl SignalRequests {
    /// Handles SIGTERM, SIGINT and SIGHUP instead of their default actions.
    ///
    /// # Errors
    ///
    /// The process has no file descriptor left.
    pub fn listen() -> io::Result<Self> {
        let signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
        Ok(Self::of(
            signals.map(|signal| if signal == SIGHUP { SignalRequest::Reload } else { SignalRequest::Stop }),
        ))
    }

    /// Handles all signals that are passed on to a command.
    ///
    /// # Errors
    ///
    /// As [`Self::listen`].
    pub fn to_pass_on() -> io::Result<Self> {
        Ok(Self::of(Signals::new(signals::taken_over())?.map(SignalRequest::Signal)))
    }

    /// Requests of a stream: for several agents in one process, where a signal would reach all of them.
    pub fn of(requests: impl Stream<Item = SignalRequest> + Send + 'static) -> Self {
        Self { requests: requests.fuse().boxed(), deferred: VecDeque::new(), stopped_at: None }
    }

    /// Runs work that may block on a file system on a thread of its own. A stop request ends the wait and leaves the thread
    /// behind.
    ///
    /// # Errors
    ///
    /// The request that ended the wait.
    pub async fn unless_stopped<T: Send + 'static>(
        &mut self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, SignalRequest> {
        let mut task = spawn_blocking(work);
        loop {
            tokio::select! {
                done = &mut task => return match done {
                    Ok(done) => Ok(done),
                    Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
                    // The runtime is shutting down.
                    Err(_) => pending().await,
                },
                request = self.receive() => match request {
                    SignalRequest::Stop => return Err(request),
                    SignalRequest::Signal(signal) if signals::ends(signal) => return Err(request),
                    SignalRequest::Reload | SignalRequest::Signal(_) if self.deferred.contains(&request) => {}
                    SignalRequest::Reload | SignalRequest::Signal(_) => self.deferred.push_back(request),
                },
            }
        }
    }

    /// The next request. After the end of the stream it never resolves.
    pub async fn next(&mut self) -> SignalRequest {
        match self.deferred.pop_front() {
            Some(request) => request,
            None => self.receive().await,
        }
    }

    async fn receive(&mut self) -> SignalRequest {
        loop {
            match self.requests.next().await {
                Some(request @ (SignalRequest::Reload | SignalRequest::Signal(_))) => return request,
                Some(SignalRequest::Stop) => {
                    let now = clock::now();
                    let echo = self.stopped_at.is_some_and(|first| now.since(first) < REPEATED_SIGNAL);
                    self.stopped_at = self.stopped_at.or(Some(now));
                    if !echo {
                        return SignalRequest::Stop;
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
        let mut requests = SignalRequests::of(stream::iter([
            SignalRequest::Reload,
            SignalRequest::Stop,
            SignalRequest::Stop,
            SignalRequest::Reload,
        ]));
        for expected in [SignalRequest::Reload, SignalRequest::Stop, SignalRequest::Reload] {
            assert_eq!(requests.next().await, expected);
        }
        assert_eq!(requests.next().now_or_never(), None);
    }

    #[tokio::test]
    async fn what_hangs_is_left_behind_when_told_to_end_and_nothing_else_is_forgotten() {
        let mut requests = SignalRequests::of(stream::iter([
            SignalRequest::Reload,
            SignalRequest::Reload,
            SignalRequest::Stop,
        ]));
        let (go_on, gate) = std::sync::mpsc::channel::<()>();
        assert_eq!(requests.unless_stopped(move || gate.recv()).await, Err(SignalRequest::Stop));
        drop(go_on);
        assert_eq!(requests.unless_stopped(|| 7).await, Ok(7));
        assert_eq!(requests.next().await, SignalRequest::Reload);
        assert_eq!(requests.next().now_or_never(), None);
    }
}
