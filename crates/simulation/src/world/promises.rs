//! The promises of the protocol to a queue: no slot waits for a client that does not answer while a waiter that does stands in line, and
//! no waiter that answers is taken for one that does not.
//!
//! A client *answers* while its process runs, is connected, and has no late or lost request. Consul answers all the time.

use super::*;
use crate::store_state::StoreState;
use slotkeeper_semaphore::contender::WaiterState;

/// A few requests and answers, each of which takes up to 5 ms.
const TRIPS: Duration = Duration::from_millis(100);
/// The time that an offer stands before it may be withdrawn: the protocol's `OFFER_PATIENCE`.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the waiters that were asked for a sign of life have to give it: `ROLL_CALL`, and three and a half times that where the client
/// that asked is no more, and the first that has answered looks itself.
const ROLL_CALL: Duration = Duration::from_millis(1800);
/// An observer that was woken by a change looks within this time: `WATCH_DELAY`.
const LOOK: Duration = Duration::from_secs(1);
/// An observer rests for at most this long between two looks: `LOOK_PAUSE`.
const MAX_PAUSE: Duration = Duration::from_secs(10);
/// A foreign client ahead has its turn for this long: `FOREIGN_TURN`.
const TURN: Duration = Duration::from_millis(300);
/// A waiter that keeps free slots from others, as they do not suffice for it, is asked for a sign of life after this long where it has given
/// one before: `GROUP_PATIENCE`.
const KEPT: Duration = Duration::from_secs(5);
/// The maximum pause after failed requests.
const REST: Duration = Duration::from_secs(10);

/// The time within which somebody that lives finds that a slot is idle, and withdraws the offer of it: the one observer that lives may have
/// to rest, looks, sees the offer standing, and asks the waiters.
const BOUND: Duration = Duration::from_millis(
    (LOOK.as_millis() * 2
        + MAX_PAUSE.as_millis()
        + PATIENCE.as_millis()
        + ROLL_CALL.as_millis()
        + TRIPS.as_millis()) as u64,
);

/// The clocks of one queue.
#[derive(Default)]
pub(super) struct Promises {
    /// Since when so many slots and more have been idle: free, offered, or a dead holder's.
    idle: Vec<Moment>,
    /// The same for free slots.
    free: Vec<Moment>,
    /// The first waiter that answers, if the idle slots suffice for it, and since when.
    head: Option<(SessionId, Moment)>,
    /// Since when there has been such a waiter.
    owed: Option<Moment>,
    /// What each contender has to answer, by the index of its key: an offer, or the wish for a sign of life.
    asked: HashMap<SessionId, (u64, Moment)>,
    /// The longest times so far, for people.
    pub(super) longest: (Duration, Duration),
}

impl Promises {
    /// Takes in a state of the semaphore. `running`: the slots that clients have accepted, or whose dead holders may not be pruned yet.
    fn see(&mut self, state: &StoreState, running: u32, now: Moment) {
        let limit = state.record().map_or(0, |record| record.limit);
        let free = state.record().map_or(0, Record::free);
        for (clocks, slots) in [(&mut self.idle, limit.saturating_sub(running)), (&mut self.free, free)] {
            // An invalid `.lock` may have any limit.
            clocks.resize(slots.min(1000) as usize, now);
        }
        let asked = state.contenders().filter(|one| {
            let offered = one.state() == Some(WaiterState::Offered) && state.slots_of(&one.session) > 0;
            offered || one.says_waiting() && one.entry.as_ref().is_some_and(|entry| entry.asked)
        });
        let since = |one: &slotkeeper_semaphore::Contender| {
            let known = self.asked.get(&one.session).filter(|(index, _)| *index == one.modify_index);
            known.copied().unwrap_or((one.modify_index, now))
        };
        self.asked = asked.map(|one| (one.session.clone(), since(one))).collect();
    }
}

impl World {
    /// Whether watches tell of every change, so that nothing is found by chance.
    fn is_reliable(&self) -> bool {
        let Chaos { lost, cut, .. } = self.game.chaos;
        match self.game.watches {
            Watches::Usual => lost + cut == 0.0,
            Watches::Arrive => true,
            Watches::Never => false,
        }
    }

    /// After a change of the store.
    pub(super) fn note_promises(&mut self) {
        if self.game.is_of_locks() {
            return;
        }
        for (promises, referee) in self.promises.iter_mut().zip(&self.referees) {
            promises.see(&referee.after, referee.running(self.now), self.now);
        }
    }

    /// At each tick.
    pub(super) fn check_promises(&mut self) {
        let Chaos { lost, cut, .. } = self.game.chaos;
        if self.game.is_of_locks() || !self.is_reliable() {
            return;
        }
        self.note_promises();
        let now = self.now;
        let answering: HashMap<_, _> = self
            .agents
            .iter()
            .filter(|agent| agent.troubled_until() <= now && agent.wants_slots())
            .filter_map(|agent| Some((agent.keeper.session()?.clone(), agent.troubled_until())))
            .collect();
        let rest = if lost + cut > 0.0 { REST } else { Duration::ZERO };
        // A few such waiters, one behind the other.
        let kept = if self.game.weights { KEPT * 3 } else { Duration::ZERO };
        let turns = TURN * u32::try_from(self.foreigners.len()).expect("not many");
        for (promises, referee) in self.promises.iter_mut().zip(&self.referees) {
            let (seed, state) = (self.seed, &referee.after);
            // A member of an acquire group may wait for its other slots.
            let is_of_group = |one: &slotkeeper_semaphore::Contender| {
                one.entry.as_ref().is_some_and(|entry| !entry.together.is_empty())
            };
            for (session, (_, since)) in &promises.asked {
                let Some(well) = answering.get(session).filter(|_| !self.game.groups) else { continue };
                let late = now.since((*since).max(*well));
                assert!(late <= TRIPS + rest, "seed {seed}: {session} was asked {late:?} ago: {state:?}");
            }
            let head = state.queue().find(|one| answering.contains_key(&one.session) || is_of_group(one));
            let slots = head.map_or(1, |one| one.entry.as_ref().map_or(1, |entry| entry.slots.max(1)));
            let limit = state.record().map_or(0, |record| record.limit);
            let head = head.filter(|one| !is_of_group(one) && slots <= limit);
            let idle = promises.idle.get(slots as usize - 1).copied();
            let Some((head, idle)) = head.zip(idle) else {
                (promises.head, promises.owed) = (None, None);
                continue;
            };
            let same = promises.head.take().filter(|(session, _)| *session == head.session);
            let (_, stood) = promises.head.insert(same.unwrap_or((head.session.clone(), now)));
            let owed = *promises.owed.get_or_insert(now);
            let waited = now.since(idle.max(*stood));
            let free = promises.free.get(slots as usize - 1).map(|since| now.since((*since).max(owed)));
            let free = free.unwrap_or_default();
            let bound = BOUND + rest + turns + kept;
            promises.longest = (promises.longest.0.max(waited), promises.longest.1.max(free));
            assert!(
                waited <= bound,
                "seed {seed}: {} waited for {waited:?} at idle slots, of {bound:?}: {state:?}",
                head.session
            );
            assert!(free <= bound, "seed {seed}: slots were free for {free:?}, of {bound:?}: {state:?}");
            for (session, (_, since)) in &promises.asked {
                let stands = now.since((*since).max(owed));
                let offered = state.slots_of(session) > 0;
                assert!(
                    !offered || stands <= bound,
                    "seed {seed}: the offer to {session} stood for {stands:?}, of {bound:?}: {state:?}"
                );
            }
        }
    }

    /// How long an evicted participant may stay, in addition to the stop of its workload.
    pub(super) fn to_notice(&self, holds: bool) -> Duration {
        match self.game.watches {
            Watches::Usual | Watches::Arrive => Duration::ZERO,
            Watches::Never if holds => intervals::HOLDER,
            Watches::Never => intervals::OTHERS,
        }
    }
}
