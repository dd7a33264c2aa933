//! Values with a syntax of their own. The decoder refuses wrong ones.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{self, Deserializer, SeqAccess, Visitor};

use crate::duration;
use slotkeeper_consul::MAX_ADDRESSES;

/// A duration, such as `30s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DurationString(pub(super) Duration);

impl<'de> Deserialize<'de> for DurationString {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Text { what: "a duration such as 30s", read: duration::parse }).map(Self)
    }
}

impl JsonSchema for DurationString {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": duration::PATTERN })
    }
}

/// An address to listen on. A bare port is read as a text, so that its message can name the address to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListenText(pub(super) String);

impl<'de> Deserialize<'de> for ListenText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let read = |text: &str| Ok::<_, std::convert::Infallible>(Self(text.to_owned()));
        deserializer.deserialize_any(Text { what: "an address such as 127.0.0.1:9377", read })
    }
}

impl JsonSchema for ListenText {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Listen".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}

/// Reads a text, and also a bare number, for a better message than a wrong type.
pub(super) struct Text<F> {
    pub(super) what: &'static str,
    pub(super) read: F,
}

impl<T, E: fmt::Display, F: Fn(&str) -> Result<T, E>> Visitor<'_> for Text<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)
    }

    fn visit_str<D: de::Error>(self, text: &str) -> Result<T, D> {
        (self.read)(text).map_err(D::custom)
    }

    fn visit_u64<D: de::Error>(self, number: u64) -> Result<T, D> {
        self.visit_str(&number.to_string())
    }
}

/// A command and its arguments: a list, so that no shell splits it.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(inline)]
pub(super) struct Argv(#[schemars(length(min = 1))] pub(super) Vec<String>);

impl<'de> Deserialize<'de> for Argv {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Argv;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list such as [command, argument]")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, words: A) -> Result<Argv, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(words)).map(Argv)
            }
        }
        deserializer.deserialize_any(List)
    }
}

/// Addresses of Consul: a list of texts, or one text with commas, as in a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AddressList {
    pub(super) all: Vec<String>,
    /// Whether they were written as a list, whose entries have a place each.
    pub(super) is_list: bool,
}

impl<'de> Deserialize<'de> for AddressList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = AddressList;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an address or a list of addresses")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<AddressList, E> {
                let all = if text.contains(',') {
                    text.split(',').map(|one| one.trim().to_owned()).collect()
                } else {
                    vec![text.to_owned()]
                };
                Ok(AddressList { all, is_list: false })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, texts: A) -> Result<AddressList, A::Error> {
                let all = Vec::deserialize(SeqAccessDeserializer::new(texts))?;
                Ok(AddressList { all, is_list: true })
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl JsonSchema for AddressList {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Addresses".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": ["string", "array"],
            "items": { "type": "string" },
            "minItems": 1,
            "maxItems": MAX_ADDRESSES,
        })
    }
}
