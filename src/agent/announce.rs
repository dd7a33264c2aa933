//! Log lines and hooks for the notices of the core.

use tokio::sync::oneshot;
use tracing::field::display;

use super::journal::{event_of, event_of_lease};
use super::labels::{self, Labels};
use crate::about::{About, log_about};
use crate::config;
use crate::duration::seconds;
use crate::log_events::{
    BLOCKED, FORMAT_DIFFERS, HOLDER_EVICTED, HOLDERS_PRUNED, LEASE_LOCK_DELAY, LEASE_LOCK_LEADER,
    LEASE_WAIT_TIMED_OUT, LEASE_WAITING, LIMIT_CHANGED, LIMIT_DIFFERS, LIMIT_SET, LOCK_DELAYED, LOCK_FREE,
    LOCK_HELD, LOCK_HELD_BY_OTHER, REQUEST_FAILED, REQUEST_RECOVERED, SEMAPHORE_REMOVED, SESSION_CREATED,
    SESSION_ENDED, SESSION_RENEWAL_FAILED, SESSION_RENEWED, SESSION_REQUEST_FAILED,
    SESSION_REQUEST_RECOVERED, SESSION_RESUMED, SLOT_ACQUIRED, SLOT_LOST, SLOT_RELEASED, SLOT_RESUMED,
    WAIT_TIMED_OUT, WAIT_UNANSWERED, WAITER_EVICTED, WAITING, WRITE_CONFLICT,
};
use crate::status::{Kind, Subject};
use crate::telemetry::ALWAYS;
use crate::workload::hooks::{Call, Event, Hooks, Succeeded};
use slotkeeper_semaphore::{Identity, Leader, LimitPolicy, Notice, SessionId, printable};

/// Why a list does not fit beside a map, and what to do.
const JOINS_A_MAP: &str = "the record is a map, but this agent would create a list, which `consul lock -n` refuses; set `format: map`";

/// The id of another client's session may be any text.
const MAX_SESSION_CHARS: usize = 64;

/// Logs a notice of the core, about `subject`. What recurs without a change of state is logged at `debug`.
pub(super) fn log(notice: &Notice, subject: Option<&Subject>) {
    log_as(notice, About::new(event_of(notice), subject));
}

fn log_as(notice: &Notice, about: About<'_>) {
    match notice {
        Notice::SessionStarted { session, resumed: false } => {
            log_about!(info, about, %session, "{SESSION_CREATED}");
        }
        Notice::SessionStarted { session, resumed: true } => {
            log_about!(info, about, %session, "{SESSION_RESUMED}");
        }
        Notice::SessionEnded { session } => log_about!(warn, about, %session, "{SESSION_ENDED}"),
        Notice::Renewed { took } => {
            log_about!(debug, about, took_seconds = seconds(*took), "{SESSION_RENEWED}");
        }
        Notice::RenewFailed { failure } => {
            log_about!(debug, about, error = %failure.text, "{SESSION_RENEWAL_FAILED}");
        }
        Notice::Failing { name: None, failure } => {
            log_about!(warn, about, error = %failure.text, "{SESSION_REQUEST_FAILED}; retrying");
        }
        Notice::Failing { name: Some(_), failure } => {
            log_about!(warn, about, error = %failure.text, "{REQUEST_FAILED}; retrying");
        }
        Notice::Recovered { name: None } => log_about!(info, about, "{SESSION_REQUEST_RECOVERED}"),
        Notice::Recovered { name: Some(_) } => log_about!(info, about, "{REQUEST_RECOVERED}"),
        Notice::Waiting { position, taken, limit, .. } => {
            log_about!(info, about, position, taken, limit, "{WAITING}");
        }
        // The agent's own lock is logged as it is acquired.
        Notice::Leader { leader: Some(leader), .. } if leader.mine => {
            log_about!(debug, about, "{LOCK_HELD}");
        }
        Notice::Leader { leader: Some(Leader { session, who, .. }), .. } => {
            let who = who.as_ref().and_then(Identity::in_words);
            let session = printable(session.as_str(), MAX_SESSION_CHARS);
            log_about!(info, about, %session, who, "{LOCK_HELD_BY_OTHER}");
        }
        Notice::Leader { leader: None, .. } => log_about!(info, about, "{LOCK_FREE}"),
        Notice::LockDelayed { .. } => {
            log_about!(info, about, "{LOCK_DELAYED}, which lasts for at most 60 s; retrying");
        }
        Notice::Acquired { token, indexes, resumed: true, .. } => {
            log_about!(info, about, slot = indexes.first(), fencing_token = token, "{SLOT_RESUMED}");
        }
        Notice::Acquired { session, token, indexes, took, .. } => {
            let (slot, waited_seconds) = (indexes.first(), seconds(*took));
            log_about!(info, about, %session, slot, fencing_token = token, waited_seconds, "{SLOT_ACQUIRED}");
        }
        Notice::Lost { session, reason, held, .. } => {
            let reason = reason.as_str();
            log_about!(error, about, %session, reason, held_seconds = held.as_secs(), "{SLOT_LOST}");
        }
        Notice::Evicted { by, held: true, .. } => {
            log_about!(
                warn,
                about,
                by,
                "{HOLDER_EVICTED}; the slot is released when the workload has stopped"
            );
        }
        Notice::Evicted { by, held: false, .. } => log_about!(warn, about, by, "{WAITER_EVICTED}"),
        Notice::Released { session, held, .. } => {
            log_about!(info, about, %session, held_seconds = held.as_secs(), "{SLOT_RELEASED}");
        }
        Notice::Blocked { obstacle, .. } => log_about!(error, about, reason = %obstacle.why, "{BLOCKED}"),
        Notice::TimedOut { reached, failure: trouble, .. } => {
            let event = if *reached { WAIT_TIMED_OUT } else { WAIT_UNANSWERED };
            let last_failure = trouble.as_ref().map(|failure| display(&failure.text));
            log_about!(warn, about, last_failure, "{event}");
        }
        Notice::LimitDiffers { policy, stored, configured, .. } => {
            let advice = match policy {
                LimitPolicy::Set => {
                    "another client has changed it, and the stored limit applies; `limit_policy: set` writes the configured \
                     limit again when the agent starts or the configured limit changes"
                        .to_owned()
                }
                LimitPolicy::Adopt | LimitPolicy::Refuse => format!(
                    "the stored limit applies; `slotkeeper set-limit {} {configured}` changes it for all clients",
                    about.prefix().unwrap_or("PREFIX")
                ),
            };
            if stored > configured {
                // The workload may rely on its limit, which does not hold here.
                log_about!(
                    warn to ALWAYS,
                    about,
                    stored,
                    configured,
                    "{LIMIT_DIFFERS}, so that more slots may be held at once: {advice}"
                );
            } else {
                log_about!(warn, about, stored, configured, "{LIMIT_DIFFERS}: {advice}");
            }
        }
        Notice::FormDiffers { .. } => log_about!(warn, about, "{FORMAT_DIFFERS}: {JOINS_A_MAP}"),
        Notice::LimitChanged { from, to, .. } => {
            log_about!(info, about, from, to, "{LIMIT_CHANGED}");
        }
        Notice::LimitSet { from, to, .. } => {
            log_about!(info, about, from, to, "{LIMIT_SET}");
        }
        Notice::Pruned { holders, .. } => log_about!(info, about, holders, "{HOLDERS_PRUNED}"),
        Notice::Conflict { .. } => log_about!(debug, about, "{WRITE_CONFLICT}; reading again"),
        Notice::Removed { .. } => log_about!(info, about, "{SEMAPHORE_REMOVED}"),
    }
}

/// Logs a notice about a lease. A client may request leases again and again, so waits are logged at `debug`.
pub(super) fn log_lease(notice: &Notice, subject: Option<&Subject>) {
    let about = About::new(event_of_lease(notice), subject);
    if let Notice::Waiting { position, taken, limit, .. } = notice {
        log_about!(debug, about, position, taken, limit, "{LEASE_WAITING}");
    } else if let Notice::TimedOut { reached, failure, .. } = notice {
        let trouble = failure.as_ref().map(|failure| failure.text.as_str());
        log_about!(debug, about, reached, trouble, "{LEASE_WAIT_TIMED_OUT}");
    } else if let Notice::Leader { leader, .. } = notice {
        let session = leader.as_ref().map(|leader| leader.session.as_str());
        log_about!(debug, about, session, "{LEASE_LOCK_LEADER}");
    } else if let Notice::FormDiffers { .. } = notice {
        log_about!(debug, about, "{FORMAT_DIFFERS}: {JOINS_A_MAP}");
    } else if let Notice::LockDelayed { .. } = notice {
        log_about!(debug, about, "{LEASE_LOCK_DELAY}");
    } else {
        log_as(notice, about);
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
    let (command, event, name, about) = if let Notice::Acquired { name, session, token, indexes, .. } = notice
    {
        (&config.on_acquired, Event::Acquired, name, slot(session, *token, indexes))
    } else if let Notice::Lost { name, session, token, indexes, reason, .. } = notice {
        let mut about = slot(session, *token, indexes);
        about.push(("SLOTKEEPER_REASON", reason.as_str().to_owned()));
        (&config.on_lost, Event::Lost, name, about)
    } else if let Notice::Leader { name, leader } = notice {
        (&config.on_leader_changed, Event::LeaderChanged, name, leader_variables(leader.as_ref()))
    } else {
        return None;
    };
    let command = command.clone()?;
    let label = labels.of(name);
    let mut environment =
        vec![("SLOTKEEPER_EVENT", event.as_str().to_owned()), ("SLOTKEEPER_SEMAPHORE", label.to_string())];
    let subject = labels::subject(name, &label);
    environment.extend(subject.clone().into_iter().flat_map(place_variables));
    environment.extend(about);
    Some(hooks.call(Call { slot: name.clone(), subject, event, command, environment }))
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
