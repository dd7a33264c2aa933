//! The `session` section.

use std::time::Duration;

use super::{DAY, value};
use crate::config::checked::Session;
use crate::config::duration::show;
use crate::config::findings::Findings;
use crate::config::path::FieldPath;
use crate::config::raw;
use slotkeeper_semaphore::DEFAULT_TTL;

pub(super) fn check(raw: raw::Session, at: &FieldPath, findings: &mut Findings) -> Session {
    let seconds = Duration::from_secs;
    // Consul's own bounds (`session_ttl_min`, and the most it takes).
    let ttl_at = at.key("ttl");
    let ttl = value::duration(raw.ttl, DEFAULT_TTL, seconds(10)..=DAY, &ttl_at, findings);
    let watch_grace = raw.watch_grace.map(|raw::WrittenDuration(grace)| grace);
    let grace_at = at.key("watch_grace");
    // A lease ends at the latest one TTL after the last renewal, whatever the watch does.
    if let Some(grace) = watch_grace.filter(|grace| *grace > ttl && !findings.is_unsure(&ttl_at)) {
        let (grace, ttl) = (show(grace), show(ttl));
        findings.fault(
            &grace_at,
            format!(
                "{grace} is longer than session.ttl, {ttl}, which ends the lease anyway; write at most {ttl}"
            ),
        );
    }
    Session {
        name: value::line(raw.name, &at.key("name"), findings).unwrap_or_else(|| "slotkeeper".to_owned()),
        ttl,
        behavior: raw.behavior.unwrap_or_default(),
        // Consul cuts what is longer to 60 s without a word.
        lock_delay: value::duration(
            raw.lock_delay,
            seconds(15),
            Duration::ZERO..=seconds(60),
            &at.key("lock_delay"),
            findings,
        ),
        watch_grace,
        node_checks: value::lines(raw.node_checks, &at.key("node_checks"), findings),
        service_checks: value::lines(raw.service_checks, &at.key("service_checks"), findings),
        node: value::line(raw.node, &at.key("node"), findings),
        state_file: value::own_file(raw.state_file, &at.key("state_file"), findings),
    }
}
