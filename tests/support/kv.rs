//! Writes of single keys, as an operator or a foreign client makes them.

use slotkeeper_consul::{Client, Error, Fault, Read, Txn, TxnOp};

/// The condition of a write.
#[derive(Clone, Copy, Debug)]
pub enum Put<'a> {
    /// No condition.
    Plain,
    /// The key's `modify_index` is this one. 0: the key does not exist.
    Cas(u64),
    /// This session acquires the lock, or holds it already.
    Acquire(&'a str),
    /// This session holds the lock. The write releases it.
    Release(&'a str),
}

/// Writes a key and its flags. Returns `false` if the condition does not hold or, for [`Put::Acquire`], the key is in lock-delay.
///
/// # Panics
///
/// If the write is refused for another reason, such as a session that does not exist.
pub async fn put(client: &Client, key: &str, value: &[u8], put: Put<'_>, flags: u64) -> Result<bool, Error> {
    let (key, value) = (key.to_owned(), value.to_vec());
    match put {
        Put::Plain => loop {
            let found = client.kv_get(&key, Read::consistent()).await?.value;
            let index = found.map_or(0, |pair| pair.modify_index);
            let (key, value) = (key.clone(), value.clone());
            if commit(client, TxnOp::Cas { key, value, flags, index }).await? {
                return Ok(true);
            }
        },
        Put::Cas(index) => commit(client, TxnOp::Cas { key, value, flags, index }).await,
        Put::Acquire(session) => {
            commit(client, TxnOp::Lock { key, value, flags, session: session.to_owned() }).await
        }
        Put::Release(session) => {
            commit(client, TxnOp::Unlock { key, value, flags, session: session.to_owned() }).await
        }
    }
}

/// Removes a key. It succeeds if the key does not exist.
pub async fn delete(client: &Client, key: &str) -> Result<bool, Error> {
    commit(client, TxnOp::Delete { key: key.to_owned() }).await
}

async fn commit(client: &Client, op: TxnOp) -> Result<bool, Error> {
    match client.txn(&[op]).await? {
        Txn::Committed(_) => Ok(true),
        Txn::RolledBack(faults) => {
            let is_unmet = faults.iter().all(|fault| {
                matches!(
                    fault.fault,
                    Fault::StaleIndex | Fault::LockHeld | Fault::LockDelay | Fault::NotHolder
                )
            });
            assert!(is_unmet, "{faults:?}");
            Ok(false)
        }
    }
}
