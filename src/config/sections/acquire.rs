//! The key `acquire`.

use schemars::JsonSchema;
use serde::Deserialize;

/// How several slots are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Acquire {
    /// Each as soon as it is to be had.
    #[default]
    Independently,
    /// All required ones in one transaction, or none.
    Together,
}
