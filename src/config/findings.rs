//! Findings of one check of the configuration: faults and warnings, each with its place.

use super::document::Document;
use super::fault::{Fault, Faults, Place};
use super::path::FieldPath;
use super::spans::Part;
use super::yaml::YamlIssue;
use super::{LogFormat, Unfit};
use slotkeeper_semaphore::printable;

/// Faults in one report.
const MAX_FAULTS: usize = 100;

/// Collects faults and warnings about one document.
pub(super) struct Findings {
    document: Document,
    faults: Vec<Fault>,
    warnings: Vec<String>,
    /// Fields that have a fault already, so that their value is not known. Further faults of theirs are suppressed.
    unsure: Vec<FieldPath>,
    omitted: usize,
}

impl Findings {
    pub(super) fn of(document: Document) -> Self {
        let issues = document.issues.clone();
        let mut findings =
            Self { document, faults: Vec::new(), warnings: Vec::new(), unsure: Vec::new(), omitted: 0 };
        for (field, issue) in issues {
            match issue {
                YamlIssue::Duplicate => {
                    findings.fault_at(&field, Part::DuplicateKey, "duplicate key; remove one");
                }
                YamlIssue::Tagged => {
                    findings.fault(&field, "has a YAML tag, which has no meaning here; remove it");
                }
            }
        }
        findings
    }

    pub(super) fn document(&self) -> &Document {
        &self.document
    }

    /// Adds a fault of the value of `field`.
    pub(super) fn fault(&mut self, field: &FieldPath, message: impl Into<String>) {
        let part = self.document.part_of(field);
        self.fault_at(field, part, message);
    }

    /// Adds a fault of one part of `field`.
    pub(super) fn fault_at(&mut self, field: &FieldPath, part: Part, message: impl Into<String>) {
        if self.is_unsure(field) {
            return;
        }
        if self.faults.len() == MAX_FAULTS {
            self.omitted += 1;
            return;
        }
        let place = self.document.place(field, part);
        self.faults.push(Fault { place, field: field.clone(), message: one_line(&message.into()) });
    }

    /// Adds faults and warnings from elsewhere.
    pub(super) fn add(&mut self, faults: Vec<Fault>, warnings: Vec<String>) {
        self.faults.extend(faults);
        self.warnings.extend(warnings);
    }

    /// Suppresses further faults of `field` and of the fields below it.
    pub(super) fn suppress(&mut self, field: FieldPath) {
        if !self.is_unsure(&field) {
            self.unsure.push(field);
        }
    }

    /// Whether the value of `field` is not known.
    pub(super) fn is_unsure(&self, field: &FieldPath) -> bool {
        self.unsure.iter().any(|unsure| unsure.covers(field))
    }

    /// Sets the fields that no source sets.
    pub(super) fn apply_defaults(&mut self, defaults: &[(&'static str, &'static str)]) {
        defaults.iter().for_each(|(field, value)| self.document.apply_default(field, value));
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
        let place = self.document.place(field, self.document.part_of(field));
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
            let place = self.document.whole();
            let message = format!("and {} more errors; fix these first", self.omitted);
            self.faults.push(Fault { place, field: FieldPath::root(), message });
        }
        Err(Faults { list: self.faults, log_format })
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
