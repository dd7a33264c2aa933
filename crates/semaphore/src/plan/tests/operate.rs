//! Operators' transactions.

use super::*;

fn used() -> View {
    listed(vec![lock_of(1, &["h"], &["b", "c"], 2), holds("h", 1), waits("b", 2), waits("c", 3)])
}

#[test]
fn a_raised_limit_is_filled_and_a_lowered_one_evicts_nobody() {
    let set = |limit| set_limit(&used(), limit, "", NOW).unwrap();
    let raised = set(2).unwrap();
    assert_eq!((record_of(&raised).limit, written(&raised).as_str()), (2, "h b | c | 1"));
    assert_eq!(record_of(&set(0).unwrap()).holders, [id("h")]);
    assert_eq!(set(1), None);
    assert!(set_limit(&listed(Vec::new()), 1, "", NOW).unwrap_err().contains("no semaphore at p"));
}

#[test]
fn the_dead_that_an_operator_names_are_pruned_and_their_slots_offered() {
    let view = listed(vec![
        lock_of(2, &["x", "y"], &["b"], 1),
        waits("b", 2),
        Pair { session: None, ..waits("left", 3) },
    ]);
    let write = prune(&view, &BTreeSet::from([id("x")]), "", NOW).unwrap().unwrap();
    assert_eq!((written(&write).as_str(), write.pruned), ("y b |  | 0", 1));
    assert!(steps(&write).contains("delete left"), "{}", steps(&write));
}

#[test]
fn an_offer_is_left_alone_by_an_operator() {
    let view = listed(vec![lock_of(1, &["b"], &["c"], 1), offered("b", 60), waits("c", 3)]);
    assert_eq!(prune(&view, &BTreeSet::new(), "", NOW), Ok(None));
}

#[test]
fn only_what_nobody_uses_is_destroyed() {
    let of = |view: &View| destroy(view, 50, &|_| None);
    let why = of(&used()).unwrap_err();
    assert!(why.contains("held by session `h`") && why.contains("waited for by session `b`"), "{why}");
    assert!(of(&listed(vec![lock_of(1, &["x"], &[], 0)])).unwrap_err().contains("dead holders"));
    let free = listed(vec![lock_of(1, &[], &[], 0), Pair { session: None, ..waits("left", 3) }]);
    assert_eq!(steps(&of(&free).unwrap().unwrap()), "delete .lock, delete left");
    assert!(destroy(&free, 49, &|_| None).unwrap_err().contains("was changed"));
    assert_eq!(of(&listed(Vec::new())), Ok(None));
}

fn evicts(view: &View, session: &str) -> Write {
    request_eviction(view, &Membership::of(view, &id(session)).unwrap(), "ops").unwrap()
}

#[test]
fn an_eviction_is_a_mark_in_the_participants_key() {
    let holder = evicts(&used(), "h");
    assert_eq!(steps(&holder), "check .lock, cas h");
    let entry = entry_of(&holder, "h");
    assert_eq!((entry.evicted_by.as_deref(), entry.token), (Some("ops"), Some(1)), "its token stays known");
    let waiter = evicts(&used(), "b");
    assert_eq!(steps(&waiter), "cas .lock, cas b");
    assert_eq!(written(&waiter), "h | c | 1", "no release offers it a slot by its name");
    let marked = key_with("h", WaiterState::Held, 1, |entry| entry.evicted_by = Some("ops".into()));
    let view = listed(vec![lock_of(1, &["h"], &[], 0), marked]);
    assert_eq!(request_eviction(&view, &Membership::of(&view, &id("h")).unwrap(), "ops"), None);
    let own = Client { session: id("h"), had: true, ..client(settings(1)) };
    assert_eq!(own.plan(&view).standing, Standing::Evicted("ops".into()));
}

#[test]
fn a_forced_eviction_hands_off_at_once() {
    let force = |session: &str| {
        force_eviction(&used(), &Membership::of(&used(), &id(session)).unwrap(), "", NOW).unwrap()
    };
    assert_eq!(steps(&force("h")), "cas .lock, cas b, delete h");
    assert_eq!(written(&force("h")), "b | c | 1");
    assert_eq!(
        (steps(&force("b")).as_str(), written(&force("b")).as_str()),
        ("cas .lock, delete b", "h | c | 1")
    );
    let foreign = listed(vec![foreign_lock(1, &["x"]), foreign("x", 1)]);
    let membership = Membership::of(&foreign, &id("x")).unwrap();
    assert!(membership.foreign && membership.part == MembershipKind::Holds);
    assert_eq!(steps(&force_eviction(&foreign, &membership, "", NOW).unwrap()), "cas .lock, delete x");
}

#[test]
fn the_kinds_of_membership() {
    let view =
        listed(vec![lock_of(2, &["h", "dead"], &[], 0), holds("h", 1), waits("b", 2), holds("lost", 3)]);
    let part = |session| Membership::of(&view, &id(session)).map(|one| one.part);
    assert_eq!(
        ["h", "dead", "b", "lost", "nobody"].map(part),
        [Some(MembershipKind::Holds), Some(MembershipKind::Dead), Some(MembershipKind::Waits), None, None]
    );
}

#[test]
fn the_queue_tells_which_waiters_are_passed_over() {
    let large = key_with("b", WaiterState::Waiting, 2, |entry| entry.slots = 9);
    let view = listed(vec![lock_of(1, &["h"], &[], 0), holds("h", 1), large, waits("c", 3)]);
    assert_eq!(queue(&view), [(id("b"), false), (id("c"), true)]);
}
