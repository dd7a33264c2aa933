//! What is released in the name of a process that is no more.

use super::*;

const HELD: Option<WaiterState> = Some(WaiterState::Held);
const WAITS: Option<WaiterState> = Some(WaiterState::Waiting);

fn released(view: &View, session: &str) -> Option<Vec<Op>> {
    release(view, &session.into(), false, "", NOW).map(|write| write.ops)
}

/// The keys that they are about, in order.
fn keys(ops: &[Op]) -> Vec<&str> {
    ops.iter().map(Op::key).collect()
}

#[test]
fn a_holder_is_checked_taken_out_and_its_slot_handed_off_in_one_transaction() {
    let lock = Some((r#"{"Limit":1,"Holders":["dead"],"Next":["next"],"Theirs":7} "#, 0));
    let mut view = view(lock, &[("dead", HELD), ("next", WAITS), ("behind", WAITS)]);
    let ops = released(&view, "dead").unwrap();
    assert_eq!(keys(&ops), ["p/dead", "p/.lock", "p/behind", "p/next", "p/dead"]);
    assert!(matches!(&ops[0], Op::CheckSession { session, .. } if session.as_str() == "dead"));
    let Op::Cas { value, index: 42, .. } = &ops[1] else { panic!("{ops:?}") };
    let record = String::from_utf8(value.clone()).unwrap();
    assert_eq!(record, r#"{"Limit":1,"Holders":["next"],"Next":["behind"],"Theirs":7} "#);
    let Op::Cas { value, index: 12, .. } = &ops[2] else { panic!("{ops:?}") };
    assert!(Entry::decode(value).unwrap().is_lookout(), "the last one named watches over all");
    assert!(matches!(ops[4], Op::Delete { .. }));
    view.apply(&ops, 60);
    assert_eq!(released(&view, "dead"), None, "once is enough");
}

#[test]
fn a_waiters_contender_key_is_not_deleted_while_it_is_granted_a_slot() {
    let lock = Some((r#"{"Limit":1,"Holders":["other"],"Next":["dead"]} "#, 0));
    let ops = released(&view(lock, &[("other", HELD), ("dead", WAITS)]), "dead").unwrap();
    assert_eq!(keys(&ops), ["p/dead", "p/dead"]);
    assert!(matches!(ops[1], Op::DeleteCas { index: 11, .. }));
}

#[test]
fn nothing_is_written_for_a_session_that_has_nothing_locked_any_more() {
    // Its contender is gone, or there is no semaphore: whoever comes next takes it out of `.lock`.
    let lock = Some((r#"{"Limit":1,"Holders":["dead"]}"#, 0));
    assert_eq!(released(&view(lock, &[("next", WAITS)]), "dead"), None);
    assert_eq!(released(&view(None, &[]), "dead"), None);
    // What is no semaphore's record stays as it is.
    let ops = released(&view(Some(("nonsense", 0)), &[("dead", HELD)]), "dead").unwrap();
    assert_eq!(keys(&ops), ["p/dead", "p/dead"]);
}
