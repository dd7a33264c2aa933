//! The section `reload`.

use schemars::JsonSchema;
use serde::Deserialize;

/// How a running agent takes over what has changed.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct RawReload {
    /// Whether changes of this file and of the files of `consul.tls` are taken over without a signal, once the files have been
    /// unchanged for 2s. Such a reload releases no slot. A token file is read again in any case.
    #[schemars(extend("default" = true))]
    watch: Option<bool>,
}

/// How a running agent takes over what has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reload {
    /// Whether changed files are taken over without a signal.
    pub watch: bool,
}

impl RawReload {
    pub(super) fn check(self) -> Reload {
        let Self { watch } = self;
        Reload { watch: watch.unwrap_or(true) }
    }
}
