//! The section `workload`.

use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::config::findings::Findings;
use crate::config::path::FieldPath;
use crate::config::scalar::DurationString;
use crate::config::value::{self, DAY};
use crate::duration::show;
use crate::workload::guard::fence;

/// The default time from SIGTERM to SIGKILL, as under `slotkeeper run`.
const KILL_AFTER: Duration = Duration::from_secs(5);

/// The workload beside the agent, in a pod with `shareProcessNamespace: true`, where the agent sees its processes. No slot is
/// released while one of them lives.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct RawWorkload {
    /// A folder on a volume of the pod. The workload is every process outside the agent's own container that has that volume
    /// mounted.
    volume: Option<PathBuf>,
    /// Whether the agent ends the workload when the lease expires, the slot is lost, or the workload runs without it: SIGTERM,
    /// and SIGKILL before another client can have the slot. The agent must run as the same user.
    #[schemars(extend("default" = false))]
    pub(super) stop: Option<bool>,
    /// The time from SIGTERM to SIGKILL. It must fit into the session's TTL.
    #[schemars(extend("default" = "5s"))]
    kill_after: Option<DurationString>,
}

/// The workload beside the agent, in the same process namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// A folder on the volume that both the workload's containers and the agent's have mounted.
    pub volume: PathBuf,
    /// The time from SIGTERM to SIGKILL; none: the agent does not end the workload.
    pub kill_after: Option<Duration>,
}

impl RawWorkload {
    pub(super) fn check(self, at: &FieldPath, ttl: Duration, findings: &mut Findings) -> Option<Workload> {
        let Self { volume, stop, kill_after } = self;
        let stops = stop.unwrap_or_default();
        let kill_after_at = at.key("kill_after");
        let kill_after =
            value::duration(kill_after, KILL_AFTER, Duration::ZERO..=DAY, &kill_after_at, findings);
        let max = fence::max_kill_after(ttl);
        if stops && kill_after > max && !findings.is_unsure(&FieldPath::of("session.ttl")) {
            let fix = fence::shortest_ttl(kill_after)
                .map_or(String::new(), |ttl| format!(", or a session.ttl of at least {}", show(ttl)));
            let (ttl, kill_after, max) = (show(ttl), show(kill_after), show(max));
            findings.fault(
                &kill_after_at,
                format!(
                    "with a session.ttl of {ttl}, the workload cannot have {kill_after} to stop and be certain to end before the \
                     slot is lost; write at most {max}{fix}"
                ),
            );
        }
        let Some(volume) = value::path(volume, &at.key("volume"), findings) else {
            findings.fault(
                &at.key("volume"),
                "missing; write a folder on a volume that the workload has mounted too",
            );
            return None;
        };
        if !volume.is_absolute() {
            findings.fault(
                &at.key("volume"),
                "is not an absolute path; write where the volume is mounted, such as /run/slotkeeper",
            );
        }
        Some(Workload { volume, kill_after: stops.then_some(kill_after) })
    }
}
