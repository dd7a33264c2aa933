//! Tells of changes: a log line each, and the hooks.

use std::time::Duration;

use tracing::{debug, error, info, warn};

use crate::config;
use crate::semaphore::{LimitPolicy, Notice};
use crate::workload::hooks::{Call, Hooks};

/// One log event a state change; nothing that comes round by itself is above `debug`.
pub(super) fn log(notice: &Notice) {
    match notice {
        Notice::SessionStarted { session, resumed: false } => info!(%session, "session created"),
        Notice::SessionStarted { session, resumed: true } => info!(%session, "session taken up again"),
        Notice::SessionEnded { session } => warn!(%session, "the session has ended"),
        Notice::Renewed { took } => debug!(took_ms = millis(*took), "session renewed"),
        Notice::RenewFailed { failure } => debug!("the session was not renewed: {}", failure.text),
        Notice::Trouble { name: None, failure } => warn!("trouble with the session: {}", failure.text),
        Notice::Trouble { name: Some(semaphore), failure } => warn!(%semaphore, "trouble: {}", failure.text),
        Notice::TroubleOver { name: None } => info!("the session is in order again"),
        Notice::TroubleOver { name: Some(semaphore) } => info!(%semaphore, "in order again"),
        Notice::Waiting { name, position, taken, limit } => {
            info!(semaphore = %name, position, taken, limit, "waiting for a slot");
        }
        Notice::Acquired { name, token, indexes, resumed: true, .. } => {
            info!(semaphore = %name, slot = indexes.first(), fencing_token = token, "slot taken up again");
        }
        Notice::Acquired { name, token, indexes, took, .. } => {
            let (slot, after_ms) = (indexes.first(), millis(*took));
            info!(semaphore = %name, slot, fencing_token = token, after_ms, "slot acquired");
        }
        Notice::Lost { name, reason, held, .. } => {
            let reason = reason.as_str();
            error!(semaphore = %name, reason, held_seconds = held.as_secs(), "slot lost");
        }
        Notice::Released { name, held } => {
            info!(semaphore = %name, held_seconds = held.as_secs(), "slot given back");
        }
        Notice::Blocked { name, why } => error!(semaphore = %name, "kept out: {why}"),
        Notice::GaveUp { name, reached, trouble } => {
            let what = if *reached { "no slot" } else { "no answer from Consul" };
            match trouble {
                Some(trouble) => {
                    warn!(semaphore = %name, "{what} in the time given; the last trouble was: {trouble}");
                }
                None => warn!(semaphore = %name, "{what} in the time given"),
            }
        }
        Notice::LimitDiffers { name, policy: LimitPolicy::Set, stored, configured } => {
            warn!(
                semaphore = %name, stored, configured,
                "somebody has changed the limit since ours was set, and theirs governs; `limit_policy: set` writes ours \
                 again when the agent starts or its configured limit changes"
            );
        }
        Notice::LimitDiffers {
            name,
            policy: LimitPolicy::Adopt | LimitPolicy::Refuse,
            stored,
            configured,
        } => {
            warn!(
                semaphore = %name, stored, configured,
                "the stored limit governs, not the configured one; `limit_policy: set` would write ours"
            );
        }
        Notice::LimitChanged { name, from, to } => {
            info!(semaphore = %name, from, to, "the stored limit was changed");
        }
        Notice::LimitSet { name, from, to } => {
            warn!(semaphore = %name, from, to, "limit changed, for everybody");
        }
        Notice::Pruned { name, holders, .. } => info!(semaphore = %name, holders, "dead holders taken out"),
        Notice::Conflict { name } => debug!(semaphore = %name, "another client was faster; looking again"),
        Notice::Removed { name } => info!(semaphore = %name, "semaphore removed"),
    }
}

/// The same of a lease. That somebody waits for one, or did in vain, is its client's matter, which may ask again and
/// again.
pub(super) fn log_of_lease(notice: &Notice) {
    match notice {
        Notice::Waiting { name, position, taken, limit } => {
            debug!(semaphore = %name, position, taken, limit, "a lease is waited for");
        }
        Notice::GaveUp { name, reached, trouble } => {
            debug!(semaphore = %name, reached, trouble, "a lease was not to be had in the time given");
        }
        Notice::SessionStarted { .. }
        | Notice::SessionEnded { .. }
        | Notice::Renewed { .. }
        | Notice::RenewFailed { .. }
        | Notice::Trouble { .. }
        | Notice::TroubleOver { .. }
        | Notice::Acquired { .. }
        | Notice::Lost { .. }
        | Notice::Released { .. }
        | Notice::Blocked { .. }
        | Notice::LimitDiffers { .. }
        | Notice::LimitChanged { .. }
        | Notice::LimitSet { .. }
        | Notice::Pruned { .. }
        | Notice::Conflict { .. }
        | Notice::Removed { .. } => log(notice),
    }
}

/// Calls the hook that a change has, if it has one.
pub(super) fn call_hook(notice: &Notice, config: &config::Hooks, hooks: &Hooks) {
    let (name, session, token, indexes, reason, command) = match notice {
        Notice::Acquired { name, session, token, indexes, .. } => {
            (name, session, token, indexes, None, &config.on_acquired)
        }
        Notice::Lost { name, session, token, indexes, reason, .. } => {
            (name, session, token, indexes, Some(reason), &config.on_lost)
        }
        Notice::SessionStarted { .. }
        | Notice::SessionEnded { .. }
        | Notice::Renewed { .. }
        | Notice::RenewFailed { .. }
        | Notice::Trouble { .. }
        | Notice::TroubleOver { .. }
        | Notice::Waiting { .. }
        | Notice::Released { .. }
        | Notice::Blocked { .. }
        | Notice::GaveUp { .. }
        | Notice::LimitDiffers { .. }
        | Notice::LimitChanged { .. }
        | Notice::LimitSet { .. }
        | Notice::Pruned { .. }
        | Notice::Conflict { .. }
        | Notice::Removed { .. } => return,
    };
    let Some(command) = command.clone() else { return };
    let event = if reason.is_some() { "lost" } else { "acquired" };
    let mut environment = vec![
        ("SLOTKEEPER_EVENT", event.to_owned()),
        ("SLOTKEEPER_SEMAPHORE", name.to_string()),
        ("SLOTKEEPER_SESSION", session.to_string()),
        ("SLOTKEEPER_FENCING_TOKEN", token.to_string()),
    ];
    environment.extend(indexes.first().map(|slot| ("SLOTKEEPER_SLOT", slot.to_string())));
    environment.extend(reason.map(|reason| ("SLOTKEEPER_REASON", reason.as_str().to_owned())));
    hooks.call(Call { command, environment });
}

/// As the log's JSON has numbers.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
