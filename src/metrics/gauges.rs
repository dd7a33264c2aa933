//! The gauges, set from the agent's status at each scrape.

use super::{Metrics, NO_SLOT, secs};
use crate::status::{Lease, Mode, Moments, Semaphore, Snapshot, State};
use slotkeeper_semaphore::{Moment, Wall};

impl Metrics {
    pub(super) fn set_gauges(&self, snapshot: &Snapshot, now: Moment, wall: Wall) {
        let lease_is_fresh = snapshot.lease_left(now).is_some_and(|left| !left.is_zero());
        let is_held = |mode, state| mode == Mode::Hold && state == State::Held && lease_is_fresh;
        let present = self.present();
        // A removed entry whose leases remain may have the same name as a configured one. Configured entries come first in the status,
        // and so set the gauges last.
        for semaphore in snapshot.semaphores.iter().rev().filter(|one| present.contains(&one.name)) {
            let name = &[semaphore.name.as_str()];
            let held = is_held(semaphore.mode, semaphore.state);
            let limit = semaphore.limit.unwrap_or(semaphore.configured_limit);
            let mismatch = limit != semaphore.configured_limit;
            self.semaphores.holders.with_label_values(name).set(semaphore.slots_taken.unwrap_or(0).into());
            self.semaphores.limit.with_label_values(name).set(limit.into());
            self.semaphores.limit_mismatch.with_label_values(name).set(mismatch.into());
            self.semaphores.waiters.with_label_values(name).set(semaphore.queue_length.unwrap_or(0).into());
            self.semaphores
                .queue_position
                .with_label_values(name)
                .set(semaphore.queue_position.unwrap_or(0).into());
            self.semaphores.slots.with_label_values(name).set(slots_at_once(semaphore, now));
            let share = Share {
                state: semaphore.state,
                held,
                moments: semaphore.moments,
                slot: semaphore.slot_indexes.first().copied(),
                token: semaphore.fencing_token,
                leases: of_name(&snapshot.semaphores, |one| {
                    (one.name == semaphore.name).then_some(&one.leases)
                }),
            };
            self.set_share(&semaphore.name, &share, now, wall);
        }
        for lock in snapshot.locks.iter().rev().filter(|one| present.contains(&one.name)) {
            self.semaphores.holders.with_label_values(&[&lock.name]).set(lock.leader.is_some().into());
            let share = Share {
                state: lock.state,
                held: is_held(lock.mode, lock.state),
                moments: lock.moments,
                slot: Some(0),
                token: lock.fencing_token,
                leases: of_name(&snapshot.locks, |one| (one.name == lock.name).then_some(&one.leases)),
            };
            self.set_share(&lock.name, &share, now, wall);
        }
        let session = snapshot.session.as_ref();
        self.agent.session_expiry.set(date(session.and_then(|session| session.lease_ends), wall));
        self.agent.session_ttl.set(session.map_or(0.0, |session| session.ttl_seconds));
        self.agent.ready.set(snapshot.is_ready(now).into());
    }

    /// Sets the gauges that semaphores and locks have in common.
    fn set_share(&self, name: &str, share: &Share<'_>, now: Moment, wall: Wall) {
        let name = &[name];
        let lent: Vec<_> = share.leases.iter().filter(|lease| lease.is_held(now)).collect();
        let waits = share.leases.iter().filter(|lease| lease.state == State::Waiting).count();
        let count = |leases: usize| i64::try_from(leases).unwrap_or(i64::MAX);
        self.semaphores.leases.with_label_values(name).set(count(lent.len()));
        self.semaphores.lease_waiters.with_label_values(name).set(count(waits));
        self.semaphores.slot_held.with_label_values(name).set(i64::from(share.held) + count(lent.len()));
        self.semaphores.blocked.with_label_values(name).set((share.state == State::Blocked).into());
        let slot = share.slot.filter(|_| share.held).map_or(NO_SLOT, Into::into);
        self.semaphores.slot_index.with_label_values(name).set(slot);
        // An index is far below 2⁵³, so a float holds it exactly.
        #[allow(clippy::cast_precision_loss, reason = "see above")]
        self.semaphores.fencing_token.with_label_values(name).set(share.token.unwrap_or(0) as f64);
        let held = share.moments.held_since.filter(|_| share.held);
        let held = held.into_iter().chain(lent.iter().filter_map(|lease| lease.moments.held_since)).min();
        self.semaphores.held_since.with_label_values(name).set(date(held, wall));
        let asked = share
            .moments
            .asked_at
            .into_iter()
            .chain(share.leases.iter().filter_map(|one| one.moments.asked_at))
            .min();
        self.semaphores.waiting_since.with_label_values(name).set(date(asked, wall));
        self.semaphores.seen.with_label_values(name).set(date(share.moments.seen_at, wall));
    }
}

/// What this agent and its clients hold of a semaphore or lock, and wait for.
struct Share<'a> {
    state: State,
    /// Whether the agent itself holds a slot, with a fresh lease.
    held: bool,
    moments: Moments,
    slot: Option<u32>,
    token: Option<u64>,
    leases: Vec<&'a Lease>,
}

/// All leases of the entries that `leases` selects.
fn of_name<'a, E>(entries: &'a [E], leases: impl Fn(&'a E) -> Option<&'a Vec<Lease>>) -> Vec<&'a Lease> {
    entries.iter().filter_map(leases).flatten().collect()
}

/// The slots that the oldest lease takes, as for `held_since`. A changed configuration applies to later leases.
fn slots_at_once(semaphore: &Semaphore, now: Moment) -> i64 {
    let lent = semaphore
        .leases
        .iter()
        .filter(|lease| lease.is_held(now))
        .min_by_key(|lease| lease.moments.held_since);
    let held = lent.map_or(&semaphore.slot_indexes, |lease| &lease.slot_indexes);
    if held.is_empty() { semaphore.slots.into() } else { i64::try_from(held.len()).unwrap_or(i64::MAX) }
}

/// As Unix time; 0 for none.
fn date(at: Option<Moment>, wall: Wall) -> f64 {
    let at = at.and_then(|at| wall.at(at).duration_since(std::time::UNIX_EPOCH).ok());
    at.map_or(0.0, secs)
}
