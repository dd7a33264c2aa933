//! The bounds of the protocol on wake-ups: with every watch answered, and without any answer, so that listings find everything.
//!
//! A slot that is free or whose holder is dead goes to a live waiter that it suffices for within a bound. A waiter that acquired a
//! slot knows of it within a bound. There are two exceptions, each while it lasts:
//!
//! - **There is no lookout.** One waiter sees the changes of holders and of free slots: the marked waiter, or without a mark the
//!   first agent in the queue. While its process is dead, paused or partitioned, no other waiter need see them.
//! - **A request of the waiter was lost or late.** A waiter that waits for an answer does nothing else, and pauses after a failure.

use super::*;
use crate::intervals::{HOLDER, OTHERS};
use crate::store_state::StoreState;
use slotkeeper_semaphore::Contender;

/// The time within which a waiter acts on a change: a new lookout begins after a second and looks once a second, and a few answers
/// take their time.
const PROMPT: Duration = Duration::from_secs(3);
/// A newcomer looks within this time.
const LOOK: Duration = Duration::from_secs(9);
/// The maximum pause after failed requests.
const REST: Duration = Duration::from_secs(10);
/// The maximum time between a due listing and its effect while processes pause and requests are lost.
const FAULTS: Duration = TTL.saturating_mul(6);

impl World {
    /// The bounds with a lookout, and without one.
    fn bounds(&self) -> Option<(Duration, Duration)> {
        let Chaos { lost, cut, .. } = self.game.chaos;
        let rest = if lost + cut > 0.0 { REST } else { Duration::ZERO };
        match self.game.watches {
            Watches::Usual => None,
            // A new lookout begins the prune delay of each dead holder again.
            Watches::Arrive => Some((PROMPT + rest + self.game.prune_delay, Duration::MAX)),
            // A new lookout does not know its task before its next listing.
            Watches::Never => Some((OTHERS + FAULTS, OTHERS + FAULTS)),
        }
    }

    /// After every step.
    pub(super) fn check_promises(&mut self) {
        let Some((watched, unwatched)) = self.bounds() else { return };
        if !self.is_owed() {
            (self.owed_since, self.neglected_since, self.orphaned_since) = (None, None, None);
            return;
        }
        let now = self.now;
        let neglects = self.sentinels().any(|session| self.is_well(&session));
        self.neglected_since = neglects.then(|| self.neglected_since.unwrap_or(now));
        self.orphaned_since = self.is_orphaned().then(|| self.orphaned_since.unwrap_or(now));
        let (owed, neglected) = (*self.owed_since.get_or_insert(now), self.neglected_since.unwrap_or(now));
        let (owed, neglected, seed) = (now.since(owed), now.since(neglected), self.seed);
        let state = || &self.referees[0].after;
        assert!(neglected <= watched, "seed {seed}: a slot was free for {neglected:?}: {:?}", state());
        assert!(owed <= unwatched, "seed {seed}: a slot was free for {owed:?}: {:?}", state());
        self.check_newcomers_look();
    }

    /// Whether `.lock` names a lookout that has no contender.
    fn is_orphaned(&self) -> bool {
        let state = &self.referees[0].after;
        let record = state.record().filter(|record| record.has_lookout);
        record.and_then(|record| record.next.last()).is_some_and(|lookout| state.contender(lookout).is_none())
    }

    /// A free slot whose lookout is dead is found by each agent that joined after the death: soon, or when the sessions of the dead
    /// have ended.
    fn check_newcomers_look(&self) {
        let (Some(died), Some(orphaned)) = (self.joint_death, self.orphaned_since) else { return };
        for agent in self.agents.iter().filter(|agent| !agent.draining && agent.ending.is_none()) {
            let asked = agent.keeper.machine(SEMAPHORES[0]).and_then(|machine| machine.asked_at());
            let Some(asked) = asked.filter(|asked| *asked >= died && agent.answered_by <= self.now) else {
                continue;
            };
            let ends = if asked >= orphaned { asked } else { asked + TTL * self.game.lasts };
            let (seed, late) = (self.seed, self.now.since(ends.max(orphaned)));
            assert!(
                late <= LOOK + PROMPT,
                "seed {seed}: {:?} did not look for {late:?}",
                agent.keeper.session()
            );
        }
    }

    /// No wait ends at a slot that was free all the time, and whose lookout was dead.
    pub(super) fn check_timed_out_in_vain(&self, wait: Option<Duration>, asked: Moment) {
        // Some answers must have time to arrive.
        let long = wait.is_some_and(|wait| wait >= TTL / 25);
        let free = self.orphaned_since.filter(|since| long && self.joint_death.is_some() && *since <= asked);
        assert!(
            free.is_none(),
            "seed {}: a slot was free since {free:?}: {:?}",
            self.seed,
            self.referees[0].after
        );
    }

    /// An operator prunes if there is no lookout and no agent lists for lack of news.
    pub(super) fn rescue(&mut self) {
        let looks_out = self.sentinels().any(|session| self.lives(&session));
        if self.game.watches != Watches::Arrive || !self.is_owed() || looks_out {
            return;
        }
        let view = self.consul.view(SEMAPHORES[0]);
        let whom = view.record().iter().flat_map(|record| record.holders.iter().cloned()).collect();
        if let Ok(Some(write)) = plan::prune(&view, &whom, "", self.now) {
            let commit = self.consul.commit(&write.ops, self.now);
            assert!(
                matches!(commit, Commit::Done { .. }),
                "no write comes between the read and the transaction"
            );
        }
    }

    /// Whether a free slot, or one of a dead holder, suffices for the live head of the queue.
    fn is_owed(&self) -> bool {
        let referee = &self.referees[0];
        let Some(record) = referee.after.record() else { return false };
        let Some(first) = referee.after.queue().next() else { return false };
        let fits =
            |free: u32| first.entry.as_ref().is_some_and(|one| one.slots <= free && one.together.is_empty());
        let free = record.limit.saturating_sub(record.taken().saturating_sub(referee.rested(self.now)));
        fits(free) && self.lives(&first.session)
    }

    /// The waiters that must see it.
    fn sentinels(&self) -> impl Iterator<Item = SessionId> {
        let state = &self.referees[0].after;
        let ours = |state: &StoreState| {
            let first = state.queue().find(|one| one.entry.is_some());
            first.map(|one: &Contender| one.session.clone())
        };
        let names = state.record().is_some_and(|record| record.has_lookout);
        // If processes die, the lookout may be dead.
        let Chaos { crash, dies, joint, .. } = self.game.chaos;
        let alone = state.marked().next().is_none() && !names && crash + dies + joint == 0.0;
        let first = ours(state).filter(|_| alone);
        state.marked().cloned().chain(first)
    }

    fn process_of(&self, session: &SessionId) -> Option<&Agent> {
        self.agents.iter().find(|agent| agent.keeper.session() == Some(session))
    }

    /// Whether a process with this session runs.
    fn lives(&self, session: &SessionId) -> bool {
        self.process_of(session).is_some()
    }

    /// Whether the process runs, and is neither paused, partitioned nor waiting for an answer.
    fn is_well(&self, session: &SessionId) -> bool {
        self.lives(session) && self.process_of(session).is_none_or(|agent| agent.troubled_until() <= self.now)
    }

    /// A waiter that was granted a slot knows of it within the bound.
    pub(super) fn check_grant_is_known(&mut self, place: usize) {
        let Some((told, _)) = self.bounds() else { return };
        let bound = if self.game.watches == Watches::Never { OTHERS + FAULTS } else { told };
        let (seed, now) = (self.seed, self.now);
        let agent = &mut self.agents[place];
        let session = agent.keeper.session().filter(|_| !agent.draining && agent.ending.is_none());
        let listed = session.is_some_and(|session| self.referees[0].after.slots_of(session) > 0);
        let knows = !matches!(agent.phase(SEMAPHORES[0]), Some(Phase::Starting | Phase::Waiting));
        if !listed || knows {
            agent.unaware_since = None;
            return;
        }
        let since = agent.unaware_since.unwrap_or(now).max(agent.troubled_until());
        agent.unaware_since = Some(since);
        let unaware = now.since(since);
        assert!(
            unaware <= bound,
            "seed {seed}: {:?} has held without its knowledge for {unaware:?}",
            agent.keeper.session()
        );
    }

    /// How long an evicted participant may stay, in addition to the stop of its workload.
    pub(super) fn to_notice(&self, holds: bool) -> Duration {
        match self.game.watches {
            Watches::Usual | Watches::Arrive => Duration::ZERO,
            Watches::Never if holds => HOLDER,
            Watches::Never => OTHERS,
        }
    }
}
