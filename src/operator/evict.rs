//! Takes one participant out: asks it to go where it is one of ours, and waits until it has; takes it out where nobody can
//! ask it.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Changed, Error, Part, Participant, Place, Watch, change_at, look_at};
use crate::bridge;
use crate::clock;
use crate::consul::{Client, Read};
use crate::semaphore::contender::Entry;
use crate::semaphore::plan::{self, Stay};
use crate::semaphore::{SessionId, View};

/// The fewest characters that stand for a whole session.
const ABBREVIATED: usize = 4;
/// Those who are named where nobody or several are meant.
const LISTED: usize = 10;
/// The wait after a look that failed.
const PAUSE: Duration = Duration::from_millis(500);

/// Who is meant, as it stood when it was looked at. Whatever has become of it since is not meant.
#[derive(Clone, Debug)]
pub struct Aim {
    /// What it takes part in.
    pub place: Place,
    /// What is known of it, for people.
    pub participant: Participant,
    /// How it takes part.
    pub stay: Stay,
    /// A later version of slotkeeper wrote its entry, which this one can neither read nor mark.
    pub newer: bool,
    /// The same with all others.
    pub before: View,
}

/// What is done to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way<'a> {
    /// It is asked to go, by somebody of that name, and goes once its workload has stopped.
    Ask(&'a str),
    /// It is taken out, whatever it does.
    TakeOut,
}

/// Looks for the one that takes part at the prefix under a session, which may be written short.
///
/// # Errors
///
/// There is none, or more than one, or Consul does not answer.
pub async fn find(client: &Client, prefix: &str, session: &str) -> Result<Aim, Error> {
    let everybody = Watch::new(client, prefix).next().await?.participants();
    let participant = choose(prefix, &everybody, session).map_err(Error::Refused)?.clone();
    let place = match participant.part {
        Part::Locked => Place::Lock(lock_of(prefix, &participant).map_err(Error::Refused)?),
        Part::TakenOut => {
            return Err(Error::Refused(format!(
                "session {} was taken out already, and is about to notice",
                participant.id.as_str().escape_debug()
            )));
        }
        Part::Held | Part::Waiting | Part::Leaving | Part::Dead => Place::Semaphore(prefix.to_owned()),
    };
    let before = look_at(client, &place).await?;
    let stay = Stay::of(&before, &participant.id).filter(|stay| stay.part == part(participant.part));
    let stay = stay.ok_or_else(|| {
        Error::Refused(format!(
            "session {} came, went or moved on while it was looked at; try again",
            participant.id.as_str().escape_debug()
        ))
    })?;
    let said = participant.said.as_ref().filter(|_| participant.part != Part::Dead);
    let newer = said.is_some_and(|said| Entry::is_newer(said.as_bytes()));
    Ok(Aim { place, participant, stay, newer, before })
}

/// The same as a plan calls it.
fn part(part: Part) -> plan::Part {
    match part {
        Part::Locked | Part::Held => plan::Part::Holds,
        // The latter has no part any more, and was refused before.
        Part::Waiting | Part::Leaving | Part::TakenOut => plan::Part::Waits,
        Part::Dead => plan::Part::Dead,
    }
}

fn choose<'a>(prefix: &str, everybody: &'a [Participant], session: &str) -> Result<&'a Participant, String> {
    if let Some(one) = everybody.iter().find(|one| one.id.as_str() == session) {
        return Ok(one);
    }
    let short = session.len() >= ABBREVIATED;
    let meant: Vec<_> =
        everybody.iter().filter(|one| short && one.id.as_str().starts_with(session)).collect();
    match (meant.as_slice(), everybody) {
        ([one], _) => Ok(one),
        (_, []) => Err(format!("nobody takes part at {prefix}, or none that the token may see")),
        (meant, _) => {
            let written = session.escape_debug();
            let (said, listed) = if meant.is_empty() {
                (
                    format!("no session {written} takes part at {prefix}; there are"),
                    everybody.iter().collect(),
                )
            } else {
                (
                    format!("{written} is short for several sessions at {prefix}; write more of"),
                    meant.to_vec(),
                )
            };
            // The ids are what anybody has written there.
            let name =
                |one: &&Participant| format!("{} ({})", one.id.as_str().escape_debug(), one.part.name());
            let more = listed.len().checked_sub(LISTED).filter(|more| *more > 0);
            let more = more.map(|more| format!(" and {more} more")).unwrap_or_default();
            let listed: Vec<_> = listed.iter().take(LISTED).map(name).collect();
            Err(format!("{said} {}{more}", listed.join(", ")))
        }
    }
}

/// The lock that is meant: the prefix itself, or its `.lock`. What else one has locked below may be anything, such as its place
/// in line at a semaphore with a longer prefix.
fn lock_of(prefix: &str, participant: &Participant) -> Result<String, String> {
    let lock = format!("{prefix}/.lock");
    let keys = &participant.keys;
    let meant: Vec<_> = keys.iter().filter(|key| **key == prefix || **key == lock).collect();
    let session = participant.id.as_str().escape_debug();
    match meant.as_slice() {
        // Named by its session as a contender is, which only makes sense in a line.
        [key] if key.ends_with(&format!("/{}", participant.id)) => Err(format!(
            "the key {prefix} is the place of session {session} in a semaphore; name the semaphore's prefix, without the \
             session"
        )),
        [key] => Ok((*key).clone()),
        [] => Err(format!(
            "session {session} has no lock at {prefix} and takes no part in a semaphore there; it has locked {}. Name the \
             key itself if that is a lock, or the prefix of the semaphore that it belongs to",
            keys.iter().map(|key| key.escape_debug().to_string()).collect::<Vec<_>>().join(", ")
        )),
        _ => Err(format!(
            "session {session} has both {prefix} and {lock} locked, and only one of them can be meant; destroy the session if \
             both shall go"
        )),
    }
}

/// Does it, unless it stands otherwise than it did.
///
/// # Errors
///
/// [`Error::Refused`] where it does, and nothing was done; or Consul's.
pub async fn act(client: &Client, aim: &Aim, way: Way<'_>) -> Result<Changed, Error> {
    let tried = Cell::new(false);
    change_at(client, &aim.place, |view| {
        let now = clock::now();
        match Stay::of(view, &aim.stay.session) {
            Some(stay) if stay == aim.stay => {
                tried.set(true);
                Ok(match way {
                    Way::Ask(by) => plan::mark(view, &stay, by),
                    Way::TakeOut => plan::take_out(view, &stay, &clock::wall().text(now), now),
                })
            }
            // Where an answer was lost it may be our doing; and it is what was wanted.
            None if tried.get() => Ok(None),
            found => Err(changed(aim, found.as_ref())),
        }
    })
    .await
}

fn changed(aim: &Aim, found: Option<&Stay>) -> String {
    let session = aim.stay.session.as_str().escape_debug();
    let has = match found {
        None => "has left".to_owned(),
        Some(stay) if stay.part == plan::Part::Holds && aim.stay.part == plan::Part::Waits => {
            "was let in".to_owned()
        }
        Some(stay) if stay.part == plan::Part::Dead => "has died".to_owned(),
        Some(_) => "has left, and come again".to_owned(),
    };
    format!("session {session} {has} meanwhile, so nothing was done; look again")
}

/// Waits until one that was asked to go has gone: everything as it is then, or `None` where it is still there after that
/// time. Whoever lets it in by name in the same instant writes over what it was asked; it is then asked again, unless what
/// it was to be taken out of has become something else.
///
/// # Errors
///
/// As [`act`], or Consul is away.
pub async fn gone(client: &Client, aim: &Aim, by: &str, wait: Duration) -> Result<Option<View>, Error> {
    let session = &aim.stay.session;
    let until = Instant::now() + wait;
    loop {
        let known = match look_at(client, &aim.place).await {
            Ok(view) => match Stay::of(&view, session) {
                // It has died meanwhile, and nobody else may be there to give on what it had.
                Some(stay) if stay.part == plan::Part::Dead => {
                    match act(client, &Aim { stay, ..aim.clone() }, Way::TakeOut).await {
                        Ok(Changed { after, .. }) => return Ok(Some(after)),
                        Err(Error::Refused(_moved)) => None,
                        Err(away) if away.is_unavailable() && Instant::now() < until => None,
                        Err(error) => return Err(error),
                    }
                }
                Some(stay) if stay.since == aim.stay.since => {
                    match (view.evicted_by(session), &aim.place) {
                        (Some(_), _) => {}
                        (None, Place::Semaphore(_)) => drop(act(client, aim, Way::Ask(by)).await?),
                        // Nobody writes over what a lock's owner was asked: it has taken it anew.
                        (None, Place::Lock(_)) => return Ok(Some(view)),
                    }
                    Some(view)
                }
                Some(_) | None => return Ok(Some(view)),
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

/// Until its key has changed since then, or it is time to look anyway.
async fn wait_for_change(client: &Client, view: &View, session: &SessionId, wait: Duration) {
    let key = if view.single().is_some() { view.lock_key() } else { view.contender_key(session) };
    let read = Read::default().after(view.index_of(&key), wait);
    let answer = tokio::time::timeout(wait, bridge::read(client, &key, read)).await;
    if matches!(answer, Ok(Err(_))) {
        sleep(PAUSE.min(wait)).await;
    }
}

/// Who else has come to hold since it was looked at.
pub fn successors(aim: &Aim, after: &View) -> Vec<SessionId> {
    let holders = |view: &View| {
        let listed = view.record().map(|record| record.holders.clone()).unwrap_or_default();
        let owner = view.single().and_then(|single| single.owner.clone());
        listed.into_iter().chain(owner).collect::<BTreeSet<_>>()
    };
    let mut new = holders(after);
    new.remove(&aim.stay.session);
    new.difference(&holders(&aim.before)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::super::participants;
    use super::*;
    use crate::semaphore::Pair;

    fn everybody(sessions: &[&str]) -> Vec<Participant> {
        let pair = |(place, session): (usize, &&str)| Pair {
            key: format!("p/{session}"),
            value: Vec::new(),
            flags: 0,
            session: Some((*session).into()),
            times_locked: 1,
            create_index: place as u64,
            modify_index: place as u64,
        };
        let pairs: Vec<_> = sessions.iter().enumerate().map(pair).collect();
        participants::of(&View::new("p", pairs.clone(), 500), &pairs, Vec::new())
    }

    #[test]
    fn a_session_may_be_written_short_where_it_is_the_only_one() {
        let there = everybody(&["aaaa-1", "aaaa-2", "bbbb-1", "bbbb-12"]);
        let chosen = |session| choose("p", &there, session).map(|one| one.id.to_string());
        assert_eq!(chosen("aaaa-2").as_deref(), Ok("aaaa-2"));
        assert_eq!(chosen("bbbb-1").as_deref(), Ok("bbbb-1"), "written out it is itself");
        let said = chosen("aaaa").unwrap_err();
        assert_eq!(
            said,
            "aaaa is short for several sessions at p; write more of aaaa-1 (waiting), aaaa-2 (waiting)"
        );
        for unknown in ["bbb", "", "cccc"] {
            let said = chosen(unknown).unwrap_err();
            assert!(
                said.starts_with(&format!("no session {unknown} takes part at p; there are aaaa-1")),
                "{said}"
            );
        }
        assert!(choose("p", &[], "aaaa").unwrap_err().starts_with("nobody takes part at p"));
    }
}
