//! An agent that is killed and started again.

use std::os::unix::fs::PermissionsExt;

use rustix::process::Signal;

use crate::consul::Consul;
use crate::hold::ONE;
use crate::operator::Operator;
use crate::process::{Agent, Home};
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
fn it_takes_its_live_session_up_again_with_slot_and_token() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let home = home(&consul);
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let (session, token) = (agent.session(), agent.semaphore()["fencing_token"].clone());
    let state = home.path("state/session.json");
    wait_for("the token in the state file", || {
        std::fs::read_to_string(&state).is_ok_and(|text| text.contains(&token.to_string()))
    });
    assert_eq!(std::fs::metadata(&state).unwrap().permissions().mode() & 0o777, 0o600);
    // The record moves on meanwhile; the token stays that of the grant.
    agent.signal(Signal::KILL);
    agent.ended();
    let record = operator.record("service/s").to_string().replace("\"Limit\":1", "\"Limit\":3");
    operator.put("service/s/.lock", &record, slotkeeper::consul::Put::Plain, 0);
    let mut agent = Agent::start(&home);
    agent.await_ready();
    assert_eq!((agent.session(), &agent.semaphore()["fencing_token"]), (session, &token));
    assert_eq!(operator.sessions().len(), 1);
    assert_eq!(
        agent.metric("slotkeeper_consul_requests_total{code=\"200\",operation=\"session_create\"}"),
        0.0
    );
    assert_eq!(agent.terminate(), Some(0));
    assert!(!state.exists(), "nothing is left to take up");
    operator.assert_nothing_left("service/s");
}

#[test]
fn one_whose_session_has_ended_starts_anew() {
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
