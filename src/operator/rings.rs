//! Rings: a client that holds a slot here waits elsewhere for a slot of a client that waits here.

use std::collections::BTreeSet;

use super::inspection::{Inspection, Participant, Ring};
use crate::bridge;
use slotkeeper_consul::{Client, Read};
use slotkeeper_semaphore::View;

/// The most other prefixes that are read.
const MAX_PREFIXES: usize = 4;
/// The most rings that are reported.
const MAX_RINGS: usize = 8;

/// The rings of the semaphore with others in its folder, as far as the token may read them. The folder's keys show where its
/// holders have a contender key, too.
pub async fn find(client: &Client, prefix: &str, seen: &Inspection) -> Vec<Ring> {
    let holders: BTreeSet<&str> = seen.holders.iter().map(Participant::id).collect();
    // The root may have any number of other keys.
    let Some((folder, _)) = prefix.rsplit_once('/').filter(|_| !holders.is_empty() && !seen.queue.is_empty())
    else {
        return Vec::new();
    };
    let keys = client.kv_keys(&format!("{folder}/"), Read::consistent()).await;
    let keys = keys.map(|keys| keys.value).unwrap_or_default();
    let pairs = keys.iter().filter_map(|key| key.rsplit_once('/'));
    let elsewhere = pairs.filter(|(other, session)| *other != prefix && holders.contains(session));
    let elsewhere: BTreeSet<_> = elsewhere.map(|(other, _)| other).collect();
    let mut rings = Vec::new();
    for other in elsewhere.into_iter().take(MAX_PREFIXES) {
        let Ok(listing) = bridge::list(client, other, Read::consistent()).await else { continue };
        let view = View::of_listing(other, listing);
        let Some(record) = view.record() else { continue };
        for holder in view.waiters().into_iter().filter(|one| holders.contains(one.session.as_str())) {
            let waits_here = seen.queue.iter().filter(|one| record.slots_of(&one.id().into()) > 0);
            rings.extend(waits_here.map(|waiter| Ring {
                holder: holder.session.to_string(),
                waiter: waiter.id().to_owned(),
                prefix: other.to_owned(),
            }));
        }
    }
    rings.truncate(MAX_RINGS);
    rings
}
