//! Decodes the tree of values into the raw configuration, and reports every wrong type and unknown key in one run.
//!
//! serde stops at the first wrong type. The decoder reports that value, empties it, and reads the tree again.

use std::cell::RefCell;

use serde::Deserialize;
use serde_path_to_error::{Segment, Track};
use serde_yaml::{Mapping, Value};

use super::document::{look_up, value_at};
use super::findings::Findings;
use super::path::FieldPath;
use super::sections::RawConfig;
use super::spans::Part;
use super::{schema, suggest};

/// Values that are emptied before the decoder gives up.
const MAX_ROUNDS: usize = 200;

/// Reads the document that `findings` is about.
pub(super) fn decode(findings: &mut Findings) -> RawConfig {
    let mut tree = findings.document().tree.clone();
    for _ in 0..MAX_ROUNDS {
        let unknown = RefCell::new(Vec::new());
        let mut track = Track::new();
        let reader = serde_path_to_error::Deserializer::new(&tree, &mut track);
        let mut note = |path: serde_ignored::Path<'_>| unknown.borrow_mut().push(of_ignored(&path));
        match RawConfig::deserialize(serde_ignored::Deserializer::new(reader, &mut note)) {
            Ok(raw) => {
                report_unknown(findings, &tree, &unknown.into_inner());
                return raw;
            }
            Err(error) => {
                let field = of_tracked(&track.path());
                let hint = hint(&tree, &field);
                findings.fault(&field, reworded(&error.to_string()) + hint);
                findings.suppress(empty(&mut tree, field));
            }
        }
    }
    // Too much is wrong; the check of the values that were not decoded is suppressed.
    findings.suppress(FieldPath::root());
    RawConfig::default()
}

fn report_unknown(findings: &mut Findings, tree: &Value, keys: &[FieldPath]) {
    if keys.is_empty() {
        return;
    }
    let schema = schema::schema();
    for key in keys {
        let parent = key.parent().unwrap_or_default();
        let known = schema::keys_at(&schema, &parent);
        let near = suggest::nearest(key.last_key().unwrap_or_default(), known.iter().copied());
        let message = match near {
            Some(near) => format!("unknown key; did you mean `{near}`?"),
            None => format!("unknown key; remove it, or write one of: {}", known.join(", ")),
        };
        findings.fault_at(key, Part::Key, message);
        // The key that was meant is missing too, by the same mistake. One fault is enough.
        let meant = near.map(|near| parent.key(near)).filter(|meant| look_up(tree, meant).is_none());
        meant.into_iter().for_each(|meant| findings.suppress(meant));
    }
}

/// Empties the value at `field`, or the nearest parent that is not empty yet, and returns its path.
fn empty(tree: &mut Value, field: FieldPath) -> FieldPath {
    let mut sought = field;
    loop {
        let parent = sought.parent();
        match (value_at(tree, &sought), parent) {
            (Some(value), None) => {
                *value = Value::Mapping(Mapping::new());
                return sought;
            }
            (Some(value), Some(_)) if !value.is_null() => {
                *value = Value::Null;
                return sought;
            }
            (Some(_) | None, Some(parent)) => sought = parent,
            (None, None) => return sought,
        }
    }
}

/// What to write in place of a value of a wrong type, where serde's message does not say it.
fn hint(tree: &Value, field: &FieldPath) -> &'static str {
    let is_list = matches!(field.last_key(), Some("semaphores" | "locks"));
    match look_up(tree, field) {
        Some(Value::Mapping(_)) if is_list => "; begin each entry with `- name: …`",
        _ => "",
    }
}

/// serde's message in the terms of YAML.
fn reworded(message: &str) -> String {
    const WORDS: [(&str, &str); 7] = [
        ("expected a sequence", "expected a list"),
        ("expected a boolean", "expected true or false"),
        ("expected i64", "expected a whole number"),
        ("expected path string", "expected a path"),
        ("unknown variant ", "unknown value "),
        ("unit value", "nothing"),
        ("invalid type: ", "found "),
    ];
    let mapping = ["expected struct ", "expected a map"];
    let message = match mapping.iter().find_map(|start| message.split_once(start)) {
        Some((before, _)) => format!("{before}expected a mapping"),
        None => message.to_owned(),
    };
    WORDS.iter().fold(message, |message, (from, to)| message.replacen(from, to, 1))
}

fn of_ignored(path: &serde_ignored::Path<'_>) -> FieldPath {
    use serde_ignored::Path;
    match path {
        Path::Root => FieldPath::root(),
        Path::Seq { parent, index } => of_ignored(parent).index(*index),
        Path::Map { parent, key } => of_ignored(parent).key(key.as_str()),
        Path::Some { parent } | Path::NewtypeStruct { parent } | Path::NewtypeVariant { parent } => {
            of_ignored(parent)
        }
    }
}

fn of_tracked(path: &serde_path_to_error::Path) -> FieldPath {
    path.iter().fold(FieldPath::root(), |field, segment| match segment {
        Segment::Seq { index } => field.index(*index),
        Segment::Map { key } => field.key(key.as_str()),
        // An enum's value is a text, with no field below it.
        Segment::Enum { .. } | Segment::Unknown => field,
    })
}
