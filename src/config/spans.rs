//! The line and column of each key and value of the YAML text.
//!
//! serde_yaml does not keep the positions of its values. A second parser reads the text into a map of positions. Each fault
//! is then one lookup.

use std::collections::BTreeMap;

use saphyr_parser::{Event, Parser, ScalarStyle};

use super::path::{FieldPath, Step};

/// The part of an entry that a fault points at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The key: it is wrong itself.
    Key,
    /// The duplicate of the key.
    DuplicateKey,
    /// The value, or the key of a value of many lines.
    Value,
}

/// Line and column, each counted from 1.
pub(super) type Position = (usize, usize);

/// The positions of a document's keys and values.
#[derive(Debug, Default)]
pub(super) struct Spans {
    spots: BTreeMap<FieldPath, Spot>,
    anchors: BTreeMap<usize, FieldPath>,
    /// The mappings and sequences that have not ended, the innermost last.
    open: Vec<Open>,
}

/// Where a field is.
#[derive(Debug)]
struct Spot {
    /// The key, or the begin of a list's element.
    at: Position,
    duplicate: Option<Position>,
    /// The value, if it is of one line.
    value: Option<Position>,
    /// The field with the content of an alias.
    anchor: Option<FieldPath>,
}

/// A mapping or sequence.
#[derive(Debug)]
struct Open {
    /// None for what no field is in: a key that is no scalar, or the value of a duplicate.
    field: Option<FieldPath>,
    next: Next,
}

/// What the next node is.
#[derive(Debug)]
enum Next {
    Key,
    ValueOf(Option<FieldPath>),
    Element(usize),
}

impl Spans {
    /// Reads the positions of `text`, up to the first place that is not YAML.
    pub(super) fn read(text: &str) -> Self {
        let mut spans = Self::default();
        for parsed in Parser::new_from_str(text) {
            let Ok((event, span)) = parsed else { break };
            let at = (span.start.line(), span.start.col() + 1);
            match event {
                Event::Scalar(text, style, anchor, _) => {
                    let is_null = style == ScalarStyle::Plain && matches!(&*text, "" | "~" | "null");
                    spans.node(at, Some(&text), (!is_null).then_some(at), anchor);
                }
                Event::Alias(anchor) => {
                    if let Some(field) = spans.node(at, None, Some(at), 0)
                        && let Some(spot) = spans.spots.get_mut(&field)
                    {
                        spot.anchor = spans.anchors.get(&anchor).cloned();
                    }
                }
                Event::MappingStart(anchor, _) => {
                    let field = spans.node(at, None, None, anchor);
                    spans.open.push(Open { field, next: Next::Key });
                }
                Event::SequenceStart(anchor, _) => {
                    let field = spans.node(at, None, None, anchor);
                    spans.open.push(Open { field, next: Next::Element(0) });
                }
                Event::MappingEnd | Event::SequenceEnd => drop(spans.open.pop()),
                Event::DocumentEnd => break,
                Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentStart(_) => {}
            }
        }
        spans
    }

    /// The position of `part` of a field. A field that is missing from the text, or merged in from elsewhere, has the position of
    /// its nearest parent.
    pub(super) fn locate(&self, field: &[Step], part: Part) -> Position {
        let nearest =
            (0..=field.len()).rev().find_map(|length| Some((self.spots.get(&field[..length])?, length)));
        match nearest {
            None => (1, 1),
            Some((spot, length)) if length == field.len() => match part {
                Part::Key => spot.at,
                Part::DuplicateKey => spot.duplicate.unwrap_or(spot.at),
                Part::Value => spot.value.unwrap_or(spot.at),
            },
            Some((spot, length)) => {
                let inside = |anchor: &FieldPath| [anchor.steps(), &field[length..]].concat();
                let inside = spot.anchor.as_ref().map(|anchor| (inside(anchor), anchor.steps().len()));
                // An alias comes after its anchor, so this ends.
                let inside = inside.filter(|(field, length)| self.spots.contains_key(&field[..=*length]));
                inside.map_or(spot.at, |(field, _)| self.locate(&field, part))
            }
        }
    }

    /// Adds a node, and returns its field. `text`: of a scalar, which may be a key.
    fn node(
        &mut self,
        at: Position,
        text: Option<&str>,
        value: Option<Position>,
        anchor: usize,
    ) -> Option<FieldPath> {
        let field = match self.open.last_mut() {
            None => Some(FieldPath::root()),
            Some(Open { field, next }) => match std::mem::replace(next, Next::Key) {
                Next::Element(index) => {
                    *next = Next::Element(index + 1);
                    field.as_ref().map(|list| list.index(index))
                }
                Next::ValueOf(field) => field,
                Next::Key => {
                    let key = field.as_ref().zip(text).map(|(mapping, key)| mapping.key(key));
                    let first = key.as_ref().and_then(|key| self.spots.get_mut(key));
                    // The first of two equal keys counts.
                    let is_first = first.is_none();
                    first.map(|first| first.duplicate.get_or_insert(at));
                    let key = key.filter(|_| is_first);
                    if let Some(key) = &key {
                        self.spots.insert(key.clone(), Spot::at(at));
                    }
                    *next = Next::ValueOf(key);
                    return None;
                }
            },
        }?;
        self.spots.entry(field.clone()).or_insert(Spot::at(at)).value = value;
        if anchor > 0 {
            self.anchors.insert(anchor, field.clone());
        }
        Some(field)
    }
}

impl Spot {
    fn at(at: Position) -> Self {
        Self { at, duplicate: None, value: None, anchor: None }
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
  - &lock
    name: c
  - *lock
";

    fn at(path: FieldPath, part: Part) -> Position {
        Spans::read(TEXT).locate(path.steps(), part)
    }

    #[test]
    fn keys_and_values_are_found() {
        let list = FieldPath::of("semaphores");
        assert_eq!(at(FieldPath::of("consul.tls.ca_file"), Part::Value), (2, 37));
        assert_eq!(at(FieldPath::of("session"), Part::Key), (3, 1));
        assert_eq!(at(FieldPath::of("session.ttl"), Part::Value), (4, 8));
        assert_eq!(at(FieldPath::of("session.ttl"), Part::DuplicateKey), (5, 3));
        assert_eq!(at(list.index(0).key("limit"), Part::Key), (8, 5));
        assert_eq!(at(list.index(0).key("limit"), Part::Value), (8, 12));
        assert_eq!(at(list.index(1).key("name"), Part::Value), (10, 11));
        assert_eq!(at(list.index(3).key("limit"), Part::Value), (13, 12));
    }

    #[test]
    fn the_fields_of_an_alias_are_at_its_anchor() {
        let list = FieldPath::of("semaphores");
        assert_eq!(at(list.index(5).key("name"), Part::Value), (15, 11));
        assert_eq!(at(list.index(5).key("limit"), Part::Value), (16, 5));
    }

    #[test]
    fn a_missing_field_has_the_position_of_its_parent() {
        let list = FieldPath::of("semaphores");
        assert_eq!(at(list.index(0).key("prefix"), Part::Value), (7, 5));
        assert_eq!(at(list.index(2).key("name"), Part::Value), (12, 5));
        assert_eq!(at(list.index(9).key("name"), Part::Value), (6, 1));
        assert_eq!(at(FieldPath::of("http.listen"), Part::Value), (2, 1));
        assert_eq!(Spans::read("").locate(FieldPath::of("http").steps(), Part::Value), (1, 1));
    }

    proptest! {
        #![proptest_config(slotkeeper_test_seed::cases())]

        #[test]
        fn no_text_breaks_the_search(text in "([a-c]|[:,\\[\\]{}&*!<\n -]){0,60}") {
            let spans = Spans::read(&text);
            for part in [Part::Key, Part::DuplicateKey, Part::Value] {
                for path in [FieldPath::of("a.b"), FieldPath::root().key("a").index(0)] {
                    let (line, column) = spans.locate(path.steps(), part);
                    prop_assert!(line >= 1 && column >= 1);
                }
            }
        }
    }
}
