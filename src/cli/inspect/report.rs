//! The JSON of `inspect`.

use std::time::SystemTime;

use serde::Serialize;

use crate::cli::row::Row;
use crate::clock;
use crate::operator::rings::Ring;
use crate::operator::{Found, Hidden, Inspection, Participant, Waiter};
use crate::schema_version::SchemaVersion;
use slotkeeper_semaphore::Form;

/// What was found at a prefix. No field is ever omitted.
#[derive(Debug, Serialize)]
pub(in crate::cli) struct Report {
    pub(super) schema_version: SchemaVersion,
    pub(super) prefix: String,
    /// `semaphore`, `lock`, `other`, `nothing`, `unknown`.
    pub(super) kind: &'static str,
    /// The key that coordinates the clients.
    pub(super) key: Option<String>,
    /// The content of the key, if the kind is `other`.
    pub(super) description: Option<String>,
    /// `list` or `map`.
    pub(super) form: Option<&'static str>,
    pub(super) limit: Option<u32>,
    pub(super) slots_taken: Option<u32>,
    pub(super) slots_free: Option<u32>,
    /// The index of the key's last change: no fencing token is larger.
    pub(super) modify_index: Option<u64>,
    /// A lock's number of acquisitions.
    pub(super) lock_index: Option<u64>,
    /// The session of the waiter that is next.
    pub(super) next: Option<String>,
    pub(super) holders: Vec<Member>,
    pub(super) queue: Vec<Member>,
    pub(super) others: Vec<Member>,
    /// Contender keys of ended sessions.
    pub(super) leftovers: usize,
    /// What is hidden from the token, by the rules that show it.
    pub(super) hidden: Hidden,
    /// Two clients that each wait for a slot of the other, here and at another prefix of the same folder.
    pub(super) rings: Vec<Ring>,
    /// Time of the read, in UTC.
    pub(super) seen_at: String,
}

/// A participant.
#[derive(Debug, Serialize)]
pub(in crate::cli) struct Member {
    #[serde(flatten)]
    pub(super) row: Row,
    /// Its position in the queue, from 1.
    pub(super) position: Option<usize>,
    /// Of a waiter, whether it needs more slots than the limit.
    pub(super) passed_over: Option<bool>,
    /// The prefixes of its acquire group.
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
            // Hidden waiters may be ahead.
            position: seen.hidden.keys.is_none().then_some(place + 1),
            passed_over: Some(!one.is_served),
            ..member(&one.participant)
        };
        let next = seen.queue.iter().find(|one| one.is_served && seen.hidden.keys.is_none());
        let mut report = Self {
            schema_version: SchemaVersion::default(),
            prefix: prefix.to_owned(),
            kind: "nothing",
            key: None,
            description: None,
            form: None,
            limit: None,
            slots_taken: None,
            slots_free: None,
            modify_index: None,
            lock_index: None,
            next: None,
            holders: seen.holders.iter().map(member).collect(),
            queue: seen.queue.iter().enumerate().map(waiter).collect(),
            others: seen.others.iter().map(member).collect(),
            leftovers: seen.leftovers,
            hidden: seen.hidden.clone(),
            rings: seen.rings.clone(),
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
                report.modify_index = Some(*index);
                report.next = next.map(|one| one.participant.id.to_string());
            }
            Found::Lock { key, single } => {
                report.kind = "lock";
                report.key = Some(key.clone());
                report.modify_index = Some(single.index);
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

impl Report {
    /// All participants.
    pub(super) fn members(&self) -> impl Iterator<Item = &Member> {
        self.holders.iter().chain(&self.queue).chain(&self.others)
    }
}

impl Member {
    fn of(one: &Participant, wall: SystemTime) -> Self {
        Self {
            row: Row::from(one.clone()).at(wall),
            position: None,
            passed_over: None,
            together: one.together.clone(),
        }
    }
}
