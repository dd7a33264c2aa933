//! The gauges, set from the agent's status at each scrape.

use std::collections::BTreeMap;

use super::{Metrics, NO_SLOT, date};
use crate::status::{Entry, Lease, Mode, Semaphore, Snapshot, State};
use slotkeeper_semaphore::{Moment, Wall};

impl Metrics {
    /// `present` are the semaphores and locks that have series.
    pub(super) fn set_gauges(
        &self,
        snapshot: &Snapshot,
        present: &BTreeMap<String, bool>,
        now: Moment,
        wall: Wall,
    ) {
        let lease_is_fresh = snapshot.lease_left(now).is_some_and(|left| !left.is_zero());
        // A removed entry whose leases remain may have the same name as a configured one. Configured entries come first in the status,
        // and so set the gauges last.
        let semaphores = snapshot.semaphores.iter().rev().filter(|one| present.contains_key(&one.entry.name));
        for semaphore in semaphores {
            let name = &[semaphore.entry.name.as_str()];
            let limit = semaphore.limit.unwrap_or(semaphore.configured_limit);
            let mismatch = limit != semaphore.configured_limit;
            self.semaphores.holders.with_label_values(name).set(semaphore.slots_taken.unwrap_or(0).into());
            self.semaphores.limit.with_label_values(name).set(limit.into());
            self.semaphores.limit_mismatch.with_label_values(name).set(mismatch.into());
            self.semaphores.waiters.with_label_values(name).set(semaphore.queue_length.unwrap_or(0).into());
            self.semaphores
                .queue_position
                .with_label_values(name)
                .set(semaphore.position.unwrap_or(0).into());
            self.semaphores.slots.with_label_values(name).set(slots_at_once(semaphore, now));
            let all = snapshot.semaphores.iter().map(|one| &one.entry);
            let share = Share {
                slot: semaphore.slot_indexes.first().copied(),
                ..Share::of(&semaphore.entry, all, lease_is_fresh)
            };
            self.set_share(&share, lends(present, name[0]), now, wall);
        }
        for lock in snapshot.locks.iter().rev().filter(|one| present.contains_key(&one.entry.name)) {
            self.semaphores.holders.with_label_values(&[&lock.entry.name]).set(lock.leader.is_some().into());
            let all = snapshot.locks.iter().map(|one| &one.entry);
            let share = Share::of(&lock.entry, all, lease_is_fresh);
            self.set_share(&share, lends(present, &lock.entry.name), now, wall);
        }
        let session = snapshot.session.as_ref();
        self.agent.session_expiry.set(date(session.and_then(|session| session.lease_ends), wall));
        self.agent.session_ttl.set(session.map_or(0.0, |session| session.ttl_seconds));
        self.agent.ready.set(snapshot.is_ready(now).into());
    }

    /// Sets the gauges that semaphores and locks have in common.
    fn set_share(&self, share: &Share<'_>, lends: bool, now: Moment, wall: Wall) {
        let Entry { name, state, fencing_token, moments, .. } = share.entry;
        let name = &[name.as_str()];
        let lent: Vec<_> = share.leases.iter().filter(|lease| lease.is_held(now)).collect();
        let waits = share.leases.iter().filter(|lease| lease.state == State::Waiting).count();
        let count = |leases: usize| i64::try_from(leases).unwrap_or(i64::MAX);
        if lends {
            self.semaphores.leases.with_label_values(name).set(count(lent.len()));
            self.semaphores.lease_waiters.with_label_values(name).set(count(waits));
        }
        self.semaphores.slot_held.with_label_values(name).set(i64::from(share.held) + count(lent.len()));
        self.semaphores.blocked.with_label_values(name).set((*state == State::Blocked).into());
        let slot = share.slot.filter(|_| share.held).map_or(NO_SLOT, Into::into);
        self.semaphores.slot_index.with_label_values(name).set(slot);
        // An index is far below 2⁵³, so a float holds it exactly.
        #[allow(clippy::cast_precision_loss, reason = "see above")]
        self.semaphores.fencing_token.with_label_values(name).set(fencing_token.unwrap_or(0) as f64);
        let held = moments.held_since.filter(|_| share.held);
        let held = held.into_iter().chain(lent.iter().filter_map(|lease| lease.moments.held_since)).min();
        self.semaphores.held_since.with_label_values(name).set(date(held, wall));
        let asked = share.leases.iter().filter_map(|lease| lease.moments.asked_at);
        let asked = moments.asked_at.into_iter().chain(asked).min();
        self.semaphores.waiting_since.with_label_values(name).set(date(asked, wall));
        self.semaphores.last_seen.with_label_values(name).set(date(moments.seen_at, wall));
    }
}

/// What this agent and its clients hold of a semaphore or lock, and wait for.
struct Share<'a> {
    entry: &'a Entry,
    /// Whether the agent itself holds a slot, with a fresh lease.
    held: bool,
    /// Its first slot; 0 for a lock.
    slot: Option<u32>,
    /// The leases of all entries with its name.
    leases: Vec<&'a Lease>,
}

impl<'a> Share<'a> {
    /// The share in `entry`, which is one of `all` of its kind.
    fn of(entry: &'a Entry, all: impl Iterator<Item = &'a Entry>, lease_is_fresh: bool) -> Self {
        let held = entry.mode == Mode::Hold && entry.state == State::Held && lease_is_fresh;
        let leases = all.filter(|one| one.name == entry.name).flat_map(|one| &one.leases).collect();
        Self { entry, held, slot: Some(0), leases }
    }
}

/// The slots that the oldest lease takes, as for `held_since`. A changed configuration applies to later leases.
fn slots_at_once(semaphore: &Semaphore, now: Moment) -> i64 {
    let lent = semaphore
        .entry
        .leases
        .iter()
        .filter(|lease| lease.is_held(now))
        .min_by_key(|lease| lease.moments.held_since);
    let held = lent.map_or(&semaphore.slot_indexes, |lease| &lease.slot_indexes);
    if held.is_empty() { semaphore.slots.into() } else { i64::try_from(held.len()).unwrap_or(i64::MAX) }
}

/// Whether the entry of that name has series of leases.
fn lends(present: &BTreeMap<String, bool>, name: &str) -> bool {
    present.get(name).is_some_and(|lends| *lends)
}
