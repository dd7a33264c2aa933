//! Which of several addresses is used: the decision, without I/O and without a clock.
//!
//! One target is used at a time. A target that fails is left for another one, and two clusters must never be taken for one:
//!
//! - While the lease of an own session may be valid, only proof counts: a consistent read there that shows an own session. After a
//!   restart the session is the earlier process's, and that holds for the first address too: until one is proved or the lease
//!   has ended, nothing is sent but logins, which change nothing that is coordinated.
//! - Without such a lease the targets must share a Raft peer. Of two that disagree the first listed is used. Every
//!   development server tells the same peer, so that is no proof: after such a move nothing counts that was learnt before it.
//!   [`Selection::epoch`] tells these times apart.

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

/// How long a target may have no leader before another one is looked for. At Consul's defaults an election takes 9 to 19 s,
/// in which no other server has a leader either; a lease is made for 25 s, so that the rest is for the move.
pub(super) const ELECTION: Duration = Duration::from_secs(20);
/// The time between two looks at the others while the used target fails, on average.
const PAUSE: Duration = Duration::from_secs(1);
/// The same while it does not: what the status says of the others, and the peers of the used one, are hardly older.
const CHECK_EVERY: Duration = Duration::from_secs(300);
/// The same where a session is new: an agent with leases has new ones all the time.
const CHECK_PAUSE: Duration = Duration::from_secs(30);
/// Requests in a row without an answer in time after which the target counts as failing.
const MAX_SILENT: u32 = 2;
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
    /// It answered, or something before it, that this may not be done or does not exist: so would a stranger.
    TurnedAway,
    /// It has no leader.
    NoLeader,
    /// No connection, TLS failed, or a proxy answered 502 or 503. Says which.
    Failed(String),
    /// No answer in time, or none but a proxy's that it had none.
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

struct Entry {
    target: Target,
    /// The target for people: with its IP address where its name has several.
    label: Arc<str>,
    state: AddressState,
    /// What was found since the look began.
    found: Option<Finding>,
    /// That it may belong to another cluster has been told.
    reported: bool,
}

fn entry(target: Target) -> Entry {
    let label = target.address.to_string().into();
    Entry { target, label, state: AddressState::Unknown, found: None, reported: false }
}

/// Whether the used one is a name, and its addresses stand beside it.
fn by_now_several(entries: &[Entry], used: usize) -> bool {
    let Some(Target { address, ip: None }) = entries.get(used).map(|entry| &entry.target) else {
        return false;
    };
    entries.iter().any(|entry| entry.target.ip.is_some() && entry.target.address == *address)
}

pub(super) struct Selection {
    entries: Vec<Entry>,
    /// Before one has been chosen: the candidate, where logins go.
    used: usize,
    /// The first one has been chosen, or has answered.
    chosen: bool,
    epoch: u64,
    /// Something was answered in this epoch.
    answered: bool,
    sessions: Sessions,
    /// Of the used target.
    peers: BTreeSet<String>,
    failing: Option<String>,
    no_leader_since: Option<Instant>,
    silent: u32,
    looking: bool,
    /// A look asks the targets; before that it rests.
    asking: bool,
    /// When the next look is due while nothing fails, and the next one for another target. `None`: now.
    check_at: Option<Instant>,
    seek_at: Option<Instant>,
    /// No look for the sake of a new session before this.
    pause_until: Option<Instant>,
    /// A session is new, of which the other targets have not been asked.
    unchecked: bool,
    /// What failed has failed since the look that is under way began: what the others have answered may be older.
    outdated: bool,
    /// Looks in a row in which no target showed the earlier process's session.
    in_vain: u32,
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
        if self.entries.len() == 1 {
            self.chosen = true;
        } else if !self.answered {
            // A name that turns out to be several.
            self.chosen = false;
        } else if by_now_several(&self.entries, self.used) {
            // Each connection may go to another one of them.
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

    /// Where requests go; `None` where there is no target at all.
    pub(super) fn used(&self) -> Option<&Target> {
        self.entries.get(self.used).map(|entry| &entry.target)
    }

    pub(super) fn is_chosen(&self) -> bool {
        self.chosen
    }

    /// Whether nothing but logins may be sent: none has been chosen, and the lease of an earlier process's session may be valid.
    pub(super) fn is_blocked(&self, now: Instant) -> bool {
        !self.chosen && self.is_leased(now)
    }

    /// What was learnt and planned in one epoch must not be acted on in another one.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// An own session whose lease ends then at the latest; `None` where that is not known, as of an earlier process's.
    pub(super) fn remember(&mut self, session: &str, lease_ends: Option<Instant>, now: Instant) {
        let is_new = self.sessions.remember(session, lease_ends, now);
        self.unchecked |= is_new && lease_ends.is_some();
    }

    /// The session has ended, so that there is no lease on it any more.
    pub(super) fn forget(&mut self, session: &str, now: Instant) {
        self.sessions.forget(session, now);
    }

    /// Takes in how a request ended that was sent to `target`.
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

    /// Takes in how a login ended while nothing else may be sent.
    fn login_ended(&mut self, outcome: &Outcome) {
        match outcome {
            // Its token may show the session.
            Outcome::Answered => self.seek_at = None,
            Outcome::Failed(_) | Outcome::NoLeader | Outcome::Silent | Outcome::TurnedAway => {
                self.used = (self.used + 1) % self.entries.len();
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
            return Some(self.seek_at.unwrap_or(now).saturating_duration_since(now));
        }
        let passed = |at: Option<Instant>| at.is_none_or(|at| at <= now);
        let due = passed(self.check_at) || (self.unchecked && passed(self.pause_until));
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

    /// Begins to look at the targets, after that time. Its end has to be told. `spread`, from 0 to 1, is drawn anew each time: agents
    /// that begin at one instant do not look at one instant for ever.
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

    /// What to ask whom in this look.
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

    /// Takes in what a target answered in this look.
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

    /// The look is over: nothing more is answered. Whether the next one is to begin at once: what has failed failed meanwhile.
    pub(super) fn end_look(&mut self, now: Instant) -> bool {
        self.decide(true, now);
        (self.looking, self.asking) = (false, false);
        let lacks = |entry: &Entry| entry.found.as_ref().is_some_and(|found| found.shows == Some(false));
        if !self.chosen && self.entries.iter().all(lacks) {
            // It has ended, wherever it was.
            self.sessions.clear();
        }
        self.judge(now);
        let again = std::mem::take(&mut self.outdated) && self.is_in_need();
        if again {
            self.seek_at = None;
        }
        again
    }

    /// The state of each, in the order of the configuration.
    pub(super) fn states(&self) -> Vec<(String, AddressState)> {
        let state = |(at, entry): (usize, &Entry)| {
            let is_used = at == self.used && self.chosen;
            (entry.label.to_string(), if is_used { AddressState::Used } else { entry.state.clone() })
        };
        self.entries.iter().enumerate().map(state).collect()
    }

    /// A target for people: with its IP address where its name has several.
    pub(super) fn label(&self, target: &Target) -> Arc<str> {
        let entry = self.entries.iter().find(|entry| entry.target == *target);
        entry.map_or_else(|| target.address.to_string().into(), |entry| Arc::clone(&entry.label))
    }

    /// Whether there is more than one target.
    pub(super) fn has_others(&self) -> bool {
        self.entries.len() > 1
    }

    /// What was wrong with the others in the last look, for an error of the used target; with all, where none is used yet.
    pub(super) fn failed_others(&self) -> Vec<String> {
        let others = self.entries.iter().enumerate().filter(|(at, _)| *at != self.used || !self.chosen);
        let failed = others.filter_map(|(_, entry)| match &entry.state {
            AddressState::Failed(why) | AddressState::Foreign(why) => Some(format!("{}: {why}", entry.label)),
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
        self.sessions.leases().any(|(_, ends)| ends > now)
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

    /// Whether a target that tells these peers may be used after the one that is, without a lease.
    fn may_follow(&self, at: usize, peers: &BTreeSet<String>) -> bool {
        !self.answered || at < self.used || !self.peers.is_disjoint(peers)
    }

    fn move_to(&mut self, at: usize, proved: bool) {
        // Before a choice it is the first listed that another one is preferred to.
        let from = if self.chosen { self.used } else { 0 };
        let first = !self.chosen && !self.answered;
        if !self.chosen {
            // The first choice, from which the next one need not keep its distance.
            self.seek_at = None;
        }
        let why = self.failing.take();
        self.used = at;
        if let Some(peers) = self.entries[at].found.take().and_then(|found| found.peers) {
            self.peers = peers;
        }
        if self.peers.is_empty() {
            // By them alone another one may follow when the session has ended.
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

    /// Says of the others what the look has shown.
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
                // Nothing new is known of it.
                (None, Finding { .. }) => {}
            }
        }
    }

    /// The same where none shows the earlier process's session: any of them may be its cluster's.
    fn judge_none(&mut self) {
        self.in_vain += 1;
        // Told once, and not after the first look: it may have had no token, before a login.
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
