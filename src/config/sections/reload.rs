//! The section `reload`.

use schemars::JsonSchema;
use serde::Deserialize;

/// How a running agent reloads its configuration.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct RawReload {
    /// Whether changes of this file and of the files of `consul.tls` are reloaded without a signal, once the files have been
    /// unchanged for 2s. Such a reload releases no slot. A token file is always read again.
    #[schemars(extend("default" = true))]
    watch: Option<bool>,
}

/// How a running agent reloads its configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reload {
    /// Whether changed files are reloaded without a signal.
    pub watch: bool,
}

impl RawReload {
    pub(super) fn check(self) -> Reload {
        let Self { watch } = self;
        Reload { watch: watch.unwrap_or(true) }
    }
}
