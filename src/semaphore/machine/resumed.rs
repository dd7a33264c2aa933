//! A session that an earlier process made, and that may not be its alone: see [`plan::claim`].

use super::*;

impl Machine {
    /// Whether nothing may be decided yet: the session has something here without our nonce, or another process may
    /// believe for a while that it has it.
    pub(super) fn claims(
        &mut self,
        view: &View,
        session: &SessionId,
        claim: Option<Write>,
        cx: &mut Context<'_>,
    ) -> bool {
        let Some(write) = claim else {
            self.claimed = true;
            if std::mem::take(&mut self.claiming)
                && let Some(ttl) = cx.contested.filter(|_| !self.settled)
            {
                self.settles_at = Some(cx.now + ttl);
            }
            return self.settles(view, session, cx);
        };
        if view.was_granted(session) {
            self.look(view.lock_key(), view.latest(), cx);
            return true;
        }
        self.claiming = true;
        let ops = write.ops.clone();
        // What is found keeps its token: nothing is asked for.
        self.flight = Flight::Committing { write, sent: cx.now };
        cx.out.push_back(Command::Commit { parts: vec![Part { name: self.name.clone(), ops }] });
        true
    }

    /// Waits for as long as another process's lease may last that has not seen our nonce.
    fn settles(&mut self, view: &View, session: &SessionId, cx: &mut Context<'_>) -> bool {
        match self.settles_at {
            Some(at) if cx.now < at => {
                self.watch(plan::claimed(view, session), view.contenders.len(), cx);
                true
            }
            Some(_) => {
                self.settles_at = None;
                self.settled = true;
                false
            }
            None => false,
        }
    }

    /// Whether another process may believe that it has what the session has here.
    pub(in crate::semaphore) fn is_contested(&self) -> bool {
        !self.claimed || self.claiming || self.settles_at.is_some()
    }

    /// What was seen bears the nonce of another process, which has taken the session over; told once.
    pub(in crate::semaphore) fn take_displaced(&mut self) -> bool {
        std::mem::take(&mut self.displaced)
    }

    /// Looks whether another process has written its nonce. One that was there before ours was written is of the past.
    pub(super) fn see_nonce(&mut self, cx: &Context<'_>) {
        let own = cx.remembered.zip(self.view.as_ref());
        let nonce = own.and_then(|(session, view)| view.entry_of(session)?.nonce.as_deref());
        let is_present = self.claimed || !cx.resumed;
        self.displaced |= is_present && nonce.is_some_and(|nonce| nonce != cx.nonce);
    }
}
