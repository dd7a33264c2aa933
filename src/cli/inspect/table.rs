//! The tables of `inspect`.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::time::Duration;

use tabwriter::TabWriter;

use super::report::{Member, Report};
use crate::cli::row::{NONE, cell, counted, hidden_keys, state_in_words, text_of};
use crate::cli::window;
use crate::escape::printable;
use crate::operator::Part;
use crate::progress;
use slotkeeper_consul::Behavior;

/// The most rows of a table.
const SHOWN: usize = 40;

/// Characters of an abbreviated session, if no other session begins with them; `evict` accepts them.
const OF_SESSION: usize = 8;

/// The layout of the tables.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    /// Whether sessions may be abbreviated.
    pub(super) short: bool,
    /// Columns for sentences. Tables are not wrapped.
    pub(super) columns: usize,
}

/// The headline, tables and remarks; `hint` explains an empty result.
pub(super) fn of(report: &Report, hint: &str, look: Look) -> io::Result<String> {
    let wrap = |text: &str| window::wrap(text, look.columns);
    let mut text = wrap(&headline(report, hint));
    let names = Names::of(report, look.short);
    for table in [holders(report, &names)?, queue(report, &names)?, others(report, &names)?] {
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
        text.push_str(&wrap(&remark));
    }
    Ok(text)
}

/// The sessions' names in the tables.
struct Names<'a> {
    /// All sessions in order, if they may be abbreviated: those with the same first characters are neighbours.
    all: Option<BTreeSet<&'a str>>,
}

impl<'a> Names<'a> {
    fn of(report: &'a Report, short: bool) -> Self {
        let all = report.holders.iter().chain(&report.queue).chain(&report.others);
        Self { all: short.then(|| all.map(|one| one.row.session.as_str()).collect()) }
    }

    fn of_one(&self, one: &Member) -> String {
        let whole = one.row.session.as_str();
        let begin: String = whole.chars().take(OF_SESSION).collect();
        let is_alone = |all: &BTreeSet<&str>| {
            let alike = all.range(begin.as_str()..).take_while(|other| other.starts_with(&begin));
            alike.count() == 1
        };
        let shown = if self.all.as_ref().is_some_and(is_alone) { &begin } else { whole };
        cell(Some(shown))
    }
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

fn holders(report: &Report, names: &Names<'_>) -> io::Result<String> {
    let header = "HOLDER\tSTATE\tSLOTS\tWHO\tHEALTH\tFOR\tTTL\tSLOT\tSINCE\tBEHAVIOR\tCHECKS";
    let write = |table: &mut TabWriter<Vec<u8>>, one: &Member| {
        let Some(role) = &one.row.role else { return Ok(()) };
        let indexes: Vec<_> = role.slot_indexes.iter().map(u32::to_string).collect();
        writeln!(
            table,
            "{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}",
            names.of_one(one),
            role.state.name(),
            number(role.slots),
            who(one),
            for_(one),
            cell(Some(&one.row.ttl)),
            cell(Some(&indexes.join(","))),
            cell(role.since.as_deref()),
            behavior(one),
            one.row.checks(),
        )
    };
    rows(header, &report.holders, write)
}

fn queue(report: &Report, names: &Names<'_>) -> io::Result<String> {
    let header = "WAITER\tPOSITION\tSLOTS\tPRIORITY\tWHO\tHEALTH\tFOR\tTTL\tREMARK\tSINCE\tBEHAVIOR\tCHECKS";
    let write = |table: &mut TabWriter<Vec<u8>>, one: &Member| {
        let Some(role) = &one.row.role else { return Ok(()) };
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
        writeln!(
            table,
            "{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}",
            names.of_one(one),
            number(one.position),
            number(role.slots),
            number(role.priority),
            who(one),
            for_(one),
            cell(Some(&one.row.ttl)),
            if remarks.is_empty() { NONE.into() } else { remarks.join("; ") },
            cell(role.since.as_deref()),
            behavior(one),
            one.row.checks(),
        )
    };
    rows(header, &report.queue, write)
}

fn others(report: &Report, names: &Names<'_>) -> io::Result<String> {
    let write = |table: &mut TabWriter<Vec<u8>>, one: &Member| {
        let Some(role) = &one.row.role else { return Ok(()) };
        let state = state_in_words(role);
        let keys: Vec<_> = role.keys.iter().map(|key| printable(key)).collect();
        writeln!(
            table,
            "{}\t{state}\t{}\t{}\t{}\t{}\t{}",
            names.of_one(one),
            who(one),
            cell(Some(&one.row.ttl)),
            cell(Some(&keys.join(" "))),
            behavior(one),
            one.row.checks(),
        )
    };
    rows("OTHER\tSTATE\tWHO\tHEALTH\tTTL\tKEYS\tBEHAVIOR\tCHECKS", &report.others, write)
}

/// The columns WHO and HEALTH, before longer ones, since a window cuts rows at their ends.
fn who(one: &Member) -> String {
    let health = one.row.role.as_ref().map_or(NONE, |role| role.health.as_str());
    format!("{}\t{health}", one.row.describe())
}

/// How long the participant has held or waited.
fn for_(one: &Member) -> String {
    let age = one.row.role.as_ref().and_then(|role| role.age_seconds);
    age.map_or(NONE.into(), |seconds| progress::time(Duration::from_secs(seconds)))
}

fn behavior(one: &Member) -> &'static str {
    one.row.behavior.map_or(NONE, Behavior::as_str)
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
    if let Some(rule) = &report.hidden.keys {
        remarks.push(hidden_keys(&report.prefix, rule));
    }
    if let Some(rule) = &report.hidden.sessions {
        let members = report.holders.iter().chain(&report.queue).chain(&report.others);
        let unknown = members.filter(|one| one.row.unknown).count();
        remarks.push(format!(
            "the {} not shown by Consul: it has just ended, or the token may not read it; it needs {rule}",
            if unknown == 1 { "session of 1 is".into() } else { format!("sessions of {unknown} are") },
        ));
    }
    remarks
}
