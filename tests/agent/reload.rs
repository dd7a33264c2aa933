//! Reload by SIGHUP.

mod command;
mod pending;
mod rename;
mod stuck;
mod watch;

use rustix::process::Signal;
use slotkeeper::internals::log_events;

use crate::consul::Newer;
use crate::hold::ONE;
use crate::operator::Operator;
use crate::process::{Agent, Home};
use crate::support::kv::Put;
use crate::support::proxy::Proxy;
use crate::support::traffic::Kind;
use crate::wait_for;

fn names(agent: &Agent) -> Vec<String> {
    let status = agent.status();
    let semaphores = status["semaphores"].as_array().unwrap().iter();
    semaphores
        .map(|one| format!("{} {}", one["name"].as_str().unwrap(), one["state"].as_str().unwrap()))
        .collect()
}

/// The number of reloads that the agent has applied.
fn reloaded(agent: &Agent) -> usize {
    agent.log().matches(log_events::RELOADED).count()
}

#[test]
fn sighup_adds_and_removes_semaphores_and_sets_limits() {
    let consul = Newer::start();
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
    wait_for("a to be released", || operator.holders("p/a").is_empty());
    assert_eq!(agent.session(), session);
    assert!(agent.log().contains("session.ttl takes effect only at a restart"), "{}", agent.log());
    assert!(agent.log().contains(r#"added=c removed=a changed="b.limit, log.level""#), "{}", agent.log());
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
fn a_request_from_before_a_reload_does_not_delay_a_drain() {
    let consul = Newer::start();
    let operator = Operator::at(&consul.address());
    let proxy = Proxy::start_apart(consul.address().parse().unwrap());
    let home = Home::new();
    home.configure(&proxy.addr().to_string(), &format!("{ONE}\ndrain: {{timeout: 10s}}\n"));
    let mut agent = Agent::start(&home);
    agent.await_ready();
    // A status request makes the agent list the prefix.
    proxy.ignore_next("/v1/kv/service/s/");
    let listings = || proxy.counts().of(Kind::KvList).requests;
    let before = listings();
    wait_for("a listing without an answer", || agent.semaphore().is_object() && listings() > before);
    agent.signal(Signal::HUP);
    wait_for("the reload", || reloaded(&agent) == 1);
    // The unanswered listing may take longer than the drain.
    assert_eq!(agent.terminate(), Some(0), "{}", agent.log());
    operator.assert_nothing_left("service/s");
}

#[test]
fn a_policy_that_becomes_set_writes_the_limit() {
    let consul = Newer::start();
    let operator = Operator::at(&consul.address());
    operator.put("p/.lock", r#"{"Limit":3,"Holders":[]}"#, Put::Cas(0), 0);
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

fn with_priority(consul: &Newer, home: &Home, priority: i32) {
    let semaphore =
        format!("{{name: s, prefix: p, limit: 1, priority: {priority}, body: 'first {priority}'}}");
    home.configure(&consul.address(), &format!("semaphores: [{semaphore}]"));
}

/// A waiting agent, and its home.
fn start_waiter(consul: &Newer, priority: i32) -> (Home, Agent) {
    let home = Home::new();
    with_priority(consul, &home, priority);
    let agent = Agent::start(&home);
    agent.await_state("waiting");
    (home, agent)
}

#[test]
fn the_higher_priority_goes_first_and_a_reload_changes_the_order() {
    let consul = Newer::start();
    let operator = Operator::at(&consul.address());
    let next_are = |agents: [&Agent; 2]| {
        let sessions = agents.map(Agent::session);
        let shown = || agents[0].semaphore()["queue"].clone();
        let is_next = |index: usize| shown()[index]["session"] == sessions[index];
        wait_for("the order", || {
            is_next(0) && is_next(1) && operator.next("p").first() == Some(&sessions[0])
        });
    };
    let home = Home::new();
    with_priority(&consul, &home, 0);
    let mut first = Agent::start(&home);
    first.await_ready();
    let (_home, mut early) = start_waiter(&consul, 0);
    let (home_of_urgent, mut urgent) = start_waiter(&consul, 5);
    next_are([&urgent, &early]);
    assert_eq!(first.terminate(), Some(0));
    urgent.await_ready();
    assert_eq!(early.semaphore()["state"], "waiting");

    // Another urgent waiter moves to the last position, and back to the first.
    let (home, mut late) = start_waiter(&consul, 5);
    next_are([&late, &early]);
    with_priority(&consul, &home, -1);
    late.signal(Signal::HUP);
    next_are([&early, &late]);
    with_priority(&consul, &home, 1);
    late.signal(Signal::HUP);
    next_are([&late, &early]);
    with_priority(&consul, &home, -1);
    late.signal(Signal::HUP);
    next_are([&early, &late]);
    let entry = operator.entry("p", &late.session());
    assert_eq!((entry["priority"].as_i64(), entry["body"].as_str()), (Some(-1), Some("first -1")));
    // The body of a holder changes too.
    with_priority(&consul, &home_of_urgent, 9);
    urgent.signal(Signal::HUP);
    wait_for("the holder's contender key", || operator.entry("p", &urgent.session())["body"] == "first 9");
    for agent in [&first, &early, &late, &urgent] {
        assert!(!agent.log().contains(log_events::SETTING_NOT_CHANGED), "{}", agent.log());
    }
    assert_eq!(urgent.terminate(), Some(0));
    early.await_ready();
    assert_eq!(late.semaphore()["state"], "waiting");
    assert_eq!(early.terminate(), Some(0));
    late.await_ready();
    assert_eq!(late.terminate(), Some(0));
    operator.assert_nothing_left("p");
}

#[test]
fn a_bad_file_changes_nothing() {
    let consul = Newer::start();
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
