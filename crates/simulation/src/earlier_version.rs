//! A client of the previous version of slotkeeper, simplified to its behaviour on the wire.
//!
//! It knows `.lock` and the contender keys by their JSON alone, so that no change of today's code changes it. It joins by a listing
//! and a transaction, which takes a free slot if the queue is empty, and otherwise locks its contender key. It watches its own
//! contender key and that of the waiter ahead. At the head it watches `.lock` and one holder, names itself and the waiters behind it in
//! `Next`, and takes free slots. When it leaves, it hands off its slot to a session of `Next`. It lists all keys at intervals.
//!
//! Left out: the map format, several slots and priorities of its own, acquire groups, the lease (its process renews while it lives),
//! lost answers, operators.

use std::time::Duration;

use uuid::Uuid;

use super::consul::{Consul, SEMAPHORES, TTL};
use slotkeeper_semaphore::{Commit, Moment, Op, SessionId};
use snapshot::{Contender, Snapshot, entry};

mod snapshot;

/// The semaphore that these clients use.
const NAME: &str = SEMAPHORES[0];
/// The maximum number of waiters in `Next`, and of grants in one transaction.
const MAX_NEXT: usize = 16;
/// How long a free slot is left to a foreign client that is ahead in the queue.
const FOREIGN_TURN: Duration = Duration::from_millis(300);
/// The first and the maximum wait after a transaction that lost a race.
const CONTENTION: (Duration, Duration) = (Duration::from_millis(4), Duration::from_secs(1));
/// The name in `Next` for foreign clients, which take slots themselves.
const OTHERS: &str = "";

/// The next step of a client.
#[derive(Debug)]
enum Step {
    Enter,
    List,
    /// A listing has arrived.
    Decide(Snapshot),
    /// The keys for the release have been read.
    Leave(Snapshot),
    Commit(Vec<Op>),
    /// The answer to a transaction has arrived.
    Answered(Commit),
    /// The client waits for a change of a watched key, or for its timer.
    Rest,
}

pub(super) struct EarlierClient {
    id: Uuid,
    limit: u32,
    deaf: bool,
    step: Step,
    work: Duration,
    leaves_at: Option<Moment>,
    list_at: Moment,
    free_since: Option<Moment>,
    failures: u32,
    watches: Vec<(String, u64)>,
    /// The number of the valid timer.
    pub(super) timer: u64,
    pub(super) holds: bool,
    pub(super) done: bool,
}

impl EarlierClient {
    /// `deaf`: watches report nothing to the client.
    pub(super) fn new(limit: u32, deaf: bool, rng: &mut fastrand::Rng, now: Moment) -> Self {
        Self {
            id: Uuid::from_u128(rng.u128(..)),
            limit,
            deaf,
            step: Step::Enter,
            work: Duration::from_millis(rng.u64(1..2000)),
            leaves_at: None,
            list_at: now,
            free_since: None,
            failures: 0,
            watches: Vec::new(),
            timer: 0,
            holds: false,
            done: false,
        }
    }

    pub(super) fn session(&self) -> SessionId {
        SessionId::from(self.me())
    }

    fn me(&self) -> String {
        self.id.to_string()
    }

    fn own_key(&self) -> String {
        format!("{NAME}/{}", self.id)
    }

    /// Whether a watched key has changed, so that the client acts before its timer.
    pub(super) fn hears(&mut self, consul: &Consul) -> bool {
        let changed = |(key, after): &(String, u64)| consul.index_of(key) > *after;
        let wakes = !self.deaf && matches!(self.step, Step::Rest) && self.watches.iter().any(changed);
        if wakes {
            self.watches.clear();
        }
        wakes
    }

    /// Plays the next step. Returns the time until the following one.
    pub(super) fn step(&mut self, consul: &mut Consul, rng: &mut fastrand::Rng, now: Moment) -> Duration {
        let near = Duration::from_micros(rng.u64(200..5000));
        // A client that leaves has stopped its workload.
        self.holds &= !self.is_leaving(now);
        match std::mem::replace(&mut self.step, Step::List) {
            Step::Enter => {
                consul.create_lasting_session(self.id, now);
                near
            }
            Step::Rest if self.is_leaving(now) => {
                let keys = [format!("{NAME}/.lock"), self.own_key()];
                let pairs: Vec<_> = keys.iter().filter_map(|key| consul.read(key).pair).collect();
                self.step = Step::Leave(Snapshot::of(&pairs, self.limit));
                near
            }
            Step::List | Step::Rest => {
                self.step = Step::Decide(Snapshot::of(&consul.list(NAME).pairs, self.limit));
                near
            }
            Step::Decide(snapshot) if self.is_leaving(now) && snapshot.contender(&self.me()).is_none() => {
                self.end(consul, now);
                near
            }
            Step::Decide(snapshot) => match self.decide(snapshot, rng, now) {
                Some(ops) => {
                    self.step = Step::Commit(ops);
                    near
                }
                None => {
                    self.step = Step::Rest;
                    if self.hears(consul) {
                        return near;
                    }
                    let wakes = [Some(self.list_at), self.leaves_at].into_iter().flatten().min();
                    wakes.map_or(near, |at| at.since(now))
                }
            },
            Step::Leave(snapshot) => {
                self.step = self.hand_off(snapshot).map_or(Step::List, Step::Commit);
                near
            }
            Step::Commit(ops) => {
                self.step = Step::Answered(consul.commit(&ops, now));
                near
            }
            Step::Answered(commit) => self.answered(&commit, consul, rng, now),
        }
    }

    fn answered(
        &mut self,
        commit: &Commit,
        consul: &mut Consul,
        rng: &mut fastrand::Rng,
        now: Moment,
    ) -> Duration {
        if !matches!(commit, Commit::Done { .. }) {
            let wait = CONTENTION.0.saturating_mul(1 << self.failures.min(10)).min(CONTENTION.1);
            self.failures += 1;
            return wait.mul_f64(0.5 + rng.f64() / 2.0);
        }
        self.failures = 0;
        if self.is_leaving(now) && consul.read(&self.own_key()).pair.is_none() {
            self.end(consul, now);
        }
        Duration::from_micros(rng.u64(200..5000))
    }

    fn end(&mut self, consul: &mut Consul, now: Moment) {
        consul.destroy(&self.session(), now);
        self.done = true;
    }

    fn is_leaving(&self, now: Moment) -> bool {
        self.leaves_at.is_some_and(|at| at <= now)
    }

    /// The operations that follow from a listing. `None`: the client waits.
    fn decide(&mut self, mut snapshot: Snapshot, rng: &mut fastrand::Rng, now: Moment) -> Option<Vec<Op>> {
        let me = self.me();
        let own = snapshot.contender(&me).cloned();
        let holds = snapshot.names("Holders").contains(&me);
        let holders = snapshot.names("Holders");
        let about = holders.iter().position(|one| *one == me).unwrap_or_default();
        let neighbour =
            holders[about.min(holders.len())..].iter().skip(1).chain(&holders).find(|one| **one != me);
        let neighbour = neighbour.and_then(|one| snapshot.contender(one)).cloned();
        let (before, alive) = (snapshot.record.clone(), snapshot.alive.clone());
        snapshot.remove_holders(|holder| holder != me && !alive.contains(holder));
        self.free_since = (snapshot.free() > 0).then(|| self.free_since.unwrap_or(now));
        let foreign_turn = self.free_since.is_some_and(|since| now < since + FOREIGN_TURN);
        let mut queue = snapshot.queue();
        let place = queue.iter().position(|one| one.session == me);
        let heads = place.is_some_and(|place| queue[..place].iter().all(|one| one.entry.is_none()));
        self.wait_for(
            &snapshot,
            own.as_ref(),
            &queue[..place.unwrap_or_default()],
            neighbour.as_ref(),
            rng,
            now,
        );

        let leaves = self.is_leaving(now);
        let own = match own {
            Some(own) if leaves => {
                snapshot.remove_holders(|holder| holder == me);
                queue.retain(|one| one.session != me);
                let (granted, _) = snapshot.fill(&queue, &own.numbers(), foreign_turn);
                let checks = snapshot.write_next(&queue);
                return Some(self.and_delete(&own, snapshot.write(), checks, granted));
            }
            // The client was evicted, and moves to the end of the queue.
            Some(own) if !holds && own.is("held") => {
                (self.holds, self.leaves_at) = (false, None);
                return Some(vec![Op::DeleteCas { key: self.own_key(), index: own.index }]);
            }
            own => own,
        };
        let Some(own) = own else {
            let (key, session) = (self.own_key(), self.session());
            let check = Op::CheckNotExists { key: key.clone() };
            let lock = |value| Op::Lock { key, value, flags: 0, session };
            if queue.is_empty() && snapshot.free() > 0 {
                let numbers: Vec<_> = snapshot.numbers(&[]).into_iter().take(1).collect();
                let holders: Vec<_> = snapshot.names("Holders").into_iter().chain([me]).collect();
                snapshot.set("Holders", &holders);
                return Some(vec![snapshot.write(), check, lock(entry("held", 1, &numbers))]);
            }
            let unchanged = Op::CheckIndex { key: format!("{NAME}/.lock"), index: snapshot.index };
            let openly = (snapshot.free() > 0 && snapshot.index > 0).then_some(unchanged);
            return Some(openly.into_iter().chain([check, lock(entry("waiting", 1, &[]))]).collect());
        };
        if holds && own.is("held") && !self.holds {
            self.holds = true;
            self.leaves_at = Some(now + self.work);
        }
        // A waiter behind another slotkeeper leaves the work to the waiters ahead.
        if !holds && !heads {
            return None;
        }
        let (granted, left) = snapshot.fill(&queue, &[], foreign_turn);
        if left {
            self.list_at = self.list_at.min(self.free_since.unwrap_or(now) + FOREIGN_TURN);
        }
        let first = snapshot.names("Next").into_iter().find(|name| name != OTHERS);
        let names = granted.is_empty() && heads && first.is_none_or(|first| first != me);
        let checks =
            if names || snapshot.record != before { snapshot.write_next(&queue) } else { Vec::new() };
        if snapshot.record == before {
            return None;
        }
        // A transaction may have 64 operations.
        Some([snapshot.write()].into_iter().chain(checks).chain(granted).collect())
    }

    /// Sets the watches, and the time of the next listing.
    fn wait_for(
        &mut self,
        snapshot: &Snapshot,
        own: Option<&Contender>,
        ahead: &[Contender],
        holder: Option<&Contender>,
        rng: &mut fastrand::Rng,
        now: Moment,
    ) {
        let key = |one: &Contender| (format!("{NAME}/{}", one.session), one.index);
        let lock = (format!("{NAME}/.lock"), snapshot.index);
        let holds = own.is_some_and(|own| own.is("held"));
        let ahead = ahead.iter().rfind(|one| one.entry.is_some());
        let others = match ahead {
            Some(ahead) if !holds => vec![key(ahead)],
            None if !holds => {
                [lock].into_iter().chain(holder.map(key)).filter(|(_, index)| *index > 0).collect()
            }
            _ => holder.map(key).into_iter().collect(),
        };
        self.watches = own.map(key).into_iter().chain(others).collect();
        let all = Duration::from_millis(500) * snapshot.contenders.len() as u32;
        let every = if ahead.is_some() && !holds { all.clamp(TTL / 2, TTL * 60) } else { TTL / 2 };
        self.list_at = now + every.mul_f64(1.0 - 0.3 * rng.f64());
    }

    /// Hands the slot off to the first session of `Next`, without a read of its contender key.
    fn hand_off(&self, mut snapshot: Snapshot) -> Option<Vec<Op>> {
        let me = self.me();
        let own = snapshot.contender(&me)?.clone();
        if !snapshot.names("Holders").contains(&me) {
            return None;
        }
        snapshot.remove_holders(|holder| holder == me);
        let mut freed = own.numbers().into_iter();
        let (mut holders, mut rest, mut ops) = (snapshot.names("Holders"), Vec::new(), Vec::new());
        for name in snapshot.names("Next") {
            if name == me || holders.contains(&name) {
                continue;
            }
            let twice = snapshot.names("Next").iter().filter(|one| **one == name).count() > 1;
            let number = if rest.is_empty() && name != OTHERS && !twice && snapshot.free() > 0 {
                freed.next()
            } else {
                None
            };
            let Some(number) = number else {
                rest.push(name);
                continue;
            };
            let (key, session) = (format!("{NAME}/{name}"), SessionId::from(&name));
            ops.push(Op::CheckSession { key: key.clone(), session: session.clone() });
            ops.push(Op::Lock { key, value: entry("held", 1, &[number]), flags: 0, session });
            holders.push(name);
        }
        snapshot.set("Holders", &holders);
        // Without a holder, `Next` is empty, and every live waiter sees the free slots.
        snapshot.set("Next", if holders.is_empty() { &[] } else { &rest });
        Some(self.and_delete(&own, snapshot.write(), Vec::new(), ops))
    }

    /// A transaction that also deletes the own contender key.
    fn and_delete(&self, own: &Contender, write: Op, checks: Vec<Op>, granted: Vec<Op>) -> Vec<Op> {
        let (key, index) = (self.own_key(), own.index);
        let gone = [Op::CheckIndex { key: key.clone(), index }, Op::DeleteCas { key, index }];
        [write].into_iter().chain(checks).chain(granted).chain(gone).collect()
    }
}
