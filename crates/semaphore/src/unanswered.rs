//! Session creations whose answer was lost: Consul may have created the session. It is looked up by its name and destroyed, because its
//! TTL would keep it for long.

use crate::timing::{LATE_CREATION, ORPHAN_LOOK_WAIT, REFUSED_LOOK_WAIT};
use std::collections::VecDeque;
use std::time::Duration;

use super::Moment;
use super::backoff::Backoff;
use super::command::{Command, Failure, FailureKind};

/// Creations that are remembered. Where Consul shows no sessions, the oldest are forgotten first.
const MAX_REMEMBERED: usize = 16;

/// One creation without an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Creation {
    mark: String,
    given_up_at: Moment,
    /// A look was answered since, and did not show it.
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
    /// The look under way was sent then.
    sent: Option<Moment>,
    look_at: Moment,
    /// Why Consul does not say which sessions there are.
    refused: Option<Failure>,
    backoff: Backoff,
    /// After this long Consul has surely ended a session that nobody renews.
    lasts: Duration,
}

impl Unanswered {
    pub(super) fn new(ttl: Duration, now: Moment) -> Self {
        // In practice Consul waits for two TTLs.
        let (backoff, lasts) =
            (Backoff::new(ORPHAN_LOOK_WAIT.0, ORPHAN_LOOK_WAIT.1), ttl * 2 + LATE_CREATION);
        Self { creations: Vec::new(), sent: None, look_at: now, refused: None, backoff, lasts }
    }

    /// The answer to the creation of a session whose name ends in `mark` was given up.
    pub(super) fn add(&mut self, mark: String, now: Moment) {
        if self.creations.len() >= MAX_REMEMBERED {
            self.creations.remove(0);
        }
        self.creations.push(Creation { mark, given_up_at: now, looked: false });
        self.refused = None;
        self.look_at = now;
    }

    /// Looks once more, whatever was found before.
    pub(super) fn look_again(&mut self, now: Moment) {
        self.creations.iter_mut().for_each(|one| one.looked = false);
        self.refused = None;
        self.look_at = now;
    }

    /// Goes on looking for what another one has looked for once, as far as there is room beside its own.
    pub(super) fn take_over(&mut self, other: &mut Self, now: Moment) {
        let room = MAX_REMEMBERED.saturating_sub(self.creations.len());
        let looked: Vec<_> = other.creations.extract_if(.., |one| one.looked).take(room).collect();
        let first = looked.iter().map(Creation::look_at).min();
        let own = (!self.creations.is_empty()).then_some(self.look_at);
        self.look_at = own.into_iter().chain(first).min().unwrap_or(self.look_at).max(now);
        self.creations.extend(looked);
    }

    /// Whether each was looked for, or Consul refused to say.
    pub(super) fn is_settled(&self) -> bool {
        self.refused.is_some() || self.creations.iter().all(|one| one.looked)
    }

    /// How the names of those end that may still be there.
    pub(super) fn marks(&self) -> impl Iterator<Item = &str> {
        self.creations.iter().map(|one| one.mark.as_str())
    }

    /// Why Consul does not say which sessions there are, where it refused.
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

    /// A look was answered, with the marks of those that were found and destroyed.
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
                        | FailureKind::Cut => self.backoff.next(rng),
                        FailureKind::NotFound
                        | FailureKind::Denied
                        | FailureKind::InvalidKey
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
