//! Consul away, restarted, or silent.

use rustix::process::Signal;
use slotkeeper::internals::log_events;

use crate::consul::Consul;
use crate::hold::{ONE, home};
use crate::operator::Operator;
use crate::process::{Agent, Home};
use crate::support::freezer::Freezer;
use crate::wait_for;

const EXPIRED: &str = "slotkeeper_slots_lost_total{reason=\"lease_expired\",semaphore=\"s\"}";

#[test]
fn a_short_outage_costs_nothing() {
    let mut consul = Consul::start_persistent();
    let operator = Operator::at(&consul.address());
    let home = Home::new();
    home.configure(&consul.address(), &ONE.replace("10s", "40s"));
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let (session, token) = (agent.session(), agent.semaphore()["fencing_token"].clone());
    consul.stop();
    wait_for("the agent to notice", || agent.semaphore()["reason"].is_string());
    assert!(agent.is_ready(), "the lease allows to keep the slot");
    consul.restart();
    wait_for("the agent to be in order again", || agent.semaphore()["reason"].is_null());
    let renewals = "slotkeeper_session_renew_duration_seconds_count";
    let before = agent.metric(renewals);
    wait_for("a renewal", || agent.metric(renewals) > before);
    assert!(agent.is_ready());
    assert_eq!((agent.session(), &agent.semaphore()["fencing_token"]), (session, &token));
    assert_eq!(agent.terminate(), Some(0));
    operator.assert_nothing_left("service/s");
}

#[test]
fn an_outage_longer_than_the_lease_is_a_loss_and_passes_by_itself() {
    let mut consul = Consul::start_persistent();
    let operator = Operator::at(&consul.address());
    let home = home(&consul);
    let mut agent = Agent::start(&home);
    agent.await_ready();
    consul.stop();
    wait_for("the lease to end", || agent.metric(EXPIRED) == 1.0);
    assert!(!agent.is_ready());
    wait_for("the file to go", || !agent.ready_file().exists());
    assert_eq!(agent.get("/livez").status, 200, "liveness never depends on Consul");
    consul.restart();
    agent.await_ready();
    assert_eq!(agent.terminate(), Some(0));
    operator.assert_nothing_left("service/s");
}

#[test]
fn a_silent_consul_ends_the_lease_in_time_and_delays_no_drain() {
    let consul = Consul::start();
    let home = Home::new();
    home.configure(&consul.address(), &format!("{ONE}\ndrain: {{timeout: 3s}}"));
    let mut agent = Agent::start(&home);
    agent.await_ready();
    // Accepts connections and never answers, as a black hole does.
    consul.signal(Signal::STOP);
    wait_for("the lease to end", || agent.metric(EXPIRED) == 1.0);
    assert!(!agent.is_ready());
    assert_eq!(agent.terminate(), Some(1), "not everything could be given back");
    assert!(agent.log().contains(log_events::DRAIN_TIMED_OUT), "{}", agent.log());
    consul.signal(Signal::CONT);
}

#[test]
fn dead_connections_do_not_delay_a_drain() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let freezer = Freezer::start_apart(consul.address().parse().unwrap());
    let home = Home::new();
    let semaphores = "semaphores: [{name: a, prefix: p/a, limit: 1}, {name: b, prefix: p/b, limit: 1}]";
    // As long as a request has while nothing hurries: a drain that waited for one could not end cleanly.
    home.configure(&freezer.addr().to_string(), &format!("{semaphores}\ndrain: {{timeout: 10s}}"));
    let mut agent = Agent::start(&home);
    agent.await_ready();
    freezer.freeze();
    assert_eq!(agent.terminate(), Some(0), "{}", agent.log());
    for prefix in ["p/a", "p/b"] {
        operator.assert_nothing_left(prefix);
    }
}

#[test]
fn a_second_signal_ends_at_once() {
    let consul = Consul::start();
    let home = Home::new();
    home.configure(&consul.address(), &format!("{ONE}\ndrain: {{timeout: 10m}}"));
    let mut agent = Agent::start(&home);
    agent.await_ready();
    consul.signal(Signal::STOP);
    agent.signal(Signal::TERM);
    wait_for("the drain to begin", || agent.status()["agent"]["state"] == "draining");
    wait_for("the file to go", || !agent.ready_file().exists());
    // The first one's echo does not count; one of these is later.
    wait_for("the end", || {
        agent.signal_if_there(Signal::TERM);
        agent.has_ended()
    });
    assert_eq!(agent.ended().code(), Some(1));
    consul.signal(Signal::CONT);
}

#[test]
fn a_second_signal_ends_a_drain_that_waits_for_a_hook() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let home = Home::new();
    let hooks = "hooks: {on_acquired: [/bin/sh, -c, 'touch $HOME/began; exec sleep 600']}";
    // With 80 a hook may be what stops the workload, and has the whole of the drain's time.
    let config = ONE.replace("limit: 1", "limit: 1, on_lost: exit");
    home.configure(&consul.address(), &format!("{config}\n{hooks}\ndrain: {{timeout: 10m}}"));
    let mut agent = Agent::start(&home);
    agent.await_ready();
    wait_for("the hook", || home.path("began").exists());
    operator.destroy(&agent.session());
    wait_for("the drain", || agent.log().contains(log_events::DRAINED));
    agent.signal(Signal::TERM);
    assert_eq!(agent.ended().code(), Some(80), "{}", agent.log());
}

#[test]
fn a_restarted_development_server_means_a_new_session() {
    let mut consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let home = home(&consul);
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let before = agent.session();
    consul.stop();
    consul.restart();
    wait_for("a new session", || !agent.session().is_empty() && agent.session() != before);
    agent.await_ready();
    assert_eq!(operator.holders("service/s"), [agent.session()]);
    assert_eq!(agent.terminate(), Some(0));
}

#[test]
fn the_strict_rule_treats_a_failing_watch_as_a_loss() {
    let mut consul = Consul::start_persistent();
    let home = Home::new();
    home.configure(&consul.address(), &ONE.replace("ttl: 10s", "ttl: 60s, watch_grace: 0s"));
    let mut agent = Agent::start(&home);
    agent.await_ready();
    consul.stop();
    let lost = "slotkeeper_slots_lost_total{reason=\"watch_failed\",semaphore=\"s\"}";
    wait_for("the loss", || agent.metric(lost) == 1.0);
    consul.restart();
    agent.await_ready();
    assert_eq!(agent.terminate(), Some(0));
}
