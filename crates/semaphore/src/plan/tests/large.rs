//! Grants that are nearly, or quite, larger than Consul takes.

use super::*;
use crate::size::{self, MAX_LIMIT};

/// As long as a prefix may be.
fn prefix() -> String {
    "p".repeat(400)
}

fn id(number: u32) -> String {
    format!("{number:036}")
}

fn pair(name: &str, value: Vec<u8>, session: Option<&str>) -> Pair {
    Pair {
        key: format!("{}/{name}", prefix()),
        value,
        flags: 0,
        session: session.map(SessionId::from),
        times_locked: 0,
        create_index: 1,
        modify_index: 42,
    }
}

/// A semaphore of 10,000 slots with so many holders, and the own session in line.
fn view_with(holders: u32, own: &str) -> View {
    let names: Vec<_> = (0..holders).map(id).collect();
    let record = format!(r#"{{"Limit":10000,"Holders":{}}}"#, serde_json::to_string(&names).unwrap());
    let waiting = Entry::new(WaiterState::Waiting, 1, 0, String::new(), Identity::default()).encode();
    let mut pairs = vec![pair(".lock", record.into(), None), pair(own, waiting, Some(own))];
    pairs.extend(names.iter().map(|name| pair(name, Vec::new(), Some(name))));
    View::new(&prefix(), pairs, 50)
}

fn sent(plan: &Plan) -> usize {
    plan.write.iter().flat_map(|write| &write.ops).map(size::of_step).sum()
}

#[test]
fn one_for_whom_the_others_leave_no_room_says_so_and_keeps_its_place() {
    let (own, who, dead_since) = (id(99_999), Identity::default(), BTreeMap::new());
    let session = SessionId::from(own.as_str());
    let settings = Settings { prefix: prefix(), body: Some("x".repeat(4096)), ..settings(10_000, 1) };
    let input = plan_input(&session, &settings, &who, &dead_since);
    let full = view_with(9_999, &own);
    let plan = hold(&full, input, NOW);
    let PlanOutcome::Blocked(Obstacle { why, .. }) = &plan.outcome else { panic!("{:?}", plan.outcome) };
    assert!(why.contains("lists so many holders (9999)") && why.contains("/.lock"), "{why}");
    assert!(plan.watch.iter().any(|watch| watch.key == full.lock_key()));
    let deletes = |op: &Op| matches!(op, Op::Delete { .. } | Op::DeleteCas { .. });
    assert!(!plan.write.iter().flat_map(|write| &write.ops).any(deletes));
    let plan = hold(&view_with(9_800, &own), input, NOW);
    assert_eq!(plan.outcome, PlanOutcome::NotHolding { room: true });
    assert!(sent(&plan) <= size::MAX_TRANSACTION);
}

#[test]
fn all_that_may_be_configured_can_be_acquired() {
    let (own, dead_since) = (id(99_999), BTreeMap::new());
    let session = SessionId::from(own.as_str());
    let name = |bytes| Some("n".repeat(bytes));
    let who = Identity {
        name: name(Identity::MAX_TEXT),
        command: name(Identity::MAX_TEXT),
        user: name(Identity::MAX_TEXT),
        pod: name(253),
        namespace: name(63),
        node: name(253),
        host: name(64),
        pid: Some(u32::MAX),
    };
    let body = "\u{1}".repeat(1024);
    let settings =
        Settings { prefix: prefix(), body: Some(body), priority: i32::MIN, ..settings(MAX_LIMIT, MAX_LIMIT) };
    let wall = "2026-01-02T03:04:05.123456789+00:00";
    let input = PlanInput { wall, ..plan_input(&session, &settings, &who, &dead_since) };
    let plan = hold(&View::new(&prefix(), Vec::new(), 50), input, NOW);
    assert_eq!(plan.outcome, PlanOutcome::NotHolding { room: true });
    assert!(sent(&plan) <= size::MAX_TRANSACTION);
}

/// Of names that do not fit beside the holders, nothing comes but the same record again.
#[test]
fn a_record_without_room_for_names_is_not_rewritten_for_them() {
    let holders: Vec<_> = (0..9_900).map(id).collect();
    let waiters: Vec<_> = (20_000..20_040).map(id).collect();
    let record = format!(r#"{{"Limit":9900,"Holders":{}}}"#, serde_json::to_string(&holders).unwrap());
    let entry = |state| Entry::new(state, 1, 0, String::new(), Identity::default()).encode();
    let mut pairs = vec![pair(".lock", record.into(), None)];
    pairs.extend(holders.iter().map(|name| pair(name, entry(WaiterState::Held), Some(name))));
    pairs.extend(waiters.iter().map(|name| pair(name, entry(WaiterState::Waiting), Some(name))));
    let mut seen = View::new(&prefix(), pairs, 50);
    let (session, who, dead_since) =
        (SessionId::from(waiters[0].as_str()), Identity::default(), BTreeMap::new());
    let settings = Settings { prefix: prefix(), ..settings(9_900, 1) };
    let input = PlanInput { held: None, ..plan_input(&session, &settings, &who, &dead_since) };
    let plan = hold(&seen, input, NOW);
    assert!(sent(&plan) <= size::MAX_TRANSACTION);
    seen.apply(&plan.write.map(|write| write.ops).unwrap_or_default(), 60);
    let again = hold(&seen, input, NOW);
    assert!(again.write.is_none(), "it writes without end");
}
