//! Plans of single-key locks.

use super::*;

const KEY: &str = "p/lock";

fn wanted(stays: bool) -> Settings {
    Settings::of_lock(KEY.into(), stays)
}

fn seen(owner: Option<&str>, flags: u64) -> View {
    let value = b"anything".to_vec();
    let session = owner.map(SessionId::from);
    let pair =
        Pair { key: KEY.into(), value, flags, session, times_locked: 4, create_index: 3, modify_index: 9 };
    View::of_key(KEY, Some(pair), 9)
}

fn planned(view: &View, delayed_until: Option<Moment>) -> Plan {
    let (session, settings, who, dead) =
        (SessionId::from("me"), wanted(true), Identity::default(), BTreeMap::new());
    hold(view, PlanInput { delayed_until, ..plan_input(&session, &settings, &who, &dead) }, NOW)
}

fn ops(plan: &Plan) -> &[Op] {
    plan.write.as_ref().map(|write| write.ops.as_slice()).unwrap_or_default()
}

#[test]
fn a_free_lock_is_taken_in_one_step_be_its_key_there_or_not() {
    for view in [View::of_key(KEY, None, 7), seen(None, LOCK_FLAGS)] {
        let plan = planned(&view, None);
        assert_eq!(plan.outcome, PlanOutcome::NotHolding { room: true });
        let [guard, Op::Lock { key, flags, session, value }] = ops(&plan) else { panic!("{plan:?}") };
        let expected = match view.lock_index() {
            0 => Op::CheckNotExists { key: KEY.into() },
            index => Op::CheckIndex { key: KEY.into(), index },
        };
        assert_eq!(*guard, expected);
        assert_eq!((key.as_str(), *flags, session.as_str()), (KEY, LOCK_FLAGS, "me"));
        assert_eq!(Entry::decode(value).unwrap().state, WaiterState::Held);
        // The committed step makes it ours, under the index of the commit.
        let mut view = view;
        let before = view.single().map_or(0, |single| single.times_locked);
        view.apply(ops(&plan), 12);
        let plan = planned(&view, None);
        assert_eq!((plan.outcome, plan.write, view.lock_index()), (PlanOutcome::Holding, None, 12));
        assert_eq!(plan.watch, [Watch { key: KEY.into(), after: 12 }]);
        assert_eq!(view.single().unwrap().times_locked, before + 1);
    }
}

#[test]
fn anothers_lock_is_watched() {
    let plan = planned(&seen(Some("other"), LOCK_FLAGS), None);
    assert_eq!((plan.outcome, plan.write), (PlanOutcome::NotHolding { room: false }, None));
    assert_eq!(plan.watch, [Watch { key: KEY.into(), after: 9 }]);
}

#[test]
fn nothing_is_written_before_a_delay_is_over_and_no_missing_key_is_watched() {
    let until = NOW + Duration::from_secs(3);
    let plan = planned(&seen(None, LOCK_FLAGS), Some(until));
    assert_eq!((plan.write, plan.recheck, plan.watch.len()), (None, Some(until), 1));
    let plan = planned(&View::of_key(KEY, None, 7), Some(until));
    assert_eq!((plan.write, plan.recheck, plan.watch.len()), (None, Some(until), 0));
    assert_eq!(ops(&planned(&seen(None, LOCK_FLAGS), Some(NOW))).len(), 2);
}

#[test]
fn a_key_that_is_no_lock_is_not_changed_unless_this_session_has_it() {
    for owner in [None, Some("other")] {
        let plan = planned(&seen(owner, 0), None);
        assert!(matches!(plan.outcome, PlanOutcome::Blocked(_)) && plan.write.is_none(), "{plan:?}");
        assert_eq!(plan.watch.len(), 1);
    }
    // Somebody has written other flags over it: it is locked all the same.
    assert_eq!(planned(&seen(Some("me"), 0), None).outcome, PlanOutcome::Holding);
}

#[test]
fn a_release_unlocks_or_deletes_the_sessions_own_lock_only() {
    let (session, who, dead) = (SessionId::from("me"), Identity::default(), BTreeMap::new());
    let gone = |view: &View, stays| leave(view, plan_input(&session, &wanted(stays), &who, &dead), NOW);
    let mine = seen(Some("me"), LOCK_FLAGS);
    let unlocks = gone(&mine, true);
    assert!(matches!(ops(&unlocks), [Op::CheckIndex { index: 9, .. }, Op::Unlock { .. }]), "{unlocks:?}");
    let deletes = gone(&mine, false);
    assert!(
        matches!(ops(&deletes), [Op::CheckSession { .. }, Op::DeleteCas { index: 9, .. }]),
        "{deletes:?}"
    );
    for (plan, left) in [(unlocks, Some(4)), (deletes, None)] {
        let mut view = mine.clone();
        view.apply(ops(&plan), 12);
        assert_eq!(view.single().map(|single| single.times_locked), left);
        assert!(!view.is_owner(&session) && gone(&view, true).write.is_none());
    }
    for other in [seen(Some("other"), LOCK_FLAGS), seen(None, LOCK_FLAGS), View::of_key(KEY, None, 7)] {
        assert_eq!(gone(&other, false).write, None);
    }
}
