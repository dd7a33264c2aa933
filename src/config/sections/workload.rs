//! The section `workload`.

use std::path::PathBuf;
use std::time::Duration;

use crate::config::fields::Fields;
use crate::config::kinds::{DAY, duration, flag, path, seconds};
use crate::config::path::FieldPath;
use crate::duration::show;
use crate::workload::guard::fence;

/// The default time from SIGTERM to SIGKILL, as under `slotkeeper run`.
const KILL_AFTER: Duration = seconds(5);

/// The workload beside the agent, in the same process namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// A folder on the volume that both the workload's containers and the agent's have mounted.
    pub volume: PathBuf,
    /// The time from SIGTERM to SIGKILL; none: the agent does not end the workload.
    pub kill_after: Option<Duration>,
}

impl Workload {
    pub(super) fn read(ttl: Duration, f: &mut Fields<'_>) -> Self {
        const MISSING: &str = "missing; write a folder on a volume that the workload has mounted too";
        let stops = f.get("stop", flag).unwrap_or(false);
        let kill_after = f.get("kill_after", duration(Duration::ZERO..=DAY)).unwrap_or(KILL_AFTER);
        let max = fence::max_kill_after(ttl);
        if stops && kill_after > max && !f.findings.is_unsure(&FieldPath::of("session.ttl")) {
            let fix = fence::shortest_ttl(kill_after)
                .map_or(String::new(), |ttl| format!(", or a session.ttl of at least {}", show(ttl)));
            let (ttl, kill_after, max) = (show(ttl), show(kill_after), show(max));
            f.fault(
                "kill_after",
                format!(
                    "with a session.ttl of {ttl}, the workload cannot have {kill_after} to stop and be certain to end before the \
                     slot is lost; write at most {max}{fix}"
                ),
            );
        }
        let volume = f.need("volume", MISSING, |value| match path(value)? {
            volume if volume.is_absolute() => Ok(volume),
            _ => Err("is not an absolute path; write where the volume is mounted, such as /run/slotkeeper"
                .to_owned()),
        });
        Self { volume: volume.unwrap_or_default(), kill_after: stops.then_some(kill_after) }
    }
}
