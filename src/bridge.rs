//! The core's requests about a semaphore, made of Consul, and what the answers mean to the core. Whoever follows a plan
//! goes by here: an agent, and an operator's command.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use slotkeeper_consul::{self, Class, Client, Consistency, Fault, KvPair, Read, Txn, TxnOp};
use slotkeeper_semaphore::{Commit, Failure, FailureKind, LOCK_FLAGS, Listing, Op, Pair, Reading, SessionId};

/// Lists everything below a semaphore's prefix.
///
/// # Errors
///
/// There is no answer to go on with.
pub async fn list(client: &Client, prefix: &str, read: Read) -> Result<Listing, Failure> {
    let answer = client.kv_list(&below(prefix), read).await;
    answer.map(listing).map_err(|error| failure(&error))
}

/// Reads one key.
///
/// # Errors
///
/// There is no answer to go on with.
pub async fn read(client: &Client, key: &str, read: Read) -> Result<Reading, Failure> {
    let answer = client.kv_get(key, read).await;
    answer.map(reading).map_err(|error| failure(&error))
}

/// Reads a key that is watched. One that ends in a slash is a folder: what is read are the names of the keys in it. The
/// names that the token may not read are not among them, which the next listing tells.
///
/// # Errors
///
/// There is no answer to go on with.
pub async fn watched(client: &Client, key: &str, read: Read) -> Result<Reading, slotkeeper_consul::Error> {
    if !is_folder(key) {
        return client.kv_get(key, read).await.map(reading);
    }
    let answer = client.kv_keys(key, read).await?;
    Ok(Reading { index: answer.index, pair: Some(Pair::of_folder(key, answer.value, answer.index)) })
}

/// Whether a watch of that key is one of all keys below it.
pub fn is_folder(key: &str) -> bool {
    key.ends_with('/')
}

/// What a transaction that reads has brought.
#[derive(Clone, Debug)]
pub enum Found {
    /// The keys as they are. One that is hidden from the token is not among them.
    Pairs(Vec<Pair>),
    /// Nothing, because these of the keys, counted from 0, do not exist or may not be read.
    Refused(Vec<usize>),
}

/// Reads several keys by one transaction, no more than Consul takes in one.
///
/// # Errors
///
/// There is no answer to go on with.
pub async fn read_many(client: &Client, keys: &[String]) -> Result<Found, Failure> {
    found(client.kv_get_many(keys, Consistency::Default).await, keys)
}

fn found(answer: Result<Txn, slotkeeper_consul::Error>, keys: &[String]) -> Result<Found, Failure> {
    match answer {
        Ok(Txn::Committed(pairs)) => Ok(Found::Pairs(pairs.into_iter().map(pair).collect())),
        Ok(Txn::RolledBack(faults)) => {
            let places = faults.iter().map(|fault| fault.op_index).filter(|place| *place < keys.len());
            let places: Vec<_> = places.collect();
            // A refusal of no key in particular says nothing of any.
            Ok(Found::Refused(if places.is_empty() { (0..keys.len()).collect() } else { places }))
        }
        Err(error) => Err(failure(&error)),
    }
}

/// Reads several keys at one instant and consistently, by one transaction. Where one of them is missing or may not be read,
/// which a transaction does not tell with an index, each is read alone.
///
/// # Errors
///
/// There is no answer to go on with.
pub async fn confirm(client: &Client, keys: &[String]) -> Result<Vec<Reading>, Failure> {
    match found(client.kv_get_many(keys, Consistency::Consistent).await, keys) {
        Ok(Found::Pairs(pairs)) => {
            let one = |key: &String| pairs.iter().find(|pair| pair.key == *key).cloned();
            let all: Option<Vec<_>> = keys.iter().map(one).collect();
            if let Some(all) = all {
                return Ok(all.into_iter().map(shown).collect());
            }
        }
        Err(failure) if failure.kind.is_transient() => return Err(failure),
        Ok(Found::Refused(_)) | Err(_) => {}
    }
    let mut readings = Vec::new();
    for key in keys {
        readings.push(read(client, key, Read::consistent()).await?);
    }
    Ok(readings)
}

/// Reads several groups of keys, those of each group at one instant and consistently: all of them by one transaction, which must have
/// room for them. Where something is missing, its group is read by itself. An answer for each group, in their order.
pub async fn confirm_all(client: &Client, groups: &[Vec<String>]) -> Vec<Result<Vec<Reading>, Failure>> {
    let mut answers: BTreeMap<usize, Result<Vec<Reading>, Failure>> = BTreeMap::new();
    let mut together: Vec<usize> = (0..groups.len()).collect();
    while together.len() > 1 {
        let of = |group: &usize| groups.get(*group).into_iter().flatten();
        let keys: BTreeSet<_> = together.iter().flat_map(of).cloned().collect();
        let keys: Vec<_> = keys.into_iter().collect();
        match found(client.kv_get_many(&keys, Consistency::Consistent).await, &keys) {
            Ok(Found::Pairs(pairs)) => {
                let pairs: BTreeMap<_, _> = pairs.into_iter().map(|pair| (pair.key.clone(), pair)).collect();
                for group in together.drain(..) {
                    // One with a key that is hidden is read by itself.
                    let pairs: Option<Vec<_>> = of(&group).map(|key| pairs.get(key).cloned()).collect();
                    answers.extend(pairs.map(|pairs| (group, Ok(pairs.into_iter().map(shown).collect()))));
                }
            }
            Ok(Found::Refused(places)) => {
                let missing: BTreeSet<_> = places.iter().filter_map(|place| keys.get(*place)).collect();
                together.retain(|group| of(group).all(|key| !missing.contains(key)));
            }
            Err(failure) if failure.kind.is_transient() => {
                answers.extend(together.drain(..).map(|group| (group, Err(failure.clone()))));
            }
            // Together they may be more than Consul answers.
            Err(_) => break,
        }
    }
    let mut all = Vec::new();
    // Where Consul does not answer one, the others need not wait for the same.
    let mut away: Option<Failure> = None;
    for (group, keys) in groups.iter().enumerate() {
        let answer = match (answers.remove(&group), &away) {
            (Some(answer), _) => answer,
            (None, Some(failure)) => Err(failure.clone()),
            (None, None) => confirm(client, keys).await,
        };
        away = answer.as_ref().err().filter(|failure| failure.kind.is_transient()).cloned().or(away);
        all.push(answer);
    }
    all
}

/// A key as a transaction has shown it.
fn shown(pair: Pair) -> Reading {
    Reading { index: pair.modify_index, pair: Some(pair) }
}

/// Reads how long Consul keeps what a session has locked from everybody once it has ended; `None` where it has.
///
/// # Errors
///
/// There is no answer to go on with.
pub async fn lock_delay(client: &Client, session: &SessionId) -> Result<Option<Duration>, Failure> {
    let answer = client.session_info(session.as_str(), Read::default()).await;
    answer.map(|info| info.value.map(|session| session.lock_delay)).map_err(|error| failure(&error))
}

/// Renews a session. A leader that has just been elected answers renewals before it knows of all sessions; that one does
/// not exist is believed only after a consistent read, for which it has to know. All of it takes `timeout` and no longer:
/// nothing else renews the session meanwhile.
///
/// # Errors
///
/// It was not renewed; [`FailureKind::NotFound`] where it does not exist.
pub async fn renew(
    client: &Client,
    session: &SessionId,
    timeout: Duration,
) -> Result<slotkeeper_consul::Session, Failure> {
    let began = Instant::now();
    let failed = match client.within(timeout).session_renew(session.as_str()).await {
        Ok(renewed) => return Ok(renewed),
        Err(error) => failure(&error),
    };
    if failed.kind != FailureKind::NotFound {
        return Err(failed);
    }
    let left = timeout.saturating_sub(began.elapsed());
    match client.within(left).session_exists(session.as_str()).await {
        Ok(true) => {
            let text = format!(
                "{}; but it exists: Consul's leader has not read all of its log yet; renewing again",
                failed.text
            );
            Err(Failure { kind: FailureKind::NoLeader, text })
        }
        Ok(false) => Err(failed),
        Err(error) => {
            let unknown = failure(&error);
            // As while servers elect a leader. A token or a gateway that never lets it be read leaves the first answer alone.
            let server_failed = matches!(error, slotkeeper_consul::Error::Unexpected { status: 500.., .. });
            let kind = if server_failed { FailureKind::Unavailable } else { unknown.kind };
            Err(if kind.is_transient() { Failure { kind, ..unknown } } else { failed })
        }
    }
}

/// Destroys the sessions whose names end in one of the marks; the marks of those that were found.
///
/// # Errors
///
/// There is no answer to go on with. What was found before is destroyed.
pub async fn destroy_named(client: &Client, marks: &[String]) -> Result<Vec<String>, Failure> {
    // Of hidden sessions none can be meant: whoever may create a session on a node may read those of it.
    let sessions = client.session_list(Read::consistent()).await.map_err(|error| failure(&error))?;
    let mut found = Vec::new();
    for session in sessions.value {
        if let Some(mark) = marks.iter().find(|mark| session.name.ends_with(mark.as_str())) {
            client.session_destroy(&session.id).await.map_err(|error| failure(&error))?;
            found.push(mark.clone());
        }
    }
    Ok(found)
}

/// Commits a transaction.
///
/// # Errors
///
/// There is no answer to go on with, and where [`FailureKind::is_transient`] says so the transaction may have been done.
pub async fn commit(client: &Client, ops: Vec<Op>) -> Result<Commit, Failure> {
    let steps: Vec<_> = ops.iter().cloned().map(op).collect();
    committed(client.txn(&steps).await, &ops)
}

/// With the slash: `<prefix>-2/…` is another semaphore.
fn below(prefix: &str) -> String {
    format!("{prefix}/")
}

fn op(op: Op) -> TxnOp {
    match op {
        Op::Lock { key, value, flags, session } => {
            TxnOp::Lock { key, value, flags, session: session.as_str().to_owned() }
        }
        Op::Unlock { key, value, flags, session } => {
            TxnOp::Unlock { key, value, flags, session: session.as_str().to_owned() }
        }
        Op::Cas { key, value, flags, index } => TxnOp::Cas { key, value, flags, index },
        Op::Delete { key } => TxnOp::Delete { key },
        Op::DeleteCas { key, index } => TxnOp::DeleteCas { key, index },
        Op::CheckIndex { key, index } => TxnOp::CheckIndex { key, index },
        Op::List { prefix } => TxnOp::GetTree { prefix },
        Op::CheckNotExists { key } => TxnOp::CheckNotExists { key },
        Op::CheckSession { key, session } => {
            TxnOp::CheckSession { key, session: session.as_str().to_owned() }
        }
    }
}

fn listing(answer: slotkeeper_consul::Indexed<Vec<KvPair>>) -> Listing {
    let pairs = answer.value.into_iter().map(pair).collect();
    Listing { index: answer.index, filtered: answer.filtered, pairs }
}

/// A key as the core sees it.
pub fn reading(answer: slotkeeper_consul::Indexed<Option<KvPair>>) -> Reading {
    Reading { index: answer.index, pair: answer.value.map(pair) }
}

fn pair(pair: KvPair) -> Pair {
    Pair {
        key: pair.key,
        value: pair.value,
        flags: pair.flags,
        session: pair.session.map(SessionId::from),
        times_locked: pair.lock_index,
        create_index: pair.create_index,
        modify_index: pair.modify_index,
    }
}

/// Where a transaction ends by listing everything: after how many other keys in its answer that comes. Each step that
/// leaves its key in place shows it.
fn listed_after(ops: &[Op]) -> Option<usize> {
    let place = ops.iter().position(|op| matches!(op, Op::List { .. }))?;
    let shows = |op: &&Op| match op {
        Op::Lock { .. }
        | Op::Unlock { .. }
        | Op::Cas { .. }
        | Op::CheckIndex { .. }
        | Op::CheckSession { .. } => true,
        Op::Delete { .. } | Op::DeleteCas { .. } | Op::CheckNotExists { .. } | Op::List { .. } => false,
    };
    Some(ops[..place].iter().filter(shows).count())
}

/// Whether the key is a single-key lock's. The steps that guard one do not say so themselves.
fn is_single(key: &str, ops: &[Op]) -> bool {
    ops.iter().any(|op| match op {
        Op::Lock { flags, .. } | Op::Unlock { flags, .. } => *flags == LOCK_FLAGS && op.key() == key,
        Op::Cas { .. }
        | Op::Delete { .. }
        | Op::DeleteCas { .. }
        | Op::CheckIndex { .. }
        | Op::CheckNotExists { .. }
        | Op::CheckSession { .. }
        | Op::List { .. } => false,
    })
}

/// What the answer to a transaction of these steps means to the one who planned it.
fn committed(answer: Result<Txn, slotkeeper_consul::Error>, ops: &[Op]) -> Result<Commit, Failure> {
    let faults = match answer {
        // All that one transaction changes gets the same index; one that only deletes shows none.
        Ok(Txn::Committed(pairs)) => {
            let index = pairs.iter().map(|pair| pair.modify_index).max().unwrap_or(0);
            let listing = listed_after(ops)
                .map(|before| pairs.into_iter().skip(before).map(pair).collect())
                // The answer to a transaction that writes never says so (tried with 1.23).
                .map(|pairs| Listing { index, filtered: false, pairs });
            return Ok(Commit::Done { index, listing });
        }
        Ok(Txn::RolledBack(faults)) => faults,
        Err(error) if error.class() == Class::InvalidSession => return Ok(Commit::SessionGone),
        Err(error) => return Err(failure(&error)),
    };
    let is = |wanted: &[Fault]| faults.iter().any(|fault| wanted.contains(&fault.fault));
    let said = || {
        let mut said: Vec<_> = faults.iter().map(|fault| fault.said.as_str()).collect();
        said.dedup();
        said.join("; ")
    };
    if let Some(denied) = faults.iter().find(|fault| fault.fault == Fault::Denied) {
        let key = ops.get(denied.op_index).map(Op::key).unwrap_or_default();
        let (what, rule) = if is_single(key, ops) {
            (key.to_owned(), format!("key \"{key}\""))
        } else {
            let below = key.rfind('/').map_or(key, |slash| &key[..=slash]);
            (format!("under {below}"), format!("key_prefix \"{below}\""))
        };
        let said = said();
        let text = format!(
            "Consul denied to write {what}: {said}; the token needs `{rule} {{ policy = \"write\" }}`"
        );
        Err(Failure { kind: FailureKind::Denied, text })
    } else if is(&[Fault::StaleIndex, Fault::NoSuchKey, Fault::KeyExists, Fault::NotHolder, Fault::LockHeld])
    {
        // Before a session that is gone: it may be that of the one who was to be let in, and its contender says so too.
        Ok(Commit::Stale { steps: faults.iter().map(|fault| fault.op_index).collect() })
    } else if is(&[Fault::InvalidSession]) {
        Ok(Commit::SessionGone)
    } else if is(&[Fault::LockDelay]) {
        let delayed = faults.iter().filter(|fault| fault.fault == Fault::LockDelay);
        Ok(Commit::Delayed { steps: delayed.map(|fault| fault.op_index).collect() })
    } else {
        Ok(Commit::Refused { why: format!("Consul refused the transaction: {}", said()) })
    }
}

/// What a request that failed means to the core.
pub fn failure(error: &slotkeeper_consul::Error) -> Failure {
    let kind = match error.class() {
        Class::NotFound | Class::InvalidSession => FailureKind::NotFound,
        Class::Denied | Class::Token => FailureKind::Denied,
        Class::InvalidKey => FailureKind::InvalidKey,
        Class::NoLeader => FailureKind::NoLeader,
        Class::Cut => FailureKind::Cut,
        Class::RateLimited => FailureKind::RateLimited,
        Class::Unreachable | Class::NotSent | Class::Timeout | Class::Interrupted => FailureKind::Unavailable,
        Class::TooLarge | Class::Unfit | Class::BadRequest | Class::Unexpected | Class::BadAnswer => {
            FailureKind::Rejected
        }
    };
    Failure { kind, text: error.to_string() }
}
