//! What is known of a single-key lock besides its key: its last owner, and until when it is in lock-delay.
//!
//! When a session ends that has a lock, Consul refuses the lock to every session until the lock-delay is over. Its answer does not say
//! when that is. A client that watched the lock knows: it saw the lock come free, and read the session's lock-delay before. A client
//! that joins later retries now and then.

use crate::timing::LOCK_DELAY_RETRY_WAIT;
use std::time::Duration;

use super::{Backoff, Moment, SessionId};

#[derive(Clone, Debug)]
pub(super) struct LockDelayTracker {
    /// The last known owner of the lock.
    owner: Option<SessionId>,
    /// The session whose lock-delay was asked for, and its delay.
    delay: Option<(SessionId, Option<Duration>)>,
    /// When a watch saw the lock come free.
    freed_at: Option<Moment>,
    /// The end of the lock-delay, or when to try again if it is not known.
    until: Option<Moment>,
    /// Whether `until` is the end of the lock-delay.
    is_known: bool,
    blind: Backoff,
}

impl Default for LockDelayTracker {
    fn default() -> Self {
        let blind = Backoff::new(LOCK_DELAY_RETRY_WAIT.0, LOCK_DELAY_RETRY_WAIT.1);
        Self { owner: None, delay: None, freed_at: None, until: None, is_known: false, blind }
    }
}

impl LockDelayTracker {
    /// Notes the owner of the lock. Returns whether it has changed. `in_time`: the change was seen as it happened.
    pub(super) fn see(&mut self, owner: Option<&SessionId>, in_time: bool, now: Moment) -> bool {
        if owner == self.owner.as_ref() {
            return false;
        }
        match owner {
            Some(_) => *self = Self { delay: self.delay.take(), ..Self::default() },
            // The delay belongs to an earlier owner, or to an unknown one.
            None => self.freed_at = Some(now).filter(|_| in_time && self.delay_is_that_of_the_owner()),
        }
        self.owner = owner.cloned();
        true
    }

    fn delay_is_that_of_the_owner(&self) -> bool {
        self.delay.as_ref().map(|(session, _)| session) == self.owner.as_ref()
    }

    /// Whether a session's delay is still to be asked for; it is, once.
    pub(super) fn needs_delay_of(&mut self, session: &SessionId) -> bool {
        let anew = self.delay.as_ref().is_none_or(|(known, _)| known != session);
        if anew {
            self.delay = Some((session.clone(), None));
        }
        anew
    }

    /// A session's delay, as Consul says.
    pub(super) fn learn(&mut self, session: &SessionId, delay: Option<Duration>) {
        if let Some((_, known)) = self.delay.as_mut().filter(|(asked, _)| asked == session) {
            *known = delay;
        }
    }

    /// Consul has refused a free lock. Returns how long to wait, if the lock-delay is known.
    pub(super) fn refused(&mut self, now: Moment, rng: &mut fastrand::Rng) -> Option<Duration> {
        let delay = self.delay.as_ref().and_then(|(_, delay)| *delay);
        let ends =
            self.freed_at.zip(delay).map(|(freed_at, delay)| freed_at + delay).filter(|ends| *ends > now);
        self.is_known = ends.is_some();
        self.until = Some(ends.unwrap_or_else(|| now + self.blind.next(rng)));
        ends.map(|ends| ends.since(now))
    }

    /// When to try again: the end of the lock-delay, as far as is known.
    pub(super) fn delayed_until(&self) -> Option<Moment> {
        self.until
    }

    /// The end of the lock-delay, if it is known.
    pub(super) fn ends(&self) -> Option<Moment> {
        self.until.filter(|_| self.is_known)
    }

    /// Whether the last owner's lock-delay was met whose end is not known.
    pub(super) fn ends_unknown(&self) -> bool {
        self.until.is_some() && !self.is_known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Duration = Duration::from_secs(15);

    fn at(millis: u64) -> Moment {
        Moment::from_boot(Duration::from_millis(millis))
    }

    fn refused(seen: &mut LockDelayTracker, now: Moment) -> Option<Duration> {
        seen.refused(now, &mut fastrand::Rng::with_seed(1))
    }

    fn watched() -> (LockDelayTracker, SessionId) {
        let (mut seen, owner) = (LockDelayTracker::default(), SessionId::from("a"));
        assert!(seen.see(Some(&owner), false, at(0)) && !seen.see(Some(&owner), false, at(1)));
        assert!(seen.needs_delay_of(&owner) && !seen.needs_delay_of(&owner));
        seen.learn(&owner, Some(DELAY));
        (seen, owner)
    }

    #[test]
    fn a_waiter_that_saw_the_release_waits_for_the_lock_delay_once() {
        let (mut seen, _) = watched();
        assert!(seen.see(None, true, at(1000)));
        assert_eq!(refused(&mut seen, at(1002)), Some(DELAY - Duration::from_millis(2)));
        assert_eq!(seen.ends(), Some(at(16_000)));
        assert_eq!(seen.delayed_until(), Some(at(16_000)));
        // Consul's clock runs slower: it is asked again shortly after.
        assert_eq!(refused(&mut seen, at(16_000)), None);
        assert!(seen.ends().is_none() && seen.ends_unknown());
        let again = seen.delayed_until().unwrap();
        assert!(again > at(16_000) && again <= at(16_200), "{again:?}");
    }

    #[test]
    fn a_waiter_that_does_not_know_the_lock_delay_tries_at_intervals() {
        let late = { LockDelayTracker::default() };
        let not_told = {
            let (mut seen, _) = watched();
            seen.learn(&SessionId::from("b"), Some(DELAY));
            seen.see(None, false, at(1000));
            seen
        };
        let (mut unknown, owner) = watched();
        unknown.learn(&owner, None);
        unknown.see(None, true, at(1000));
        for mut seen in [late, not_told, unknown] {
            let mut now = at(2000);
            for _ in 0..10 {
                assert_eq!(refused(&mut seen, now), None);
                let next = seen.delayed_until().unwrap();
                assert!(next > now && next <= now + Duration::from_millis(1500), "{next:?} after {now:?}");
                now = next;
            }
        }
    }

    #[test]
    fn another_owner_has_another_delay() {
        let (mut seen, _) = watched();
        let other = SessionId::from("b");
        seen.see(None, true, at(1000));
        refused(&mut seen, at(1001));
        assert!(seen.see(Some(&other), true, at(2000)));
        assert_eq!(seen.delayed_until(), None);
        // It ended before its delay was known.
        seen.see(None, true, at(3000));
        assert_eq!(refused(&mut seen, at(3001)), None);
    }
}
