//! The requests of a machine that fail at present, and when they are retried.

use super::{Context, LeaveReason, Machine, Timer};
use crate::backoff::{Backoff, jittered};
use crate::command::{Failure, FailureKind};
use crate::failing::Failing;
use crate::notice::Notice;
use crate::plan::Want;
use crate::timing::{CAS_RETRY_WAIT, FAILURE_RETRY_WAIT, MAX_CAS_RIVALS};
use crate::view::View;

#[derive(Clone, Debug, Default)]
pub(super) struct Failures {
    /// What fails, if anything does.
    pub(super) failing: Option<Failing>,
    /// What fails is a write: that reads work says nothing of it.
    pub(super) of_writes: bool,
    /// The last listing left out keys that the token may not read. What else is answered does not end that.
    pub(super) hidden: bool,
    pauses: Backoff,
}

impl Machine {
    /// A write has been decided, or none is wanted any more.
    pub(super) fn write_succeeded(&mut self, cx: &mut Context<'_>) {
        self.failures.of_writes = false;
        self.request_succeeded(cx);
    }

    /// A read has failed. Where no watch has begun yet, nothing is known of the slot by it either.
    pub(super) fn read_failed(&mut self, want: Want, failure: Failure, cx: &mut Context<'_>) {
        if self.watches.is_idle() && self.holds() {
            self.watches.failing_since.get_or_insert(cx.now);
        }
        self.request_failed(failure, cx);
        self.known.want(want);
    }

    /// A read was answered.
    pub(super) fn read_succeeded(&mut self, cx: &mut Context<'_>) {
        if self.watches.is_idle() {
            self.watches.failing_since = None;
        }
        self.request_succeeded(cx);
    }

    /// Something was answered. That may end what has failed.
    pub(super) fn request_succeeded(&mut self, cx: &mut Context<'_>) {
        if self.failures.of_writes || self.failures.hidden {
            return;
        }
        self.failures.pauses.reset();
        if self.failures.failing.take().is_some() {
            cx.notify(Notice::Recovered { name: Some(self.name.clone()) });
        }
    }

    /// A write has failed, or what it did is not known.
    pub(super) fn write_failed(&mut self, failure: Failure, cx: &mut Context<'_>) {
        self.request_failed(failure, cx);
        self.failures.of_writes = true;
        self.known.want(Want::All);
    }

    /// Whether nothing was ever read, and so no slot was granted.
    fn was_never_in(&self, cx: &Context<'_>) -> bool {
        self.view().is_none() && self.arrival().is_none() && !cx.agent.session.is_resumed()
    }

    /// Whether Consul refused the names of the keys before anything was read: nothing can be there to be released.
    pub(super) fn is_kept_out(&self, cx: &Context<'_>) -> bool {
        let is_refused = |failing: &Failing| failing.failure.kind == FailureKind::InvalidKey;
        self.failures.failing.as_ref().is_some_and(is_refused) && self.was_never_in(cx)
    }

    /// Something has failed. It is tried again, ever more seldom.
    pub(super) fn request_failed(&mut self, failure: Failure, cx: &mut Context<'_>) {
        self.timers.set(Timer::Retry, cx.now + self.failures.pauses.next(FAILURE_RETRY_WAIT, cx.rng));
        let is_news = Failing::note(&mut self.failures.failing, &failure, cx.now);
        // What cannot be read cannot be released: the session's end does that. A token may have a right again later, so a denied
        // read counts only if nothing was ever read, and so no slot was granted.
        let leaves = self.state.leaves() == Some(LeaveReason::Released);
        let is_done = !cx.occupied && self.withheld().is_none();
        let is_denied = failure.kind == FailureKind::Denied && self.was_never_in(cx);
        let cannot_release = failure.kind == FailureKind::InvalidKey || is_denied;
        if cannot_release && leaves && is_done {
            self.abandon(cx);
        }
        if is_news {
            cx.notify(Notice::Failing { name: Some(self.name.clone()), failure });
        }
    }

    /// Waits after a check-and-set that came too late: longer if more clients may be writing. Holders that were granted their slots
    /// together may leave together.
    pub(super) fn delay_retry(&mut self, cx: &mut Context<'_>) {
        let taken = self.view().and_then(View::record).map_or(1, crate::Record::taken);
        let own = self.view().zip(cx.remembered).and_then(|(view, session)| view.entry_of(session));
        let beside = own.and_then(|entry| entry.beside).unwrap_or(1).min(MAX_CAS_RIVALS);
        let others = f64::from(taken.clamp(1, MAX_CAS_RIVALS)).sqrt().max(f64::from(beside));
        let longest = self.contention.next(CAS_RETRY_WAIT, cx.rng).mul_f64(others);
        let pause = jittered(longest.min(CAS_RETRY_WAIT.1), 0.9, cx.rng);
        self.timers.set(Timer::Retry, cx.now + pause);
    }
}
