//! Slots that are acquired together by a transaction which is nearly, or quite, larger than Consul takes.

use super::*;
use crate::size::{self, MAX_TRANSACTION};
use crate::view::View;
use crate::{Record, plan};

fn large(name: &str) -> Settings {
    Settings { limit: 10_000, ..settings(name, None) }
}

/// What lies below a prefix where so many others hold a slot, and names of others are published.
fn crowd(name: &str, holders: u32) -> Vec<Pair> {
    let ids: Vec<_> = (0..holders).map(|number| format!("{number:036}")).collect();
    let mut record = Record::new(Form::List, 10_000);
    record.holders = ids.iter().map(|id| id.as_str().into()).collect();
    record.next = (0..16).map(|number| format!("{number:036x}").as_str().into()).collect();
    let mut pairs = vec![Pair { value: record.encode(), ..lock(name, 1, "", 5) }];
    pairs.extend(ids.iter().map(|id| contender(name, id, None, 4)));
    pairs
}

/// A group of two with its contenders at the head of both lines, beside so many holders of each.
fn at_the_head(holders: u32) -> Keeper {
    let mut start = starting(&["a", "b"], &["a", "b"], None, None);
    start.semaphores = ["a", "b"].map(|name| (name.into(), large(name))).into();
    let mut keeper = Keeper::new(start, NOW);
    keeper.handle(Event::SessionCreated(Ok("me".into())), NOW);
    for name in ["a", "b"] {
        let mut pairs = crowd(name, holders);
        pairs.push(contender(name, "me", Some(WaiterState::Waiting), 7));
        listed(&mut keeper, name, pairs);
    }
    keeper
}

/// The transactions, each with its keys and its size.
fn sent(keeper: &mut Keeper) -> Vec<(Vec<String>, usize)> {
    let commands = std::iter::from_fn(|| keeper.next_command());
    let commits =
        commands.filter_map(|it| if let Command::Commit { parts } = it { Some(parts) } else { None });
    let of = |parts: Vec<Part>| {
        let ops: Vec<_> = parts.into_iter().flat_map(|part| part.ops).collect();
        (ops.iter().map(|op| op.key().to_owned()).collect(), ops.iter().map(size::of_step).sum())
    };
    commits.map(of).collect()
}

fn blocked(keeper: &Keeper, name: &str) -> Option<String> {
    match keeper.machine(name).map(Machine::phase) {
        Some(Phase::Blocked { obstacle, .. }) => Some(obstacle.why),
        Some(_) | None => None,
    }
}

#[test]
fn a_group_without_room_in_the_transaction_reports_it_and_leaves_every_queue() {
    let mut keeper = at_the_head(7_000);
    let writes = sent(&mut keeper);
    assert!(writes.iter().all(|(_, bytes)| *bytes <= MAX_TRANSACTION), "{writes:?}");
    let keys: Vec<_> = writes.iter().map(|(keys, _)| keys.as_slice()).collect();
    assert_eq!(keys, [["a/me", "a/me"], ["b/me", "b/me"]], "it leaves the lines");
    for name in ["a", "b"] {
        let why = blocked(&keeper, name).unwrap();
        assert!(why.contains(&format!("{name}/.lock")) && why.contains("7000 holders"), "{why}");
        keeper
            .handle(Event::Committed(vec![name.into()], Ok(Commit::Done { index: 31, listing: None })), NOW);
    }
    assert_eq!(sent(&mut keeper), []);
    // Many have left: it enters both lines.
    let pair = crowd("a", 1_000).swap_remove(0);
    let pair = Some(Pair { modify_index: 40, ..pair });
    keeper.handle(Event::Watched("a".into(), "a/.lock".into(), Ok(Reading { pair, index: 40 })), NOW);
    for name in ["a", "b"] {
        listed(&mut keeper, name, crowd(name, 1_000));
    }
    let writes = sent(&mut keeper);
    assert_eq!((writes.len(), blocked(&keeper, "a"), blocked(&keeper, "b")), (1, None, None));
    for key in ["a/me", "b/me"] {
        assert!(writes[0].0.iter().any(|written| written == key), "{writes:?}");
    }
}

#[test]
fn what_fits_without_hints_is_acquired_and_one_holder_more_leaves_no_room() {
    let part = |holders| {
        let view = View::new("a", crowd("a", holders), 30);
        let prefixes = ["a", "b"].map(str::to_owned);
        plan::part_of_all(Some(&view), &large("a"), &Identity::default(), &prefixes)
    };
    // Both parts are equally long, and each holder makes them longer by as much.
    let most = 4_000 + (MAX_TRANSACTION / 2 - part(4_000)) / (part(4_001) - part(4_000));
    let most = u32::try_from(most).unwrap();
    let mut keeper = at_the_head(most);
    let writes = sent(&mut keeper);
    assert!(writes.len() == 1 && writes[0].0.contains(&"b/.lock".to_owned()), "{writes:?}");
    assert!((MAX_TRANSACTION - 1024..=MAX_TRANSACTION).contains(&writes[0].1), "{writes:?}");
    let mut keeper = at_the_head(most + 1);
    assert!(blocked(&keeper, "a").is_some() && blocked(&keeper, "b").is_some());
    assert!(!sent(&mut keeper).iter().any(|(keys, _)| keys.contains(&"b/.lock".to_owned())));
}
