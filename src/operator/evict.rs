//! Evicts one participant: asks a slotkeeper participant to leave and waits for it; removes one that cannot be asked.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Changed, Error, Participant, ParticipantState, Place, Watch, change, look, word};
use crate::bridge;
use crate::clock;
use crate::escape::printable;
use slotkeeper_consul::{Client, Read};
use slotkeeper_semaphore::contender::Entry;
use slotkeeper_semaphore::plan::{self, Membership};
use slotkeeper_semaphore::{FailureKind, Identity, SessionId, View};

/// The shortest abbreviation of a session.
const MIN_SESSION_CHARS: usize = 4;
/// The most participants that an error lists.
const MAX_LISTED: usize = 10;
/// The wait after a failed read.
const PAUSE: Duration = Duration::from_millis(500);
/// The longest wait for the grant, if it is a later write than the release.
const GRANT_TIMEOUT: Duration = Duration::from_secs(1);
/// The time between two reads in this wait.
const GRANT_POLL: Duration = Duration::from_millis(50);

/// The participant to evict, in the state in which it was found. A changed state is another target.
#[derive(Clone, Debug)]
pub struct Target {
    /// The semaphore or lock.
    pub place: Place,
    /// The participant as it is shown.
    pub participant: Participant,
    /// Its membership.
    pub membership: Membership,
    /// Whether a later version of slotkeeper wrote its contender key, which this version can neither read nor mark.
    pub newer: bool,
    /// The view with all participants.
    pub before: View,
}

/// Finds the participant at a prefix by its session, which may be abbreviated, or by its name or process id.
///
/// # Errors
///
/// No participant or more than one matches, or Consul does not respond.
pub async fn find(client: &Client, prefix: &str, session: &str) -> Result<Target, Error> {
    let snapshot = Watch::new(client, prefix).next().await?;
    let inspection = snapshot.inspect();
    let chosen = choose(prefix, &inspection.participants(), session);
    let is_lock = |one: &Participant| one.state == ParticipantState::Locked;
    // A lock's key is read by itself, so hidden keys below it do not matter.
    if !chosen.as_ref().is_ok_and(|one| is_lock(one)) {
        plan::check_visible(&snapshot.view).map_err(Error::Denied)?;
    }
    let participant = chosen?;
    let (place, before) = if is_lock(participant) {
        let key = lock_of(prefix, participant).map_err(Error::Refused)?;
        (Place::lock(&key), snapshot.lock_at(&key))
    } else {
        (Place::semaphore(prefix), snapshot.view)
    };
    let membership = Membership::of(&before, &participant.id().into()).ok_or_else(|| {
        let session = printable(participant.id());
        Error::Refused(format!("session {session} is removed already, and has not noticed yet"))
    })?;
    let Participant { state, foreign, body, .. } = participant;
    let said = body.as_ref().filter(|_| *foreign == Some(true) && *state != ParticipantState::Dead);
    let newer = said.is_some_and(|said| Entry::is_newer(said.as_bytes()));
    Ok(Target { place, participant: participant.clone(), membership, newer, before })
}

fn choose<'a>(
    prefix: &str,
    participants: &[&'a Participant],
    session: &str,
) -> Result<&'a Participant, Error> {
    if participants.is_empty() {
        return Err(Error::Missing(format!("no participants at {prefix}")));
    }
    if let Some(one) = participants.iter().find(|one| one.id() == session) {
        return Ok(one);
    }
    let is_meant = |one: &&Participant| {
        let begins = session.len() >= MIN_SESSION_CHARS && one.id().starts_with(session);
        begins || one.who.as_ref().is_some_and(|who| is_named(who, session))
    };
    let (meant, others): (Vec<&Participant>, Vec<_>) = participants.iter().copied().partition(is_meant);
    if let [one] = meant.as_slice() {
        return Ok(one);
    }
    let name = |one: &&Participant| {
        let who = one.who.as_ref().and_then(Identity::in_words);
        let who = who.map(|who| format!(" {who}")).unwrap_or_default();
        format!("{} ({}){who}", printable(one.id()), word(&one.state))
    };
    let session = printable(session);
    Err(Error::Refused(if meant.is_empty() {
        format!(
            "no participant {session} at {prefix}; there are {}. Write a session, at least {MIN_SESSION_CHARS} characters of \
             it, a name or a process id",
            listed(&others, name)
        )
    } else {
        format!("{session} matches several sessions at {prefix}; write more of {}", listed(&meant, name))
    }))
}

/// Whether a participant is called so: by the name of its job or pod, by its process id, or as tables show it.
fn is_named(who: &Identity, text: &str) -> bool {
    let pid = who.pid.map(|pid| pid.to_string());
    [&who.name, &who.pod, &pid, &who.in_words()].into_iter().any(|name| name.as_deref() == Some(text))
}

/// The first few, and the number of the others.
fn listed<T>(all: &[T], name: impl Fn(&T) -> String) -> String {
    let more = all.len().checked_sub(MAX_LISTED).filter(|more| *more > 0);
    let more = more.map(|more| format!(" and {more} more")).unwrap_or_default();
    let named: Vec<_> = all.iter().take(MAX_LISTED).map(name).collect();
    named.join(", ") + &more
}

/// The locked key to free: the prefix itself, or its `.lock`. Any other locked key below may be a contender key of a semaphore with
/// a longer prefix.
fn lock_of(prefix: &str, participant: &Participant) -> Result<String, String> {
    let lock = format!("{prefix}/.lock");
    let keys = &participant.keys;
    let meant: Vec<_> = keys.iter().filter(|key| **key == prefix || **key == lock).collect();
    let session = printable(participant.id());
    match meant.as_slice() {
        // A key that ends with its session is a contender key.
        [key] if key.ends_with(&format!("/{}", participant.id())) => Err(format!(
            "the key {prefix} is the contender key of session {session} in a semaphore; name the semaphore's prefix, without \
             the session"
        )),
        [key] => Ok((*key).clone()),
        // None of them, or both.
        _ => Err(format!(
            "session {session} has locked {}; name the key itself if that is a lock, or the prefix of the semaphore that it \
             belongs to",
            listed(keys, |key| printable(key))
        )),
    }
}

/// Evicts the participant, unless its state has changed. With `by`, marks it as evicted by that operator: it leaves when its workload
/// has stopped. Without, removes it, whatever its workload does.
///
/// # Errors
///
/// [`Error::Refused`] if it has, and nothing was done; or an error of Consul.
pub async fn act(client: &Client, target: &Target, by: Option<&str>) -> Result<Changed, Error> {
    let tried = Cell::new(false);
    change(client, &target.place, |view| {
        plan::check_visible(view).map_err(Error::Denied)?;
        let now = clock::now();
        match Membership::of(view, &target.membership.session) {
            Some(membership) if membership == target.membership => {
                tried.set(true);
                Ok(match by {
                    Some(by) => plan::request_eviction(view, &membership, by),
                    None => plan::force_eviction(view, &membership, &clock::wall().text(now), now),
                })
            }
            // This eviction may be the reason; it is the desired state.
            None if tried.get() => Ok(None),
            Some(later) if tried.get() && later.is_after(&target.membership) => Ok(None),
            found => Err(Error::Refused(changed(target, found.as_ref()))),
        }
    })
    .await
}

fn changed(target: &Target, found: Option<&Membership>) -> String {
    use plan::MembershipKind;
    let session = printable(target.membership.session.as_str());
    let has = match found.map(|membership| (membership, target.membership.part, membership.part)) {
        None => "has left",
        Some((_, _, MembershipKind::Dead)) => "has died",
        Some((membership, ..)) if membership.is_after(&target.membership) => "has left and rejoined",
        Some((_, MembershipKind::Waits, MembershipKind::Holds)) => "has acquired its slots",
        Some((_, MembershipKind::Holds, MembershipKind::Waits)) => "has lost its slots",
        Some(_) => "was overwritten by another client",
    };
    format!("session {session} {has} meanwhile, so nothing was done; look again")
}

/// Waits until an evicted participant has left: the view afterwards, or `None` if it is still there at the timeout. A concurrent
/// handoff overwrites the mark, which is then written again, unless the participant's state has changed.
///
/// # Errors
///
/// As [`act`], or Consul is unreachable.
pub async fn gone(client: &Client, target: &Target, by: &str, wait: Duration) -> Result<Option<View>, Error> {
    let session = &target.membership.session;
    let until = Instant::now() + wait;
    loop {
        let known = match look(client, &target.place).await {
            Ok(view) => match Membership::of(&view, session) {
                // It has died meanwhile, and there may be no other client that prunes it.
                Some(membership) if membership.part == plan::MembershipKind::Dead => {
                    match act(client, &Target { membership, ..target.clone() }, None).await {
                        Ok(Changed { after, .. }) => return Ok(Some(after)),
                        Err(Error::Refused(_moved)) => None,
                        Err(away) if away.is_unavailable() && Instant::now() < until => None,
                        Err(error) => return Err(error),
                    }
                }
                Some(membership) if !membership.is_after(&target.membership) => {
                    if view.evicted_by(session).is_none() {
                        act(client, target, Some(by)).await?;
                    }
                    Some(view)
                }
                Some(_) | None => return Ok(Some(await_grant(client, target, view, until).await)),
            },
            Err(away) if away.is_unavailable() && Instant::now() < until => None,
            Err(error) => return Err(error),
        };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        match known {
            Some(view) => wait_for_change(client, &view, session, left).await,
            None => sleep(PAUSE.min(left)).await,
        }
    }
}

/// The view after the released slots were granted, if a slotkeeper waiter is there. With foreign clients, the release and the grant
/// are two writes.
async fn await_grant(client: &Client, target: &Target, gone: View, until: Instant) -> View {
    let until = until.min(Instant::now() + GRANT_TIMEOUT);
    let mut view = gone;
    while has_free_slot(&view) && Instant::now() < until {
        sleep(GRANT_POLL).await;
        match look(client, &target.place).await {
            Ok(now) => view = now,
            // The participant has left, whether or not this read succeeds.
            Err(_away) => break,
        }
    }
    view
}

/// Whether a slot is free although a slotkeeper waiter is there.
fn has_free_slot(view: &View) -> bool {
    view.record().is_some_and(|record| record.limit > record.taken())
        && view.waiters().iter().any(|one| one.entry.is_some())
}

/// Waits until its key changes, or for the given time.
async fn wait_for_change(client: &Client, view: &View, session: &SessionId, wait: Duration) {
    let (key, index) = match view.single() {
        Some(single) => (view.lock_key(), single.index),
        None => {
            let index = view.contender(session).map_or(view.lock_index(), |one| one.modify_index);
            (view.contender_key(session), index)
        }
    };
    let read = Read::default().after(index, wait);
    let answer = tokio::time::timeout(wait, bridge::read(client, &key, read)).await;
    if matches!(answer, Ok(Err(failure)) if failure.kind != FailureKind::Cut) {
        sleep(PAUSE.min(wait)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::super::PrefixSnapshot;
    use super::*;
    use slotkeeper_consul::Indexed;
    use slotkeeper_semaphore::{Listing, Pair};

    fn waiters(sessions: &[&str]) -> Vec<Participant> {
        let pair = |(place, session): (usize, &&str)| Pair {
            key: format!("p/{session}"),
            value: Vec::new(),
            flags: 0,
            session: Some((*session).into()),
            times_locked: 1,
            create_index: place as u64,
            modify_index: place as u64,
        };
        let pairs = sessions.iter().enumerate().map(pair).collect();
        let sessions = Indexed { index: 500, filtered: false, value: Vec::new() };
        let listing = Listing { pairs, index: 500, filtered: false };
        PrefixSnapshot::of("p", None, listing, sessions).inspect().queue
    }

    fn choose(participants: &[Participant], session: &str) -> Result<String, String> {
        let chosen = super::choose("p", &participants.iter().collect::<Vec<_>>(), session);
        chosen.map(|one| one.id().to_owned()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_participant_may_be_named_if_unambiguous() {
        let mut there = waiters(&["aaaa-1", "4711-2", "cccc-3"]);
        for (one, name, pid) in [(0, "import", 4711), (1, "import", 8), (2, "stuck job", 9)] {
            let host = Some("vm".into());
            there[one].who =
                Some(Identity { name: Some(name.into()), host, pid: Some(pid), ..Identity::default() });
        }
        let chosen = |named| choose(&there, named);
        for (named, expected) in [
            ("8", "4711-2"),
            ("stuck job", "cccc-3"),
            ("stuck job on vm pid 9", "cccc-3"),
            ("4711-", "4711-2"),
        ] {
            assert_eq!(chosen(named), Ok(expected.into()), "{named}");
        }
        for (ambiguous, second) in [("import", "4711-2"), ("4711", "4711-2")] {
            let said = chosen(ambiguous).unwrap_err();
            let both =
                format!("write more of aaaa-1 (waiting) import on vm pid 4711, {second} (waiting) import on");
            assert!(said.contains(&both), "{said}");
        }
    }

    #[test]
    fn a_session_may_be_abbreviated_if_unambiguous() {
        let there = waiters(&["aaaa-1", "aaaa-2", "bbbb-1", "bbbb-12"]);
        let chosen = |session| choose(&there, session);
        assert_eq!(chosen("aaaa-2"), Ok("aaaa-2".into()));
        assert_eq!(chosen("bbbb-1"), Ok("bbbb-1".into()), "written out it is itself");
        let said = chosen("aaaa").unwrap_err();
        assert_eq!(
            said,
            "aaaa matches several sessions at p; write more of aaaa-1 (waiting), aaaa-2 (waiting)"
        );
        for unknown in ["bbb", "", "cccc"] {
            let said = chosen(unknown).unwrap_err();
            assert!(said.starts_with(&format!("no participant {unknown} at p; there are aaaa-1")), "{said}");
            assert!(said.ends_with("at least 4 characters of it, a name or a process id"), "{said}");
        }
        let long = format!("\u{1b}{}", "x".repeat(5000));
        let said = choose(&waiters(&[&long]), "cccc").unwrap_err();
        assert!(said.len() < 300 && said.contains("\\u{1b}xx") && said.contains("x… (waiting). "), "{said}");
        assert_eq!(super::choose("p", &[], "aaaa"), Err(Error::Missing("no participants at p".into())));
    }
}
