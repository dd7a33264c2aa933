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
    /// The index of what is known of it. Consul compares it with the index of the key's last change, so that it may
    /// be any later one too. 0 asks for what is there.
    pub after: u64,
}

/// When the watches for rare things begin, if they have not.
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

/// A holder: its own contender, which tells it of a loss and of an operator who wants it out.
pub(super) fn holding(view: &View, input: PlanInput<'_>, now: Moment) -> Vec<Watch> {
    if settles_at(input, Role::Holding, now).is_some() {
        return Vec::new();
    }
    contender(view, input.session).into_iter().collect()
}

/// One in line where `.lock` names who is next: its own contender. The one that watches over all, the folder as well: the names
/// in it tell which holders live.
pub(super) fn named(view: &View, role: Role, input: PlanInput<'_>, now: Moment) -> Vec<Watch> {
    let folder = (role == Role::Head && settles_at(input, role, now).is_none()).then(|| folder(view));
    contender(view, input.session).into_iter().chain(folder).collect()
}

/// One in line where nobody is named, since clients of another kind take part, or since it takes slots together with others:
/// its own contender, and that of the one of ours ahead. One at the head, `.lock` and the folder.
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
    if let Some(one) = ahead.iter().rfind(|one| !one.is_foreign()) {
        watches.extend(contender(view, one.session));
    } else if view.lock_index() > 0 {
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
