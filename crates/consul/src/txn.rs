//! Transactions.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::json;

use super::kv::shown;
use super::request::Request;
use super::{Client, Consistency, Error, KvPair, Operation, Read, Secret};

/// The maximum number of operations of a transaction that every version accepts. From Consul 1.14 on the limit is 128.
pub const TXN_OPERATIONS: usize = 64;

/// Above this number of operations the answer counts as long.
const FEW_STEPS: usize = 8;

/// One operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "Verb", rename_all = "kebab-case", rename_all_fields = "PascalCase")]
pub enum TxnOp {
    /// Writes a key if its `modify_index` is `index`; with 0, if the key does not exist.
    Cas {
        /// The key.
        key: String,
        /// The value.
        #[serde(serialize_with = "base64")]
        value: Vec<u8>,
        /// The flags.
        flags: u64,
        /// The `modify_index` that was read.
        index: u64,
    },
    /// Writes a key and locks it. It succeeds if the session holds the lock already.
    Lock {
        /// The key.
        key: String,
        /// The value.
        #[serde(serialize_with = "base64")]
        value: Vec<u8>,
        /// The flags.
        flags: u64,
        /// The session that acquires the lock.
        session: String,
    },
    /// Writes a key and unlocks it.
    Unlock {
        /// The key.
        key: String,
        /// The value.
        #[serde(serialize_with = "base64")]
        value: Vec<u8>,
        /// The flags.
        flags: u64,
        /// The session that holds the lock.
        session: String,
    },
    /// Removes a key. It succeeds if the key does not exist.
    Delete {
        /// The key.
        key: String,
    },
    /// Removes a key if its `modify_index` is `index`. It succeeds if the key does not exist.
    DeleteCas {
        /// The key.
        key: String,
        /// The `modify_index` that was read.
        index: u64,
    },
    /// Reads a key. It fails if the key does not exist.
    Get {
        /// The key.
        key: String,
    },
    /// Reads the keys that begin with a prefix.
    GetTree {
        /// The prefix.
        #[serde(rename = "Key")]
        prefix: String,
    },
    /// Fails unless the session holds the lock of the key.
    CheckSession {
        /// The key.
        key: String,
        /// The session that must hold the lock.
        session: String,
    },
    /// Fails unless the key's `modify_index` is `index`.
    CheckIndex {
        /// The key.
        key: String,
        /// The `modify_index` that was read.
        index: u64,
    },
    /// Fails if the key exists.
    CheckNotExists {
        /// The key.
        key: String,
    },
}

impl TxnOp {
    /// The key, or the prefix.
    fn key(&self) -> &str {
        match self {
            Self::Cas { key, .. }
            | Self::Lock { key, .. }
            | Self::Unlock { key, .. }
            | Self::Delete { key }
            | Self::DeleteCas { key, .. }
            | Self::Get { key }
            | Self::GetTree { prefix: key }
            | Self::CheckSession { key, .. }
            | Self::CheckIndex { key, .. }
            | Self::CheckNotExists { key } => key,
        }
    }
}

fn base64<S: Serializer>(value: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&BASE64.encode(value))
}

/// The outcome of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Txn {
    /// All operations were applied. The keys are in the order of their operations. Deletes and [`TxnOp::CheckNotExists`] return no
    /// key, [`TxnOp::GetTree`] one for each key found. Only reads return values.
    Committed(Vec<KvPair>),
    /// No operation was applied.
    RolledBack(Vec<TxnFault>),
}

/// One reason why a transaction was rolled back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxnFault {
    /// The operation, counted from 0.
    pub op_index: usize,
    /// The reason.
    pub fault: Fault,
    /// Consul's message.
    pub said: String,
}

/// Why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The key's index is not the expected one. For [`TxnOp::Cas`] with 0: the key exists.
    StaleIndex,
    /// Another session holds the lock.
    LockHeld,
    /// The lock is free but in lock-delay: the session that held it was invalidated a short time ago.
    LockDelay,
    /// The session does not hold the lock: of [`TxnOp::CheckSession`] and [`TxnOp::Unlock`].
    NotHolder,
    /// The key does not exist.
    NoSuchKey,
    /// The key exists.
    KeyExists,
    /// The session that was to acquire the lock does not exist.
    InvalidSession,
    /// The token lacks a right.
    Denied,
    /// Another reason; see [`TxnFault::said`].
    Other,
}

impl Fault {
    /// Parses Consul's message, by the parts that are the same from 1.8 to 1.22.
    fn of(said: &str) -> Self {
        const WORDS: [(&str, Fault); 13] = [
            ("Permission denied", Fault::Denied),
            ("ACL not found", Fault::Denied),
            ("index is stale", Fault::StaleIndex),
            ("failed index check", Fault::StaleIndex),
            ("due to lock delay", Fault::LockDelay),
            ("lock is already held", Fault::LockHeld),
            ("lock isn't held", Fault::NotHolder),
            ("failed session check", Fault::NotHolder),
            ("invalid session", Fault::InvalidSession),
            ("failed session lookup", Fault::InvalidSession),
            ("missing session", Fault::InvalidSession),
            ("doesn't exist", Fault::NoSuchKey),
            ("exists", Fault::KeyExists),
        ];
        // A key or a session in the message is quoted, and must not be parsed as a reason.
        let words = unquoted(said);
        WORDS.iter().find(|(part, _)| words.contains(part)).map_or(Self::Other, |(_, fault)| *fault)
    }
}

/// The text without its parts in double quotes, in which Go escapes quotes.
fn unquoted(text: &str) -> String {
    let mut outside = String::new();
    let (mut quoted, mut escaped) = (false, false);
    for character in text.chars() {
        match character {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ if !quoted => outside.push(character),
            _ => {}
        }
    }
    outside
}

#[derive(Serialize)]
struct WireOp<'a> {
    #[serde(rename = "KV")]
    kv: &'a TxnOp,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct WireAnswer {
    #[serde(default)]
    results: Option<Vec<WireResult>>,
    #[serde(default)]
    errors: Option<Vec<WireError>>,
}

#[derive(Deserialize)]
struct WireResult {
    #[serde(rename = "KV")]
    kv: KvPair,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct WireError {
    op_index: usize,
    what: String,
}

impl Client {
    /// Applies all of `ops`, or none.
    ///
    /// # Errors
    ///
    /// [`Kind::Refused`](crate::Kind::Refused) above [`TXN_OPERATIONS`] (128 from Consul 1.14 on) or 512 KiB. A rollback is an answer, not an error. Unless
    /// Consul refused it or nothing was sent, a transaction that failed may have been applied, or may be applied later: read again
    /// before the next write.
    pub async fn txn(&self, ops: &[TxnOp]) -> Result<Txn, Error> {
        self.transact(Operation::Txn, ops, Read::default()).await
    }

    /// Reads several keys at one index, by a transaction without writes. If a key does not exist, the transaction is rolled back, and
    /// the faults name all missing keys. Consul leaves out keys that the token may not read and does not report it.
    ///
    /// # Errors
    ///
    /// [`Kind::Refused`](crate::Kind::Refused) above [`TXN_OPERATIONS`], [`Kind::NotConsul`](crate::Kind::NotConsul) if the answer is longer than
    /// [`MAX_ANSWER`](super::MAX_ANSWER).
    pub async fn kv_get_many(&self, keys: &[String], consistency: Consistency) -> Result<Txn, Error> {
        let ops: Vec<_> = keys.iter().map(|key| TxnOp::Get { key: key.clone() }).collect();
        self.transact(Operation::KvGetMany, &ops, Read { consistency, blocking: None }).await
    }

    /// Reads those of several keys that exist, at one index, by a transaction without writes. Consul leaves out keys that the token may
    /// not read and does not report it.
    ///
    /// # Errors
    ///
    /// As [`Self::kv_get_many`].
    pub async fn kv_get_existing(
        &self,
        keys: &[String],
        consistency: Consistency,
    ) -> Result<Vec<KvPair>, Error> {
        // A step that reads one key alone fails where it does not exist.
        let ops: Vec<_> = keys.iter().map(|key| TxnOp::GetTree { prefix: key.clone() }).collect();
        let read = Read { consistency, blocking: None };
        match self.transact(Operation::KvGetMany, &ops, read).await? {
            Txn::Committed(pairs) => Ok(pairs.into_iter().filter(|pair| keys.contains(&pair.key)).collect()),
            Txn::RolledBack(_) => {
                let tried = self.tried(Operation::KvGetMany, &keys.join(", "));
                Err(Error::undecodable(tried, "it rolls back a transaction that only reads"))
            }
        }
    }

    /// Whether the token may register a catalog node. It registers none: an operation of the transaction fails.
    ///
    /// # Errors
    ///
    /// As for any request.
    pub async fn may_register_node(&self, node: &str) -> Result<bool, Error> {
        let ops = json!([
            {"Node": {"Verb": "set", "Node": {"Node": node, "Address": "127.0.0.1"}}},
            {"KV": {"Verb": "check-index", "Key": "slotkeeper-doctor", "Index": i64::MAX}},
        ]);
        let request = Request::put(Operation::Txn, "txn", node).body(ops.to_string());
        let WireAnswer { errors, .. } = self.send(request).await?.json()?;
        let denies = |error: &WireError| error.op_index == 0 && Fault::of(&error.what) == Fault::Denied;
        Ok(!errors.unwrap_or_default().iter().any(denies))
    }

    async fn transact(&self, operation: Operation, ops: &[TxnOp], read: Read) -> Result<Txn, Error> {
        let wire: Vec<_> = ops.iter().map(|op| WireOp { kv: op }).collect();
        let target = match wire.as_slice() {
            [] => String::new(),
            [only] => shown(only.kv.key()),
            [first, rest @ ..] => format!("{} and {} more", shown(first.kv.key()), rest.len()),
        };
        let body = serde_json::to_vec(&wire)
            .map_err(|error| Error::refused(self.tried(operation, &target), error.to_string()))?;
        let request = Request::put(operation, "txn", target).body(body).reading(read);
        let is_folder = |op: &TxnOp| matches!(op, TxnOp::GetTree { prefix } if prefix.ends_with('/'));
        let is_long = ops.len() > FEW_STEPS || ops.iter().any(is_folder);
        let answer = self.send(if is_long { request.long() } else { request }).await?;
        let committed = answer.status == 200;
        let (tried, used) = (answer.tried.clone(), answer.used.clone());
        let WireAnswer { results, errors } = answer.json()?;
        let secrets: Vec<_> = used.iter().map(|used| &used.secret).collect();
        let fault = |error| TxnFault::of(error, &secrets);
        let faults: Vec<_> = errors.unwrap_or_default().into_iter().map(fault).collect();
        // The status and the body must agree.
        match (committed, faults.is_empty()) {
            (true, true) => {
                Ok(Txn::Committed(results.unwrap_or_default().into_iter().map(|result| result.kv).collect()))
            }
            (false, false) => Ok(Txn::RolledBack(faults)),
            (true, false) => Err(Error::undecodable(tried, "it is a success that contains errors")),
            (false, true) => Err(Error::undecodable(tried, "it is a rollback without a reason")),
        }
    }
}

impl TxnFault {
    fn of(error: WireError, secrets: &[&Secret]) -> Self {
        let WireError { op_index, what } = error;
        Self { op_index, fault: Fault::of(&what), said: super::classify::excerpt(&what, secrets) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_parsed_from_consuls_messages() {
        for (said, fault) in [
            (r#"failed to set key "a/b", index is stale"#, Fault::StaleIndex),
            (r#"failed to delete key "l", index is stale"#, Fault::StaleIndex),
            (r#"failed index check for key "l", current modify index 25 != 5"#, Fault::StaleIndex),
            (r#"failed to lock key "l", lock is already held"#, Fault::LockHeld),
            (r#"failed to lock key "ld" due to lock delay"#, Fault::LockDelay),
            (r#"failed to unlock key "l", lock isn't held, or is held by another session"#, Fault::NotHolder),
            (r#"failed session check for key "l", current session "c996" != "7f1f""#, Fault::NotHolder),
            (r#"key "nokey" doesn't exist"#, Fault::NoSuchKey),
            (r#"failed to check session, key "nokey" doesn't exist"#, Fault::NoSuchKey),
            (r#"failed to check index, key "nokey" doesn't exist"#, Fault::NoSuchKey),
            (r#"key "l" exists"#, Fault::KeyExists),
            (r#"invalid session "0000""#, Fault::InvalidSession),
            ("missing session", Fault::InvalidSession),
            ("Permission denied", Fault::Denied),
            (
                r#"Permission denied: token with AccessorID 'x' lacks permission 'key:write' on "k""#,
                Fault::Denied,
            ),
            (r#"unknown KV verb "bogus""#, Fault::Other),
            ("Must provide key", Fault::Other),
        ] {
            assert_eq!(Fault::of(said), fault, "{said}");
        }
    }

    #[test]
    fn a_quoted_key_is_not_parsed_as_a_reason() {
        assert_eq!(Fault::of(r#"key "Permission denied" exists"#), Fault::KeyExists);
        assert_eq!(Fault::of(r#"key "a\" index is stale" doesn't exist"#), Fault::NoSuchKey);
    }

    #[test]
    fn an_operation_sends_only_the_fields_of_its_verb() {
        let text = |op: TxnOp| serde_json::to_string(&WireOp { kv: &op }).unwrap();
        assert_eq!(
            text(TxnOp::Cas { key: "k".into(), value: b"x".into(), flags: u64::MAX, index: 0 }),
            r#"{"KV":{"Verb":"cas","Key":"k","Value":"eA==","Flags":18446744073709551615,"Index":0}}"#
        );
        assert_eq!(
            text(TxnOp::CheckSession { key: "k".into(), session: "s".into() }),
            r#"{"KV":{"Verb":"check-session","Key":"k","Session":"s"}}"#
        );
        assert_eq!(text(TxnOp::GetTree { prefix: "p/".into() }), r#"{"KV":{"Verb":"get-tree","Key":"p/"}}"#);
    }
}
