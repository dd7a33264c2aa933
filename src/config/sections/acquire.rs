//! The key `acquire`.

use schemars::JsonSchema;
use serde::Deserialize;

/// The key's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Acquire")]
pub(super) enum RawAcquire {
    /// Each slot as soon as it is free.
    Independently,
    /// All required slots in one transaction, or none.
    Together,
}

/// How the required slots are acquired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquire {
    /// Each as soon as it is free, as the key says.
    Independently,
    /// All in one transaction, or none, as the key says.
    Together,
    /// As the entries allow, since the key is absent.
    Default {
        /// Whether there are several required entries, and one transaction can acquire the slots of all.
        together: bool,
    },
}

impl Acquire {
    /// Whether the required slots are acquired all or nothing.
    pub fn is_together(self) -> bool {
        matches!(self, Self::Together | Self::Default { together: true })
    }

    /// Whether the key has the same value in both configurations.
    pub fn is_written_as(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}
