//! Which of several addresses is used: the decision, without I/O and without a clock.
//!
//! One target is used at a time. A target that fails is left for another one, and two clusters must never be taken for one:
//!
//! - While the lease of an own session may be valid, only proof counts: a consistent read there that shows an own session.
//! - Without such a lease the targets must share a Raft peer. Of two that disagree the first listed is used. Every
//!   development server tells the same peer, so that is no proof: after such a move nothing counts that was learnt before it.
//!   [`Selection::epoch`] tells these times apart.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

use super::Address;

/// How long a target may have no leader before another one is looked for. At Consul's defaults an election takes 9 to 19 s,
/// in which no other server has a leader either; a lease is made for 25 s, so that the rest is for the move.
pub(super) const ELECTION: Duration = Duration::from_secs(20);
/// The time between two looks at the others while the used target fails.
const PAUSE: Duration = Duration::from_secs(1);
/// The same while it does not: what the status says of the others, and the peers of the used one, are never older.
const CHECK_EVERY: Duration = Duration::from_secs(300);
/// Requests in a row without an answer in time after which the target counts as failing.
const MAX_SILENT: u32 = 2;
/// Consul's own end of every session, twice the longest TTL after its last renewal.
const MAX_REMEMBERED: Duration = Duration::from_secs(48 * 60 * 60);
/// Own sessions that a target is asked for: any of them is proof, and one may have been destroyed by an operator.
const MAX_ASKED: usize = 3;

/// Where requests can be sent: an address of the configuration, or one IP address of such that is a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) address: Address,
    pub(super) ip: Option<IpAddr>,
}

/// How a request to the used target ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Consul answered.
    Answered,
    /// It has no leader.
    NoLeader,
    /// No connection, or TLS failed: nothing was sent.
    Refused(String),
    /// A proxy answered 502 or 503.
    Proxy(String),
    /// No answer in time.
    Silent,
    /// Neither good nor bad news, such as a long poll that was cut.
    Other,
}

/// What a target is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Question {
    pub(super) target: Target,
    /// Whether it shows one of these, by a consistent read.
    pub(super) sessions: Vec<String>,
    /// Its Raft peers, where it has a leader.
    pub(super) peers: bool,
}

/// What it answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Finding {
    /// Whether it shows an own session. `None`: that is not known, as where the token may not see everything.
    pub(super) shows: Option<bool>,
    /// `None` where it does not say them, or has no leader.
    pub(super) peers: Option<BTreeSet<String>>,
    /// Why something is not known.
    pub(super) failed: Option<String>,
}

/// What is known of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressState {
    /// Requests go there.
    Used,
    /// It is of the same cluster.
    Standby,
    /// Nothing is known of it yet.
    Unknown,
    /// It could not be asked, or confirms nothing. Says why.
    Failed(String),
    /// It may belong to another cluster. Says why.
    Foreign(String),
}

/// News of the addresses, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressNews {
    /// Another address is used from here on.
    Moved {
        /// The one before.
        from: String,
        /// The one that is used.
        to: String,
        /// What was wrong with the one before.
        why: String,
        /// That both belong to one cluster is proved by an own session.
        proved: bool,
    },
    /// This address is not used, since it may belong to another cluster than the one that is.
    Foreign {
        /// The address.
        address: String,
        /// The one that is used.
        used: String,
        /// What speaks for it.
        why: String,
    },
}

impl fmt::Display for AddressNews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Moved { from, to, why, .. } => write!(f, "Consul at {from} failed ({why}); using {to}"),
            Self::Foreign { address, used, why } => write!(
                f,
                "Consul at {address} is not used, since it may belong to another cluster than {used}: {why}"
            ),
        }
    }
}

struct Entry {
    target: Target,
    state: AddressState,
    /// What was found since the look began.
    found: Option<Finding>,
    /// That it may belong to another cluster has been told.
    reported: bool,
}

fn entry(target: Target) -> Entry {
    Entry { target, state: AddressState::Unknown, found: None, reported: false }
}

pub(super) struct Selection {
    entries: Vec<Entry>,
    used: usize,
    /// The first one has been chosen, or has answered.
    chosen: bool,
    epoch: u64,
    /// Something was answered in this epoch.
    answered: bool,
    /// Own sessions, and when the leases on them have ended. An ended one still is proof.
    sessions: BTreeMap<String, Instant>,
    /// Of the used target.
    peers: BTreeSet<String>,
    failing: Option<String>,
    no_leader_since: Option<Instant>,
    silent: u32,
    looking: bool,
    /// A look asks the targets; before that it rests.
    asking: bool,
    looked_at: Option<Instant>,
    /// The same of the last look for another target.
    sought_at: Option<Instant>,
    /// A session is new, of which the other targets have not been asked.
    unchecked: bool,
    news: Vec<AddressNews>,
}

impl Selection {
    /// None of the targets is chosen yet, unless there is only one. There has to be one.
    pub(super) fn new(targets: Vec<Target>) -> Self {
        let mut own = Self {
            entries: Vec::new(),
            used: 0,
            chosen: false,
            epoch: 0,
            answered: false,
            sessions: BTreeMap::new(),
            peers: BTreeSet::new(),
            failing: None,
            no_leader_since: None,
            silent: 0,
            looking: false,
            asking: false,
            looked_at: None,
            sought_at: None,
            unchecked: false,
            news: Vec::new(),
        };
        own.entries = targets.into_iter().map(entry).collect();
        own.chosen = own.entries.len() == 1;
        own
    }

    /// The targets are these from here on, since names have been resolved. The one that is used stays among them.
    pub(super) fn set_targets(&mut self, targets: Vec<Target>) {
        let used = self.entries.get(self.used).map(|entry| entry.target.clone());
        let mut before = std::mem::take(&mut self.entries);
        for target in targets {
            let known = before.iter().position(|entry| entry.target == target);
            self.entries.push(known.map_or_else(|| entry(target), |at| before.swap_remove(at)));
        }
        let Some(used) = used else { return };
        let same = |entry: &Entry| entry.target == used;
        // A name that could not be resolved before is used by its first address now. One that was connected to stays, since
        // nobody knows by which.
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
        self.chosen |= self.entries.len() == 1;
    }

    /// Where requests go; `None` where there is no target at all.
    pub(super) fn used(&self) -> Option<&Target> {
        self.entries.get(self.used).map(|entry| &entry.target)
    }

    pub(super) fn is_chosen(&self) -> bool {
        self.chosen
    }

    /// Whether nothing may be sent: none has been chosen, and the first one does not show the session of an earlier process,
    /// whose lease may be valid.
    pub(super) fn is_blocked(&self, now: Instant) -> bool {
        let foreign = |entry: &Entry| matches!(entry.state, AddressState::Foreign(_));
        !self.chosen && self.is_leased(now) && self.entries.get(self.used).is_some_and(foreign)
    }

    /// What was learnt and planned in one epoch must not be acted on in another one.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// An own session whose lease ends then at the latest; `None` where that is not known, as of an earlier process's.
    pub(super) fn remember(&mut self, session: &str, lease_ends: Option<Instant>, now: Instant) {
        self.sessions.retain(|_, ends| now.duration_since(*ends) < MAX_REMEMBERED);
        self.unchecked |= lease_ends.is_some() && !self.sessions.contains_key(session);
        let ends = self.sessions.entry(session.to_owned()).or_insert(now);
        *ends = lease_ends.map_or(*ends, |new| new.max(*ends));
    }

    /// The session has ended, so that there is no lease on it any more.
    pub(super) fn forget(&mut self, session: &str) {
        self.sessions.remove(session);
    }

    /// Takes in how a request ended that was sent to `target`.
    pub(super) fn ended(&mut self, target: &Target, outcome: Outcome, now: Instant) {
        if self.used() != Some(target) {
            return;
        }
        match outcome {
            Outcome::Answered => {
                (self.failing, self.no_leader_since, self.silent) = (None, None, 0);
                (self.chosen, self.answered) = (true, true);
            }
            Outcome::NoLeader => {
                let since = *self.no_leader_since.get_or_insert(now);
                if now.duration_since(since) >= ELECTION {
                    self.failing = Some(format!("no leader for {} s", ELECTION.as_secs()));
                }
                self.silent = 0;
            }
            Outcome::Refused(why) | Outcome::Proxy(why) => self.failing = Some(why),
            Outcome::Silent => {
                self.silent += 1;
                if self.silent >= MAX_SILENT {
                    self.failing = Some("requests are not answered in time".into());
                }
            }
            Outcome::Other => {}
        }
    }

    /// After how long the targets are to be looked at, where they are.
    pub(super) fn wants_look(&self, now: Instant) -> Option<Duration> {
        if self.looking {
            return None;
        }
        if self.is_in_need() {
            let next = self.sought_at.map_or(now, |at| at + PAUSE);
            return Some(next.saturating_duration_since(now));
        }
        let due = self.unchecked || self.looked_at.is_none_or(|at| now.duration_since(at) >= CHECK_EVERY);
        (due && self.has_others()).then_some(Duration::ZERO)
    }

    /// Whether another target than the one that is used is wanted.
    fn is_in_need(&self) -> bool {
        self.failing.is_some() || !self.chosen
    }

    /// Whether the targets are being asked, so that it is worth to wait for what they say.
    pub(super) fn is_asking(&self) -> bool {
        self.asking
    }

    /// Begins to look at the targets, after that time. Its end has to be told.
    pub(super) fn begin_look(&mut self, after: Duration, now: Instant) {
        let at = now + after;
        (self.looking, self.looked_at, self.unchecked) = (true, Some(at), false);
        self.asking = after.is_zero();
        if self.is_in_need() {
            self.sought_at = Some(at);
        }
    }

    /// What to ask whom in this look.
    pub(super) fn questions(&mut self, now: Instant) -> Vec<Question> {
        self.asking = true;
        let mut sessions: Vec<_> = self.sessions.iter().collect();
        sessions.sort_by_key(|(_, ends)| std::cmp::Reverse(**ends));
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

    /// Takes in what a target answered in this look.
    pub(super) fn found(&mut self, target: &Target, finding: Finding, now: Instant) {
        let Some(at) = self.entries.iter().position(|entry| entry.target == *target) else { return };
        if at == self.used && self.chosen {
            self.peers = finding.peers.unwrap_or_else(|| std::mem::take(&mut self.peers));
            return;
        }
        if let Some(entry) = self.entries.get_mut(at) {
            entry.state = finding.failed.clone().map_or(AddressState::Unknown, AddressState::Failed);
            entry.found = Some(finding);
        }
        self.decide(false, now);
    }

    /// The look is over: nothing more is answered.
    pub(super) fn end_look(&mut self, now: Instant) {
        self.decide(true, now);
        (self.looking, self.asking) = (false, false);
        let lacks = |entry: &Entry| entry.found.as_ref().is_some_and(|found| found.shows == Some(false));
        if !self.chosen && self.entries.iter().all(lacks) {
            // It has ended, wherever it was.
            self.sessions.clear();
        }
        self.judge(now);
    }

    /// The state of each, in the order of the configuration.
    pub(super) fn states(&self) -> Vec<(String, AddressState)> {
        let state = |(at, entry): (usize, &Entry)| {
            let state = if at == self.used { AddressState::Used } else { entry.state.clone() };
            (self.label(&entry.target), state)
        };
        self.entries.iter().enumerate().map(state).collect()
    }

    /// A target for people: with its IP address where its name has several.
    pub(super) fn label(&self, target: &Target) -> String {
        let same = self.entries.iter().filter(|entry| entry.target.address == target.address).count();
        match target.ip.filter(|_| same > 1) {
            Some(ip) => format!("{} ({ip})", target.address),
            None => target.address.to_string(),
        }
    }

    /// Whether there is more than one target.
    pub(super) fn has_others(&self) -> bool {
        self.entries.len() > 1
    }

    /// What was wrong with the others in the last look, for an error of the used target.
    pub(super) fn failed_others(&self) -> Vec<String> {
        let others = self.entries.iter().enumerate().filter(|(at, _)| *at != self.used);
        let failed = others.filter_map(|(_, entry)| match &entry.state {
            AddressState::Failed(why) | AddressState::Foreign(why) => {
                Some(format!("{}: {why}", self.label(&entry.target)))
            }
            AddressState::Used | AddressState::Standby | AddressState::Unknown => None,
        });
        failed.collect()
    }

    /// What has not been told yet.
    pub(super) fn take_news(&mut self) -> Vec<AddressNews> {
        std::mem::take(&mut self.news)
    }

    /// Whether there may be a valid lease on an own session.
    fn is_leased(&self, now: Instant) -> bool {
        self.sessions.values().any(|ends| *ends > now)
    }

    /// Moves to another target where that is due and one may be used; `over`: nothing more is going to be answered.
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
        // A session that an earlier process has left may be shown by a later one.
        if self.is_leased(now) || (!over && !self.sessions.is_empty()) {
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

    /// Whether a target that tells these peers may be used after the one that is, without a lease.
    fn may_follow(&self, at: usize, peers: &BTreeSet<String>) -> bool {
        !self.answered || at < self.used || !self.peers.is_disjoint(peers)
    }

    fn move_to(&mut self, at: usize, proved: bool) {
        let (from, first) = (self.used, !self.chosen && !self.answered);
        if !self.chosen {
            // The first choice, from which the next one need not keep its distance.
            self.sought_at = None;
        }
        let why = self.failing.take();
        self.used = at;
        if let Some(peers) = self.entries[at].found.take().and_then(|found| found.peers) {
            self.peers = peers;
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
            let label = |at: usize| self.label(&self.entries[at].target);
            let (from, to) = (label(from), label(at));
            self.news.push(AddressNews::Moved { from, to, why, proved: proved || first });
        }
        (self.chosen, self.no_leader_since, self.silent) = (true, None, 0);
    }

    /// Says of the others what the look has shown.
    fn judge(&mut self, now: Instant) {
        let leased = self.is_leased(now);
        let labels: Vec<_> = self.entries.iter().map(|entry| self.label(&entry.target)).collect();
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
                    let (address, used) = (labels[at].clone(), labels[self.used].clone());
                    if !std::mem::replace(&mut entry.reported, true) {
                        self.news.push(AddressNews::Foreign { address, used, why: why.clone() });
                    }
                    entry.state = AddressState::Foreign(why);
                }
                (None, Finding { shows: Some(true), .. } | Finding { peers: Some(_), .. }) => {
                    entry.reported = false;
                    entry.state = AddressState::Standby;
                }
                // Nothing new is known of it.
                (None, Finding { .. }) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
