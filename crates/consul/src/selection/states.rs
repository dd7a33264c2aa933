//! The states of the targets: the verdict of each round of probes on the targets that are not in use.

use std::collections::BTreeSet;

use tokio::time::Instant;

use super::{AddressNews, AddressState, Entry, ProbeResult, Selection};

impl Selection {
    /// The state of each target, in the order of the configuration.
    pub(in super::super) fn states(&self) -> Vec<(String, AddressState)> {
        let state = |(at, entry): (usize, &Entry)| {
            let is_used = at == self.used && self.chosen;
            (entry.label.to_string(), if is_used { AddressState::Used } else { entry.state.clone() })
        };
        self.entries.iter().enumerate().map(state).collect()
    }

    /// The failures of the other targets in the last round; of all targets if none is in use yet.
    pub(in super::super) fn failures_of_others(&self) -> Vec<String> {
        let others = self.entries.iter().enumerate().filter(|(at, _)| *at != self.used || !self.chosen);
        let failed = others.filter_map(|(_, entry)| match &entry.state {
            AddressState::Failed(why) | AddressState::Foreign(why) => Some(format!("{}: {why}", entry.label)),
            AddressState::Used | AddressState::Standby | AddressState::Unknown => None,
        });
        failed.collect()
    }

    /// Updates the states of the other targets by the results of the round.
    pub(super) fn update_states(&mut self, now: Instant) {
        if self.is_blocked(now) {
            return self.report_no_session();
        }
        let leased = self.is_leased(now);
        let used = self.entries[self.used].label.to_string();
        for (at, entry) in self.entries.iter_mut().enumerate() {
            let is_used = at == self.used && self.chosen;
            let Some(result) = entry.found.take().filter(|_| !is_used) else { continue };
            let foreign = foreign_reason(&result, leased, &self.peers);
            match (foreign, result) {
                (Some(why), _) => {
                    if !std::mem::replace(&mut entry.reported, true) {
                        let (address, used) = (entry.label.to_string(), used.clone());
                        self.news.push(AddressNews::Foreign { address, used, why: why.clone() });
                    }
                    entry.state = AddressState::Foreign(why);
                }
                (None, ProbeResult { shows: Some(true), .. } | ProbeResult { peers: Some(_), .. }) => {
                    entry.reported = false;
                    entry.state = AddressState::Standby;
                }
                // The probe found nothing new.
                (None, ProbeResult { .. }) => {}
            }
        }
    }

    /// Counts a round in which no target showed the session of the previous process. Each target may still belong to its cluster.
    fn report_no_session(&mut self) {
        self.rounds_without_session += 1;
        // Reported once, after the second round: the first one may have had no token yet.
        if self.rounds_without_session == 2 {
            let why = |entry: &Entry| match &entry.state {
                AddressState::Failed(why) | AddressState::Foreign(why) => why.clone(),
                AddressState::Used | AddressState::Standby | AddressState::Unknown => "not probed yet".into(),
            };
            let addresses = self.entries.iter().map(|entry| (entry.label.to_string(), why(entry))).collect();
            self.news.push(AddressNews::NoSession { addresses });
        }
    }
}

/// Why a target may belong to another cluster than the one with the Raft peers `own`; `None` if nothing says so. `leased`: a session
/// of this client may have a valid lease.
fn foreign_reason(result: &ProbeResult, leased: bool, own: &BTreeSet<String>) -> Option<String> {
    match (result.shows, &result.peers) {
        (Some(false), _) if leased => Some("it does not show this process's session".into()),
        (Some(true), _) => None,
        (_, Some(peers)) if !own.is_empty() && own.is_disjoint(peers) => {
            let list =
                |peers: &BTreeSet<String>| peers.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            Some(format!("it has no Raft peer in common ({} and {})", list(peers), list(own)))
        }
        _ => None,
    }
}
