//! The line and column of each key and value of the YAML text.
//!
//! serde_yaml does not keep the positions of its values. A second parser reads the text into a tree of positions. Each fault
//! is then one lookup.

use std::collections::BTreeMap;

use saphyr_parser::{Event, Parser, Span};

use super::path::{FieldPath, Step};

/// The part of an entry that a fault points at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The key: it is wrong itself, or its value has many lines.
    Key,
    /// The duplicate of the key.
    DuplicateKey,
    /// The value.
    Value,
}

/// Line and column, each counted from 1.
pub(super) type Position = (usize, usize);

/// The positions of a document's keys and values.
#[derive(Debug, Default)]
pub(super) struct Spans {
    /// Parents come before their children; the root is the first.
    nodes: Vec<Node>,
}

#[derive(Debug)]
struct Node {
    at: Position,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Scalar,
    Mapping(BTreeMap<String, Entry>),
    Sequence(Vec<NodeId>),
    Alias(NodeId),
}

#[derive(Debug)]
struct Entry {
    key: Position,
    duplicate: Option<Position>,
    value: Option<NodeId>,
}

type NodeId = usize;

impl Spans {
    /// Reads the positions of `text`, up to the first place that is not YAML.
    pub(super) fn read(text: &str) -> Self {
        let mut builder = Builder::default();
        for parsed in Parser::new_from_str(text) {
            let Ok((event, span)) = parsed else { break };
            if matches!(event, Event::DocumentEnd) {
                break;
            }
            builder.take(&event, position(span));
        }
        Self { nodes: builder.nodes }
    }

    /// The position of `part` of the field at `path`. A field that is missing from the text, or merged in from elsewhere, has
    /// the position of its nearest parent.
    pub(super) fn locate(&self, path: &FieldPath, part: Part) -> Position {
        let (mut id, mut at) = (0, self.nodes.first().map_or((1, 1), |root| root.at));
        let mut steps = path.steps();
        while let Some((step, rest)) = steps.split_first() {
            let found = match (step, self.content(id)) {
                (Step::Key(key), Some(Content::Mapping(entries))) => entries.get(key).map(|entry| {
                    let value = entry.value.filter(|_| part == Part::Value || !rest.is_empty());
                    let duplicate = entry.duplicate.filter(|_| part == Part::DuplicateKey && rest.is_empty());
                    (duplicate.unwrap_or(entry.key), value)
                }),
                (Step::Index(index), Some(Content::Sequence(elements))) => {
                    elements.get(*index).map(|element| (self.nodes[*element].at, Some(*element)))
                }
                (_, _) => None,
            };
            let Some((key, value)) = found else { return at };
            at = key;
            match value {
                Some(value) => {
                    id = value;
                    if rest.is_empty() {
                        at = self.nodes[value].at;
                    }
                }
                None => return at,
            }
            steps = rest;
        }
        at
    }

    /// The content of a node, or of its anchor if it is an alias.
    fn content(&self, id: NodeId) -> Option<&Content> {
        let content = &self.nodes.get(id)?.content;
        // An alias comes after its anchor, so this ends.
        if let Content::Alias(anchor) = content
            && *anchor < id
        {
            self.content(*anchor)
        } else {
            Some(content)
        }
    }
}

fn position(span: Span) -> Position {
    (span.start.line(), span.start.col() + 1)
}

/// Builds the tree from the parser's events.
#[derive(Default)]
struct Builder {
    nodes: Vec<Node>,
    /// The mappings and sequences that have not ended, the innermost last.
    open: Vec<Open>,
    anchors: BTreeMap<usize, NodeId>,
}

struct Open {
    id: NodeId,
    /// In a mapping: the key whose value is next.
    key: Option<String>,
}

impl Builder {
    fn take(&mut self, event: &Event<'_>, at: Position) {
        match event {
            Event::Scalar(text, _, anchor, _) => self.scalar(text, at, *anchor),
            Event::Alias(anchor) => {
                let content = self.anchors.get(anchor).map_or(Content::Scalar, |id| Content::Alias(*id));
                self.add(content, at, 0);
            }
            Event::MappingStart(anchor, _) => self.begin(Content::Mapping(BTreeMap::new()), at, *anchor),
            Event::SequenceStart(anchor, _) => self.begin(Content::Sequence(Vec::new()), at, *anchor),
            Event::MappingEnd | Event::SequenceEnd => drop(self.open.pop()),
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd => {}
        }
    }

    /// A scalar is a key if its mapping expects one.
    fn scalar(&mut self, text: &str, at: Position, anchor: usize) {
        let entries = self.open.last_mut().and_then(|open| match &mut self.nodes[open.id].content {
            Content::Mapping(entries) if open.key.is_none() => Some((entries, &mut open.key)),
            Content::Mapping(_) | Content::Scalar | Content::Sequence(_) | Content::Alias(_) => None,
        });
        let Some((entries, key)) = entries else { return self.add(Content::Scalar, at, anchor) };
        *key = Some(text.to_owned());
        entries
            .entry(text.to_owned())
            .and_modify(|entry| {
                entry.duplicate.get_or_insert(at);
            })
            .or_insert(Entry { key: at, duplicate: None, value: None });
    }

    fn begin(&mut self, content: Content, at: Position, anchor: usize) {
        let id = self.nodes.len();
        self.add(content, at, anchor);
        self.open.push(Open { id, key: None });
    }

    fn add(&mut self, content: Content, at: Position, anchor: usize) {
        let id = self.nodes.len();
        self.nodes.push(Node { at, content });
        if anchor > 0 {
            self.anchors.insert(anchor, id);
        }
        let Some(parent) = self.open.last_mut() else { return };
        match &mut self.nodes[parent.id].content {
            Content::Sequence(elements) => elements.push(id),
            Content::Mapping(entries) => match parent.key.take() {
                // The first of two equal keys counts.
                Some(key) => drop(entries.get_mut(&key).map(|entry| entry.value.get_or_insert(id))),
                // The key is no scalar. No field has such a name.
                None => parent.key = Some(String::new()),
            },
            Content::Scalar | Content::Alias(_) => {}
        }
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
        Spans::read(TEXT).locate(&path, part)
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
        assert_eq!(Spans::read("").locate(&FieldPath::of("http"), Part::Value), (1, 1));
    }

    proptest! {
        #![proptest_config(slotkeeper_test_seed::cases())]

        #[test]
        fn no_text_breaks_the_search(text in "([a-c]|[:,\\[\\]{}&*!<\n -]){0,60}") {
            let spans = Spans::read(&text);
            for part in [Part::Key, Part::DuplicateKey, Part::Value] {
                for path in [FieldPath::of("a.b"), FieldPath::root().key("a").index(0)] {
                    let (line, column) = spans.locate(&path, part);
                    prop_assert!(line >= 1 && column >= 1);
                }
            }
        }
    }
}
