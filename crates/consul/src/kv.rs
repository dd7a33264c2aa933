//! Keys and their values, locks and flags.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

use super::request::Request;
use super::{Client, Error, Indexed, Operation, Read, key};

/// A key and its value, as Consul returns it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct KvPair {
    /// The key.
    pub key: String,
    /// The value, decoded. Empty in the results of a transaction's writes, in which Consul leaves it out.
    #[serde(default, deserialize_with = "base64_or_null")]
    pub value: Vec<u8>,
    /// A number that the writer chose. Consul does not interpret it.
    pub flags: u64,
    /// The session that holds the lock.
    #[serde(default)]
    pub session: Option<String>,
    /// The Raft index of its creation.
    pub create_index: u64,
    /// The Raft index of its last change. Pass it to [`TxnOp::Cas`](crate::TxnOp::Cas).
    pub modify_index: u64,
    /// How often it was locked by a session that did not hold the lock.
    pub lock_index: u64,
}

impl Client {
    /// Reads a key; `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// As for any request; [`Kind::Refused`](crate::Kind::Refused) for a key that no URL can carry.
    pub async fn kv_get(&self, key: &str, read: Read) -> Result<Indexed<Option<KvPair>>, Error> {
        let operation = if read.blocks() { Operation::KvWatch } else { Operation::KvGet };
        let request =
            Request::get(operation, self.path(operation, key)?, shown(key)).reading(self.bounded(read));
        Ok(self.found::<KvPair>(request).await?.map(|pairs| pairs.into_iter().next()))
    }

    /// Reads the keys that begin with `prefix`, in the order of their bytes. End the prefix with a slash: `jobs` matches `jobs-2/…`
    /// too. Consul leaves out keys that the token may not read, and [`Indexed::filtered`] reports it.
    ///
    /// # Errors
    ///
    /// As for any request.
    pub async fn kv_list(&self, prefix: &str, read: Read) -> Result<Indexed<Vec<KvPair>>, Error> {
        self.below(prefix, "recurse", read).await
    }

    /// Reads the names of the keys that begin with `prefix`, in the order of their bytes. A blocking query returns at each change
    /// below the prefix, also at the change of a value. As for [`Self::kv_list`], end the prefix with a slash, and see
    /// [`Indexed::filtered`].
    ///
    /// # Errors
    ///
    /// As for any request.
    pub async fn kv_keys(&self, prefix: &str, read: Read) -> Result<Indexed<Vec<String>>, Error> {
        self.below(prefix, "keys", read).await
    }

    async fn below<T: DeserializeOwned>(
        &self,
        prefix: &str,
        what: &'static str,
        read: Read,
    ) -> Result<Indexed<Vec<T>>, Error> {
        let operation = if read.blocks() { Operation::KvWatch } else { Operation::KvList };
        let request = Request::get(operation, self.encoded(operation, prefix)?, shown(prefix));
        self.found(request.query(what, "").reading(self.bounded(read)).or_filtered().long()).await
    }

    async fn found<T: DeserializeOwned>(&self, request: Request) -> Result<Indexed<Vec<T>>, Error> {
        let answer = self.send(request).await?;
        match (answer.status, answer.index) {
            (404, Some(index)) => {
                Ok(Indexed { index: index.max(1), filtered: answer.filtered, value: Vec::new() })
            }
            _ => answer.indexed(),
        }
    }

    fn path(&self, operation: Operation, key: &str) -> Result<String, Error> {
        if key.is_empty() {
            return Err(Error::refused(self.tried(operation, ""), "the key is empty"));
        }
        self.encoded(operation, key)
    }

    fn encoded(&self, operation: Operation, key: &str) -> Result<String, Error> {
        key::encode(key)
            .map(|encoded| format!("kv/{encoded}"))
            .map_err(|why| Error::refused(self.tried(operation, &shown(key)), why))
    }
}

/// A key in messages.
pub(super) fn shown(key: &str) -> String {
    key.escape_debug().to_string()
}

fn base64_or_null<'de, D: Deserializer<'de>>(input: D) -> Result<Vec<u8>, D::Error> {
    match Option::<String>::deserialize(input)? {
        Some(text) => BASE64.decode(text).map_err(serde::de::Error::custom),
        None => Ok(Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_above_i64_survive() {
        let text = r#"{"LockIndex":1,"Key":"k","Flags":16210313421097356768,"Value":"eA==","Session":"s",
            "CreateIndex":2,"ModifyIndex":3}"#;
        let pair: KvPair = serde_json::from_str(text).unwrap();
        assert_eq!(pair.flags, 0xe0f6_9a2b_aa41_4de0);
        assert_eq!((pair.value.as_slice(), pair.session.as_deref()), (b"x".as_slice(), Some("s")));
    }

    #[test]
    fn a_value_may_be_null_and_must_be_base64() {
        let pair = |value: &str| {
            let text = format!(
                r#"{{"LockIndex":0,"Key":"k","Flags":0,"Value":{value},"CreateIndex":2,"ModifyIndex":3}}"#
            );
            serde_json::from_str::<KvPair>(&text)
        };
        assert!(pair("null").unwrap().value.is_empty());
        assert!(pair(r#""%""#).is_err());
    }
}
