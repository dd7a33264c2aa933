//! The selection of one of several addresses, without I/O and without a clock.
//!
//! One target is in use at a time. The client leaves a target that fails, but never moves to another cluster unnoticed:
//!
//! - While the lease of a session of this client may be valid, a target needs a proof: a consistent read there shows the session. After
//!   a restart the session is that of the previous process, and the first address needs the proof too. Until a proof is found or the
//!   lease has expired, only logins are sent.
//! - Without such a lease the targets must have a Raft peer in common. Of two targets without one, the first listed is used. All
//!   development servers report the same peer, so this is no proof: a new epoch begins with the move, and nothing that was read before
//!   it remains valid. See [`Selection::epoch`].

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Address;

mod news;
mod sessions;
mod states;

pub use news::{AddressNews, AddressState};
use sessions::Sessions;

/// The time without a leader after which a target counts as failing. At Consul's defaults an election takes 9 to 19 s, in which no
/// other server has a leader either. A lease lasts at least 25 s, which leaves time for the move.
pub(super) const MAX_ELECTION: Duration = Duration::from_secs(20);
/// The mean interval of probes while the target in use fails.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// The mean interval of probes while the target in use works. The states in the status are not much older.
const CHECK_INTERVAL: Duration = Duration::from_secs(300);
/// The minimum interval of probes for new sessions, which an agent with leases creates all the time.
const MIN_CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// The number of requests in a row without an answer in time after which the target counts as failing.
const MAX_UNANSWERED: u32 = 2;
/// The maximum number of sessions that a probe looks for. Any session is a proof, and an operator may have destroyed some of them.
const MAX_PROBED_SESSIONS: usize = 3;

/// A destination of requests: a configured address, or one IP address of its host name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) address: Address,
    pub(super) ip: Option<IpAddr>,
}

/// The outcome of a request to the target in use.
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

/// A probe of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Probe {
    pub(super) target: Target,
    /// The sessions to look for, by a consistent read.
    pub(super) sessions: Vec<String>,
    /// Whether the probe reads the Raft peers of the target.
    pub(super) peers: bool,
}

/// The result of a probe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ProbeResult {
    /// Whether the target shows a session of this client. `None`: unknown, for example because the token may not see all sessions.
    pub(super) shows: Option<bool>,
    /// The Raft peers of the target; `None` if they are unknown or the target has no leader.
    pub(super) peers: Option<BTreeSet<String>>,
    /// Why the probe failed.
    pub(super) failed: Option<String>,
}

struct Entry {
    target: Target,
    /// The target in messages, with its IP address if its name has several.
    label: Arc<str>,
    state: AddressState,
    /// The result of the probe in this round.
    found: Option<ProbeResult>,
    /// Whether the log says already that the target may belong to another cluster.
    reported: bool,
}

impl Entry {
    fn new(target: Target) -> Self {
        let label = target.address.to_string().into();
        Self { target, label, state: AddressState::Unknown, found: None, reported: false }
    }
}

/// Whether the target in use is a name whose addresses are targets too.
fn has_resolved_addresses(entries: &[Entry], used: usize) -> bool {
    let Some(Target { address, ip: None }) = entries.get(used).map(|entry| &entry.target) else {
        return false;
    };
    entries.iter().any(|entry| entry.target.ip.is_some() && entry.target.address == *address)
}

pub(super) struct Selection {
    entries: Vec<Entry>,
    /// The target in use. Before the first choice: the candidate, which receives logins.
    used: usize,
    /// Whether a target has been chosen.
    chosen: bool,
    epoch: u64,
    /// Whether a request was answered in this epoch.
    answered: bool,
    sessions: Sessions,
    /// The Raft peers of the target in use.
    peers: BTreeSet<String>,
    failing: Option<String>,
    no_leader_since: Option<Instant>,
    unanswered: u32,
    /// Whether a round of probes has begun.
    in_round: bool,
    /// Whether the probes of the round were sent. A round may begin with a wait.
    probing: bool,
    /// When the next round is due while the target in use works. `None`: now.
    check_at: Option<Instant>,
    /// When the next round is due while another target is needed. `None`: now.
    probe_at: Option<Instant>,
    /// The earliest time of the next round for a new session.
    min_check_at: Option<Instant>,
    /// Whether a session is so new that no round has looked for it.
    has_unprobed_session: bool,
    /// Whether the target in use failed after the current round began, so that its results may be outdated.
    outdated: bool,
    /// The number of rounds in a row in which no target showed the previous process's session.
    rounds_without_session: u32,
    news: Vec<AddressNews>,
}

impl Selection {
    /// No target is chosen yet, unless there is only one. `targets` must not be empty.
    pub(super) fn new(targets: Vec<Target>) -> Self {
        let mut selection = Self {
            chosen: targets.len() == 1,
            entries: targets.into_iter().map(Entry::new).collect(),
            used: 0,
            epoch: 0,
            answered: false,
            sessions: Sessions::default(),
            peers: BTreeSet::new(),
            failing: None,
            no_leader_since: None,
            unanswered: 0,
            in_round: false,
            probing: false,
            check_at: None,
            probe_at: None,
            min_check_at: None,
            has_unprobed_session: false,
            outdated: false,
            rounds_without_session: 0,
            news: Vec::new(),
        };
        selection.set_labels();
        selection
    }

    /// Replaces the targets after names were resolved. The target in use stays among them.
    pub(super) fn set_targets(&mut self, targets: Vec<Target>) {
        let used = self.entries.get(self.used).map(|entry| entry.target.clone());
        let mut before = std::mem::take(&mut self.entries);
        for target in targets {
            let known = before.iter().position(|entry| entry.target == target);
            self.entries.push(known.map_or_else(|| Entry::new(target), |at| before.swap_remove(at)));
        }
        let Some(used) = used else { return };
        let same = |entry: &Entry| entry.target == used;
        // A name that could not be resolved before is replaced by its first address. A name that was connected to stays, since the
        // address of the connection is unknown.
        let by_name = used.ip.is_none() && !self.answered;
        let resolved = |entry: &Entry| by_name && entry.target.address == used.address;
        self.used =
            match self.entries.iter().position(same).or_else(|| self.entries.iter().position(resolved)) {
                Some(at) => at,
                None => {
                    self.entries.push(before.into_iter().find(same).unwrap_or_else(|| Entry::new(used)));
                    self.entries.len() - 1
                }
            };
        if self.entries.len() == 1 {
            self.chosen = true;
        } else if !self.answered {
            // The name has several addresses.
            self.chosen = false;
        } else if has_resolved_addresses(&self.entries, self.used) {
            // Each connection may go to another address.
            self.failing.get_or_insert_with(|| "its name has several addresses".into());
        }
        self.set_labels();
    }

    fn set_labels(&mut self) {
        let targets: Vec<Target> = self.entries.iter().map(|entry| entry.target.clone()).collect();
        for entry in &mut self.entries {
            let Target { address, ip } = &entry.target;
            let several = targets.iter().filter(|target| target.address == *address).count() > 1;
            entry.label = match ip.filter(|_| several) {
                Some(ip) => format!("{address} ({ip})").into(),
                None => address.to_string().into(),
            };
        }
    }

    /// The target in use; `None` if there is no target.
    pub(super) fn used(&self) -> Option<&Target> {
        self.entries.get(self.used).map(|entry| &entry.target)
    }

    pub(super) fn is_chosen(&self) -> bool {
        self.chosen
    }

    /// Whether only logins may be sent: no target is chosen, and the lease of the previous process's session may be valid.
    pub(super) fn is_blocked(&self, now: Instant) -> bool {
        !self.chosen && self.is_leased(now)
    }

    /// The epoch. Data read in one epoch must not be used in another.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Records a session and the time at which its lease expires at the latest; `None` if unknown.
    pub(super) fn remember(&mut self, session: &str, lease_ends: Option<Instant>, now: Instant) {
        let is_new = self.sessions.remember(session, lease_ends, now);
        self.has_unprobed_session |= is_new && lease_ends.is_some();
    }

    /// Records the end of a session, and so of its lease.
    pub(super) fn forget(&mut self, session: &str, now: Instant) {
        self.sessions.forget(session, now);
    }

    /// Records the outcome of a request to `target`.
    pub(super) fn record_outcome(&mut self, target: &Target, outcome: Outcome, now: Instant) {
        if self.used() != Some(target) {
            return;
        }
        if self.is_blocked(now) {
            return self.record_login(&outcome);
        }
        let failed_before = self.failing.is_some();
        match outcome {
            Outcome::Answered | Outcome::Refused => {
                (self.failing, self.no_leader_since, self.unanswered) = (None, None, 0);
                if outcome == Outcome::Answered {
                    (self.chosen, self.answered) = (true, true);
                }
            }
            Outcome::NoLeader => {
                let since = *self.no_leader_since.get_or_insert(now);
                if now.duration_since(since) >= MAX_ELECTION {
                    self.failing = Some(format!("no leader for {} s", MAX_ELECTION.as_secs()));
                }
                self.unanswered = 0;
            }
            Outcome::Failed(why) => self.failing = Some(why),
            Outcome::Unanswered => {
                self.unanswered += 1;
                if self.unanswered >= MAX_UNANSWERED {
                    self.failing = Some("requests are not answered in time".into());
                }
            }
            Outcome::Other => {}
        }
        self.outdated |= self.in_round && !failed_before && self.failing.is_some();
    }

    /// Records the outcome of a login while only logins may be sent.
    fn record_login(&mut self, outcome: &Outcome) {
        match outcome {
            // The token of the login may show the session.
            Outcome::Answered => self.probe_at = None,
            Outcome::Failed(_) | Outcome::NoLeader | Outcome::Unanswered | Outcome::Refused => {
                self.used = (self.used + 1) % self.entries.len();
            }
            Outcome::Other => {}
        }
    }

    /// The time until the next round of probes; `None` if none is due.
    pub(super) fn next_round_after(&self, now: Instant) -> Option<Duration> {
        if self.in_round {
            return None;
        }
        if self.needs_target() {
            return Some(self.probe_at.unwrap_or(now).saturating_duration_since(now));
        }
        let passed = |at: Option<Instant>| at.is_none_or(|at| at <= now);
        let due = passed(self.check_at) || (self.has_unprobed_session && passed(self.min_check_at));
        (due && self.has_others()).then_some(Duration::ZERO)
    }

    /// Whether another target is needed.
    fn needs_target(&self) -> bool {
        self.failing.is_some() || !self.chosen
    }

    /// Whether probes are in flight, so that a request may wait for their result.
    pub(super) fn is_probing(&self) -> bool {
        self.probing
    }

    /// Begins a round, whose probes are sent after `after`. [`Self::end_round`] must follow. `spread` is a new random number from 0 to 1,
    /// so that agents that start together do not probe together.
    pub(super) fn begin_round(&mut self, after: Duration, spread: f64, now: Instant) {
        let at = now + after;
        let wait = |mean: Duration| Some(at + mean.mul_f64(0.75 + spread / 2.0));
        if self.needs_target() {
            self.probe_at = wait(PROBE_INTERVAL);
        }
        if self.has_unprobed_session {
            self.min_check_at = wait(MIN_CHECK_INTERVAL);
        }
        self.check_at = wait(CHECK_INTERVAL);
        (self.in_round, self.probing, self.has_unprobed_session, self.outdated) =
            (true, after.is_zero(), false, false);
    }

    /// The probes of this round.
    pub(super) fn probes(&mut self, now: Instant) -> Vec<Probe> {
        self.probing = true;
        self.outdated = false;
        let mut sessions: Vec<(&String, Instant)> = self.sessions.leases().collect();
        sessions.sort_by_key(|(_, ends)| std::cmp::Reverse(*ends));
        let sessions: Vec<String> =
            sessions.into_iter().take(MAX_PROBED_SESSIONS).map(|(id, _)| id.clone()).collect();
        let (leased, fails, chosen, used) =
            (self.is_leased(now), self.failing.is_some(), self.chosen, self.used);
        let others = self.entries.len() > 1;
        let mut probes = Vec::new();
        for (at, entry) in self.entries.iter_mut().enumerate() {
            entry.found = None;
            let probe = if !others || (at == used && chosen && fails) {
                continue;
            } else if at == used && chosen {
                Probe { target: entry.target.clone(), sessions: Vec::new(), peers: true }
            } else {
                Probe { target: entry.target.clone(), sessions: sessions.clone(), peers: !leased }
            };
            probes.push(probe);
        }
        probes
    }

    /// Records the result of a probe in this round.
    pub(super) fn record_probe(&mut self, target: &Target, result: ProbeResult, now: Instant) {
        let Some(at) = self.entries.iter().position(|entry| entry.target == *target) else { return };
        if at == self.used && self.chosen {
            self.peers = result.peers.unwrap_or_else(|| std::mem::take(&mut self.peers));
            return;
        }
        let is_blocked = self.is_blocked(now);
        if let Some(entry) = self.entries.get_mut(at) {
            entry.state = match (&result.failed, result.shows) {
                (Some(why), _) => AddressState::Failed(why.clone()),
                (None, Some(false)) if is_blocked => {
                    AddressState::Failed("it does not show the session".into())
                }
                (None, _) => AddressState::Unknown,
            };
            entry.found = Some(result);
        }
        self.choose(false, now);
    }

    /// Ends the round. Returns whether the next round must begin at once, because the target in use failed meanwhile.
    pub(super) fn end_round(&mut self, now: Instant) -> bool {
        self.choose(true, now);
        (self.in_round, self.probing) = (false, false);
        let lacks = |entry: &Entry| entry.found.as_ref().is_some_and(|found| found.shows == Some(false));
        if !self.chosen && self.entries.iter().all(lacks) {
            // No target shows the session, so it has ended.
            self.sessions.clear();
        }
        self.update_states(now);
        let again = std::mem::take(&mut self.outdated) && self.needs_target();
        if again {
            self.probe_at = None;
        }
        again
    }

    /// A target in messages, with its IP address if its name has several.
    pub(super) fn label(&self, target: &Target) -> Arc<str> {
        let entry = self.entries.iter().find(|entry| entry.target == *target);
        entry.map_or_else(|| target.address.to_string().into(), |entry| Arc::clone(&entry.label))
    }

    /// Whether there is more than one target.
    pub(super) fn has_others(&self) -> bool {
        self.entries.len() > 1
    }

    /// The changes that were not reported yet.
    pub(super) fn take_news(&mut self) -> Vec<AddressNews> {
        std::mem::take(&mut self.news)
    }

    /// Whether a session of this client may have a valid lease.
    fn is_leased(&self, now: Instant) -> bool {
        self.sessions.leases().any(|(_, ends)| ends > now)
    }

    /// Moves to another target if one is needed and possible. `round_ended`: no further result of this round follows.
    fn choose(&mut self, round_ended: bool, now: Instant) {
        if !self.needs_target() {
            return;
        }
        let may_move = |at: usize| !self.chosen || at != self.used;
        let proof = |entry: &Entry| entry.found.as_ref().is_some_and(|found| found.shows == Some(true));
        let proved = (0..self.entries.len()).find(|at| may_move(*at) && proof(&self.entries[*at]));
        if let Some(at) = proved {
            return self.move_to(at, true);
        }
        // A later result may show the session of the previous process.
        if self.is_leased(now) || (!round_ended && self.sessions.leases().next().is_some()) {
            return;
        }
        for at in 0..self.entries.len() {
            if !may_move(at) {
                continue;
            }
            let Some(found) = &self.entries[at].found else {
                // A target that is listed earlier may still answer, and has precedence.
                if round_ended { continue } else { return }
            };
            if found.peers.as_ref().is_some_and(|peers| self.may_follow(at, peers)) {
                return self.move_to(at, false);
            }
        }
    }

    /// Whether the client may move to a target with these peers while it has no lease.
    fn may_follow(&self, at: usize, peers: &BTreeSet<String>) -> bool {
        !self.answered || at < self.used || !self.peers.is_disjoint(peers)
    }

    fn move_to(&mut self, at: usize, proved: bool) {
        // Before the first choice, the move is from the first listed target.
        let from = if self.chosen { self.used } else { 0 };
        let first = !self.chosen && !self.answered;
        if !self.chosen {
            // The first choice does not delay the next round.
            self.probe_at = None;
        }
        let why = self.failing.take();
        self.used = at;
        if let Some(peers) = self.entries[at].found.take().and_then(|found| found.peers) {
            self.peers = peers;
        }
        if self.peers.is_empty() {
            // A move after the session has ended needs the peers, so the next round is due at once.
            self.check_at = None;
        }
        if !proved && self.answered {
            self.epoch += 1;
            self.answered = false;
            self.sessions.clear();
        }
        if from != at {
            let why = why.unwrap_or_else(|| match &self.entries[from].state {
                AddressState::Failed(why) => why.clone(),
                AddressState::Used
                | AddressState::Standby
                | AddressState::Unknown
                | AddressState::Foreign(_) => "it does not answer".into(),
            });
            self.entries[from].state = AddressState::Failed(why.clone());
            let label = |at: usize| self.entries[at].label.to_string();
            let (from, to) = (label(from), label(at));
            self.news.push(AddressNews::Moved { from, to, why, proved: proved || first });
        }
        (self.chosen, self.no_leader_since, self.unanswered) = (true, None, 0);
        self.rounds_without_session = 0;
    }
}

#[cfg(test)]
mod tests;
