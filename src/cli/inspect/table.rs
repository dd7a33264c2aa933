//! What `inspect` found, for people.

use std::io::{self, Write};
use std::time::Duration;

use tabwriter::TabWriter;

use super::report::{Member, Report};
use crate::cli::printable;
use crate::cli::row::{NONE, cell, counted, text_of};
use crate::consul::Behavior;
use crate::operator::Health;
use crate::progress;

/// Rows of a table that are shown.
const SHOWN: usize = 40;

/// The whole picture; `hint` says why nothing may have been found.
pub(super) fn of(report: &Report, hint: &str) -> io::Result<String> {
    let mut text = headline(report, hint);
    for table in [holders(report)?, queue(report)?, others(report)?] {
        if !table.is_empty() {
            text.push('\n');
            text.push_str(&table);
        }
    }
    let remarks = remarks(report);
    if !remarks.is_empty() {
        text.push('\n');
    }
    for remark in remarks {
        text.push_str(&remark);
        text.push('\n');
    }
    Ok(text)
}

fn headline(report: &Report, hint: &str) -> String {
    let prefix = printable(&report.prefix);
    let key = report.key.as_deref().map(printable).unwrap_or_default();
    let token = report.fencing_token.unwrap_or_default();
    match (report.limit, report.lock_index, &report.description) {
        (Some(limit), _, _) => {
            let taken = report.slots_taken.unwrap_or_default();
            let form = report.form.unwrap_or_default();
            format!("{prefix}: semaphore ({form}), {taken} of {limit} slots taken, fencing token {token}\n")
        }
        (None, Some(lock_index), _) => {
            let state = if report.holders.is_empty() { "free" } else { "taken" };
            format!("{key}: lock, {state}, fencing token {token}, LockIndex {lock_index}\n")
        }
        (None, None, Some(what)) => format!("{key}: neither semaphore nor lock: {what}\n"),
        (None, None, None) => format!("{prefix}: no semaphore and no lock{hint}\n"),
    }
}

fn holders(report: &Report) -> io::Result<String> {
    let header = "HOLDER\tSTATE\tSLOTS\tINDEX\tSINCE\tFOR\tWHO\tHEALTH\tTTL\tBEHAVIOR\tCHECKS";
    let write = |table: &mut TabWriter<Vec<u8>>, one: &Member| {
        let Some(part) = &one.row.part else { return Ok(()) };
        let indexes: Vec<_> = part.slot_indexes.iter().map(u32::to_string).collect();
        writeln!(
            table,
            "{}\t{}\t{}\t{}\t{}\t{}\t{}",
            cell(Some(&one.row.session)),
            part.state,
            number(part.slots),
            cell(Some(&indexes.join(","))),
            cell(part.since.as_deref()),
            one.seconds.map_or(NONE.into(), |seconds| progress::time(Duration::from_secs(seconds))),
            last(one, &one.row.describe()),
        )
    };
    rows(header, &report.holders, write)
}

fn queue(report: &Report) -> io::Result<String> {
    let header = "WAITER\tPOSITION\tSLOTS\tPRIORITY\tSINCE\tFOR\tWHO\tHEALTH\tTTL\tBEHAVIOR\tCHECKS\tREMARK";
    let write = |table: &mut TabWriter<Vec<u8>>, one: &Member| {
        let Some(part) = &one.row.part else { return Ok(()) };
        let mut remarks = Vec::new();
        if report.next.as_ref() == Some(&one.row.session) {
            remarks.push("next".to_owned());
        }
        if one.passed_over == Some(true) {
            remarks.push("passed over: wants what the semaphore cannot give".into());
        }
        if !one.together.is_empty() {
            let others = one.together.iter().filter(|prefix| **prefix != report.prefix);
            let others: Vec<_> = others.take(3).map(|prefix| printable(prefix)).collect();
            remarks.push(format!("together with {}", others.join(", ")));
        }
        writeln!(
            table,
            "{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}",
            cell(Some(&one.row.session)),
            number(one.position),
            number(part.slots),
            number(part.priority),
            cell(part.since.as_deref()),
            one.seconds.map_or(NONE.into(), |seconds| progress::time(Duration::from_secs(seconds))),
            last(one, &one.row.describe()),
            if remarks.is_empty() { NONE.into() } else { remarks.join("; ") },
        )
    };
    rows(header, &report.queue, write)
}

fn others(report: &Report) -> io::Result<String> {
    let write = |table: &mut TabWriter<Vec<u8>>, one: &Member| {
        let Some(part) = &one.row.part else { return Ok(()) };
        let state = part.state_in_words();
        let keys: Vec<_> = part.keys.iter().map(|key| printable(key)).collect();
        writeln!(
            table,
            "{}\t{state}\t{}\t{}",
            cell(Some(&one.row.session)),
            cell(Some(&keys.join(" "))),
            last(one, &one.row.describe()),
        )
    };
    rows("BESIDE\tSTATE\tKEYS\tWHO\tHEALTH\tTTL\tBEHAVIOR\tCHECKS", &report.others, write)
}

/// The columns that all tables have: who it is, and its session.
fn last(one: &Member, who: &str) -> String {
    let behavior = one.row.behavior.map_or(NONE, Behavior::as_str);
    let (health, ttl) = (one.health.name(), cell(Some(&one.row.ttl)));
    format!("{who}\t{health}\t{ttl}\t{behavior}\t{}", one.row.checks())
}

fn number(number: Option<impl ToString>) -> String {
    number.map_or(NONE.into(), |number| number.to_string())
}

fn rows(
    header: &str,
    members: &[Member],
    write: impl Fn(&mut TabWriter<Vec<u8>>, &Member) -> io::Result<()>,
) -> io::Result<String> {
    if members.is_empty() {
        return Ok(String::new());
    }
    let mut table = TabWriter::new(Vec::new()).padding(2);
    writeln!(table, "{header}")?;
    for member in members.iter().take(SHOWN) {
        write(&mut table, member)?;
    }
    let mut text = text_of(table)?;
    if members.len() > SHOWN {
        text.push_str(&format!("… and {} more; --json has all\n", members.len() - SHOWN));
    }
    Ok(text)
}

/// What people should know about what they see.
fn remarks(report: &Report) -> Vec<String> {
    let mut remarks = Vec::new();
    let prefix = printable(&report.prefix);
    if let (Some(limit), Some(taken)) = (report.limit, report.slots_taken)
        && taken > limit
    {
        remarks.push(format!(
            "{} than the limit has: none is given on until fewer than {limit} are held",
            counted((taken - limit) as usize, "slot more is held", "slots more are held")
        ));
    }
    let is_dead = |one: &&Member| one.row.part.as_ref().is_some_and(|part| part.state == "dead");
    let dead: Vec<_> = report.holders.iter().filter(is_dead).collect();
    if !dead.is_empty() {
        let slots: u32 = dead.iter().filter_map(|one| one.row.part.as_ref()?.slots).sum();
        remarks.push(format!(
            "{} dead, with {}: given on by whoever acts next, after its prune_delay; at once: slotkeeper prune {prefix}",
            counted(dead.len(), "holder is", "holders are"),
            counted(slots as usize, "slot", "slots"),
        ));
    }
    if report.leftovers > 0 {
        remarks.push(format!(
            "{} left by ended sessions: swept up by whoever acts next, or slotkeeper prune {prefix}",
            counted(report.leftovers, "entry is", "entries are"),
        ));
    }
    let everybody = report.holders.iter().chain(&report.queue).chain(&report.others);
    let locks = |one: &&Member| one.row.part.as_ref().is_some_and(|part| !part.keys.is_empty());
    let unknown = everybody.filter(locks).filter(|one| one.health == Health::Unknown).count();
    if unknown > 0 {
        remarks.push(format!(
            "the {} not shown by Consul: it has just ended, or the token may not read it; \
             it needs `session_prefix \"\" {{ policy = \"read\" }}`",
            if unknown == 1 { "session of 1 is".into() } else { format!("sessions of {unknown} are") },
        ));
    }
    remarks
}
