use proptest::prelude::*;

use super::*;

const NOW: Moment = Moment::from_boot(Duration::from_secs(1000));
const TTL: Duration = Duration::from_secs(30);
const BOUNDS: Bounds = Bounds { waits: 2, leases: 3 };

fn after(seconds: u64) -> Moment {
    NOW + Duration::from_secs(seconds)
}

fn granted() -> Granted {
    Granted { session: "s".into(), token: 7, lock_index: None, indexes: vec![0], since: NOW }
}

fn table() -> Table {
    Table::new(BOUNDS, TTL)
}

fn open(table: &mut Table, id: &str, wait: u64) -> Result<Key, Refusal> {
    let what = (Kind::Semaphore, Name::from("s"));
    table.open(id.into(), what, Duration::from_secs(wait), NOW)
}

fn held(table: &mut Table, id: &str) -> Key {
    let key = open(table, id, 5).unwrap();
    assert!(table.granted(key, granted(), NOW));
    key
}

#[test]
fn there_are_no_more_waits_and_leases_than_there_may_be() {
    let mut table = table();
    held(&mut table, "a");
    let waits = open(&mut table, "b", 5).unwrap();
    assert!(open(&mut table, "c", 5).is_ok());
    // The third one in all, and both waits may be granted.
    assert_eq!(open(&mut table, "d", 5), Err(Refusal::TooManyLeases(3)));
    assert!(table.refused(waits, NOW));
    assert_eq!(open(&mut table, "d", 5), Err(Refusal::TooManyLeases(3)), "it is not gone yet");
    table.gone(waits);
    assert!(open(&mut table, "d", 5).is_ok());

    let mut table = self::table();
    assert!(open(&mut table, "a", 5).is_ok() && open(&mut table, "b", 5).is_ok());
    assert_eq!(open(&mut table, "c", 5), Err(Refusal::TooManyWaits(2)));
}

#[test]
fn a_lease_lasts_a_ttl_from_one_renewal_to_the_next_and_a_margin() {
    let mut table = table();
    let key = held(&mut table, "a");
    let left =
        |table: &Table, lease_ends, now| table.held(key, lease_ends, now).map(|(.., left)| left.as_secs());
    assert_eq!(left(&table, after(100), NOW), Ok(30));
    assert_eq!(left(&table, after(27), after(5)), Ok(22), "no longer than its session surely lives");
    assert_eq!(left(&table, after(27), after(27)), Err(NoLease::Lost("lease_expired")));
    table.renewed(key, after(20));
    assert_eq!(left(&table, after(100), after(21)), Ok(29));
    assert_eq!(left(&table, after(100), after(51)), Ok(0));
    assert_eq!((table.due(after(52)), table.deadline()), (vec![], Some(after(53))));
    table.renewed(key, after(52));
    assert_eq!(table.due(after(84)), []);
    assert_eq!(table.due(after(85)), [(key, Due::Expired)]);
    assert_eq!(left(&table, after(100), after(85)), Err(NoLease::Expired));
    table.gone(key);
    assert_eq!((table.find("a"), table.fate("a")), (None, NoLease::Expired));
}

#[test]
fn a_wait_that_nobody_ends_is_ended_and_what_was_granted_is_not() {
    let mut table = table();
    let (late, once) = (open(&mut table, "a", 5).unwrap(), open(&mut table, "b", 0).unwrap());
    assert_eq!(table.due(after(6)), []);
    assert_eq!(table.due(after(7)), [(late, Due::Late)]);
    assert!(!table.granted(late, granted(), after(7)), "it has been refused");
    assert_eq!(table.due(after(12)), [(once, Due::Late)]);
    // No client has had its id.
    table.gone(late);
    assert_eq!((table.find("a"), table.fate("a")), (None, NoLease::Unknown));
}

#[test]
fn what_cannot_be_given_back_is_left_after_two_ttls_and_forgotten_two_later() {
    let mut table = table();
    let key = held(&mut table, "a");
    assert!(table.released(key, NOW) && !table.released(key, after(1)));
    assert_eq!(table.find("a"), Some(key));
    assert_eq!(table.due(after(60)), [(key, Due::Abandon)]);
    assert_eq!(table.due(after(119)), []);
    assert_eq!(table.due(after(120)), [(key, Due::Forget)]);
    table.gone(key);
    assert_eq!((table.is_empty(), table.fate("a")), (true, NoLease::Released));
}

#[test]
fn what_became_of_the_last_ones_is_remembered() {
    let mut table = table();
    for number in 0..=MAX_REMEMBERED {
        let key = held(&mut table, &number.to_string());
        assert!(table.lost(key, LossReason::Evicted, NOW));
        table.gone(key);
    }
    assert_eq!(table.fate("0"), NoLease::Unknown);
    assert_eq!(table.fate("1"), NoLease::Lost("evicted"));
    assert_eq!(table.fate(&MAX_REMEMBERED.to_string()), NoLease::Lost("evicted"));
}

/// What may happen.
#[derive(Clone, Debug)]
enum Step {
    Open { wait: u64 },
    Grant(usize),
    Refuse(usize),
    Renew(usize),
    Release(usize),
    Lose(usize),
    Evict(usize),
    Gone(usize),
    Pass { seconds: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let which = 0..6_usize;
    prop_oneof![
        3 => (0..20_u64).prop_map(|wait| Step::Open { wait }),
        3 => which.clone().prop_map(Step::Grant),
        1 => which.clone().prop_map(Step::Refuse),
        2 => which.clone().prop_map(Step::Renew),
        1 => which.clone().prop_map(Step::Release),
        1 => which.clone().prop_map(Step::Lose),
        1 => which.clone().prop_map(Step::Evict),
        1 => which.prop_map(Step::Gone),
        2 => (0..40_u64).prop_map(|seconds| Step::Pass { seconds }),
    ]
}

proptest! {
    #![proptest_config(slotkeeper_test_seed::cases())]

    /// In any order of events the limits hold, no lease comes back, and none is used for longer than
    /// its session surely lives, or than its client has asked for it.
    #[test]
    fn leases_are_bounded_end_once_and_never_outlive_their_sessions(
        steps in proptest::collection::vec(step(), 0..120),
        life in 1..60_u64,
    ) {
        let (mut table, mut now, mut made) = (table(), NOW, Vec::<Key>::new());
        let mut left: BTreeMap<Key, NoLease> = BTreeMap::new();
        let mut used_until: BTreeMap<Key, Moment> = BTreeMap::new();
        for step in steps {
            let pick = |from: usize| made.len().checked_sub(from + 1).map(|place| made[place]);
            match step {
                Step::Open { wait } => {
                    let id = made.len().to_string();
                    let what = (Kind::Semaphore, Name::from("s"));
                    made.extend(table.open(id, what, Duration::from_secs(wait), now));
                }
                Step::Grant(which) => {
                    let _ = pick(which).map(|key| table.granted(key, granted(), now));
                }
                Step::Refuse(which) => {
                    let _ = pick(which).map(|key| table.refused(key, now));
                }
                Step::Renew(which) => {
                    if let Some(key) = pick(which) {
                        table.renewed(key, now);
                    }
                }
                Step::Release(which) => {
                    let _ = pick(which).map(|key| table.released(key, now));
                }
                Step::Lose(which) => {
                    let _ = pick(which).map(|key| table.lost(key, LossReason::Evicted, now));
                }
                Step::Evict(which) => {
                    let lease_ends = NOW + Duration::from_secs(life);
                    if let Some(key) = pick(which)
                        && let Ok((.., expires_in)) = table.held(key, lease_ends, now)
                    {
                        prop_assert!(table.evicted(key, lease_ends));
                        used_until.insert(key, now + expires_in);
                    }
                }
                Step::Gone(which) => {
                    // The shell takes only those away that are left.
                    let leaving = |key: &Key| {
                        table.get(*key).is_some_and(|one| matches!(one.stage(), Stage::Leaving { .. }))
                    };
                    if let Some(key) = pick(which).filter(leaving) {
                        table.gone(key);
                    }
                }
                Step::Pass { seconds } => {
                    now = now + Duration::from_secs(seconds);
                    for (key, due) in table.due(now) {
                        prop_assert_eq!(due == Due::AssumedLost, used_until.contains_key(&key) && !left.contains_key(&key));
                        prop_assert!(due != Due::AssumedLost || used_until[&key] < now);
                        if due == Due::Forget {
                            table.gone(key);
                        }
                    }
                }
            }
            let waits = table.iter().filter(|(_, lease)| lease.stage == Stage::Waiting).count();
            prop_assert!(waits <= BOUNDS.waits && table.iter().count() <= BOUNDS.leases);
            for (place, key) in made.iter().enumerate() {
                let id = place.to_string();
                match table.get(*key).map(Lease::stage) {
                    Some(Stage::Held { renewed, .. }) => {
                        prop_assert!(!left.contains_key(key), "{key:?} has come back");
                        let lease_ends = NOW + Duration::from_secs(life);
                        let expected = (*renewed + TTL).min(lease_ends);
                        match table.held(*key, lease_ends, now) {
                            Ok((.., expires_in)) => prop_assert!(now + expires_in <= expected.max(now)),
                            Err(fate) => {
                                prop_assert!(lease_ends <= now);
                                prop_assert_eq!(fate, NoLease::Lost("lease_expired"));
                            }
                        }
                    }
                    Some(Stage::Waiting) => prop_assert!(!left.contains_key(key) && table.find(&id).is_none()),
                    Some(Stage::Evicted { .. }) => {
                        prop_assert!(used_until.contains_key(key) && !left.contains_key(key));
                        prop_assert_eq!(table.held(*key, now, now).err(), Some(NoLease::Lost("evicted")));
                        prop_assert_eq!(table.find(&id), Some(*key));
                    }
                    Some(Stage::Leaving { fate, .. }) => {
                        let fate = fate.unwrap_or(NoLease::Unknown);
                        prop_assert_eq!(*left.entry(*key).or_insert(fate), fate);
                    }
                    None => prop_assert_eq!(Some(&table.fate(&id)), left.get(key)),
                }
            }
        }
    }
}
