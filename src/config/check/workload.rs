//! The section `workload`.

use std::time::Duration;

use super::{DAY, value};
use crate::config::checked::Workload;
use crate::config::duration::show;
use crate::config::findings::Findings;
use crate::config::path::FieldPath;
use crate::config::raw;
use crate::workload::guard::fence;

/// From SIGTERM to SIGKILL where nothing is written, as under `slotkeeper run`.
const KILL_AFTER: Duration = Duration::from_secs(5);

pub(super) fn check(raw: raw::Workload, ttl: Duration, findings: &mut Findings) -> Option<Workload> {
    let root = FieldPath::of("workload");
    let stops = raw.stop.unwrap_or_default();
    let at = root.key("kill_after");
    let kill_after = value::duration(raw.kill_after, KILL_AFTER, Duration::ZERO..=DAY, &at, findings);
    let longest = fence::longest_kill_after(ttl);
    if stops && kill_after > longest && !findings.is_unsure(&FieldPath::of("session.ttl")) {
        let mend = fence::shortest_ttl(kill_after)
            .map_or(String::new(), |ttl| format!(", or a session.ttl of at least {}", show(ttl)));
        let (ttl, kill_after, longest) = (show(ttl), show(kill_after), show(longest));
        findings.fault(
            &at,
            format!(
                "under a session.ttl of {ttl} the workload cannot have {kill_after} for stopping and surely be gone before its slot \
                 is; write at most {longest}{mend}"
            ),
        );
    }
    let Some(volume) = value::path(raw.volume, &root.key("volume"), findings) else {
        findings.fault(
            &root.key("volume"),
            "missing; write a folder on the volume that the workload has mounted too",
        );
        return None;
    };
    if !volume.is_absolute() {
        findings.fault(
            &root.key("volume"),
            "is no absolute path; write where the volume is mounted, such as /run/slotkeeper",
        );
    }
    Some(Workload { volume, kill_after: stops.then_some(kill_after) })
}
