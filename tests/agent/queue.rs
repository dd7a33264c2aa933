//! The line: who is let in when, and how a slot goes from one to the next.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use slotkeeper_consul::{Code, Operation};

use crate::consul::Consul;
use crate::operator::Operator;
use crate::process::Lodger;
use crate::support::kv::Put;
use crate::support::proxy::Proxy;
use crate::support::traffic::{Asked, Kind};
use crate::wait_for;

const PREFIX: &str = "service/s";

/// One that wants a slot of so many; `more` goes into its semaphore's configuration.
fn start(consul: &str, limit: u32, more: &str) -> Lodger {
    start_with(consul, limit, more, &[])
}

fn start_with(consul: &str, limit: u32, more: &str, environment: &[(&str, &str)]) -> Lodger {
    let config =
        format!("session: {{ttl: 10s}}\nsemaphores: [{{name: s, prefix: {PREFIX}, limit: {limit}{more}}}]");
    Lodger::start_with(consul, &config, environment)
}

/// One that holds.
fn holder(consul: &str, limit: u32, more: &str) -> Lodger {
    let lodger = start(consul, limit, more);
    lodger.await_ready();
    lodger
}

/// One that is seen through a proxy. What it does of its own accord it does so seldom that it is not seen: but for what somebody
/// has it do who looks at it, and so nobody does that here.
fn leaver(proxy: &Proxy, limit: u32) -> Lodger {
    let semaphore = format!("{{name: s, prefix: {PREFIX}, limit: {limit}}}");
    let config = format!("session: {{ttl: 10m}}\nsemaphores: [{semaphore}]");
    Lodger::start(&proxy.addr().to_string(), &config)
}

/// Its slot as its readiness file has it.
fn its_slot(leaver: &Lodger) -> Value {
    leaver.ready_file_says()["semaphores"]["s"].clone()
}

/// One that stands in line.
fn waiter(consul: &str, limit: u32, more: &str) -> Lodger {
    let lodger = start(consul, limit, more);
    lodger.await_state("waiting");
    lodger
}

fn token(lodger: &Lodger) -> u64 {
    lodger.semaphore()["fencing_token"].as_u64().unwrap()
}

/// Waits until `.lock` names these as next, each once for each slot. Whoever comes while somebody is named comes without a word.
fn await_next(operator: &Operator, sessions: &[&Lodger]) {
    let sessions: Vec<_> = sessions.iter().map(|one| one.session()).collect();
    wait_for("`.lock` to name who is next", || operator.next(PREFIX) == sessions);
}

/// Waits until whoever is behind the proxy watches `.lock`, as a holder does a while after it was let in. A waiter does not.
fn await_watch(proxy: &Proxy) {
    let key = Some(format!("{PREFIX}/.lock"));
    let watches = |asked: &Asked| asked.kind == Kind::KvGetBlocking && asked.key == key;
    wait_for("the watch that begins later", || proxy.asked().iter().any(watches));
}

/// What a contender's entry says, and at which index.
fn entry(operator: &Operator, session: &str) -> (Value, u64) {
    let pair = operator.contender(PREFIX, session).unwrap();
    (serde_json::from_slice(&pair.value).unwrap(), pair.modify_index)
}

#[test]
fn the_queue_is_served_in_the_order_of_arrival() {
    let consul = Consul::start();
    let (operator, address) = (Operator::at(&consul.address()), consul.address());
    let mut holding = holder(&address, 1, "");
    let mut line = Vec::new();
    for place in 1..=4 {
        let one = waiter(&address, 1, "");
        // It comes without a look at the others; who looks at it has it look at them.
        let mut status = Value::Null;
        wait_for("its place among the others", || {
            status = one.semaphore();
            status["position"] == place && status["queue_length"] == place
        });
        line.push(one);
        let listed = status["queue"].as_array().unwrap();
        let (sessions, mine): (Vec<_>, Vec<_>) =
            listed.iter().map(|one| (one["session"].as_str().unwrap(), &one["mine"])).unzip();
        assert_eq!(sessions, line.iter().map(|one| one.session()).collect::<Vec<_>>());
        assert!(mine.iter().enumerate().all(|(before, mine)| **mine == (before + 1 == place)), "{listed:?}");
    }
    // Whoever releases a slot to the last one that is named names the others.
    await_next(&operator, &[&line[0]]);

    for next in line {
        let before = token(&holding);
        assert_eq!(holding.terminate(), Some(0));
        next.await_ready();
        assert_eq!(operator.holders(PREFIX), [next.session()]);
        assert!(token(&next) > before);
        holding = next;
    }
    assert_eq!(holding.terminate(), Some(0));
    operator.assert_nothing_left(PREFIX);
}

/// The same where all happens at once: nobody is there to be asked in between.
#[test]
fn many_that_leave_as_soon_as_they_hold_are_served_in_the_order_of_arrival() {
    let consul = Consul::start();
    let (operator, address) = (Operator::at(&consul.address()), consul.address());
    let mut first = holder(&address, 1, "");
    let line: Vec<_> = (0..6).map(|_| waiter(&address, 1, "")).collect();
    let served = std::sync::Mutex::new(vec![(token(&first), 0)]);
    assert_eq!(first.terminate(), Some(0));
    std::thread::scope(|scope| {
        for (place, mut one) in (1..).zip(line) {
            let served = &served;
            scope.spawn(move || {
                one.await_ready();
                let token = one.ready_file_says()["semaphores"]["s"]["fencing_token"].as_u64().unwrap();
                served.lock().unwrap().push((token, place));
                assert_eq!(one.terminate(), Some(0));
            });
        }
    });
    let mut served = served.into_inner().unwrap();
    served.sort_unstable();
    let order: Vec<_> = served.iter().map(|(_, place)| *place).collect();
    assert_eq!(order, [0, 1, 2, 3, 4, 5, 6], "by fencing token: {served:?}");
    operator.assert_nothing_left(PREFIX);
}

#[test]
fn a_waiter_for_two_slots_is_not_overtaken_by_one_for_one() {
    let consul = Consul::start();
    let (operator, address) = (Operator::at(&consul.address()), consul.address());
    let (mut first, mut second) = (holder(&address, 2, ""), holder(&address, 2, ""));
    let mut double = waiter(&address, 2, ", slots: 2");
    let mut single = waiter(&address, 2, "");
    await_next(&operator, &[&double, &double]);
    assert_eq!(first.terminate(), Some(0));
    assert_eq!(operator.holders(PREFIX), [second.session()]);
    wait_for("the head of the line to see it", || double.semaphore()["slots_taken"] == 1);
    // Everybody has had a good look, and leaves the free slot alone.
    let listed = |one: &Lodger| one.requests(Operation::KvList, Code::Ok);
    let before = [listed(&double), listed(&single)];
    wait_for("both to list everything", || listed(&double) > before[0] && listed(&single) > before[1]);
    assert_eq!(operator.holders(PREFIX), [second.session()]);
    assert_eq!(
        (&double.semaphore()["state"], &single.semaphore()["state"]),
        (&"waiting".into(), &"waiting".into())
    );

    assert_eq!(second.terminate(), Some(0));
    double.await_ready();
    let status = double.semaphore();
    assert_eq!(status["slots"], 2);
    let numbers: BTreeSet<_> =
        status["slot_indexes"].as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect();
    assert_eq!(numbers, BTreeSet::from([0, 1]));
    assert_eq!(operator.holders(PREFIX), [double.session(), double.session()]);
    assert_eq!(single.semaphore()["state"], "waiting");
    assert_eq!(double.terminate(), Some(0));
    single.await_ready();
    assert_eq!(single.terminate(), Some(0));
    operator.assert_nothing_left(PREFIX);
}

#[test]
fn two_freed_slots_are_granted_to_two_waiters_at_once() {
    let consul = Consul::start();
    let (operator, address) = (Operator::at(&consul.address()), consul.address());
    let mut double = holder(&address, 2, ", slots: 2");
    let mut line = [waiter(&address, 2, ""), waiter(&address, 2, ""), waiter(&address, 2, "")];
    await_next(&operator, &[&line[0]]);
    assert_eq!(double.terminate(), Some(0));
    let [a, b, c] = &mut line;
    a.await_ready();
    b.await_ready();
    // The first by its name, the second by the listing in the same write.
    assert!(token(a) <= token(b));
    assert_eq!(operator.holders(PREFIX), [a.session(), b.session()]);
    let numbers = [&a, &b].map(|one| one.semaphore()["slot_indexes"][0].as_u64().unwrap());
    assert_eq!(BTreeSet::from(numbers), BTreeSet::from([0, 1]));
    assert_eq!(c.semaphore()["state"], "waiting");
    assert_eq!(a.terminate(), Some(0));
    c.await_ready();
    assert_eq!(c.semaphore()["slot_indexes"][0], numbers[0]);
    for one in [b, c] {
        assert_eq!(one.terminate(), Some(0));
    }
    operator.assert_nothing_left(PREFIX);
}

#[test]
fn a_leaving_holder_hands_off_in_one_transaction_without_a_read() {
    let consul = Consul::start();
    let (operator, address) = (Operator::at(&consul.address()), consul.address());
    let proxy = Proxy::start_apart(address.parse().unwrap());
    let mut zero = holder(&address, 3, "");
    let mut leaver = leaver(&proxy, 3);
    leaver.await_ready();
    let mut two = holder(&address, 3, "");
    let slots =
        [zero.semaphore(), its_slot(&leaver), two.semaphore()].map(|one| one["slot_indexes"][0].clone());
    assert_eq!(slots, [0, 1, 2]);
    let mut line = [(); 3].map(|()| waiter(&address, 3, ""));
    await_next(&operator, &[&line[0]]);
    // Whoever leaves first lets in the only one that is named, and names the others.
    assert_eq!(two.terminate(), Some(0));
    let [two, next, last] = &mut line;
    two.await_ready();
    await_next(&operator, &[next, last]);
    await_watch(&proxy);
    let (session, before) = (next.session(), its_slot(&leaver)["fencing_token"].as_u64().unwrap());
    let asked_before = proxy.asked().len();
    assert_eq!(leaver.terminate(), Some(0));
    let asked = proxy.asked().split_off(asked_before);
    let asked: Vec<_> = asked.into_iter().map(|asked| asked.kind).collect();
    // The last but one tells that the offer is accepted.
    assert_eq!(asked, [Kind::Txn, Kind::KvGetBlocking, Kind::SessionDestroy]);

    let lock = operator.lock(PREFIX).unwrap();
    let (said, accepted) = entry(&operator, &session);
    assert_eq!((&said["state"], &said["indexes"]), (&"held".into(), &serde_json::json!([1])));
    let granted = said["token"].as_u64().unwrap();
    assert_eq!(granted, lock.modify_index, "offered in one transaction");
    assert!(before < granted && granted < accepted);
    next.await_ready();
    let status = next.semaphore();
    assert_eq!((&status["fencing_token"], &status["slot_indexes"][0]), (&granted.into(), &1.into()));
    let file = &next.ready_file_says()["semaphores"]["s"];
    assert_eq!((&file["fencing_token"], &file["slot"]), (&granted.into(), &1.into()));
    assert_eq!(next.metric("slotkeeper_handoff_duration_seconds_count{semaphore=\"s\"}"), 1.0);
    for one in [&mut zero, two, next, last] {
        assert_eq!(one.terminate(), Some(0));
    }
    operator.assert_nothing_left(PREFIX);
}

#[test]
fn a_dead_next_waiter_is_skipped() {
    let consul = Consul::start();
    let (operator, address) = (Operator::at(&consul.address()), consul.address());
    let proxy = Proxy::start_apart(address.parse().unwrap());
    let mut first = holder(&address, 1, "");
    let mut leaver = leaver(&proxy, 1);
    wait_for("it to be named", || operator.lock(PREFIX).is_some() && operator.next(PREFIX).len() == 1);
    let (mut dead, mut after) = (waiter(&address, 1, ""), waiter(&address, 1, ""));
    // Whoever leaves first lets in the only one that is named, and names the others.
    assert_eq!(first.terminate(), Some(0));
    leaver.await_ready();
    await_next(&operator, &[&dead, &after]);
    let (dead_session, after_session) = (dead.session(), after.session());
    // It says who it is, and has nothing else to do then.
    let leaver_session = leaver.ready_file_says()["session"].clone();
    await_watch(&proxy);
    wait_for("its own entry", || {
        entry(&operator, leaver_session.as_str().unwrap()).0["who"]["pid"] == leaver.pid()
    });
    dead.signal(Signal::KILL);
    dead.ended();
    let before = proxy.counts();
    operator.destroy(&dead_session);
    assert_eq!(leaver.terminate(), Some(0));
    let did = proxy.counts() - before;
    assert!(
        (2..=3).contains(&did.of(Kind::Txn).requests),
        "perhaps one that reads, one refused, one done: {did:?}"
    );
    assert_eq!(operator.holders(PREFIX), [after_session.as_str()]);
    after.await_ready();
    let (said, _) = entry(&operator, &after_session);
    assert_eq!((&said["state"], &said["indexes"]), (&"held".into(), &serde_json::json!([0])));
    assert_eq!(said["token"], token(&after));
    assert_eq!(after.terminate(), Some(0));
    operator.assert_nothing_left(PREFIX);
}

#[test]
fn a_slot_that_was_offered_to_a_dead_waiter_is_passed_on_by_the_releaser() {
    let consul = Consul::start();
    let (operator, address) = (Operator::at(&consul.address()), consul.address());
    let mut leaver = holder(&address, 1, "");
    let mut dead = waiter(&address, 1, "");
    let dead_session = dead.session();
    await_next(&operator, &[&dead]);
    let mut after = waiter(&address, 1, "");
    dead.signal(Signal::KILL);
    dead.ended();
    assert_eq!(leaver.terminate(), Some(0));
    after.await_ready();
    assert_eq!(operator.holders(PREFIX), [after.session()]);
    // For all that anybody knows it lives, and it keeps its place.
    assert!(operator.session(&dead_session).is_some());
    let (said, offered) = entry(&operator, &dead_session);
    assert_eq!((&said["state"], &said["asked"]), (&"waiting".into(), &true.into()));
    assert!(token(&after) >= offered);
    operator.destroy(&dead_session);
    assert_eq!(after.terminate(), Some(0));
    operator.assert_nothing_left(PREFIX);
}

#[test]
fn a_holder_that_was_offered_its_slot_by_name_completes_its_contender_key_as_it_accepts() {
    let consul = Consul::start();
    let (operator, address) = (Operator::at(&consul.address()), consul.address());
    let mut leaver = holder(&address, 2, "");
    let mut other = holder(&address, 2, "");
    let environment = [("SLOTKEEPER_POD_NAME", "loader-1"), ("SLOTKEEPER_NODE_NAME", "node-7")];
    let mut next = start_with(&address, 2, ", body: nightly load", &environment);
    next.await_state("waiting");
    await_next(&operator, &[&next]);
    assert_eq!(leaver.terminate(), Some(0));
    let session = next.session();
    next.await_ready();
    let status = next.semaphore();
    let said = entry(&operator, &session).0;
    assert_eq!((&said["state"], &said["slots"]), (&"held".into(), &1.into()));
    assert_eq!(said["indexes"], status["slot_indexes"]);
    assert_eq!(said["body"], "nightly load");
    assert_eq!(said["who"]["node"], "node-7");
    assert!(
        said["who"]["pid"].is_u64() && said["since"].as_str().is_some_and(|since| !since.is_empty()),
        "{said}"
    );
    // It is the same slot all along, and others learn whose it is.
    assert_eq!(next.semaphore()["fencing_token"], status["fencing_token"]);
    wait_for("another holder to show it", || {
        let status = other.semaphore();
        let holders = status["holders"].as_array().unwrap();
        holders.iter().any(|one| one["session"] == *session && one["who"]["pod"] == "loader-1")
    });
    for one in [&mut other, &mut next] {
        assert_eq!(one.terminate(), Some(0));
    }
    operator.assert_nothing_left(PREFIX);
}

#[test]
#[allow(
    clippy::disallowed_methods,
    reason = "it measures the turn that is left, of which too little would be the failure"
)]
fn a_foreign_client_ahead_gets_its_turn_and_delays_no_other() {
    let consul = Consul::start();
    let (operator, address) = (Operator::at(&consul.address()), consul.address());
    let mut leaver = holder(&address, 1, "");
    // It stands in line and never tries.
    let other = operator.create_session();
    operator.put(&format!("{PREFIX}/{other}"), "db-node-1", Put::Acquire(&other), 0);
    let mut behind = waiter(&address, 1, "");
    wait_for("both to be known", || behind.semaphore()["position"] == 2);
    assert_eq!(
        operator.record(PREFIX)["slotkeeper"],
        Value::Null,
        "a client of another kind may take no field of ours"
    );
    let told = Instant::now();
    assert_eq!(leaver.terminate(), Some(0));
    behind.await_ready();
    assert!(told.elapsed() >= Duration::from_millis(300), "{:?}", told.elapsed());
    operator.destroy(&other);
    assert_eq!(behind.terminate(), Some(0));
    operator.assert_nothing_left(PREFIX);
}
