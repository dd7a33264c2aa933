//! Log lines and hooks for the notices of the core.

use std::time::Duration;

use tokio::sync::oneshot;
use tracing::field::display;
use tracing::{debug, error, info, warn};

use super::labels::{self, Labels};
use crate::config;
use crate::log_events::{
    BLOCKED, FORMAT_DIFFERS, HOLDER_EVICTED, HOLDERS_PRUNED, LEASE_LOCK_DELAY, LEASE_LOCK_LEADER,
    LEASE_WAIT_TIMED_OUT, LEASE_WAITING, LIMIT_CHANGED, LIMIT_DIFFERS, LIMIT_SET, LOCK_DELAYED, LOCK_FREE,
    LOCK_HELD, LOCK_HELD_BY_OTHER, REQUEST_FAILED, REQUEST_RECOVERED, SEMAPHORE_REMOVED, SESSION_CREATED,
    SESSION_ENDED, SESSION_RENEWAL_FAILED, SESSION_RENEWED, SESSION_REQUEST_FAILED,
    SESSION_REQUEST_RECOVERED, SESSION_RESUMED, SESSION_TAKEN, SLOT_ACQUIRED, SLOT_LOST, SLOT_RELEASED,
    SLOT_RESUMED, UNANSWERED_SESSIONS_DESTROYED, WAIT_TIMED_OUT, WAIT_UNANSWERED, WAITER_EVICTED, WAITING,
    WRITE_CONFLICT,
};
use crate::status::{Kind, Subject};
use crate::workload::hooks::{Call, Event, Hooks, Succeeded};
use slotkeeper_semaphore::{Identity, Leader, LimitPolicy, Notice, SessionId, printable};

/// Why a list does not fit beside a map, and what to do.
const JOINS_A_MAP: &str = "the record is a map, but this agent would create a list, which `consul lock -n` refuses; set `format: map`";

/// The id of another client's session may be any text.
const MAX_SESSION_CHARS: usize = 64;

/// Logs a notice, about `subject`. What recurs without a change of state is logged at `debug`.
pub(super) fn log(notice: &Notice, subject: Option<&Subject>) {
    match notice {
        Notice::SessionStarted { session, resumed: false } => info!(%session, "{SESSION_CREATED}"),
        Notice::SessionStarted { session, resumed: true } => info!(%session, "{SESSION_RESUMED}"),
        Notice::SessionEnded { session } => warn!(%session, "{SESSION_ENDED}"),
        Notice::SessionTaken { session } => error!(
            %session,
            "{SESSION_TAKEN}, which has its slots now; creating a new session. Check whether the state file was copied, or \
             the .lock file beside it deleted"
        ),
        Notice::SessionsCleared { sessions } => {
            info!(sessions, "{UNANSWERED_SESSIONS_DESTROYED}");
        }
        Notice::Renewed { took } => debug!(took_ms = millis(*took), "{SESSION_RENEWED}"),
        Notice::RenewFailed { failure } => debug!(error = %failure.text, "{SESSION_RENEWAL_FAILED}"),
        Notice::Failing { name: None, failure } => {
            warn!(error = %failure.text, "{SESSION_REQUEST_FAILED}; retrying");
        }
        Notice::Failing { name: Some(semaphore), failure } => {
            warn!(%semaphore, error = %failure.text, "{REQUEST_FAILED}; retrying");
        }
        Notice::Recovered { name: None } => info!("{SESSION_REQUEST_RECOVERED}"),
        Notice::Recovered { name: Some(semaphore) } => info!(%semaphore, "{REQUEST_RECOVERED}"),
        Notice::Waiting { name, position, taken, limit } => {
            info!(semaphore = %name, position, taken, limit, "{WAITING}");
        }
        // The agent's own lock is logged as it is acquired.
        Notice::Leader { name, leader: Some(leader) } if leader.mine => {
            debug!(semaphore = %name, "{LOCK_HELD}");
        }
        Notice::Leader { name, leader: Some(Leader { session, who, .. }) } => {
            let who = who.as_ref().and_then(Identity::in_words);
            let session = printable(session.as_str(), MAX_SESSION_CHARS);
            info!(semaphore = %name, %session, who, "{LOCK_HELD_BY_OTHER}");
        }
        Notice::Leader { name, leader: None } => info!(semaphore = %name, "{LOCK_FREE}"),
        Notice::LockDelayed { name, left: Some(left) } => {
            let left_ms = millis(*left);
            info!(semaphore = %name, left_ms, "{LOCK_DELAYED}");
        }
        Notice::LockDelayed { name, left: None } => {
            info!(semaphore = %name, "{LOCK_DELAYED}, which lasts for at most 60 s; retrying");
        }
        Notice::Acquired { name, token, indexes, resumed: true, .. } => {
            info!(semaphore = %name, slot = indexes.first(), fencing_token = token, "{SLOT_RESUMED}");
        }
        Notice::Acquired { name, session, token, indexes, took, .. } => {
            let (slot, after_ms) = (indexes.first(), millis(*took));
            info!(semaphore = %name, %session, slot, fencing_token = token, after_ms, "{SLOT_ACQUIRED}");
        }
        Notice::Lost { name, session, reason, held, .. } => {
            let reason = reason.as_str();
            error!(semaphore = %name, %session, reason, held_seconds = held.as_secs(), "{SLOT_LOST}");
        }
        Notice::Evicted { name, by, held: true } => {
            warn!(semaphore = %name, by, "{HOLDER_EVICTED}; the slot is released when the workload has stopped");
        }
        Notice::Evicted { name, by, held: false } => warn!(semaphore = %name, by, "{WAITER_EVICTED}"),
        Notice::Released { name, session, held } => {
            info!(semaphore = %name, %session, held_seconds = held.as_secs(), "{SLOT_RELEASED}");
        }
        Notice::Blocked { name, obstacle } => error!(semaphore = %name, reason = %obstacle.why, "{BLOCKED}"),
        Notice::TimedOut { name, reached, failure: trouble, .. } => {
            let event = if *reached { WAIT_TIMED_OUT } else { WAIT_UNANSWERED };
            let last_failure = trouble.as_ref().map(|failure| display(&failure.text));
            warn!(semaphore = %name, last_failure, "{event}");
        }
        Notice::LimitDiffers { name, policy: LimitPolicy::Set, stored, configured } => {
            warn!(
                semaphore = %name, stored, configured,
                "{LIMIT_DIFFERS}: another client has changed it, and the stored limit applies; `limit_policy: set` writes \
                 the configured limit again when the agent starts or the configured limit changes"
            );
        }
        Notice::LimitDiffers {
            name,
            policy: LimitPolicy::Adopt | LimitPolicy::Refuse,
            stored,
            configured,
        } => {
            let prefix = subject.map_or("PREFIX", |subject| subject.key.as_str());
            warn!(
                semaphore = %name, stored, configured,
                "{LIMIT_DIFFERS}: the stored limit applies; `slotkeeper set-limit {prefix} {configured}` changes it for all clients"
            );
        }
        Notice::FormDiffers { name } => warn!(semaphore = %name, "{FORMAT_DIFFERS}: {JOINS_A_MAP}"),
        Notice::LimitChanged { name, from, to } => {
            info!(semaphore = %name, from, to, "{LIMIT_CHANGED}");
        }
        Notice::LimitSet { name, from, to } => {
            info!(semaphore = %name, from, to, "{LIMIT_SET}");
        }
        Notice::Pruned { name, holders, .. } => info!(semaphore = %name, holders, "{HOLDERS_PRUNED}"),
        Notice::Conflict { name } => debug!(semaphore = %name, "{WRITE_CONFLICT}; reading again"),
        Notice::Removed { name } => info!(semaphore = %name, "{SEMAPHORE_REMOVED}"),
    }
}

/// Logs a notice about a lease. A client may request leases again and again, so waits are logged at `debug`.
pub(super) fn log_lease(notice: &Notice, subject: Option<&Subject>) {
    match notice {
        Notice::Waiting { name, position, taken, limit } => {
            debug!(semaphore = %name, position, taken, limit, "{LEASE_WAITING}");
        }
        Notice::TimedOut { name, reached, failure, .. } => {
            let trouble = failure.as_ref().map(|failure| failure.text.as_str());
            debug!(semaphore = %name, reached, trouble, "{LEASE_WAIT_TIMED_OUT}");
        }
        Notice::Leader { name, leader } => {
            let session = leader.as_ref().map(|leader| leader.session.as_str());
            debug!(semaphore = %name, session, "{LEASE_LOCK_LEADER}");
        }
        Notice::FormDiffers { name } => debug!(semaphore = %name, "{FORMAT_DIFFERS}: {JOINS_A_MAP}"),
        Notice::LockDelayed { name, left } => {
            debug!(semaphore = %name, ?left, "{LEASE_LOCK_DELAY}");
        }
        Notice::SessionStarted { .. }
        | Notice::SessionEnded { .. }
        | Notice::SessionsCleared { .. }
        | Notice::SessionTaken { .. }
        | Notice::Renewed { .. }
        | Notice::RenewFailed { .. }
        | Notice::Failing { .. }
        | Notice::Recovered { .. }
        | Notice::Acquired { .. }
        | Notice::Lost { .. }
        | Notice::Evicted { .. }
        | Notice::Released { .. }
        | Notice::Blocked { .. }
        | Notice::LimitDiffers { .. }
        | Notice::LimitChanged { .. }
        | Notice::LimitSet { .. }
        | Notice::Pruned { .. }
        | Notice::Conflict { .. }
        | Notice::Removed { .. } => log(notice, subject),
    }
}

/// Calls the hook that is configured for a notice. The receiver resolves when the hook has succeeded. Hooks of one slot are
/// ordered by the core's name, which a rename does not change; their environment has the configured name.
pub(super) fn call_hook(
    notice: &Notice,
    labels: &Labels,
    config: &config::Hooks,
    hooks: &mut Hooks,
) -> Option<oneshot::Receiver<Succeeded>> {
    let (command, event, name, about) = match notice {
        Notice::Acquired { name, session, token, indexes, .. } => {
            (&config.on_acquired, Event::Acquired, name, slot(session, *token, indexes))
        }
        Notice::Lost { name, session, token, indexes, reason, .. } => {
            let mut about = slot(session, *token, indexes);
            about.push(("SLOTKEEPER_REASON", reason.as_str().to_owned()));
            (&config.on_lost, Event::Lost, name, about)
        }
        Notice::Leader { name, leader } => {
            (&config.on_leader_changed, Event::LeaderChanged, name, leader_variables(leader.as_ref()))
        }
        Notice::SessionStarted { .. }
        | Notice::SessionEnded { .. }
        | Notice::SessionsCleared { .. }
        | Notice::SessionTaken { .. }
        | Notice::Renewed { .. }
        | Notice::RenewFailed { .. }
        | Notice::Failing { .. }
        | Notice::Recovered { .. }
        | Notice::Waiting { .. }
        | Notice::LockDelayed { .. }
        | Notice::Evicted { .. }
        | Notice::Released { .. }
        | Notice::Blocked { .. }
        | Notice::TimedOut { .. }
        | Notice::LimitDiffers { .. }
        | Notice::FormDiffers { .. }
        | Notice::LimitChanged { .. }
        | Notice::LimitSet { .. }
        | Notice::Pruned { .. }
        | Notice::Conflict { .. }
        | Notice::Removed { .. } => return None,
    };
    let command = command.clone()?;
    let label = labels.of(name);
    let mut environment =
        vec![("SLOTKEEPER_EVENT", event.as_str().to_owned()), ("SLOTKEEPER_SEMAPHORE", label.to_string())];
    environment.extend(labels::subject(name, &label).into_iter().flat_map(place_variables));
    environment.extend(about);
    Some(hooks.call(Call { slot: name.clone(), label, event, command, environment }))
}

/// Environment variables of a hook.
type Variables = Vec<(&'static str, String)>;

/// The place in Consul.
fn place_variables(subject: Subject) -> Variables {
    let place = match subject.kind {
        Kind::Semaphore => "SLOTKEEPER_PREFIX",
        Kind::Lock => "SLOTKEEPER_KEY",
    };
    vec![("SLOTKEEPER_KIND", subject.kind.as_str().to_owned()), (place, subject.key)]
}

fn slot(session: &SessionId, token: u64, indexes: &[u32]) -> Variables {
    let mut about =
        vec![("SLOTKEEPER_SESSION", session.to_string()), ("SLOTKEEPER_FENCING_TOKEN", token.to_string())];
    let all: Vec<_> = indexes.iter().map(u32::to_string).collect();
    about.push(("SLOTKEEPER_SLOT_INDEXES", all.join(",")));
    about.extend(all.into_iter().next().map(|slot| ("SLOTKEEPER_SLOT", slot)));
    about
}

/// Without a leader the session is an empty text.
fn leader_variables(leader: Option<&Leader>) -> Variables {
    let session =
        leader.map(|leader| printable(leader.session.as_str(), MAX_SESSION_CHARS)).unwrap_or_default();
    let mine = leader.is_some_and(|leader| leader.mine);
    let who = leader.and_then(|leader| leader.who.clone()).unwrap_or_default();
    let people = [
        ("SLOTKEEPER_LEADER_POD", who.pod),
        ("SLOTKEEPER_LEADER_NAMESPACE", who.namespace),
        ("SLOTKEEPER_LEADER_NODE", who.node),
        ("SLOTKEEPER_LEADER_HOST", who.host),
    ];
    let told = [("SLOTKEEPER_LEADER_SESSION", session), ("SLOTKEEPER_LEADER_MINE", mine.to_string())];
    let people = people.into_iter().filter_map(|(variable, value)| Some((variable, value?)));
    told.into_iter().chain(people).collect()
}

/// JSON numbers are u64.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
