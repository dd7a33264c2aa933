//! The section `drain`.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::config::findings::Findings;
use crate::config::path::FieldPath;
use crate::config::scalar::DurationString;
use crate::config::value::{self, DAY};

/// The default timeout. An election of Consul's servers takes 9 to 19 s at their defaults. A slot that is not released after
/// three quarters of the timeout is left to the session's end. Kubernetes' default grace period is 30 s.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(25);

/// How the agent stops.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct RawDrain {
    /// The maximum time for the release, more than 0s and at most 24h. The platform's termination grace period (such as
    /// `terminationGracePeriodSeconds`) must be longer.
    #[schemars(extend("default" = "25s"))]
    pub(super) timeout: Option<DurationString>,
    /// `at_once`: release the slots as soon as the agent gets a signal to stop. `after_workload`: hold them until the
    /// workload reports that it is done (`POST /v1/drain` at `control.listen`), a second signal comes, or the timeout is over.
    #[schemars(extend("default" = "at_once"))]
    pub(super) release: Option<Release>,
    /// With `at_once`: how long the slots stay held after the signal, at most 24h, in addition to `timeout`. For platforms that
    /// may send the signal while the workload has some seconds left. A second signal ends the agent without a release.
    #[schemars(extend("default" = "0s"))]
    pub(super) hold: Option<DurationString>,
}

/// How the agent stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drain {
    /// The maximum time for the release: above 0, at most 24 h.
    pub timeout: Duration,
    /// When the slots are released.
    pub release: Release,
    /// How long the slots stay held after the signal, if the agent does not learn when the workload is done: at most 24 h.
    pub hold: Duration,
}

/// When a stopping agent releases its slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Release {
    /// As soon as the agent gets a signal to stop.
    #[default]
    AtOnce,
    /// When the workload reports that it is done (`POST /v1/drain` at `control.listen`), or the timeout is over.
    AfterWorkload,
}

impl RawDrain {
    pub(super) fn check(self, at: &FieldPath, findings: &mut Findings) -> Drain {
        let Self { timeout, release, hold } = self;
        let bounds = Duration::from_millis(1)..=DAY;
        let timeout = value::duration(timeout, DEFAULT_TIMEOUT, bounds, &at.key("timeout"), findings);
        let bounds = Duration::ZERO..=DAY;
        let hold = value::duration(hold, Duration::ZERO, bounds, &at.key("hold"), findings);
        Drain { timeout, release: release.unwrap_or_default(), hold }
    }
}
