//! What a reload has changed, as the control endpoints, the status and `slotkeeper reload` tell it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::schema_version::SchemaVersion;

/// What a reload has changed: names of entries, and fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// The version of this document's schema.
    #[serde(default)]
    pub schema_version: SchemaVersion,
    /// Entries that are new.
    pub added: Vec<String>,
    /// Entries that are not configured any more, and are being released.
    pub removed: Vec<String>,
    /// Entries that have another name, as `a to b`.
    pub renamed: Vec<String>,
    /// Fields that have changed.
    pub changed: Vec<String>,
    /// What the configuration says otherwise and only a restart takes over, each with what to do.
    pub refused: Vec<String>,
    /// Entries that cannot be taken over yet, each with what is in the way.
    pub pending: Vec<String>,
    /// Entries that stay as they were, each with why: under `slotkeeper run`, for as long as its command lives.
    pub deferred: Vec<String>,
}

impl fmt::Display for Reloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("configuration reloaded")?;
        let Self { schema_version: _, added, removed, renamed, changed, refused, pending, deferred } = self;
        for (what, of) in [("added", added), ("removed", removed), ("renamed", renamed), ("changed", changed)]
        {
            if !of.is_empty() {
                write!(f, "\n{what}: {}", of.join(", "))?;
            }
        }
        for (what, of) in [("not changed", refused), ("pending", pending), ("deferred", deferred)] {
            of.iter().try_for_each(|one| write!(f, "\n{what}: {one}"))?;
        }
        Ok(())
    }
}
