//! A bounded number of connections, each for one request at a time.
//!
//! The HTTP library bounds only its idle connections, and opens one besides while another is about to come free. Here each
//! connection has a library client of its own, so that there are never more than allowed. All kinds of requests take turns
//! with the same connections: the life of a client that acquires, waits and releases needs one.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

use super::SetupError;

/// A connection that no request uses is closed after this time, and after at most twice this time. Long enough for the
/// requests that follow one another; a client at rest has its long poll's connection alone.
pub(super) const IDLE: Duration = Duration::from_secs(2);

/// Library clients that are kept without a connection.
const SPARE: usize = 2;

/// The connections to one Consul that no request uses.
#[derive(Default)]
pub(super) struct Connections {
    free: Mutex<Free>,
}

#[derive(Default)]
struct Free {
    /// Each since when, the one used last on top: a dead connection then costs no more than one request.
    clients: Vec<(reqwest::Client, Option<Instant>)>,
    /// When a request ended last, on whichever connection.
    last_end: Option<Instant>,
}

/// The right to one connection; it ends with this value.
pub(super) struct Permit<'a> {
    of: &'a Connections,
    client: Option<reqwest::Client>,
    // The semaphore is never closed.
    _permit: Option<SemaphorePermit<'a>>,
    // The turn of a read or a confirmation.
    _turn: Option<SemaphorePermit<'a>>,
}

impl Connections {
    /// Keeps what can make a connection.
    pub(super) fn keep(&self, client: reqwest::Client) {
        self.lock().clients.push((client, None));
    }

    /// Waits for one of those that `permits` allows, in turn. With it ends `turn`.
    pub(super) async fn one<'a>(
        &'a self,
        permits: &'a Semaphore,
        turn: Option<SemaphorePermit<'a>>,
    ) -> Permit<'a> {
        Permit { of: self, client: None, _permit: permits.acquire().await.ok(), _turn: turn }
    }

    fn lock(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permit<'_> {
    /// What sends on this connection, made by `make` where none is free. An answer is read to its end before the permit
    /// ends, so that the next request finds the connection free.
    pub(super) fn client(
        &mut self,
        make: impl FnOnce() -> Result<reqwest::Client, SetupError>,
    ) -> Result<&reqwest::Client, SetupError> {
        let kept = self.of.lock().clients.pop();
        let client = match kept {
            Some((client, _)) => client,
            None => make()?,
        };
        Ok(self.client.insert(client))
    }

    /// Whether no request has ended for some time: the one that is sent now has a connection of its own, and more requests
    /// are not to be expected.
    pub(super) fn is_alone(&self) -> bool {
        self.of.lock().last_end.is_none_or(|end| end.elapsed() > IDLE)
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let Some(client) = self.client.take() else { return };
        let now = Instant::now();
        let mut free = self.of.lock();
        free.last_end = Some(now);
        // Those at the bottom have lost their connections by now.
        let without = |since: &Option<Instant>| since.is_none_or(|since| now - since > IDLE * 2);
        let spare = free.clients.iter().take_while(|(_, since)| without(since)).count();
        free.clients.drain(..spare.saturating_sub(SPARE));
        free.clients.push((client, Some(now)));
    }
}
