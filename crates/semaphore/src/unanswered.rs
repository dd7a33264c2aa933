//! Session creations whose answer was lost: Consul may have created the session. It is looked up by its name and destroyed, because its
//! TTL would keep it for long.

use crate::timing::{LATE_CREATION, ORPHAN_LOOK_WAIT, REFUSED_LOOK_WAIT};
use std::collections::VecDeque;
use std::time::Duration;

use super::Moment;
use super::backoff::Backoff;
use super::command::{Command, Failure, FailureKind};

/// The maximum number of remembered creations. If Consul shows no sessions, the oldest are forgotten first.
const MAX_REMEMBERED: usize = 16;

/// One creation without an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Creation {
    mark: String,
    given_up_at: Moment,
    /// A search was answered since and did not find it.
    looked: bool,
}

impl Creation {
    fn look_at(&self) -> Moment {
        if self.looked { self.given_up_at + LATE_CREATION } else { self.given_up_at }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Unanswered {
    creations: Vec<Creation>,
    /// The time at which the search under way was sent.
    sent: Option<Moment>,
    look_at: Moment,
    /// The failure of the last search.
    refused: Option<Failure>,
    backoff: Backoff,
    /// The time after which Consul has certainly ended a session that is not renewed.
    lasts: Duration,
}

impl Unanswered {
    pub(super) fn new(ttl: Duration, now: Moment) -> Self {
        // In practice Consul waits for two TTLs.
        let (backoff, lasts) =
            (Backoff::new(ORPHAN_LOOK_WAIT.0, ORPHAN_LOOK_WAIT.1), ttl * 2 + LATE_CREATION);
        Self { creations: Vec::new(), sent: None, look_at: now, refused: None, backoff, lasts }
    }

    /// Remembers a creation whose answer was given up. The session's name ends with `mark`.
    pub(super) fn add(&mut self, mark: String, now: Moment) {
        if self.creations.len() >= MAX_REMEMBERED {
            self.creations.remove(0);
        }
        self.creations.push(Creation { mark, given_up_at: now, looked: false });
        self.refused = None;
        self.look_at = now;
    }

    /// Searches once more, whatever was found before.
    pub(super) fn look_again(&mut self, now: Moment) {
        self.creations.iter_mut().for_each(|one| one.looked = false);
        self.refused = None;
        self.look_at = now;
    }

    /// Takes over the creations that another keeper has searched for once, as far as there is room.
    pub(super) fn take_over(&mut self, other: &mut Self, now: Moment) {
        let room = MAX_REMEMBERED.saturating_sub(self.creations.len());
        let looked: Vec<_> = other.creations.extract_if(.., |one| one.looked).take(room).collect();
        let first = looked.iter().map(Creation::look_at).min();
        let own = (!self.creations.is_empty()).then_some(self.look_at);
        self.look_at = own.into_iter().chain(first).min().unwrap_or(self.look_at).max(now);
        self.creations.extend(looked);
    }

    /// Whether each was searched for, or Consul refused the search.
    pub(super) fn is_settled(&self) -> bool {
        self.refused.is_some() || self.creations.iter().all(|one| one.looked)
    }

    /// The suffixes of the names of sessions that may still exist.
    pub(super) fn marks(&self) -> impl Iterator<Item = &str> {
        self.creations.iter().map(|one| one.mark.as_str())
    }

    /// The failure, if Consul refused the last search.
    pub(super) fn refused(&self) -> Option<&Failure> {
        self.refused.as_ref()
    }

    /// When [`Self::act`] has something to do.
    pub(super) fn deadline(&self) -> Option<Moment> {
        (self.sent.is_none() && !self.creations.is_empty()).then_some(self.look_at)
    }

    pub(super) fn act(&mut self, now: Moment, out: &mut VecDeque<Command>) {
        let lasts = self.lasts;
        self.creations.retain(|one| now < one.given_up_at + lasts);
        if self.deadline().is_some_and(|at| at <= now) {
            self.sent = Some(now);
            let marks = self.creations.iter().map(|one| one.mark.clone()).collect();
            out.push_back(Command::ClearSessions { marks });
        }
    }

    /// Takes the answer to a search: the marks of the sessions that were found and destroyed.
    pub(super) fn answered(
        &mut self,
        answer: Result<Vec<String>, Failure>,
        now: Moment,
        rng: &mut fastrand::Rng,
    ) -> Result<u32, Failure> {
        let Some(sent) = self.sent.take() else { return Ok(0) };
        match answer {
            Ok(found) => {
                self.backoff.reset();
                self.refused = None;
                let is_over = |one: &Creation| one.given_up_at + LATE_CREATION <= sent;
                self.creations.retain(|one| !found.contains(&one.mark) && !is_over(one));
                let before = |one: &&mut Creation| one.given_up_at <= sent;
                self.creations.iter_mut().filter(before).for_each(|one| one.looked = true);
                self.look_at = self.creations.iter().map(Creation::look_at).min().unwrap_or(now).max(now);
                Ok(u32::try_from(found.len()).unwrap_or(u32::MAX))
            }
            Err(failure) => {
                self.look_at = now
                    + match failure.kind {
                        FailureKind::NoLeader
                        | FailureKind::Unavailable
                        | FailureKind::RateLimited
                        | FailureKind::Mismatch
                        | FailureKind::Cut => self.backoff.next(rng),
                        FailureKind::NotFound
                        | FailureKind::Denied
                        | FailureKind::InvalidKey
                        | FailureKind::NoToken
                        | FailureKind::Misconfigured
                        | FailureKind::NotConsul
                        | FailureKind::Rejected => {
                            self.refused = Some(failure.clone());
                            REFUSED_LOOK_WAIT
                        }
                    };
                Err(failure)
            }
        }
    }
}
