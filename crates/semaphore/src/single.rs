//! A single-key lock: the decoded state of its key.

use super::SessionId;
use super::contender::Entry;
use super::record::{LOCK_FLAGS, Record, excerpt};
use super::view::Pair;

/// The state of a single-key lock's key.
#[derive(Clone, Debug, PartialEq)]
pub struct SingleKeyLock {
    /// The session that has the lock.
    pub owner: Option<SessionId>,
    /// How often the lock was acquired since the key was created: Consul's LockIndex.
    pub times_locked: u64,
    /// The index of the write that created the key, from which `times_locked` counts.
    pub create_index: u64,
    /// The index of the key's last change: at the grant, the fencing token.
    pub index: u64,
    /// The decoded value of a slotkeeper client; `None` for a foreign client's.
    pub entry: Option<Entry>,
    /// The value and the flags.
    pub stored: Box<(Vec<u8>, u64)>,
    /// What the key is instead, if it does not have a lock's flags, and what to do.
    pub wrong: Option<String>,
}

impl SingleKeyLock {
    pub(super) fn of(pair: Pair) -> Self {
        let Pair { key, value, flags, session, times_locked, create_index, modify_index } = pair;
        let wrong = (flags != LOCK_FLAGS).then(|| found_in_place_of_a_lock(&key, &value, flags));
        let entry = Entry::decode(&value);
        let stored = Box::new((value, flags));
        Self { owner: session, times_locked, create_index, index: modify_index, entry, stored, wrong }
    }
}

fn found_in_place_of_a_lock(key: &str, value: &[u8], flags: u64) -> String {
    let delete = || "choose another key, or delete it if it is not needed".to_owned();
    let (what, fix) = match Record::decode(value, flags) {
        Ok(record) => {
            let record_of = key.strip_suffix("/.lock").filter(|_| record.holders.is_empty());
            let fix = match record_of {
                // `destroy` refuses where a client waits.
                Some(prefix) => format!(
                    "it has no holder: `slotkeeper destroy {prefix}` deletes it, or take a slot of it \
                     (`semaphores`, `run --limit N`)"
                ),
                None => "take a slot of it (`semaphores`, `run --limit N`), or choose another key".to_owned(),
            };
            (format!("a semaphore's record, with a limit of {}", record.limit), fix)
        }
        Err(_) if value.is_empty() => ("no value".to_owned(), delete()),
        Err(_) => (format!("the value {}", excerpt(&String::from_utf8_lossy(value))), delete()),
    };
    format!(
        "it has flags {flags} and {what}, where a lock has flags {LOCK_FLAGS}; slotkeeper leaves it unchanged; {fix}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(value: &str, flags: u64) -> Option<String> {
        let (key, session) = ("p/.lock".to_owned(), None);
        let value = value.as_bytes().to_vec();
        SingleKeyLock::of(Pair {
            key,
            value,
            flags,
            session,
            times_locked: 0,
            create_index: 1,
            modify_index: 2,
        })
        .wrong
    }

    #[test]
    fn what_is_no_lock_is_described() {
        assert_eq!(wrong("whatever", LOCK_FLAGS), None);
        let said = |value, flags| wrong(value, flags).unwrap();
        let empty = said(r#"{"Limit":3,"Holders":[]}"#, 0);
        assert!(empty.contains("a semaphore's record, with a limit of 3"));
        assert!(empty.contains("it has no holder: `slotkeeper destroy p` deletes it"), "{empty}");
        assert!(!said(r#"{"Limit":3,"Holders":["a"]}"#, 0).contains("destroy"));
        assert!(said("10\u{1b}[2J", 7).contains("flags 7 and the value `10"));
        assert!(!said("10\u{1b}[2J", 7).contains('\u{1b}'));
        assert!(said("", 0).contains("no value"));
    }
}
