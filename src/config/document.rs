//! One configuration document: the file's tree of values with the overrides laid over it, and where each came from.

use std::cell::OnceCell;

use serde_yaml::{Mapping, Value};

use super::fault::{Fault, Place};
use super::findings::one_line;
use super::overrides::{Override, Overrides};
use super::path::{FieldPath, Step};
use super::spans::{Part, Spans};
use super::yaml::{self, YamlIssue};

const LOGIN: &str = "consul.login";

/// The tree, and what is needed to say where a value was written.
pub(super) struct Document {
    pub(super) tree: Value,
    /// What the YAML itself has wrong.
    pub(super) issues: Vec<(FieldPath, YamlIssue)>,
    file: Option<File>,
    origins: Vec<(FieldPath, Place)>,
}

struct File {
    name: String,
    text: String,
    /// Read for the first fault or warning: most files have none.
    spans: OnceCell<Spans>,
}

impl Document {
    /// A document with nothing in it.
    pub(super) fn empty() -> Self {
        Self { tree: Value::Mapping(Mapping::new()), issues: Vec::new(), file: None, origins: Vec::new() }
    }

    /// The document `text`, which faults call `name`.
    ///
    /// # Errors
    ///
    /// Where it is not one YAML document.
    pub(super) fn read(name: &str, text: &str) -> Result<Self, Fault> {
        let tree = yaml::parse(text).map_err(|error| {
            let at = error.location().map(|at| (at.line(), at.column()));
            // The place stands before the message; once is enough.
            let said_at = at.map(|(line, column)| format!(" at line {line} column {column}"));
            let message = error.to_string().replacen(said_at.as_deref().unwrap_or_default(), "", 1);
            // It may name a key of the file's.
            let message = one_line(&message);
            let place = Place::File { name: name.to_owned(), at };
            Fault { place, field: FieldPath::root(), message: format!("not a YAML document: {message}") }
        })?;
        let file = Some(File { name: name.to_owned(), text: text.to_owned(), spans: OnceCell::new() });
        Ok(Self { tree: tree.root, issues: tree.issues, file, origins: Vec::new() })
    }

    /// Lays `overrides` over what is there.
    ///
    /// A token, a token file and a login are three ways of saying the same: one of them drops whatever weaker sources said
    /// of the others. Of token and file in one source the file counts, as for `consul`, and either of them before a login.
    pub(super) fn apply_overrides(&mut self, overrides: &Overrides) {
        const WAYS: [&str; 3] = ["consul.token", "consul.token_file", LOGIN];
        let [token, token_file, login] = WAYS.map(FieldPath::of);
        let gives = |field: &FieldPath| overrides.0.iter().any(|one| field.covers(&one.field));
        // The parts of a login go together, whatever source each is from.
        let gives_token = gives(&token) || gives(&token_file);
        let dropped: &[_] = match (gives_token, gives(&login)) {
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
        let both = gives(&token) && gives(&token_file);
        let counts =
            |one: &&Override| !(both && one.field == token || gives_token && login.covers(&one.field));
        for one in overrides.0.iter().filter(counts) {
            self.lay(one);
        }
    }

    /// Lays what belongs to a login over one that is there. Whoever gives a token instead needs none of it.
    pub(super) fn apply_login_meta(&mut self, parts: Vec<Override>) {
        if look_up(&self.tree, &FieldPath::of(LOGIN)).is_some_and(Value::is_mapping) {
            parts.iter().for_each(|part| self.lay(part));
        }
    }

    /// Turns the address into an `https` one, as `consul` does where a variable asks for TLS.
    pub(super) fn ask_for_tls(&mut self, variable: &'static str) {
        let field = FieldPath::of("consul.address");
        match value_at(&mut self.tree, &field) {
            None | Some(Value::Null) => self.lay(&Override {
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
            // Of the wrong type: that is told elsewhere.
            Some(_) => {}
        }
    }

    /// Where `field` was written; where nobody wrote it, what is nearest.
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

    /// The part of `field` to point at where its value is wrong: the value, or the key where that has many lines.
    pub(super) fn part_of(&self, field: &FieldPath) -> Part {
        match look_up(&self.tree, field) {
            Some(Value::Bool(_) | Value::Number(_) | Value::String(_)) => Part::Value,
            Some(Value::Null | Value::Sequence(_) | Value::Mapping(_) | Value::Tagged(_)) | None => Part::Key,
        }
    }

    /// The place of what concerns the whole document.
    pub(super) fn whole(&self) -> Place {
        match &self.file {
            Some(File { name, .. }) => Place::File { name: name.clone(), at: None },
            None => Place::Nowhere,
        }
    }

    fn lay(&mut self, one: &Override) {
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

/// The value at `field`, where there is one.
pub(super) fn look_up<'t>(tree: &'t Value, field: &FieldPath) -> Option<&'t Value> {
    field.steps().iter().try_fold(tree, |value, step| match step {
        Step::Key(key) => value.as_mapping()?.get(key.as_str()),
        Step::Index(index) => value.as_sequence()?.get(*index),
    })
}

/// The value at `field`, where there is one, to change.
pub(super) fn value_at<'t>(tree: &'t mut Value, field: &FieldPath) -> Option<&'t mut Value> {
    field.steps().iter().try_fold(tree, |value, step| match step {
        Step::Key(key) => value.as_mapping_mut()?.get_mut(key.as_str()),
        Step::Index(index) => value.as_sequence_mut()?.get_mut(*index),
    })
}

/// The place for a value at `field`, made where there is none yet; none where something of another kind is in the way,
/// which is a fault told elsewhere.
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
