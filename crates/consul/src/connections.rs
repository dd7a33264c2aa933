//! A bounded number of connections, each for one request at a time.
//!
//! The HTTP library limits only idle connections. Here each connection has a library client of its own, so that the total is limited.
//! All kinds of requests share the connections: a client that acquires, waits and releases in turn needs one.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

use super::SetupError;

/// An idle connection is closed after this time, at most after twice this time. Requests that follow one another reuse it; an idle
/// client keeps the connection of its long poll alone.
pub(super) const IDLE: Duration = Duration::from_secs(2);

/// The number of library clients that are kept without a connection.
const SPARE: usize = 2;

/// The idle connections to one Consul.
#[derive(Default)]
pub(super) struct Connections {
    free: Mutex<Free>,
}

#[derive(Default)]
struct Free {
    /// With the time since when each is idle; the last used one is on top. So a dead connection costs at most one request.
    clients: Vec<(reqwest::Client, Option<Instant>)>,
    /// The end of the last request, on any connection.
    last_end: Option<Instant>,
}

/// The right to one connection, until the value is dropped.
pub(super) struct Permit<'a> {
    of: &'a Connections,
    client: Option<reqwest::Client>,
    // The semaphore is never closed.
    _permit: Option<SemaphorePermit<'a>>,
    // The turn of a read or a confirmation.
    _turn: Option<SemaphorePermit<'a>>,
}

impl Connections {
    /// Keeps a library client for later use.
    pub(super) fn keep(&self, client: reqwest::Client) {
        self.lock().clients.push((client, None));
    }

    /// Waits in turn for a connection of those that `permits` allows. `turn` ends with the permit.
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
    /// The library client of this connection, made by `make` if none is free. An answer is read to its end before the permit ends, so
    /// that the next request finds the connection free.
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

    /// Whether no request has ended for some time, so that no further request is likely soon.
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
        // The connections of those at the bottom are closed by now.
        let without = |since: &Option<Instant>| since.is_none_or(|since| now - since > IDLE * 2);
        let spare = free.clients.iter().take_while(|(_, since)| without(since)).count();
        free.clients.drain(..spare.saturating_sub(SPARE));
        free.clients.push((client, Some(now)));
    }
}
