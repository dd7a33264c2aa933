//! From the configuration's words, and Consul's, to the core's.

use std::time::Duration;

use crate::config::{self, Acquire, Wait};
use crate::consul::{self, Class, Fault, KvPair, SessionSpec, Txn, TxnOp};
use crate::semaphore::{
    Commit, Failure, FailureKind, Form, Identity, LimitPolicy, Listing, Name, OnLost, Op, Pair, Reading,
    SessionId, Settings,
};

pub(super) fn settings(semaphore: &config::Semaphore) -> Settings {
    Settings {
        prefix: semaphore.prefix.clone(),
        limit: semaphore.limit,
        slots: semaphore.slots,
        priority: semaphore.priority,
        wait: match semaphore.wait {
            Wait::Forever => None,
            Wait::AtMost(wait) => Some(wait),
        },
        on_lost: match semaphore.on_lost {
            config::OnLost::Reacquire => OnLost::Reacquire,
            config::OnLost::Exit => OnLost::Exit,
        },
        limit_policy: match semaphore.limit_policy {
            config::LimitPolicy::Adopt => LimitPolicy::Adopt,
            config::LimitPolicy::Set => LimitPolicy::Set,
            config::LimitPolicy::Refuse => LimitPolicy::Refuse,
        },
        prune_delay: semaphore.prune_delay,
        form: match semaphore.format {
            config::Format::List => Form::List,
            config::Format::Map => Form::Map,
        },
        body: semaphore.body.clone(),
    }
}

/// The semaphores whose slots are taken together: all required ones, where that is asked for.
pub(super) fn together(config: &config::Config) -> Vec<Name> {
    let required = config.semaphores.iter().filter(|one| one.required && config.acquire == Acquire::Together);
    required.map(|one| one.name.as_str().into()).collect()
}

pub(super) fn session_spec(session: &config::Session) -> SessionSpec {
    SessionSpec {
        name: session.name.clone(),
        ttl: session.ttl,
        behavior: match session.behavior {
            config::Behavior::Delete => consul::Behavior::Delete,
            config::Behavior::Release => consul::Behavior::Release,
        },
        lock_delay: session.lock_delay,
        node: session.node.clone(),
        node_checks: session.node_checks.clone(),
        service_checks: session.service_checks.clone(),
    }
}

/// Who we are: what the environment says of pod and node, and what the machine says of itself.
pub(super) fn identity(identity: &config::Identity) -> Identity {
    Identity {
        pod: identity.pod.clone(),
        namespace: identity.namespace.clone(),
        node: identity.node.clone(),
        host: Some(rustix::system::uname().nodename().to_string_lossy().into_owned()),
        pid: Some(std::process::id()),
    }
}

pub(super) fn ops(ops: Vec<Op>) -> Vec<TxnOp> {
    let one = |op| match op {
        Op::Lock { key, value, flags, session } => {
            TxnOp::Lock { key, value, flags, session: session.as_str().to_owned() }
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
    };
    ops.into_iter().map(one).collect()
}

pub(super) fn listing(answer: consul::Indexed<Vec<KvPair>>) -> Listing {
    Listing { index: answer.index, pairs: answer.value.into_iter().map(pair).collect() }
}

pub(super) fn reading(answer: consul::Indexed<Option<KvPair>>) -> Reading {
    Reading { index: answer.index, pair: answer.value.map(pair) }
}

fn pair(pair: KvPair) -> Pair {
    Pair {
        key: pair.key,
        value: pair.value,
        flags: pair.flags,
        session: pair.session.map(SessionId::from),
        create_index: pair.create_index,
        modify_index: pair.modify_index,
    }
}

/// Where a transaction ends by listing everything: after how many other keys in its answer that comes. Each step that
/// leaves its key in place shows it.
pub(super) fn listed_after(ops: &[Op]) -> Option<usize> {
    let place = ops.iter().position(|op| matches!(op, Op::List { .. }))?;
    let shows = |op: &&Op| match op {
        Op::Lock { .. } | Op::Cas { .. } | Op::CheckIndex { .. } | Op::CheckSession { .. } => true,
        Op::Delete { .. } | Op::DeleteCas { .. } | Op::CheckNotExists { .. } | Op::List { .. } => false,
    };
    Some(ops[..place].iter().filter(shows).count())
}

/// What the answer to a transaction under `prefix` (with its slash) means to the one who planned it.
pub(super) fn commit(
    answer: Result<Txn, consul::Error>,
    prefix: &str,
    listed_after: Option<usize>,
) -> Result<Commit, Failure> {
    let faults = match answer {
        // All that one transaction changes gets the same index; one that only deletes shows none.
        Ok(Txn::Committed(pairs)) => {
            let index = pairs.iter().map(|pair| pair.modify_index).max().unwrap_or(0);
            let listing = listed_after
                .map(|before| Listing { index, pairs: pairs.into_iter().skip(before).map(pair).collect() });
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
    if is(&[Fault::Denied]) {
        let text = format!(
            "Consul denied to write under {prefix}: {}; the token needs `key_prefix \"{prefix}\" {{ policy = \"write\" }}`",
            said()
        );
        Err(Failure { kind: FailureKind::Denied, text })
    } else if is(&[Fault::StaleIndex, Fault::NoSuchKey, Fault::KeyExists, Fault::NotHolder]) {
        // Before a session that is gone: it may be that of the one who was to be let in, and its contender says so too.
        Ok(Commit::Stale { steps: faults.iter().map(|fault| fault.op_index).collect() })
    } else if is(&[Fault::InvalidSession]) {
        Ok(Commit::SessionGone)
    } else {
        Ok(Commit::Refused { why: format!("Consul refused the transaction: {}", said()) })
    }
}

pub(super) fn failure(error: &consul::Error) -> Failure {
    let kind = match error.class() {
        Class::NotFound | Class::InvalidSession => FailureKind::NotFound,
        Class::Denied | Class::Token => FailureKind::Denied,
        Class::NoLeader | Class::RateLimited | Class::Unreachable | Class::Timeout | Class::Interrupted => {
            FailureKind::Unavailable
        }
        Class::TooLarge | Class::Unfit | Class::BadRequest | Class::Unexpected | Class::BadAnswer => {
            FailureKind::Rejected
        }
    };
    Failure { kind, text: error.to_string() }
}

/// The TTL of a session that was renewed; Consul gives back what its creator wrote, such as `30s` or `1m30s`.
pub(super) fn ttl(session: &consul::Session, configured: Duration) -> Duration {
    config::duration::parse(&session.ttl).unwrap_or(configured)
}
