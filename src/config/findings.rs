//! Findings of one check of the configuration: faults and warnings, each with its place.

use std::cell::OnceCell;
use std::collections::BTreeSet;

use super::fault::{Fault, Faults, Place};
use super::kinds::Read;
use super::path::FieldPath;
use super::spans::{Part, Spans};
use super::{LogFormat, Unfit};
use slotkeeper_semaphore::printable;

/// Faults in one report.
const MAX_FAULTS: usize = 100;

/// Collects faults and warnings about one document.
#[derive(Default)]
pub(super) struct Findings {
    file: Option<File>,
    /// The fields that flags and variables have set, stronger ones last.
    origins: Vec<(FieldPath, Place)>,
    faults: Vec<Fault>,
    warnings: Vec<String>,
    /// Fields that have a fault already, so that their value is not known. Further faults of theirs, and of the fields below them,
    /// are suppressed.
    unsure: BTreeSet<FieldPath>,
    omitted: usize,
}

struct File {
    name: String,
    text: String,
    /// Filled for the first fault or warning; most files have none.
    spans: OnceCell<Spans>,
}

impl Findings {
    /// None so far, about a file.
    pub(super) fn of_file(name: &str, text: &str) -> Self {
        let file = File { name: name.to_owned(), text: text.to_owned(), spans: OnceCell::new() };
        Self { file: Some(file), ..Self::default() }
    }

    /// Remembers where `field` was set.
    pub(super) fn set_origin(&mut self, field: FieldPath, place: Place) {
        self.origins.push((field, place));
    }

    /// Forgets where `field`, and the fields below it, were set.
    pub(super) fn forget_origin(&mut self, field: &FieldPath) {
        self.origins.retain(|(set, _)| !field.covers(set));
    }

    /// The value of `field`, if it is right; else its fault is added.
    pub(super) fn accept<T>(&mut self, field: &FieldPath, read: Read<T>) -> Option<T> {
        read.map_err(|message| self.fault(field, message)).ok()
    }

    /// Adds a fault of the value of `field`.
    pub(super) fn fault(&mut self, field: &FieldPath, message: impl Into<String>) {
        self.fault_at(field, Part::Value, message);
        self.suppress(field.clone());
    }

    /// Adds a fault of one part of `field`, whose value may be right.
    pub(super) fn fault_at(&mut self, field: &FieldPath, part: Part, message: impl Into<String>) {
        if self.is_unsure(field) {
            return;
        }
        if self.faults.len() == MAX_FAULTS {
            self.omitted += 1;
            return;
        }
        let place = self.place(field, part);
        self.faults.push(Fault { place, field: field.clone(), message: one_line(&message.into()) });
    }

    /// Adds faults and warnings from elsewhere.
    pub(super) fn add(&mut self, faults: Vec<Fault>, warnings: Vec<String>) {
        self.faults.extend(faults);
        self.warnings.extend(warnings);
    }

    /// Suppresses further faults of `field` and of the fields below it.
    pub(super) fn suppress(&mut self, field: FieldPath) {
        self.unsure.insert(field);
    }

    /// Whether the value of `field` is not known.
    pub(super) fn is_unsure(&self, field: &FieldPath) -> bool {
        let steps = field.steps();
        (0..=steps.len()).any(|length| self.unsure.contains(&steps[..length]))
    }

    /// Adds a fault of a value that does not fit the command.
    pub(super) fn unfit(&mut self, Unfit { flag, field, message }: Unfit) {
        let field = FieldPath::of(field);
        match flag {
            Some(flag) => self.faults.push(Fault { place: Place::Flag(flag), field, message }),
            None => self.fault(&field, message),
        }
    }

    /// Whether no fault was found so far.
    pub(super) fn has_no_fault(&self) -> bool {
        self.faults.is_empty()
    }

    /// Adds a warning about a valid `field`.
    pub(super) fn warn(&mut self, field: &FieldPath, message: &str) {
        let place = self.place(field, Part::Value);
        self.warnings.push(Fault { place, field: field.clone(), message: message.to_owned() }.to_string());
    }

    /// The warnings of a configuration without faults. `log_format`: the format for faults.
    ///
    /// # Errors
    ///
    /// All faults, in the order of the file.
    pub(super) fn finish(mut self, log_format: LogFormat) -> Result<Vec<String>, Faults> {
        if self.faults.is_empty() {
            return Ok(self.warnings);
        }
        self.faults.sort();
        if self.omitted > 0 {
            let place = self.file.map_or(Place::Nowhere, |file| Place::File { name: file.name, at: None });
            let message = format!("and {} more errors; fix these first", self.omitted);
            self.faults.push(Fault { place, field: FieldPath::root(), message });
        }
        Err(Faults { list: self.faults, log_format })
    }

    /// Where `field` was written; for a missing field, the place of the nearest parent.
    fn place(&self, field: &FieldPath, part: Part) -> Place {
        let origin = self.origins.iter().rev().find(|(path, _)| path.covers(field));
        match (origin, &self.file) {
            (Some((_, origin)), _) => origin.clone(),
            (None, Some(File { name, text, spans })) => {
                let spans = spans.get_or_init(|| Spans::read(text));
                Place::File { name: name.clone(), at: Some(spans.locate(field.steps(), part)) }
            }
            (None, None) => Place::Nowhere,
        }
    }
}

/// A message that may quote untrusted input, as one line of limited length.
pub(super) fn one_line(message: &str) -> String {
    printable(message, 400)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_of_limited_length() {
        assert_eq!(one_line("unknown value `a\nb`"), "unknown value `a\\nb`");
        assert!(one_line(&"x".repeat(100_000)).len() < 500);
    }
}
