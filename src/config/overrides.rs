//! Values from flags and environment variables, which override the file's.
//!
//! They are applied to the document before it is decoded, so that one set of rules applies to all sources. A fault names the
//! flag or the variable.

use std::fmt;

use serde_yaml::Value;

use super::fault::Place;
use super::path::FieldPath;

/// Values that override the file's, weaker ones first.
#[derive(Clone, Default)]
pub struct Overrides(pub(super) Vec<Override>);

#[derive(Clone)]
pub(super) struct Override {
    pub(super) origin: Place,
    pub(super) field: FieldPath,
    pub(super) value: Value,
}

impl Overrides {
    /// Sets `field` (such as `semaphores[0].limit`) by the flag `flag`. An absent flag has no effect.
    pub fn flag(&mut self, flag: &'static str, field: &'static str, value: Option<impl Into<Value>>) {
        self.push(Place::Flag(flag), field, value);
    }

    pub(super) fn variable(
        &mut self,
        name: &'static str,
        field: &'static str,
        value: Option<impl Into<Value>>,
    ) {
        self.push(Place::Variable(name), field, value);
    }

    /// The flags or variables, each with its field.
    #[cfg(test)]
    pub(crate) fn sources(&self) -> impl Iterator<Item = (String, String)> {
        self.0.iter().map(|one| (one.origin.to_string(), one.field.to_string()))
    }

    fn push(&mut self, origin: Place, field: &'static str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.0.push(Override { origin, field: FieldPath::of(field), value: value.into() });
        }
    }
}

/// Shows no values, since one of them may be a token.
impl fmt::Debug for Overrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.0.iter().map(|one| (one.origin.to_string(), one.field.to_string())))
            .finish()
    }
}
