//! Reads again after each change.

use std::time::Duration;

use super::Error;
use slotkeeper_consul::{Client, Indexed, Read};
use slotkeeper_semaphore::{Failure, FailureKind};

/// The longest wait before it reads anyway. Within this time it notices what none of its keys shows: the end of a dead holder's
/// session, and a new lock at the prefix itself.
pub(super) const WAIT: Duration = Duration::from_secs(15);

/// A read that is repeated after each change.
pub struct Poll {
    client: Client,
    index: u64,
}

impl Poll {
    /// A poll that has not read yet.
    pub fn new(client: &Client) -> Self {
        Self { client: client.clone(), index: 0 }
    }

    /// The answer of `ask`: at first at once, then after a change, or after a while in any case.
    ///
    /// # Errors
    ///
    /// That of `ask`. The next call reads at once.
    pub async fn next<T>(
        &mut self,
        ask: impl AsyncFn(&Client, Read) -> Result<Indexed<T>, Error>,
    ) -> Result<Indexed<T>, Error> {
        let before = std::mem::take(&mut self.index);
        if before == 0 {
            // Start again from index 0, perhaps at another cluster.
            self.client = self.client.bound();
        }
        // Jitter, so that many watches do not read at the same time.
        let wait = WAIT.mul_f64(0.9 + fastrand::f64() / 5.0);
        let answer = match ask(&self.client, Read::consistent().after(before, wait)).await {
            // A long poll that was cut is no failure: read without waiting.
            Err(Error::Failed(Failure { kind: FailureKind::Cut, .. })) => {
                ask(&self.client, Read::consistent()).await?
            }
            answer => answer?,
        };
        // An index that decreased means to start from 0.
        self.index = if answer.index < before { 0 } else { answer.index };
        Ok(answer)
    }
}
