//! Paths to fields of the configuration: `semaphores[0].limit`.

use std::borrow::Borrow;
use std::fmt;

/// A path from the document's root to one of its fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FieldPath(Vec<Step>);

/// One step of a [`FieldPath`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    /// Into the mapping's entry of this key.
    Key(String),
    /// Into the list's element, counted from 0.
    Index(usize),
}

impl FieldPath {
    /// The document itself.
    pub(super) fn root() -> Self {
        Self::default()
    }

    /// The entry `key` of what this path names.
    pub(super) fn key(&self, key: impl Into<String>) -> Self {
        self.step(Step::Key(key.into()))
    }

    /// The element `index` of what this path names.
    pub(super) fn index(&self, index: usize) -> Self {
        self.step(Step::Index(index))
    }

    /// Parses a displayed path. For the plain keys in slotkeeper's own code.
    pub(super) fn of(text: &str) -> Self {
        let mut steps = Vec::new();
        for part in text.split('.') {
            match part.strip_suffix(']').and_then(|part| part.split_once('[')) {
                Some((key, index)) => {
                    steps.push(Step::Key(key.to_owned()));
                    steps.extend(index.parse().map(Step::Index));
                }
                None => steps.push(Step::Key(part.to_owned())),
            }
        }
        Self(steps)
    }

    pub(super) fn steps(&self) -> &[Step] {
        &self.0
    }

    /// Whether `other` is this path or below it.
    pub(super) fn covers(&self, other: &Self) -> bool {
        other.0.starts_with(&self.0)
    }

    fn step(&self, step: Step) -> Self {
        let mut steps = self.0.clone();
        steps.push(step);
        Self(steps)
    }
}

impl Borrow<[Step]> for FieldPath {
    fn borrow(&self) -> &[Step] {
        &self.0
    }
}

/// Characters of a key that are shown. Known keys are shorter.
const MAX_SHOWN_CHARS: usize = 80;

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, step) in self.0.iter().enumerate() {
            match step {
                Step::Index(index) => write!(f, "[{index}]")?,
                Step::Key(key) => {
                    if position > 0 {
                        f.write_str(".")?;
                    }
                    // A key is untrusted input; a fault stays one line of limited length.
                    for c in key.chars().take(MAX_SHOWN_CHARS).flat_map(char::escape_debug) {
                        write!(f, "{c}")?;
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_displayed_and_parsed() {
        let path = FieldPath::root().key("semaphores").index(0).key("limit");
        assert_eq!(path.to_string(), "semaphores[0].limit");
        assert_eq!(FieldPath::of("semaphores[0].limit"), path);
        assert_eq!(FieldPath::of("consul.tls.ca_file").to_string(), "consul.tls.ca_file");
        assert_eq!(FieldPath::root().key("a\nb").to_string(), "a\\nb");
    }

    #[test]
    fn a_path_covers_itself_and_the_fields_below() {
        let list = FieldPath::of("semaphores");
        let limit = list.index(1).key("limit");
        assert!(list.covers(&limit) && limit.covers(&limit) && FieldPath::root().covers(&list));
        assert!(!limit.covers(&list) && !list.index(0).covers(&limit));
    }
}
