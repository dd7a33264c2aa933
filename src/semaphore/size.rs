//! How many bytes a transaction has as it is sent. Consul refuses one that is too large as a whole, however often it is tried.
//!
//! What counts is the JSON of the request, with the values in base64.

use super::record::{Form, Record};
use super::{Op, SessionId};

/// Bytes that Consul takes of a transaction (`txn_max_req_len`), unless it is told otherwise.
pub(super) const MAX_TRANSACTION: usize = 512 * 1024;

/// What is written besides the key, the value and the session of a step: names, verb, flags and index.
const STEP: usize = 160;

/// Characters of a session's id.
const SESSION: usize = 36;

/// Bytes of a step, or a few more.
pub(super) fn of_step(op: &Op) -> usize {
    let (value, session) = match op {
        Op::Lock { value, session, .. } | Op::Unlock { value, session, .. } => {
            (value.len(), session.as_str().len())
        }
        Op::Cas { value, .. } => (value.len(), 0),
        Op::CheckSession { session, .. } => (0, session.as_str().len()),
        Op::Delete { .. }
        | Op::DeleteCas { .. }
        | Op::CheckIndex { .. }
        | Op::List { .. }
        | Op::CheckNotExists { .. } => (0, 0),
    };
    STEP + of_text(op.key()) + of_value(value) + session
}

/// Bytes of the step that writes `.lock`.
pub(super) fn of_record(record: &Record, key: &str) -> usize {
    STEP + of_text(key) + of_value(record.encode().len())
}

/// Bytes by which a session with that many slots makes the record longer.
pub(super) fn of_holder(form: Form, session: &SessionId, slots: u32) -> usize {
    of_value(holder(form, session.as_str().len()).saturating_mul(slots as usize))
}

/// Whether one transaction can give a session so many slots of a semaphore, with nobody else in it. `text`: bytes of what the
/// configuration adds to the contender entry.
pub fn can_be_acquired(form: Form, slots: u32, text: usize) -> bool {
    of_acquisition(form, slots, of_numbers(slots) + text) <= MAX_TRANSACTION
}

/// Bytes of the numbers from 0 on, so many, with a comma each.
fn of_numbers(slots: u32) -> usize {
    let longer = [10, 100, 1000, 10_000, 100_000].map(|shorter| slots.saturating_sub(shorter) as usize);
    2 * slots as usize + longer.iter().sum::<usize>()
}

/// Slots of a semaphore that can all be held, by a session each.
pub fn largest_limit(form: Form) -> u32 {
    const MOST: u32 = 10_000;
    (1..=MOST).rev().find(|limit| of_acquisition(form, *limit, 0) <= MAX_TRANSACTION).unwrap_or(1)
}

/// Bytes of the transaction by which `.lock` comes to list so many holders, with so many bytes in the contender entry besides
/// what is in each.
fn of_acquisition(form: Form, holders: u32, entry: usize) -> usize {
    const LIMIT: usize = r#"{"Limit":10000,"Holders":[]}"#.len();
    const ENTRY: usize = 200;
    let record = LIMIT + holder(form, SESSION).saturating_mul(holders as usize);
    3 * STEP + of_value(record) + of_value(ENTRY + entry) + 4 * SESSION
}

/// Bytes of a holder in the record.
fn holder(form: Form, session: usize) -> usize {
    session
        + match form {
            Form::List => r#""","#.len(),
            Form::Map => r#""":true,"#.len(),
        }
}

fn of_value(bytes: usize) -> usize {
    bytes.div_ceil(3) * 4
}

fn of_text(text: &str) -> usize {
    // A text always serialises.
    serde_json::to_string(text).map_or(text.len(), |text| text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_lists_fewer_holders_than_a_list() {
        assert_eq!(largest_limit(Form::List), 10_000);
        assert_eq!(largest_limit(Form::Map), 8_920);
    }

    #[test]
    fn numbers_are_as_long_as_they_are_written() {
        for slots in [0, 1, 9, 10, 11, 99, 100, 101, 12_345] {
            let written: usize = (0..slots).map(|number: u32| number.to_string().len() + 1).sum();
            assert_eq!(of_numbers(slots), written, "{slots}");
        }
    }

    #[test]
    fn many_slots_of_one_session_need_their_numbers_too() {
        assert!(can_be_acquired(Form::List, 8_800, 0) && !can_be_acquired(Form::List, 10_000, 0));
        assert!(!can_be_acquired(Form::List, 8_800, 10_000));
    }
}
