//! The sections `semaphores` and `locks`: each entry by itself.

use std::borrow::Cow;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer};

use crate::config::findings::Findings;
use crate::config::path::FieldPath;
use crate::config::scalar::{DurationString, Text};
use crate::config::value::{self, DAY};
use crate::duration;
use crate::status::Kind;
use slotkeeper_semaphore::{MAX_LIMIT, is_printable};

/// Entries in one list. Each has a metric label and several long polls.
pub(super) const MAX_ENTRIES: usize = 256;
/// Bytes of a body. Each client that lists the semaphore reads it.
const MAX_BODY_BYTES: usize = 1024;

/// A semaphore to hold slots of.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct RawSemaphore {
    /// Unique. The label of its metrics and the last part of its URL.
    #[schemars(required, regex(pattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"))]
    pub(super) name: Option<String>,
    /// Its path in Consul's key-value store, for the keys `<prefix>/.lock` and `<prefix>/<session>`. No leading slash, no blank
    /// at either end.
    #[schemars(required, length(min = 1, max = 400))]
    pub(super) prefix: Option<String>,
    /// The number of slots, for all users of the semaphore together.
    #[schemars(required, range(min = 1, max = 5000))]
    pub(super) limit: Option<i64>,
    /// The number of slots for this workload, at most the limit. More than 1 needs the format `list`.
    #[schemars(range(min = 1, max = 5000), extend("default" = 1))]
    pub(super) slots: Option<i64>,
    /// Higher goes first; equal priority is first come, first served.
    #[schemars(range(min = -2_147_483_648_i64, max = 2_147_483_647), extend("default" = 0))]
    pub(super) priority: Option<i64>,
    /// Whether readiness waits for it; never with the mode `on_demand`.
    #[schemars(extend("default" = true))]
    pub(super) required: Option<bool>,
    /// `hold`: acquired at the start and kept. `on_demand`: the workload acquires and releases slots through the control
    /// endpoints.
    #[schemars(extend("default" = "hold"))]
    pub(super) mode: Option<Mode>,
    /// How long to wait for the slot: `forever`, or a duration; `0s` tries once. With the mode `on_demand` each request has its
    /// own wait.
    #[schemars(extend("default" = "forever"))]
    pub(super) wait: Option<Wait>,
    /// What the agent does after a lost slot. No effect with the mode `on_demand`.
    #[schemars(extend("default" = "reacquire"))]
    pub(super) on_lost: Option<OnLost>,
    /// What the agent does if the limit stored in Consul differs from `limit`.
    #[schemars(extend("default" = "adopt"))]
    limit_policy: Option<LimitPolicy>,
    /// How long a dead holder keeps its slot before it is pruned, at most 24h.
    #[schemars(extend("default" = "0s"))]
    pub(super) prune_delay: Option<DurationString>,
    /// The format of a new `.lock`.
    #[schemars(extend("default" = "list"))]
    pub(super) format: Option<Format>,
    /// Text for operators in the contender key, at most 1024 bytes.
    #[schemars(length(max = 1024))]
    pub(super) body: Option<String>,
}

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
    /// How long to wait for it.
    pub wait: Wait,
    /// What the agent does after its loss.
    pub on_lost: OnLost,
    /// Text for operators in the contender key, or in the lock's value.
    pub body: Option<String>,
}

impl Entry {
    /// Whether readiness, and the command of `run`, need it.
    pub fn is_required(&self) -> bool {
        self.required && self.mode == Mode::Hold
    }
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
    /// The format of a new `.lock`; `List` if `slots` is above 1.
    pub format: Format,
}

/// A single-key lock to hold.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct RawLock {
    /// Unique among locks and semaphores. The label of its metrics and the last part of its URL.
    #[schemars(required, regex(pattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"))]
    pub(super) name: Option<String>,
    /// The key in Consul's key-value store. No leading slash, no blank at either end.
    #[schemars(required, length(min = 1, max = 400))]
    pub(super) key: Option<String>,
    /// Whether readiness waits for it; never with the mode `on_demand`.
    #[schemars(extend("default" = true))]
    pub(super) required: Option<bool>,
    /// `hold`: acquired at the start and kept. `on_demand`: the workload acquires and releases the lock through the control
    /// endpoints.
    #[schemars(extend("default" = "hold"))]
    pub(super) mode: Option<Mode>,
    /// How long to wait for the lock: `forever`, or a duration; `0s` tries once. With the mode `on_demand` each request has its
    /// own wait.
    #[schemars(extend("default" = "forever"))]
    pub(super) wait: Option<Wait>,
    /// What the agent does after a lost lock. No effect with the mode `on_demand`.
    #[schemars(extend("default" = "reacquire"))]
    pub(super) on_lost: Option<OnLost>,
    /// Text for operators in the lock's value, at most 1024 bytes.
    #[schemars(length(max = 1024))]
    pub(super) body: Option<String>,
}

/// How long to wait for a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// Without a limit.
    #[default]
    Forever,
    /// At most this long; zero tries once.
    AtMost(Duration),
}

impl<'de> Deserialize<'de> for Wait {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let read = |text: &str| match text {
            "forever" => Ok(Self::Forever),
            bounded => duration::parse(bounded).map(Self::AtMost).map_err(|error| match error {
                duration::Error::Malformed(_) => format!("{error}, or `forever`"),
                duration::Error::NoUnit(_) | duration::Error::TooLong(_) => error.to_string(),
            }),
        };
        deserializer.deserialize_any(Text { what: "`forever` or a duration such as 30s", read })
    }
}

impl JsonSchema for Wait {
    fn schema_name() -> Cow<'static, str> {
        "Wait".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let pattern = duration::PATTERN.replacen('^', "^(forever|", 1).replacen('$', ")$", 1);
        json_schema!({ "type": "string", "pattern": pattern })
    }
}

/// When the slot is acquired, and by what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The agent acquires it at its start and holds it until it stops.
    #[default]
    Hold,
    /// The workload acquires and releases it through the control endpoints (`control.listen`). Readiness does not wait for it.
    OnDemand,
}

/// What the agent does after a lost slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnLost {
    /// The agent enqueues again.
    #[default]
    Reacquire,
    /// The agent drains and exits with 80.
    Exit,
}

/// What the agent does if the limit stored in Consul differs from the configured one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LimitPolicy {
    /// The agent uses the stored limit. It logs a warning and exports the difference.
    #[default]
    Adopt,
    /// The agent stores the configured limit.
    Set,
    /// The agent is blocked: it acquires no slot.
    Refuse,
}

/// The format of a new `.lock`. An existing one keeps its format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// The semaphore guide's format: holders as a list.
    #[default]
    List,
    /// The format of Consul's own Go API and of `consul lock`: holders as a map. It cannot express that one holder has several
    /// slots.
    Map,
}

pub(super) fn semaphores(raw: Vec<Option<RawSemaphore>>, findings: &mut Findings) -> Vec<Semaphore> {
    entries(raw, "semaphores", semaphore, findings)
}

pub(super) fn locks(raw: Vec<Option<RawLock>>, findings: &mut Findings) -> Vec<Entry> {
    entries(raw, "locks", lock, findings)
}

fn entries<R, C>(
    raw: Vec<Option<R>>,
    list: &str,
    check: impl Fn(R, &FieldPath, &mut Findings) -> Option<C>,
    findings: &mut Findings,
) -> Vec<C> {
    let list = FieldPath::of(list);
    if raw.len() > MAX_ENTRIES {
        findings.fault(&list, format!("has {} entries; write at most {MAX_ENTRIES}", raw.len()));
    }
    let mut checked = Vec::new();
    for (index, entry) in raw.into_iter().take(MAX_ENTRIES).enumerate() {
        let at = list.index(index);
        match entry {
            Some(entry) => checked.extend(check(entry, &at, findings)),
            None => findings.fault(&at, "is empty; write the entry or remove the dash"),
        }
    }
    checked
}

/// One semaphore; none if a key that it needs is missing or wrong.
fn semaphore(raw: RawSemaphore, at: &FieldPath, findings: &mut Findings) -> Option<Semaphore> {
    let RawSemaphore {
        name: written_name,
        prefix,
        limit: written_limit,
        slots: written_slots,
        priority,
        required,
        mode,
        wait,
        on_lost,
        limit_policy,
        prune_delay,
        format,
        body: written_body,
    } = raw;
    let name = name(written_name, &at.key("name"), findings);
    let prefix = key(prefix, "service/warehouse/writers", plain_key, &at.key("prefix"), findings);
    let limit = limit(written_limit, &at.key("limit"), findings);
    let format = format.unwrap_or_default();
    let slots = slots(written_slots, limit, format, at, findings);
    let priority = priority.unwrap_or(0);
    let priority = value::number(priority, i32::MIN..=i32::MAX, &at.key("priority"), findings);
    let prune_at = at.key("prune_delay");
    let prune_delay = value::duration(prune_delay, Duration::ZERO, Duration::ZERO..=DAY, &prune_at, findings);
    let body = body(written_body, &at.key("body"), findings);
    Some(Semaphore {
        entry: Entry {
            kind: Kind::Semaphore,
            name: name?,
            key: prefix?,
            required: is_required(mode, required),
            mode: mode.unwrap_or_default(),
            wait: wait.unwrap_or_default(),
            on_lost: on_lost.unwrap_or_default(),
            body,
        },
        limit: limit?,
        slots: slots?,
        priority: priority?,
        limit_policy: limit_policy.unwrap_or_default(),
        prune_delay,
        format,
    })
}

/// One lock; none if a key that it needs is missing or wrong.
fn lock(raw: RawLock, at: &FieldPath, findings: &mut Findings) -> Option<Entry> {
    let RawLock { name: written_name, key: written_key, required, mode, wait, on_lost, body: written_body } =
        raw;
    let name = name(written_name, &at.key("name"), findings);
    let key = key(written_key, "service/nightly/leader", plain_lock_key, &at.key("key"), findings);
    let body = body(written_body, &at.key("body"), findings);
    Some(Entry {
        kind: Kind::Lock,
        name: name?,
        key: key?,
        required: is_required(mode, required),
        mode: mode.unwrap_or_default(),
        wait: wait.unwrap_or_default(),
        on_lost: on_lost.unwrap_or_default(),
        body,
    })
}

/// Readiness never waits for a slot on demand, since no client may ever request it.
pub(super) fn is_required(mode: Option<Mode>, required: Option<bool>) -> bool {
    mode != Some(Mode::OnDemand) && required != Some(false)
}

fn limit(limit: Option<i64>, at: &FieldPath, findings: &mut Findings) -> Option<u32> {
    let Some(limit) = limit else {
        findings.fault(at, "missing; write the number of slots, at least 1");
        return None;
    };
    value::number(limit, 1..=MAX_LIMIT, at, findings)
}

fn slots(
    slots: Option<i64>,
    limit: Option<u32>,
    format: Format,
    at: &FieldPath,
    findings: &mut Findings,
) -> Option<u32> {
    let slots_at = at.key("slots");
    let slots = value::number(slots.unwrap_or(1), 1..=MAX_LIMIT, &slots_at, findings)?;
    if let Some(limit) = limit.filter(|limit| slots > *limit) {
        findings.fault(&slots_at, format!("{slots} is more than the limit, {limit}; write at most {limit}"));
    }
    // A map has each key once: it cannot express that one session has several slots.
    if slots > 1 && format == Format::Map {
        findings
            .fault(&at.key("format"), "`map` allows one slot for each holder; write `list`, or `slots: 1`");
    }
    Some(slots)
}

/// A name is a metric label, a URL segment and, in capitals, part of a variable's name.
fn name(name: Option<String>, at: &FieldPath, findings: &mut Findings) -> Option<String> {
    const MAX_BYTES: usize = 63;
    let Some(name) = name else {
        findings.fault(at, "missing; write a name such as warehouse-writers");
        return None;
    };
    let valid_start = name.starts_with(|first: char| first.is_ascii_alphanumeric());
    let valid_rest = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'));
    if !valid_start || !valid_rest || name.len() > MAX_BYTES {
        findings.fault(
            at,
            "cannot be a metric label and a URL segment; write at most 63 letters, digits, dots, dashes and \
             underscores, a letter or digit first",
        );
    }
    Some(name)
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
        findings.fault(at, format!("missing; write its path in the key-value store, such as {example}"));
        return None;
    };
    plain(&key).map_err(|wrong| findings.fault(at, format!("{wrong}, such as {example}"))).ok()
}

fn wrong_with_key(key: &str) -> Option<&'static str> {
    const MAX_BYTES: usize = 400;
    let segments = || key.trim_end_matches('/').split('/');
    if key.is_empty() {
        Some("is empty; write a path")
    } else if key.starts_with('/') {
        // Consul refuses such keys.
        Some("begins with a slash; write it without")
    } else if key.len() > MAX_BYTES {
        Some("has more than 400 bytes; write a shorter one")
    } else if key.trim() != key || key.trim_end_matches('/').trim_end() != key.trim_end_matches('/') {
        // Consul 1.21.5 and newer: `invalid key name, leading/trailing spaces are not allowed`.
        Some("begins or ends with a blank, which Consul refuses from 1.21.5 on; write it without")
    } else if !key.chars().all(is_printable) {
        // Consul's HTTP server answers 400 without a reason, in all versions.
        Some("holds characters that cannot be printed, which Consul refuses; write a path")
    } else if segments().any(|segment| matches!(segment, "" | "." | "..")) {
        // Go's HTTP server redirects such a path to the cleaned one, which is another key. Consul 1.21.5 and newer refuse
        // a path that leaves the root: `invalid key name, path traversal is not allowed`.
        Some("has an empty, `.` or `..` segment, which Consul's HTTP server resolves; write a plain path")
    } else {
        None
    }
}

fn body(body: Option<String>, at: &FieldPath, findings: &mut Findings) -> Option<String> {
    let body = body?;
    if body.len() > MAX_BODY_BYTES {
        findings.fault(at, format!("has {} bytes; write at most {MAX_BODY_BYTES}", body.len()));
    }
    Some(body)
}
