//! SIGHUP.

use rustix::process::Signal;

use crate::consul::Consul;
use crate::operator::Operator;
use crate::process::{Agent, Home};
use crate::wait_for;

fn names(agent: &Agent) -> Vec<String> {
    let status = agent.status();
    let semaphores = status["semaphores"].as_array().unwrap().iter();
    semaphores
        .map(|one| format!("{} {}", one["name"].as_str().unwrap(), one["state"].as_str().unwrap()))
        .collect()
}

#[test]
fn semaphores_come_and_go_and_limits_are_set() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let home = Home::new();
    home.configure(
        &consul.address(),
        "semaphores: [{name: a, prefix: p/a, limit: 1}, {name: b, prefix: p/b, limit: 1, limit_policy: set}]",
    );
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let session = agent.session();
    home.configure(
        &consul.address(),
        "semaphores: [{name: b, prefix: p/b, limit: 4, limit_policy: set}, {name: c, prefix: p/c, limit: 1}]\n\
         session: {ttl: 90s}\nlog: {level: debug}",
    );
    agent.signal(Signal::HUP);
    wait_for("the new semaphores", || names(&agent) == ["b held", "c held"]);
    wait_for("the new limit", || operator.record("p/b")["Limit"] == 4);
    wait_for("a to be given back", || operator.holders("p/a").is_empty());
    assert_eq!(agent.session(), session);
    assert!(agent.log().contains("session takes effect only at a restart"), "{}", agent.log());
    assert!(agent.is_ready());
    assert_eq!(agent.metric("slotkeeper_config_last_reload_successful"), 1.0);
    assert_eq!(agent.metric("slotkeeper_slots_lost_total{reason=\"evicted\",semaphore=\"c\"}"), 0.0);
    assert!(!agent.get("/metrics").body.contains("semaphore=\"a\""));
    assert_eq!(agent.terminate(), Some(0));
    for prefix in ["p/a", "p/b", "p/c"] {
        operator.assert_nothing_left(prefix);
    }
}

#[test]
fn a_policy_that_becomes_set_writes_the_limit() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    operator.put("p/.lock", r#"{"Limit":3,"Holders":[]}"#, slotkeeper::consul::Put::Cas(0), 0);
    let home = Home::new();
    home.configure(&consul.address(), "semaphores: [{name: a, prefix: p, limit: 5}]");
    let mut agent = Agent::start(&home);
    agent.await_ready();
    assert_eq!(operator.record("p")["Limit"], 3);
    home.configure(&consul.address(), "semaphores: [{name: a, prefix: p, limit: 5, limit_policy: set}]");
    agent.signal(Signal::HUP);
    wait_for("the limit to be written", || operator.record("p")["Limit"] == 5);
    assert_eq!(agent.terminate(), Some(0));
}

#[test]
fn a_bad_file_changes_nothing() {
    let consul = Consul::start();
    let home = Home::new();
    home.configure(&consul.address(), "semaphores: [{name: a, prefix: p/a, limit: 1}]");
    let mut agent = Agent::start(&home);
    agent.await_ready();
    home.configure(&consul.address(), "semaphores: [{name: a, prefix: p/a, limit: 0}, {nme: b}]");
    agent.signal(Signal::HUP);
    wait_for("the refusal", || agent.metric("slotkeeper_config_last_reload_successful") == 0.0);
    assert!(agent.log().contains("semaphores[0].limit"), "{}", agent.log());
    assert_eq!(names(&agent), ["a held"]);
    assert!(agent.is_ready());
    assert_eq!(agent.terminate(), Some(0));
}
