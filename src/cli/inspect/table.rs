//! The tables of `inspect`.

use crate::cli::cells::{columns, counted, describe, hidden_rules, state};
use crate::cli::session_ids::SessionIds;
use crate::cli::table::{Layout, NONE, table, unless};
use crate::cli::window;
use crate::escape::printable;
use crate::operator::{Found, Inspection, Participant, ParticipantState, word};
use crate::status::RING_ADVICE;

/// The most rows of a table.
const SHOWN: usize = 40;

/// The headline, tables and remarks.
pub(super) fn of(seen: &Inspection, layout: Layout) -> String {
    let wrap = |text: &str| window::wrap(text, layout.columns);
    let mut text = wrap(&headline(seen));
    let ids = SessionIds::of(seen.all().map(Participant::id), layout.short_ids);
    let usual = if matches!(seen.found, Found::Lock { .. }) { "locked" } else { "held" };
    let mut holders = columns(&["HOLDER", "SLOTS", "WHO", "AGE", "SLOT", "HEALTH", "SINCE"], &ids);
    holders.insert(1, unless(usual, "STATE", state));
    let headers = ["POSITION", "WAITER", "SLOTS", "PRIORITY", "WHO", "AGE", "HEALTH", "SINCE"];
    let mut queue = columns(&headers, &ids);
    queue.insert(7, unless(NONE, "REMARK", |one: &Participant| remark(seen, one)));
    let others = columns(&["OTHER", "STATE", "WHO", "HEALTH", "KEYS"], &ids);
    for (columns, rows) in [(holders, &seen.holders), (queue, &seen.queue), (others, &seen.others)] {
        if !rows.is_empty() {
            text.push('\n');
            text.push_str(&table(&columns, &rows[..rows.len().min(SHOWN)], layout));
        }
        if rows.len() > SHOWN {
            text.push_str(&format!("… and {} more; --output json has all\n", rows.len() - SHOWN));
        }
    }
    let remarks = remarks(seen);
    if !remarks.is_empty() {
        text.push('\n');
    }
    remarks.iter().for_each(|remark| text.push_str(&wrap(remark)));
    text
}

fn headline(seen: &Inspection) -> String {
    let prefix = printable(&seen.prefix);
    match &seen.found {
        Found::Semaphore { form, limit, slots_taken, modify_index, .. } => {
            let form = word(form);
            format!(
                "{prefix}: semaphore ({form}), {slots_taken} of {limit} slots taken, ModifyIndex {modify_index}"
            )
        }
        Found::Lock { key, modify_index, lock_index } => {
            let state = if seen.holders.is_empty() { "free" } else { "taken" };
            format!("{}: lock, {state}, ModifyIndex {modify_index}, LockIndex {lock_index}", printable(key))
        }
        Found::Other { key, description } => {
            format!("{}: neither semaphore nor lock: {description}", printable(key))
        }
        Found::Unknown { key } => {
            format!("{prefix}: unknown: {} is hidden from the token, or does not exist", printable(key))
        }
        Found::Nothing => format!("{prefix}: no semaphore and no lock{}", seen.hint),
    }
}

/// What is special about a waiter.
fn remark(seen: &Inspection, one: &Participant) -> String {
    let mut remarks = Vec::new();
    if seen.next.as_deref() == Some(one.id()) {
        remarks.push("next".to_owned());
    }
    if one.passed_over == Some(true) {
        remarks.push("passed over: the semaphore cannot grant its slots".into());
    }
    if one.asked {
        remarks.push("asked for a sign of life".into());
    }
    if !one.together.is_empty() {
        let others = one.together.iter().filter(|prefix| **prefix != seen.prefix);
        let others: Vec<_> = others.take(3).map(|prefix| printable(prefix)).collect();
        remarks.push(format!("together with {}", others.join(", ")));
    }
    if remarks.is_empty() { NONE.into() } else { remarks.join("; ") }
}

/// Remarks below the tables.
fn remarks(seen: &Inspection) -> Vec<String> {
    let mut remarks = Vec::new();
    let prefix = printable(&seen.prefix);
    if let Found::Semaphore { limit, slots_taken, .. } = &seen.found
        && slots_taken > limit
    {
        remarks.push(format!(
            "over the limit by {}: no slot is granted until fewer than {limit} are held",
            counted((slots_taken - limit) as usize, "slot", "slots")
        ));
    }
    let dead = || seen.holders.iter().filter(|one| one.state == ParticipantState::Dead);
    if dead().next().is_some() {
        let slots: u32 = dead().filter_map(|one| one.slots).sum();
        remarks.push(format!(
            "{} dead, with {}: reclaimed by the next client after its prune_delay; at once: slotkeeper prune {prefix}",
            counted(dead().count(), "holder is", "holders are"),
            counted(slots as usize, "slot", "slots"),
        ));
    }
    if seen.leftovers > 0 {
        remarks.push(format!(
            "{} left by ended sessions: removed by the next client, or slotkeeper prune {prefix}",
            counted(seen.leftovers, "contender key is", "contender keys are"),
        ));
    }
    for ring in &seen.rings {
        let who = |id: &str| seen.all().find(|one| one.id() == id).map_or_else(|| printable(id), describe);
        let other = printable(&ring.prefix);
        remarks.push(format!(
            "ring: {} holds a slot here and waits for {other}, {} holds a slot of {other} and waits here: {RING_ADVICE}",
            who(&ring.holder),
            who(&ring.waiter)
        ));
    }
    remarks.extend(hidden_rules(seen));
    remarks
}
