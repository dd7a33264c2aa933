//! Reads YAML text into a tree of values, with the faults of the YAML itself.
//!
//! `serde_yaml::Value` would stop at the first duplicate key, drop a tag such as `!secret` silently, and expand aliases without
//! a limit. So this module has a visitor of its own.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{
    self, DeserializeSeed, Deserializer, EnumAccess, MapAccess, SeqAccess, VariantAccess, Visitor,
};
use serde_yaml::{Mapping, Value};

use super::path::FieldPath;
use super::spans::Part;

/// Values in one document. An alias counts each time it is used.
const MAX_VALUES: usize = 50_000;

/// What YAML allows and a configuration does not: the field, the part to point at, and the fault.
pub(super) type Issue = (FieldPath, Part, &'static str);

/// Reads one document, with merge keys (`<<`) merged. An empty one is an empty mapping. Of two equal keys the first one counts.
///
/// # Errors
///
/// If the text is not YAML, has more than one document, or too many values.
pub(super) fn parse(text: &str) -> Result<(Value, Vec<Issue>), serde_yaml::Error> {
    let mut reading = Reading { values: 0, issues: Vec::new() };
    let seed = Node { path: FieldPath::root(), reading: &mut reading };
    let mut root = seed.deserialize(serde_yaml::Deserializer::from_str(text))?;
    root.apply_merge()?;
    if root.is_null() {
        root = Value::Mapping(Mapping::new());
    }
    Ok((root, reading.issues))
}

/// The usual mistake behind a syntax error in a line, counted from 1: a tab, or keys of one mapping in different columns. The hint
/// quotes no value, which may be secret.
pub(super) fn hint(text: &str, line: usize) -> Option<String> {
    let lines: Vec<_> = text.lines().collect();
    let at = line.checked_sub(1)?;
    let indent = |line: &str| line.len() - line.trim_start_matches([' ', '\t']).len();
    if let Some(tab) =
        (at..lines.len().min(at + 2)).find(|at| lines[*at][..indent(lines[*at])].contains('\t'))
    {
        return Some(format!("; line {} is indented with a tab: YAML allows only spaces", tab + 1));
    }
    let here = lines.get(at)?;
    let above = lines[..at]
        .iter()
        .rposition(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'))?;
    // The keys of a list's entry begin after its dash.
    let key_column = |line: &str| line.len() - line.trim_start_matches([' ', '-']).len();
    let (own, other) = (key_column(here), key_column(lines[above]));
    let key = here.trim_start_matches([' ', '-']).split_once(':')?.0;
    let is_near = own.abs_diff(other) == 1 && !key.contains(char::is_whitespace);
    is_near.then(|| {
        format!("; `{key}` begins in column {}, the line above in column {}: align them", own + 1, other + 1)
    })
}

macro_rules! scalars {
    ($($visit:ident: $type:ty),*) => {
        $(fn $visit<E: de::Error>(self, value: $type) -> Result<Value, E> {
            Ok(value.into())
        })*
    };
}

struct Reading {
    values: usize,
    issues: Vec<Issue>,
}

struct Node<'a> {
    path: FieldPath,
    reading: &'a mut Reading,
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.reading.values += 1;
        if self.reading.values > MAX_VALUES {
            return Err(de::Error::custom(format!("has more than {MAX_VALUES} values")));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any YAML value")
    }

    scalars! { visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Value, A::Error> {
        let mut sequence = Vec::new();
        loop {
            let path = self.path.index(sequence.len());
            match elements.next_element_seed(Node { path, reading: &mut *self.reading })? {
                Some(element) => sequence.push(element),
                None => return Ok(Value::Sequence(sequence)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut mapping = Mapping::new();
        let mut repeated = BTreeSet::new();
        while let Some(key) = entries.next_key::<Key>()? {
            let path = self.path.key(key.as_str());
            let value = entries.next_value_seed(Node { path: path.clone(), reading: &mut *self.reading })?;
            if !mapping.contains_key(key.as_str()) {
                mapping.insert(key.into(), value);
            } else if repeated.insert(key) {
                self.reading.issues.push((path, Part::DuplicateKey, "duplicate key; remove one"));
            }
        }
        Ok(Value::Mapping(mapping))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, tagged: A) -> Result<Value, A::Error> {
        // serde_yaml presents `!tag value` as an enum.
        let (_, contents) = tagged.variant::<Key>()?;
        let fault = "has a YAML tag, which has no meaning here; remove it";
        self.reading.issues.push((self.path.clone(), Part::Value, fault));
        contents.newtype_variant_seed(self)
    }
}

/// A key, as the text that was written: `1:` and `true:` are unknown keys like any other.
type Key = String;

#[cfg(test)]
mod tests {
    use super::*;

    fn issues(text: &str) -> Vec<(String, Part)> {
        parse(text).unwrap().1.into_iter().map(|(path, part, _)| (path.to_string(), part)).collect()
    }

    #[test]
    fn an_empty_document_is_an_empty_mapping() {
        for text in ["", "# nothing\n", "---\n", "~"] {
            assert_eq!(parse(text).unwrap().0, Value::Mapping(Mapping::new()), "{text:?}");
        }
    }

    #[test]
    fn the_first_of_two_keys_counts_and_the_other_is_a_fault() {
        let (tree, _) = parse("a: 1\nb:\n  c: 2\n  c: 3\na: 4\na: 5\n").unwrap();
        assert_eq!(tree["a"], Value::from(1));
        assert_eq!(
            issues("a: 1\nb:\n  c: 2\n  c: 3\na: 4\na: 5\n"),
            [("b.c".to_owned(), Part::DuplicateKey), ("a".to_owned(), Part::DuplicateKey)]
        );
    }

    #[test]
    fn a_tag_is_a_fault_and_keys_are_text() {
        assert_eq!(issues("a: !secret x\n"), [("a".to_owned(), Part::Value)]);
        assert_eq!(parse("1: x\ntrue: y\n").unwrap().0["1"], Value::from("x"));
    }

    #[test]
    fn merge_keys_merge() {
        let (tree, _) = parse("a: &a {limit: 1}\nb:\n  <<: *a\n  x: 2\n").unwrap();
        assert_eq!(tree["b"]["limit"], Value::from(1));
    }

    #[test]
    fn a_hint_names_the_usual_mistake_and_no_value() {
        let fault = |text: &str| {
            let at = parse(text).err().and_then(|error| error.location()).expect("it is no YAML");
            hint(text, at.line()).unwrap_or_default()
        };
        let entry = "semaphores:\n  - name: a\n   prefix: secret\n    limit: 1\n";
        assert_eq!(fault(entry), "; `prefix` begins in column 4, the line above in column 5: align them");
        let tab = "semaphores:\n\t- name: a\n";
        assert_eq!(fault(tab), "; line 2 is indented with a tab: YAML allows only spaces");
        assert_eq!(fault("a: [1, 2\n"), "");
        assert_eq!(fault("a: 'x\nb: 1\n"), "");
        for line in 0..4 {
            let _ = hint("", line);
            let _ = hint("é:\n\u{a0}- é\n", line);
        }
    }

    #[test]
    fn aliases_cannot_grow_without_bound() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..9 {
            let below = format!("*a{}, ", level - 1).repeat(10);
            text.push_str(&format!("a{level}: &a{level} [{below}]\n"));
        }
        assert!(parse(&text).is_err());
    }
}
