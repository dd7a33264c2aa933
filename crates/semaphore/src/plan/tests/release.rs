//! What a client writes that leaves.

use super::*;

fn leaves(record: Pair) -> String {
    left(&client(settings(2)).leave(&some(vec![record, holds("me", 20)], &[])))
}

#[test]
fn a_release_offers_its_slots_by_name() {
    let view = some(vec![lock_of(2, &["me", "h"], &["b", "c"], 5), holds("me", 20)], &[]);
    let Leave::Write(write) = client(settings(2)).leave(&view) else { panic!("no write") };
    assert_eq!(steps(&write), "cas .lock, session b, lock b, check me, delete me");
    assert_eq!(written(&write), "h b | c | 4");
    assert_eq!((entry_of(&write, "b").state, entry_of(&write, "b").indexes), (WaiterState::Offered, vec![0]));
    assert_eq!((write.offered, write.own), (vec![id("b")], Own::Nothing));
}

#[test]
fn a_name_stands_for_each_slot_that_it_wants() {
    let own = key_with("me", WaiterState::Held, 20, |entry| entry.indexes = vec![0, 1]);
    let me = client(Settings { slots: 2, ..settings(2) });
    let view = some(vec![lock_of(2, &["me", "me"], &["b", "b", "c"], 2), own], &[]);
    let Leave::Write(write) = me.leave(&view) else { panic!("no write") };
    assert_eq!((written(&write).as_str(), entry_of(&write, "b").slots), ("b b | c | 1", 2));
    assert_eq!(
        leaves(lock_of(2, &["me", "h"], &["b", "b"], 1)),
        "cas .lock, check me, delete me",
        "b does not fit yet"
    );
}

#[test]
fn a_release_lists_where_the_handoff_list_does_not_tell() {
    assert_eq!(leaves(foreign_lock(2, &["me", "h"])), "list");
    assert_eq!(leaves(lock_of(2, &["me", "h"], &["h"], 1)), "list", "h was served meanwhile");
    assert_eq!(leaves(lock_of(2, &["me", "h"], &[], 3)), "list", "the list is used up");
    assert_eq!(leaves(lock_of(2, &["me", "h"], &[], 0)), "cas .lock, check me, delete me", "nobody waits");
}

#[test]
fn a_release_that_serves_the_last_waiter_lists_and_serves_newcomers() {
    assert_eq!(
        leaves(lock_of(1, &["me"], &["b"], 1)),
        "cas .lock, session b, lock b, check me, delete me, list"
    );
    let me = client(settings(2));
    let newcomer = listed(vec![lock_of(2, &["b"], &[], 0), holds("b", 21), waits("c", 30)]);
    let Leave::Write(write) = me.leave(&newcomer) else { panic!("no write") };
    assert_eq!((written(&write).as_str(), write.own), ("b c |  | 0", Own::Nothing));
    assert_eq!(left(&me.leave(&listed(vec![lock_of(2, &["b"], &[], 0), holds("b", 21)]))), "gone");
}

#[test]
fn a_release_by_a_listing_guards_each_takers_key_and_names_the_next() {
    let pairs =
        vec![lock_of(1, &["me"], &[], 3), holds("me", 20), waits("b", 2), waits("c", 3), waits("d", 4)];
    let Leave::Write(write) = client(settings(1)).leave(&listed(pairs)) else { panic!("no write") };
    assert_eq!(steps(&write), "cas .lock, cas b, check me, delete me");
    assert_eq!(written(&write), "b | c d | 2");
}

#[test]
fn a_waiter_leaves_by_its_own_key() {
    let view = some(vec![lock_of(1, &["h"], &["me"], 1), waits("me", 9)], &[]);
    assert_eq!(left(&client(settings(1)).leave(&view)), "check me, delete me");
    // Waiters behind one for several slots may fit.
    let several = client(Settings { slots: 2, ..settings(2) });
    assert_eq!(left(&several.leave(&view)), "list");
    let own = key_with("me", WaiterState::Waiting, 2, |entry| entry.slots = 2);
    let view = listed(vec![lock_of(2, &["h"], &["me", "me", "b"], 2), holds("h", 1), own, waits("b", 3)]);
    let Leave::Write(write) = several.leave(&view) else { panic!("no write") };
    assert_eq!(written(&write), "h b |  | 0");
}

#[test]
fn a_share_of_the_slots_is_released() {
    let me = client(Settings { slots: 2, ..settings(2) });
    let write = me.write(&listed(vec![lock_of(2, &["me"], &[], 0), holds("me", 20)]));
    assert_eq!(record_of(&write).taken(), 0);
}

#[test]
fn offers_are_passed_on_by_a_client_that_has_left() {
    let view = listed(vec![lock_of(1, &["b"], &["c"], 1), offered("b", 60), waits("c", 3)]);
    let mut sightings = Sightings::default();
    sightings.note(crate::sightings::Sight::Offer, &id("b"), 60, NOW);
    let pass = |now| pass_on(&view, &sightings, Some(Duration::ZERO), "", now);
    assert_eq!(pass(NOW), (None, Some(NOW + OFFER_PATIENCE)));
    let (write, again) = pass(NOW + OFFER_PATIENCE);
    assert_eq!(steps(&write.unwrap()), "cas .lock, cas b, cas c");
    assert!(again.is_some());
}

#[test]
fn what_an_ended_process_left_is_released_in_its_name() {
    let of = |own: Pair, record: Pair| {
        release(&listed(vec![record, own, waits("b", 30)]), &id("me"), false, "", NOW)
    };
    let write = of(holds("me", 20), lock_of(1, &["me"], &["b"], 1)).unwrap();
    assert_eq!(steps(&write), "session me, cas .lock, cas b, delete me, list");
    assert_eq!(written(&write), "b |  | 0");
    let waiter = of(waits("me", 20), lock_of(1, &["h"], &[], 0)).unwrap();
    assert_eq!(steps(&waiter), "session me, delete me");
    assert_eq!(release(&listed(vec![lock_of(1, &["me"], &[], 0)]), &id("me"), false, "", NOW), None);
}
