//! The agent beside a workload: it gives on what it was told to leave once the workload has stopped, as far as it can know.

use rustix::process::Signal;
use slotkeeper::internals::log_events;

use super::{PREFIX, Said, ask, await_leaving, evict, evicted, lost, start};
use crate::consul::Consul;
use crate::control::Desk;
use crate::operator::Operator;
use crate::process::{Agent, Home};
use crate::wait_for;

/// Ends when there is a file `stopped` at home.
pub(super) const HOOK: &str = "hooks: {on_lost: [/bin/sh, -c, 'echo $SLOTKEEPER_EVENT $SLOTKEEPER_REASON > $HOME/told; \
                    until [ -e $HOME/stopped ]; do sleep 0.05; done']}";

/// Waits until the hook has written down what it was told.
pub(super) fn await_told(home: &Home, what: &str) {
    wait_for(&format!("the hook to be told {what:?}"), || {
        std::fs::read_to_string(home.path("told")).is_ok_and(|told| told == what)
    });
}

fn stop(home: &Home) {
    std::fs::write(home.path("stopped"), "").unwrap();
}

#[test]
fn the_slot_is_handed_off_when_the_hook_has_stopped_the_workload() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let (home, mut agent) = start(&consul, "", HOOK);
    agent.await_ready();
    let (_next_home, mut next) = start(&consul, "", "");
    next.await_state("waiting");
    let session = agent.session();
    let Said(code, said, errors) = evict(&consul, &[PREFIX, &session, "--yes", "--wait", "1s"]);
    assert_eq!((code, said.as_str()), (Some(75), ""));
    assert!(
        errors.contains("is being evicted and still holds after 1s") && errors.contains("--force"),
        "{errors}"
    );
    await_leaving(&agent);
    await_told(&home, "lost evicted\n");
    assert_eq!((operator.holders(PREFIX), next.is_ready()), (vec![session.clone()], false));
    // Asked again it is not asked anew.
    let marked = operator.contender(PREFIX, &session).unwrap();
    ask(&consul, PREFIX, &session);
    assert_eq!(operator.contender(PREFIX, &session).unwrap(), marked);

    stop(&home);
    next.await_ready();
    agent.await_state("waiting");
    wait_for("its place", || agent.semaphore()["position"] == 1);
    assert_eq!((lost(&agent), agent.session()), (1.0, session), "it goes on with its session");
    assert_eq!(next.terminate(), Some(0));
    agent.await_ready();
    assert_eq!(agent.terminate(), Some(0));
    operator.assert_nothing_left(PREFIX);
}

#[test]
fn a_workload_whose_end_is_unknown_has_the_rest_of_the_lease() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let (_home, mut agent) = start(&consul, "", "");
    agent.await_ready();
    let session = agent.session();
    let told = evicted(&consul, &[PREFIX, &session]);
    assert_eq!(told["evicted"], true);
    // Nobody else wants it, so that it goes to the end of an empty line.
    agent.await_ready();
    assert_eq!(lost(&agent), 1.0);
    assert!(agent.log().contains(log_events::STOP_TIME_ENDED), "{}", agent.log());
    assert_eq!(operator.holders(PREFIX), [session]);
    assert_eq!(agent.terminate(), Some(0));
    operator.assert_nothing_left(PREFIX);
}

#[test]
fn sigterm_means_that_the_workload_was_stopped() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let (_home, mut agent) = start(&consul, "", HOOK);
    agent.await_ready();
    let (_next_home, mut next) = start(&consul, "", "");
    next.await_state("waiting");
    ask(&consul, PREFIX, &agent.session());
    await_leaving(&agent);
    assert_eq!(operator.holders(PREFIX), [agent.session()]);
    agent.signal(Signal::TERM);
    next.await_ready();
    assert_eq!(agent.ended().code(), Some(0), "{}", agent.log());
    assert_eq!(next.terminate(), Some(0));
    operator.assert_nothing_left(PREFIX);
}

#[test]
fn with_on_lost_exit_the_agent_ends_with_80_when_the_workload_has_stopped() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let (home, mut agent) = start(&consul, ", on_lost: exit", HOOK);
    agent.await_ready();
    let session = agent.session();
    ask(&consul, PREFIX, &session);
    await_leaving(&agent);
    wait_for("the hook", || home.path("told").exists());
    assert_eq!(operator.holders(PREFIX), [session]);
    assert!(!agent.has_ended());
    stop(&home);
    assert_eq!(agent.ended().code(), Some(80), "{}", agent.log());
    operator.assert_nothing_left(PREFIX);
}

#[test]
fn with_after_workload_the_release_waits_for_the_workloads_request() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let config = format!(
        "session: {{ttl: 10s}}\nsemaphores: [{{name: s, prefix: {PREFIX}, limit: 1}}]\n\
         drain: {{release: after_workload, timeout: 10m}}\n\
         control: {{listen: '127.0.0.1:0', token_file: '$HOME/control.token'}}\n"
    );
    let mut desk = Desk::open_with(&consul.address(), &config);
    let session = desk.agent.session();
    ask(&consul, PREFIX, &session);
    await_leaving(&desk.agent);
    // A SIGTERM does not say so.
    desk.agent.signal(Signal::TERM);
    wait_for("it to hold on", || desk.agent.log().contains(log_events::HOLDING_UNTIL_DONE));
    assert_eq!(operator.holders(PREFIX), [session]);
    assert_eq!(desk.ask("POST /v1/drain", "").status, 202);
    assert_eq!(desk.agent.ended().code(), Some(0), "{}", desk.agent.log());
    operator.assert_nothing_left(PREFIX);
}

#[test]
fn an_evicted_waiter_goes_to_the_end_of_the_queue_or_ends_with_75() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let (_home, mut holder) = start(&consul, "", "");
    holder.await_ready();
    let place = |agent: &Agent, place| wait_for("its place", || agent.semaphore()["position"] == place);
    let (_home_a, mut a) = start(&consul, "", "");
    place(&a, 1);
    let (_home_b, mut b) = start(&consul, "", "");
    place(&b, 2);
    let (_home_c, mut c) = start(&consul, ", on_lost: exit", "");
    place(&c, 3);
    evicted(&consul, &[PREFIX, &a.session()]);
    place(&b, 1);
    place(&a, 3);
    assert_eq!(lost(&a), 0.0);
    evicted(&consul, &[PREFIX, &c.session()]);
    assert_eq!(c.ended().code(), Some(75), "{}", c.log());
    assert_eq!(holder.terminate(), Some(0));
    b.await_ready();
    assert_eq!(b.terminate(), Some(0));
    a.await_ready();
    assert_eq!(a.terminate(), Some(0));
    operator.assert_nothing_left(PREFIX);
}

#[test]
fn a_restarted_agent_follows_an_eviction_that_it_finds() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let (home, mut agent) = start(&consul, "", "");
    let config = std::fs::read_to_string(home.path("config.yaml")).unwrap();
    assert_eq!(agent.terminate(), Some(0));
    let state = format!("ttl: 10s, state_file: '{}'", home.path("state.json").display());
    let hook = HOOK.replace("$HOME", &home.path("").display().to_string());
    std::fs::write(home.path("config.yaml"), format!("{}{hook}", config.replace("ttl: 10s", &state)))
        .unwrap();
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let session = agent.session();
    // Its first version knows of no slot.
    let token = agent.semaphore()["fencing_token"].to_string();
    wait_for("the token in the state file", || {
        std::fs::read_to_string(home.path("state.json")).is_ok_and(|text| text.contains(&token))
    });
    agent.signal(Signal::KILL);
    agent.ended();
    ask(&consul, PREFIX, &session);
    let mut agent = Agent::start(&home);
    await_leaving(&agent);
    assert_eq!((agent.session(), operator.holders(PREFIX)), (session.clone(), vec![session]));
    wait_for("the hook", || home.path("told").exists());
    // And one that is killed once more still knows.
    agent.signal(Signal::KILL);
    agent.ended();
    let mut agent = Agent::start(&home);
    await_leaving(&agent);
    stop(&home);
    agent.await_ready();
    assert_eq!(agent.terminate(), Some(0));
    operator.assert_nothing_left(PREFIX);
}

#[test]
fn evicting_one_member_of_an_acquire_group_releases_all() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let home = Home::new();
    let both = "semaphores: [{name: a, prefix: p/a, limit: 1}, {name: b, prefix: p/b, limit: 1}]";
    home.configure(&consul.address(), &format!("acquire: together\nsession: {{ttl: 10s}}\n{both}\n{HOOK}"));
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let next_home = Home::new();
    next_home
        .configure(&consul.address(), "session: {ttl: 10s}\nsemaphores: [{name: b, prefix: p/b, limit: 1}]");
    let mut next = Agent::start(&next_home);
    next.await_state("waiting");
    let session = agent.session();
    ask(&consul, "p/a", &session);
    agent.await_state("leaving");
    wait_for("the hook", || home.path("told").exists());
    let both = [operator.holders("p/a"), operator.holders("p/b")];
    assert_eq!((both, agent.is_ready()), ([vec![session.clone()], vec![session]], false));
    stop(&home);
    next.await_ready();
    agent.await_state("waiting");
    assert_eq!(next.terminate(), Some(0));
    agent.await_ready();
    assert_eq!(agent.terminate(), Some(0));
    operator.assert_nobody_left("p/a");
    operator.assert_nothing_left("p/b");
}
