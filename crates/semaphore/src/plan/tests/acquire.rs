//! A newcomer, a waiter that knows `.lock` and its own key, and a holder.

use super::*;

#[test]
fn a_newcomer_takes_free_slots_by_one_write() {
    let mut settings = settings(3);
    let alone = client(settings.clone()).write(&some(Vec::new(), &[]));
    assert_eq!(steps(&alone), "cas .lock, new me, lock me");
    assert_eq!(alone.own, Own::Holds(Grant { token: None, indexes: vec![0] }));
    assert_eq!(written(&alone), "me |  | 0");
    settings.slots = 2;
    let beside = client(settings).write(&some(vec![lock_of(3, &["h"], &[], 0)], &[]));
    assert_eq!(steps(&beside), "cas .lock, new me, lock me, list h", "it looks at holders beside it");
    assert_eq!(entry_of(&beside, "me").indexes, [1, 2]);
}

#[test]
fn a_newcomer_joins_where_slots_are_not_simply_free() {
    let joins = "new me, lock me, list .lock, list me, list h";
    let me = client(settings(2));
    let full = lock_of(2, &["h", "h"], &[], 0);
    let attended = lock_of(2, &["h"], &["b"], 1);
    for record in [full, attended, foreign_lock(2, &["h"])] {
        let write = me.write(&some(vec![record], &[]));
        assert_eq!((steps(&write).as_str(), &write.own), (joins, &Own::Nothing));
        assert_eq!(entry_of(&write, "me").state, WaiterState::Waiting);
    }
    let free = some(vec![lock_of(2, &["h"], &[], 0)], &[]);
    let lost = Memory { lost_race: true, ..me.memory() };
    assert_eq!(said(&hold(&free, me.me(), lost).next), joins, "after a lost check-and-set");
}

#[test]
fn a_newcomer_that_tries_once_or_had_slots_lists_first() {
    let full = some(vec![lock_of(1, &["h"], &[], 0)], &[]);
    let once = client(Settings { wait: Some(Duration::ZERO), ..settings(1) });
    assert_eq!(once.next(&full), "list");
    let listing = listed(vec![lock_of(1, &["h"], &[], 0), holds("h", 1)]);
    assert_eq!(once.next(&listing), "watch ", "it joins no queue");
    assert_eq!(Client { had: true, ..client(settings(1)) }.next(&full), "list");
}

#[test]
fn a_newcomer_by_a_listing_prunes_and_is_served_in_its_turn() {
    let view = listed(vec![lock_of(1, &["dead"], &[], 0)]);
    assert_eq!(written(&client(settings(1)).write(&view)), "me |  | 0");
    let view = listed(vec![lock_of(1, &["dead"], &[], 0), waits("b", 2)]);
    let write = client(settings(1)).write(&view);
    assert!(steps(&write).starts_with("new me, lock me"), "b is first: {}", steps(&write));
}

#[test]
fn a_newcomers_key_that_another_session_has_locked_blocks_it() {
    let occupied = Pair { session: Some(id("x")), ..waits("me", 7) };
    let plan = client(settings(1)).plan(&some(vec![occupied], &[]));
    assert!(matches!(plan.standing, Standing::Blocked(_)), "{plan:?}");
    assert_eq!(said(&plan.next), "watch me");
}

#[test]
fn a_waiter_watches_its_own_key_alone_while_releases_serve() {
    let view = some(vec![lock_of(1, &["h"], &["b"], 1), holds("h", 1), waits("me", 7)], &["h"]);
    assert_eq!(client(settings(1)).next(&view), "watch me");
}

#[test]
fn a_waiter_that_nobody_counts_leaves_others_a_moment_and_then_names_itself() {
    let me = client(settings(1));
    let full = some(vec![lock_of(1, &["h"], &[], 0), holds("h", 1), waits("me", 7)], &["h"]);
    assert_eq!(me.next(&full), "yield me");
    let acts = |view| hold(view, me.me(), Memory { yields_until: Some(NOW), ..me.memory() }).next;
    let Next::Write(write) = acts(&full) else { panic!("{:?}", acts(&full)) };
    assert_eq!(steps(&write), "cas .lock, list");
    assert_eq!(written(&write), "h | me | 1");
    let free = some(vec![lock_of(2, &["h"], &[], 0), holds("h", 1), waits("me", 7)], &["h"]);
    assert_eq!(said(&acts(&free)), "list");
    let soon = Memory { ends_soon: true, ..me.memory() };
    assert_eq!(said(&hold(&free, me.me(), soon).next), "list", "before its wait ends");
}

#[test]
fn a_waiter_lists_where_something_is_amiss() {
    let attended = |holders: &[&str]| lock_of(1, holders, &["b"], 1);
    let me = || client(settings(1));
    let dead = some(vec![attended(&["h"]), waits("me", 7)], &["h"]);
    assert_eq!(me().next(&dead), "list");
    let offer = some(vec![attended(&["h"]), offered("h", 20), waits("me", 7)], &["h"]);
    assert_eq!(me().that_saw(&offer, OFFER_PATIENCE / 2).next(&offer), "watch me");
    assert_eq!(me().that_saw(&offer, OFFER_PATIENCE).next(&offer), "list");
    let free = some(vec![attended(&[]), waits("me", 7)], &[]);
    let plan = me().that_saw(&free, Duration::from_millis(100)).plan(&free);
    assert_eq!(
        (said(&plan.next).as_str(), plan.again),
        ("watch me", Some(NOW + UNSERVED.saturating_sub(Duration::from_millis(100))))
    );
    assert_eq!(me().that_saw(&free, UNSERVED).next(&free), "list");
    let own = key_with("me", WaiterState::Waiting, 7, |entry| entry.priority = 1);
    let behind = some(vec![attended(&["h"]), holds("h", 1), own], &["h"]);
    let urgent = client(Settings { priority: 1, ..settings(1) });
    assert_eq!(urgent.next(&behind), "list", "waiters that it stands ahead of are named");
    let foreign = some(vec![foreign_lock(1, &["h"]), holds("h", 1), waits("me", 7)], &["h"]);
    assert_eq!(me().next(&foreign), "list");
}

#[test]
fn a_woken_waiter_accepts_an_offer_by_one_write() {
    let view = some(vec![offered("me", 20)], &[]);
    let me = client(settings(1));
    let write = wake(view.contender(&id("me")).unwrap(), me.me()).unwrap();
    assert_eq!(steps(&write), "cas me, session me, list .lock, list me");
    assert_eq!(write.own, Own::Holds(Grant { token: Some(20), indexes: vec![0] }));
    let entry = entry_of(&write, "me");
    assert_eq!(
        (entry.state, entry.token),
        (WaiterState::Held, Some(20)),
        "the token is the index of the offer"
    );
    let again = me.write(&some(vec![lock_of(1, &["me"], &[], 0), offered("me", 20)], &[]));
    assert_eq!(again.ops, write.ops, "a reading leads to the same write");
}

#[test]
fn a_woken_waiter_shows_signs_of_life_where_it_is_asked() {
    let of = |pair: Pair, settings: Settings| {
        wake(some(vec![pair], &[]).contender(&id("me")).unwrap(), client(settings).me())
    };
    let write = of(asked("me", 20), settings(1)).unwrap();
    assert_eq!((steps(&write).as_str(), &write.own), ("cas me, list .lock, list me", &Own::Answers));
    assert!(!entry_of(&write, "me").asked);
    assert_eq!(of(waits("me", 20), settings(1)), None);
    // What has to be known besides is read first.
    assert_eq!(of(offered("me", 20), Settings { limit_policy: LimitPolicy::Refuse, ..settings(1) }), None);
    assert_eq!(of(offered("me", 20), Settings { slots: 2, ..settings(2) }), None);
    let evicted = |entry: &mut Entry| entry.evicted_by = Some("ops".into());
    assert_eq!(of(key_with("me", WaiterState::Offered, 20, evicted), settings(1)), None);
}

#[test]
fn an_offer_that_is_none_any_more_is_no_hold() {
    let view = some(vec![lock_of(1, &["b"], &[], 0), offered("me", 20)], &[]);
    let write = client(settings(1)).write(&view);
    assert_eq!((entry_of(&write, "me").state, &write.own), (WaiterState::Waiting, &Own::Nothing));
}

#[test]
fn the_token_of_a_holder_is_in_its_key_or_the_index_of_its_own_take() {
    let token = |own: Pair| {
        let view = some(vec![lock_of(1, &["me"], &[], 0), own], &[]);
        let Standing::Holds(grant) = client(settings(1)).plan(&view).standing else { panic!("no holder") };
        grant.token
    };
    assert_eq!(token(holds("me", 50)), Some(50));
    assert_eq!(token(key_with("me", WaiterState::Held, 60, |entry| entry.token = Some(40))), Some(40));
}

#[test]
fn a_holder_completes_its_key_and_keeps_its_token() {
    let settings = Settings { body: Some("nightly".into()), ..settings(1) };
    let me = Client { had: true, ..client(settings) };
    let view = some(vec![lock_of(1, &["me"], &[], 0), holds("me", 50)], &[]);
    let since = |ago| Memory { held_since: Some(NOW.back(Duration::from_millis(ago))), ..me.memory() };
    assert!(matches!(hold(&view, me.me(), since(500)).next, Next::Wait(_)), "a short hold pays nothing");
    let Next::Write(write) = hold(&view, me.me(), since(1000)).next else { panic!("no write") };
    assert_eq!(
        (entry_of(&write, "me").token, entry_of(&write, "me").body),
        (Some(50), Some("nightly".into()))
    );
}

#[test]
fn a_refused_limit_blocks_a_newcomer_and_no_holder() {
    let settings = Settings { limit_policy: LimitPolicy::Refuse, ..settings(1) };
    let view = |own| listed(vec![lock_of(2, &["me"], &[], 0), own]);
    let holder = Client { had: true, ..client(settings.clone()) };
    assert!(matches!(holder.plan(&view(holds("me", 1))).standing, Standing::Holds(_)));
    let newcomer = client(settings).plan(&view(offered("me", 60)));
    assert!(matches!(newcomer.standing, Standing::Blocked(_)), "{newcomer:?}");
    assert!(said(&newcomer.next).contains("delete me"), "{newcomer:?}");
}
