//! A contested session: an earlier process created it and may still use it. See [`plan::claim`](super::super::plan::claim).

use super::Keeper;
use crate::Moment;
use crate::command::Command;
use crate::machine::Claim;
use crate::machine::Machine;
use crate::notice::{LossReason, Notice};
use crate::timing::contest;

impl Keeper {
    /// Another process has resumed the session. It is that one's: nothing more is written under it, and it is not destroyed.
    pub(super) fn leave_session(&mut self, now: Moment) {
        let Some(session) = self.session.remembered().cloned() else { return };
        self.out.push_back(Command::Notify(Notice::SessionTaken { session }));
        for name in self.names() {
            self.with(&name, now, |machine, cx| {
                machine.take_displaced();
                machine.session_gone(LossReason::SessionTaken, cx);
            });
        }
        self.session.leave(now);
    }

    /// Whether the process that made the session may still believe in what it has, so that it must not be destroyed.
    pub fn is_contested(&self) -> bool {
        self.contested && self.session.is_resumed()
    }

    /// When the contest for the session can be over at the earliest; `None` where there is none. Nothing is given back before.
    pub fn contest_ends(&self, now: Moment) -> Option<Moment> {
        let ttl = self.session.lasts().filter(|_| self.is_contested())?;
        let ends = |one: &Machine| match one.claim() {
            Claim::Settling { until } => until,
            // The other process is still to be told.
            Claim::Unknown | Claim::Writing { .. } => now + ttl,
            Claim::Bare | Claim::Ours => now,
        };
        self.machines.iter().map(ends).max()
    }

    /// Whether what the session has everywhere is known, and another process has had its time to hear of it. A session that has
    /// nothing is left to that one.
    pub(super) fn ends_contest(&mut self, now: Moment) -> bool {
        let ttl = self.session.lasts().unwrap_or(self.ttl);
        // A semaphore that Consul refuses to show, or to have written, does not hold up the others for longer. Where anything was
        // found elsewhere, the other process has been told by that.
        let is_late = self.begun + contest(ttl) <= now;
        let known = self.machines.iter().filter(|machine| !is_late || !machine.is_refused_claim());
        let claims: Vec<_> = known.map(Machine::claim).collect();
        if claims.iter().all(|claim| *claim == Claim::Bare) {
            // The other process cannot be told, and may acquire something by this session later. Nothing is lost by a new one.
            for name in self.names() {
                self.with(&name, now, |machine, cx| machine.session_gone(LossReason::SessionTaken, cx));
            }
            self.session.leave(now);
            return true;
        }
        claims.iter().all(|claim| matches!(claim, Claim::Bare | Claim::Ours))
    }

    /// From here on the session is ours alone, or there is another one.
    pub(super) fn end_contest(&mut self, now: Moment) {
        self.contested = false;
        for machine in self.machines.iter_mut() {
            machine.contest_is_over(now);
        }
    }
}
