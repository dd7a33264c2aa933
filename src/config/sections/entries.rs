//! The entries of `semaphores` and `locks`, each by itself.

use std::time::Duration;

use crate::config::fields::Fields;
use crate::config::kinds::{DAY, Read, choice, duration, flag, number, text, wait};
use crate::status::Kind;
use slotkeeper_semaphore::{Form, LimitPolicy, MAX_LIMIT, OnLost, is_printable};

/// Bytes of a body. Each client that lists the semaphore reads it.
const MAX_BODY_BYTES: usize = 1024;

/// What a semaphore and a single-key lock have in common, which is all that a lock has.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Which of the two it is.
    pub kind: Kind,
    /// Metric label and URL segment.
    pub name: String,
    /// The prefix of a semaphore, or the key of a lock, without a slash at either end.
    pub key: String,
    /// Whether readiness waits for it; never with the mode `on_demand`.
    pub required: bool,
    /// When the slot is acquired, and by what.
    pub mode: Mode,
    /// How long to wait for it, zero tries once; none: for ever.
    pub wait: Option<Duration>,
    /// What the agent does after its loss.
    pub on_lost: OnLost,
    /// Text for operators in the contender key, or in the lock's value.
    pub body: Option<String>,
}

/// One semaphore.
#[derive(Clone, Debug, PartialEq)]
pub struct Semaphore {
    /// What it has in common with a lock.
    pub entry: Entry,
    /// The number of slots, at least 1.
    pub limit: u32,
    /// The number of slots for this workload: 1 to `limit`.
    pub slots: u32,
    /// Higher goes first.
    pub priority: i32,
    /// What the agent does if the stored limit differs.
    pub limit_policy: LimitPolicy,
    /// How long a dead holder keeps its slot before it is pruned.
    pub prune_delay: Duration,
    /// The format of a new `.lock`; a list if `slots` is above 1.
    pub format: Form,
}

/// When the slot is acquired, and by what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The agent acquires it at its start and holds it until it stops.
    Hold,
    /// The workload acquires and releases it through the control endpoints (`control.listen`). Readiness does not wait for it.
    OnDemand,
}

impl Entry {
    /// Whether readiness, and the command of `run`, need it.
    pub fn is_required(&self) -> bool {
        self.required && self.mode == Mode::Hold
    }

    /// The key of its path in Consul.
    pub(super) fn key_field(&self) -> &'static str {
        match self.kind {
            Kind::Semaphore => "prefix",
            Kind::Lock => "key",
        }
    }

    /// Reads a lock, or that part of a semaphore. `has_control`: whether there are control endpoints.
    pub(super) fn read(kind: Kind, has_control: bool, f: &mut Fields<'_>) -> Self {
        let (key_field, plain, example): (_, fn(&str) -> _, _) = match kind {
            Kind::Semaphore => ("prefix", plain_key, "service/warehouse/writers"),
            Kind::Lock => ("key", plain_lock_key, "service/nightly/leader"),
        };
        let name = f.need("name", "missing; write a name such as warehouse-writers", name);
        let missing = format!("missing; write its path in the key-value store, such as {example}");
        let key = f.need(key_field, missing, |value| {
            plain(&text(value)?).map_err(|wrong| format!("{wrong}, such as {example}"))
        });
        let required = f.get("required", flag);
        let mode = f.get("mode", choice(&[("hold", Mode::Hold), ("on_demand", Mode::OnDemand)]));
        let wait = f.get("wait", wait);
        let on_lost = f.get("on_lost", choice(&[("reacquire", OnLost::Reacquire), ("exit", OnLost::Exit)]));
        let mode = mode.unwrap_or(Mode::Hold);
        if mode == Mode::OnDemand {
            if !has_control {
                f.fault(
                    "mode",
                    "`on_demand` needs the control endpoints; set control.listen, or write `hold`",
                );
            }
            if required == Some(true) {
                f.fault(
                    "required",
                    "readiness cannot wait for a slot on demand; remove `required`, or write `mode: hold`",
                );
            }
            if wait.is_some() {
                f.warn(
                    "wait",
                    "has no effect with `on_demand`, where each request has its own wait; remove it",
                );
            }
            if on_lost.is_some() {
                f.warn(
                    "on_lost",
                    "has no effect with `on_demand`, where a lost slot is not acquired again; remove it",
                );
            }
        }
        Self {
            kind,
            name: name.unwrap_or_default(),
            key: key.unwrap_or_default(),
            required: mode == Mode::Hold && required != Some(false),
            mode,
            wait: wait.flatten(),
            on_lost: on_lost.unwrap_or(OnLost::Reacquire),
            body: f.get("body", body),
        }
    }
}

impl Semaphore {
    pub(super) fn read(has_control: bool, f: &mut Fields<'_>) -> Self {
        let entry = Entry::read(Kind::Semaphore, has_control, f);
        let limit = f.need("limit", "missing; write the number of slots, at least 1", number(1..=MAX_LIMIT));
        let slots = f.get("slots", number(1..=MAX_LIMIT)).unwrap_or(1);
        let format = f.get("format", choice(&[("list", Form::List), ("map", Form::Map)]));
        let format = format.unwrap_or(Form::List);
        if let Some(limit) = limit.filter(|limit| slots > *limit) {
            f.fault("slots", format!("{slots} is more than the limit, {limit}; write at most {limit}"));
        }
        // A map has each key once: it cannot express that one session has several slots.
        if slots > 1 && format == Form::Map {
            f.fault("format", "`map` allows one slot for each holder; write `list`, or `slots: 1`");
        }
        let policies =
            [("adopt", LimitPolicy::Adopt), ("set", LimitPolicy::Set), ("refuse", LimitPolicy::Refuse)];
        Self {
            entry,
            limit: limit.unwrap_or(slots),
            slots,
            priority: f.get("priority", number(i32::MIN..=i32::MAX)).unwrap_or(0),
            limit_policy: f.get("limit_policy", choice(&policies)).unwrap_or(LimitPolicy::Adopt),
            prune_delay: f.get("prune_delay", duration(Duration::ZERO..=DAY)).unwrap_or_default(),
            format,
        }
    }
}

/// A name is a metric label, a URL segment and, in capitals, part of a variable's name.
fn name(value: &serde_yaml::Value) -> Read<String> {
    const MAX_BYTES: usize = 63;
    let name = text(value)?;
    let valid_start = name.starts_with(|first: char| first.is_ascii_alphanumeric());
    let valid_rest = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'));
    if valid_start && valid_rest && name.len() <= MAX_BYTES {
        return Ok(name);
    }
    Err("cannot be a metric label and a URL segment; write at most 63 letters, digits, dots, dashes and underscores, a letter \
         or digit first"
        .to_owned())
}

fn body(value: &serde_yaml::Value) -> Read<String> {
    let body = text(value)?;
    if body.len() > MAX_BODY_BYTES {
        return Err(format!("has {} bytes; write at most {MAX_BODY_BYTES}", body.len()));
    }
    Ok(body)
}

/// A semaphore's prefix as it is written, without a slash at its end.
///
/// # Errors
///
/// What is wrong with the prefix, and what to write.
pub fn plain_key(written: &str) -> Result<String, &'static str> {
    let plain = plain_lock_key(written)?;
    if plain.rsplit('/').next() == Some(".lock") {
        return Err("ends in `.lock`, the key of a semaphore below its prefix; write the prefix alone");
    }
    Ok(plain)
}

/// A lock's key as it is written, without a slash at its end. It may be the key of `consul lock`: `<prefix>/.lock`.
fn plain_lock_key(written: &str) -> Result<String, &'static str> {
    const MAX_BYTES: usize = 400;
    let plain = written.trim_end_matches('/');
    if written.is_empty() {
        Err("is empty; write a path")
    } else if written.starts_with('/') {
        // Consul refuses such keys.
        Err("begins with a slash; write it without")
    } else if written.len() > MAX_BYTES {
        Err("has more than 400 bytes; write a shorter one")
    } else if written.trim() != written || plain.trim_end() != plain {
        // Consul 1.21.5 and newer: `invalid key name, leading/trailing spaces are not allowed`.
        Err("begins or ends with a blank, which Consul refuses from 1.21.5 on; write it without")
    } else if !written.chars().all(is_printable) {
        // Consul's HTTP server answers 400 without a reason, in all versions.
        Err("holds characters that cannot be printed, which Consul refuses; write a path")
    } else if plain.split('/').any(|segment| matches!(segment, "" | "." | "..")) {
        // Go's HTTP server redirects such a path to the cleaned one, which is another key. Consul 1.21.5 and newer refuse
        // a path that leaves the root: `invalid key name, path traversal is not allowed`.
        Err("has an empty, `.` or `..` segment, which Consul's HTTP server resolves; write a plain path")
    } else {
        Ok(plain.to_owned())
    }
}
