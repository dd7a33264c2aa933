use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::record::{LOCK_FLAGS, SEMAPHORE_FLAGS};
use crate::settings::{OnLost, Primitive};
use crate::view::Pair;

mod evict;
mod filtered;
mod follow;
mod large;
mod lock;
mod operate;
mod queue;
mod release;

const NOW: Moment = Moment::from_boot(Duration::from_secs(1000));

fn settings(limit: u32, slots: u32) -> Settings {
    Settings {
        primitive: Primitive::Semaphore,
        prefix: "p".into(),
        limit,
        slots,
        priority: 0,
        wait: None,
        on_lost: OnLost::Reacquire,
        limit_policy: LimitPolicy::Adopt,
        prune_delay: Duration::ZERO,
        form: Form::List,
        body: None,
    }
}

/// A view of `.lock` as given and of live contenders; what is ours stands as waiting or held.
fn view(lock: Option<(&str, u64)>, contenders: &[(&str, Option<WaiterState>)]) -> View {
    View::new("p", pairs(lock, contenders), 50)
}

fn pairs(lock: Option<(&str, u64)>, contenders: &[(&str, Option<WaiterState>)]) -> Vec<Pair> {
    let mut pairs = Vec::new();
    if let Some((value, flags)) = lock {
        let key = "p/.lock".to_owned();
        let value = value.as_bytes().to_vec();
        pairs.push(Pair {
            key,
            value,
            flags,
            session: None,
            times_locked: 0,
            create_index: 1,
            modify_index: 42,
        });
    }
    for (place, (session, standing)) in contenders.iter().enumerate() {
        let entry = standing.map(|state| Entry::new(state, 1, 0, String::new(), Identity::default()));
        pairs.push(Pair {
            key: format!("p/{session}"),
            value: entry.map(|entry| entry.encode()).unwrap_or_default(),
            flags: 0,
            session: Some((*session).into()),
            times_locked: 0,
            create_index: 10 + place as u64,
            modify_index: 10 + place as u64,
        });
    }
    pairs
}

fn planned(
    view: &View,
    settings: &Settings,
    plan: impl Fn(&View, PlanInput<'_>, Moment) -> Plan,
    set_limit: bool,
) -> Plan {
    let (who, session, dead_since) = (Identity::default(), SessionId::from("me"), BTreeMap::new());
    plan(view, PlanInput { set_limit, ..plan_input(&session, settings, &who, &dead_since) }, NOW)
}

/// Long before [`NOW`].
const LONG_AGO: Moment = Moment::from_boot(Duration::ZERO);

/// One that has stood at the head of the line since long, or holds slot 0. Other clients have had their turn.
fn plan_input<'a>(
    session: &'a SessionId,
    settings: &'a Settings,
    who: &'a Identity,
    dead_since: &'a BTreeMap<SessionId, Moment>,
) -> PlanInput<'a> {
    PlanInput {
        session,
        settings,
        who,
        wall: "",
        set_limit: false,
        lost_cas_race: false,
        yield_until: None,
        follows_up: false,
        confirmed: true,
        dead_since,
        free_since: Some(LONG_AGO),
        last_role: (Role::Head, LONG_AGO),
        delayed_until: None,
        held: Some(&[0]),
        together: None,
        holds: &[],
        resumed: false,
    }
}

/// What a plan writes of another's contender.
fn entry_in(plan: &Plan, session: &str) -> Entry {
    let is_its = |op: &&Op| op.key() == format!("p/{session}");
    let op = plan.write.iter().flat_map(|write| &write.ops).find(is_its).unwrap();
    let Op::Cas { value, .. } = op else { panic!("{op:?}") };
    Entry::decode(value).unwrap()
}

/// What a plan writes: to `.lock` (value and index), and which other keys it locks or deletes. A waiter that is told to watch over
/// all is a lookout.
fn written(plan: &Plan) -> (Option<(String, u64)>, Vec<String>) {
    let (mut lock, mut others) = (None, Vec::new());
    for op in plan.write.iter().flat_map(|write| &write.ops) {
        match op {
            Op::Cas { key, value, index, .. } if key == "p/.lock" => {
                // That it is ours says little.
                let value = String::from_utf8(value.clone()).unwrap();
                lock = Some((value.trim_end_matches('\t').to_owned(), *index));
            }
            Op::Lock { key, value, .. } | Op::Cas { key, value, .. } => {
                let Entry { state, indexes, lookout, .. } = Entry::decode(value).unwrap();
                others.push(match state {
                    WaiterState::Held => format!("{key} Held {indexes:?}"),
                    WaiterState::Waiting if lookout => format!("{key} Lookout"),
                    WaiterState::Waiting => format!("{key} Waiting"),
                });
            }
            Op::Delete { key } | Op::DeleteCas { key, .. } => others.push(format!("-{key}")),
            Op::List { .. }
            | Op::Unlock { .. }
            | Op::CheckIndex { .. }
            | Op::CheckNotExists { .. }
            | Op::CheckSession { .. } => {}
        }
    }
    (lock, others)
}

fn lock_of(plan: &Plan) -> String {
    written(plan).0.unwrap_or_default().0
}

/// Whether a plan's write lists everything in the same transaction.
fn lists(plan: &Plan) -> bool {
    let is_list = |op: &Op| matches!(op, Op::List { prefix } if prefix == "p/");
    plan.write.iter().flat_map(|write| &write.ops).any(is_list)
}

#[test]
fn the_first_creates_the_record_with_itself_in_it() {
    let plan = planned(&view(None, &[]), &settings(2, 1), hold, false);
    assert_eq!(plan.outcome, PlanOutcome::NotHolding { room: true });
    let record = r#"{"Limit":2,"Holders":["me"]}"#.to_owned();
    assert_eq!(written(&plan), (Some((record, 0)), vec!["p/me Held [0]".into()]));
}

#[test]
fn a_new_record_takes_the_configured_form_with_its_flags_on_both_keys() {
    let settings = Settings { form: Form::Map, ..settings(2, 1) };
    let plan = planned(&view(None, &[]), &settings, hold, false);
    assert_eq!(lock_of(&plan), r#"{"Limit":2,"Holders":{"me":true}}"#);
    let flags = |op: Op| {
        if let Op::Cas { flags, .. } | Op::Lock { flags, .. } = op { Some(flags) } else { None }
    };
    let flags: Vec<_> = plan.write.unwrap().ops.into_iter().filter_map(flags).collect();
    assert_eq!(flags, [SEMAPHORE_FLAGS; 2]);
}

#[test]
fn a_waiter_joins_a_full_semaphore_with_one_write_and_then_writes_nothing() {
    let lock = Some((r#"{"Limit":1,"Holders":["a"]}"#, 0));
    let held = ("a", Some(WaiterState::Held));
    let plan = planned(&view(lock, &[held]), &settings(1, 1), hold, false);
    assert_eq!(plan.outcome, PlanOutcome::NotHolding { room: false });
    // In the same transaction it learns who has come before it meanwhile.
    assert_eq!(written(&plan), (None, vec!["p/me Waiting".into()]));
    assert!(plan.write.unwrap().ops.contains(&Op::List { prefix: "p/".into() }));
    let waiting = [held, ("me", Some(WaiterState::Waiting))];
    let plan = planned(&view(lock, &waiting), &settings(1, 1), hold, false);
    let named = r#"{"Limit":1,"Holders":["a"],"Next":["me"]} "#;
    assert_eq!(written(&plan), (Some((named.into(), 42)), vec![]), "the head says so");
    assert_eq!(planned(&view(Some((named, 0)), &waiting), &settings(1, 1), hold, false).write, None);
}

#[test]
fn a_client_that_tries_once_leaves_no_trace() {
    let lock = Some((r#"{"Limit":1,"Holders":["a"]}"#, 0));
    let settings = Settings { wait: Some(Duration::ZERO), ..settings(1, 1) };
    assert_eq!(planned(&view(lock, &[("a", None)]), &settings, hold, false).write, None);
}

#[test]
fn the_dead_make_room() {
    let lock = Some((r#"{"Limit":2,"Holders":["dead","a"]}"#, 0));
    let plan = planned(&view(lock, &[("a", None)]), &settings(2, 1), hold, false);
    assert_eq!(lock_of(&plan), r#"{"Limit":2,"Holders":["a","me"]}"#);
    assert_eq!(plan.write.unwrap().pruned, 1);
}

#[test]
fn the_dead_rest_for_the_prune_delay() {
    let view = view(Some((r#"{"Limit":1,"Holders":["dead"]}"#, 0)), &[]);
    let settings = Settings { prune_delay: Duration::from_secs(20), ..settings(1, 1) };
    let (session, who) = (SessionId::from("me"), Identity::default());
    let dead_since = BTreeMap::from([(SessionId::from("dead"), NOW)]);
    let input = plan_input(&session, &settings, &who, &dead_since);
    let until = NOW + Duration::from_secs(20);
    let early = hold(&view, input, NOW);
    assert_eq!((early.outcome, early.recheck), (PlanOutcome::NotHolding { room: false }, Some(until)));
    assert_eq!(hold(&view, input, until).outcome, PlanOutcome::NotHolding { room: true });
}

#[test]
fn a_holder_only_tidies_up() {
    let lock = Some((r#"{"Limit":2,"Holders":["me","dead"]}"#, 0));
    let plan = planned(&view(lock, &[("me", Some(WaiterState::Held))]), &settings(2, 1), hold, false);
    assert_eq!(plan.outcome, PlanOutcome::Holding);
    assert!(plan.write.as_ref().unwrap().tidy);
    assert_eq!(lock_of(&plan), r#"{"Limit":2,"Holders":["me"]}"#);
}

#[test]
fn a_holder_without_a_contender_key_is_pruned_before_a_new_grant() {
    let lock = Some((r#"{"Limit":1,"Holders":["me"]}"#, 0));
    let mut seen = view(lock, &[]);
    let first = planned(&seen, &settings(1, 1), hold, false);
    assert_eq!(first.outcome, PlanOutcome::NotHolding { room: true });
    let empty = r#"{"Limit":1,"Holders":[]}"#.to_owned();
    assert_eq!(written(&first), (Some((empty, 42)), vec![]));
    seen.apply(&first.write.unwrap().ops, 60);
    let again = r#"{"Limit":1,"Holders":["me"]}"#.to_owned();
    let second = planned(&seen, &settings(1, 1), hold, false);
    // With the index that the first has moved: whoever planned from the old record loses.
    assert_eq!(written(&second), (Some((again, 60)), vec!["p/me Held [0]".into()]));
}

#[test]
fn several_slots_stand_several_times_and_are_taken_all_or_none() {
    let lock = Some((r#"{"Limit":4,"Holders":["a","b"]}"#, 0));
    let others = [("a", Some(WaiterState::Held)), ("b", Some(WaiterState::Held))];
    let plan = planned(&view(lock, &others), &settings(4, 2), hold, false);
    assert_eq!(lock_of(&plan), r#"{"Limit":4,"Holders":["a","b","me","me"]}"#);
    let plan = planned(&view(lock, &others), &settings(4, 3), hold, false);
    assert_eq!(plan.outcome, PlanOutcome::NotHolding { room: false });
    assert_eq!(lock_of(&plan), r#"{"Limit":4,"Holders":["a","b"],"Next":["me","me","me"]} "#);
    // A share left by an earlier life with other settings is no slot: it goes.
    let lock = Some((r#"{"Limit":4,"Holders":["a","b","me"]}"#, 0));
    let plan = planned(&view(lock, &others), &settings(4, 3), hold, false);
    assert_eq!(lock_of(&plan), r#"{"Limit":4,"Holders":["a","b"]}"#);
}

#[test]
fn the_map_form_cannot_say_several_slots() {
    let lock = Some((r#"{"Limit":4,"Holders":{}}"#, SEMAPHORE_FLAGS));
    let plan = planned(&view(lock, &[]), &settings(4, 2), hold, false);
    assert!(matches!(plan.outcome, PlanOutcome::Blocked(Obstacle { why, .. }) if why.contains("2 slots")));
    assert_eq!(plan.write, None);
}

#[test]
fn a_differing_limit_is_adopted_set_or_refused() {
    let lock = Some((r#"{"Limit":1,"Holders":["a"]}"#, 0));
    let view = view(lock, &[("a", None)]);
    let with = |limit_policy| Settings { limit_policy, ..settings(2, 1) };
    let adopt = planned(&view, &with(LimitPolicy::Adopt), hold, false);
    assert_eq!(adopt.outcome, PlanOutcome::NotHolding { room: false });
    let set = planned(&view, &with(LimitPolicy::Set), hold, true);
    assert_eq!(lock_of(&set), r#"{"Limit":2,"Holders":["a","me"]}"#);
    let refuse = planned(&view, &with(LimitPolicy::Refuse), hold, false);
    assert!(
        matches!(refuse.outcome, PlanOutcome::Blocked(Obstacle { why, .. }) if why.contains("is 1, the configured one 2"))
    );
}

#[test]
fn a_limit_below_the_slots_taken_evicts_no_holder_and_grants_no_slot() {
    let lock = Some((r#"{"Limit":1,"Holders":["me","a"]}"#, 0));
    let held = view(lock, &[("me", Some(WaiterState::Held)), ("a", None)]);
    for limit_policy in [LimitPolicy::Adopt, LimitPolicy::Refuse] {
        let settings = Settings { limit_policy, ..settings(2, 1) };
        assert_eq!(planned(&held, &settings, hold, false).outcome, PlanOutcome::Holding);
    }
    let lock = Some((r#"{"Limit":1,"Holders":["b","a"]}"#, 0));
    let full = view(lock, &[("b", None), ("a", None)]);
    assert_eq!(planned(&full, &settings(2, 1), hold, false).outcome, PlanOutcome::NotHolding { room: false });
}

#[test]
fn what_is_no_semaphore_is_left_alone() {
    let view = view(Some(("not json", 0)), &[("me", Some(WaiterState::Waiting))]);
    let plan = planned(&view, &settings(1, 1), hold, false);
    assert!(
        matches!(&plan.outcome, PlanOutcome::Blocked(Obstacle { why, .. }) if why.contains("p/.lock") && why.contains("not json"))
    );
    assert_eq!(written(&plan), (None, vec!["-p/me".into()]), "it came before it knew");
    assert_eq!(written(&planned(&view, &settings(1, 1), leave, false)), (None, vec!["-p/me".into()]));
}

#[test]
fn leaving_is_one_transaction_and_then_nothing() {
    let lock = Some((r#"{"Limit":2,"Holders":["me","a","me"]}"#, 0));
    let held = view(lock, &[("me", Some(WaiterState::Held)), ("a", None)]);
    let plan = planned(&held, &settings(2, 1), leave, false);
    let rest = r#"{"Limit":2,"Holders":["a"]}"#.to_owned();
    assert_eq!(written(&plan), (Some((rest, 42)), vec!["-p/me".into()]));
    let gone = view(Some((r#"{"Limit":2,"Holders":["a"]}"#, 0)), &[("a", None)]);
    assert_eq!(planned(&gone, &settings(2, 1), leave, false).write, None);
}
