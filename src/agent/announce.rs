//! Tells of changes: a log line each, and the hooks.

use std::time::Duration;

use tokio::sync::oneshot;
use tracing::{debug, error, info, warn};

use super::labels::Labels;
use crate::config;
use crate::workload::hooks::{Call, Event, Hooks, Succeeded};
use slotkeeper_semaphore::{Leader, LimitPolicy, Notice, SessionId, printable};

/// What is wrong with a list beside a map, and what to write.
const JOINS_A_MAP: &str = "the record is a map, but this agent would make a new one as a list, which `consul lock -n` refuses; \
                           write `format: map`";

/// Characters of a session's id. That of a stranger is whatever Consul says.
const LONGEST: usize = 64;

/// One log event a state change; nothing that comes round by itself is above `debug`.
pub(super) fn log(notice: &Notice) {
    match notice {
        Notice::SessionStarted { session, resumed: false } => info!(%session, "session created"),
        Notice::SessionStarted { session, resumed: true } => info!(%session, "session taken up again"),
        Notice::SessionEnded { session } => warn!(%session, "the session has ended"),
        Notice::SessionTaken { session } => error!(
            %session,
            "another process has resumed this agent's session, which has everything of it now; beginning with a new \
             session. Was the state file copied, or the .lock file beside it deleted?"
        ),
        Notice::SessionsCleared { sessions } => {
            info!(sessions, "destroyed a session whose creation had got no answer");
        }
        Notice::Renewed { took } => debug!(took_ms = millis(*took), "session renewed"),
        Notice::RenewFailed { failure } => debug!("the session was not renewed: {}", failure.text),
        Notice::Failing { name: None, failure } => warn!("trouble with the session: {}", failure.text),
        Notice::Failing { name: Some(semaphore), failure } => warn!(%semaphore, "trouble: {}", failure.text),
        Notice::Recovered { name: None } => info!("the session is in order again"),
        Notice::Recovered { name: Some(semaphore) } => info!(%semaphore, "in order again"),
        Notice::Waiting { name, position, taken, limit } => {
            info!(semaphore = %name, position, taken, limit, "waiting for a slot");
        }
        // Our own is told as it is acquired.
        Notice::Leader { name, leader: Some(leader) } if leader.mine => {
            debug!(semaphore = %name, "the lock is ours");
        }
        Notice::Leader { name, leader: Some(Leader { session, who, .. }) } => {
            let who = who.as_ref().and_then(|who| who.pod.as_ref().or(who.host.as_ref()));
            let session = printable(session.as_str(), LONGEST);
            info!(semaphore = %name, %session, who = who.map(String::as_str), "another has the lock");
        }
        Notice::Leader { name, leader: None } => info!(semaphore = %name, "nobody has the lock"),
        Notice::LockDelayed { name, left: Some(left) } => {
            let left_ms = millis(*left);
            info!(semaphore = %name, left_ms, "nobody has the lock, and nobody gets it before its lock-delay is over");
        }
        Notice::LockDelayed { name, left: None } => {
            info!(
                semaphore = %name,
                "nobody has the lock, and nobody gets it before its lock-delay is over, for at most 60 s; trying now and then"
            );
        }
        Notice::Acquired { name, token, indexes, resumed: true, .. } => {
            info!(semaphore = %name, slot = indexes.first(), fencing_token = token, "slot taken up again");
        }
        Notice::Acquired { name, session, token, indexes, took, .. } => {
            let (slot, after_ms) = (indexes.first(), millis(*took));
            info!(semaphore = %name, %session, slot, fencing_token = token, after_ms, "slot acquired");
        }
        Notice::Lost { name, session, reason, held, .. } => {
            let reason = reason.as_str();
            error!(semaphore = %name, %session, reason, held_seconds = held.as_secs(), "slot lost");
        }
        Notice::Evicted { name, by, held: true } => {
            warn!(semaphore = %name, by, "evicted: the slot is given on once the workload has had its time to stop");
        }
        Notice::Evicted { name, by, held: false } => warn!(semaphore = %name, by, "evicted from the line"),
        Notice::Released { name, session, held } => {
            info!(semaphore = %name, %session, held_seconds = held.as_secs(), "slot given back");
        }
        Notice::Blocked { name, why } => error!(semaphore = %name, "kept out: {why}"),
        Notice::TimedOut { name, reached, failure: trouble } => {
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
                "the stored limit governs, not the configured one; `slotkeeper set-limit` changes it for everybody"
            );
        }
        Notice::FormDiffers { name } => warn!(semaphore = %name, "{JOINS_A_MAP}"),
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
        Notice::TimedOut { name, reached, failure: trouble } => {
            debug!(semaphore = %name, reached, trouble, "a lease was not to be had in the time given");
        }
        Notice::Leader { name, leader } => {
            let session = leader.as_ref().map(|leader| leader.session.as_str());
            debug!(semaphore = %name, session, "seen by one who waits for a lease: who has the lock");
        }
        Notice::FormDiffers { name } => debug!(semaphore = %name, "{JOINS_A_MAP}"),
        Notice::LockDelayed { name, left } => {
            debug!(semaphore = %name, ?left, "seen by one who waits for a lease: a lock-delay");
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
        | Notice::Removed { .. } => log(notice),
    }
}

/// Calls the hook that a change has, if it has one; what that gives tells when it has run. Hooks of one slot are ordered by the
/// core's name of it, which a rename does not change; they are told the label.
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
    environment.extend(about);
    Some(hooks.call(Call { slot: name.clone(), label, event, command, environment }))
}

/// What a hook is told.
type Variables = Vec<(&'static str, String)>;

fn slot(session: &SessionId, token: u64, indexes: &[u32]) -> Variables {
    let mut about =
        vec![("SLOTKEEPER_SESSION", session.to_string()), ("SLOTKEEPER_FENCING_TOKEN", token.to_string())];
    about.extend(indexes.first().map(|slot| ("SLOTKEEPER_SLOT", slot.to_string())));
    about
}

/// Where nobody leads, the session is an empty text.
fn leader_variables(leader: Option<&Leader>) -> Variables {
    let session = leader.map(|leader| printable(leader.session.as_str(), LONGEST)).unwrap_or_default();
    let mine = leader.is_some_and(|leader| leader.mine);
    let who = leader.and_then(|leader| leader.who.clone()).unwrap_or_default();
    let people = [
        ("SLOTKEEPER_LEADER_POD", who.pod),
        ("SLOTKEEPER_LEADER_NAMESPACE", who.namespace),
        ("SLOTKEEPER_LEADER_NODE", who.node),
        ("SLOTKEEPER_LEADER_HOST", who.host),
    ];
    let told = [("SLOTKEEPER_LEADER_SESSION", session), ("SLOTKEEPER_LEADER_SELF", mine.to_string())];
    let people = people.into_iter().filter_map(|(variable, value)| Some((variable, value?)));
    told.into_iter().chain(people).collect()
}

/// As the log's JSON has numbers.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
