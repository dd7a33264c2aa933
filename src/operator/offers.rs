//! Sees to slots that a client without a part of its own has offered to waiters: whoever offers stays responsible until the offer is
//! accepted.

use std::future::ready;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::time::{Instant, sleep, timeout_at};

use super::{Place, look};
use crate::bridge;
use crate::clock;
use slotkeeper_consul::{Client, Read};
use slotkeeper_semaphore::{Commit, OFFER_PATIENCE, SessionId, Sight, Sightings, View, plan};

/// The most takers that are watched at the same time.
const MAX_WATCHED: usize = 8;
/// The wait after a failed request, a lost race, or a watch that was answered without news: at first, and at most after some in a row.
const PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// Waits until these waiters have accepted their offers, each with its index. What is not accepted in time is passed on.
pub async fn see_to(client: &Client, prefix: &str, mut offers: Vec<(SessionId, u64)>) {
    let place = Place::semaphore(prefix);
    let mut sightings = Sightings::default();
    while !offers.is_empty() {
        let now = clock::now();
        for (taker, index) in &offers {
            sightings.note(Sight::Offer, taker, *index, now);
        }
        if are_answered(client, prefix, &offers).await {
            return;
        }
        offers = pass_on(client, &place, &mut sightings, &offers).await;
    }
}

/// Whether all takers have changed their contender keys in time, or have none any more.
async fn are_answered(client: &Client, prefix: &str, offers: &[(SessionId, u64)]) -> bool {
    let until = Instant::now() + OFFER_PATIENCE;
    let watches =
        offers.iter().map(|(taker, index)| is_answered(client, format!("{prefix}/{taker}"), *index, until));
    stream::iter(watches).buffer_unordered(MAX_WATCHED).all(ready).await
}

async fn is_answered(client: &Client, key: String, index: u64, until: Instant) -> bool {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let read = bridge::read(client, &key, Read::default().after(index, left));
        match timeout_at(until, read).await {
            Ok(Ok(reading)) if reading.pair.as_ref().map(|pair| pair.modify_index) != Some(index) => {
                return true;
            }
            Ok(_) => sleep(PAUSE.min(left)).await,
            Err(_late) => return false,
        }
    }
}

/// Passes on what is overdue of `mine`. Returns the offers that this makes.
async fn pass_on(
    client: &Client,
    place: &Place,
    sightings: &mut Sightings,
    mine: &[(SessionId, u64)],
) -> Vec<(SessionId, u64)> {
    let is_open = |view: &View| {
        let stands = |(taker, index): &(SessionId, u64)| {
            view.contender(taker).is_some_and(|one| one.modify_index == *index)
        };
        mine.iter().any(stands)
    };
    let (mut asks, mut pause) = (false, PAUSE);
    loop {
        let Ok(view) = look(client, place).await else {
            pause = rest(pause).await;
            continue;
        };
        let now = clock::now();
        sightings.see(&view, now);
        // Dead holders are none of its business: it does not know how long their slots rest.
        let (write, again) = plan::pass_on(&view, sightings, None, &clock::wall().text(now), now);
        let again = again.map(|at| at.since(now));
        let Some(write) = write else {
            match again.filter(|_| asks || is_open(&view)) {
                Some(time) => sleep(time).await,
                None => return Vec::new(),
            }
            continue;
        };
        let (offered, asked, asks_in_line) = (write.offered, write.asked, write.asks);
        match bridge::commit(client, write.ops).await {
            Ok(Commit::Done { index, .. }) if !offered.is_empty() => {
                return offered.into_iter().map(|taker| (taker, index)).collect();
            }
            Ok(Commit::Done { index, .. }) => {
                for waiter in asked {
                    sightings.note(Sight::Asked, &waiter, index, now);
                }
                asks = asks_in_line;
                sleep(again.unwrap_or(PAUSE)).await;
            }
            Ok(_) | Err(_) => pause = rest(pause).await,
        }
    }
}

/// Waits for a random part of the pause. Returns the next one.
async fn rest(pause: Duration) -> Duration {
    sleep(pause.mul_f64(0.2 + 0.8 * fastrand::f64())).await;
    (pause * 2).min(MAX_PAUSE)
}
