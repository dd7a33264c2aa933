//! One configuration document: the file's tree of values with the overrides applied, and the origin of each.

use std::cell::OnceCell;

use serde_yaml::{Mapping, Value};

use super::fault::{Fault, Place};
use super::findings::one_line;
use super::overrides::{Override, Overrides};
use super::path::{FieldPath, Step};
use super::spans::{Part, Spans};
use super::yaml::{self, YamlIssue};

const LOGIN: &str = "consul.login";

/// The tree, and the places of its values.
pub(super) struct Document {
    pub(super) tree: Value,
    /// Faults of the YAML itself.
    pub(super) issues: Vec<(FieldPath, YamlIssue)>,
    file: Option<File>,
    origins: Vec<(FieldPath, Place)>,
}

struct File {
    name: String,
    text: String,
    /// Filled for the first fault or warning; most files have none.
    spans: OnceCell<Spans>,
}

impl Document {
    /// An empty document.
    pub(super) fn empty() -> Self {
        Self { tree: Value::Mapping(Mapping::new()), issues: Vec::new(), file: None, origins: Vec::new() }
    }

    /// The document `text`. Faults call it `name`.
    ///
    /// # Errors
    ///
    /// If it is not one YAML document.
    pub(super) fn read(name: &str, text: &str) -> Result<Self, Fault> {
        let tree = yaml::parse(text).map_err(|error| {
            let at = error.location().map(|at| (at.line(), at.column()));
            // The fault's place has the line and column already.
            let suffix = at.map(|(line, column)| format!(" at line {line} column {column}"));
            let message = error.to_string().replacen(suffix.as_deref().unwrap_or_default(), "", 1);
            let hint = at.and_then(|(line, _)| yaml::hint(text, line)).unwrap_or_default();
            // The message may quote a key of the file.
            let message = one_line(&(message + &hint));
            let place = Place::File { name: name.to_owned(), at };
            Fault { place, field: FieldPath::root(), message: format!("not a YAML document: {message}") }
        })?;
        let file = Some(File { name: name.to_owned(), text: text.to_owned(), spans: OnceCell::new() });
        Ok(Self { tree: tree.root, issues: tree.issues, file, origins: Vec::new() })
    }

    /// Applies `overrides` to the tree.
    ///
    /// A token, a token file and a login exclude each other: one of them drops the other two of weaker sources. Within one
    /// source the token file precedes the token, as for `consul`, and both precede a login.
    pub(super) fn apply_overrides(&mut self, overrides: &Overrides) {
        const FIELDS: [&str; 3] = ["consul.token", "consul.token_file", LOGIN];
        let [token, token_file, login] = FIELDS.map(FieldPath::of);
        let sets = |field: &FieldPath| overrides.0.iter().any(|one| field.covers(&one.field));
        // The parts of a login may come from several sources.
        let sets_token = sets(&token) || sets(&token_file);
        let dropped: &[_] = match (sets_token, sets(&login)) {
            (true, _) => &[&token, &token_file, &login],
            (false, true) => &[&token, &token_file],
            (false, false) => &[],
        };
        for field in dropped {
            if let Some(value) = value_at(&mut self.tree, field) {
                *value = Value::Null;
            }
            self.origins.retain(|(path, _)| !field.covers(path));
        }
        let sets_both = sets(&token) && sets(&token_file);
        let applies =
            |one: &&Override| !(sets_both && one.field == token || sets_token && login.covers(&one.field));
        for one in overrides.0.iter().filter(applies) {
            self.apply(one);
        }
    }

    /// Sets `field`, unless a source has set it.
    pub(super) fn apply_default(&mut self, field: &'static str, value: &str) {
        let field = FieldPath::of(field);
        if look_up(&self.tree, &field).is_none_or(Value::is_null) {
            self.apply(&Override { origin: Place::Nowhere, field, value: value.into() });
        }
    }

    /// Applies the parts of a login's description, if there is a login. A token needs no description.
    pub(super) fn apply_login_meta(&mut self, parts: Vec<Override>) {
        if look_up(&self.tree, &FieldPath::of(LOGIN)).is_some_and(Value::is_mapping) {
            parts.iter().for_each(|part| self.apply(part));
        }
    }

    /// Turns the address into an `https` one, as `consul` does if a variable requires TLS.
    pub(super) fn require_tls(&mut self, variable: &'static str) {
        let field = FieldPath::of("consul.address");
        match value_at(&mut self.tree, &field) {
            None | Some(Value::Null) => self.apply(&Override {
                origin: Place::Variable(variable),
                field,
                value: "https://127.0.0.1:8500".into(),
            }),
            Some(Value::String(addresses)) => {
                let each: Vec<_> = addresses.split(',').map(|one| with_tls(one.trim())).collect();
                *addresses = each.join(",");
            }
            Some(Value::Sequence(addresses)) => {
                for address in addresses {
                    if let Value::String(address) = address {
                        *address = with_tls(address);
                    }
                }
            }
            // The decoder reports the wrong type.
            Some(_) => {}
        }
    }

    /// Where `field` was written; for a missing field, the place of the nearest parent.
    pub(super) fn place(&self, field: &FieldPath, part: Part) -> Place {
        let origin = self.origins.iter().rev().find(|(path, _)| path.covers(field));
        match (origin, &self.file) {
            (Some((_, origin)), _) => origin.clone(),
            (None, Some(File { name, text, spans })) => {
                let spans = spans.get_or_init(|| Spans::read(text));
                Place::File { name: name.clone(), at: Some(spans.locate(field, part)) }
            }
            (None, None) => Place::Nowhere,
        }
    }

    /// The part of `field` to point at if its value is wrong: the value, or the key of a value of many lines.
    pub(super) fn part_of(&self, field: &FieldPath) -> Part {
        match look_up(&self.tree, field) {
            Some(Value::Bool(_) | Value::Number(_) | Value::String(_)) => Part::Value,
            Some(Value::Null | Value::Sequence(_) | Value::Mapping(_) | Value::Tagged(_)) | None => Part::Key,
        }
    }

    /// The place of a fault of the whole document.
    pub(super) fn whole(&self) -> Place {
        match &self.file {
            Some(File { name, .. }) => Place::File { name: name.clone(), at: None },
            None => Place::Nowhere,
        }
    }

    fn apply(&mut self, one: &Override) {
        if let Some(value) = entry_at(&mut self.tree, &one.field) {
            *value = one.value.clone();
            self.origins.push((one.field.clone(), one.origin.clone()));
        }
    }
}

fn with_tls(address: &str) -> String {
    match address.strip_prefix("http://") {
        Some(rest) => format!("https://{rest}"),
        None if address.contains("://") => address.to_owned(),
        None => format!("https://{address}"),
    }
}

/// The value at `field`, if there is one.
pub(super) fn look_up<'t>(tree: &'t Value, field: &FieldPath) -> Option<&'t Value> {
    field.steps().iter().try_fold(tree, |value, step| match step {
        Step::Key(key) => value.as_mapping()?.get(key.as_str()),
        Step::Index(index) => value.as_sequence()?.get(*index),
    })
}

/// The value at `field`, if there is one, to change.
pub(super) fn value_at<'t>(tree: &'t mut Value, field: &FieldPath) -> Option<&'t mut Value> {
    field.steps().iter().try_fold(tree, |value, step| match step {
        Step::Key(key) => value.as_mapping_mut()?.get_mut(key.as_str()),
        Step::Index(index) => value.as_sequence_mut()?.get_mut(*index),
    })
}

/// The value at `field`, created if it is missing. None if a parent has a wrong type, which the decoder reports.
fn entry_at<'t>(tree: &'t mut Value, field: &FieldPath) -> Option<&'t mut Value> {
    field.steps().iter().try_fold(tree, |value, step| match step {
        Step::Key(key) => {
            if value.is_null() {
                *value = Value::Mapping(Mapping::new());
            }
            Some(value.as_mapping_mut()?.entry(key.as_str().into()).or_insert(Value::Null))
        }
        Step::Index(index) => {
            if value.is_null() {
                *value = Value::Sequence(Vec::new());
            }
            let sequence = value.as_sequence_mut()?;
            if *index == sequence.len() {
                sequence.push(Value::Null);
            }
            sequence.get_mut(*index)
        }
    })
}
