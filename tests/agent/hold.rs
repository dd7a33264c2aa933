//! Holding, waiting, handing over, leaving.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use slotkeeper_consul::{Code, Operation};

use crate::consul::Consul;
use crate::operator::Operator;
use crate::process::{Agent, Home};
use crate::support::kv::Put;
use crate::wait_for;

pub(crate) const ONE: &str = "session: {ttl: 10s}\nsemaphores: [{name: s, prefix: service/s, limit: 1}]";

/// A home with one semaphore of one slot.
pub(crate) fn home(consul: &Consul) -> Home {
    let home = Home::new();
    home.configure(&consul.address(), ONE);
    home
}

#[test]
fn a_held_slot_is_reported_everywhere_and_nothing_is_left() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let home = home(&consul);
    std::fs::write(home.path("ready"), "left by a killed process").unwrap();
    let mut agent = Agent::start(&home);
    agent.await_ready();

    let semaphore = agent.semaphore();
    let token = semaphore["fencing_token"].as_u64().unwrap();
    assert_eq!(semaphore["state"], "held");
    assert_eq!(Some(token), operator.lock("service/s").map(|pair| pair.modify_index));
    assert_eq!(operator.holders("service/s"), [agent.session()]);

    let file: Value = serde_json::from_slice(&std::fs::read(agent.ready_file()).unwrap()).unwrap();
    assert_eq!(file["session"], agent.session());
    assert_eq!(file["semaphores"]["s"]["fencing_token"], token);

    for (series, value) in [
        ("slotkeeper_ready", 1.0),
        ("slotkeeper_slot_held{semaphore=\"s\"}", 1.0),
        ("slotkeeper_holders{semaphore=\"s\"}", 1.0),
        ("slotkeeper_limit{semaphore=\"s\"}", 1.0),
        ("slotkeeper_acquire_duration_seconds_count{semaphore=\"s\"}", 1.0),
    ] {
        assert_eq!(agent.metric(series), value, "{series}");
    }
    // An acquisition takes two writes: the session, and the transaction that enqueues and takes a free slot.
    for (operation, count) in [(Operation::SessionCreate, 1.0), (Operation::Txn, 1.0)] {
        assert_eq!(agent.requests(operation, Code::Ok), count, "{operation:?}");
    }
    // A whole TTL passes twice; the session is renewed and nothing is lost.
    wait_for("renewals", || agent.metric("slotkeeper_session_renew_duration_seconds_count") >= 7.0);
    assert_eq!(agent.semaphore()["fencing_token"], token);

    agent.signal(Signal::TERM);
    wait_for("the slot to be given back", || operator.holders("service/s").is_empty());
    assert!(!agent.ready_file().exists(), "the file is gone before the slot is");
    assert_eq!(agent.ended().code(), Some(0));
    operator.assert_nothing_left("service/s");
}

#[test]
fn the_second_agent_acquires_when_the_first_is_stopped() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let (home_a, home_b) = (home(&consul), home(&consul));
    let mut first = Agent::start(&home_a);
    first.await_ready();
    let mut second = Agent::start(&home_b);
    second.await_state("waiting");
    assert_eq!(second.semaphore()["position"], 1);
    assert!(!second.is_ready() && !second.ready_file().exists());
    assert_eq!(second.get("/startupz").status, 503);
    let token = first.semaphore()["fencing_token"].as_u64().unwrap();

    assert_eq!(first.terminate(), Some(0));
    second.await_ready();
    assert!(second.semaphore()["fencing_token"].as_u64().unwrap() > token);
    assert_eq!(second.metric("slotkeeper_handoff_duration_seconds_count{semaphore=\"s\"}"), 1.0);
    second.signal(Signal::INT);
    assert_eq!(second.ended().code(), Some(0));
    operator.assert_nothing_left("service/s");
}

/// coreutils' `timeout` signals the process, and then its group, which it is in.
#[test]
fn a_signal_repeated_at_once_counts_once() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    for _ in 0..10 {
        let home = home(&consul);
        let mut agent = Agent::start(&home);
        agent.await_ready();
        agent.signal(Signal::TERM);
        agent.signal_if_there(Signal::TERM);
        assert_eq!(agent.ended().code(), Some(0), "{}", agent.log());
        operator.assert_nothing_left("service/s");
    }
}

#[test]
fn several_semaphores_share_a_session_and_readiness_waits_for_the_required_ones() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let foreigner = operator.create_session();
    let taken = format!(r#"{{"Limit":1,"Holders":["{foreigner}"]}}"#);
    for name in ["b", "c"] {
        operator.put(&format!("p/{name}/.lock"), &taken, Put::Plain, 0);
        let key = format!("p/{name}/{foreigner}");
        operator.put(&key, "", Put::Acquire(&foreigner), 0);
    }
    let home = Home::new();
    home.configure(
        &consul.address(),
        "acquire: independently\nsemaphores:\n- {name: a, prefix: p/a, limit: 3, slots: 2}\n- {name: b, prefix: p/b, limit: 1}\n\
         - {name: c, prefix: p/c, limit: 1, required: false}",
    );
    let mut agent = Agent::start(&home);
    let states = |agent: &Agent| {
        let status = agent.status();
        let semaphores = status["semaphores"].as_array().unwrap().iter();
        semaphores.map(|one| one["state"].as_str().unwrap().to_owned()).collect::<Vec<_>>().join(" ")
    };
    wait_for("a held, the others taken", || states(&agent) == "held waiting waiting");
    assert!(!agent.is_ready());
    assert_eq!(operator.holders("p/a"), [agent.session(), agent.session()]);
    operator.destroy(&foreigner);
    wait_for("all held", || states(&agent) == "held held held");
    agent.await_ready();
    assert_eq!(operator.sessions().len(), 1);
    assert_eq!(agent.terminate(), Some(0));
    for prefix in ["p/a", "p/b", "p/c"] {
        operator.assert_nothing_left(prefix);
    }
}

/// 15 agents on a limit of 3, each holding for a random time. That never more hold is seen twice: by the agents' readiness and
/// in `.lock`.
#[test]
fn fifteen_contenders_on_a_limit_of_three() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let (inside, most) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for _ in 0..15 {
            scope.spawn(|| {
                let home = Home::new();
                home.configure(&consul.address(), "semaphores: [{name: s, prefix: seed, limit: 3}]");
                let mut agent = Agent::start(&home);
                agent.await_ready();
                let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                most.fetch_max(now, Ordering::SeqCst);
                pause(Duration::from_millis(fastrand::u64(0..300)));
                inside.fetch_sub(1, Ordering::SeqCst);
                assert_eq!(agent.terminate(), Some(0));
            });
        }
        // What Consul shows meanwhile never exceeds the limit either.
        wait_for("everybody's turn", || {
            if let Some(pair) = operator.lock("seed") {
                let record: Value = serde_json::from_slice(&pair.value).unwrap();
                assert!(record["Holders"].as_array().unwrap().len() <= 3, "{record}");
            }
            operator.lock("seed").is_some()
                && operator.sessions().is_empty()
                && inside.load(Ordering::SeqCst) == 0
        });
    });
    let most = most.into_inner();
    assert!((1..=3).contains(&most), "{most} held at once");
    operator.assert_nothing_left("seed");
}

#[allow(clippy::disallowed_methods, reason = "the workload's work is to take time")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}
