//! The value of a contender key.

use slotkeeper_semaphore::contender::Entry;

/// Takes a value. A valid one is the same after it was written and read again.
pub fn entry(data: &[u8]) {
    if let Some(entry) = Entry::decode(data) {
        let again = Entry::decode(&entry.encode()).expect("a written entry is valid");
        assert_eq!(entry, again);
        assert!(entry.agrees(&again));
    }
}
