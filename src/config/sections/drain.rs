//! The section `drain`.

use std::time::Duration;

use crate::config::fields::Fields;
use crate::config::kinds::{DAY, choice, duration, seconds};

/// The default timeout. An election of Consul's servers takes 9 to 19 s at their defaults. A slot that is not released after
/// three quarters of the timeout is left to the session's end. Kubernetes' default grace period is 30 s.
const DEFAULT_TIMEOUT: Duration = seconds(25);

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// As soon as the agent gets a signal to stop.
    AtOnce,
    /// When the workload reports that it is done (`POST /v1/drain` at `control.listen`), or the timeout is over.
    AfterWorkload,
}

impl Drain {
    pub(super) fn read(f: &mut Fields<'_>) -> Self {
        let release = choice(&[("at_once", Release::AtOnce), ("after_workload", Release::AfterWorkload)]);
        Self {
            timeout: f.get("timeout", duration(Duration::from_millis(1)..=DAY)).unwrap_or(DEFAULT_TIMEOUT),
            release: f.get("release", release).unwrap_or(Release::AtOnce),
            hold: f.get("hold", duration(Duration::ZERO..=DAY)).unwrap_or_default(),
        }
    }
}
