//! Stopping while a workload still works: `drain.release: after_workload` and `POST /v1/drain`.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use rustix::process::Signal;
use slotkeeper::internals::log_events;
use slotkeeper::internals::shutdown::REPEATED_SIGNAL;

use crate::consul::Newer;
use crate::operator::Operator;
use crate::process::{Agent, Home};
use crate::wait_for;

const PATIENT: &str = "semaphores: [{name: s, prefix: service/s, limit: 1}]\n\
                       control: {listen: 'unix:$HOME/run/control.sock'}\n";

fn patient(consul: &Newer, timeout: &str) -> Home {
    let home = Home::new();
    home.configure(
        &consul.address(),
        &format!("{PATIENT}drain: {{timeout: {timeout}, release: after_workload}}"),
    );
    home
}

/// Asks at the control socket; the whole answer.
pub(crate) fn ask(socket: &Path, request: &str) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    write!(
        stream,
        "{request} HTTP/1.1\r\nhost: slotkeeper\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn holds_on(agent: &Agent) {
    wait_for("the agent to hold on", || agent.log().contains(log_events::HOLDING_UNTIL_DONE));
    assert!(agent.is_ready() && agent.ready_file().exists(), "the slot is held, so it is ready");
}

#[test]
fn the_slot_is_held_until_the_workloads_drain_request() {
    let consul = Newer::start();
    let operator = Operator::at(&consul.address());
    let home = patient(&consul, "10m");
    let mut agent = Agent::start(&home);
    agent.await_ready();
    agent.signal(Signal::TERM);
    holds_on(&agent);
    assert_eq!(operator.holders("service/s"), [agent.session()]);
    let socket = home.path("run/control.sock");
    assert_eq!(socket.metadata().unwrap().permissions().mode() & 0o777, 0o660);
    let answer = ask(&socket, "POST /v1/drain");
    assert!(answer.starts_with("HTTP/1.1 202") && answer.ends_with("{\"state\":\"draining\"}\n"), "{answer}");
    assert_eq!(agent.ended().code(), Some(0), "{}", agent.log());
    operator.assert_nothing_left("service/s");
    assert!(!socket.exists());
}

#[test]
fn without_a_signal_the_workload_ends_the_agent_too() {
    let consul = Newer::start();
    let home = patient(&consul, "10m");
    let mut agent = Agent::start(&home);
    agent.await_ready();
    ask(&home.path("run/control.sock"), "POST /v1/drain");
    assert_eq!(agent.ended().code(), Some(0), "{}", agent.log());
    Operator::at(&consul.address()).assert_nothing_left("service/s");
}

#[test]
#[allow(clippy::disallowed_methods, reason = "a test has no lease")]
fn a_second_signal_ends_the_wait() {
    let consul = Newer::start();
    let home = patient(&consul, "10m");
    let mut agent = Agent::start(&home);
    agent.await_ready();
    agent.signal(Signal::TERM);
    holds_on(&agent);
    // The first one's echo does not count, and a third one would end it at once.
    let told = Instant::now();
    wait_for("the echo to be over", || told.elapsed() > REPEATED_SIGNAL * 2);
    agent.signal(Signal::TERM);
    assert_eq!(agent.ended().code(), Some(0), "{}", agent.log());
    assert!(agent.log().contains(log_events::STOP_REPEATED), "{}", agent.log());
    Operator::at(&consul.address()).assert_nothing_left("service/s");
}

#[test]
fn the_wait_for_the_workload_leaves_time_for_the_release() {
    let consul = Newer::start();
    let home = patient(&consul, "20s");
    let mut agent = Agent::start(&home);
    agent.await_ready();
    assert_eq!(agent.terminate(), Some(0), "{}", agent.log());
    assert!(agent.log().contains(log_events::WORKLOAD_NOT_DONE), "{}", agent.log());
    Operator::at(&consul.address()).assert_nothing_left("service/s");
}

/// Nothing says when the workload is done.
#[test]
#[allow(clippy::disallowed_methods, reason = "a test has no lease")]
fn a_hold_keeps_the_slot_and_a_second_signal_releases_nothing() {
    let consul = Newer::start();
    let operator = Operator::at(&consul.address());
    let holding = |hold: &str| {
        let home = Home::new();
        home.configure(&consul.address(), &format!("{PATIENT}drain: {{hold: {hold}}}"));
        let agent = Agent::start(&home);
        agent.await_ready();
        (home, agent)
    };
    let (_home, mut agent) = holding("2s");
    let told = Instant::now();
    agent.signal(Signal::TERM);
    wait_for("it to hold on", || agent.log().contains(&format!("{} hold=2s", log_events::HOLDING_FOR_TIME)));
    assert!(agent.is_ready() && agent.ready_file().exists(), "the slot is held, so it is ready");
    assert_eq!(agent.ended().code(), Some(0), "{}", agent.log());
    assert!(told.elapsed().as_secs() >= 2);
    operator.assert_nothing_left("service/s");

    let (home, mut agent) = holding("10m");
    agent.signal(Signal::TERM);
    wait_for("it to hold on", || {
        agent.log().contains(&format!("{} hold=600s", log_events::HOLDING_FOR_TIME))
    });
    ask(&home.path("run/control.sock"), "POST /v1/drain");
    assert_eq!(agent.ended().code(), Some(0), "the workload has said that it is done: {}", agent.log());
    operator.assert_nothing_left("service/s");

    let (_home, mut agent) = holding("10m");
    let session = agent.session();
    agent.signal(Signal::TERM);
    wait_for("it to hold on", || {
        agent.log().contains(&format!("{} hold=600s", log_events::HOLDING_FOR_TIME))
    });
    let told = Instant::now();
    wait_for("the echo to be over", || told.elapsed() > REPEATED_SIGNAL * 2);
    agent.signal(Signal::TERM);
    assert_eq!(agent.ended().code(), Some(1), "{}", agent.log());
    assert_eq!(operator.holders("service/s"), [session]);
}

#[test]
fn an_agent_that_holds_nothing_waits_for_nothing() {
    let consul = Newer::start();
    let operator = Operator::at(&consul.address());
    let first = patient(&consul, "10m");
    let first = Agent::start(&first);
    first.await_ready();
    let home = patient(&consul, "10m");
    let mut second = Agent::start(&home);
    second.await_state("waiting");
    assert_eq!(second.terminate(), Some(0));
    assert_eq!(operator.holders("service/s"), [first.session()]);
}

#[test]
fn the_socket_of_a_killed_agent_is_replaced_and_nothing_else_is() {
    let consul = Newer::start();
    let home = patient(&consul, "1s");
    let socket = home.path("run/control.sock");
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let mut other = Agent::spawn(&home, &[], &[]);
    assert_eq!(other.ended().code(), Some(1), "the readiness file is claimed, and so is the socket");
    agent.signal(Signal::KILL);
    agent.ended();
    assert!(socket.exists());
    let mut agent = Agent::start(&home);
    // Until then the socket there is the dead one's.
    wait_for("the socket to be taken over", || agent.log().contains(log_events::CONTROL_ENDPOINTS_SERVED));
    let answer = ask(&socket, "GET /v1/drain");
    assert!(answer.starts_with("HTTP/1.1 405") && answer.contains("allow: POST"), "{answer}");
    assert!(ask(&socket, "POST /v1/drains").starts_with("HTTP/1.1 404"));
    agent.signal(Signal::KILL);
    agent.ended();
    std::fs::remove_file(&socket).unwrap();
    std::fs::write(&socket, "precious").unwrap();
    let mut agent = Agent::spawn(&home, &[], &[]);
    assert_eq!(agent.ended().code(), Some(78));
    assert!(agent.log().contains("is not a socket"), "{}", agent.log());
    assert_eq!(std::fs::read_to_string(&socket).unwrap(), "precious");
}
