//! By a listing of which keys are hidden nobody is pruned, and nothing is granted or destroyed.

use super::*;
use crate::Listing;

const HELD: Option<WaiterState> = Some(WaiterState::Held);
const WAITS: Option<WaiterState> = Some(WaiterState::Waiting);

fn filtered(lock: Option<&str>, contenders: &[(&str, Option<WaiterState>)]) -> View {
    let pairs = pairs(lock.map(|lock| (lock, 0)), contenders);
    View::of_listing("p", Listing { pairs, index: 50, filtered: true })
}

/// A holder whose key is not shown, one whose key is, a free slot, and a line.
fn crowd(input: Option<WaiterState>) -> View {
    let lock = r#"{"Limit":4,"Holders":["hidden","h"],"Next":["me","a"]} "#;
    filtered(Some(lock), &[("h", HELD), ("me", input), ("a", WAITS)])
}

#[test]
fn a_holder_whose_key_is_hidden_is_not_dead() {
    let view = crowd(WAITS);
    assert_eq!((view.lives(&"hidden".into()), view.lives(&"h".into())), (None, Some(true)));
    assert!(!view.is_complete());
    assert_eq!(Membership::of(&view, &"hidden".into()).unwrap().part, MembershipKind::Holds);
}

#[test]
fn an_agent_lists_again_before_it_acts() {
    let none = filtered(None, &[]);
    let only_others = filtered(Some(r#"{"Limit":4,"Holders":["hidden"]}"#), &[]);
    for seen in [crowd(WAITS), none, only_others] {
        let plan = planned(&seen, &settings(4, 1), hold, false);
        assert_eq!((plan.write, plan.refresh), (None, Some(Refresh::Prefix)));
        assert_ne!(plan.outcome, PlanOutcome::Holding);
    }
}

#[test]
fn a_holder_keeps_its_slot_and_leaves_those_of_others_alone() {
    let lock = r#"{"Limit":3,"Holders":["me","hidden"],"Next":["a"]} "#;
    let seen = filtered(Some(lock), &[("me", HELD), ("a", WAITS)]);
    let plan = planned(&seen, &settings(3, 1), hold, false);
    assert_eq!(plan.outcome, PlanOutcome::Holding);
    assert_eq!(written(&plan).0, None);
    // It releases its own slot and hands it off to nobody.
    let released = r#"{"Limit":3,"Holders":["hidden"],"Next":["a"]} "#.to_owned();
    let left = planned(&seen, &settings(3, 1), leave, false);
    assert_eq!(written(&left), (Some((released.clone(), 42)), vec!["-p/me".into()]));
    let write = release(&seen, &"me".into(), false, "", NOW);
    let killed = Plan { write, ..Plan::new(PlanOutcome::Holding) };
    assert_eq!(written(&killed), (Some((released, 42)), vec!["-p/me".into()]));
}

#[test]
fn an_operator_learns_which_rule_the_token_needs() {
    let seen = crowd(WAITS);
    let whom = [SessionId::from("hidden")].into();
    let nobody = |_: &SessionId| None;
    let empty = filtered(Some(r#"{"Limit":4,"Holders":[]}"#), &[]);
    for refused in [
        set_limit(&seen, 9, "", NOW),
        prune(&seen, &whom, "", NOW),
        destroy(&empty, 42, &nobody),
        // The key that all go by may be hidden itself.
        destroy(&filtered(None, &[]), 0, &nobody),
        set_limit(&filtered(None, &[]), 9, "", NOW),
        check_visible(&seen).map(|()| None),
    ] {
        let why = refused.unwrap_err();
        assert!(why.ends_with(r#"the token needs `key_prefix "p/" { policy = "write" }`"#), "{why}");
    }
}

#[test]
fn a_slot_that_is_evicted_while_keys_are_hidden_is_granted_to_no_waiter() {
    let seen = crowd(WAITS);
    let stay = Membership::of(&seen, &"h".into()).unwrap();
    let write = force_eviction(&seen, &stay, "", NOW);
    let record = r#"{"Limit":4,"Holders":["hidden"],"Next":["me","a"]} "#.to_owned();
    let written = written(&Plan { write, ..Plan::new(PlanOutcome::Holding) });
    assert_eq!(written, (Some((record, 42)), vec!["-p/h".into()]));
}
