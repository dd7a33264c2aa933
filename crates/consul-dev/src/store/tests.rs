//! The store under a clock that the tests move.

use std::time::Duration;

use super::txn::{Op, OpError};
use super::*;

const RULES: Rules = Rules { min_ttl: Duration::from_secs(10), expiry_factor: 2 };

fn store() -> Store {
    Store::new("node".to_owned(), RULES)
}

fn at(seconds: u64) -> Moment {
    Moment::from_boot(Duration::from_secs(1000 + seconds))
}

fn write(key: &str, value: &'static str) -> Write {
    Write { key: key.to_owned(), value: value.into(), flags: 0 }
}

fn request(behavior: &str, ttl: &str) -> Request {
    Request {
        name: String::new(),
        node: None,
        lock_delay: 15_000_000_000,
        behavior: behavior.to_owned(),
        ttl: ttl.to_owned(),
        node_checks: Some(Vec::new()),
        service_checks: None,
        checks: Vec::new(),
    }
}

/// A session created at 0 s; returns its id as text and parsed.
fn session(store: &mut Store, request: Request) -> (String, SessionId) {
    let id = Uuid::new_v4();
    store.create_session(id, request, at(0)).unwrap();
    (id.to_string(), id.into())
}

#[test]
fn a_session_ends_two_ttls_after_its_last_renewal_and_not_before() {
    let mut store = store();
    let (_, id) = session(&mut store, request("release", "10s"));
    store.tick(at(15));
    assert!(store.renew_session(&id, at(15)).is_some());
    assert_eq!(store.next_deadline(), Some(at(35)));
    store.tick(Moment::from_boot(at(35).since_boot() - Duration::from_nanos(1)));
    assert!(store.session(&id).found.is_some());
    store.tick(at(35));
    assert!(store.session(&id).found.is_none());
    assert!(store.renew_session(&id, at(35)).is_none());
}

#[test]
fn a_session_without_a_ttl_does_not_expire() {
    let mut store = store();
    let (_, id) = session(&mut store, request("release", ""));
    assert_eq!(store.next_deadline(), None);
    store.tick(at(1_000_000));
    assert!(store.session(&id).found.is_some());
}

#[test]
fn a_lock_delay_keeps_a_key_free_for_its_time() {
    let mut store = store();
    let (first, first_id) = session(&mut store, request("release", ""));
    let (second, _) = session(&mut store, request("release", ""));
    assert_eq!(store.lock(write("k", "1"), &first, at(0)), Ok(true));
    store.destroy_session(&first_id, at(1));
    assert_eq!(store.key("k").found.unwrap().session, None);
    assert_eq!(store.lock(write("k", "2"), &second, at(15)), Ok(false));
    assert_eq!(
        store.txn(vec![Op::Lock(write("k", "2"), second.clone())], at(15)).unwrap_err(),
        vec![(0, OpError::LockDelay("k".to_owned()))]
    );
    assert_eq!(store.lock(write("k", "2"), &second, at(16)), Ok(true));
}

#[test]
fn a_lock_delay_is_never_above_a_minute() {
    let mut store = store();
    let asked = Request { lock_delay: 3_600_000_000_000, ..request("delete", "") };
    let (first, first_id) = session(&mut store, asked);
    let (second, _) = session(&mut store, request("release", ""));
    store.lock(write("k", "1"), &first, at(0)).unwrap();
    store.destroy_session(&first_id, at(0));
    assert!(store.key("k").found.is_none());
    assert_eq!(store.lock(write("k", "2"), &second, at(59)), Ok(false));
    assert_eq!(store.lock(write("k", "2"), &second, at(60)), Ok(true));
}

#[test]
fn a_release_leaves_no_lock_delay() {
    let mut store = store();
    let (first, _) = session(&mut store, request("release", ""));
    let (second, _) = session(&mut store, request("release", ""));
    store.lock(write("k", "1"), &first, at(0)).unwrap();
    assert_eq!(store.unlock(write("k", "1"), &first, at(0)), Ok(true));
    assert_eq!(store.lock(write("k", "2"), &second, at(0)), Ok(true));
    assert_eq!(store.key("k").found.unwrap().lock_index, 2);
}

#[test]
fn an_identical_write_changes_no_index() {
    let mut store = store();
    store.set(write("k", "1"), at(0));
    let before = store.key("k");
    store.set(write("k", "1"), at(0));
    assert_eq!(store.key("k").index, before.index);
    store.set(write("k", "2"), at(0));
    assert!(store.key("k").index > before.index);
}

#[test]
fn a_deletion_moves_the_index_of_its_prefix_alone() {
    let mut store = store();
    for key in ["a/1", "a/2", "b/1"] {
        store.set(write(key, "x"), at(0));
    }
    let (a, b) = (store.list("a/"), store.list("b/"));
    store.delete("a/1", at(0));
    assert!(store.list("a/").index > a.index);
    assert_eq!(store.list("b/").index, b.index);
    assert_eq!(store.list("b/").stamp, b.stamp);
}

#[test]
fn an_index_goes_down_again_once_tombstones_are_forgotten_after_a_quarter_of_an_hour() {
    let mut store = store();
    store.set(write("a/1", "x"), at(0));
    let before = store.list("a/").index;
    store.set(write("a/2", "x"), at(0));
    store.delete("a/2", at(0));
    assert_eq!(store.next_deadline(), Some(at(900)));
    store.tick(at(899));
    assert!(store.list("a/").index > before);
    store.tick(at(900));
    assert_eq!(store.list("a/").index, before);
    assert_eq!(store.next_deadline(), None);
}

#[test]
fn a_refused_transaction_leaves_everything_as_it_was() {
    let mut store = store();
    for key in ["t/1", "t/2", "other"] {
        store.set(write(key, "x"), at(0));
    }
    let snapshot = |store: &Store| (store.list(""), store.list("t/").stamp, store.list("new").stamp);
    let before = snapshot(&store);
    let ops = vec![
        Op::Set(write("new", "1")),
        Op::Set(write("t/1", "2")),
        Op::DeleteTree("t/".to_owned()),
        Op::Set(write("t/2", "3")),
        Op::Delete("other".to_owned()),
        Op::Get("nowhere".to_owned()),
        Op::CheckIndex("new".to_owned(), 1),
    ];
    let faults = store.txn(ops, at(0)).unwrap_err();
    assert_eq!(faults.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [5, 6]);
    let after = snapshot(&store);
    assert_eq!(after.0.found, before.0.found);
    assert_eq!((after.0.index, after.1, after.2), (before.0.index, before.1, before.2));
}

#[test]
fn a_missing_keys_stamp_moves_by_its_own_life_alone() {
    let mut store = store();
    let before = store.key("k");
    store.set(write("other", "x"), at(0));
    assert!(store.key("k").index > before.index);
    assert_eq!(store.key("k").stamp, before.stamp);
    store.set(write("k", "x"), at(0));
    assert_ne!(store.key("k").stamp, before.stamp);
}
