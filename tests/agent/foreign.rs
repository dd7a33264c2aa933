//! Semaphores that others made, and what is none.

use std::process::{Child, Command, Stdio};

use serde_json::Value;
use slotkeeper::consul::Put;

use crate::consul::Consul;
use crate::hold::home;
use crate::operator::Operator;
use crate::process::{Agent, Home};
use crate::set_limit::set_limit;
use crate::wait_for;

const MAP_FLAGS: u64 = 16_210_313_421_097_356_768;
const LOCK_FLAGS: u64 = 3_304_740_253_564_472_344;

fn two(consul: &Consul) -> Home {
    let home = Home::new();
    home.configure(&consul.address(), "semaphores: [{name: s, prefix: service/s, limit: 2}]");
    home
}

/// `consul lock -n 2 service/s`, holding until it is ended.
struct ConsulLock(Child);

impl ConsulLock {
    fn start(consul: &Consul) -> Self {
        let child = Command::new(crate::support::consul::binary())
            .args(["lock", "-n", "2", "-http-addr", &consul.address(), "service/s", "sleep 600"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }

    fn end(mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn shares_a_semaphore_with_consul_lock_in_its_own_form() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let theirs = ConsulLock::start(&consul);
    let holders = || {
        let pair = operator.lock("service/s")?;
        let record: Value = serde_json::from_slice(&pair.value).ok()?;
        Some((pair.flags, record["Holders"].as_object()?.len()))
    };
    wait_for("consul lock to hold", || holders() == Some((MAP_FLAGS, 1)));
    let home = two(&consul);
    let mut agent = Agent::start(&home);
    agent.await_ready();
    assert_eq!(holders(), Some((MAP_FLAGS, 2)));
    let warnings = agent.log().matches("write `format: map`").count();
    assert_eq!(warnings, 1, "its list would end `consul lock`: {}", agent.log());
    // A second `consul lock` waits for ours.
    let waiting = ConsulLock::start(&consul);
    wait_for("it to stand in line", || agent.semaphore()["queue_length"] == 1);
    assert_eq!(agent.terminate(), Some(0));
    let contenders = || operator.keys("service/s").len() - 1;
    wait_for("it to take our place", || holders() == Some((MAP_FLAGS, 2)) && contenders() == 2);
    waiting.end();
    theirs.end();
}

#[test]
fn a_changed_limit_ends_a_consul_lock_that_waits_and_set_limit_says_so() {
    let consul = Consul::start();
    let home = Home::new();
    let map = "semaphores: [{name: s, prefix: service/s, limit: 2, format: map}]";
    home.configure(&consul.address(), map);
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let holding = ConsulLock::start(&consul);
    wait_for("consul lock to hold", || agent.semaphore()["slots_taken"] == 2);
    let (code, _, errors) = set_limit(&consul.address(), &["service/s", "2"]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    let mut waiting = ConsulLock::start(&consul);
    wait_for("it to stand in line", || agent.semaphore()["queue_length"] == 1);
    let (code, _, errors) = set_limit(&consul.address(), &["service/s", "3"]);
    assert_eq!(code, Some(0));
    assert!(errors.contains("warning: 1 foreign client was waiting"), "{errors}");
    assert_eq!(waiting.0.wait().unwrap().code(), Some(1), "it refuses another limit than its own");
    assert_eq!(agent.semaphore()["slots_taken"], 2, "who holds goes on");
    assert!(!agent.log().contains("write `format: map`"), "{}", agent.log());
    holding.end();
    assert_eq!(agent.terminate(), Some(0));
}

#[test]
fn consul_lock_joins_a_semaphore_that_was_made_in_its_form() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let home = Home::new();
    let map = "semaphores: [{name: s, prefix: service/s, limit: 2, format: map}]";
    home.configure(&consul.address(), map);
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let theirs = ConsulLock::start(&consul);
    wait_for("consul lock to hold too", || {
        operator.record("service/s")["Holders"].as_object().unwrap().len() == 2
    });
    wait_for("the agent to see it", || agent.semaphore()["slots_taken"] == 2);
    theirs.end();
    assert_eq!(agent.terminate(), Some(0));
}

#[test]
fn waits_for_a_holder_that_follows_the_guide_by_hand() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let session = operator.create_session();
    operator.put(&format!("service/s/{session}"), "db-node-1", Put::Acquire(&session), 0);
    let record = format!(r#"{{"Limit": 1, "Holders": ["{session}"], "Owner": "team-a"}}"#);
    operator.put("service/s/.lock", &record, Put::Cas(0), 0);
    let home = home(&consul);
    let mut agent = Agent::start(&home);
    agent.await_state("waiting");
    // It releases as the guide says.
    let index = operator.lock("service/s").unwrap().modify_index;
    let released = r#"{"Limit": 1, "Holders": [], "Owner": "team-a"}"#;
    operator.put("service/s/.lock", released, Put::Cas(index), 0);
    agent.await_ready();
    assert_eq!(operator.record("service/s")["Owner"], "team-a", "fields that are not ours survive");
    operator.delete(&format!("service/s/{session}"));
    operator.destroy(&session);
    assert_eq!(agent.terminate(), Some(0));
    operator.assert_nothing_left("service/s");
}

#[test]
fn garbage_and_single_key_locks_are_refused_named_and_left_alone() {
    for (value, flags, said) in
        [("some note", 0, "some note"), (r#"{"Limit":1}"#, 0, "Holders"), ("", LOCK_FLAGS, "single-key lock")]
    {
        let consul = Consul::start();
        let operator = Operator::at(&consul.address());
        operator.put("service/s/.lock", value, Put::Plain, flags);
        let before = operator.lock("service/s").unwrap();
        let home = home(&consul);
        let mut agent = Agent::start(&home);
        agent.await_state("blocked");
        let reason = agent.semaphore()["reason"].as_str().unwrap().to_owned();
        assert!(reason.contains("service/s/.lock") && reason.contains(said), "{reason}");
        assert!(!agent.is_ready());
        // Nothing is known of slots, and so none is called free.
        let shown = agent.semaphore();
        let unknown = ["limit", "slots_taken", "holder_count"].map(|what| shown[what].clone());
        assert_eq!(
            (unknown, &shown["configured_limit"]),
            ([Value::Null, Value::Null, Value::Null], &1.into())
        );
        assert_eq!(operator.lock("service/s").unwrap(), before);
        // Somebody mends it.
        operator.delete("service/s/.lock");
        agent.await_ready();
        assert_eq!(agent.terminate(), Some(0));
        operator.assert_nothing_left("service/s");
    }
}

#[test]
fn a_record_that_becomes_garbage_is_a_loss() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let home = home(&consul);
    let mut agent = Agent::start(&home);
    agent.await_ready();
    operator.put("service/s/.lock", "oops", Put::Plain, 0);
    agent.await_state("blocked");
    assert!(!agent.is_ready());
    assert_eq!(agent.terminate(), Some(0));
    let keys: Vec<_> = operator.keys("service/s").into_iter().map(|pair| pair.key).collect();
    assert_eq!(keys, ["service/s/.lock"]);
    assert_eq!(operator.lock("service/s").unwrap().value, b"oops");
}

#[test]
fn a_sibling_prefix_is_another_semaphore() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let session = operator.create_session();
    operator.put(&format!("service/s-2/{session}"), "", Put::Acquire(&session), 0);
    let record = format!(r#"{{"Limit":1,"Holders":["{session}"]}}"#);
    operator.put("service/s-2/.lock", &record, Put::Cas(0), 0);
    let home = home(&consul);
    let mut agent = Agent::start(&home);
    agent.await_ready();
    assert_eq!(agent.semaphore()["queue_length"], 0);
    assert_eq!(agent.terminate(), Some(0));
}
