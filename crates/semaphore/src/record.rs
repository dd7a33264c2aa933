//! The value of `<prefix>/.lock`: the limit and the holders, in the two formats that clients write.
//!
//! Format `list` is the semaphore guide's, format `map` that of Consul's Go API and `consul lock -n`. A record is rewritten in the format,
//! the spelling and with the foreign fields it was found with.

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write};

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use thiserror::Error;

use super::{Identity, SessionId, printable, size};
use next_who::short_id;

mod next_who;

/// Flags that Consul's Go API puts on every key of its semaphores (`api/semaphore.go`). Larger than an `i64`.
pub const SEMAPHORE_FLAGS: u64 = 0xe0f6_9a2b_aa41_4de0;

/// Flags that Consul's Go API puts on a single-key lock (`api/lock.go`), which `consul lock -n 1 P` takes at `P/.lock`.
pub const LOCK_FLAGS: u64 = 0x2ddc_cbc0_58a5_0c18;

/// The maximum size of a record in bytes: Consul's default limit of a value. Decoded, a byte may take a hundred.
const MAX_RECORD_BYTES: usize = 512 * 1024;

/// The field of the hint.
const NEXT: &str = "Next";

/// The field with the identities of the waiters in the hint.
const NEXT_WHO: &str = "NextWho";
/// The most waiters of the handoff list that are named. Each costs some 45 bytes of every read of `.lock`, and those behind are
/// named when the list is written again, before their turn, unless a crowd of slots changes hands at once.
const MAX_NAMED: usize = 8;

/// Marks at the end of the value: only slotkeeper clients take part, with a lookout; the same, without a lookout; no meaning.
const ATTENDED: &[u8] = b" ";
const QUIET: &[u8] = b"\t";
const TOUCHED: &[u8] = b"\n";

/// How the holders are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
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
        match self {
            Self::List => 0,
            Self::Map => SEMAPHORE_FLAGS,
        }
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
/// let mut record = Record::decode(br#"{"limit":2,"Holders":["3f8a"],"team":"a"}"#, 0)?;
/// assert_eq!((record.limit, record.taken(), record.form()), (2, 1, Form::List));
/// record.limit = 3;
/// assert_eq!(record.encode(), br#"{"limit":3,"Holders":["3f8a"],"team":"a"}"#);
/// # Ok::<(), slotkeeper_semaphore::NotASemaphore>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The number of slots.
    pub limit: u32,
    /// The holders' sessions, in the record's order. In the format `list` a session is listed once for each slot.
    pub holders: Vec<SessionId>,
    /// The handoff list: the first waiters in order, each once for each slot that it wants. It is a hint that saves a leaving client a read.
    /// [`Self::OTHERS`] represents waiters that acquire their slots themselves. Clients that do not know the hint drop it. Only speed depends
    /// on it.
    pub next: Vec<SessionId>,
    /// The identities of the waiters in [`Self::next`], as far as they are known, by [`short_id`]. So the client that grants one its slots by
    /// name writes its identity too. Those of other sessions are not stored.
    next_who: BTreeMap<String, Identity>,
    /// Whether a slotkeeper client wrote the record that knew of no foreign client. Such marks are white space at the end of the value: a
    /// foreign client does not have to know a field, and drops the marks when it writes the record.
    pub ours: bool,
    /// Whether a waiter is the lookout, on which newcomers can rely. This is a mark too.
    pub has_lookout: bool,
    /// Whether the value ends with a line break, which has no meaning.
    touched: bool,
    form: Form,
    flags: u64,
    /// The object as found, without what is decoded: keeps foreign fields, spellings and order.
    object: Object,
}

/// A JSON object with its values as they are written: a number in a foreign field may be larger or more exact than any type
/// here.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Object(Vec<(String, String)>);

impl Object {
    /// The one field of that name in any case, with its spelling.
    fn field(&self, name: &'static str) -> Result<(&str, &str), NotASemaphore> {
        let mut found = self.0.iter().filter(|(key, _)| key.eq_ignore_ascii_case(name));
        let (key, value) = found.next().ok_or(NotASemaphore::Missing { field: name })?;
        match found.next() {
            None => Ok((key, value)),
            Some(_) => Err(NotASemaphore::Twice { field: name }),
        }
    }

    fn get(&self, name: &str) -> Option<Value> {
        let (_, value) = self.0.iter().find(|(key, _)| key == name)?;
        serde_json::from_str(value).ok()
    }

    fn set(&mut self, name: &str, value: String) {
        match self.0.iter_mut().find(|(key, _)| key == name) {
            Some((_, known)) => *known = value,
            None => self.0.push((name.to_owned(), value)),
        }
    }

    /// Drops the values that are decoded besides, so that hundreds of holders are not in memory twice.
    fn without_own_values(mut self) -> Self {
        let own = self.0.iter_mut().filter(|(name, _)| is_own(name));
        own.for_each(|(_, value)| *value = String::new());
        self
    }

    /// Sets the field, or removes it.
    fn hint(&mut self, name: &str, value: Option<Value>) {
        match value {
            Some(value) => self.set(name, value.to_string()),
            None => self.0.retain(|(key, _)| key != name),
        }
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Object;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
                let (mut fields, mut places) = (Vec::<(String, String)>::new(), HashMap::new());
                while let Some((name, value)) = map.next_entry::<String, Box<RawValue>>()? {
                    let value = value.get().to_owned();
                    match places.get(&name).and_then(|place: &usize| fields.get_mut(*place)) {
                        // Of a duplicate name the last value counts, at the first position.
                        Some((_, known)) => *known = value,
                        None => {
                            places.insert(name.clone(), fields.len());
                            fields.push((name, value));
                        }
                    }
                }
                Ok(Object(fields))
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

impl fmt::Display for Object {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_char('{')?;
        for (place, (name, value)) in self.0.iter().enumerate() {
            let comma = if place > 0 { "," } else { "" };
            write!(out, "{comma}{}:{value}", Value::from(name.as_str()))?;
        }
        out.write_char('}')
    }
}

impl Record {
    /// In the handoff list: waiters that no other client can grant slots. No session has this id.
    pub const OTHERS: &'static str = "";

    /// The first waiter of the handoff list that a write of another client can grant.
    pub fn first_handoff(&self) -> Option<&SessionId> {
        self.next.iter().find(|session| session.as_str() != Self::OTHERS)
    }

    /// Changes the value but not its meaning, so that a concurrent check-and-set fails. Consul does not change the index of a key whose value
    /// stays the same. Another client might not know a field.
    pub fn touch(&mut self) {
        self.touched = !self.touched;
    }

    /// Whether the two records are equal, apart from marks of their writers.
    pub fn agrees(&self, other: &Self) -> bool {
        *self == Self { ours: self.ours, next_who: self.next_who.clone(), ..other.clone() }
    }

    /// The identity of a waiter in the handoff list, if it is known: what people are shown of it.
    pub(super) fn next_who(&self, session: &SessionId) -> Option<&Identity> {
        self.next_who.get(short_id(session))
    }

    /// Writes the handoff list, with the identities of its first waiters.
    pub(super) fn set_next<'a>(
        &mut self,
        next: Vec<SessionId>,
        who: impl Fn(&SessionId) -> Option<&'a Identity>,
    ) {
        let first = next.iter().take(MAX_NAMED);
        let known = first.filter_map(|session| Some((short_id(session).to_owned(), who(session)?.brief())));
        self.next_who = known.filter(|(_, who)| *who != Identity::default()).collect();
        self.next = next;
    }

    /// A record that is not stored yet.
    pub fn new(form: Form, limit: u32) -> Self {
        let object = Object(["Limit", "Holders"].map(|name| (name.to_owned(), "null".to_owned())).into());
        let (holders, next) = (Vec::new(), Vec::new());
        Self {
            limit,
            holders,
            next,
            next_who: BTreeMap::new(),
            ours: true,
            has_lookout: false,
            touched: false,
            form,
            flags: form.flags(),
            object,
        }
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
        let Ok(object) = serde_json::from_slice::<Object>(value) else {
            return Err(NotASemaphore::NotAnObject { found: excerpt(&String::from_utf8_lossy(value)) });
        };
        let limit = object.field("Limit")?.1;
        let limit = limit.parse().map_err(|_| NotASemaphore::BadLimit { found: excerpt(limit) })?;
        let (form, holders) = decode_holders(object.field("Holders")?.1, flags)?;
        let next = object.get(NEXT).as_ref().map(decode_next).unwrap_or_default();
        let next_who = object.get(NEXT_WHO).map(|who| next_who::decode(who, &next)).unwrap_or_default();
        let has_lookout = value.ends_with(ATTENDED);
        let ours = has_lookout || value.ends_with(QUIET);
        let touched =
            value.get(..value.len() - usize::from(ours)).is_some_and(|rest| rest.ends_with(TOUCHED));
        let object = object.without_own_values();
        Ok(Self { limit, holders, next, next_who, ours, has_lookout, touched, form, flags, object })
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
            let name = object.field(name).map_or(name, |(found, _)| found).to_owned();
            object.set(&name, value.to_string());
        }
        let next = || self.next.iter().map(SessionId::as_str).collect();
        object.hint(NEXT, (!self.next.is_empty()).then(next));
        object.hint(NEXT_WHO, next_who::encode(&self.next, &self.next_who));
        let mut value = object.to_string().into_bytes();
        value.extend_from_slice(if self.touched { TOUCHED } else { b"" });
        value.extend_from_slice(match (self.has_lookout, self.ours) {
            (true, _) => ATTENDED,
            (false, true) => QUIET,
            (false, false) => b"",
        });
        value
    }

    /// An upper bound of the encoded size without the hints.
    pub(super) fn bytes(&self) -> usize {
        const LIMIT: usize = "4294967295".len();
        let holders: usize = self.holders.iter().map(|id| size::holder(self.form, id.as_str().len())).sum();
        let foreign = self.object.0.iter().filter(|(name, _)| !is_own(name));
        let foreign: usize = foreign
            .map(|(name, value)| Value::from(name.as_str()).to_string().len() + value.len() + ":,".len())
            .sum();
        r#"{"Limit":,"Holders":[]}"#.len() + LIMIT + holders + foreign
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

/// Whether the record decodes the field and encodes it again.
fn is_own(name: &str) -> bool {
    ["Limit", "Holders"].iter().any(|own| name.eq_ignore_ascii_case(own)) || [NEXT, NEXT_WHO].contains(&name)
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

fn decode_holders(value: &str, flags: u64) -> Result<(Form, Vec<SessionId>), NotASemaphore> {
    let bad = || NotASemaphore::BadHolders { found: excerpt(value) };
    match &serde_json::from_str(value).map_err(|_| bad())? {
        // Only the flags tell the form of an empty record.
        Value::Null if flags == SEMAPHORE_FLAGS => Ok((Form::Map, Vec::new())),
        Value::Null => Ok((Form::List, Vec::new())),
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

/// An invalid hint counts as none.
fn decode_next(value: &Value) -> Vec<SessionId> {
    let ids = value.as_array().map(|items| items.iter().map(|item| item.as_str().map(SessionId::from)));
    ids.and_then(Iterator::collect::<Option<_>>).unwrap_or_default()
}

/// The beginning of a foreign text, made safe to print.
pub(super) fn excerpt(text: &str) -> String {
    format!("`{}`", printable(text, 60))
}

#[cfg(test)]
mod tests;
