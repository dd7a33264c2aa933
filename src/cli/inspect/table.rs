//! The tables of `inspect`.

use super::report::{Member, Report};
use crate::cli::row::{age, cell, counted, hidden_keys, state_in_words};
use crate::cli::session_ids::SessionIds;
use crate::cli::table::{Column, Layout, NONE, always, table, unless, wide};
use crate::cli::window;
use crate::escape::printable;
use crate::operator::Part;
use crate::status::RING_ADVICE;
use slotkeeper_consul::Behavior;

/// The most rows of a table.
const SHOWN: usize = 40;

/// The headline, tables and remarks; `hint` explains an empty result.
pub(super) fn of(report: &Report, hint: &str, layout: Layout) -> String {
    let wrap = |text: &str| window::wrap(text, layout.columns);
    let mut text = wrap(&headline(report, hint));
    let ids = SessionIds::of(report.members().map(|one| one.row.session.as_str()), layout.short_ids);
    for (columns, members) in [
        (holders(report, &ids), &report.holders),
        (queue(report, &ids), &report.queue),
        (others(&ids), &report.others),
    ] {
        if !members.is_empty() {
            text.push('\n');
            text.push_str(&table(&columns, &members[..members.len().min(SHOWN)], layout));
        }
        if members.len() > SHOWN {
            text.push_str(&format!("… and {} more; --output json has all\n", members.len() - SHOWN));
        }
    }
    let remarks = remarks(report);
    if !remarks.is_empty() {
        text.push('\n');
    }
    for remark in remarks {
        text.push_str(&wrap(&remark));
    }
    text
}

fn headline(report: &Report, hint: &str) -> String {
    let prefix = printable(&report.prefix);
    let key = report.key.as_deref().map(printable).unwrap_or_default();
    let index = report.modify_index.unwrap_or_default();
    match (report.limit, report.lock_index, &report.description) {
        (Some(limit), _, _) => {
            let taken = report.slots_taken.unwrap_or_default();
            let form = report.form.unwrap_or_default();
            format!("{prefix}: semaphore ({form}), {taken} of {limit} slots taken, ModifyIndex {index}\n")
        }
        (None, Some(lock_index), _) => {
            let state = if report.holders.is_empty() { "free" } else { "taken" };
            format!("{key}: lock, {state}, ModifyIndex {index}, LockIndex {lock_index}\n")
        }
        (None, None, Some(what)) => format!("{key}: neither semaphore nor lock: {what}\n"),
        (None, None, None) if report.kind == "unknown" => {
            format!("{prefix}: unknown: {key} is hidden from the token, or does not exist\n")
        }
        (None, None, None) => format!("{prefix}: no semaphore and no lock{hint}\n"),
    }
}

fn holders<'a>(report: &Report, ids: &'a SessionIds<'_>) -> Vec<Column<'a, Member>> {
    let usual = if report.kind == "lock" { "locked" } else { "held" };
    let mut columns = vec![
        always("HOLDER", |one: &Member| ids.cell(&one.row.session)),
        unless(usual, "STATE", state),
        unless("1", "SLOTS", |one: &Member| number(one.row.role.as_ref().and_then(|role| role.slots))),
        always("WHO", |one: &Member| one.row.describe()).flexible(),
        always("AGE", |one: &Member| age(one.row.role.as_ref().and_then(|role| role.age_seconds))),
        unless(NONE, "SLOT", slot_indexes),
        always("HEALTH", health),
    ];
    columns.extend(of_session());
    columns
}

fn queue<'a>(report: &'a Report, ids: &'a SessionIds<'_>) -> Vec<Column<'a, Member>> {
    let mut columns = vec![
        always("POSITION", |one: &Member| number(one.position)),
        always("WAITER", |one: &Member| ids.cell(&one.row.session)),
        unless("1", "SLOTS", |one: &Member| number(one.row.role.as_ref().and_then(|role| role.slots))),
        unless("0", "PRIORITY", |one: &Member| number(one.row.role.as_ref().and_then(|role| role.priority))),
        always("WHO", |one: &Member| one.row.describe()).flexible(),
        always("AGE", |one: &Member| age(one.row.role.as_ref().and_then(|role| role.age_seconds))),
        always("HEALTH", health),
        unless(NONE, "REMARK", |one: &Member| remark(report, one)),
    ];
    columns.extend(of_session());
    columns
}

fn others<'a>(ids: &'a SessionIds<'_>) -> Vec<Column<'a, Member>> {
    let keys = |one: &Member| {
        let keys: Vec<_> =
            one.row.role.iter().flat_map(|role| &role.keys).map(|key| printable(key)).collect();
        if keys.is_empty() { NONE.into() } else { keys.join(" ") }
    };
    let mut columns = vec![
        always("OTHER", |one: &Member| ids.cell(&one.row.session)),
        always("STATE", state),
        always("WHO", |one: &Member| one.row.describe()).flexible(),
        always("HEALTH", health),
        always("KEYS", keys),
    ];
    columns.extend(of_session());
    columns
}

/// What matters of the session.
fn of_session<'a>() -> [Column<'a, Member>; 4] {
    [
        wide("TTL", |one: &Member| cell(Some(&one.row.ttl))),
        wide("SINCE", |one: &Member| cell(one.row.role.as_ref().and_then(|role| role.since.as_deref()))),
        wide("BEHAVIOR", |one: &Member| one.row.behavior.map_or(NONE, Behavior::as_str).into()),
        wide("CHECKS", |one: &Member| one.row.checks()),
    ]
}

fn health(one: &Member) -> String {
    one.row.role.as_ref().map_or(NONE, |role| role.health.as_str()).into()
}

fn state(one: &Member) -> String {
    one.row.role.as_ref().map_or(NONE.into(), state_in_words)
}

fn slot_indexes(one: &Member) -> String {
    let indexes = one.row.role.iter().flat_map(|role| &role.slot_indexes);
    cell(Some(&indexes.map(u32::to_string).collect::<Vec<_>>().join(",")))
}

/// What is special about a waiter.
fn remark(report: &Report, one: &Member) -> String {
    let mut remarks = Vec::new();
    if report.next.as_ref() == Some(&one.row.session) {
        remarks.push("next".to_owned());
    }
    if one.passed_over == Some(true) {
        remarks.push("passed over: the semaphore cannot grant its slots".into());
    }
    if !one.together.is_empty() {
        let others = one.together.iter().filter(|prefix| **prefix != report.prefix);
        let others: Vec<_> = others.take(3).map(|prefix| printable(prefix)).collect();
        remarks.push(format!("together with {}", others.join(", ")));
    }
    if remarks.is_empty() { NONE.into() } else { remarks.join("; ") }
}

fn number(number: Option<impl ToString>) -> String {
    number.map_or(NONE.into(), |number| number.to_string())
}

/// Remarks below the tables.
fn remarks(report: &Report) -> Vec<String> {
    let mut remarks = Vec::new();
    let prefix = printable(&report.prefix);
    if let (Some(limit), Some(taken)) = (report.limit, report.slots_taken)
        && taken > limit
    {
        remarks.push(format!(
            "over the limit by {}: no slot is granted until fewer than {limit} are held",
            counted((taken - limit) as usize, "slot", "slots")
        ));
    }
    let is_dead = |one: &&Member| one.row.role.as_ref().is_some_and(|role| role.state == Part::Dead);
    let dead: Vec<_> = report.holders.iter().filter(is_dead).collect();
    if !dead.is_empty() {
        let slots: u32 = dead.iter().filter_map(|one| one.row.role.as_ref()?.slots).sum();
        remarks.push(format!(
            "{} dead, with {}: reclaimed by the next client after its prune_delay; at once: slotkeeper prune {prefix}",
            counted(dead.len(), "holder is", "holders are"),
            counted(slots as usize, "slot", "slots"),
        ));
    }
    if report.leftovers > 0 {
        remarks.push(format!(
            "{} left by ended sessions: removed by the next client, or slotkeeper prune {prefix}",
            counted(report.leftovers, "contender key is", "contender keys are"),
        ));
    }
    for ring in &report.rings {
        let who = |id: &str| {
            let known = report.members().find(|one| one.row.session == id);
            known.map_or_else(|| printable(id), |one| one.row.describe())
        };
        let other = printable(&ring.prefix);
        remarks.push(format!(
            "ring: {} holds a slot here and waits for {other}, {} holds a slot of {other} and waits here: {RING_ADVICE}",
            who(&ring.holder),
            who(&ring.waiter)
        ));
    }
    if let Some(rule) = &report.hidden.keys {
        remarks.push(hidden_keys(&report.prefix, rule));
    }
    if let Some(rule) = &report.hidden.sessions {
        let unknown = report.members().filter(|one| one.row.unknown).count();
        remarks.push(format!(
            "the {} not shown by Consul: it has just ended, or the token may not read it; it needs {rule}",
            if unknown == 1 { "session of 1 is".into() } else { format!("sessions of {unknown} are") },
        ));
    }
    remarks
}
