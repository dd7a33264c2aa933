//! The entries of `semaphores` and `locks`, each by itself.

use std::time::Duration;

use super::{DAY, value};
use crate::config::checked::{Lock, Semaphore};
use crate::config::choice::{Format, Mode};
use crate::config::findings::Findings;
use crate::config::path::FieldPath;
use crate::config::raw;
use slotkeeper_semaphore::{Acquisition, Form, is_printable};

/// Entries in one list; each is a metric label and several long polls.
pub(super) const MOST_ENTRIES: usize = 256;
/// Slots of one semaphore: as many as the transaction that takes the last one can list, in 512 KiB.
pub const MOST_SLOTS: u32 = 10_000;
/// Bytes of a body. Everybody who lists the semaphore is sent it.
const LONGEST_BODY: usize = 1024;

pub(super) fn semaphores(raw: Vec<Option<raw::Semaphore>>, findings: &mut Findings) -> Vec<Semaphore> {
    entries(raw, "semaphores", semaphore, findings)
}

pub(super) fn locks(raw: Vec<Option<raw::Lock>>, findings: &mut Findings) -> Vec<Lock> {
    entries(raw, "locks", lock, findings)
}

fn entries<R, C>(
    raw: Vec<Option<R>>,
    list: &str,
    check: impl Fn(R, &FieldPath, &mut Findings) -> Option<C>,
    findings: &mut Findings,
) -> Vec<C> {
    let list = FieldPath::of(list);
    if raw.len() > MOST_ENTRIES {
        findings.fault(&list, format!("has {} entries; write at most {MOST_ENTRIES}", raw.len()));
    }
    let mut checked = Vec::new();
    for (index, entry) in raw.into_iter().take(MOST_ENTRIES).enumerate() {
        let at = list.index(index);
        match entry {
            Some(entry) => checked.extend(check(entry, &at, findings)),
            None => findings.fault(&at, "is empty; write the entry or remove the dash"),
        }
    }
    checked
}

/// One semaphore; none where what makes it one is missing or wrong.
fn semaphore(raw: raw::Semaphore, at: &FieldPath, findings: &mut Findings) -> Option<Semaphore> {
    let name = name(raw.name, &at.key("name"), findings);
    let prefix = key(raw.prefix, "service/warehouse/writers", plain_key, &at.key("prefix"), findings);
    let limit = limit(raw.limit, &at.key("limit"), findings);
    let format = raw.format.unwrap_or_default();
    let slots = slots(raw.slots, limit, format, at, findings);
    let priority = raw.priority.unwrap_or(0);
    let priority = value::number(priority, i32::MIN..=i32::MAX, &at.key("priority"), findings);
    let prune_at = at.key("prune_delay");
    let prune_delay =
        value::duration(raw.prune_delay, Duration::ZERO, Duration::ZERO..=DAY, &prune_at, findings);
    let body = body(raw.body, &at.key("body"), findings);
    if let (Some(limit), Some(slots)) = (limit, slots) {
        let form = match format {
            Format::List => Form::List,
            Format::Map => Form::Map,
        };
        let prefix = prefix.as_deref().unwrap_or_default();
        let acquisition = Acquisition::configured(form, prefix, body.as_deref(), &[]);
        fits_into_a_transaction(acquisition, limit, slots, at, findings);
    }
    Some(Semaphore {
        name: name?,
        prefix: prefix?,
        limit: limit?,
        slots: slots?,
        priority: priority?,
        required: is_required(raw.mode, raw.required),
        mode: raw.mode.unwrap_or_default(),
        wait: raw.wait.unwrap_or_default(),
        on_lost: raw.on_lost.unwrap_or_default(),
        limit_policy: raw.limit_policy.unwrap_or_default(),
        prune_delay,
        format,
        body,
    })
}

/// One lock; none where what makes it one is missing or wrong.
fn lock(raw: raw::Lock, at: &FieldPath, findings: &mut Findings) -> Option<Lock> {
    let name = name(raw.name, &at.key("name"), findings);
    let key = key(raw.key, "service/nightly/leader", plain_lock_key, &at.key("key"), findings);
    let body = body(raw.body, &at.key("body"), findings);
    Some(Lock {
        name: name?,
        key: key?,
        required: is_required(raw.mode, raw.required),
        mode: raw.mode.unwrap_or_default(),
        wait: raw.wait.unwrap_or_default(),
        on_lost: raw.on_lost.unwrap_or_default(),
        body,
    })
}

/// Readiness cannot wait for what nobody may ever ask for.
pub(super) fn is_required(mode: Option<Mode>, required: Option<bool>) -> bool {
    mode != Some(Mode::OnDemand) && required != Some(false)
}

fn limit(limit: Option<i64>, at: &FieldPath, findings: &mut Findings) -> Option<u32> {
    let Some(limit) = limit else {
        findings.fault(at, "missing; write how many slots there are, at least 1");
        return None;
    };
    value::number(limit, 1..=MOST_SLOTS, at, findings)
}

fn slots(
    slots: Option<i64>,
    limit: Option<u32>,
    format: Format,
    at: &FieldPath,
    findings: &mut Findings,
) -> Option<u32> {
    let slots_at = at.key("slots");
    let slots = value::number(slots.unwrap_or(1), 1..=MOST_SLOTS, &slots_at, findings)?;
    if let Some(limit) = limit.filter(|limit| slots > *limit) {
        findings.fault(&slots_at, format!("{slots} is more than the limit, {limit}; write at most {limit}"));
    }
    // A map has a key once: it cannot say that one session has several slots.
    if slots > 1 && format == Format::Map {
        findings.fault(
            &at.key("format"),
            "`map` cannot hold more than one slot a holder; write `list`, or 1 slot",
        );
    }
    Some(slots)
}

/// Consul refuses a transaction of more than 512 KiB, as which slots are acquired.
fn fits_into_a_transaction(
    acquisition: Acquisition,
    limit: u32,
    slots: u32,
    at: &FieldPath,
    findings: &mut Findings,
) {
    let largest = acquisition.max_limit();
    if limit > largest {
        findings.fault(
            &at.key("limit"),
            format!(
                "{limit} is more than Consul takes in one transaction with this `format`, `prefix` and `body`; write at \
                 most {largest}"
            ),
        );
    }
    if !acquisition.fits(slots) {
        let most = acquisition.max_slots();
        findings.fault(
            &at.key("slots"),
            format!("{slots} are more than Consul takes in one transaction, so that they could never be acquired; write at most {most}"),
        );
    }
}

/// Metric label, URL segment and, in capitals, part of a variable's name.
fn name(name: Option<String>, at: &FieldPath, findings: &mut Findings) -> Option<String> {
    const LONGEST: usize = 63;
    let Some(name) = name else {
        findings.fault(at, "missing; write a name such as warehouse-writers");
        return None;
    };
    let starts_well = name.starts_with(|first: char| first.is_ascii_alphanumeric());
    let goes_on_well = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'));
    if !starts_well || !goes_on_well || name.len() > LONGEST {
        findings.fault(
            at,
            "cannot be a metric label and a URL segment; write at most 63 letters, digits, dots, dashes and \
             underscores, a letter or digit first",
        );
    }
    Some(name)
}

/// A key or prefix in Consul's store as it is written, without the slash it may end in.
///
/// # Errors
///
/// What is wrong with it, and what to write.
pub fn plain_key(written: &str) -> Result<String, &'static str> {
    let plain = plain_lock_key(written)?;
    if plain.rsplit('/').next() == Some(".lock") {
        return Err(
            "ends in `.lock`, the key that a semaphore keeps below its prefix; write the prefix alone",
        );
    }
    Ok(plain)
}

/// The same of a lock's key, which may be one that `consul lock` takes: `<prefix>/.lock`.
fn plain_lock_key(written: &str) -> Result<String, &'static str> {
    wrong_with_key(written).map_or_else(|| Ok(written.trim_end_matches('/').to_owned()), Err)
}

fn key(
    key: Option<String>,
    example: &str,
    plain: fn(&str) -> Result<String, &'static str>,
    at: &FieldPath,
    findings: &mut Findings,
) -> Option<String> {
    let Some(key) = key else {
        findings.fault(at, format!("missing; write where it is in the key-value store, such as {example}"));
        return None;
    };
    plain(&key).map_err(|wrong| findings.fault(at, format!("{wrong}, such as {example}"))).ok()
}

fn wrong_with_key(key: &str) -> Option<&'static str> {
    const LONGEST: usize = 400;
    let segments = || key.trim_end_matches('/').split('/');
    if key.is_empty() {
        Some("is empty; write a path")
    } else if key.starts_with('/') {
        // The server refuses such keys.
        Some("begins with a slash; write it without")
    } else if key.len() > LONGEST {
        Some("has more than 400 bytes; write a shorter one")
    } else if key.trim() != key || key.trim_end_matches('/').trim_end() != key.trim_end_matches('/') {
        // Consul 1.21.5 and newer: `invalid key name, leading/trailing spaces are not allowed`.
        Some("begins or ends with a blank, which Consul refuses from 1.21.5 on; write it without")
    } else if !key.chars().all(is_printable) {
        // Consul's HTTP server answers 400 without a word, in all versions.
        Some("holds characters that cannot be printed, which Consul refuses; write a path")
    } else if segments().any(|segment| matches!(segment, "" | "." | "..")) {
        // Go's HTTP server redirects such a path to the cleaned one, which is another key, and Consul 1.21.5 and newer
        // refuse one that leads out of the root: `invalid key name, path traversal is not allowed`.
        Some("has an empty, `.` or `..` segment, which Consul's HTTP server resolves; write a plain path")
    } else {
        None
    }
}

fn body(body: Option<String>, at: &FieldPath, findings: &mut Findings) -> Option<String> {
    let body = body?;
    if body.len() > LONGEST_BODY {
        findings.fault(at, format!("has {} bytes; write at most {LONGEST_BODY}", body.len()));
    }
    Some(body)
}
