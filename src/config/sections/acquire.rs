//! The key `acquire`.

use schemars::JsonSchema;
use serde::Deserialize;

/// The key's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Acquire")]
pub enum RawAcquire {
    /// Each slot as soon as it is free.
    Independently,
    /// All required slots in one transaction, or none.
    Together,
}

/// How the required slots are acquired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acquire {
    /// The key's value. Without one the entries decide.
    pub written: Option<RawAcquire>,
    /// All in one transaction, or none. Otherwise each as soon as it is free.
    pub together: bool,
}
