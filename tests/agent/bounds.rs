//! Bounded waits, limit policies, and configurations that cannot work.

use serde_json::json;
use slotkeeper::internals::log_events;

use crate::consul::Consul;
use crate::operator::Operator;
use crate::process::{Agent, Home};
use crate::support::kv::Put;
use crate::wait_for;

/// A semaphore `service/s` whose one slot a foreign client holds.
fn taken() -> (Consul, Operator, String) {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let session = operator.create_session();
    operator.put(&format!("service/s/{session}"), "", Put::Acquire(&session), 0);
    let record = format!(r#"{{"Limit":1,"Holders":["{session}"]}}"#);
    operator.put("service/s/.lock", &record, Put::Cas(0), 0);
    (consul, operator, session)
}

fn home(consul: &Consul, more: &str) -> Home {
    let home = Home::new();
    let semaphore = format!("semaphores: [{{name: s, prefix: service/s, {more}}}]");
    home.configure(&consul.address(), &semaphore);
    home
}

#[test]
fn a_bounded_wait_ends_with_75_and_leaves_no_trace() {
    let (consul, operator, session) = taken();
    for wait in ["0s", "5s"] {
        let home = home(&consul, &format!("limit: 1, wait: {wait}"));
        let mut agent = Agent::spawn(&home, &[], &[]);
        assert_eq!(agent.ended().code(), Some(75), "wait: {wait}\n{}", agent.log());
        assert_eq!(operator.keys("service/s").len(), 2, "only the holder's entry and the record are left");
        assert_eq!(operator.sessions().len(), 1);
        assert_eq!(operator.holders("service/s"), [session.as_str()]);
    }
}

#[test]
fn an_optional_semaphore_times_out_and_the_agent_goes_on() {
    let (consul, operator, session) = taken();
    let home = home(&consul, "limit: 1, wait: 0s, required: false");
    let mut agent = Agent::start(&home);
    agent.await_state("timed_out");
    assert!(agent.is_ready(), "nothing that is required is missing");
    // Nobody looks at it any more, so nothing is said of it.
    let shown = agent.semaphore();
    assert_eq!((&shown["holders"], &shown["configured_limit"]), (&json!([]), &json!(1)));
    for unknown in ["limit", "slots_taken", "queue_length", "seen_seconds_ago"] {
        assert_eq!(shown[unknown], json!(null), "{unknown}");
    }
    operator.destroy(&session);
    assert_eq!(agent.terminate(), Some(0));
    operator_sees_nothing_of(&operator);
}

fn operator_sees_nothing_of(operator: &Operator) {
    assert_eq!(operator.sessions(), []);
    assert_eq!(operator.keys("service/s").len(), 1);
}

#[test]
fn a_single_try_acquires_a_free_slot() {
    let consul = Consul::start();
    let home = home(&consul, "limit: 1, wait: 0s");
    let mut agent = Agent::start(&home);
    agent.await_ready();
    assert_eq!(agent.terminate(), Some(0));
}

#[test]
fn with_consul_out_of_reach_a_bounded_wait_ends_with_69() {
    let mut consul = Consul::start();
    let home = home(&consul, "limit: 1, wait: 1s");
    consul.stop();
    let mut agent = Agent::spawn(&home, &[], &[]);
    assert_eq!(agent.ended().code(), Some(69), "{}", agent.log());
    assert!(agent.log().contains("Consul has never answered"), "{}", agent.log());
}

#[test]
fn a_refusal_is_an_answer() {
    let consul = Consul::start();
    let home = Home::new();
    let session = "session: {service_checks: [no-such-check]}";
    let semaphore = "semaphores: [{name: s, prefix: service/s, limit: 1, wait: 5s}]";
    home.configure(&consul.address(), &format!("{session}\n{semaphore}"));
    let mut agent = Agent::spawn(&home, &[], &[]);
    assert_eq!(agent.ended().code(), Some(78), "{}", agent.log());
    assert!(agent.log().contains("no-such-check"), "{}", agent.log());
}

#[test]
fn more_slots_than_the_limit_in_force_are_reported() {
    let (consul, _, _) = taken();
    let home = home(&consul, "limit: 4, slots: 2");
    let agent = Agent::start(&home);
    agent.await_state("waiting");
    let reason = agent.semaphore()["reason"].as_str().unwrap_or_default().to_owned();
    assert!(reason.contains("the limit in force is 1 and this workload takes 2"), "{reason}");
}

#[test]
fn a_stored_limit_is_adopted_set_or_refused() {
    let (consul, operator, _) = taken();
    let adopt = home(&consul, "limit: 2");
    let mut agent = Agent::start(&adopt);
    agent.await_state("waiting");
    assert_eq!(agent.metric("slotkeeper_limit_mismatch{semaphore=\"s\"}"), 1.0);
    assert_eq!(agent.metric("slotkeeper_limit{semaphore=\"s\"}"), 1.0);
    wait_for("the warning", || agent.log().contains(log_events::LIMIT_DIFFERS));
    assert!(agent.log().contains("`slotkeeper set-limit service/s 2`"), "{}", agent.log());
    assert_eq!(agent.terminate(), Some(0));

    let refuse = home(&consul, "limit: 2, limit_policy: refuse");
    let mut agent = Agent::start(&refuse);
    agent.await_state("blocked");
    assert_eq!(agent.terminate(), Some(0));
    assert_eq!(operator.record("service/s")["Limit"], 1);

    let set = home(&consul, "limit: 2, limit_policy: set");
    let mut agent = Agent::start(&set);
    agent.await_ready();
    assert_eq!(operator.record("service/s")["Limit"], 2);
    assert_eq!(agent.metric("slotkeeper_limit_mismatch{semaphore=\"s\"}"), 0.0);
    assert_eq!(agent.terminate(), Some(0));
}

#[test]
fn a_bad_configuration_ends_with_78_and_every_fault() {
    let home = Home::new();
    home.configure("127.0.0.1:1", "semaphores: [{name: s, prefix: p, limit: 0}, {name: s, limt: 3}]");
    let mut agent = Agent::spawn(&home, &[], &[]);
    assert_eq!(agent.ended().code(), Some(78));
    let log = agent.log();
    for fault in ["semaphores[0].limit", "semaphores[1].limt", "semaphores[1].prefix"] {
        assert!(log.contains(fault), "{fault} in\n{log}");
    }
}

#[test]
fn a_token_reaches_no_log() {
    let consul = Consul::start();
    let home = home(&consul, "limit: 1");
    let token = "5ec3e700-0000-4000-8000-000000000000";
    let arguments = ["--token", token];
    let mut agent = Agent::start_with(&home, &arguments, &[("SLOTKEEPER_LOG_LEVEL", "trace")]);
    wait_for("an answer to the wrong token", || {
        agent.semaphore()["state"] == "held" || agent.log().contains(log_events::REQUEST_FAILED)
    });
    agent.terminate();
    assert!(!agent.log().contains("5ec3e700"), "{}", agent.log());
}
