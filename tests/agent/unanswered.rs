//! Sessions whose creation got no answer.

use rustix::process::Signal;
use serde_json::json;
use slotkeeper::internals::log_events;

use crate::consul::Consul;
use crate::control::Desk;
use crate::hold::ONE;
use crate::http::request_with;
use crate::operator::{Operator, without_digits};
use crate::process::{Agent, Home};
use crate::support::proxy::{Fault, Proxy};
use crate::support::traffic::Kind;
use crate::wait_for;

struct Scene {
    _consul: Consul,
    proxy: Proxy,
    operator: Operator,
    home: Home,
}

/// A Consul behind a proxy, which is to lose the answers to so many creations of sessions.
fn scene(lost: usize) -> Scene {
    let consul = Consul::start();
    let proxy = Proxy::start_apart(consul.address().parse().unwrap());
    proxy.fail_next("/v1/session/create", &vec![Fault::LosesAnswer; lost]);
    let (operator, home) = (Operator::at(&consul.address()), Home::new());
    home.configure(&proxy.addr().to_string(), &ONE.replace("10s", "30s"));
    Scene { _consul: consul, proxy, operator, home }
}

#[test]
fn unanswered_sessions_are_found_by_name_and_destroyed_first() {
    let Scene { proxy, operator, home, .. } = &scene(3);
    let mut agent = Agent::start(home);
    agent.await_ready();
    assert_eq!(proxy.faults_left(), 0);
    let sessions = operator.sessions();
    assert_eq!(sessions.len(), 1, "{sessions:?}");
    assert_eq!(sessions[0].id, agent.session());
    let who = format!("slotkeeper s: {} pid {}", host(), agent.pid());
    assert_eq!(without_digits(&sessions[0].name), who);
    let kinds: Vec<_> = proxy.asked().into_iter().map(|asked| asked.kind).collect();
    let lost = [Kind::SessionCreate, Kind::Other, Kind::SessionDestroy];
    assert_eq!(kinds[..10], [&lost[..], &lost, &lost, &[Kind::SessionCreate]].concat());
    assert_eq!(agent.terminate(), Some(0));
    assert!(
        agent.log().contains(&format!("{}: no slot and no session", log_events::DRAINED)),
        "{}",
        agent.log()
    );
    operator.assert_nothing_left("service/s");
}

#[test]
fn an_agent_stopped_meanwhile_leaves_no_session() {
    let Scene { proxy, operator, home, .. } = &scene(100);
    let agent = Agent::start(home);
    wait_for("a session that nobody was told of", || proxy.faults_left() < 99);
    let mut agent = agent;
    assert_eq!(agent.terminate(), Some(0), "{}", agent.log());
    assert_eq!(operator.sessions(), []);
}

#[test]
fn sessions_that_cannot_be_read_are_reported_at_the_end() {
    let Scene { proxy, operator, home, .. } = &scene(3);
    // Not more than the last message names.
    proxy.fail_next("/v1/session/list", &[Fault::Answers(403, "Permission denied"); 100]);
    let mut agent = Agent::start(home);
    wait_for("two creations", || operator.sessions().len() >= 2);
    agent.signal(Signal::TERM);
    assert_eq!(agent.ended().code(), Some(1), "{}", agent.log());
    let log = agent.log();
    assert!(log.contains(log_events::UNANSWERED_SESSION_LEFT) && log.contains("Permission denied"), "{log}");
    let left = operator.sessions();
    assert!((2..=3).contains(&left.len()), "{left:?}");
    for session in left {
        assert!(log.contains(&session.name), "{} is not in\n{log}", session.name);
    }
}

#[test]
fn a_session_created_late_for_an_ended_lease_is_destroyed() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let proxy = Proxy::start_apart(consul.address().parse().unwrap());
    let config = "session: {ttl: 60s}\n\
                  semaphores: [{name: s, prefix: service/s, limit: 1, mode: on_demand}]\n\
                  control: {listen: '127.0.0.1:0', token_file: '$HOME/control.token'}\n";
    let mut desk = Desk::open_with(&proxy.addr().to_string(), config);
    proxy.fail_next("/v1/session/create", &[Fault::Answers(502, "nobody knows")]);
    let lease = desk.lease("semaphores/s");
    let given_back = desk.ask(&format!("DELETE /v1/leases/{}", lease["lease"].as_str().unwrap()), "");
    assert_eq!((given_back.status, operator.sessions()), (204, vec![]));
    let log = desk.agent.log();
    let name = log.split("cannot create a session called ").nth(1).and_then(|rest| rest.split(" at ").next());
    let body = json!({"Name": name.expect("its name"), "TTL": "600s"}).to_string();
    let length = format!("Content-Length: {}\r\n", body.len());
    assert_eq!(request_with(&consul.address(), "PUT /v1/session/create", &length, &body).status, 200);
    assert_eq!(operator.sessions().len(), 1);
    wait_for("it to be destroyed", || operator.sessions().is_empty());
    wait_for("what is said of it", || desk.agent.log().contains(log_events::UNANSWERED_SESSIONS_DESTROYED));
    assert_eq!(desk.agent.terminate(), Some(0), "{}", desk.agent.log());
}

pub(crate) fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
