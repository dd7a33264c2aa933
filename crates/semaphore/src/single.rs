//! A single-key lock: the decoded state of its key.

use super::SessionId;
use super::contender::Entry;
use super::obstacle::Obstacle;
use super::printable;
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
    pub wrong: Option<Obstacle>,
}

impl SingleKeyLock {
    pub(super) fn of(pair: Pair) -> Self {
        let Pair { key, value, flags, session, times_locked, create_index, modify_index } = pair;
        let wrong =
            (flags != LOCK_FLAGS).then(|| found_in_place_of_a_lock(&key, &value, flags, session.is_some()));
        let entry = Entry::decode(&value);
        let stored = Box::new((value, flags));
        Self { owner: session, times_locked, create_index, index: modify_index, entry, stored, wrong }
    }
}

/// The maximum length of a key in a message, in bytes.
pub(super) const KEY: usize = 500;

fn found_in_place_of_a_lock(key: &str, value: &[u8], flags: u64, locked: bool) -> Obstacle {
    if let Ok(record) = Record::decode(value, flags) {
        let prefix = key.strip_suffix("/.lock").map(|prefix| printable(prefix, KEY));
        let place = prefix.clone().unwrap_or_else(|| format!("the key {}", printable(key, KEY)));
        let (limit, holders) = (record.limit, record.holders.len());
        let holders = match holders {
            0 => "no holder".to_owned(),
            1 => "1 holder".to_owned(),
            more => format!("{more} holders"),
        };
        let fix = match prefix {
            // `destroy` refuses where a client holds a slot or waits.
            Some(prefix) if record.holders.is_empty() => {
                format!("Use --limit {limit}, or delete it with `slotkeeper destroy {prefix}`")
            }
            Some(_) => format!("Use --limit {limit} to acquire a slot of it"),
            None => "Choose another key".to_owned(),
        };
        let why = format!("{place} is a semaphore (limit {limit}, {holders}), not a lock. {fix}");
        return Obstacle::other_content(locked || !record.holders.is_empty(), why);
    }
    let what = if value.is_empty() {
        "it has no value, and not the flags of a lock".to_owned()
    } else {
        format!("it holds {}", excerpt(&String::from_utf8_lossy(value)))
    };
    let why = format!(
        "the key {} is not a single-key lock: {what}; slotkeeper leaves it unchanged; choose another key, or delete it if it \
         is not needed",
        printable(key, KEY)
    );
    Obstacle::other_content(locked, why)
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
        .map(|wrong| wrong.why)
    }

    #[test]
    fn what_is_no_lock_is_described() {
        assert_eq!(wrong("whatever", LOCK_FLAGS), None);
        let said = |value, flags| wrong(value, flags).unwrap();
        assert_eq!(
            said(r#"{"Limit":3,"Holders":[]}"#, 0),
            "p is a semaphore (limit 3, no holder), not a lock. Use --limit 3, or delete it with `slotkeeper destroy p`"
        );
        let held = said(r#"{"Limit":3,"Holders":["a"]}"#, 0);
        assert_eq!(
            held,
            "p is a semaphore (limit 3, 1 holder), not a lock. Use --limit 3 to acquire a slot of it"
        );
        let other = said("10\u{1b}[2J", 7);
        assert!(
            other.contains("p/.lock is not a single-key lock: it holds `10") && !other.contains('\u{1b}'),
            "{other}"
        );
        assert!(said("", 0).contains("no value"));
    }
}
