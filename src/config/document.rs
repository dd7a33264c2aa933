//! One configuration document: the file's tree of values, with the values of flags and variables laid over it.

use serde_yaml::{Mapping, Value};

use super::fault::{Fault, Place};
use super::findings::{Findings, one_line};
use super::overrides::{Override, Overrides};
use super::path::{FieldPath, Step};
use super::yaml;

const LOGIN: &str = "consul.login";

/// The tree, and what was found about it.
pub(super) struct Document {
    pub(super) tree: Value,
    pub(super) findings: Findings,
}

impl Document {
    /// An empty document.
    pub(super) fn empty() -> Self {
        Self { tree: Value::Mapping(Mapping::new()), findings: Findings::default() }
    }

    /// The document `text`. Faults call it `name`.
    ///
    /// # Errors
    ///
    /// If it is not one YAML document.
    pub(super) fn read(name: &str, text: &str) -> Result<Self, Fault> {
        let (tree, issues) = yaml::parse(text).map_err(|error| {
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
        let mut findings = Findings::of_file(name, text);
        issues.into_iter().for_each(|(field, part, message)| findings.fault_at(&field, part, message));
        Ok(Self { tree, findings })
    }

    /// Applies `overrides` to the tree.
    ///
    /// A token, a token file and a login exclude each other: one of them drops the other two of weaker sources. Within one
    /// source the token file precedes the token, as for `consul`, and both precede a login.
    pub(super) fn apply_overrides(&mut self, overrides: &Overrides) {
        let [token, token_file, login] = ["consul.token", "consul.token_file", LOGIN].map(FieldPath::of);
        let sets = |field: &FieldPath| overrides.0.iter().any(|one| field.covers(&one.field));
        let sets_token = sets(&token) || sets(&token_file);
        // The parts of a login may come from several sources.
        let dropped: &[_] = match (sets_token, sets(&login)) {
            (true, _) => &[&token, &token_file, &login],
            (false, true) => &[&token, &token_file],
            (false, false) => &[],
        };
        for field in dropped {
            if let Some(value) = value_at(&mut self.tree, field) {
                *value = Value::Null;
            }
            self.findings.forget_origin(field);
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
        if value_at(&mut self.tree, &field).is_some_and(|value| value.is_null()) {
            self.apply(&Override { origin: Place::Nowhere, field, value: value.into() });
        }
    }

    /// Applies the parts of a login's description, if there is a login. A token needs no description.
    pub(super) fn apply_login_meta(&mut self, parts: &[Override]) {
        if value_at(&mut self.tree, &FieldPath::of(LOGIN)).is_some_and(|login| login.is_mapping()) {
            parts.iter().for_each(|part| self.apply(part));
        }
    }

    fn apply(&mut self, one: &Override) {
        if let Some(value) = value_at(&mut self.tree, &one.field) {
            *value = one.value.clone();
            self.findings.set_origin(one.field.clone(), one.origin.clone());
        }
    }
}

/// The value at `field`, which is null if it was missing. None if a parent has a wrong type, which the reader reports.
fn value_at<'t>(tree: &'t mut Value, field: &FieldPath) -> Option<&'t mut Value> {
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
