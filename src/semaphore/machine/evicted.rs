//! One that an operator wants out: it says so, stops, and then goes.

use super::*;

impl Machine {
    /// The operator by whom it was told to leave, where that is why it stands as it does.
    pub fn evicted_by(&self) -> Option<&str> {
        self.evicted_by.as_deref()
    }

    /// The fencing token of the slot that it was told to leave, while that is not given on yet since its workload is being
    /// stopped.
    pub fn withheld(&self) -> Option<u64> {
        self.withheld
    }

    /// The workload that ran on what it was told to leave has ended, or has had its time.
    pub(in crate::semaphore) fn give_on(&mut self) {
        self.withheld = None;
    }

    /// An operator wants it out. A mark is never taken back, so that any read may show it.
    pub(super) fn evicted(&mut self, by: String, view: &View, session: &SessionId, cx: &mut Context<'_>) {
        let has = view.is_owner(session) || view.holds(session, self.settings.slots);
        // What an earlier process of ours held, its workload may be running on.
        if let (None, Some(token)) = (&self.slot, self.token.take().filter(|_| has)) {
            let entry = view.entry_of(session);
            let since = entry.and_then(|entry| cx.wall.moment(&entry.since)).unwrap_or(cx.now).min(cx.now);
            let indexes = entry.map(|entry| entry.indexes.clone()).unwrap_or_default();
            self.slot = Some(Slot { since, session: session.clone(), token, indexes });
        }
        cx.tell(Notice::Evicted { name: self.name.clone(), by: by.clone(), held: self.slot.is_some() });
        self.evicted_by = Some(by);
        let lost = self.tell_lost(LossReason::Evicted, cx);
        // Who was taken out of `.lock` by force besides has nothing to keep.
        self.withheld = lost.filter(|_| has && !cx.occupied);
        self.depart(match (lost, self.settings.on_lost) {
            (Some(_), _) if cx.occupied => Farewell::Lost,
            (_, OnLost::Reacquire) => Farewell::Again,
            (Some(_), OnLost::Exit) => Farewell::Lost,
            (None, OnLost::Exit) => Farewell::GaveUp,
        });
    }
}
