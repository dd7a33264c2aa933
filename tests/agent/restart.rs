//! An agent that is killed and started again.

use std::os::unix::fs::PermissionsExt;

use rustix::process::Signal;
use slotkeeper::internals::log_events;
use slotkeeper_consul::{Code, Operation};

use crate::consul::Consul;
use crate::hold::ONE;
use crate::operator::Operator;
use crate::process::{Agent, Home};
use crate::support::kv::Put;
use crate::support::proxy::{Fault, Proxy};
use crate::wait_for;

fn home(consul: &Consul) -> Home {
    let home = Home::new();
    home.configure(
        &consul.address(),
        &ONE.replace("ttl: 10s", "ttl: 10s, state_file: $HOME/state/session.json"),
    );
    home
}

#[test]
fn a_restarted_agent_resumes_its_session_with_slot_and_token() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let home = home(&consul);
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let (session, token) = (agent.session(), agent.semaphore()["fencing_token"].clone());
    let since = agent.semaphore()["since"].as_str().unwrap().to_owned();
    let state = home.path("state/session.json");
    wait_for("the token in the state file", || {
        std::fs::read_to_string(&state).is_ok_and(|text| text.contains(&token.to_string()))
    });
    assert_eq!(std::fs::metadata(&state).unwrap().permissions().mode() & 0o777, 0o600);
    // The record moves on meanwhile; the token stays that of the grant.
    agent.signal(Signal::KILL);
    agent.ended();
    wait_for("another second", || now() > since);
    let record = operator.record("service/s").to_string().replace("\"Limit\":1", "\"Limit\":3");
    operator.put("service/s/.lock", &record, Put::Plain, 0);
    let mut agent = Agent::start(&home);
    agent.await_ready();
    assert_eq!((agent.session(), &agent.semaphore()["fencing_token"]), (session, &token));
    let resumed = agent.semaphore()["since"].as_str().unwrap().to_owned();
    assert!(resumed <= since, "since {resumed}, and before {since}: it has been ours all along");
    assert_eq!(agent.metric("slotkeeper_acquire_duration_seconds_count{semaphore=\"s\"}"), 0.0);
    assert_eq!(operator.sessions().len(), 1);
    assert_eq!(agent.requests(Operation::SessionCreate, Code::Ok), 0.0);
    assert_eq!(agent.terminate(), Some(0));
    assert!(!state.exists(), "nothing is left to take up");
    operator.assert_nothing_left("service/s");
}

#[test]
fn a_resumed_session_keeps_its_ttl() {
    let consul = Consul::start();
    let home = home(&consul);
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let session = agent.session();
    wait_for("the state file", || {
        std::fs::read_to_string(home.path("state/session.json")).is_ok_and(|text| text.contains(&session))
    });
    agent.signal(Signal::KILL);
    agent.ended();
    home.configure(
        &consul.address(),
        &ONE.replace("ttl: 10s", "ttl: 60s, state_file: $HOME/state/session.json"),
    );
    let mut agent = Agent::start(&home);
    agent.await_ready();
    assert_eq!((agent.session(), agent.metric("slotkeeper_session_ttl_seconds")), (session, 10.0));
    assert_eq!(agent.status()["session"]["ttl_seconds"], 10.0);
    assert_eq!(agent.terminate(), Some(0));
}

#[test]
fn a_proxys_answers_do_not_end_the_session() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let proxy = Proxy::start_apart(consul.address().parse().unwrap());
    let home = Home::new();
    let session = "ttl: 60s, state_file: $HOME/state/session.json";
    home.configure(&proxy.addr().to_string(), &ONE.replace("ttl: 10s", session));
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let (session, token) = (agent.session(), agent.semaphore()["fencing_token"].to_string());
    wait_for("the token in the state file", || {
        std::fs::read_to_string(home.path("state/session.json")).is_ok_and(|text| text.contains(&token))
    });
    agent.signal(Signal::KILL);
    agent.ended();
    let page = "<html><h1>Session identifier is invalid session</h1></html>";
    let faults = [(502, page), (404, page), (200, "[]")].map(|(status, text)| Fault::Answers(status, text));
    proxy.fail_next("/v1/session/renew/", &faults);
    let mut agent = Agent::start(&home);
    agent.await_ready();
    assert_eq!((agent.session(), agent.semaphore()["fencing_token"].to_string()), (session, token));
    assert_eq!((proxy.faults_left(), operator.sessions().len()), (0, 1));
    assert!(!agent.log().contains(log_events::SESSION_ENDED), "{}", agent.log());
    // It destroys it too, whatever is answered first.
    proxy.fail_next("/v1/session/destroy/", &faults[..2]);
    assert_eq!(agent.terminate(), Some(0), "{}", agent.log());
    assert_eq!(proxy.faults_left(), 0);
    operator.assert_nothing_left("service/s");
}

#[test]
fn a_new_leader_that_does_not_know_the_session_yet_does_not_end_it() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let proxy = Proxy::start_apart(consul.address().parse().unwrap());
    let home = Home::new();
    home.configure(&proxy.addr().to_string(), &ONE.replace("ttl: 10s", "ttl: 15s"));
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let session = agent.session();
    let unknown: &'static str = format!("Session id '{session}' not found").leak();
    proxy.fail_next("/v1/session/renew/", &[Fault::Answers(404, unknown)]);
    wait_for("a renewal that fails", || proxy.faults_left() == 0);
    wait_for("the next one", || agent.log().contains(log_events::CONSUL_LEADER_RECOVERED));
    assert!(agent.log().contains("has not read all of its log yet"), "{}", agent.log());
    assert!(agent.is_ready());
    assert_eq!(agent.session(), session);
    // One that has ended indeed is known to have.
    operator.destroy(&session);
    wait_for("the end of its session", || agent.log().contains(log_events::SESSION_ENDED));
    agent.await_ready();
    assert_eq!(agent.terminate(), Some(0), "{}", agent.log());
    operator.assert_nothing_left("service/s");
}

#[test]
fn an_agent_whose_session_has_ended_creates_another() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let home = home(&consul);
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let session = agent.session();
    agent.signal(Signal::KILL);
    agent.ended();
    operator.destroy(&session);
    let mut agent = Agent::start(&home);
    agent.await_ready();
    assert_ne!(agent.session(), session);
    assert_eq!(agent.terminate(), Some(0));
    operator.assert_nothing_left("service/s");
}

#[test]
fn slots_no_longer_configured_are_released() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let home = Home::new();
    let with = |semaphores: &str| {
        let session = "session: {ttl: 10s, state_file: $HOME/session.json}";
        home.configure(&consul.address(), &format!("{session}\nsemaphores: [{semaphores}]"));
    };
    with(
        "{name: s, prefix: p/s, limit: 1}, {name: t, prefix: p/t, limit: 1}, {name: u, prefix: p/u, limit: 1}",
    );
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let session = agent.session();
    wait_for("the state file", || {
        std::fs::read_to_string(home.path("session.json")).is_ok_and(|text| !text.contains("null"))
    });
    agent.signal(Signal::KILL);
    agent.ended();
    // One is gone from the configuration, one has another prefix.
    with("{name: s, prefix: p/s, limit: 1}, {name: t, prefix: p/other, limit: 1}");
    let mut agent = Agent::start(&home);
    agent.await_ready();
    assert_eq!(agent.session(), session);
    for prefix in ["p/t", "p/u"] {
        wait_for("what is not wanted to be given back", || {
            operator.holders(prefix).is_empty() && operator.keys(prefix).len() == 1
        });
    }
    assert_eq!(operator.holders("p/s"), [session]);
    assert_eq!(agent.terminate(), Some(0));
    for prefix in ["p/s", "p/t", "p/u", "p/other"] {
        operator.assert_nothing_left(prefix);
    }
}

#[test]
fn an_invalid_state_file_means_a_new_session() {
    let consul = Consul::start();
    for rubbish in ["", "{", r#"{"session":"x y","prefixes":{}}"#] {
        let home = Home::new();
        home.configure(
            &consul.address(),
            &ONE.replace("ttl: 10s", "ttl: 10s, state_file: $HOME/session.json"),
        );
        std::fs::write(home.path("session.json"), rubbish).unwrap();
        let mut agent = Agent::start(&home);
        agent.await_ready();
        assert_eq!(agent.terminate(), Some(0));
    }
}

#[test]
fn a_failed_start_leaves_no_stale_readiness_file() {
    let consul = Consul::start();
    let starts: [(&str, &[&str], i32); 4] = [
        (ONE, &["--ca-file", "/nonexistent.pem", "--http-addr", "https://127.0.0.1:1"], 1),
        ("semaphores: [{name: s, prefix: service/s, limit: 0}]", &[], 78),
        ("semaphores: [{name: s", &[], 78),
        (ONE, &[], 1),
    ];
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = port.local_addr().unwrap().to_string();
    for (config, arguments, code) in starts {
        let home = Home::new();
        home.configure(&consul.address(), config);
        std::fs::write(home.path("ready"), "of a killed process").unwrap();
        let mut agent = Agent::spawn(&home, arguments, &[("SLOTKEEPER_HTTP_LISTEN", &taken)]);
        assert_eq!(agent.ended().code(), Some(code), "{}", agent.log());
        assert!(!home.path("ready").exists(), "{}", agent.log());
    }
}

#[test]
fn nor_does_a_start_without_its_configuration() {
    let home = Home::new();
    std::fs::write(home.path("ready"), "of a killed process").unwrap();
    let ready = home.path("ready").display().to_string();
    let mut agent = Agent::spawn(&home, &[], &[("SLOTKEEPER_READINESS_FILE", &ready)]);
    assert_eq!(agent.ended().code(), Some(78), "{}", agent.log());
    assert!(!home.path("ready").exists(), "{}", agent.log());
}

#[test]
fn two_agents_never_share_a_readiness_file() {
    let consul = Consul::start();
    let home = crate::hold::home(&consul);
    let first = Agent::start(&home);
    first.await_ready();
    // One that cannot start at all leaves it alone too.
    let broken = Home::new();
    std::fs::write(broken.path("config.yaml"), "semaphores: [").unwrap();
    let ready = first.ready_file().display().to_string();
    let mut other = Agent::spawn(&broken, &[], &[("SLOTKEEPER_READINESS_FILE", &ready)]);
    assert_eq!(other.ended().code(), Some(78));
    assert!(first.ready_file().exists());
    let mut second = Agent::spawn(&home, &[], &[]);
    assert_eq!(second.ended().code(), Some(1));
    assert!(second.log().contains("in use by another agent"), "{}", second.log());
    assert!(first.ready_file().exists());
}

#[test]
fn two_agents_never_share_a_session() {
    let consul = Consul::start();
    let home = home(&consul);
    let agent = Agent::start(&home);
    agent.await_ready();
    let mut second = Agent::spawn(&home, &[], &[]);
    assert_eq!(second.ended().code(), Some(1));
    assert!(second.log().contains("in use by another agent"), "{}", second.log());
    assert!(agent.is_ready(), "the first is not disturbed");
    assert!(agent.ready_file().exists(), "nor its files");
}

#[allow(clippy::disallowed_methods, reason = "a date, as the status shows them")]
fn now() -> String {
    humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string()
}
