//! Eviction of this client: the machine reports the loss, and releases the slot when the workload has stopped.

use super::{Context, Intent, LeaveReason, Machine, Slot};
use crate::SessionId;
use crate::notice::{LossReason, Notice};
use crate::settings::OnLost;
use crate::view::View;

impl Machine {
    /// The operator by whom it was told to leave, where that is why it stands as it does.
    pub fn evicted_by(&self) -> Option<&str> {
        self.evicted_by.as_deref()
    }

    /// The fencing token of the slot that was lost although nobody else can have it yet, while its workload is being stopped.
    pub fn stopping(&self) -> Option<u64> {
        self.stopping
    }

    /// The same of one that is given on only afterwards: it was told to leave, or goes of itself. One that asks for it again may
    /// have it back before.
    pub fn withheld(&self) -> Option<u64> {
        self.stopping.filter(|_| self.evicted_by.is_some() || matches!(self.intent(), Intent::Leave(_)))
    }

    /// The workload that ran on what was lost has ended, or has had its time.
    pub(crate) fn workload_stopped(&mut self) {
        self.stopping = None;
    }

    /// An operator wants it out. A mark is never taken back, so that any read may show it.
    pub(super) fn handle_eviction(
        &mut self,
        by: String,
        view: &View,
        session: &SessionId,
        cx: &mut Context<'_>,
    ) {
        let has = view.is_owner(session) || view.holds(session, self.settings.slots);
        // What an earlier process of ours held, its workload may be running on.
        let found = self.token.take().filter(|_| has).map(|token| {
            let entry = view.entry_of(session);
            let since = entry.and_then(|entry| cx.wall.moment(&entry.since)).unwrap_or(cx.now).min(cx.now);
            let indexes = entry.map(|entry| entry.indexes.clone()).unwrap_or_default();
            Slot { since, session: session.clone(), token, indexes }
        });
        let slot = self.state.take_slot(cx.now).or(found);
        // One whose lease has run out meanwhile was told so: its workload may not have stopped yet.
        let stopping = self.stopping.filter(|_| has);
        let held = slot.is_some() || stopping.is_some();
        cx.notify(Notice::Evicted { name: self.name.clone(), by: by.clone(), held });
        self.evicted_by = Some(by);
        let lost = slot.map(|slot| self.report_lost(slot, LossReason::Evicted, cx)).or(stopping);
        // Who was taken out of `.lock` by force besides has nothing to keep.
        self.stopping = lost.filter(|_| has && !cx.occupied);
        self.start_leaving(match (lost, self.settings.on_lost) {
            (Some(_), _) if cx.occupied => LeaveReason::Lost,
            (_, OnLost::Reacquire) => LeaveReason::Requeue,
            (Some(_), OnLost::Exit) => LeaveReason::Lost,
            (None, OnLost::Exit) => LeaveReason::TimedOut,
        });
    }
}
