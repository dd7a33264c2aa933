//! The value of a semaphore's `.lock`.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::assert_harmless;
use slotkeeper_semaphore::record::SEMAPHORE_FLAGS;
use slotkeeper_semaphore::{LOCK_FLAGS, Record};

/// Takes a byte for the flags (`l`ist, `m`ap, single-`k`ey lock) and the value. A decoded value is the same after it was written
/// and read again, with the fields of other clients. A refused value is described harmlessly.
pub fn record(data: &[u8]) {
    let Some((kind, value)) = data.split_first() else { return };
    let flags = flags(*kind);
    let found = match Record::decode(value, flags) {
        Ok(found) => found,
        Err(refused) => return assert_harmless(&refused.to_string()),
    };
    let written = found.encode();
    let again = Record::decode(&written, flags).expect("what was written is a record");
    assert_eq!((found.limit, found.form(), found.flags()), (again.limit, again.form(), again.flags()));
    assert_eq!((&found.holders, &found.hints), (&again.holders, &again.hints));
    assert_eq!(again.encode(), written);
    assert_eq!(foreign(value), foreign(&written));
    assert!(found.holders.iter().all(|holder| (1..=found.taken()).contains(&found.slots_of(holder))));
}

pub(super) fn flags(kind: u8) -> u64 {
    match kind {
        b'l' => 0,
        b'm' => SEMAPHORE_FLAGS,
        b'k' => LOCK_FLAGS,
        other => other.into(),
    }
}

/// The fields that are not a semaphore's, as they are written.
fn foreign(value: &[u8]) -> BTreeMap<String, String> {
    let object: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(value).expect("it was decoded");
    let ours = |name: &str| {
        ["limit", "holders"].contains(&name.to_ascii_lowercase().as_str()) || name == "slotkeeper"
    };
    let foreign = object.into_iter().filter(|(name, _)| !ours(name));
    foreign.map(|(name, value)| (name, value.get().to_owned())).collect()
}
