//! Operator access to a semaphore or lock from outside: reads it and its sessions, and changes it by a plan.
//!
//! An operator is no participant: there is no session, and nothing is left behind.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::bridge;
use crate::status::Kind;
use slotkeeper_consul::{Client, Indexed, Read, Session};
use slotkeeper_semaphore::plan::Write;
use slotkeeper_semaphore::{Commit, Failure, FailureKind, Listing, LockKeyState, Op, SessionId, View};

pub mod evict;
mod inspection;
pub mod list;
pub mod offers;
mod poll;
mod prefix_snapshot;
pub mod rings;

pub use inspection::{Found, Inspection, Participant, ParticipantState, SessionRow, age, word};
pub use poll::Poll;
pub use prefix_snapshot::{PrefixSnapshot, SESSIONS, Watch};

/// Failed attempts in a row.
const MAX_ATTEMPTS: u32 = 20;
/// Time for these attempts, without the last one.
const MAX_RETRY_TIME: Duration = Duration::from_secs(10);
/// The wait after a failed attempt, first and longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// Why a semaphore was not changed, or not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A request failed for good. A part of a change may be done.
    #[error("{}", .0.text)]
    Failed(Failure),
    /// There is no such semaphore or lock, as far as the token can read.
    #[error("{0}; check the prefix, and that the token may read there")]
    Missing(String),
    /// The semaphore's state does not allow it: what was found, and what to do.
    #[error("{0}")]
    Refused(String),
    /// Consul hides keys that are needed: the rule that shows them.
    #[error("{0}")]
    Denied(String),
    /// Another client's write won each time.
    #[error(
        "{lock} was changed by others each of {attempts} times before it could be changed here; try again"
    )]
    Contended {
        /// The key of the semaphore's record.
        lock: String,
        /// The number of attempts.
        attempts: u32,
    },
}

impl Error {
    /// The error of a plan against a view.
    pub fn of_plan(view: &View, why: String) -> Self {
        match view.lock {
            _ if view.is_filtered() => Self::Denied(why),
            LockKeyState::Missing => Self::Missing(why),
            LockKeyState::Record { .. } | LockKeyState::Conflict { .. } | LockKeyState::Single(_) => {
                Self::Refused(why)
            }
        }
    }

    /// Whether the token lacks a permission.
    pub fn is_denied(&self) -> bool {
        match self {
            Self::Denied(_) => true,
            Self::Failed(failure) => failure.kind == FailureKind::Denied,
            Self::Missing(_) | Self::Refused(_) | Self::Contended { .. } => false,
        }
    }

    /// Whether Consul rejects the key's name, or knows no such datacenter, or the token cannot be read.
    pub fn is_misconfigured(&self) -> bool {
        use FailureKind::{InvalidKey, Misconfigured, NoToken};
        matches!(self, Self::Failed(Failure { kind: InvalidKey | Misconfigured | NoToken, .. }))
    }

    /// Whether Consul is unreachable, or has no leader, or another server answers.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Failed(failure) if failure.kind.is_transient() || failure.kind == FailureKind::NotConsul)
    }
}

/// What an operator reads and changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which of the two it is.
    pub kind: Kind,
    /// The semaphore's prefix, or the lock's key.
    pub key: String,
}

impl Place {
    /// The semaphore at a prefix.
    pub fn semaphore(prefix: &str) -> Self {
        Self { kind: Kind::Semaphore, key: prefix.to_owned() }
    }

    /// The single-key lock at a key.
    pub fn lock(key: &str) -> Self {
        Self { kind: Kind::Lock, key: key.to_owned() }
    }
}

/// A semaphore before and after a change. Both are the same if there was nothing to do.
#[derive(Clone, Debug, PartialEq)]
pub struct Changed {
    /// The view before the first write.
    pub before: View,
    /// The view after the last write.
    pub after: View,
    /// The waiters that the writes offered slots to, each with the index of its offer.
    pub offered: Vec<(SessionId, u64)>,
}

/// Reads a semaphore or a lock with a consistent read.
///
/// # Errors
///
/// [`Error::Failed`].
pub async fn look(client: &Client, place: &Place) -> Result<View, Error> {
    let Place { kind, key } = place;
    match kind {
        Kind::Semaphore => {
            let listing = bridge::list(client, key, Read::consistent()).await.map_err(Error::Failed)?;
            Ok(View::of_listing(key, listing))
        }
        Kind::Lock => {
            let reading = bridge::read(client, key, Read::consistent()).await.map_err(Error::Failed)?;
            Ok(View::of_key(key, reading.pair, reading.index))
        }
    }
}

/// The steps of a write, which shows the view that it leaves.
fn steps(place: &Place, write: Write) -> Vec<Op> {
    let mut ops = write.ops;
    let prefix = match place.kind {
        Kind::Semaphore => format!("{}/", place.key),
        Kind::Lock => place.key.clone(),
    };
    ops.retain(|op| !matches!(op, Op::List { .. }));
    ops.push(Op::List { prefix });
    ops
}

/// The view that a write has left.
fn view_after(place: &Place, mut listing: Listing) -> View {
    match place.kind {
        Kind::Semaphore => View::of_listing(&place.key, listing),
        Kind::Lock => View::of_key(&place.key, listing.pairs.pop(), listing.index),
    }
}

/// Reads all sessions that the token may read, the oldest first.
///
/// # Errors
///
/// [`Error::Failed`].
pub async fn sessions(client: &Client, read: Read) -> Result<Indexed<Vec<Session>>, Error> {
    let answer = client.session_list(read).await;
    let mut sessions = answer.map_err(|error| Error::Failed(bridge::failure(&error)))?;
    sessions.value.sort_by(|a, b| (a.create_index, &a.id).cmp(&(b.create_index, &b.id)));
    Ok(sessions)
}

/// Executes the writes of `plan` until there is none left. After a lost race or a lost response, it reads and plans again.
///
/// # Errors
///
/// The error of `plan`, or of Consul.
pub async fn change(
    client: &Client,
    place: &Place,
    plan: impl Fn(&View) -> Result<Option<Write>, Error>,
) -> Result<Changed, Error> {
    // Read first, and again after each failure.
    let mut known = None;
    let mut before = None;
    let mut offered = Vec::new();
    let (mut failed, mut until) = (0, Instant::now() + MAX_RETRY_TIME);
    loop {
        let looked = match known.take() {
            Some(view) => Ok(view),
            None => look(client, place).await,
        };
        let why = match looked {
            Ok(view) => {
                let Some(write) = plan(&view)? else {
                    return Ok(Changed {
                        before: before.unwrap_or_else(|| view.clone()),
                        after: view,
                        offered,
                    });
                };
                let takers = write.offered.clone();
                match bridge::commit(client, steps(place, write)).await {
                    Ok(Commit::Done { listing, index }) => {
                        before.get_or_insert(view);
                        offered.extend(takers.into_iter().map(|taker| (taker, index)));
                        known = listing.map(|listing| view_after(place, listing));
                        (failed, until) = (0, Instant::now() + MAX_RETRY_TIME);
                        continue;
                    }
                    Ok(Commit::Stale { .. } | Commit::SessionGone | Commit::Delayed { .. }) => {
                        Error::Contended { lock: view.lock_key(), attempts: failed + 1 }
                    }
                    Ok(Commit::Refused { why }) => return Err(Error::Refused(why)),
                    Err(failure) if failure.kind.is_transient() => {
                        // The write may have been applied all the same.
                        before.get_or_insert(view);
                        Error::Failed(failure)
                    }
                    Err(failure) => return Err(Error::Failed(failure)),
                }
            }
            Err(away) if away.is_unavailable() && failed > 0 => away,
            Err(error) => return Err(error),
        };
        failed += 1;
        if failed >= MAX_ATTEMPTS || Instant::now() >= until {
            return Err(why);
        }
        // Jitter, so that clients that lost a race do not meet again.
        let pause = (PAUSE.0 * 2_u32.pow(failed.min(10))).min(PAUSE.1);
        sleep(pause.mul_f64(fastrand::f64())).await;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::net::Ipv4Addr;
    use std::sync::Arc;

    use super::*;
    use slotkeeper_consul::{Settings, Txn, TxnOp, Unobserved};
    use slotkeeper_consul_dev::Server;
    use slotkeeper_semaphore::{Moment, plan};

    const NOW: Moment = Moment::from_boot(Duration::ZERO);

    fn client_of(address: &str) -> Client {
        let settings = Settings { address: address.parse().unwrap(), ..Settings::default() };
        Client::new(&settings, Arc::new(Unobserved)).unwrap()
    }

    /// A semaphore `p` with limit 1 and a server around it.
    async fn semaphore() -> Client {
        let server = Server::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let client = client_of(&server.addr().to_string());
        tokio::spawn(server.run(std::future::pending()));
        let value = br#"{"Limit":1,"Holders":[]}"#.to_vec();
        let write = TxnOp::Cas { key: "p/.lock".into(), value, flags: 0, index: 0 };
        assert!(matches!(client.txn(&[write]).await, Ok(Txn::Committed(_))));
        client
    }

    fn to_three(view: &View) -> Result<Option<Write>, Error> {
        plan::set_limit(view, 3, "", NOW).map_err(|why| Error::of_plan(view, why))
    }

    fn limit(view: &View) -> u32 {
        view.record().unwrap().limit
    }

    /// The same write, as if another client had changed the record meanwhile.
    fn outdated(mut write: Write) -> Write {
        write.ops.push(Op::CheckIndex { key: "p/.lock".into(), index: 1 });
        write
    }

    #[tokio::test]
    async fn a_lost_race_is_planned_again() {
        let client = semaphore().await;
        let planned = Cell::new(0);
        let place = Place::semaphore("p");
        let changed = change(&client, &place, |view| {
            planned.set(planned.get() + 1);
            let write = to_three(view)?;
            Ok(if planned.get() < 4 { write.map(outdated) } else { write })
        });
        let Changed { before, after, .. } = changed.await.unwrap();
        assert_eq!((limit(&before), limit(&after)), (1, 3));
        assert_eq!(limit(&look(&client, &Place::semaphore("p")).await.unwrap()), 3);
        assert_eq!(planned.get(), 5);
    }

    #[tokio::test]
    async fn attempts_have_a_limit() {
        let client = semaphore().await;
        let place = Place::semaphore("p");
        let changed = change(&client, &place, |view| Ok(to_three(view)?.map(outdated)));
        let error = changed.await.unwrap_err();
        assert!(error.to_string().starts_with("p/.lock was changed by others each of "), "{error}");
        assert_eq!(limit(&look(&client, &Place::semaphore("p")).await.unwrap()), 1);
    }

    #[tokio::test]
    async fn an_error_of_the_plan_is_returned() {
        let client = semaphore().await;
        let error = change(&client, &Place::semaphore("q"), to_three).await.unwrap_err();
        assert!(error.to_string().contains("there is no semaphore at q"), "{error}");
    }

    #[tokio::test]
    async fn an_unreachable_consul_is_an_error_at_once() {
        let error = look(&client_of("127.0.0.1:1"), &Place::semaphore("p")).await.unwrap_err();
        assert!(error.is_unavailable(), "{error}");
    }
}
