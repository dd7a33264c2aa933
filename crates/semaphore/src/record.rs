//! The value of `<prefix>/.lock`: the limit and the holders, in the two formats that clients write.
//!
//! Format `list` is the semaphore guide's, format `map` that of Consul's Go API and `consul lock -n`. A record is rewritten in the format,
//! the spelling and with the foreign fields it was found with.

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use thiserror::Error;

use super::{SessionId, printable};

/// Flags that Consul's Go API puts on every key of its semaphores (`api/semaphore.go`). Larger than an `i64`.
pub const SEMAPHORE_FLAGS: u64 = 0xe0f6_9a2b_aa41_4de0;

/// Flags that Consul's Go API puts on a single-key lock (`api/lock.go`), which `consul lock -n 1 P` takes at `P/.lock`.
pub const LOCK_FLAGS: u64 = 0x2ddc_cbc0_58a5_0c18;

/// The maximum size of a record in bytes: Consul's default limit of a value. Decoded, a byte may take a hundred.
const MAX_RECORD_BYTES: usize = 512 * 1024;

/// The field of the hints.
const HINTS: &str = "slotkeeper";

/// How the holders are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// `"Holders":["<session>",…]`, flags 0: the guide's format. A session with k slots is listed k times.
    List,
    /// `"Holders":{"<session>":true,…}`, flags [`SEMAPHORE_FLAGS`]: the Go API's format. One slot a session.
    Map,
}

impl Form {
    /// The flags that a new semaphore of this form carries on all of its keys.
    pub fn flags(self) -> u64 {
        if self == Self::Map { SEMAPHORE_FLAGS } else { 0 }
    }
}

/// Why a value of `.lock` is no semaphore and is not changed. The texts say what was found.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotASemaphore {
    /// The flags of a single-key lock.
    #[error("it carries the flags of a single-key lock (`consul lock -n 1` makes one there)")]
    SingleKeyLock,
    /// More than a record can need.
    #[error("it has {bytes} bytes, more than any semaphore's record")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// No JSON object.
    #[error("it is not a JSON object but {found}")]
    NotAnObject {
        /// The beginning of the value, made safe to print.
        found: String,
    },
    /// A needed field is missing.
    #[error("it is a JSON object without the field {field}")]
    Missing {
        /// `Limit` or `Holders`.
        field: &'static str,
    },
    /// A needed field occurs twice in different spellings.
    #[error("it has the field {field} twice, in different spellings")]
    Twice {
        /// `Limit` or `Holders`.
        field: &'static str,
    },
    /// The limit is not written as a whole number from 0 to 2³²−1.
    #[error(
        "its Limit is {found}, not a whole number from 0 to 4294967295, written without a point or an exponent"
    )]
    BadLimit {
        /// The value found, made safe to print.
        found: String,
    },
    /// The holders are neither a list nor a map of session ids.
    #[error("its Holders are {found}, neither a list of session ids nor a map of them")]
    BadHolders {
        /// The value found, made safe to print.
        found: String,
    },
}

/// The decoded value of `.lock`.
///
/// The encoded value keeps the format, the spelling, the field order and the foreign fields of the decoded one.
///
/// ```
/// use slotkeeper_semaphore::{Form, Record};
///
/// let record = Record::decode(br#"{"limit":2,"Holders":["3f8a"],"team":"a"}"#, 0)?;
/// assert_eq!((record.limit, record.taken(), record.form()), (2, 1, Form::List));
/// assert_eq!(record.encode(), br#"{"limit":2,"Holders":["3f8a"],"team":"a"}"#);
/// # Ok::<(), slotkeeper_semaphore::NotASemaphore>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The number of slots.
    pub limit: u32,
    /// The holders' sessions, in the record's order. In the format `list` a session is listed once for each slot. A session whose offer
    /// is not accepted yet is a holder too.
    pub holders: Vec<SessionId>,
    /// What slotkeeper clients keep for each other. `None`: a foreign client wrote the record, or takes part.
    pub hints: Option<Hints>,
    form: Form,
    flags: u64,
    /// The object as found, without what is decoded: keeps foreign fields, spellings and order.
    object: Object,
}

/// What slotkeeper clients keep in `.lock` for each other, in the field `slotkeeper`. It names the holders by a hash, so that a write of
/// a client that does not know the field makes it invalid, whether that client drops the field or keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Hints {
    /// Where they are stored, the hash of what they are about; else 0.
    pub(crate) of: u32,
    /// The index of the record that this one replaces, so that no two writes are equal: Consul keeps the index of a key whose value stays
    /// the same.
    pub(crate) after: u64,
    /// The slot index of each holder, in the order of the holders.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub indexes: Vec<u32>,
    /// The handoff list: the first waiters in order, each once for each slot that it wants. A client that releases its slots offers them to
    /// these without a listing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub next: Vec<SessionId>,
    /// The number of waiters, those of the handoff list among them, when the keys were listed last, less those that were offered a slot
    /// since. While it is not 0, each release serves a waiter, so that a newcomer has nothing to do but to wait.
    #[serde(skip_serializing_if = "is_zero")]
    pub waiting: u32,
    /// The lowest priority in the handoff list.
    #[serde(skip_serializing_if = "is_zero")]
    pub least: i32,
}

/// A JSON object with its values as they are written: a number in a foreign field may be larger or more exact than any type
/// here. Of a duplicate name the last value counts, at the first position.
type Object = IndexMap<String, String>;

impl Record {
    /// A record that is not stored yet.
    pub fn new(form: Form, limit: u32) -> Self {
        let (holders, hints, object) = (Vec::new(), Some(Hints::default()), Object::new());
        Self { limit, holders, hints, form, flags: form.flags(), object }
    }

    /// Decodes the value and flags found under `.lock`. `Holders: null` is empty; field names count in any case, as
    /// they do for Go's decoder.
    ///
    /// # Errors
    ///
    /// [`NotASemaphore`] for anything that is not certainly a semaphore's record. Such a value is not changed.
    pub fn decode(value: &[u8], flags: u64) -> Result<Self, NotASemaphore> {
        if flags == LOCK_FLAGS {
            return Err(NotASemaphore::SingleKeyLock);
        }
        if value.len() > MAX_RECORD_BYTES {
            return Err(NotASemaphore::TooLarge { bytes: value.len() });
        }
        let Ok(raw) = serde_json::from_slice::<IndexMap<String, Box<RawValue>>>(value) else {
            return Err(NotASemaphore::NotAnObject { found: excerpt(&String::from_utf8_lossy(value)) });
        };
        let mut object: Object =
            raw.into_iter().map(|(name, value)| (name, value.get().to_owned())).collect();
        let limit = field(&object, "Limit")?.1;
        let limit = limit.parse().map_err(|_| NotASemaphore::BadLimit { found: excerpt(limit) })?;
        let (form, holders) = decode_holders(field(&object, "Holders")?.1, flags)?;
        let hash = hash(limit, &holders);
        let hints = object.get(HINTS).and_then(|hints| decode_hints(hints, hash, holders.len()));
        // What is decoded keeps its place alone, so that hundreds of holders are not in memory twice.
        let own = object.iter_mut().filter(|(name, _)| {
            name.eq_ignore_ascii_case("Limit") || name.eq_ignore_ascii_case("Holders") || *name == HINTS
        });
        own.for_each(|(_, value)| *value = String::new());
        Ok(Self { limit, holders, hints, form, flags, object })
    }

    /// The record as JSON, in the form, spelling and field order it was found with.
    pub fn encode(&self) -> Vec<u8> {
        let mut object = self.object.clone();
        let holders = match self.form {
            Form::List => self.holders.iter().map(|id| Value::from(id.as_str())).collect(),
            Form::Map => Value::Object(
                self.holders.iter().map(|id| (id.as_str().to_owned(), Value::Bool(true))).collect(),
            ),
        };
        for (name, value) in [("Limit", Value::from(self.limit)), ("Holders", holders)] {
            let name = field(&object, name).map_or(name, |(found, _)| found).to_owned();
            object.insert(name, value.to_string());
        }
        // A map loses its order, so the hash is that of the holders in the order in which they are read.
        let of = hash(self.limit, &self.holders);
        let hints = self.hints.clone().map(|hints| Hints { of, ..hints });
        // Numbers and texts always serialise.
        match hints.and_then(|hints| serde_json::to_string(&hints).ok()) {
            Some(hints) => object.insert(HINTS.to_owned(), hints),
            None => object.shift_remove(HINTS),
        };
        let written = |(name, value)| format!("{}:{value}", Value::String(name));
        let fields: Vec<_> = object.into_iter().map(written).collect();
        format!("{{{}}}", fields.join(",")).into_bytes()
    }

    /// The record as the one that replaces the one of this index.
    pub(crate) fn after(mut self, index: u64) -> Self {
        if let Some(hints) = &mut self.hints {
            hints.after = index;
        }
        self
    }

    /// Whether the two say the same.
    pub(crate) fn agrees(&self, other: &Self) -> bool {
        let after = |record: &Self| record.hints.as_ref().map_or(0, |hints| hints.after);
        *self == other.clone().after(after(self))
    }

    /// The slot indexes of a session, as far as they are known.
    pub fn indexes_of(&self, session: &SessionId) -> Vec<u32> {
        let Some(hints) = &self.hints else { return Vec::new() };
        let own = self.holders.iter().zip(&hints.indexes).filter(|(holder, _)| *holder == session);
        own.map(|(_, index)| *index).collect()
    }

    /// The slots that no holder has.
    pub fn free(&self) -> u32 {
        self.limit.saturating_sub(self.taken())
    }

    /// The handoff list; empty without hints.
    pub fn next(&self) -> &[SessionId] {
        self.hints.as_ref().map(|hints| hints.next.as_slice()).unwrap_or_default()
    }

    /// Whether each release serves a waiter: some wait, and `.lock` says so.
    pub fn is_attended(&self) -> bool {
        self.hints.as_ref().is_some_and(|hints| hints.waiting > 0)
    }

    /// How the holders are written.
    pub fn form(&self) -> Form {
        self.form
    }

    /// The flags that the key carries and keeps.
    pub fn flags(&self) -> u64 {
        self.flags
    }

    /// The number of slots that `session` has.
    pub fn slots_of(&self, session: &SessionId) -> u32 {
        count(self.holders.iter().filter(|holder| *holder == session).count())
    }

    /// Slots taken by all holders.
    pub fn taken(&self) -> u32 {
        count(self.holders.len())
    }
}

/// The one field of that name in any case, with its spelling.
fn field<'a>(object: &'a Object, name: &'static str) -> Result<(&'a str, &'a str), NotASemaphore> {
    let mut found = object.iter().filter(|(key, _)| key.eq_ignore_ascii_case(name));
    let (key, value) = found.next().ok_or(NotASemaphore::Missing { field: name })?;
    match found.next() {
        None => Ok((key, value)),
        Some(_) => Err(NotASemaphore::Twice { field: name }),
    }
}

/// A number of slots or clients.
pub(super) fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

fn decode_holders(value: &str, flags: u64) -> Result<(Form, Vec<SessionId>), NotASemaphore> {
    let bad = || NotASemaphore::BadHolders { found: excerpt(value) };
    match &serde_json::from_str(value).map_err(|_| bad())? {
        // Only the flags tell the form of an empty record.
        Value::Null => Ok((if flags == SEMAPHORE_FLAGS { Form::Map } else { Form::List }, Vec::new())),
        Value::Array(items) => {
            let ids = items.iter().map(|item| item.as_str().filter(|id| !id.is_empty()).map(SessionId::from));
            Ok((Form::List, ids.collect::<Option<_>>().ok_or_else(bad)?))
        }
        // Go counts a holder by its presence and never looks at the value.
        Value::Object(map) if !map.contains_key("") => {
            Ok((Form::Map, map.keys().map(SessionId::from).collect()))
        }
        Value::Object(_) | Value::Bool(_) | Value::Number(_) | Value::String(_) => Err(bad()),
    }
}

fn is_zero<T: Default + PartialEq>(number: &T) -> bool {
    *number == T::default()
}

/// Hints that are not about these holders count as none.
fn decode_hints(value: &str, hash: u32, holders: usize) -> Option<Hints> {
    // A field may occur twice in a value, which the hints themselves would not let pass.
    let value: Value = serde_json::from_str(value).ok()?;
    let hints: Hints = serde_json::from_value(value).ok()?;
    (hints.of == hash && hints.indexes.len() == holders).then_some(Hints { of: 0, ..hints })
}

/// The FNV-1a hash of what slotkeeper wrote beside the hints.
fn hash(limit: u32, holders: &[SessionId]) -> u32 {
    let holders = holders.iter().flat_map(|holder| holder.as_str().bytes().chain([b' ']));
    let bytes = limit.to_be_bytes().into_iter().chain(holders);
    bytes.fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// The beginning of a foreign text, made safe to print.
pub(super) fn excerpt(text: &str) -> String {
    format!("`{}`", printable(text, 60))
}

#[cfg(test)]
mod tests;
