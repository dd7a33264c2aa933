//! An agent that stops takes no lease from its client.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use slotkeeper::internals::control::request::{Kind, Refusal, Released, Request};
use slotkeeper::internals::exit::Exit;
use slotkeeper::internals::log_events;

use super::lender::Lender;
use super::{pause, sessions};
use crate::consul::Consul;
use crate::control::Desk;
use crate::operator::Operator;
use crate::wait_for;

const CONFIG: &str = "session: {ttl: 10s, lock_delay: 0s}\n\
                      semaphores: [{name: s, prefix: p/s, limit: 2, mode: on_demand}, {name: own, prefix: p/own, limit: 1}]\n\
                      control: {listen: '127.0.0.1:0', token_file: '$HOME/control.token'}\n";

/// The session of a lease.
fn session(lease: &Value) -> String {
    lease["session"].as_str().unwrap().to_owned()
}

#[test]
fn a_lease_stays_its_clients_until_it_is_released_while_the_agents_own_slot_goes() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let mut desk = Desk::open_with(&consul.address(), CONFIG);
    let [kept, released] = [0, 1].map(|_| desk.lease("semaphores/s"));
    let renewed = desk.renewed(&kept);
    assert_eq!((&renewed["draining"], &renewed["draining_ends_in_seconds"]), (&false.into(), &Value::Null));
    desk.agent.signal(Signal::TERM);
    wait_for("the agent's own slot to be released", || operator.holders("p/own").is_empty());
    assert_eq!(Desk::code(&desk.acquire("semaphores/s", "0s")), (503, "draining".into()));
    assert_eq!(operator.holders("p/s"), [session(&kept), session(&released)]);
    let renewed = desk.renewed(&kept);
    let ends = renewed["draining_ends_in_seconds"].as_f64().unwrap();
    assert!(renewed["draining"] == true && (10.0..=25.0).contains(&ends), "{renewed}");
    assert!(renewed["expires_in_seconds"].as_f64().unwrap() > 5.0, "{renewed}");
    assert_eq!(desk.of("DELETE", &released, "").status, 204);
    assert_eq!(operator.holders("p/s"), [session(&kept)], "given back at once");
    // Longer than the lease would last if its session were not renewed any more.
    for _ in 0..11 {
        pause(Duration::from_secs(1));
        desk.renewed(&kept);
    }
    assert_eq!(operator.holders("p/s"), [session(&kept)]);
    assert_eq!(desk.of("DELETE", &kept, "").status, 204);
    assert_eq!(desk.agent.ended().code(), Some(0), "{}", desk.agent.log());
    operator.assert_nothing_left("p/s");
    operator.assert_nothing_left("p/own");
}

#[test]
fn what_is_not_released_in_time_stays_in_consul_until_its_session_ends() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let mut desk = Desk::open_with(&consul.address(), &format!("{CONFIG}drain: {{timeout: 4s}}\n"));
    let lease = desk.lease("semaphores/s");
    desk.agent.signal(Signal::TERM);
    wait_for("the end to be told", || desk.renewed(&lease)["draining"] == true);
    assert_eq!(desk.agent.ended().code(), Some(1), "{}", desk.agent.log());
    let log = desk.agent.log();
    assert!(log.contains(log_events::LEASES_LEFT) && log.contains("1 at the end of the drain"), "{log}");
    assert!(!log.contains(log_events::DRAIN_TIMED_OUT), "{log}");
    assert_eq!(operator.holders("p/s"), [session(&lease)]);
    assert_eq!(sessions(&operator), [session(&lease)], "the agent's own session is gone");
    assert!(
        operator.keys("p/s").iter().any(|key| key.key.ends_with(&session(&lease))),
        "the contender key stays"
    );
    wait_for("the session to end", || sessions(&operator).is_empty());
}

#[test]
fn a_lease_that_expires_meanwhile_is_released_at_once_and_ends_the_agent() {
    let consul = Consul::start();
    let agent = Lender::start(
        &consul,
        "session: {ttl: 10s}\nsemaphores: [{name: s, prefix: service/s, limit: 1, mode: on_demand}]\n\
         drain: {timeout: 60s}",
    );
    agent.acquire(60).unwrap();
    assert_eq!(agent.stop(), Exit::Done);
    Operator::at(&consul.address()).assert_nothing_left("service/s");
}

#[test]
fn a_second_signal_ends_the_agent_at_once_and_leaves_the_lease() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let mut desk = Desk::open_with(&consul.address(), CONFIG);
    let lease = desk.lease("semaphores/s");
    desk.agent.signal(Signal::TERM);
    wait_for("the end to be told", || desk.renewed(&lease)["draining"] == true);
    pause(Duration::from_millis(400));
    desk.agent.signal(Signal::TERM);
    assert_eq!(desk.agent.ended().code(), Some(1), "{}", desk.agent.log());
    assert_eq!(operator.holders("p/s"), [session(&lease)]);
}

#[test]
fn the_workloads_own_drain_request_takes_no_lease_either() {
    let consul = Consul::start();
    let agent = Lender::of(&consul, 1);
    let lease = agent.acquire(60).unwrap();
    agent.ask(Request::Drain);
    let waiting = agent.asks_for(Kind::Semaphore, "s", Duration::ZERO);
    assert_eq!(waiting.answer(), Err(Refusal::Draining));
    let ends = agent.renew(&lease.lease).unwrap().draining.and_then(|draining| draining.ends_in);
    let ends = ends.expect("when the agent ends");
    assert!(ends <= Duration::from_secs(25) && ends > Duration::from_secs(15), "{ends:?}");
    assert_eq!(agent.release(&lease.lease), Ok(Released::Done));
    assert_eq!(agent.ended(), Exit::Done);
    Operator::at(&consul.address()).assert_nothing_left("service/s");
}
