//! Columns and cells of participants, and words for them.

use std::time::Duration;

use super::session_ids::SessionIds;
use super::table::{Column, NONE, always, unless, wide};
use crate::duration;
use crate::escape::printable;
use crate::operator::{Inspection, Participant, word};
use slotkeeper_consul::Session;
use slotkeeper_semaphore::Identity;

/// The columns of participants with these headers. A header that is no property is that of their ids.
pub(super) fn columns<'a>(headers: &[&'static str], ids: &'a SessionIds<'_>) -> Vec<Column<'a, Participant>> {
    headers.iter().map(|header| column(header, ids)).collect()
}

fn column<'a>(header: &'static str, ids: &'a SessionIds<'_>) -> Column<'a, Participant> {
    fn of_session(one: &Participant, text: impl Fn(&Session) -> String) -> String {
        one.session.found.as_ref().map_or(NONE.into(), text)
    }
    type Cell = fn(&Participant) -> String;
    let plain = |cell: Cell| always(header, cell);
    let more = |cell: Cell| wide(header, cell);
    let rare = |usual, cell: Cell| unless(usual, header, cell);
    match header {
        "POSITION" => plain(|one| number(one.position)),
        "STATE" => plain(state),
        "SLOTS" => rare("1", |one| number(one.slots)),
        "PRIORITY" => rare("0", |one| number(one.priority)),
        "WHO" => plain(describe).flexible(),
        "AGE" => plain(|one| age(one.age_seconds)),
        "SLOT" => rare(NONE, |one| joined(&one.slot_indexes, ",")),
        "HEALTH" => plain(|one| word(&one.health)),
        "KEYS" => plain(|one| joined(&one.keys, " ")),
        "SINCE" => more(|one| cell(one.since.as_deref())),
        "NODE" => plain(|one| of_session(one, |session| cell(Some(&session.node)))),
        "TTL" => plain(|one| of_session(one, |session| session.ttl.map_or(NONE.into(), duration::age))),
        "BEHAVIOR" => more(|one| of_session(one, |session| word(&session.behavior))),
        "LOCK-DELAY" => {
            more(|one| of_session(one, |session| format!("{}s", session.lock_delay.as_secs_f64())))
        }
        "CHECKS" => more(|one| {
            of_session(one, |session| joined(session.node_checks.iter().chain(&session.service_checks), ","))
        }),
        _ => always(header, |one: &Participant| ids.cell(one.id())),
    }
}

/// The state of a participant.
pub(super) fn state(one: &Participant) -> String {
    word(&one.state)
}

/// The name of a participant's session.
pub(super) fn name(one: &Participant) -> String {
    match (&one.session.found, one.hidden) {
        (Some(session), _) => cell(Some(&session.name)),
        (None, true) => "unknown".into(),
        (None, false) => "no session".into(),
    }
}

/// The participant in words, from its key. A foreign client without a text is described by its session.
pub(super) fn describe(one: &Participant) -> String {
    let who = one.who.as_ref().and_then(Identity::in_words).unwrap_or(NONE.into());
    match (one.foreign, &one.body, &one.session.found, &one.evicted_by) {
        (Some(true), Some(body), ..) => format!("foreign client: {}", printable(body)),
        (Some(true), None, Some(Session { name, node, .. }), _) => {
            let name = if name.is_empty() { "a session without a name".into() } else { printable(name) };
            format!("foreign client: {name} on {}", printable(node))
        }
        (Some(true), None, None, _) => "foreign client".into(),
        (_, _, _, Some(by)) => format!("{who} (evicted by {})", printable(by)),
        (_, _, _, None) => who,
    }
}

/// The name of an identity in brackets, after another word.
pub(super) fn in_brackets(who: Option<&Identity>) -> String {
    who.and_then(Identity::in_words).map(|who| format!(" ({who})")).unwrap_or_default()
}

/// What Consul hides, and the rules that show it.
pub(super) fn hidden_rules(seen: &Inspection) -> impl Iterator<Item = String> {
    let keys = seen.hidden.keys.as_ref().map(|rule| {
        format!(
            "Consul hides keys below {}/ from the token: a holder whose key is hidden is `unknown`, and waiters may be \
             missing; the token needs {rule}",
            printable(&seen.prefix)
        )
    });
    let sessions = seen.hidden.sessions.as_ref().map(|rule| {
        let unknown = seen.all().filter(|one| one.hidden).count();
        format!(
            "Consul does not show {}: just ended, or hidden from the token; it needs {rule}",
            counted(unknown, "participant's session", "participants' sessions"),
        )
    });
    keys.into_iter().chain(sessions)
}

/// The cell of an age.
pub(super) fn age(seconds: Option<u64>) -> String {
    seconds.map_or(NONE.into(), |seconds| duration::age(Duration::from_secs(seconds)))
}

/// The cell of a number that may be unknown.
pub(super) fn number(number: Option<impl ToString>) -> String {
    number.map_or(NONE.into(), |number| number.to_string())
}

/// The cell of a list of untrusted texts.
fn joined<T: ToString>(texts: impl IntoIterator<Item = T>, separator: &str) -> String {
    let texts: Vec<_> = texts.into_iter().map(|text| printable(&text.to_string())).collect();
    if texts.is_empty() { NONE.into() } else { texts.join(separator) }
}

/// Untrusted text, escaped for a table cell.
pub(super) fn cell(text: Option<&str>) -> String {
    text.filter(|text| !text.is_empty()).map_or(NONE.into(), printable)
}

/// A number with its noun.
pub(super) fn counted(count: usize, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}
