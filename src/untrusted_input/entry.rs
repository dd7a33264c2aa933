//! What lies under a contender's key.

use slotkeeper_semaphore::contender::Entry;

/// Takes a value. One of ours is written so that it is read as the same again.
pub fn entry(data: &[u8]) {
    if let Some(entry) = Entry::decode(data) {
        let again = Entry::decode(&entry.encode()).expect("what was written is ours");
        assert_eq!(entry, again);
        assert!(entry.agrees(&again));
    }
}
