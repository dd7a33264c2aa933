//! Which keys to watch: single keys, so that one change wakes few clients.
//!
//! A key that does not exist is never watched: such a watch wakes for any write (Consul up to 1.9).

use crate::timing::WATCH_DELAY;

use super::{Moment, PlanInput, Role, SessionId, View, Waiter};

/// A key to be watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    /// The full key.
    pub key: String,
    /// The index up to which the key is known. Consul compares it with the index of the key's last change, so that any later index is right
    /// too. 0 is answered at once.
    pub after: u64,
}

/// The time at which the watches for rare events begin, if they have not begun.
pub(super) fn settles_at(input: PlanInput<'_>, role: Role, now: Moment) -> Option<Moment> {
    Some(input.since(role, now) + WATCH_DELAY).filter(|at| *at > now)
}

pub(super) fn lock(view: &View) -> Watch {
    Watch { key: view.lock_key(), after: view.lock_index() }
}

/// Watches the session's own contender key.
pub fn own(view: &View, session: &SessionId) -> Option<Watch> {
    contender(view, session)
}

/// The watches of a holder: its own contender key, which shows a loss and an eviction.
pub(super) fn holding(view: &View, input: PlanInput<'_>, now: Moment) -> Vec<Watch> {
    if settles_at(input, Role::Holding, now).is_some() {
        return Vec::new();
    }
    contender(view, input.session).into_iter().collect()
}

/// The watches of a waiter behind a handoff list: its own contender key. The lookout also watches the folder, whose names show which
/// holders live.
pub(super) fn named(view: &View, role: Role, input: PlanInput<'_>, now: Moment) -> Vec<Watch> {
    let folder = (role == Role::Head && settles_at(input, role, now).is_none()).then(|| folder(view));
    contender(view, input.session).into_iter().chain(folder).collect()
}

/// The watches of a waiter without a handoff list, beside foreign clients or in an acquire group: its own contender key and that of the
/// slotkeeper client ahead. The head of the queue watches `.lock` and the folder.
pub(super) fn waiting(
    view: &View,
    ahead: &[Waiter<'_>],
    role: Role,
    input: PlanInput<'_>,
    now: Moment,
) -> Vec<Watch> {
    let mut watches = named(view, role, input, now);
    if watches.is_empty() {
        return watches;
    }
    let ahead = ahead.iter().rfind(|one| !one.is_foreign());
    watches.extend(ahead.and_then(|one| contender(view, one.session)));
    // An acquire group leaves all its queues as soon as a limit does not suffice.
    let limited = input.together.is_some() && input.settings.slots > 1;
    if (ahead.is_none() || limited) && view.lock_index() > 0 {
        watches.push(lock(view));
    }
    watches
}

/// The contender of the first foreign client to which a slot is left.
pub(super) fn turn(view: &View, ahead: &[Waiter<'_>]) -> Option<Watch> {
    let first = ahead.iter().find(|one| one.is_foreign() && !one.is_idle())?;
    contender(view, first.session)
}

fn contender(view: &View, session: &SessionId) -> Option<Watch> {
    let known = view.contender(session)?;
    Some(Watch { key: view.contender_key(session), after: known.modify_index })
}

fn folder(view: &View) -> Watch {
    Watch { key: view.folder_key(), after: view.folder_index() }
}
