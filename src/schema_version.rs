//! The version of slotkeeper's JSON documents, which each of them begins with: `docs/stability.md` says what it promises.

use serde::{Deserialize, Serialize};

/// The version that this program writes. It increases if a field is removed, renamed, or changes its meaning.
const CURRENT: u32 = 1;

/// The field `schema_version` of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SchemaVersion(u32);

impl Default for SchemaVersion {
    fn default() -> Self {
        Self(CURRENT)
    }
}
