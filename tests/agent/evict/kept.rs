//! For how long an agent keeps what it was told to leave, where nothing tells it that the workload has stopped.

use std::time::Instant;

use rustix::process::Signal;
use slotkeeper::internals::log_events;
use slotkeeper::internals::shutdown::REPEATED_SIGNAL;

use super::*;
use crate::control::Desk;
use crate::operator::Operator;
use crate::support::freezer::Freezer;

const LONG: &str = "session: {ttl: 10m}\n";

/// An agent on the slot, whose session lasts for long, and one behind it.
fn two(consul: &Consul, rest: &str) -> [(Home, Agent); 2] {
    [rest, ""].map(|rest| {
        let home = Home::new();
        let semaphores = format!("semaphores: [{{name: s, prefix: {PREFIX}, limit: 1}}]");
        home.configure(&consul.address(), &format!("{LONG}{semaphores}\n{rest}"));
        let agent = Agent::start(&home);
        wait_for("its turn or its place", || {
            ["held", "waiting"].map(Value::from).contains(&agent.semaphore()["state"])
        });
        (home, agent)
    })
}

/// It was asked, and keeps the slot until it is stopped itself.
fn assert_kept(consul: &Consul, agent: &mut Agent, next: &mut Agent) {
    let operator = Operator::at(&consul.address());
    let session = agent.session();
    let Said(code, _, errors) = evict(consul, &[PREFIX, &session, "--yes", "--wait", "2s"]);
    assert_eq!(code, Some(75), "{errors}");
    assert_eq!((operator.holders(PREFIX), next.is_ready()), (vec![session], false));
    assert_eq!(agent.semaphore()["state"], "leaving");
    agent.signal(Signal::TERM);
    next.await_ready();
    assert!(!agent.ready_file().exists());
    assert_eq!(agent.ended().code(), Some(0), "{}", agent.log());
    assert_eq!(next.terminate(), Some(0));
    operator.assert_nothing_left(PREFIX);
}

#[test]
fn without_a_hook_the_slot_is_kept_while_the_session_could_last() {
    let consul = Consul::start();
    let [(_home, mut agent), (_next_home, mut next)] = two(&consul, "");
    ask(&consul, PREFIX, &agent.session());
    await_leaving(&agent);
    assert_kept(&consul, &mut agent, &mut next);
}

#[test]
fn a_hook_that_fails_has_stopped_nothing() {
    let consul = Consul::start();
    for (hook, said) in
        [("/bin/false", log_events::HOOK_FAILED), ("/nonexistent/hook", "cannot run /nonexistent/hook")]
    {
        let [(_home, mut agent), (_next_home, mut next)] =
            two(&consul, &format!("hooks: {{on_lost: [{hook}]}}"));
        ask(&consul, PREFIX, &agent.session());
        await_leaving(&agent);
        wait_for("the hook to fail", || agent.log().contains(log_events::STOP_NOT_CONFIRMED));
        assert!(agent.log().contains(said), "{}", agent.log());
        assert_kept(&consul, &mut agent, &mut next);
    }
}

#[test]
fn an_eviction_seen_after_the_lease_expired_stops_the_workload_first_too() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let relay = Freezer::start_apart(consul.address().parse().unwrap());
    let home = Home::new();
    let semaphores = format!("session: {{ttl: 10s}}\nsemaphores: [{{name: s, prefix: {PREFIX}, limit: 1}}]");
    home.configure(&relay.addr().to_string(), &format!("{semaphores}\n{}", agent::HOOK));
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let (_next_home, mut next) = start(&consul, "", "");
    next.await_state("waiting");
    let session = agent.session();
    relay.block(true);
    ask(&consul, PREFIX, &session);
    agent::await_told(&home, "lost lease_expired\n");
    relay.block(false);
    let withheld = |reason: &Value| {
        reason.as_str().is_some_and(|reason| reason.contains("the slot is released when the workload"))
    };
    wait_for("the mark to be seen", || withheld(&agent.semaphore()["reason"]));
    assert_eq!((operator.holders(PREFIX), next.is_ready()), (vec![session], false));
    std::fs::write(home.path("stopped"), "").unwrap();
    next.await_ready();
    assert_eq!(next.terminate(), Some(0));
    agent.await_ready();
    assert_eq!(agent.terminate(), Some(0));
    operator.assert_nothing_left(PREFIX);
}

#[test]
#[allow(clippy::disallowed_methods, reason = "a test has no lease")]
fn with_after_workload_and_on_lost_exit_a_second_sigterm_releases_the_slot() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let config = format!(
        "{LONG}semaphores: [{{name: s, prefix: {PREFIX}, limit: 1, on_lost: exit}}]\n\
         drain: {{release: after_workload, timeout: 10m}}\n\
         control: {{listen: '127.0.0.1:0', token_file: '$HOME/control.token'}}\n"
    );
    let mut desk = Desk::open_with(&consul.address(), &config);
    let session = desk.agent.session();
    ask(&consul, PREFIX, &session);
    await_leaving(&desk.agent);
    desk.agent.signal(Signal::TERM);
    wait_for("it to hold on", || desk.agent.log().contains(log_events::HOLDING_UNTIL_DONE));
    assert_eq!(operator.holders(PREFIX), [session]);
    // The first one's echo does not count.
    let told = Instant::now();
    wait_for("the echo to be over", || told.elapsed() > REPEATED_SIGNAL * 2);
    desk.agent.signal(Signal::TERM);
    assert_eq!(desk.agent.ended().code(), Some(80), "{}", desk.agent.log());
    operator.assert_nothing_left(PREFIX);
}
