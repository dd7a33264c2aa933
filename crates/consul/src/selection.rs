//! The selection of one of several addresses, without I/O and without a clock.
//!
//! One target is in use at a time. The client leaves a target that fails, but never moves to another cluster unnoticed:
//!
//! - While the lease of a session of this client may be valid, a target needs a proof: a consistent read there shows the session. After
//!   a restart the session is that of the previous process, and the first address needs the proof too. Until then, or until the lease
//!   has expired, only logins are sent.
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

pub use news::{AddressNews, AddressState};
use sessions::Sessions;

/// The time without a leader after which a target counts as failing. At Consul's defaults an election takes 9 to 19 s, in which no
/// other server has a leader either. A lease lasts at least 25 s, which leaves time for the move.
pub(super) const ELECTION: Duration = Duration::from_secs(20);
/// The mean interval of probes while the target in use fails.
const PAUSE: Duration = Duration::from_secs(1);
/// The mean interval of probes while the target in use works. The states in the status are not much older.
const CHECK_EVERY: Duration = Duration::from_secs(300);
/// The minimum interval of probes for new sessions, which an agent with leases creates all the time.
const CHECK_PAUSE: Duration = Duration::from_secs(30);
/// Requests in a row without an answer in time after which the target counts as failing.
const MAX_SILENT: u32 = 2;
/// The number of sessions that a probe asks for. Any of them is a proof, and an operator may have destroyed one.
const MAX_ASKED: usize = 3;

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
    TurnedAway,
    /// Consul has no leader.
    NoLeader,
    /// The connection or TLS failed, or a proxy answered 502 or 503. Contains the reason.
    Failed(String),
    /// No answer in time, or a proxy's answer that it had none.
    Silent,
    /// Neither a success nor a failure, such as a long poll that was cut.
    Other,
}

/// A probe of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Question {
    pub(super) target: Target,
    /// The sessions to look for, by a consistent read.
    pub(super) sessions: Vec<String>,
    /// Whether to ask for its Raft peers.
    pub(super) peers: bool,
}

/// The result of a probe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Finding {
    /// Whether it shows a session of this client. `None`: unknown, for example because the token may not see all sessions.
    pub(super) shows: Option<bool>,
    /// Its Raft peers; `None` if they are unknown or it has no leader.
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
    found: Option<Finding>,
    /// Whether it was reported that it may belong to another cluster.
    reported: bool,
}

fn entry(target: Target) -> Entry {
    let label = target.address.to_string().into();
    Entry { target, label, state: AddressState::Unknown, found: None, reported: false }
}

/// Whether the target in use is a name whose addresses are targets too.
fn by_now_several(entries: &[Entry], used: usize) -> bool {
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
    silent: u32,
    looking: bool,
    /// Whether the round of probes has started; it waits before that.
    asking: bool,
    /// When the next round is due while nothing fails, and while another target is needed. `None`: now.
    check_at: Option<Instant>,
    seek_at: Option<Instant>,
    /// The earliest next round for a new session.
    pause_until: Option<Instant>,
    /// Whether a session is new and the other targets were not probed for it.
    unchecked: bool,
    /// Whether the target in use failed after the current round began, so that its results may be outdated.
    outdated: bool,
    /// Rounds in a row in which no target showed the previous process's session.
    in_vain: u32,
    news: Vec<AddressNews>,
}

impl Selection {
    /// No target is chosen yet, unless there is only one. `targets` must not be empty.
    pub(super) fn new(targets: Vec<Target>) -> Self {
        let mut own = Self {
            entries: Vec::new(),
            used: 0,
            chosen: false,
            epoch: 0,
            answered: false,
            sessions: Sessions::default(),
            peers: BTreeSet::new(),
            failing: None,
            no_leader_since: None,
            silent: 0,
            looking: false,
            asking: false,
            check_at: None,
            seek_at: None,
            pause_until: None,
            unchecked: false,
            outdated: false,
            in_vain: 0,
            news: Vec::new(),
        };
        own.entries = targets.into_iter().map(entry).collect();
        own.chosen = own.entries.len() == 1;
        own.set_labels();
        own
    }

    /// Replaces the targets after names were resolved. The target in use stays among them.
    pub(super) fn set_targets(&mut self, targets: Vec<Target>) {
        let used = self.entries.get(self.used).map(|entry| entry.target.clone());
        let mut before = std::mem::take(&mut self.entries);
        for target in targets {
            let known = before.iter().position(|entry| entry.target == target);
            self.entries.push(known.map_or_else(|| entry(target), |at| before.swap_remove(at)));
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
                    self.entries.push(before.into_iter().find(same).unwrap_or_else(|| entry(used)));
                    self.entries.len() - 1
                }
            };
        if self.entries.len() == 1 {
            self.chosen = true;
        } else if !self.answered {
            // The name has several addresses.
            self.chosen = false;
        } else if by_now_several(&self.entries, self.used) {
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
        self.unchecked |= is_new && lease_ends.is_some();
    }

    /// Records the end of a session, and so of its lease.
    pub(super) fn forget(&mut self, session: &str, now: Instant) {
        self.sessions.forget(session, now);
    }

    /// Records the outcome of a request to `target`.
    pub(super) fn ended(&mut self, target: &Target, outcome: Outcome, now: Instant) {
        if self.used() != Some(target) {
            return;
        }
        if self.is_blocked(now) {
            return self.login_ended(&outcome);
        }
        let failed_before = self.failing.is_some();
        match outcome {
            Outcome::Answered | Outcome::TurnedAway => {
                (self.failing, self.no_leader_since, self.silent) = (None, None, 0);
                if outcome == Outcome::Answered {
                    (self.chosen, self.answered) = (true, true);
                }
            }
            Outcome::NoLeader => {
                let since = *self.no_leader_since.get_or_insert(now);
                if now.duration_since(since) >= ELECTION {
                    self.failing = Some(format!("no leader for {} s", ELECTION.as_secs()));
                }
                self.silent = 0;
            }
            Outcome::Failed(why) => self.failing = Some(why),
            Outcome::Silent => {
                self.silent += 1;
                if self.silent >= MAX_SILENT {
                    self.failing = Some("requests are not answered in time".into());
                }
            }
            Outcome::Other => {}
        }
        self.outdated |= self.looking && !failed_before && self.failing.is_some();
    }

    /// Records the outcome of a login while only logins may be sent.
    fn login_ended(&mut self, outcome: &Outcome) {
        match outcome {
            // The token of the login may show the session.
            Outcome::Answered => self.seek_at = None,
            Outcome::Failed(_) | Outcome::NoLeader | Outcome::Silent | Outcome::TurnedAway => {
                self.used = (self.used + 1) % self.entries.len();
            }
            Outcome::Other => {}
        }
    }

    /// The time until the next round of probes; `None` if none is due.
    pub(super) fn wants_look(&self, now: Instant) -> Option<Duration> {
        if self.looking {
            return None;
        }
        if self.is_in_need() {
            return Some(self.seek_at.unwrap_or(now).saturating_duration_since(now));
        }
        let passed = |at: Option<Instant>| at.is_none_or(|at| at <= now);
        let due = passed(self.check_at) || (self.unchecked && passed(self.pause_until));
        (due && self.has_others()).then_some(Duration::ZERO)
    }

    /// Whether another target is needed.
    fn is_in_need(&self) -> bool {
        self.failing.is_some() || !self.chosen
    }

    /// Whether a round of probes is in progress, so that its result is worth waiting for.
    pub(super) fn is_asking(&self) -> bool {
        self.asking
    }

    /// Begins a round of probes, which starts after `after`. [`Self::end_look`] must follow. `spread` is a new random number from 0 to 1,
    /// so that agents that start together do not probe together.
    pub(super) fn begin_look(&mut self, after: Duration, spread: f64, now: Instant) {
        let at = now + after;
        let wait = |mean: Duration| Some(at + mean.mul_f64(0.75 + spread / 2.0));
        if self.is_in_need() {
            self.seek_at = wait(PAUSE);
        }
        if self.unchecked {
            self.pause_until = wait(CHECK_PAUSE);
        }
        self.check_at = wait(CHECK_EVERY);
        (self.looking, self.asking, self.unchecked, self.outdated) = (true, after.is_zero(), false, false);
    }

    /// The probes of this round.
    pub(super) fn questions(&mut self, now: Instant) -> Vec<Question> {
        self.asking = true;
        self.outdated = false;
        let mut sessions: Vec<(&String, Instant)> = self.sessions.leases().collect();
        sessions.sort_by_key(|(_, ends)| std::cmp::Reverse(*ends));
        let sessions: Vec<String> = sessions.into_iter().take(MAX_ASKED).map(|(id, _)| id.clone()).collect();
        let (leased, fails, chosen, used) =
            (self.is_leased(now), self.failing.is_some(), self.chosen, self.used);
        let others = self.entries.len() > 1;
        let mut questions = Vec::new();
        for (at, entry) in self.entries.iter_mut().enumerate() {
            entry.found = None;
            let question = if !others || (at == used && chosen && fails) {
                continue;
            } else if at == used && chosen {
                Question { target: entry.target.clone(), sessions: Vec::new(), peers: true }
            } else {
                Question { target: entry.target.clone(), sessions: sessions.clone(), peers: !leased }
            };
            questions.push(question);
        }
        questions
    }

    /// Records the result of a probe in this round.
    pub(super) fn found(&mut self, target: &Target, finding: Finding, now: Instant) {
        let Some(at) = self.entries.iter().position(|entry| entry.target == *target) else { return };
        if at == self.used && self.chosen {
            self.peers = finding.peers.unwrap_or_else(|| std::mem::take(&mut self.peers));
            return;
        }
        let is_blocked = self.is_blocked(now);
        if let Some(entry) = self.entries.get_mut(at) {
            entry.state = match (&finding.failed, finding.shows) {
                (Some(why), _) => AddressState::Failed(why.clone()),
                (None, Some(false)) if is_blocked => {
                    AddressState::Failed("it does not show the session".into())
                }
                (None, _) => AddressState::Unknown,
            };
            entry.found = Some(finding);
        }
        self.decide(false, now);
    }

    /// Ends the round. Returns whether the next one is to begin at once, because the target in use failed meanwhile.
    pub(super) fn end_look(&mut self, now: Instant) -> bool {
        self.decide(true, now);
        (self.looking, self.asking) = (false, false);
        let lacks = |entry: &Entry| entry.found.as_ref().is_some_and(|found| found.shows == Some(false));
        if !self.chosen && self.entries.iter().all(lacks) {
            // No target shows the session, so it has ended.
            self.sessions.clear();
        }
        self.judge(now);
        let again = std::mem::take(&mut self.outdated) && self.is_in_need();
        if again {
            self.seek_at = None;
        }
        again
    }

    /// The state of each target, in the order of the configuration.
    pub(super) fn states(&self) -> Vec<(String, AddressState)> {
        let state = |(at, entry): (usize, &Entry)| {
            let is_used = at == self.used && self.chosen;
            (entry.label.to_string(), if is_used { AddressState::Used } else { entry.state.clone() })
        };
        self.entries.iter().enumerate().map(state).collect()
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

    /// The failures of the other targets in the last round; of all targets if none is in use yet.
    pub(super) fn failed_others(&self) -> Vec<String> {
        let others = self.entries.iter().enumerate().filter(|(at, _)| *at != self.used || !self.chosen);
        let failed = others.filter_map(|(_, entry)| match &entry.state {
            AddressState::Failed(why) | AddressState::Foreign(why) => Some(format!("{}: {why}", entry.label)),
            AddressState::Used | AddressState::Standby | AddressState::Unknown => None,
        });
        failed.collect()
    }

    /// The changes that were not reported yet.
    pub(super) fn take_news(&mut self) -> Vec<AddressNews> {
        std::mem::take(&mut self.news)
    }

    /// Whether a session of this client may have a valid lease.
    fn is_leased(&self, now: Instant) -> bool {
        self.sessions.leases().any(|(_, ends)| ends > now)
    }

    /// Moves to another target if that is due and possible. `over`: the round has ended.
    fn decide(&mut self, over: bool, now: Instant) {
        if !self.is_in_need() {
            return;
        }
        let may_move = |at: usize| !self.chosen || at != self.used;
        let proof = |entry: &Entry| entry.found.as_ref().is_some_and(|found| found.shows == Some(true));
        let proved = (0..self.entries.len()).find(|at| may_move(*at) && proof(&self.entries[*at]));
        if let Some(at) = proved {
            return self.move_to(at, true);
        }
        // A later result may show the session of the previous process.
        if self.is_leased(now) || (!over && self.sessions.leases().next().is_some()) {
            return;
        }
        for at in 0..self.entries.len() {
            if !may_move(at) {
                continue;
            }
            let Some(found) = &self.entries[at].found else {
                // The first listed goes first, if it answers.
                if over { continue } else { return }
            };
            if found.peers.as_ref().is_some_and(|peers| self.may_follow(at, peers)) {
                return self.move_to(at, false);
            }
        }
    }

    /// Whether a target with these peers may follow the one in use, without a lease.
    fn may_follow(&self, at: usize, peers: &BTreeSet<String>) -> bool {
        !self.answered || at < self.used || !self.peers.is_disjoint(peers)
    }

    fn move_to(&mut self, at: usize, proved: bool) {
        // Before the first choice, the move is from the first listed target.
        let from = if self.chosen { self.used } else { 0 };
        let first = !self.chosen && !self.answered;
        if !self.chosen {
            // The next round need not wait after the first choice.
            self.seek_at = None;
        }
        let why = self.failing.take();
        self.used = at;
        if let Some(peers) = self.entries[at].found.take().and_then(|found| found.peers) {
            self.peers = peers;
        }
        if self.peers.is_empty() {
            // The peers are needed for a move after the session has ended.
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
        (self.chosen, self.no_leader_since, self.silent) = (true, None, 0);
        self.in_vain = 0;
    }

    /// Updates the states of the other targets by the results of the round.
    fn judge(&mut self, now: Instant) {
        if self.is_blocked(now) {
            return self.judge_none();
        }
        let leased = self.is_leased(now);
        let used = self.entries[self.used].label.to_string();
        for (at, entry) in self.entries.iter_mut().enumerate() {
            let is_used = at == self.used && self.chosen;
            let Some(found) = entry.found.take().filter(|_| !is_used) else { continue };
            let strange =
                found.peers.as_ref().filter(|peers| !self.peers.is_empty() && self.peers.is_disjoint(peers));
            let foreign = if found.shows == Some(false) && leased {
                Some("it does not show this process's session".to_owned())
            } else if found.shows == Some(true) {
                None
            } else {
                strange.map(|peers| {
                    let list = |peers: &BTreeSet<String>| {
                        peers.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
                    };
                    format!("it has no Raft peer in common ({} and {})", list(peers), list(&self.peers))
                })
            };
            match (foreign, found) {
                (Some(why), _) => {
                    if !std::mem::replace(&mut entry.reported, true) {
                        let (address, used) = (entry.label.to_string(), used.clone());
                        self.news.push(AddressNews::Foreign { address, used, why: why.clone() });
                    }
                    entry.state = AddressState::Foreign(why);
                }
                (None, Finding { shows: Some(true), .. } | Finding { peers: Some(_), .. }) => {
                    entry.reported = false;
                    entry.state = AddressState::Standby;
                }
                // The probe found nothing new.
                (None, Finding { .. }) => {}
            }
        }
    }

    /// The same while no target shows the previous process's session, so that each may belong to its cluster.
    fn judge_none(&mut self) {
        self.in_vain += 1;
        // Reported once, and not after the first round, which may have had no token yet.
        if self.in_vain == 2 {
            let why = |entry: &Entry| match &entry.state {
                AddressState::Failed(why) | AddressState::Foreign(why) => why.clone(),
                AddressState::Used | AddressState::Standby | AddressState::Unknown => "not asked yet".into(),
            };
            let addresses = self.entries.iter().map(|entry| (entry.label.to_string(), why(entry))).collect();
            self.news.push(AddressNews::NoSession { addresses });
        }
    }
}

#[cfg(test)]
mod tests;
