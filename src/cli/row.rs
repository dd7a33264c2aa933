//! A session and its role at a prefix, as JSON and in words for tables.

use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::table::NONE;
use crate::duration;
use crate::escape::printable;
use crate::operator::{Participant, Role};
use slotkeeper_consul::{Behavior, Session};
use slotkeeper_semaphore::{Identity, SessionId, View};

/// One session as JSON. A field that is `None` is `null`. No field is omitted, except those of a participant.
#[derive(Debug, Default, Serialize)]
pub(super) struct Row {
    pub(super) session: String,
    /// Whether Consul has such a session and shows it. If not, all of the following are `null`.
    pub(super) found: bool,
    pub(super) name: Option<String>,
    pub(super) node: Option<String>,
    pub(super) ttl_seconds: Option<f64>,
    pub(super) behavior: Option<Behavior>,
    pub(super) lock_delay_seconds: Option<f64>,
    pub(super) node_checks: Option<Vec<String>>,
    pub(super) service_checks: Option<Vec<String>>,
    pub(super) create_index: Option<u64>,
    #[serde(flatten)]
    pub(super) role: Option<Role>,
    /// The TTL as its creator wrote it.
    #[serde(skip)]
    pub(super) ttl: String,
    /// Whether the session may exist and be hidden from the token.
    #[serde(skip)]
    pub(super) unknown: bool,
}

impl From<Session> for Row {
    fn from(session: Session) -> Self {
        let ttl = slotkeeper_consul_dev::duration::parse(&session.ttl)
            .ok()
            .and_then(|nanos| u64::try_from(nanos).ok());
        let ttl = ttl.filter(|nanos| *nanos > 0).map(Duration::from_nanos);
        Self {
            session: session.id,
            found: true,
            name: Some(session.name),
            node: Some(session.node),
            ttl_seconds: ttl.map(|ttl| ttl.as_secs_f64()),
            behavior: Some(session.behavior),
            lock_delay_seconds: Some(session.lock_delay.as_secs_f64()),
            node_checks: Some(session.node_checks),
            service_checks: Some(session.service_checks),
            create_index: Some(session.create_index),
            role: None,
            ttl: if ttl.is_some() { session.ttl } else { String::new() },
            unknown: false,
        }
    }
}

impl From<Participant> for Row {
    fn from(one: Participant) -> Self {
        let row = one.session.map(Self::from).unwrap_or_default();
        let unknown = one.hidden;
        Self { session: one.id.as_str().to_owned(), role: Some(one.role), unknown, ..row }
    }
}

impl Row {
    /// The row with the participant's age at that time.
    pub(super) fn at(self, now: SystemTime) -> Self {
        Self { role: self.role.map(|role| role.at(now)), ..self }
    }

    /// The participant in words. A foreign client without a text is described by its session.
    pub(super) fn describe(&self) -> String {
        let Some(role) = &self.role else { return NONE.into() };
        match (&self.name, &self.node) {
            (Some(name), Some(node)) if role.foreign == Some(true) && role.body.is_none() => {
                let name = if name.is_empty() { "a session without a name".into() } else { printable(name) };
                format!("{}: {name} on {}", describe(role), printable(node))
            }
            _ => describe(role),
        }
    }

    pub(super) fn checks(&self) -> String {
        let checks: Vec<_> =
            self.node_checks.iter().chain(&self.service_checks).flatten().map(String::as_str).collect();
        cell(Some(&checks.join(",")))
    }
}

/// The participant in words, from its key.
pub(super) fn describe(role: &Role) -> String {
    if role.foreign == Some(true) {
        return role
            .body
            .as_deref()
            .map_or("foreign client".into(), |body| format!("foreign client: {}", printable(body)));
    }
    let who = role.who.as_ref().and_then(Identity::in_words).unwrap_or(NONE.into());
    match &role.evicted_by {
        Some(by) => format!("{who} (evicted by {})", printable(by)),
        None => who,
    }
}

/// The state for a table.
pub(super) fn state_in_words(role: &Role) -> String {
    role.state.name().replace('_', " ")
}

/// A participant that acquired slots by a change.
#[derive(Debug, Serialize)]
pub(super) struct NewHolder {
    session: String,
    /// Its slots; `null` for a lock.
    slots: Option<u32>,
    slot_indexes: Vec<u32>,
    who: Option<Identity>,
}

impl NewHolder {
    /// The holders after a change that were not holders before.
    pub(super) fn all(before: &View, after: &View) -> Vec<Self> {
        let listed = after.record().map(|record| record.holders.as_slice()).unwrap_or_default();
        let owner = after.single().and_then(|single| single.owner.as_ref());
        let mut came: Vec<&SessionId> = Vec::new();
        for holder in listed.iter().chain(owner) {
            if !holds(before, holder) && !came.contains(&holder) {
                came.push(holder);
            }
        }
        let new_holder = |session: &SessionId| {
            let who = |view: &View| view.entry_of(session).map(|entry| entry.who.clone());
            Self {
                session: session.to_string(),
                slots: after.record().map(|record| record.slots_of(session)),
                slot_indexes: after.entry_of(session).map(|entry| entry.indexes.clone()).unwrap_or_default(),
                // A new holder from the handoff list has not written its key yet; its waiting entry describes it.
                who: [after, before].into_iter().filter_map(who).find(|who| *who != Identity::default()),
            }
        };
        came.into_iter().map(new_holder).collect()
    }

    /// The holder in words.
    pub(super) fn describe(&self) -> String {
        let who = self.who.as_ref().and_then(Identity::in_words);
        let who = who.map(|who| format!(" ({who})")).unwrap_or_default();
        format!("{}{who}", printable(&self.session))
    }

    /// Their number in words.
    pub(super) fn counted(new: &[Self]) -> String {
        match new.len() {
            0 => "no slot was granted".into(),
            some => format!("slots were granted to {}", counted(some, "waiter", "waiters")),
        }
    }
}

/// Whether the session is listed as a holder, or holds the lock.
pub(super) fn holds(view: &View, session: &SessionId) -> bool {
    view.is_owner(session) || view.record().is_some_and(|record| record.slots_of(session) > 0)
}

/// The remark about a prefix below which keys are hidden; `rule` shows them.
pub(super) fn hidden_keys(prefix: &str, rule: &str) -> String {
    format!(
        "Consul hides keys below {}/ from the token: a holder whose key is hidden is `unknown`, and waiters may be missing; \
         the token needs {rule}",
        printable(prefix)
    )
}

/// Untrusted text, escaped for a table cell.
pub(super) fn cell(text: Option<&str>) -> String {
    text.filter(|text| !text.is_empty()).map_or(NONE.into(), printable)
}

/// Seconds since a participant's own time stamp; `None` if there is none that can be read.
pub(super) fn seconds_since(since: Option<&str>, wall: SystemTime) -> Option<u64> {
    let since = humantime::parse_rfc3339(since?).ok()?;
    // Its clock may be ahead of this one.
    Some(wall.duration_since(since).map_or(0, |time| time.as_secs()))
}

/// The cell of an age.
pub(super) fn age(seconds: Option<u64>) -> String {
    seconds.map_or(NONE.into(), |seconds| duration::age(Duration::from_secs(seconds)))
}

/// A number with its noun.
pub(super) fn counted(count: usize, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}
