//! The line and column of a field in the YAML text.
//!
//! serde_yaml keeps no positions beside its values, but an error that a visitor raises is stamped with the position of
//! what was being read. So the text is read once more, straight to the field, and there an error is raised. That costs
//! a pass over the text for each fault; there are few, and their number is bounded.

use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::path::{FieldPath, Step};

/// Which part of an entry is pointed at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The key: where it is the key that is wrong, or the value has many lines.
    Key,
    /// The key where it stands for the second time.
    SecondKey,
    /// The value.
    Value,
}

/// Line and column, counted from 1, of `part` of what `path` names; where that is not in the text (a missing key, one
/// merged in from elsewhere), of the nearest thing around it that is.
pub(super) fn locate(text: &str, path: &FieldPath, part: Part) -> Option<(usize, usize)> {
    let mut part = part;
    let mut sought = Some(path.clone());
    while let Some(path) = sought {
        let probe = Probe { steps: path.steps(), part };
        let found = probe.deserialize(serde_yaml::Deserializer::from_str(text)).err();
        if let Some(at) = found.and_then(|error| error.location()) {
            return Some((at.line(), at.column()));
        }
        sought = path.parent();
        part = Part::Key;
    }
    None
}

/// Walks down `steps`; raises an error at their end, and none where they lead nowhere.
#[derive(Clone, Copy)]
struct Probe<'a> {
    steps: &'a [Step],
    part: Part,
}

/// The text of the error. It is never shown: only its position counts.
const HERE: &str = "here";

impl<'de> DeserializeSeed<'de> for Probe<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        match self.steps.first() {
            None => deserializer.deserialize_any(self),
            Some(Step::Key(_)) => deserializer.deserialize_map(self),
            Some(Step::Index(_)) => deserializer.deserialize_seq(self),
        }
    }
}

/// At the end of the way every visit raises the error, as the default methods of `Visitor` do; what is written here is
/// the way itself.
impl<'de> Visitor<'de> for Probe<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HERE)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let Some((Step::Key(wanted), rest)) = self.steps.split_first() else {
            return Err(de::Error::custom(HERE));
        };
        let stops_at = match (rest, self.part) {
            ([], Part::Key) => Some(1),
            ([], Part::SecondKey) => Some(2),
            ([] | [_, ..], _) => None,
        };
        let mut seen = 0;
        while let Some(is_wanted) = entries.next_key_seed(KeyIs { wanted, stops_at, seen: &mut seen })? {
            if is_wanted && stops_at.is_none() {
                entries.next_value_seed(Self { steps: rest, ..self })?;
            } else {
                entries.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        let Some((Step::Index(wanted), rest)) = self.steps.split_first() else {
            return Err(de::Error::custom(HERE));
        };
        for _ in 0..*wanted {
            if elements.next_element::<IgnoredAny>()?.is_none() {
                return Ok(());
            }
        }
        elements.next_element_seed(Self { steps: rest, ..self })?;
        while elements.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }
}

/// Tells whether a key is the wanted one, and raises the error at it where it is the one to point at.
struct KeyIs<'a> {
    wanted: &'a str,
    stops_at: Option<usize>,
    seen: &'a mut usize,
}

impl<'de> DeserializeSeed<'de> for KeyIs<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for KeyIs<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HERE)
    }

    fn visit_str<E: de::Error>(self, key: &str) -> Result<bool, E> {
        if key != self.wanted {
            return Ok(false);
        }
        *self.seen += 1;
        if Some(*self.seen) == self.stops_at { Err(E::custom(HERE)) } else { Ok(true) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = "\
# a comment
consul: {address: x, tls: {ca_file: y}}
session:
  ttl: 5s
  ttl: 6s
semaphores:
  - name: a
    limit: 0
  -
    name: b
    limit: &two 2
  - {}
  - limit: *two
";

    fn at(path: FieldPath, part: Part) -> (usize, usize) {
        locate(TEXT, &path, part).unwrap()
    }

    #[test]
    fn keys_and_values_are_found() {
        let list = FieldPath::of("semaphores");
        assert_eq!(at(FieldPath::of("consul.tls.ca_file"), Part::Value), (2, 37));
        assert_eq!(at(FieldPath::of("session"), Part::Key), (3, 1));
        assert_eq!(at(FieldPath::of("session.ttl"), Part::Value), (4, 8));
        assert_eq!(at(FieldPath::of("session.ttl"), Part::SecondKey), (5, 3));
        assert_eq!(at(list.index(0).key("limit"), Part::Key), (8, 5));
        assert_eq!(at(list.index(0).key("limit"), Part::Value), (8, 12));
        assert_eq!(at(list.index(1).key("name"), Part::Value), (10, 11));
    }

    #[test]
    fn what_is_missing_is_where_its_parent_is() {
        let list = FieldPath::of("semaphores");
        assert_eq!(at(list.index(0).key("prefix"), Part::Value), (7, 5));
        assert_eq!(at(list.index(2).key("name"), Part::Value), (12, 5));
        assert_eq!(at(list.index(9).key("name"), Part::Value), (6, 1));
        assert_eq!(at(FieldPath::of("http.listen"), Part::Value), (2, 1));
        assert_eq!(locate("", &FieldPath::of("http"), Part::Value).unwrap_or((1, 1)), (1, 1));
    }

    proptest! {
        #![proptest_config(slotkeeper_test_seed::cases())]

        #[test]
        fn no_text_breaks_the_search(text in "([a-c]|[:,\\[\\]{}&*!<\n -]){0,60}") {
            for part in [Part::Key, Part::SecondKey, Part::Value] {
                let _ = locate(&text, &FieldPath::of("a.b"), part);
                let _ = locate(&text, &FieldPath::root().key("a").index(0), part);
            }
        }
    }
}
