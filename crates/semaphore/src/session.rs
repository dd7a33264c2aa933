//! The life of the one session that all semaphores of an agent share.

use crate::timing::{
    MAX_RENEWALS_IN_FLIGHT, MAX_SESSION_RETRY_WAIT, REFUSED_SHARE, RENEW_JITTER, RETRY_JITTER,
};
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use super::backoff::{Backoff, jittered};
use super::command::{Command, Failure, FailureKind};
use super::failing::Failing;
use super::lease::{Lease, Terms};
use super::notice::Notice;
use super::{Moment, SessionId};

#[derive(Clone, Debug)]
enum State {
    /// No session. The next one is created at `create_at`.
    None { create_at: Moment },
    /// A creation was sent.
    Creating { sent: Moment },
    /// The session is live, as far as is known.
    Live(Live),
    /// The session is being destroyed. `retry_at` is set if the next attempt is still to be sent.
    Destroying { id: SessionId, retry_at: Option<Moment> },
}

#[derive(Clone, Debug)]
pub(super) struct Live {
    id: SessionId,
    terms: Terms,
    /// `None` for a resumed session that is not renewed yet: nothing is known of it.
    lease: Option<Lease>,
    /// When the next attempt is due.
    due: Due,
    /// The times at which the attempts under way were sent.
    pub(super) under_way: BTreeSet<Moment>,
    /// When the last renewal was answered.
    answered: Option<Moment>,
    /// An earlier process created the session.
    resumed: bool,
}

/// When the next attempt of a holder and of a waiter is due.
#[derive(Clone, Copy, Debug)]
struct Due {
    holding: Moment,
    waiting: Moment,
}

impl Due {
    fn at(moment: Moment) -> Self {
        Self { holding: moment, waiting: moment }
    }

    /// The times that follow a renewal that was sent at `sent`.
    fn after(sent: Moment, terms: Terms, rng: &mut fastrand::Rng) -> Self {
        let holding = sent + jittered(terms.renew_every(), RENEW_JITTER, rng);
        let waiting = sent + jittered(terms.renew_every_while_waiting(), RENEW_JITTER, rng);
        Self { holding, waiting }
    }

    fn of(self, holding: bool) -> Moment {
        if holding { self.holding } else { self.waiting }
    }
}

/// The meaning of an answer for the semaphores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Nothing.
    None,
    /// An attempt has ended, and the session is not known to have ended.
    Checked,
    /// The session has ended.
    Gone,
}

#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) ttl: Duration,
    state: State,
    /// No other session is created.
    ending: bool,
    backoff: Backoff,
    failing: Option<Failing>,
}

/// What a step of the session may use.
pub(super) struct Turn<'a> {
    pub(super) now: Moment,
    pub(super) rng: &'a mut fastrand::Rng,
    pub(super) out: &'a mut VecDeque<Command>,
}

impl Turn<'_> {
    fn notify(&mut self, notice: Notice) {
        self.out.push_back(Command::Notify(notice));
    }
}

impl Live {
    /// A session that is created, with its first lease, or that is resumed, without one.
    fn new(id: SessionId, terms: Terms, lease: Option<Lease>, due: Due) -> Self {
        Self { id, terms, lease, due, under_way: BTreeSet::new(), answered: None, resumed: lease.is_none() }
    }

    /// Sends an attempt. A holder does not wait for its end before the next one.
    fn attempt(&mut self, turn: &mut Turn<'_>) {
        let now = turn.now;
        self.under_way.insert(now);
        let timeout = self.terms.renew_timeout();
        let holding = now + jittered(self.terms.retry_every(), RETRY_JITTER, turn.rng);
        self.due = Due { holding, waiting: now + timeout };
        turn.out.push_back(Command::RenewSession { session: self.id.clone(), sent: now, timeout });
    }

    /// When a holder sends the next attempt after one that failed.
    fn retry_after(&self, failure: &Failure, now: Moment, rng: &mut fastrand::Rng) -> Moment {
        let every = self.terms.retry_every();
        let soon = now + jittered(every, RETRY_JITTER, rng);
        if !matches!(failure.kind, FailureKind::RateLimited | FailureKind::Denied | FailureKind::NoToken) {
            return soon.min(self.due.holding);
        }
        // Consul has decided. More requests do not change that, and those of many holders would keep it overloaded.
        let left = self.lease.map_or(Duration::ZERO, |lease| lease.ends().since(now));
        now + jittered((left / REFUSED_SHARE).max(every), RETRY_JITTER, rng)
    }

    /// Takes the answer to the attempt that was sent at `sent`: the session's TTL.
    fn extend(&mut self, sent: Moment, ttl: Duration, wanted: Duration, turn: &mut Turn<'_>) {
        // A resumed session may have another TTL than is configured now. The shorter one is safe.
        self.terms = Terms::new(ttl.min(wanted));
        self.answered = Some(turn.now);
        let lease = Lease::earned(sent, self.terms);
        // A later attempt may have been answered before.
        if self.lease.is_none_or(|known| known.ends() < lease.ends()) {
            self.lease = Some(lease);
            self.due = Due::after(sent, self.terms, turn.rng);
        }
    }
}

impl Session {
    /// `resume` is the session of an earlier process, which is resumed if it still lives.
    pub(super) fn new(ttl: Duration, resume: Option<SessionId>, now: Moment) -> Self {
        let state = match resume {
            Some(id) => State::Live(Live::new(id, Terms::new(ttl), None, Due::at(now))),
            None => State::None { create_at: now },
        };
        Self { ttl, state, ending: false, backoff: Backoff::default(), failing: None }
    }

    pub(super) fn live(&self) -> Option<&Live> {
        if let State::Live(live) = &self.state { Some(live) } else { None }
    }

    /// The session, if it is known to have lived.
    pub(super) fn id(&self) -> Option<&SessionId> {
        let is_known = self.live().is_none_or(|live| live.lease.is_some());
        self.remembered().filter(|_| is_known)
    }

    /// The session, also if it is only remembered from an earlier process. A client that leaves uses this.
    pub(super) fn remembered(&self) -> Option<&SessionId> {
        match &self.state {
            State::Live(live) => Some(&live.id),
            State::Destroying { id, .. } => Some(id),
            State::None { .. } | State::Creating { .. } => None,
        }
    }

    /// The lease, valid or expired.
    pub(super) fn lease(&self) -> Option<Lease> {
        self.live()?.lease
    }

    /// Whether an earlier process created the session.
    pub(super) fn is_resumed(&self) -> bool {
        self.live().is_some_and(|live| live.resumed)
    }

    /// Leaves the session as it is: it belongs to another cluster.
    pub(super) fn leave(&mut self, now: Moment) {
        if matches!(self.state, State::Live(_) | State::Destroying { retry_at: Some(_), .. }) {
            self.state = State::None { create_at: now };
        }
    }

    /// What fails at present, if anything does.
    pub(super) fn failing(&self) -> Option<&Failing> {
        self.failing.as_ref()
    }

    /// Whether no session exists and no creation is in flight.
    pub(super) fn is_none(&self) -> bool {
        matches!(self.state, State::None { .. })
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ending && self.is_none()
    }

    /// When [`Self::act`] has something to do next; `wanted` and `holding` as there.
    pub(super) fn deadline(&self, wanted: bool, holding: bool) -> Option<Moment> {
        match &self.state {
            State::None { create_at } => (wanted && !self.ending).then_some(*create_at),
            State::Live(live) if live.under_way.len() < MAX_RENEWALS_IN_FLIGHT => Some(live.due.of(holding)),
            State::Destroying { retry_at, .. } => *retry_at,
            State::Live(_) | State::Creating { .. } => None,
        }
    }

    /// Sends what is due. A session is created only if it is `wanted`. A live session is kept in any case, and renewed more often while
    /// `holding`.
    pub(super) fn act(&mut self, wanted: bool, holding: bool, turn: &mut Turn<'_>) {
        if self.deadline(wanted, holding).is_none_or(|at| at > turn.now) {
            return;
        }
        match &mut self.state {
            State::None { .. } => {
                turn.out.push_back(Command::CreateSession);
                self.state = State::Creating { sent: turn.now };
            }
            State::Live(live) => live.attempt(turn),
            State::Destroying { id, retry_at } => {
                *retry_at = None;
                turn.out.push_back(Command::DestroySession { session: id.clone() });
            }
            State::Creating { .. } => {}
        }
    }

    /// Renews at the next [`Self::act`]: something suggests that the session has ended.
    pub(super) fn check(&mut self, now: Moment) {
        if let State::Live(live) = &mut self.state {
            // An attempt under way shows the same, unless a later one was answered before: its failure would say nothing.
            let tells = |sent: &Moment| live.answered.is_none_or(|answered| answered < *sent);
            if !live.under_way.iter().any(tells) {
                live.due = Due::at(now);
            }
        }
    }

    /// Destroys the session, on which no slot depends any more.
    pub(super) fn end(&mut self, now: Moment) {
        match &self.state {
            State::Live(live) => {
                self.state = State::Destroying { id: live.id.clone(), retry_at: Some(now) };
                self.backoff.reset();
            }
            // The answer to the creation leads here again.
            State::Creating { .. } => return,
            State::None { .. } | State::Destroying { .. } => {}
        }
        self.ending = true;
    }

    pub(super) fn created(&mut self, answer: Result<SessionId, Failure>, turn: &mut Turn<'_>) -> Change {
        let State::Creating { sent } = self.state else { return Change::None };
        match answer {
            Ok(id) => {
                let terms = Terms::new(self.ttl);
                let (lease, due) = (Some(Lease::earned(sent, terms)), Due::after(sent, terms, turn.rng));
                turn.notify(Notice::SessionStarted { session: id.clone(), resumed: false });
                self.state = State::Live(Live::new(id, terms, lease, due));
                self.note_success(turn);
            }
            // Consul may have created the session all the same: it holds no key, and ends by its TTL.
            Err(failure) => {
                let wait = self.backoff.next(retry_waits(self.ttl), turn.rng);
                self.state = State::None { create_at: turn.now + wait };
                self.note_failure(failure, turn);
            }
        }
        Change::Checked
    }

    /// Takes the end of the attempt that was sent at `sent`.
    pub(super) fn renewed(
        &mut self,
        sent: Moment,
        answer: Result<Duration, Failure>,
        turn: &mut Turn<'_>,
    ) -> Change {
        // An answer about a session that is being destroyed, or about an earlier one, is ignored.
        let State::Live(live) = &mut self.state else { return Change::None };
        if !live.under_way.remove(&sent) {
            return Change::None;
        }
        match answer {
            Ok(ttl) => {
                let first = live.lease.is_none();
                live.extend(sent, ttl, self.ttl, turn);
                if first {
                    let session = live.id.clone();
                    turn.notify(Notice::SessionStarted { session, resumed: true });
                }
                turn.notify(Notice::Renewed { took: turn.now.since(sent) });
                self.note_success(turn);
                Change::Checked
            }
            Err(failure) => {
                // Only Consul's own answer ends a session. Any other answer may be a proxy's: the renewal is retried, also that of a resumed session,
                // which may be in `.lock`.
                let gone = failure.kind == FailureKind::NotFound;
                turn.notify(Notice::RenewFailed { failure: failure.clone() });
                if !gone && live.answered.is_some_and(|answered| answered >= sent) {
                    // Another attempt was answered meanwhile.
                    return Change::None;
                }
                let holding = live.retry_after(&failure, turn.now, turn.rng);
                let waiting = turn.now + self.backoff.next(retry_waits(self.ttl), turn.rng);
                live.due = Due { holding, waiting };
                if !gone {
                    self.note_failure(failure, turn);
                    return Change::Checked;
                }
                let session = live.id.clone();
                turn.notify(Notice::SessionEnded { session });
                self.note_success(turn);
                self.state = State::None { create_at: turn.now };
                Change::Gone
            }
        }
    }

    pub(super) fn destroyed(&mut self, answer: Result<(), Failure>, turn: &mut Turn<'_>) {
        let State::Destroying { retry_at, .. } = &mut self.state else { return };
        match answer {
            Err(failure) if failure.kind != FailureKind::NotFound => {
                *retry_at = Some(turn.now + self.backoff.next(retry_waits(self.ttl), turn.rng));
                self.note_failure(failure, turn);
            }
            Ok(()) | Err(_) => self.state = State::None { create_at: turn.now },
        }
    }

    fn note_success(&mut self, turn: &mut Turn<'_>) {
        self.backoff.reset();
        if self.failing.take().is_some() {
            turn.notify(Notice::Recovered { name: None });
        }
    }

    /// Notifies the first failure of a kind in a row.
    fn note_failure(&mut self, failure: Failure, turn: &mut Turn<'_>) {
        if Failing::note(&mut self.failing, &failure, turn.now) {
            turn.notify(Notice::Failing { name: None, failure });
        }
    }
}

/// The waits between attempts to create a session, or to renew one that holds nothing.
fn retry_waits(ttl: Duration) -> (Duration, Duration) {
    (ttl / 60, MAX_SESSION_RETRY_WAIT.min(ttl / 6))
}
