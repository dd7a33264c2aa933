//! A single-key lock, at the key `p/x`.

use super::*;
use crate::Primitive;
use crate::record::LOCK_FLAGS;

fn lock(owner: Option<&str>) -> View {
    let value = Entry::new(WaiterState::Held, 1, 0, String::new(), Identity::default()).encode();
    View::of_key("p/x", Some(Pair { flags: LOCK_FLAGS, ..pair("p/x", &value, owner, 7) }), READ)
}

fn of_lock(stays: bool) -> Client {
    client(Settings::of_lock("p/x".into(), stays))
}

#[test]
fn a_lock_is_acquired_by_one_write_and_watched_while_another_session_has_it() {
    let me = of_lock(false);
    assert_eq!(me.next(&View::of_key("p/x", None, READ)), "new x, lock x");
    assert_eq!(me.next(&lock(None)), "check x, lock x");
    assert_eq!(me.next(&lock(Some("b"))), "watch x");
    let later = Memory { delayed_until: Some(NOW + Duration::from_secs(1)), ..me.memory() };
    let plan = hold(&lock(None), me.me(), later);
    assert_eq!((said(&plan.next).as_str(), plan.again), ("watch x", later.delayed_until), "in lock-delay");
    let token = Standing::Holds(Grant { token: Some(7), indexes: vec![0] });
    assert_eq!(me.plan(&lock(Some("me"))).standing, token);
}

#[test]
fn a_released_lock_goes_or_stays() {
    assert_eq!(left(&of_lock(false).leave(&lock(Some("me")))), "session x, delete x");
    assert_eq!(left(&of_lock(true).leave(&lock(Some("me")))), "check x, unlock x");
    assert_eq!(left(&of_lock(false).leave(&lock(Some("b")))), "gone");
    assert!(matches!(of_lock(true).me().settings.primitive, Primitive::Lock { stays: true }));
}

#[test]
fn another_kind_of_key_blocks() {
    let semaphore =
        View::of_key("p/.lock", Some(pair("p/.lock", br#"{"Limit":3,"Holders":[]}"#, None, 4)), READ);
    let me = client(Settings::of_lock("p/.lock".into(), false));
    assert!(matches!(me.plan(&semaphore).standing, Standing::Blocked(_)));
}

#[test]
fn a_lock_is_evicted_by_a_mark_or_unlocked_by_force() {
    let view = lock(Some("b"));
    let membership = Membership::of(&view, &id("b")).unwrap();
    assert_eq!(steps(&request_eviction(&view, &membership, "ops").unwrap()), "check x, lock x");
    assert_eq!(steps(&force_eviction(&view, &membership, "", NOW).unwrap()), "check x, unlock x");
}
