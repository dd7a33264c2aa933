//! The key `acquire`.

use schemars::JsonSchema;
use serde::Deserialize;

/// How several slots are acquired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Acquire {
    /// Each slot as soon as it is free.
    #[default]
    Independently,
    /// All required slots in one transaction, or none.
    Together,
}
