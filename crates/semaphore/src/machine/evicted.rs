//! Slots that are to be released although they could be kept, by an eviction or with the rest of an acquire group: the machine
//! reports the loss, and releases the slot when the workload has stopped.

use super::state::Slot;
use super::{Context, LeaveReason, Machine};
use crate::SessionId;
use crate::contender::WaiterState;
use crate::notice::{LossReason, Notice};
use crate::settings::OnLost;
use crate::view::View;

impl Machine {
    /// The operator that evicted the slot, if that is the reason for the present state.
    pub fn evicted_by(&self) -> Option<&str> {
        self.past.evicted_by.as_deref()
    }

    /// The fencing token of the lost slot, while its workload is being stopped and no other client can acquire it.
    pub fn stopping(&self) -> Option<u64> {
        self.past.stopping
    }

    /// The token of a slot that is released after its workload has stopped, because it was evicted or the client leaves. A slot
    /// that is to be acquired again is not withheld.
    pub fn withheld(&self) -> Option<u64> {
        self.past.stopping.filter(|_| self.past.evicted_by.is_some() || self.state.leaves().is_some())
    }

    /// The workload that ran on what was lost has ended, or has had its time.
    pub(crate) fn workload_stopped(&mut self) {
        self.past.stopping = None;
    }

    /// An operator wants it out. A mark is never taken back, so that any read may show it.
    pub(super) fn handle_eviction(
        &mut self,
        by: String,
        view: &View,
        session: &SessionId,
        cx: &mut Context<'_>,
    ) {
        let has = self.holds_by(view, session);
        let slot = self.take_known_slot(view, session, cx);
        // If the lease has expired meanwhile, that was reported: the workload may not have stopped yet.
        let stopping = self.past.stopping.filter(|_| has);
        let held = slot.is_some() || stopping.is_some();
        cx.notify(Notice::Evicted { name: self.name.clone(), by: by.clone(), held });
        self.past.evicted_by = Some(by);
        let lost = slot.map(|slot| self.report_lost(slot, LossReason::Evicted, cx)).or(stopping);
        // After a forced eviction from `.lock` there is nothing to keep.
        self.past.stopping = lost.filter(|_| has && !cx.occupied);
        self.start_leaving(match (lost, self.settings.on_lost) {
            (Some(_), _) if cx.occupied => LeaveReason::Lost,
            (_, OnLost::Reacquire) => LeaveReason::Requeue,
            (Some(_), OnLost::Exit) => LeaveReason::Lost,
            (None, OnLost::Exit) => LeaveReason::TimedOut,
        });
    }

    /// Begins to release the slots, to ask for them again, because another member of the acquire group has none.
    pub(crate) fn release_with_group(&mut self, cx: &mut Context<'_>) {
        let view = self.view().cloned();
        let known = view.zip(cx.session.filter(|_| !cx.occupied));
        let slot = known.and_then(|(view, session)| self.take_known_slot(&view, session, cx));
        let lost = slot.map(|slot| self.report_lost(slot, LossReason::GroupLost, cx));
        let exits = lost.is_some() && self.settings.on_lost == OnLost::Exit;
        // A loss that was reported before, as of an expired lease, still has its time.
        self.past.stopping = lost.or(self.past.stopping);
        self.start_leaving(if exits { LeaveReason::Lost } else { LeaveReason::Requeue });
        self.drive(cx);
    }

    /// Whether the session has its slots, or the lock, by a view, and not by an offer that it has not accepted.
    fn holds_by(&self, view: &View, session: &SessionId) -> bool {
        let accepted = view.contender(session).is_some_and(|one| one.state() != Some(WaiterState::Offered));
        view.is_owner(session) || accepted && view.slots_of(session) == self.settings.slots
    }

    /// Takes the slot that is held, or that an earlier process held if the client has it still: the workload may run on it.
    fn take_known_slot(&mut self, view: &View, session: &SessionId, cx: &Context<'_>) -> Option<Slot> {
        let found = self.past.token.take().filter(|_| self.holds_by(view, session)).map(|token| {
            let entry = view.entry_of(session);
            let since =
                entry.and_then(|entry| cx.agent.wall.moment(&entry.since)).unwrap_or(cx.now).min(cx.now);
            let indexes = entry.map(|entry| entry.indexes.clone()).unwrap_or_default();
            Slot { since, session: session.clone(), token, indexes }
        });
        self.state.take_slot(cx.now).or(found)
    }

    /// A consistent read shows that the slots are no longer held.
    pub(super) fn conclude_loss(&mut self, view: &View, session: &SessionId, cx: &mut Context<'_>) {
        // An eviction deletes no `.lock` and no key of a lock.
        let is_missing = view.lock == crate::LockKeyState::Missing;
        let was_listed = is_missing || view.slots_of(session) == self.settings.slots;
        let contender_gone = was_listed && view.contender(session).is_none();
        self.lose(if contender_gone { LossReason::ContenderGone } else { LossReason::Evicted }, cx);
    }
}
