//! A bounded number of connections, each for one request at a time.
//!
//! The HTTP library bounds only its idle connections, and opens one besides while another is about to come free. Here each
//! connection has a library client of its own, so that there are never more than allowed.

use std::sync::{Mutex, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit};

use super::SetupError;

/// Connections of one kind.
pub(super) struct Connections {
    permits: Semaphore,
    /// Those that no request uses, the one used last on top: a dead connection then costs no more than one request.
    free: Mutex<Vec<reqwest::Client>>,
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
    /// At most so many.
    pub(super) const fn new(most: usize) -> Self {
        Self { permits: Semaphore::const_new(most), free: Mutex::new(Vec::new()) }
    }

    /// Waits for one, in turn. With it ends `turn`.
    pub(super) async fn one<'a>(&'a self, turn: Option<SemaphorePermit<'a>>) -> Permit<'a> {
        let permit = self.permits.acquire().await.ok();
        let client = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Permit { of: self, client, _permit: permit, _turn: turn }
    }
}

impl Permit<'_> {
    /// What sends on this connection, made by `make` where it is its first use. An answer is read to its end before the
    /// permit ends, so that the next request finds the connection free.
    pub(super) fn client(
        &mut self,
        make: impl FnOnce() -> Result<reqwest::Client, SetupError>,
    ) -> Result<&reqwest::Client, SetupError> {
        let client = match self.client.take() {
            Some(client) => client,
            None => make()?,
        };
        Ok(self.client.insert(client))
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            self.of.free.lock().unwrap_or_else(PoisonError::into_inner).push(client);
        }
    }
}
