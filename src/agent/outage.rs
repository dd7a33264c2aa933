//! Logs an outage of Consul twice: at its beginning and at its end.
//!
//! During an election every request fails, for one of several reasons: there is no leader, a server waits for one until the
//! request times out, the server has gone. The log has the first failure, and the end when no request fails any more.

use std::collections::BTreeSet;
use std::time::Duration;

use super::driver::Owner;
use crate::about::log_about;
use crate::duration::seconds;
use crate::log_events::{CONSUL_LEADER_RECOVERED, CONSUL_LEADERLESS, CONSUL_RECOVERED, CONSUL_UNAVAILABLE};
use crate::status::Event;
use slotkeeper_semaphore::{Failure, FailureKind, Moment, Name, Notice};

/// An outage ends when no request has failed for this long: a request that was sent before may fail after another was
/// answered.
const QUIET_TIME: Duration = Duration::from_secs(3);

/// The current outage, and failures for other reasons.
#[derive(Debug, Default)]
pub(super) struct Outage {
    current: Option<Current>,
    /// Failures that were logged for another reason, by owner: of its session (`None`) or of one of its semaphores.
    reported: BTreeSet<(Owner, Option<Name>)>,
}

#[derive(Clone, Copy, Debug)]
struct Current {
    began: Moment,
    kind: FailureKind,
    /// Since when no request fails.
    over: Option<Moment>,
}

/// A change of the outage to log.
#[derive(Debug, PartialEq, Eq)]
enum Change<'f> {
    Begins(&'f Failure),
    Ends { kind: FailureKind, lasted: Duration },
}

impl Outage {
    /// Whether to log a notice by itself, since it is not part of an outage. The names in `notice` are the core's.
    pub(super) fn logs(&mut self, owner: Owner, notice: &Notice) -> bool {
        if let Notice::Failing { name, failure } = notice {
            let is_itself = !failure.kind.is_transient();
            if is_itself {
                self.reported.insert((owner, name.clone()));
            }
            return is_itself;
        }
        if let Notice::Recovered { name } = notice {
            return self.reported.remove(&(owner, name.clone()));
        }
        if let Notice::Removed { name } = notice {
            self.reported.remove(&(owner, Some(name.clone())));
        }
        true
    }

    /// Logs the beginning or the end of an outage, given all current failures. `is_there`: the owners that still exist. `holds`: a
    /// slot is held.
    pub(super) fn follow<'f>(
        &mut self,
        failing: impl Iterator<Item = &'f Failure>,
        is_there: impl Fn(Owner) -> bool,
        holds: bool,
        now: Moment,
    ) {
        let held = if holds { "; held slots stay valid until their lease expires" } else { "" };
        self.reported.retain(|(owner, _)| is_there(*owner));
        match self.take_in(failing, now) {
            Some(Change::Begins(Failure { kind: FailureKind::NoLeader, text })) => {
                log_about!(warn, Event::Failing, error = %text, "{CONSUL_LEADERLESS}{held}");
            }
            Some(Change::Begins(Failure { text, .. })) => {
                log_about!(warn, Event::Failing, error = %text, "{CONSUL_UNAVAILABLE}{held}");
            }
            Some(Change::Ends { kind, lasted }) => {
                let lasted_seconds = seconds(lasted);
                if kind == FailureKind::NoLeader {
                    log_about!(info, Event::Recovered, lasted_seconds, "{CONSUL_LEADER_RECOVERED}");
                } else {
                    log_about!(info, Event::Recovered, lasted_seconds, "{CONSUL_RECOVERED}");
                }
            }
            None => {}
        }
    }

    /// When the outage may have ended.
    pub(super) fn deadline(&self) -> Option<Moment> {
        self.current?.over.map(|over| over + QUIET_TIME)
    }

    fn take_in<'f>(
        &mut self,
        mut failing: impl Iterator<Item = &'f Failure>,
        now: Moment,
    ) -> Option<Change<'f>> {
        let fails = failing.find(|failure| failure.kind.is_transient());
        let Some(current) = &mut self.current else {
            let failure = fails?;
            self.current = Some(Current { began: now, kind: failure.kind, over: None });
            return Some(Change::Begins(failure));
        };
        if fails.is_some() {
            current.over = None;
            return None;
        }
        let Current { began, kind, .. } = *current;
        let over = *current.over.get_or_insert(now);
        if now.since(over) < QUIET_TIME {
            return None;
        }
        self.current = None;
        Some(Change::Ends { kind, lasted: over.since(began) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_boot(Duration::from_secs(seconds))
    }

    fn failure(kind: FailureKind) -> Failure {
        Failure { kind, text: String::new() }
    }

    #[test]
    fn an_election_is_told_once_at_its_beginning_and_once_at_its_end() {
        use FailureKind::{NoLeader, Unavailable};
        let mut outage = Outage::default();
        let (leaderless, silent) = (failure(NoLeader), failure(Unavailable));
        assert_eq!(outage.take_in([].into_iter(), at(1)), None);
        assert_eq!(outage.take_in([&leaderless].into_iter(), at(2)), Some(Change::Begins(&leaderless)));
        assert_eq!(outage.take_in([&leaderless, &silent].into_iter(), at(3)), None);
        assert_eq!(outage.take_in([&silent].into_iter(), at(4)), None);
        // One is answered, and what another one sent before fails late.
        assert_eq!(outage.take_in([].into_iter(), at(10)), None);
        assert_eq!(outage.deadline(), Some(at(13)));
        assert_eq!(outage.take_in([&silent].into_iter(), at(12)), None);
        assert_eq!(outage.deadline(), None);
        assert_eq!(outage.take_in([].into_iter(), at(13)), None);
        let lasted = Duration::from_secs(11);
        assert_eq!(
            outage.take_in([].into_iter(), at(16)),
            Some(Change::Ends { kind: NoLeader, lasted }),
            "until nothing failed any more"
        );
        assert_eq!(outage.take_in([&silent].into_iter(), at(20)), Some(Change::Begins(&silent)));
    }

    #[test]
    fn what_fails_for_another_reason_is_told_as_it_is() {
        use FailureKind::{Denied, NoLeader, Unavailable};
        let fails =
            |name: Option<&str>, kind| Notice::Failing { name: name.map(Name::from), failure: failure(kind) };
        let works = |name: Option<&str>| Notice::Recovered { name: name.map(Name::from) };
        let mut outage = Outage::default();
        for (notice, says) in [
            (fails(None, Unavailable), false),
            (works(None), false),
            (fails(Some("a"), NoLeader), false),
            (fails(Some("b"), Denied), true),
            (works(Some("a")), false),
            (works(Some("b")), true),
            (works(Some("b")), false),
            (fails(Some("a"), Denied), true),
            (fails(Some("a"), NoLeader), false),
            (works(Some("a")), true),
            (fails(Some("a"), Denied), true),
            (Notice::Removed { name: "a".into() }, true),
            (works(Some("a")), false),
        ] {
            assert_eq!(outage.logs(Owner::Agent, &notice), says, "{notice:?}");
        }
        let denied = failure(Denied);
        assert_eq!(outage.take_in([&denied].into_iter(), at(1)), None);
    }
}
