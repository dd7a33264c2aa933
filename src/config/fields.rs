//! The reader of a mapping. Each key is named once, with the kind of its value; a key that no reader asks for is unknown.

use std::collections::BTreeMap;

use serde_yaml::{Mapping, Value};

use super::findings::Findings;
use super::kinds::{Read, list, mapping};
use super::path::FieldPath;
use super::spans::Part;
use super::suggest;

/// A mapping of the document, or a section that is missing from it.
pub(super) struct Fields<'a> {
    /// Where it is.
    pub(super) at: FieldPath,
    /// What was found so far.
    pub(super) findings: &'a mut Findings,
    map: Option<&'a Mapping>,
    /// The keys that were asked for.
    known: Vec<&'static str>,
    /// The missing keys, each with its fault.
    missing: Vec<(&'static str, String)>,
}

impl<'a> Fields<'a> {
    /// Reads the mapping at `at`. An absent one is read like an empty one.
    pub(super) fn of<T>(
        at: FieldPath,
        value: Option<&Value>,
        findings: &mut Findings,
        read: impl FnOnce(&mut Fields<'_>) -> T,
    ) -> T {
        let written = value.filter(|value| !value.is_null());
        let map = written.and_then(|value| findings.accept(&at, mapping(value)));
        let mut fields = Fields { at, findings, map, known: Vec::new(), missing: Vec::new() };
        let value = read(&mut fields);
        fields.end();
        value
    }

    /// What is written at `key`. Null counts as absent.
    pub(super) fn value(&self, key: &str) -> Option<&'a Value> {
        self.map?.get(key).filter(|value| !value.is_null())
    }

    /// The value of `key`; none if it is absent or wrong.
    pub(super) fn get<T>(&mut self, key: &'static str, kind: impl FnOnce(&'a Value) -> Read<T>) -> Option<T> {
        self.known.push(key);
        let value = self.value(key)?;
        self.findings.accept(&self.at.key(key), kind(value))
    }

    /// As [`Fields::get`]. An absent key is a fault.
    pub(super) fn need<T>(
        &mut self,
        key: &'static str,
        fault: impl Into<String>,
        kind: impl FnOnce(&'a Value) -> Read<T>,
    ) -> Option<T> {
        if self.value(key).is_none() {
            self.missing.push((key, fault.into()));
        }
        self.get(key, kind)
    }

    /// The elements that are not wrong, of a list of at most `max`. `what`: how a fault describes the list.
    pub(super) fn list<T>(
        &mut self,
        key: &'static str,
        what: &str,
        max: usize,
        mut kind: impl FnMut(&'a Value) -> Read<T>,
    ) -> Vec<T> {
        let elements = self.get(key, list(what, max)).into_iter().flatten().enumerate();
        let at = self.at.key(key);
        elements.filter_map(|(index, value)| self.findings.accept(&at.index(index), kind(value))).collect()
    }

    /// The values of a mapping whose keys are the user's.
    pub(super) fn map<T>(
        &mut self,
        key: &'static str,
        kind: impl Fn(&'a Value) -> Read<T>,
    ) -> BTreeMap<String, T> {
        let entries = self.get(key, mapping).into_iter().flatten();
        let at = self.at.key(key);
        let read = |(name, value): (&Value, _)| {
            let name = name.as_str()?;
            Some((name.to_owned(), self.findings.accept(&at.key(name), kind(value))?))
        };
        entries.filter_map(read).collect()
    }

    /// A section. An absent one is read like an empty one.
    pub(super) fn section<T>(&mut self, key: &'static str, read: impl FnOnce(&mut Fields<'_>) -> T) -> T {
        self.known.push(key);
        Fields::of(self.at.key(key), self.value(key), self.findings, read)
    }

    /// A section that has an effect if it is written, even if it is empty.
    pub(super) fn optional<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&mut Fields<'_>) -> T,
    ) -> Option<T> {
        if self.value(key).is_some() {
            return Some(self.section(key, read));
        }
        self.known.push(key);
        None
    }

    /// A list of mappings.
    pub(super) fn entries<T>(
        &mut self,
        key: &'static str,
        max: usize,
        read: impl Fn(&mut Fields<'_>) -> T,
    ) -> Vec<T> {
        let elements = self.get(key, list("a list; begin each entry with `- name: …`", max));
        let mut entries = Vec::new();
        for (index, value) in elements.into_iter().flatten().enumerate() {
            let at = self.at.key(key).index(index);
            if value.is_null() {
                self.findings.fault(&at, "is empty; write the entry or remove the dash");
            }
            entries.push(Fields::of(at, Some(value), self.findings, &read));
        }
        entries
    }

    /// Whether the value of `key` is not known.
    pub(super) fn is_unsure(&self, key: &str) -> bool {
        self.findings.is_unsure(&self.at.key(key))
    }

    /// Adds a fault of the value of `key`.
    pub(super) fn fault(&mut self, key: &str, message: impl Into<String>) {
        self.findings.fault(&self.at.key(key), message);
    }

    /// Adds a warning about `key`.
    pub(super) fn warn(&mut self, key: &str, message: &str) {
        self.findings.warn(&self.at.key(key), message);
    }

    /// Reports the unknown keys, and then the missing ones: a key that was meant by an unknown one is missing by the same mistake.
    fn end(self) {
        let Self { at, findings, map, known, missing } = self;
        let written = map.into_iter().flatten().filter_map(|(key, _)| key.as_str());
        for key in written.filter(|key| !known.contains(key)) {
            let near = suggest::nearest(key, known.iter().copied());
            let message = match near {
                Some(near) => format!("unknown key; did you mean `{near}`?"),
                None => format!("unknown key; remove it, or write one of: {}", known.join(", ")),
            };
            findings.fault_at(&at.key(key), Part::Key, message);
            let meant = near.filter(|near| map.is_some_and(|map| !map.contains_key(*near)));
            meant.into_iter().for_each(|meant| findings.suppress(at.key(meant)));
        }
        for (key, fault) in missing {
            findings.fault(&at.key(key), fault);
        }
    }
}
