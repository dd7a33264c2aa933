//! What answers do to a machine. After each, [`Machine::drive`] decides.

use super::*;

impl Machine {
    /// The session has ended: what was seen and asked for in its name is void.
    pub(in crate::semaphore) fn session_gone(&mut self, cx: &mut Context<'_>) {
        self.lose(LossReason::SessionGone, cx);
        self.stop_watch(cx);
        self.view = None;
        self.token = None;
        self.doubt = false;
        self.retry_at = None;
        self.flight = match self.flight {
            Flight::None | Flight::Checking => Flight::None,
            Flight::Listing | Flight::Committing { .. } | Flight::Void => Flight::Void,
        };
    }

    /// A look at the session is over, and it has not ended.
    pub(in crate::semaphore) fn session_checked(&mut self) {
        if matches!(self.flight, Flight::Checking) {
            self.flight = Flight::None;
        }
    }

    pub(in crate::semaphore) fn listed(&mut self, answer: Result<Listing, Failure>, cx: &mut Context<'_>) {
        match std::mem::replace(&mut self.flight, Flight::None) {
            Flight::Listing => {}
            Flight::None | Flight::Checking | Flight::Committing { .. } | Flight::Void => return,
        }
        match answer {
            Ok(listing) => {
                self.works(cx);
                self.last_commit = 0;
                self.proved = true;
                self.doubt = false;
                self.see(listing, cx.now);
            }
            Err(failure) => self.fails(failure, cx),
        }
    }

    pub(in crate::semaphore) fn watched(&mut self, answer: Result<Listing, Failure>, cx: &mut Context<'_>) {
        let Some(since) = self.watching.take() else { return };
        match answer {
            Ok(listing) => {
                self.works(cx);
                self.watch_failing_since = None;
                if listing.index > self.view_index() {
                    self.spurious.reset();
                } else if cx.now.since(since) < EARLY {
                    self.retry_at = Some(cx.now + self.spurious.next(cx.rng));
                }
                if listing.index < self.last_commit {
                    // Older than what we have written since, or Consul was set back: only a consistent read tells.
                    self.doubt = true;
                } else if !matches!(self.flight, Flight::Committing { .. }) {
                    self.proved = false;
                    self.see(listing, cx.now);
                }
            }
            Err(failure) => {
                self.watch_failing_since = self.watch_failing_since.or(Some(cx.now));
                self.fails(failure, cx);
                // What changed meanwhile is not known; the plan may go on from the view, a loss may not.
                self.proved = false;
            }
        }
    }

    pub(in crate::semaphore) fn committed(&mut self, answer: Result<Commit, Failure>, cx: &mut Context<'_>) {
        let (write, sent) = match std::mem::replace(&mut self.flight, Flight::None) {
            Flight::Committing { write, sent } => (write, sent),
            Flight::None | Flight::Listing | Flight::Checking | Flight::Void => return,
        };
        match answer {
            Ok(Commit::Done { index }) => {
                self.write_works(cx);
                self.contention.reset();
                self.last_commit = index;
                self.proved = true;
                let limit = |view: &View| view.record().map(|record| record.limit);
                if let Some(view) = &mut self.view {
                    let before = limit(view);
                    view.apply(&write.ops, index);
                    if let (Some(from), Some(to)) = (before, limit(view))
                        && from != to
                    {
                        cx.tell(Notice::LimitSet { name: self.name.clone(), from, to });
                    }
                }
                if write.pruned > 0 {
                    let took = cx.now.since(sent);
                    cx.tell(Notice::Pruned { name: self.name.clone(), holders: write.pruned, took });
                }
            }
            Ok(Commit::Stale) => {
                self.write_works(cx);
                cx.tell(Notice::Conflict { name: self.name.clone() });
                self.doubt = true;
                self.retry_at = Some(cx.now + self.contention.next(cx.rng));
            }
            Ok(Commit::SessionGone) => {
                // Renewals may go on being answered all the same, by a server that knows more or less.
                self.retry_at = Some(cx.now + self.contention.next(cx.rng));
                self.doubt = true;
                self.check_session = true;
                self.flight = Flight::Checking;
            }
            Ok(Commit::Refused { why }) => {
                self.fails(Failure { kind: FailureKind::Rejected, text: why }, cx);
                self.write_fails = true;
                self.doubt = true;
            }
            // Whether it was done is not known: read before anything else.
            Err(failure) => {
                self.fails(failure, cx);
                self.write_fails = true;
                self.doubt = true;
            }
        }
    }

    fn see(&mut self, listing: Listing, now: Moment) {
        let before = self.view_index();
        let mut view = View::new(&self.settings.prefix, listing.pairs, listing.index);
        if view.index < before {
            // Consul's rule for blocking queries: an index that went back starts again from 0.
            view.index = 0;
        }
        let dead: Vec<_> = view
            .record()
            .map(|record| record.holders.iter().filter(|holder| !view.is_alive(holder)).cloned().collect())
            .unwrap_or_default();
        let since = std::mem::take(&mut self.dead_since);
        self.dead_since =
            dead.into_iter().map(|id| (id.clone(), since.get(&id).copied().unwrap_or(now))).collect();
        self.view = Some(view);
    }

    /// A write has been decided, or none is wanted any more.
    pub(super) fn write_works(&mut self, cx: &mut Context<'_>) {
        self.write_fails = false;
        self.works(cx);
    }

    fn works(&mut self, cx: &mut Context<'_>) {
        if self.write_fails {
            return;
        }
        self.failures.reset();
        if self.failing.take().is_some() {
            cx.tell(Notice::TroubleOver { name: Some(self.name.clone()) });
        }
    }

    fn fails(&mut self, failure: Failure, cx: &mut Context<'_>) {
        self.retry_at = Some(cx.now + self.failures.next(cx.rng));
        let before = self.failing.replace(failure.clone()).map(|failure| failure.kind);
        if before != Some(failure.kind) {
            cx.tell(Notice::Trouble { name: Some(self.name.clone()), failure });
        }
    }
}
