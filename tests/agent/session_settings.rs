//! Every key under `session:`, as a real Consul stores it and acts on it.

use std::time::Duration;

use serde_json::{Value, json};
use slotkeeper_consul::{Behavior, Session};
use slotkeeper_consul::{Code, Operation};

use crate::consul::Consul;
use crate::http;
use crate::operator::Operator;
use crate::process::{Agent, Home, Lodger};
use crate::unanswered::host;
use crate::wait_for;

const PREFIX: &str = "service/s";

/// An agent with these keys under `session:` and more under its semaphore.
fn start(consul: &Consul, session: &str, semaphore: &str) -> Lodger {
    Lodger::start(&consul.address(), &rest(session, semaphore))
}

fn rest(session: &str, semaphore: &str) -> String {
    format!("session: {{{session}}}\nsemaphores: [{{name: s, prefix: {PREFIX}, limit: 1{semaphore}}}]")
}

/// The session of an agent, as Consul has it.
fn session(operator: &Operator, agent: &Agent) -> Session {
    operator.session(&agent.session()).expect("the agent's session")
}

/// Asks Consul for something that only tests need. What it does not read it answers with a reset, which may be faster than
/// its answer: so where there is nothing to say nothing is sent.
fn put(consul: &Consul, path: &str, body: &Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let length = format!("Content-Length: {}\r\n", body.len());
    let reply = http::request_with(&consul.address(), &format!("PUT {path}"), &length, &body);
    assert_eq!(reply.status, 200, "{path}: {}", reply.body);
}

/// A service with one check, which is what was said of it last.
fn register(consul: &Consul) {
    let check = json!({"CheckID": "web-alive", "TTL": "1h", "Status": "passing"});
    put(consul, "/v1/agent/service/register", &json!({"ID": "web-1", "Name": "web", "Check": check}));
    await_check(consul, "passing");
}

fn turn(consul: &Consul, status: &str) {
    put(consul, "/v1/agent/check/update/web-alive", &json!({"Status": status, "Output": "said by a test"}));
    await_check(consul, status);
}

/// The agent tells the servers a little later.
fn await_check(consul: &Consul, status: &str) {
    wait_for(&format!("the check to be {status}"), || {
        let checks = http::request(&consul.address(), "GET /v1/health/checks/web", "").body;
        serde_json::from_str::<Value>(&checks).is_ok_and(|checks| checks[0]["Status"] == status)
    });
}

fn lost(agent: &Agent, reason: &str) -> f64 {
    agent.metric(&format!("slotkeeper_slots_lost_total{{reason=\"{reason}\",semaphore=\"s\"}}"))
}

#[test]
fn every_key_is_stored_as_it_is_written() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    for (keys, ttl, behavior, lock_delay, name) in [
        ("", 45, Behavior::Delete, Duration::from_secs(15), "slotkeeper s:"),
        // Zero has to be sent: what is left out is 15 s to Consul.
        ("lock_delay: 0s", 45, Behavior::Delete, Duration::ZERO, "slotkeeper s:"),
        (
            "ttl: 1m30s, lock_delay: 1500ms, behavior: release",
            90,
            Behavior::Release,
            Duration::from_millis(1500),
            "slotkeeper s:",
        ),
        (
            "ttl: 24h, lock_delay: 60s, name: the night's import",
            86_400,
            Behavior::Delete,
            Duration::from_secs(60),
            "the night's import",
        ),
    ] {
        let mut agent = start(&consul, keys, "");
        agent.await_ready();
        let session = session(&operator, &agent);
        assert_eq!((session.ttl, session.behavior), (Some(Duration::from_secs(ttl)), behavior), "{keys}");
        let called = format!("{name} {} pid {}", host(), agent.pid());
        assert_eq!((session.lock_delay, &*session.name), (lock_delay, &*called), "{keys}");
        assert_eq!(session.node, "slotkeeper");
        // None, and not Consul's default of `serfHealth`.
        assert_eq!((session.node_checks, session.service_checks), (vec![], vec![]));
        assert_eq!(agent.terminate(), Some(0));
        operator.assert_nothing_left(PREFIX);
    }
}

#[test]
fn a_session_is_tied_to_the_node_that_is_named() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    put(&consul, "/v1/catalog/register", &json!({"Node": "batch-7", "Address": "192.0.2.7"}));
    let mut agent = start(&consul, "node: batch-7", "");
    agent.await_ready();
    assert_eq!(session(&operator, &agent).node, "batch-7");
    assert_eq!(agent.terminate(), Some(0));
    // With the node goes the session, whatever its TTL.
    let agent = start(&consul, "node: batch-7", "");
    agent.await_ready();
    put(&consul, "/v1/catalog/deregister", &json!({"Node": "batch-7"}));
    wait_for("the loss", || lost(&agent, "session_gone") == 1.0);
    wait_for("the reason", || {
        agent.log().contains("Consul does not know the session's node or one of its checks")
    });
    put(&consul, "/v1/catalog/register", &json!({"Node": "batch-7", "Address": "192.0.2.7"}));
    agent.await_ready();
}

/// What becomes of a contender when its session ends.
fn after_its_session_was_destroyed(behavior: &str) -> (Option<Option<String>>, Lodger, Operator, Consul) {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let agent = start(&consul, &format!("ttl: 10s, behavior: {behavior}"), "");
    agent.await_ready();
    let before = agent.session();
    // Nobody tidies up while it stands still.
    agent.signal(rustix::process::Signal::STOP);
    operator.destroy(&before);
    let left = operator.contender(PREFIX, &before).map(|pair| pair.session);
    assert_eq!(operator.holders(PREFIX), [before.as_str()], "Consul knows nothing of .lock");
    agent.signal(rustix::process::Signal::CONT);
    wait_for("the loss", || lost(&agent, "session_gone") == 1.0);
    wait_for("a new session", || !agent.session().is_empty() && agent.session() != before);
    agent.await_ready();
    assert_eq!(operator.holders(PREFIX), [agent.session()]);
    wait_for("the old contender to go", || operator.contender(PREFIX, &before).is_none());
    (left, agent, operator, consul)
}

#[test]
fn behavior_release_keeps_the_contender_without_a_session_and_delete_removes_it() {
    for (behavior, expected) in [("release", Some(None)), ("delete", None)] {
        let (left, mut agent, operator, _consul) = after_its_session_was_destroyed(behavior);
        assert_eq!(left, expected, "{behavior}");
        assert_eq!(agent.terminate(), Some(0));
        operator.assert_nothing_left(PREFIX);
    }
}

#[test]
fn with_behavior_release_an_ended_session_leaves_a_contender_that_the_next_client_deletes() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let mut dead = start(&consul, "ttl: 10s, behavior: release", "");
    dead.await_ready();
    let id = dead.session();
    let mut next = start(&consul, "ttl: 10s, behavior: release", "");
    next.await_state("waiting");
    dead.signal(rustix::process::Signal::KILL);
    dead.ended();
    next.await_ready();
    assert_eq!(operator.session(&id), None);
    wait_for("the entry of the dead one to go", || operator.contender(PREFIX, &id).is_none());
    assert_eq!(next.terminate(), Some(0));
    operator.assert_nothing_left(PREFIX);
}

#[test]
fn a_node_check_that_is_named_is_stored() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let mut agent = start(&consul, "node_checks: [serfHealth]", "");
    agent.await_ready();
    assert_eq!(session(&operator, &agent).node_checks, ["serfHealth"]);
    assert_eq!(agent.terminate(), Some(0));
    operator.assert_nothing_left(PREFIX);
}

#[test]
fn a_node_check_that_turns_critical_ends_the_session() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let turn = |status: &str| {
        let check = json!({"Node": "batch-7", "CheckID": "disk", "Name": "disk", "Status": status});
        let node = json!({"Node": "batch-7", "Address": "192.0.2.7", "Check": check});
        put(&consul, "/v1/catalog/register", &node);
    };
    turn("passing");
    let mut agent = start(&consul, "ttl: 10s, node: batch-7, node_checks: [disk]", "");
    agent.await_ready();
    let before = session(&operator, &agent);
    assert_eq!((before.node.as_str(), before.node_checks), ("batch-7", vec!["disk".to_owned()]));
    turn("critical");
    wait_for("the loss", || lost(&agent, "session_gone") == 1.0);
    wait_for("the reason", || {
        agent.log().lines().any(|line| line.contains("'disk'") && line.contains("critical"))
    });
    turn("passing");
    agent.await_ready();
    assert_ne!(agent.session(), before.id);
    assert_eq!(agent.terminate(), Some(0));
    operator.assert_nothing_left(PREFIX);
}

#[test]
fn a_service_check_that_turns_critical_ends_the_session() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    register(&consul);
    let mut agent = start(&consul, "ttl: 10s, service_checks: [web-alive]", "");
    agent.await_ready();
    let before = session(&operator, &agent);
    assert_eq!((before.service_checks, before.node_checks), (vec!["web-alive".to_owned()], vec![]));
    // A warning is no failure.
    turn(&consul, "warning");
    assert_eq!(session(&operator, &agent).id, before.id);
    turn(&consul, "critical");
    wait_for("the loss", || lost(&agent, "session_gone") == 1.0);
    // The metric may be ahead of readiness.
    wait_for("it not to be ready", || !agent.is_ready());
    // Consul makes no session on a check that is critical: which one, and why, is said wherever somebody looks.
    let critical = |text: &str| text.contains("web-alive") && text.contains("critical");
    wait_for("the reason in the log", || {
        agent
            .log()
            .lines()
            .any(|line| line.contains("one of the session's checks is critical") && critical(line))
    });
    wait_for("the reason in the status", || critical(&agent.status().to_string()));
    assert!(critical(&agent.get("/readyz?verbose").body), "{}", agent.get("/readyz?verbose").body);
    assert_eq!(operator.sessions(), []);
    wait_for("more attempts", || agent.requests(Operation::SessionCreate, Code::ServerError) >= 3.0);
    turn(&consul, "passing");
    agent.await_ready();
    let now = session(&operator, &agent);
    assert_ne!(now.id, before.id);
    assert_eq!(now.service_checks, ["web-alive"]);
    assert_eq!(agent.terminate(), Some(0));
    operator.assert_nothing_left(PREFIX);
}

#[test]
fn a_removed_service_check_ends_the_session() {
    let consul = Consul::start();
    register(&consul);
    let mut agent = start(&consul, "ttl: 10s, service_checks: [web-alive]", "");
    agent.await_ready();
    put(&consul, "/v1/agent/service/deregister/web-1", &Value::Null);
    wait_for("the loss", || lost(&agent, "session_gone") == 1.0);
    wait_for("the reason", || {
        agent.log().lines().any(|line| line.contains("Consul does not know") && line.contains("web-alive"))
    });
    register(&consul);
    agent.await_ready();
    assert_eq!(agent.terminate(), Some(0));
}

#[test]
fn with_on_lost_exit_a_critical_check_ends_the_agent_with_80() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    register(&consul);
    let mut agent = start(&consul, "ttl: 10s, service_checks: [web-alive]", ", on_lost: exit");
    agent.await_ready();
    turn(&consul, "critical");
    assert_eq!(agent.ended().code(), Some(80), "{}", agent.log());
    assert!(agent.log().contains("reason=session_gone"), "{}", agent.log());
    assert_eq!(operator.sessions(), []);
    // Its name stays in the record, and keeps nobody out.
    let mut next = start(&consul, "ttl: 10s", ", wait: 10s");
    next.await_ready();
    assert_eq!(operator.holders(PREFIX), [next.session()]);
    assert_eq!(next.terminate(), Some(0));
    operator.assert_nothing_left(PREFIX);
}

#[test]
fn an_agent_that_starts_on_a_critical_check_says_so_and_retries() {
    let consul = Consul::start();
    register(&consul);
    turn(&consul, "critical");
    let home = Home::new();
    home.configure(&consul.address(), &rest("ttl: 10s, service_checks: [web-alive]", ""));
    let mut agent = Agent::start(&home);
    wait_for("the reason", || {
        agent.log().lines().any(|line| line.contains("web-alive") && line.contains("critical"))
    });
    assert!(!agent.is_ready());
    assert_eq!(agent.get("/livez").status, 200, "it is not stuck");
    turn(&consul, "passing");
    agent.await_ready();
    assert_eq!(agent.terminate(), Some(0));
    // It stops as well while there is no session.
    turn(&consul, "critical");
    let mut agent = Agent::start(&home);
    wait_for("the reason", || agent.log().contains("web-alive"));
    assert_eq!(agent.terminate(), Some(0));
}
