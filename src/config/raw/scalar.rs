//! Values with a syntax of their own, refused where they are read.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{self, Deserializer, SeqAccess, Visitor};

use crate::config::checked::Wait;
use crate::config::duration;
use slotkeeper_consul::MAX_ADDRESSES;

/// A duration, written such as `30s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::config) struct WrittenDuration(pub(in crate::config) Duration);

impl<'de> Deserialize<'de> for WrittenDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Text { what: "a duration such as 30s", read: duration::parse }).map(Self)
    }
}

impl JsonSchema for WrittenDuration {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": duration::PATTERN })
    }
}

impl<'de> Deserialize<'de> for Wait {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let read = |text: &str| match text {
            "forever" => Ok(Self::Forever),
            bounded => duration::parse(bounded).map(Self::AtMost),
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

/// Reads a text; a bare number too, in order to say what is wrong with it.
struct Text<F> {
    what: &'static str,
    read: F,
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

/// A command and its arguments: a list, so that no shell takes it apart.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(inline)]
pub(in crate::config) struct Argv(#[schemars(length(min = 1))] pub(in crate::config) Vec<String>);

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

/// Addresses of Consul: a list of texts, or one text with commas between them, as a variable has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::config) struct WrittenAddresses {
    pub(in crate::config) all: Vec<String>,
    /// Written as a list, whose entries are places of their own.
    pub(in crate::config) is_list: bool,
}

impl<'de> Deserialize<'de> for WrittenAddresses {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = WrittenAddresses;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an address or a list of addresses")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<WrittenAddresses, E> {
                let all = if text.contains(',') {
                    text.split(',').map(|one| one.trim().to_owned()).collect()
                } else {
                    vec![text.to_owned()]
                };
                Ok(WrittenAddresses { all, is_list: false })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, texts: A) -> Result<WrittenAddresses, A::Error> {
                let all = Vec::deserialize(SeqAccessDeserializer::new(texts))?;
                Ok(WrittenAddresses { all, is_list: true })
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl JsonSchema for WrittenAddresses {
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
