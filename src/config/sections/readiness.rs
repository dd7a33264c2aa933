//! The section `readiness`.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::config::findings::Findings;
use crate::config::path::FieldPath;
use crate::config::value;

/// The readiness file.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct RawReadiness {
    /// The file. It exists while all required slots are held, and is removed before the first one is released. None by
    /// default; an empty text is none.
    pub(super) file: Option<PathBuf>,
}

impl RawReadiness {
    /// The readiness file; none if it is off.
    pub(super) fn check(self, at: &FieldPath, findings: &mut Findings) -> Option<PathBuf> {
        let Self { file } = self;
        value::own_file(file, &at.key("file"), findings)
    }
}
