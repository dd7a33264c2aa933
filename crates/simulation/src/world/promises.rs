//! What the protocol promises of wake-ups, where every watch arrives; and what is found without any, where none does.
//!
//! A slot that is free, or whose holder is dead, and a live waiter that it is enough for do not stand side by side for longer
//! than a bound, and who was let in knows of it within one. There are two exceptions, and what ends them ends also the excuse:
//!
//! - **Nobody looks out.** One waiter sees what becomes of holders and of what is free: the one that is marked, or where none
//!   is, the first of ours. While its process is dead, or stands still or cut off, nobody else need see it.
//! - **A request of one's own was lost or late.** Who waits for an answer does nothing else, and after a failure rests.

use super::*;
use crate::intervals::{EARLIER_CLIENT, HOLDER, OTHERS};
use crate::store_state::StoreState;
use slotkeeper_semaphore::Contender;

/// What everybody who is told does within this: whoever is to look out begins after a second, and looks once a second; and a few
/// answers.
const PROMPT: Duration = Duration::from_secs(3);
/// The longest rest after requests that failed.
const REST: Duration = Duration::from_secs(10);
/// What may lie between a listing that is due and what comes of it, where processes stand still and requests are lost.
const TROUBLE: Duration = TTL.saturating_mul(6);

impl World {
    /// The bounds: where somebody looks out, and where nobody does.
    fn bounds(&self) -> Option<(Duration, Duration)> {
        let Chaos { lost, cut, .. } = self.game.chaos;
        let rest = if lost + cut > 0.0 { REST } else { Duration::ZERO };
        let earlier_client = if self.game.earlier_clients > 0 { EARLIER_CLIENT } else { Duration::ZERO };
        match self.game.watches {
            Watches::Usual => None,
            // One that begins to look out has each of the dead rest anew.
            Watches::Arrive => Some((PROMPT + rest + self.game.prune_delay + earlier_client, Duration::MAX)),
            // Whoever was told to look out does not know before it looks.
            Watches::Never => Some((OTHERS + TROUBLE, OTHERS + TROUBLE)),
        }
    }

    /// After every step.
    pub(super) fn check_promises(&mut self) {
        let Some((watched, unwatched)) = self.bounds() else { return };
        if !self.is_owed() {
            (self.owed_since, self.neglected_since) = (None, None);
            return;
        }
        let now = self.now;
        let neglects = self.sentinels().any(|session| self.is_well(&session));
        self.neglected_since = neglects.then(|| self.neglected_since.unwrap_or(now));
        let (owed, neglected) = (*self.owed_since.get_or_insert(now), self.neglected_since.unwrap_or(now));
        let (owed, neglected, seed) = (now.since(owed), now.since(neglected), self.seed);
        let stands = || &self.referees[0].after;
        assert!(neglected <= watched, "seed {seed}: a slot was open for {neglected:?}: {:?}", stands());
        assert!(owed <= unwatched, "seed {seed}: a slot was open for {owed:?}: {:?}", stands());
    }

    /// Where nobody looks out, and nobody lists for want of news, an operator prunes.
    pub(super) fn rescue(&mut self) {
        let looks_out = self.sentinels().any(|session| self.lives(&session));
        if self.game.watches != Watches::Arrive || !self.is_owed() || looks_out {
            return;
        }
        let view = self.consul.view(SEMAPHORES[0]);
        let whom = view.record().iter().flat_map(|record| record.holders.iter().cloned()).collect();
        if let Ok(Some(write)) = plan::prune(&view, &whom, "", self.now) {
            let commit = self.consul.commit(&write.ops, self.now);
            assert!(matches!(commit, Commit::Done { .. }), "read and written in one step");
        }
    }

    /// Whether a slot and the first in line could find each other, and it lives.
    fn is_owed(&self) -> bool {
        let referee = &self.referees[0];
        let Some(record) = referee.after.record() else { return false };
        let Some(first) = referee.after.line().next() else { return false };
        let fits =
            |free: u32| first.entry.as_ref().is_some_and(|one| one.slots <= free && one.together.is_empty());
        let free = record.limit.saturating_sub(record.taken().saturating_sub(referee.rested(self.now)));
        fits(free) && self.lives(&first.session)
    }

    /// The waiters that are to see it.
    fn sentinels(&self) -> impl Iterator<Item = SessionId> {
        let picture = &self.referees[0].after;
        let ours = |picture: &StoreState| {
            let first = picture.line().find(|one| one.entry.is_some());
            first.map(|one: &Contender| one.session.clone())
        };
        let is_earlier = |session: &SessionId| {
            self.earlier_clients.iter().any(|earlier_client| earlier_client.session() == *session)
        };
        let names = picture.record().is_some_and(|record| record.has_lookout);
        // Where processes die, whoever was told may be among the dead.
        let Chaos { crash, dies, .. } = self.game.chaos;
        let alone = picture.marked().next().is_none() && !names && crash + dies == 0.0;
        let first = ours(picture).filter(|session| alone || is_earlier(session));
        picture.marked().cloned().chain(first)
    }

    fn process_of(&self, session: &SessionId) -> Option<&Agent> {
        self.agents
            .iter()
            .find(|agent| agent.keeper.session() == Some(session) && !agent.keeper.is_contested())
    }

    /// Whether a process still runs by that session.
    fn lives(&self, session: &SessionId) -> bool {
        self.process_of(session).is_some()
            || self.earlier_clients.iter().any(|earlier_client| earlier_client.session() == *session)
    }

    /// Whether it lives, and nothing keeps it from acting.
    fn is_well(&self, session: &SessionId) -> bool {
        self.lives(session) && self.process_of(session).is_none_or(|agent| agent.troubled_until() <= self.now)
    }

    /// Who was let in knows of it before long.
    pub(super) fn check_let_in(&mut self, place: usize) {
        let Some((told, _)) = self.bounds() else { return };
        let bound = if self.game.watches == Watches::Never { OTHERS + TROUBLE } else { told };
        let (seed, now) = (self.seed, self.now);
        let agent = &mut self.agents[place];
        let session = agent.keeper.session().filter(|_| !agent.draining && agent.ending.is_none());
        let listed = session.is_some_and(|session| self.referees[0].after.slots_of(session) > 0);
        let knows = !matches!(agent.phase(SEMAPHORES[0]), Some(Phase::Starting | Phase::Waiting));
        if !listed || knows || agent.keeper.is_contested() {
            agent.let_in_since = None;
            return;
        }
        let since = agent.let_in_since.unwrap_or(now).max(agent.troubled_until());
        agent.let_in_since = Some(since);
        let unaware = now.since(since);
        assert!(unaware <= bound, "seed {seed}: {:?} was let in {unaware:?} ago", agent.keeper.session());
    }

    /// For how long one that was told to leave may stay, beside what its workload takes to stop.
    pub(super) fn to_notice(&self, holds: bool) -> Duration {
        match self.game.watches {
            Watches::Usual | Watches::Arrive => Duration::ZERO,
            Watches::Never if holds => HOLDER,
            Watches::Never => OTHERS,
        }
    }
}
