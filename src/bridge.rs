//! Translates between the core and the client of Consul: the core's operations into requests, and the answers into the core's types.
//! The agent and the operators' commands use it.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use slotkeeper_consul::{self, Client, Code, Consistency, Fault, Kind, KvPair, Operation, Read, Txn, TxnOp};
use slotkeeper_semaphore::{
    Commit, Failure, FailureKind, LOCK_FLAGS, Listing, Op, Pair, Reading, SessionId, plan, printable,
};

/// A key in a message: its first characters.
const MAX_SHOWN_KEY: usize = 500;

/// Lists everything below a semaphore's prefix.
///
/// # Errors
///
/// The request failed.
pub async fn list(client: &Client, prefix: &str, read: Read) -> Result<Listing, Failure> {
    let answer = client.kv_list(&below(prefix), read).await;
    answer.map(listing).map_err(|error| failure(&error))
}

/// Reads one key.
///
/// # Errors
///
/// The request failed.
pub async fn read(client: &Client, key: &str, read: Read) -> Result<Reading, Failure> {
    let answer = client.kv_get(key, read).await;
    answer.map(reading).map_err(|error| read_failure(&error, key))
}

/// Reads a watched key. A key that ends in a slash is a folder, of which the names of its keys are read. Names that the token may not
/// read are missing; the next listing reports that.
///
/// # Errors
///
/// The request failed.
pub async fn watched(client: &Client, key: &str, read: Read) -> Result<Reading, slotkeeper_consul::Error> {
    if !is_folder(key) {
        return client.kv_get(key, read).await.map(reading);
    }
    let answer = client.kv_keys(key, read).await?;
    Ok(Reading { index: answer.index, pair: Some(Pair::of_folder(key, answer.value, answer.index)) })
}

/// Whether a watch of the key is a watch of all keys below it.
pub fn is_folder(key: &str) -> bool {
    key.ends_with('/')
}

/// The result of a transaction that reads.
#[derive(Clone, Debug)]
pub enum Found {
    /// The keys. Those hidden from the token are missing.
    Pairs(Vec<Pair>),
    /// Nothing, because the keys with these indexes do not exist or may not be read.
    Refused(Vec<usize>),
}

/// Reads several keys by one transaction: at most as many as one transaction may have.
///
/// # Errors
///
/// The request failed.
pub async fn read_many(client: &Client, keys: &[String]) -> Result<Found, Failure> {
    found(client.kv_get_many(keys, Consistency::Default).await, keys)
}

fn found(answer: Result<Txn, slotkeeper_consul::Error>, keys: &[String]) -> Result<Found, Failure> {
    match answer {
        Ok(Txn::Committed(pairs)) => Ok(Found::Pairs(pairs.into_iter().map(pair).collect())),
        Ok(Txn::RolledBack(faults)) => {
            let missing = faults.iter().map(|fault| fault.op_index).filter(|index| *index < keys.len());
            let missing: Vec<_> = missing.collect();
            // A fault without a key may concern any of them.
            Ok(Found::Refused(if missing.is_empty() { (0..keys.len()).collect() } else { missing }))
        }
        Err(error) => Err(failure(&error)),
    }
}

/// Reads several groups of keys, all at one index and consistently, by one transaction, which must have room for them. Returns the
/// readings of each group, in their order. A key that does not exist, or may not be read, has the index 0.
pub async fn read_groups(client: &Client, groups: &[Vec<String>]) -> Vec<Result<Vec<Reading>, Failure>> {
    let keys: BTreeSet<_> = groups.iter().flatten().cloned().collect();
    let keys: Vec<_> = keys.into_iter().collect();
    let read = async |keys: &[String]| {
        let pairs = client.kv_get_existing(keys, Consistency::Consistent).await;
        pairs.map_err(|error| failure(&error)).map(|pairs| pairs.into_iter().map(pair).collect::<Vec<_>>())
    };
    let of_group = |pairs: &[Pair], keys: &[String]| {
        let reading = |key: &String| {
            let pair = pairs.iter().find(|pair| pair.key == *key).cloned();
            Reading { index: pair.as_ref().map_or(0, |pair| pair.modify_index), pair }
        };
        keys.iter().map(reading).collect::<Vec<_>>()
    };
    match read(&keys).await {
        Ok(pairs) => groups.iter().map(|keys| Ok(of_group(&pairs, keys))).collect(),
        Err(failure) if groups.len() == 1 || failure.kind.is_transient() => {
            groups.iter().map(|_| Err(failure.clone())).collect()
        }
        // The answer for all groups may be too long.
        Err(_) => {
            let mut all = Vec::new();
            for keys in groups {
                all.push(read(keys).await.map(|pairs| of_group(&pairs, keys)));
            }
            all
        }
    }
}

/// Renews a session. A new leader answers renewals before it has applied its log, so a 404 is confirmed by a consistent read. All of it
/// takes at most `timeout`, since nothing else renews the session meanwhile.
///
/// # Errors
///
/// The session was not renewed; [`FailureKind::NotFound`] if it does not exist.
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
            // A server error also occurs during an election. If a token or a gateway never permits the read, the first answer counts.
            let kind = if error.kind == Kind::Unknown { FailureKind::Unavailable } else { unknown.kind };
            Err(if kind.is_transient() { Failure { kind, ..unknown } } else { failed })
        }
    }
}

/// Commits a transaction.
///
/// # Errors
///
/// The request failed or was denied. If [`FailureKind::is_transient`], the transaction may have been applied.
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

/// Converts a key to the core's type.
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

/// What the listings of a transaction have returned. The answer has the keys in the order of the operations: one for each operation that
/// keeps its key, and those of a listing in ascending order. A listing of one key is that of a prefix, and returns others too.
fn listed(ops: &[Op], answer: Vec<KvPair>) -> Vec<Pair> {
    let mut answer = answer.into_iter().peekable();
    let mut pairs = Vec::new();
    for op in ops {
        match op {
            Op::List { prefix } => {
                let mut last = String::new();
                let is_next = |next: &KvPair, last: &str| next.key.starts_with(prefix) && *next.key > *last;
                while let Some(next) = answer.next_if(|next| is_next(next, &last)) {
                    last.clone_from(&next.key);
                    if is_folder(prefix) || next.key == *prefix {
                        pairs.push(pair(next));
                    }
                }
            }
            Op::Lock { .. }
            | Op::Unlock { .. }
            | Op::Cas { .. }
            | Op::CheckIndex { .. }
            | Op::CheckSession { .. } => drop(answer.next()),
            Op::Delete { .. } | Op::DeleteCas { .. } | Op::CheckNotExists { .. } => {}
        }
    }
    pairs
}

/// Converts the answer to a transaction of these operations.
fn committed(answer: Result<Txn, slotkeeper_consul::Error>, ops: &[Op]) -> Result<Commit, Failure> {
    let faults = match answer {
        // All changes of one transaction have the same index. A transaction of deletes alone returns none.
        Ok(Txn::Committed(pairs)) => {
            let index = pairs.iter().map(|pair| pair.modify_index).max().unwrap_or(0);
            let lists = ops.iter().any(|op| matches!(op, Op::List { .. }));
            // The answer to a transaction that writes never reports what it hides (seen on 1.23).
            let listing = lists.then(|| Listing { index, filtered: false, pairs: listed(ops, pairs) });
            return Ok(Commit::Done { index, listing });
        }
        Ok(Txn::RolledBack(faults)) => faults,
        Err(error) if error.kind == Kind::Gone => return Ok(Commit::SessionGone),
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
        let is_lock =
            |op: &Op| matches!(op, Op::Lock { flags: LOCK_FLAGS, .. } | Op::Unlock { flags: LOCK_FLAGS, .. });
        let is_single = ops.iter().any(|op| op.key() == key && is_lock(op));
        let ((what, rule), said) = (rule(key, is_single, "write"), said());
        let text = if said.contains("ACL not found") {
            format!(
                "cannot write {what}: Consul does not know this token: {said}; it is mistyped, or has been deleted"
            )
        } else {
            format!("Consul denied to write {what}: {said}; the token needs {rule}")
        };
        Err(Failure { kind: FailureKind::Denied, text })
    } else if is(&[Fault::StaleIndex, Fault::NoSuchKey, Fault::KeyExists, Fault::NotHolder, Fault::LockHeld])
    {
        // Checked before an invalid session, which may be that of the waiter to grant the slot to: its contender key is stale too.
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

/// What to do about an error that says one of these texts, or any text if there is none: the commonest mistakes, with the keys, flags
/// and variables that correct them. The first row that fits counts.
#[rustfmt::skip]
const ADVICE: &[(Kind, &[&str], &str)] = &[
    (Kind::NotSent, &["dns error", "failed to lookup address"], "; correct the host in the address (consul.address, --http-addr, CONSUL_HTTP_ADDR)"),
    (Kind::NotSent, &["tls handshake eof"], "; the server there does not speak TLS, or a proxy does not reach it: Consul's HTTPS API has port 8501"),
    (Kind::NotSent, &["not reached"], "; is Consul listening there? (consul.address, --http-addr, CONSUL_HTTP_ADDR)"),
    (Kind::NotConsul, &["received corrupt message"],
     "; the server there does not speak TLS; write http:// in the address (consul.address, --http-addr, CONSUL_HTTP_ADDR), or the port of Consul's HTTPS API (8501)"),
    (Kind::NotConsul, &["HTTP request to an HTTPS server", "plain HTTP request was sent to HTTPS port"],
     "; the server there speaks only TLS; write https:// in the address (consul.address, --http-addr, CONSUL_HTTP_ADDR)"),
    (Kind::NotConsul, &["invalid HTTP version parsed", "it sends other bytes, or closes the connection in place of an answer"],
     "; the server there does not speak HTTP; use the port of Consul's HTTP API (8500), or https:// if it speaks TLS (consul.address, --http-addr, CONSUL_HTTP_ADDR)"),
    (Kind::NotConsul, &["UnknownIssuer"], "; set consul.tls.ca_file, --ca-file or CONSUL_CACERT to the file of the authority that signed it"),
    (Kind::NotConsul, &["not valid for name"], "; set consul.tls.server_name, --tls-server-name or CONSUL_TLS_SERVER_NAME to a name that it has"),
    (Kind::NotConsul, &["invalid peer certificate"], "; look at it, and at the clocks of both machines"),
    (Kind::NotConsul, &["received fatal alert"],
     "; the server does not accept this client's certificate, or its absence: set consul.tls.cert_file and key_file, or CONSUL_CLIENT_CERT and CONSUL_CLIENT_KEY"),
    (Kind::NotConsul, &[], "; is this the address of Consul's HTTP API?"),
    (Kind::Denied, &["ACL not found"], ""),
    (Kind::Denied, &["no token was sent"], ": set consul.token_file, --token-file, CONSUL_HTTP_TOKEN_FILE or CONSUL_HTTP_TOKEN"),
    (Kind::Unknown, &["received unexpected message from connection"],
     "; Consul refuses a connection like this when the address that it comes from has too many (limits.http_max_conns_per_client, 200 by default)"),
    (Kind::Unknown, &["nothing there has answered yet"],
     "; it is not Consul's HTTP API (port 8500 by default), or a proxy that does not reach Consul, or Consul with too many connections of this address \
      (limits.http_max_conns_per_client, 200 by default)"),
    (Kind::Unknown, &["connection closed before message completed", "reset by peer"],
     "; if this goes on while Consul is up, the address that it comes from may have too many connections (limits.http_max_conns_per_client, 200 by default)"),
    (Kind::NoLeader, &[], "; try again when the servers have elected one"),
    (Kind::Busy, &[], "; try again later"),
    (Kind::Cut, &[], "; where a proxy ends long requests, set consul.max_wait below its time-out"),
    (Kind::Refused, &["invalid key name"],
     "; choose another semaphores.prefix or locks.key, or set disable_kv_key_validation in Consul's own configuration"),
    (Kind::Refused, &["No path to datacenter"], "; Consul knows no such datacenter; correct consul.datacenter (--datacenter)"),
    (Kind::Refused, &["Missing node", "Missing check"],
     "; Consul does not know the session's node or one of its checks; see session.node (--node), session.node_checks and session.service_checks in the configuration"),
    (Kind::Refused, &["critical state"],
     "; one of the session's checks is critical; see session.node_checks and session.service_checks in the configuration"),
    (Kind::Refused, &["Invalid Session TTL", "Invalid Behavior", "cross datacenter lock"], "; correct the session's settings, or consul.address"),
];

fn advice(error: &slotkeeper_consul::Error) -> Option<&'static str> {
    let may_lack_port = matches!(error.kind, Kind::NotSent | Kind::Unknown | Kind::NotConsul);
    if may_lack_port && error.tried.address.ends_with(":80") {
        return Some("; is Consul listening there? If no port was written, write :8500 (the default is 80)");
    }
    let fits = |(kind, says, _): &&(Kind, &[&str], _)| {
        *kind == error.kind && (says.is_empty() || says_any(error, says))
    };
    ADVICE.iter().find(fits).map(|(_, _, what)| *what)
}

fn says_any(error: &slotkeeper_consul::Error, parts: &[&str]) -> bool {
    parts.iter().any(|part| error.detail.contains(part))
}

/// Converts an error to the core's failure.
pub fn failure(error: &slotkeeper_consul::Error) -> Failure {
    let kind = match error.kind {
        Kind::Gone => FailureKind::NotFound,
        Kind::Denied => FailureKind::Denied,
        Kind::NoLeader => FailureKind::NoLeader,
        Kind::Busy => FailureKind::RateLimited,
        Kind::Cut => FailureKind::Cut,
        Kind::NotSent if error.token.is_some() && error.login().is_none() => FailureKind::NoToken,
        Kind::NotConsul if error.is_mismatch() => FailureKind::Mismatch,
        Kind::NotConsul => FailureKind::NotConsul,
        Kind::Unknown if !matches!(error.code, Code::Timeout | Code::Interrupted) => FailureKind::Rejected,
        Kind::NotSent | Kind::Unknown => FailureKind::Unavailable,
        Kind::Refused if says_any(error, &["invalid key name"]) => FailureKind::InvalidKey,
        Kind::Refused if says_any(error, &["critical state"]) => FailureKind::Rejected,
        Kind::Refused if advice(error).is_some() => FailureKind::Misconfigured,
        // Only the settings of a session can be wrong there.
        Kind::Refused
            if error.tried.operation == Operation::SessionCreate && error.code == Code::BadRequest =>
        {
            FailureKind::Misconfigured
        }
        Kind::Refused => FailureKind::Rejected,
    };
    Failure { kind, text: message(error) }
}

/// The failure of a read of a key, which names the ACL rule that a token without the right lacks.
pub fn read_failure(error: &slotkeeper_consul::Error, key: &str) -> Failure {
    let Failure { kind, text } = failure(error);
    let text = if lacks_right(error) {
        format!("{text}; the token needs {}", rule(key, false, "read").1)
    } else {
        text
    };
    Failure { kind, text }
}

/// Whether the token is known and lacks a right.
pub fn lacks_right(error: &slotkeeper_consul::Error) -> bool {
    error.kind == Kind::Denied && error.token.is_none() && advice(error).is_none()
}

/// What the ACL rule of a key is about, and the rule. A semaphore's keys have one rule, that of the folder. The key of a lock has its own.
fn rule(key: &str, is_single: bool, policy: &str) -> (String, String) {
    let (folder, name) = key.rsplit_once('/').unwrap_or(("", key));
    let is_in_folder = matches!(name, "" | ".lock") || uuid::Uuid::try_parse(name).is_ok();
    if is_in_folder && !is_single && !folder.is_empty() {
        (format!("under {folder}/"), plan::acl_rule(folder, policy))
    } else {
        let key = printable(key, MAX_SHOWN_KEY);
        let rule = format!("`key \"{key}\" {{ policy = \"{policy}\" }}`");
        (key, rule)
    }
}

/// The message of an error, with the keys of the configuration that may correct it. The rules for keys name the prefix, which the
/// callers know.
pub fn message(error: &slotkeeper_consul::Error) -> String {
    use Operation::{AgentSelf, SessionCreate, SessionDestroy, SessionInfo, SessionList, SessionRenew};
    let cause = error.login().unwrap_or(error);
    let operation = cause.tried.operation;
    let advice = match advice(cause) {
        _ if cause.kind == Kind::Denied && operation == Operation::Login => {
            "; the login is set by consul.login.auth_method and consul.login.bearer_token_file"
        }
        Some(advice) => advice,
        None if cause.kind != Kind::Denied => "",
        None if matches!(operation, SessionCreate | SessionRenew | SessionDestroy) => {
            "; the token needs `session_prefix \"\" { policy = \"write\" }`"
        }
        None if matches!(operation, SessionInfo | SessionList) => {
            "; the token needs `session_prefix \"\" { policy = \"read\" }`"
        }
        None if operation == AgentSelf => "; the token needs `agent_prefix \"\" { policy = \"read\" }`",
        None => "",
    };
    format!("{error}{advice}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denied_read_names_its_rule() {
        let session = "c457f5ae-0000-4000-8000-000000000000";
        for (key, rule) in [
            ("service/s/.lock", r#"`key_prefix "service/s/" { policy = "read" }`"#),
            ("service/s/", r#"`key_prefix "service/s/" { policy = "read" }`"#),
            (&format!("service/s/{session}"), r#"`key_prefix "service/s/" { policy = "read" }`"#),
            ("service/leader", r#"`key "service/leader" { policy = "read" }`"#),
            ("leader", r#"`key "leader" { policy = "read" }`"#),
        ] {
            assert_eq!(super::rule(key, false, "read").1, rule, "{key}");
        }
        let said = |kind, detail| read_failure(&error(Operation::KvGet, kind, detail), "leader").text;
        assert!(
            said(Kind::Denied, "why").ends_with(r#"why; the token needs `key "leader" { policy = "read" }`"#)
        );
        for (kind, detail) in
            [(Kind::Denied, "ACL not found"), (Kind::Denied, "no token was sent"), (Kind::NotSent, "refused")]
        {
            assert!(!said(kind, detail).contains("the token needs"), "{kind:?} {detail}");
        }
    }

    fn error(operation: Operation, kind: Kind, detail: &str) -> slotkeeper_consul::Error {
        slotkeeper_consul::Error {
            tried: slotkeeper_consul::Tried { operation, target: "k".into(), address: "http://c".into() },
            kind,
            code: Code::Other,
            detail: detail.into(),
            token: None,
        }
    }

    #[test]
    fn a_message_ends_with_the_keys_that_may_correct_the_error() {
        for (operation, kind, detail, end) in [
            (
                Operation::Txn,
                Kind::Denied,
                "no token was sent",
                ": set consul.token_file, --token-file, CONSUL_HTTP_TOKEN_FILE or CONSUL_HTTP_TOKEN",
            ),
            (Operation::Txn, Kind::Denied, "why", ": why"),
            (
                Operation::SessionCreate,
                Kind::Denied,
                "why",
                "why; the token needs `session_prefix \"\" { policy = \"write\" }`",
            ),
            (
                Operation::SessionCreate,
                Kind::Refused,
                "Missing node registration",
                "see session.node (--node), session.node_checks and session.service_checks in the configuration",
            ),
            (
                Operation::Txn,
                Kind::Refused,
                "No path to datacenter",
                "no such datacenter; correct consul.datacenter (--datacenter)",
            ),
            (
                Operation::Txn,
                Kind::NotConsul,
                "invalid peer certificate: UnknownIssuer",
                "; set consul.tls.ca_file, --ca-file or CONSUL_CACERT to the file of the authority that signed it",
            ),
            (
                Operation::Txn,
                Kind::NotSent,
                "not reached: Connection refused",
                "is Consul listening there? (consul.address, --http-addr, CONSUL_HTTP_ADDR)",
            ),
            (
                Operation::Txn,
                Kind::NotSent,
                "not reached: dns error",
                "dns error; correct the host in the address (consul.address, --http-addr, CONSUL_HTTP_ADDR)",
            ),
            (Operation::KvWatch, Kind::Cut, "why", "set consul.max_wait below its time-out"),
        ] {
            let said = message(&error(operation, kind, detail));
            assert!(said.ends_with(end), "{said}");
        }
        // A login's keys correct the request that needs its token.
        let login = error(Operation::Login, Kind::Denied, "why");
        let token = Some(Box::new(slotkeeper_consul::TokenError::Login(Box::new(login))));
        let said = message(&slotkeeper_consul::Error {
            token,
            ..error(Operation::Txn, Kind::Denied, "nothing was sent: why")
        });
        assert!(
            said.ends_with(
                "why; the login is set by consul.login.auth_method and consul.login.bearer_token_file"
            ),
            "{said}"
        );
    }
}
