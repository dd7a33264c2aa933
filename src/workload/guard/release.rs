//! Releases what a killed agent held, after the end of its command.
//!
//! The holdings that the guard knows may be outdated by the agent, an operator or Consul. So everything is read first, and
//! nothing is written unless the session still has its key locked.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::holdings::Holdings;
use crate::bridge;
use crate::clock;
use crate::console;
use crate::operator::{self, Place};
use slotkeeper_consul::{Client, Unobserved};
use slotkeeper_semaphore::{SessionId, plan};

/// Maximum time of the release.
pub(super) const MAX_TIME: Duration = Duration::from_secs(5);
/// Time for all slots and locks, for the session, and for the token of a login.
const SLOTS_TIMEOUT: Duration = Duration::from_millis(2500);
const SESSION_TIMEOUT: Duration = Duration::from_secs(1);
const LOGOUT_TIMEOUT: Duration = Duration::from_secs(1);
/// Each release is a listing and a transaction.
const MAX_CONCURRENT_RELEASES: usize = 8;

/// Releases everything within [`MAX_TIME`], and reports the outcome on standard error. What is left ends with the session's
/// TTL, as without a guard.
pub(super) async fn in_time(holdings: Holdings) {
    let (done, over) = oneshot::channel();
    // On a thread of its own: reading certificates and tokens may hang on a dead file system.
    let worker = std::thread::Builder::new().spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let released =
            runtime.map_err(|error| error.to_string()).and_then(|it| it.block_on(release(&holdings)));
        // After the timeout the receiver is gone.
        let _ = done.send(released);
    });
    let released = match worker {
        Ok(_detached) => timeout(MAX_TIME, over).await.map_or_else(
            |_late| Err(format!("the release took longer than {MAX_TIME:?}")),
            |ended| ended.unwrap_or_else(|_gone| Err("the release failed".to_owned())),
        ),
        Err(error) => Err(error.to_string()),
    };
    match released {
        Ok(()) => console::say("the agent was killed: released what it held"),
        Err(why) => console::say(&format!(
            "the agent was killed, and not everything that it held could be released: {why}. What is left in Consul ends \
             with the session, by its TTL at the latest"
        )),
    }
}

async fn release(holdings: &Holdings) -> Result<(), String> {
    let settings = holdings.settings().map_err(|error| error.to_string())?;
    let client = Client::new(&settings, Arc::new(Unobserved)).map_err(|error| error.to_string())?;
    // Of several addresses, only the one that shows the session is used.
    client.remember(&holdings.session, MAX_TIME);
    let slots = timeout(SLOTS_TIMEOUT, everything(&client.within(SLOTS_TIMEOUT), holdings)).await;
    let slots = slots.unwrap_or_else(|_late| Err(format!("Consul did not answer in {SLOTS_TIMEOUT:?}")));
    // Also after a failed release: without its session the holder is dead, and the next waiter prunes it.
    let destroyed = client.within(SESSION_TIMEOUT).session_destroy(&holdings.session).await;
    let logged_out = match holdings.logs_out() {
        // Last, since the requests before need the token.
        true => client.within(LOGOUT_TIMEOUT).logout().await,
        false => Ok(()),
    };
    slots.and(destroyed.and(logged_out).map_err(|error| bridge::message(&error)))
}

/// Releases every slot and lock. Returns the first failure.
async fn everything(client: &Client, holdings: &Holdings) -> Result<(), String> {
    let session = SessionId::from(holdings.session.as_str());
    let semaphores = holdings.semaphores.iter().map(|prefix| Place::semaphore(prefix));
    let places = semaphores.chain(holdings.locks.iter().map(|key| Place::lock(key)));
    let released = places.map(|place| {
        let session = &session;
        async move {
            let plan = |view: &_| {
                let now = clock::now();
                Ok(plan::release(view, session, holdings.locks_stay, &clock::wall().text(now), now))
            };
            operator::change(client, &place, plan).await.map(drop).map_err(|error| error.to_string())
        }
    });
    let all: Vec<_> = stream::iter(released).buffer_unordered(MAX_CONCURRENT_RELEASES).collect().await;
    all.into_iter().collect()
}
