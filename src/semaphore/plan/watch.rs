//! What to wait for: single keys, so that one change wakes few.
//!
//! A watch on a key that does not exist wakes for any write (Consul up to 1.9), so there is none.

use std::time::Duration;

use super::{InLine, Me, Moment, Role, SessionId, View};

/// Watches that only tell of rare things begin after this long: a short hold need not pay for them. What happens until
/// then they tell at once.
const SETTLING: Duration = Duration::from_secs(1);

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
pub(super) fn settles_at(me: Me<'_>, role: Role, now: Moment) -> Option<Moment> {
    Some(me.since(role, now) + SETTLING).filter(|at| *at > now)
}

pub(super) fn lock(view: &View) -> Watch {
    Watch { key: view.lock_key(), after: view.lock_index() }
}

/// A holder: `.lock`, its own contender, and the contender of the next holder in a ring, so that each crash is seen by
/// one.
pub(super) fn holding(view: &View, me: Me<'_>, now: Moment) -> Vec<Watch> {
    if view.was_granted(me.session) {
        return vec![Watch { key: view.lock_key(), after: 0 }];
    }
    let mut watches = vec![lock(view)];
    if settles_at(me, Role::Holding, now).is_none() {
        watches.extend(contender(view, me.session));
        watches.extend(holder_after(view, me.session));
    }
    watches
}

/// One in line: its own contender. One at the head, `.lock` and a holder's contender, for the case that all holders
/// die together. One behind, the contender of the one of ours ahead.
pub(super) fn waiting(view: &View, ahead: &[InLine<'_>], me: Me<'_>, now: Moment) -> Vec<Watch> {
    let Some(own) = contender(view, me.session) else {
        return Vec::new();
    };
    let mut watches = vec![own];
    if let Some(one) = ahead.iter().rfind(|one| !one.is_foreign()) {
        watches.extend(contender(view, one.session));
    } else {
        watches.push(lock(view));
        if settles_at(me, Role::Head, now).is_none() {
            watches.extend(holder_after(view, me.session));
        }
    }
    watches
}

/// The contender of the first foreign client to which a slot is left.
pub(super) fn turn(view: &View, ahead: &[InLine<'_>]) -> Option<Watch> {
    let first = ahead.iter().find(|one| one.is_foreign() && !one.is_idle())?;
    contender(view, first.session)
}

fn contender(view: &View, session: &SessionId) -> Option<Watch> {
    let known = view.contender(session)?;
    Some(Watch { key: view.contender_key(session), after: known.modify_index })
}

/// The holder behind `session` in `.lock`, or behind the first one for a session that is not in it.
fn holder_after(view: &View, session: &SessionId) -> Option<Watch> {
    let holders = &view.record()?.holders;
    let place = holders.iter().rposition(|holder| holder == session).unwrap_or(0);
    let around = holders[place..].iter().skip(1).chain(&holders[..=place.min(holders.len().checked_sub(1)?)]);
    let mut others = around.filter(|holder| *holder != session);
    let next = others.next()?;
    match view.contender(next) {
        Some(_) => contender(view, next),
        // It lives under a key of another name, or is dead.
        None if view.is_complete() || view.is_missing(next) => None,
        None => Some(Watch { key: view.contender_key(next), after: view.lock_index() }),
    }
}
