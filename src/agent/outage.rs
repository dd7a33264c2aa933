//! What the log says while Consul's servers have no leader: many requests fail by it, and people are told twice.
//!
//! An election takes seconds, and then whatever an agent does fails for one of several reasons: there is no leader, a server
//! waits for one, the one that is asked has gone. The first that says so is told, and the end, once all that failed works again.

use tracing::{info, warn};

use super::driver::Owner;
use crate::semaphore::{FailureKind, Moment, Name, Notice};

/// What fails: of the agent or of a lease, its session or one of its semaphores.
type Subject = (Owner, Option<Name>);

/// What is to be said of a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Say {
    /// What it says.
    Itself,
    /// Nothing: it belongs to the outage.
    Nothing,
    /// That the outage begins.
    Begins,
}

/// Follows what fails for want of a leader.
#[derive(Debug, Default)]
pub(super) struct Outage {
    /// Since when; `None`: there is a leader, as far as is known.
    since: Option<Moment>,
    failing: Vec<Subject>,
}

impl Outage {
    /// Logs a notice that belongs to an outage; whether it was one.
    pub(super) fn log(&mut self, owner: Owner, notice: &Notice, now: Moment) -> bool {
        let before = self.since;
        let say = self.take_in(owner, notice, now);
        if let (Say::Begins, Notice::Trouble { failure, .. }) = (say, notice) {
            warn!(
                "Consul has no leader now; what is held stays held while its lease lasts ({})",
                failure.text
            );
        }
        if let (Some(since), None) = (before, self.since) {
            Self::log_end(since, now);
        }
        say != Say::Itself
    }

    /// Forgets what fails of owners that are no more.
    pub(super) fn keep_only(&mut self, is_there: impl Fn(Owner) -> bool, now: Moment) {
        self.failing.retain(|(owner, _)| is_there(*owner));
        if let Some(since) = self.end() {
            Self::log_end(since, now);
        }
    }

    fn log_end(since: Moment, now: Moment) {
        let after_ms = u64::try_from(now.since(since).as_millis()).unwrap_or(u64::MAX);
        info!(after_ms, "Consul has a leader again");
    }

    fn take_in(&mut self, owner: Owner, notice: &Notice, now: Moment) -> Say {
        let (name, kind) = if let Notice::Trouble { name, failure } = notice {
            (name, Some(failure.kind))
        } else if let Notice::TroubleOver { name } = notice {
            (name, None)
        } else {
            return Say::Itself;
        };
        let subject = (owner, name.clone());
        let known = self.failing.iter().position(|one| *one == subject);
        match kind {
            Some(FailureKind::NoLeader) => {}
            // A server that waits for a leader, or one that is stopped.
            Some(FailureKind::Unavailable | FailureKind::RateLimited) if self.since.is_some() => {}
            Some(
                FailureKind::Unavailable
                | FailureKind::RateLimited
                | FailureKind::NotFound
                | FailureKind::Denied
                | FailureKind::InvalidKey
                | FailureKind::Rejected,
            ) => {
                known.map(|place| self.failing.swap_remove(place));
                self.end();
                return Say::Itself;
            }
            None => {
                let Some(place) = known else { return Say::Itself };
                self.failing.swap_remove(place);
                self.end();
                return Say::Nothing;
            }
        }
        if known.is_none() {
            self.failing.push(subject);
        }
        if self.since.replace(self.since.unwrap_or(now)).is_none() { Say::Begins } else { Say::Nothing }
    }

    /// Ends the outage where nothing fails any more; when it began.
    fn end(&mut self) -> Option<Moment> {
        if self.failing.is_empty() { self.since.take() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::semaphore::Failure;

    fn at(seconds: u64) -> Moment {
        Moment::from_boot(Duration::from_secs(seconds))
    }

    fn fails(name: Option<&str>, kind: FailureKind) -> Notice {
        Notice::Trouble { name: name.map(Name::from), failure: Failure { kind, text: String::new() } }
    }

    fn works(name: Option<&str>) -> Notice {
        Notice::TroubleOver { name: name.map(Name::from) }
    }

    #[test]
    fn an_election_is_told_once_at_its_beginning_and_once_at_its_end() {
        use FailureKind::{NoLeader, Unavailable};
        let mut outage = Outage::default();
        let mut said = |notice, second| outage.take_in(Owner::Agent, &notice, at(second));
        assert_eq!(said(fails(None, NoLeader), 1), Say::Begins);
        assert_eq!(said(fails(Some("a"), NoLeader), 2), Say::Nothing);
        assert_eq!(said(fails(Some("a"), Unavailable), 3), Say::Nothing);
        assert_eq!(said(fails(None, Unavailable), 4), Say::Nothing);
        assert_eq!(said(works(None), 12), Say::Nothing);
        assert_eq!(said(works(Some("a")), 13), Say::Nothing);
        assert_eq!(outage.since, None);
        assert_eq!(outage.take_in(Owner::Agent, &fails(Some("a"), NoLeader), at(20)), Say::Begins);
    }

    #[test]
    fn what_fails_for_another_reason_is_told_as_it_is() {
        use FailureKind::{Denied, NoLeader, Unavailable};
        let mut outage = Outage::default();
        let mut said = |notice| outage.take_in(Owner::Agent, &notice, at(1));
        for (notice, say) in [
            (fails(None, Unavailable), Say::Itself),
            (works(None), Say::Itself),
            (fails(Some("a"), NoLeader), Say::Begins),
            (fails(Some("b"), Denied), Say::Itself),
            (works(Some("b")), Say::Itself),
            (fails(Some("a"), Denied), Say::Itself),
            (works(Some("a")), Say::Itself),
        ] {
            assert_eq!(said(notice.clone()), say, "{notice:?}");
        }
        assert_eq!(outage.since, None);
    }

    #[test]
    fn an_owner_that_is_gone_keeps_no_outage_up() {
        let mut outage = Outage::default();
        outage.take_in(Owner::Agent, &fails(None, FailureKind::NoLeader), at(1));
        outage.keep_only(|_| false, at(2));
        assert_eq!(outage.since, None);
    }
}
