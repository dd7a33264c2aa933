//! The sessions that a client created or renewed. An agent in mode `on_demand` creates one for each lease, hundreds a second.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// The maximum life of a session without a renewal: twice Consul's maximum TTL.
const MAX_REMEMBERED: Duration = Duration::from_secs(48 * 60 * 60);
/// How long the end of a session is remembered: longer than a renewal may be in flight, which is 5 s.
const END_REMEMBERED: Duration = Duration::from_secs(60);

/// The client's sessions, and when the lease of each expires.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    leases: BTreeMap<String, Instant>,
    /// The sessions that ended a short time ago, and when, the earliest first.
    ended: HashSet<Arc<str>>,
    ends: VecDeque<(Instant, Arc<str>)>,
    /// The time of the last sweep.
    swept: Option<Instant>,
}

impl Sessions {
    /// Records a session whose lease expires at `lease_ends` at the latest; `None` if that is unknown. Returns whether it is new.
    pub(super) fn remember(&mut self, session: &str, lease_ends: Option<Instant>, now: Instant) -> bool {
        self.sweep(now);
        if self.ended.contains(session) {
            return false;
        }
        if let Some(ends) = self.leases.get_mut(session) {
            *ends = lease_ends.map_or(*ends, |new| new.max(*ends));
            return false;
        }
        self.leases.insert(session.to_owned(), lease_ends.unwrap_or(now).max(now));
        true
    }

    /// Records the end of a session, and so of its lease.
    pub(super) fn forget(&mut self, session: &str, now: Instant) {
        self.leases.remove(session);
        let session = Arc::from(session);
        if self.ended.insert(Arc::clone(&session)) {
            self.ends.push_back((now, session));
        }
    }

    /// The sessions that may live, and when their leases expire.
    pub(super) fn leases(&self) -> impl Iterator<Item = (&String, Instant)> {
        self.leases.iter().map(|(session, ends)| (session, *ends))
    }

    /// Forgets all sessions: they belong to another cluster, or have ended.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    fn sweep(&mut self, now: Instant) {
        while let Some((_, session)) =
            self.ends.front().filter(|(at, _)| now.duration_since(*at) >= END_REMEMBERED)
        {
            self.ended.remove(session);
            self.ends.pop_front();
        }
        // A session whose end was never seen stays until here.
        if self.swept.is_none_or(|swept| now.duration_since(swept) >= END_REMEMBERED) {
            self.swept = Some(now);
            self.leases.retain(|_, ends| now.duration_since(*ends) < MAX_REMEMBERED);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_that_is_answered_late_does_not_bring_a_session_back() {
        let (mut sessions, now) = (Sessions::default(), Instant::now());
        let after = |seconds: u64| now + Duration::from_secs(seconds);
        let known =
            |sessions: &Sessions| sessions.leases().map(|(id, ends)| (id.clone(), ends)).collect::<Vec<_>>();
        assert!(sessions.remember("a", Some(after(10)), now));
        assert!(!sessions.remember("a", Some(after(20)), after(1)));
        assert!(
            !sessions.remember("a", Some(after(5)), after(1)),
            "an answer that comes late shortens nothing"
        );
        assert!(!sessions.remember("a", None, after(1)));
        assert_eq!(known(&sessions), [("a".to_owned(), after(20))]);
        sessions.forget("a", after(2));
        sessions.forget("a", after(3));
        assert!(!sessions.remember("a", Some(after(30)), after(61)));
        assert_eq!(known(&sessions), []);
        assert!(sessions.remember("b", None, after(62)));
        assert!(sessions.ended.is_empty() && sessions.ends.is_empty(), "the end is not remembered for ever");
        assert!(sessions.remember("c", None, after(62) + MAX_REMEMBERED));
        assert_eq!(known(&sessions), [("c".to_owned(), after(62) + MAX_REMEMBERED)]);
    }
}
