//! What `inspect` found, as its JSON names it.

use std::time::SystemTime;

use serde::Serialize;

use crate::cli::row::Row;
use crate::clock;
use crate::operator::{Found, Health, Hidden, Inspection, Participant, Waiter};
use slotkeeper_semaphore::Form;

/// What there is at a prefix. No field is ever left out.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) prefix: String,
    /// `semaphore`, `lock`, `other`, `nothing`, `unknown`.
    pub(super) kind: &'static str,
    /// The key that all go by.
    pub(super) key: Option<String>,
    /// What something else is.
    pub(super) description: Option<String>,
    /// `list` or `map`.
    pub(super) form: Option<&'static str>,
    pub(super) limit: Option<u32>,
    pub(super) slots_taken: Option<u32>,
    pub(super) slots_free: Option<u32>,
    /// The index of the key's last change: no holder's token is larger.
    pub(super) fencing_token: Option<u64>,
    /// Of a lock, how often it has been taken.
    pub(super) lock_index: Option<u64>,
    /// The session that is first in line for a slot.
    pub(super) next: Option<String>,
    pub(super) holders: Vec<Member>,
    pub(super) queue: Vec<Member>,
    pub(super) others: Vec<Member>,
    /// Entries that ended sessions have left.
    pub(super) leftovers: usize,
    /// What the token may not see, by the rules that would show it.
    pub(super) hidden: Hidden,
    /// When it was seen.
    pub(super) seen_at: String,
}

/// Somebody who takes part.
#[derive(Debug, Serialize)]
pub(super) struct Member {
    #[serde(flatten)]
    pub(super) row: Row,
    pub(super) health: Health,
    /// How long it has held or waited, by its own date.
    pub(super) seconds: Option<u64>,
    /// Its place in line, from 1.
    pub(super) position: Option<usize>,
    /// In line, whether it wants more than the semaphore can give.
    pub(super) passed_over: Option<bool>,
    /// The prefixes whose slots it takes together.
    pub(super) together: Vec<String>,
}

impl Report {
    pub(super) fn of(prefix: &str, seen: &Inspection) -> Self {
        let wall = clock::wall().at(clock::now());
        Self::at(prefix, seen, wall)
    }

    pub(super) fn at(prefix: &str, seen: &Inspection, wall: SystemTime) -> Self {
        let member = |one: &Participant| Member::of(one, wall);
        let waiter = |(place, one): (usize, &Waiter)| Member {
            // Others may stand ahead and be hidden.
            position: seen.hidden.keys.is_none().then_some(place + 1),
            passed_over: Some(!one.is_served),
            ..member(&one.participant)
        };
        let next = seen.queue.iter().find(|one| one.is_served && seen.hidden.keys.is_none());
        let mut report = Self {
            prefix: prefix.to_owned(),
            kind: "nothing",
            key: None,
            description: None,
            form: None,
            limit: None,
            slots_taken: None,
            slots_free: None,
            fencing_token: None,
            lock_index: None,
            next: None,
            holders: seen.holders.iter().map(member).collect(),
            queue: seen.queue.iter().enumerate().map(waiter).collect(),
            others: seen.others.iter().map(member).collect(),
            leftovers: seen.leftovers,
            hidden: seen.hidden.clone(),
            seen_at: humantime::format_rfc3339_seconds(wall.max(SystemTime::UNIX_EPOCH)).to_string(),
        };
        match &seen.found {
            Found::Nothing => {}
            Found::Unknown { key } => {
                report.kind = "unknown";
                report.key = Some(key.clone());
            }
            Found::Semaphore { record, index } => {
                report.kind = "semaphore";
                report.key = Some(format!("{prefix}/.lock"));
                report.form = Some(match record.form() {
                    Form::List => "list",
                    Form::Map => "map",
                });
                report.limit = Some(record.limit);
                report.slots_taken = Some(record.taken());
                report.slots_free = Some(record.limit.saturating_sub(record.taken()));
                report.fencing_token = Some(*index);
                report.next = next.map(|one| one.participant.id.to_string());
            }
            Found::Lock { key, single } => {
                report.kind = "lock";
                report.key = Some(key.clone());
                report.fencing_token = Some(single.index);
                report.lock_index = Some(single.times_locked);
            }
            Found::Other { key, what } => {
                report.kind = "other";
                report.key = Some(key.clone());
                report.description = Some(what.clone());
            }
        }
        report
    }
}

impl Member {
    fn of(one: &Participant, wall: SystemTime) -> Self {
        let since = one.entry.as_ref().and_then(|entry| humantime::parse_rfc3339(&entry.since).ok());
        Self {
            row: Row::from(one.clone()),
            health: one.health,
            // Its clock may be ahead of ours.
            seconds: since.map(|since| wall.duration_since(since).map_or(0, |for_| for_.as_secs())),
            position: None,
            passed_over: None,
            together: one.entry.as_ref().map(|entry| entry.together.clone()).unwrap_or_default(),
        }
    }
}
