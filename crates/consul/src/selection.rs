//! Which of several addresses is used, without I/O and without a clock.
//!
//! One address is in use, and is left when it fails. While the lease of a session of this client may be valid, another address needs a
//! proof that it belongs to the same cluster: a consistent read there shows the session. After a restart the session is that of the
//! previous process, and the first address needs the proof too; until then only logins are sent. Without such a lease, an address needs
//! only a leader. What was read before such a move may be another cluster's: a new generation begins, see [`Selection::generation`].

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Addresses;

/// The time without a leader after which an address counts as failing. At Consul's defaults an election takes 9 to 19 s, in which no
/// other server has a leader either. A lease lasts at least 25 s, which leaves time for the move.
const MAX_ELECTION: Duration = Duration::from_secs(20);
/// The number of requests in a row without an answer in time after which the address counts as failing.
const MAX_UNANSWERED: u32 = 2;
/// The mean interval of searches.
const SEARCH_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum number of sessions that a search looks for. Any is a proof, and an operator may have destroyed some of them.
const MAX_SOUGHT_SESSIONS: usize = 3;

/// The state of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressState {
    /// The client sends requests to the address.
    Used,
    /// The address was not tried yet.
    Unknown,
    /// The address did not answer, or did not show that it belongs to the cluster, when it was last tried. Contains the reason.
    Failed(String),
}

/// A change of the addresses, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressNews {
    /// The client uses another address from now on.
    Moved {
        /// The previous address.
        from: String,
        /// The new address.
        to: String,
        /// Why the previous address is not used any more.
        why: String,
        /// Whether nothing that was read before the move can be another cluster's.
        proved: bool,
    },
    /// After a restart: no address shows the session of the previous process, whose lease may be valid, so none is used yet.
    NoSession {
        /// Each address, and why it does not show the session.
        addresses: Vec<String>,
    },
}

impl fmt::Display for AddressNews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Moved { from, to, why, .. } => write!(f, "Consul at {from} failed ({why}); using {to}"),
            Self::NoSession { addresses } => write!(
                f,
                "no Consul address shows the session of the previous process; none is used until an address shows it or its lease has \
                 expired: {}",
                addresses.join("; ")
            ),
        }
    }
}

/// The outcome of a request to the address in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Consul answered.
    Answered,
    /// The answer is a refusal or a 404, which any HTTP server may give.
    Refused,
    /// Consul has no leader.
    NoLeader,
    /// The connection or TLS failed, or a proxy answered 502 or 503. Contains the reason.
    Failed(String),
    /// No answer in time, or a proxy's answer that it had none.
    Unanswered,
    /// Neither a success nor a failure, such as a long poll that was cut.
    Other,
}

/// The destination of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Route {
    /// The address, by its place in the list.
    pub(super) at: usize,
    /// For messages.
    pub(super) shown: Arc<str>,
    pub(super) generation: u64,
    /// Only logins may be sent there.
    pub(super) is_blocked: bool,
    /// Nothing there has answered yet, and another address may.
    pub(super) is_untried: bool,
    /// The number of moves without a proof before it.
    moves: u64,
}

/// A search for another address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Search {
    /// The addresses to ask.
    pub(super) candidates: Vec<usize>,
    /// The sessions to look for.
    pub(super) sessions: Vec<String>,
    /// Whether only a session will do.
    pub(super) needs_session: bool,
}

struct Entry {
    shown: Arc<str>,
    /// Why the address was not used when it was last tried.
    failed: Option<String>,
}

/// How the address in use behaves.
#[derive(Default)]
struct Health {
    failing: Option<String>,
    no_leader_since: Option<Instant>,
    unanswered: u32,
}

pub(super) struct Selection {
    /// Not empty.
    entries: Vec<Entry>,
    used: usize,
    health: Health,
    generation: u64,
    /// The number of moves without a proof.
    moves: u64,
    /// Whether a request was answered in this generation.
    answered: bool,
    /// The sessions of this client that may live, and when the lease of each expires.
    sessions: BTreeMap<String, Instant>,
    /// Whether the address in use needs a proof too.
    needs_proof: bool,
    searching: bool,
    /// The earliest time of the next search; `None`: now.
    search_at: Option<Instant>,
    /// The number of searches in a row that found no session of the previous process.
    searches_in_vain: u32,
    news: Vec<AddressNews>,
}

impl Selection {
    pub(super) fn new(addresses: &Addresses) -> Self {
        let entry = |shown: String| Entry { shown: shown.into(), failed: None };
        Self {
            entries: addresses.iter().map(ToString::to_string).map(entry).collect(),
            used: 0,
            health: Health::default(),
            generation: 0,
            moves: 0,
            answered: false,
            sessions: BTreeMap::new(),
            needs_proof: false,
            searching: false,
            search_at: None,
            searches_in_vain: 0,
            news: Vec::new(),
        }
    }

    /// The destination of a request now.
    pub(super) fn route(&mut self, now: Instant) -> Route {
        if self.needs_proof && !self.is_leased(now) {
            self.needs_proof = false;
        }
        let Self { used: at, generation, moves, .. } = *self;
        let is_untried = !self.answered && self.entries.len() > 1;
        Route { at, shown: self.shown(at), generation, is_blocked: self.is_blocked(), is_untried, moves }
    }

    /// An address, for messages.
    pub(super) fn shown(&self, at: usize) -> Arc<str> {
        Arc::clone(&self.entries[at].shown)
    }

    /// Data read in one generation must not be used in another.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    pub(super) fn is_searching(&self) -> bool {
        self.searching
    }

    /// Records a session of an earlier process, whose lease may last until then.
    pub(super) fn remember(&mut self, session: &str, lease_ends: Instant, now: Instant) {
        self.created(session, lease_ends, now);
        self.needs_proof = !self.answered && self.entries.len() > 1;
    }

    /// Records a new session.
    pub(super) fn created(&mut self, session: &str, lease_ends: Instant, now: Instant) {
        // The others are no proof any more: after a restart, they may be another cluster's.
        self.sessions.retain(|_, ends| *ends > now);
        self.sessions.insert(session.to_owned(), lease_ends);
    }

    /// Records a renewal. A renewal that is answered after the session's end does not bring it back.
    pub(super) fn renewed(&mut self, session: &str, lease_ends: Instant) {
        if let Some(ends) = self.sessions.get_mut(session) {
            *ends = lease_ends.max(*ends);
        }
    }

    /// Records the end of a session, and so of its lease.
    pub(super) fn ended(&mut self, session: &str) {
        self.sessions.remove(session);
    }

    /// Records the outcome of a request. Returns whether its answer counts: it may be another cluster's after a move without a proof.
    pub(super) fn record(&mut self, route: &Route, outcome: Outcome, now: Instant) -> bool {
        if self.moves != route.moves {
            return false;
        }
        if self.used != route.at {
            return true;
        }
        if self.is_blocked() {
            match outcome {
                // The token of the login may show the session.
                Outcome::Answered => self.search_at = None,
                Outcome::Other => {}
                Outcome::Refused | Outcome::NoLeader | Outcome::Failed(_) | Outcome::Unanswered => {
                    self.used = (self.used + 1) % self.entries.len();
                }
            }
            return true;
        }
        match outcome {
            Outcome::Answered | Outcome::Refused => {
                self.health = Health::default();
                self.answered |= outcome == Outcome::Answered;
            }
            Outcome::NoLeader => {
                let since = *self.health.no_leader_since.get_or_insert(now);
                if now.duration_since(since) >= MAX_ELECTION {
                    self.health.failing = Some(format!("no leader for {} s", MAX_ELECTION.as_secs()));
                }
                self.health.unanswered = 0;
            }
            Outcome::Failed(why) => self.health.failing = Some(why),
            Outcome::Unanswered => {
                self.health.unanswered += 1;
                if self.health.unanswered >= MAX_UNANSWERED || route.is_untried {
                    self.health.failing = Some("requests are not answered in time".into());
                }
            }
            Outcome::Other => {}
        }
        true
    }

    /// Begins a search if another address is needed and a search is due. [`Self::end_search`] must follow. `spread` is a new random
    /// number from 0 to 1, so that agents that start together do not search together.
    pub(super) fn begin_search(&mut self, spread: f64, now: Instant) -> Option<Search> {
        if self.searching || !self.needs_other() || self.search_at.is_some_and(|at| at > now) {
            return None;
        }
        self.searching = true;
        self.search_at = Some(now + SEARCH_INTERVAL.mul_f64(0.75 + spread / 2.0));
        let mut sessions: Vec<_> = self.sessions.iter().collect();
        sessions.sort_by_key(|(_, ends)| std::cmp::Reverse(**ends));
        let sessions = sessions.into_iter().take(MAX_SOUGHT_SESSIONS).map(|(id, _)| id.clone()).collect();
        let is_candidate = |at: &usize| *at != self.used || self.is_blocked();
        let candidates = (0..self.entries.len()).filter(is_candidate).collect();
        Some(Search { candidates, sessions, needs_session: self.is_leased(now) })
    }

    /// Takes what an address has answered: whether it shows a session, or has only a leader; or why it can not be used. Returns
    /// whether it may be used if no other one shows a session.
    pub(super) fn found(&mut self, at: usize, shows: Result<bool, String>, now: Instant) -> bool {
        // The address in use may answer again, or another one may be used already.
        if !self.needs_other() {
            return false;
        }
        match shows {
            Ok(true) => self.move_to(at, true),
            Ok(false) if self.sessions.is_empty() => self.move_to(at, false),
            Ok(false) => {
                if self.is_leased(now) {
                    self.entries[at].failed = Some("it does not show the session".into());
                }
                return true;
            }
            Err(why) => self.entries[at].failed = Some(why),
        }
        false
    }

    /// Ends a search. `others`: the addresses with a leader that show no session.
    pub(super) fn end_search(&mut self, others: &[usize], now: Instant) {
        self.searching = false;
        if !self.needs_other() {
            return;
        }
        let first = others.iter().min();
        if let Some(at) = first.filter(|_| !self.is_leased(now)) {
            self.move_to(*at, false);
        } else if self.is_blocked() && others.len() == self.entries.len() {
            // No address shows the session, so it has ended.
            self.used = 0;
            self.move_to(0, false);
        } else if self.is_blocked() {
            self.searches_in_vain += 1;
            // Reported once, after the second search: the first one may have had no token yet.
            if self.searches_in_vain == 2 {
                self.news.push(AddressNews::NoSession { addresses: self.failures_of_others() });
            }
        }
    }

    /// The addresses and their states, in the order of the configuration.
    pub(super) fn states(&self) -> Vec<(String, AddressState)> {
        let state = |(at, entry): (usize, &Entry)| {
            let state = match &entry.failed {
                _ if at == self.used && !self.is_blocked() => AddressState::Used,
                Some(why) => AddressState::Failed(why.clone()),
                None => AddressState::Unknown,
            };
            (entry.shown.to_string(), state)
        };
        self.entries.iter().enumerate().map(state).collect()
    }

    /// Why the other addresses are not used; of all addresses if none is in use yet.
    pub(super) fn failures_of_others(&self) -> Vec<String> {
        let failure = |(address, state)| match state {
            AddressState::Failed(why) => Some(format!("{address}: {why}")),
            AddressState::Used | AddressState::Unknown => None,
        };
        self.states().into_iter().filter_map(failure).collect()
    }

    /// The changes that were not reported yet.
    pub(super) fn take_news(&mut self) -> Vec<AddressNews> {
        std::mem::take(&mut self.news)
    }

    /// Whether a session of this client may have a valid lease.
    fn is_leased(&self, now: Instant) -> bool {
        self.sessions.values().any(|ends| *ends > now)
    }

    /// Whether only logins may be sent.
    fn is_blocked(&self) -> bool {
        self.needs_proof
    }

    fn needs_other(&self) -> bool {
        self.entries.len() > 1 && (self.health.failing.is_some() || self.is_blocked())
    }

    fn move_to(&mut self, at: usize, proved: bool) {
        let failed = self.entries[self.used].failed.take();
        if at != self.used {
            let why = self.health.failing.take().or(failed).unwrap_or_else(|| "it does not answer".into());
            let [from, to] = [self.used, at].map(|at| self.shown(at).to_string());
            self.entries[self.used].failed = Some(why.clone());
            self.news.push(AddressNews::Moved { from, to, why, proved: proved || !self.answered });
        }
        if !proved {
            self.moves += 1;
            self.generation += u64::from(self.answered);
            self.answered = false;
            self.sessions.clear();
        }
        self.entries[at].failed = None;
        (self.used, self.health, self.needs_proof, self.searches_in_vain) = (at, Health::default(), false, 0);
    }
}

#[cfg(test)]
mod tests;
