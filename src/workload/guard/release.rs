//! What the guard does at Consul after the end of its agent: it releases what a killed agent held, and sees to the slots that the agent
//! or this release has offered to others.
//!
//! The holdings that the guard knows may be outdated by the agent, an operator or Consul. So everything is read first, and
//! nothing is written unless the session still has its key locked.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};

use super::holdings::Holdings;
use super::wire::Offer;
use crate::bridge;
use crate::clock;
use crate::console;
use crate::operator::{self, Place, offers};
use slotkeeper_consul::{Client, Unobserved};
use slotkeeper_semaphore::{SessionId, plan};

/// Maximum time of the release.
pub(super) const MAX_TIME: Duration = Duration::from_secs(5);
/// Maximum time to see to the offers of an agent that has ended: a dozen dead waiters that are offered a slot one after the other.
const MAX_TENDING: Duration = Duration::from_secs(30);
/// Time for all slots and locks, for the session, and for the token of a login.
const SLOTS_TIMEOUT: Duration = Duration::from_millis(2500);
const SESSION_TIMEOUT: Duration = Duration::from_secs(1);
const LOGOUT_TIMEOUT: Duration = Duration::from_secs(1);
/// Each release is a listing and a transaction.
const MAX_CONCURRENT_RELEASES: usize = 8;

/// What an agent leaves to its guard.
pub(super) enum Duty {
    /// To release everything, since the agent was killed. The outcome is reported on standard error.
    Everything,
    /// To see to these offers.
    Offers(Vec<Offer>),
}

/// Does its duty within [`MAX_TIME`], or [`MAX_TENDING`]. What is left then ends with the session's TTL, or is passed on by others, as without a guard.
/// Once it is `told` to end, it sees to no offer any more.
pub(super) async fn in_time(holdings: Holdings, duty: Duty, told: impl Future<Output = ()>) {
    let was_killed = matches!(duty, Duty::Everything);
    let time = if was_killed { MAX_TIME } else { MAX_TENDING };
    let (done, over) = oneshot::channel();
    let (stop, stopped) = oneshot::channel();
    // On a thread of its own: reading certificates and tokens may hang on a dead file system.
    let worker = std::thread::Builder::new().spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let released = runtime
            .map_err(|error| error.to_string())
            .and_then(|it| it.block_on(release(&holdings, duty, time, stopped)));
        // After the timeout the receiver is gone.
        let _ = done.send(released);
    });
    let released = match worker {
        Ok(_detached) => {
            let mut over = std::pin::pin!(timeout(time, over));
            let ended = tokio::select! {
                ended = &mut over => ended,
                () = told, if !was_killed => {
                    drop(stop);
                    over.await
                }
            };
            ended.map_or_else(
                |_late| Err(format!("the release took longer than {time:?}")),
                |ended| ended.unwrap_or_else(|_gone| Err("the release failed".to_owned())),
            )
        }
        Err(error) => Err(error.to_string()),
    };
    match released {
        _ if !was_killed => {}
        Ok(()) => console::say("the agent was killed: released what it held"),
        Err(why) => console::say(&format!(
            "the agent was killed, and not everything that it held could be released: {why}. What is left in Consul ends \
             with the session, by its TTL at the latest"
        )),
    }
}

async fn release(
    holdings: &Holdings,
    duty: Duty,
    time: Duration,
    stopped: oneshot::Receiver<()>,
) -> Result<(), String> {
    let ends = Instant::now() + time - LOGOUT_TIMEOUT;
    let settings = holdings.settings().map_err(|error| error.to_string())?;
    let client = Client::new(&settings, Arc::new(Unobserved)).map_err(|error| error.to_string())?;
    // Of several addresses, only the one that shows the session is used.
    client.remember(&holdings.session, time);
    let mut offers = Vec::new();
    let slots = match duty {
        Duty::Everything => {
            let client = client.within(SLOTS_TIMEOUT);
            let slots = timeout(SLOTS_TIMEOUT, everything(&client, holdings, &mut offers)).await;
            slots.unwrap_or_else(|_late| Err(format!("Consul did not answer in {SLOTS_TIMEOUT:?}")))
        }
        Duty::Offers(open) => {
            offers = open;
            Ok(())
        }
    };
    // Also after a failed release: without its session the holder is dead, and the next waiter prunes it. Offers do not need the
    // session of the client that made them.
    let destroyed = client.within(SESSION_TIMEOUT).session_destroy(&holdings.session).await;
    // What is late is passed on by others.
    tokio::select! {
        _ = timeout_at(ends, see_to(&client, offers)) => {}
        _ = stopped => {}
    }
    let logged_out = match holdings.logs_out() {
        // Last, since the requests before need the token.
        true => client.within(LOGOUT_TIMEOUT).logout().await,
        false => Ok(()),
    };
    slots.and(destroyed.and(logged_out).map_err(|error| bridge::message(&error)))
}

/// Releases every slot and lock, and adds the `offers` that it makes. Returns the first failure.
async fn everything(client: &Client, holdings: &Holdings, offers: &mut Vec<Offer>) -> Result<(), String> {
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
            let changed = operator::change(client, &place, plan).await.map_err(|error| error.to_string())?;
            let prefix = place.key;
            let offer = |(taker, index): (SessionId, u64)| Offer {
                prefix: prefix.clone(),
                taker: taker.as_str().to_owned(),
                index,
            };
            Ok(changed.offered.into_iter().map(offer).collect::<Vec<_>>())
        }
    });
    let mut released = stream::iter(released).buffer_unordered(MAX_CONCURRENT_RELEASES);
    let mut failed = Ok(());
    while let Some(one) = released.next().await {
        match one {
            Ok(made) => offers.extend(made),
            Err(why) => failed = failed.and(Err(why)),
        }
    }
    failed
}

/// Sees to offers of several semaphores.
async fn see_to(client: &Client, offers: Vec<Offer>) {
    let mut of: BTreeMap<String, Vec<(SessionId, u64)>> = BTreeMap::new();
    for Offer { prefix, taker, index } in offers {
        of.entry(prefix).or_default().push((taker.into(), index));
    }
    let all =
        of.into_iter().map(|(prefix, offers)| async move { offers::see_to(client, &prefix, offers).await });
    stream::iter(all).buffer_unordered(MAX_CONCURRENT_RELEASES).collect::<()>().await;
}
