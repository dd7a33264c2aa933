//! What keeps a client out until a person acts, in words.

use super::{Me, Memory};
use crate::obstacle::{Obstacle, ObstacleKind};
use crate::record::{Form, NotASemaphore, Record, excerpt};
use crate::settings::LimitPolicy;
use crate::single::KEY;
use crate::view::View;
use crate::{SessionId, printable};

pub(super) fn conflict(view: &View, what: &NotASemaphore, owner: Option<&SessionId>) -> Obstacle {
    let (key, prefix) = (view.lock_key(), view.prefix());
    let why = match (what, owner) {
        (NotASemaphore::SingleKeyLock, Some(owner)) => format!(
            "{key} is a single-key lock, such as `consul lock -n 1` takes there, held by session {}; waiting until the \
             key is deleted. If the lock is there to stay, run without --limit, or choose another prefix",
            excerpt(owner.as_str())
        ),
        (NotASemaphore::SingleKeyLock, None) => format!(
            "{key} is a single-key lock, such as `consul lock -n 1` takes there, and has no holder: `slotkeeper \
             destroy {prefix}` deletes it; or run without --limit to acquire the lock"
        ),
        (what, _) => {
            no_semaphore(view, what) + "; choose another prefix, or delete the key if it is not needed"
        }
    };
    Obstacle::other_content(owner.is_some(), why)
}

pub(super) fn no_semaphore(view: &View, what: &NotASemaphore) -> String {
    format!("the key {} is not a semaphore: {what}; slotkeeper leaves it unchanged", view.lock_key())
}

/// The error for a listing that leaves out keys, on which no client may act. The token's rule must grant `policy`.
pub fn hidden_keys_error(prefix: &str, policy: &str) -> String {
    let below = printable(&format!("{prefix}/"), KEY);
    format!(
        "Consul hides keys below {below} from the token, and a holder whose key is hidden looks dead; the token needs \
         {}",
        acl_rule(prefix, policy)
    )
}

/// The ACL rule that allows a token to read, or to write, all keys below a prefix.
pub fn acl_rule(prefix: &str, policy: &str) -> String {
    let below = printable(&format!("{prefix}/"), KEY);
    format!("`key_prefix \"{below}\" {{ policy = \"{policy}\" }}`")
}

/// The reason why the client must not join this record, if there is one.
pub(super) fn refusal(view: &View, record: &Record, me: Me<'_>, memory: Memory<'_>) -> Option<Obstacle> {
    let (key, settings) = (view.lock_key(), me.settings);
    let unserved = settings.slots > record.limit && !memory.sets_limit(record, me);
    let (kind, why) = if record.limit != settings.limit && settings.limit_policy == LimitPolicy::Refuse {
        let why = format!(
            "the limit stored in {key} is {}, the configured one {}, and limit_policy is `refuse`; make them equal",
            record.limit, settings.limit
        );
        (ObstacleKind::Limit, why)
    } else if record.form() == Form::Map && settings.slots > 1 {
        let why = format!(
            "{key} is in the form that `consul lock` writes, which cannot say that a session takes {} slots; set \
             slots to 1 or use another prefix with format `list`",
            settings.slots
        );
        (ObstacleKind::Limit, why)
    } else if me.together.is_some() && unserved && view.slots_of(me.session) != settings.slots {
        // Alone it is passed over. A member would keep others waiting in the queues of the rest of its group.
        let why = format!(
            "the limit stored in {key} is {}, below the {} slots that are wanted together with those of other semaphores; waiting \
             outside of all their queues: raise the limit with `slotkeeper set-limit {} {}`, or set slots to {} or fewer",
            record.limit,
            settings.slots,
            printable(view.prefix(), KEY),
            settings.slots,
            record.limit
        );
        (ObstacleKind::LimitBelowGroup, why)
    } else {
        return None;
    };
    Some(Obstacle { kind, why })
}

/// Why a session cannot enqueue: another session has its contender key locked. A new session is no way out, as this one may
/// hold slots elsewhere.
pub(super) fn occupied(view: &View, session: &SessionId) -> Option<Obstacle> {
    let occupied = view.in_place_of(session).filter(|_| view.contender(session).is_none())?;
    let (key, by) = (printable(&occupied.key, KEY), excerpt(occupied.by.as_ref()?.as_str()));
    let why = format!(
        "the contender key {key} of this agent's own session is locked by another session, {by}; delete the key, or destroy \
         that session"
    );
    Some(Obstacle::other_content(true, why))
}
