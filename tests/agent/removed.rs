//! An agent whose files are removed or replaced while it runs, and another that comes upon them.

use std::fs;
use std::path::Path;

use rustix::process::Signal;
use slotkeeper::internals::log_events;

use crate::consul::Newer;
use crate::hold::ONE;
use crate::operator::Operator;
use crate::process::{Agent, Home};
use crate::support::proxy::Proxy;
use crate::wait_for;

const FILES: [&str; 4] = ["ready", "ready.lock", "state/session.json", "state/session.json.lock"];

fn home(consul: &Newer) -> Home {
    home_at(&consul.address())
}

fn home_at(address: &str) -> Home {
    let home = Home::new();
    let session = "ttl: 30s, state_file: $HOME/state/session.json";
    home.configure(address, &ONE.replace("ttl: 10s", session));
    home
}

/// One that holds, with all of its files, of which the state file knows of its slot.
fn held(home: &Home) -> Agent {
    let agent = Agent::start(home);
    agent.await_ready();
    let token = agent.semaphore()["fencing_token"].to_string();
    wait_for("the token in the state file", || {
        fs::read_to_string(home.path("state/session.json")).is_ok_and(|text| text.contains(&token))
    });
    agent
}

#[test]
fn of_two_agents_with_one_session_the_first_has_lost_it_before_the_second_is_ready() {
    let consul = Newer::start();
    let operator = Operator::at(&consul.address());
    let home = home(&consul);
    let mut first = held(&home);
    let (session, token) = (first.session(), first.semaphore()["fencing_token"].clone());
    // It stands still meanwhile: otherwise it would claim its files again.
    first.signal(Signal::STOP);
    for lock in ["ready.lock", "state/session.json.lock"] {
        fs::remove_file(home.path(lock)).unwrap();
    }
    let mut second = Agent::start(&home);
    let mark = || operator.entry("service/s", &session)["nonce"].as_str().map(str::len);
    wait_for("the second one's nonce", || mark() == Some(16));
    first.signal(Signal::CONT);
    wait_for("the second one to be ready", || {
        let (first, second) = (first.is_ready(), second.is_ready());
        assert!(!(first && second), "both are ready");
        second
    });
    assert_eq!((second.session(), &second.semaphore()["fencing_token"]), (session.clone(), &token));
    assert!(second.log().contains(log_events::STATE_FILE_CONTESTED), "{}", second.log());
    let lost = "slotkeeper_slots_lost_total{reason=\"session_taken\",semaphore=\"s\"}";
    assert_eq!(first.metric(lost), 1.0, "{}", first.log());
    assert!(first.log().contains(log_events::SESSION_TAKEN), "{}", first.log());
    first.await_state("waiting");
    assert_ne!(first.session(), session);
    assert_eq!(operator.holders("service/s"), std::slice::from_ref(&session));
    // Nor does it touch what is the second one's when it goes.
    assert_eq!(first.terminate(), Some(0), "{}", first.log());
    assert!(second.is_ready());
    wait_for("the readiness file", || second.ready_file().exists());
    assert_eq!(second.ready_file_says()["session"], session);
    assert!(fs::read_to_string(home.path("state/session.json")).unwrap().contains(&session));
    assert_eq!(second.terminate(), Some(0), "{}", second.log());
    operator.assert_nothing_left("service/s");
}

/// Another agent on the same semaphore, with a readiness file of its own.
fn beside(consul: &Newer, state_file: &Path) -> Home {
    let home = Home::new();
    let session = format!("ttl: 30s, state_file: '{}'", state_file.display());
    home.configure(&consul.address(), &ONE.replace("ttl: 10s", &session));
    home
}

#[test]
fn a_copy_of_its_state_file_takes_the_session_from_an_agent_and_not_its_files() {
    let consul = Newer::start();
    let operator = Operator::at(&consul.address());
    let proxy = Proxy::start_apart(consul.address().parse().unwrap());
    let home = home_at(&proxy.addr().to_string());
    let mut first = held(&home);
    let session = first.session();
    let (state, copies) = (home.path("state/session.json"), tempfile::tempdir().unwrap());
    let copy = copies.path().join("session.json");
    fs::copy(&state, &copy).unwrap();
    let apart = beside(&consul, &copy);
    // The first one is not soon to have another session.
    proxy.ignore_next("/v1/session/create");
    let second = Agent::start(&apart);
    let mark = || operator.entry("service/s", &session)["nonce"].clone();
    wait_for("the second one's nonce", || !mark().is_null());
    let nonce = mark();
    wait_for("the first one's readiness file to go", || !first.ready_file().exists());
    assert!(!second.is_ready(), "too late");
    // It has its state file for itself, and whoever takes that up leaves alone what is the second one's.
    wait_for("the first one's state file to go", || !state.exists());
    first.await_state("waiting");
    let own = first.session();
    wait_for("the new session in the state file", || {
        fs::read_to_string(&state).is_ok_and(|text| text.contains(&own) && !text.contains(&session))
    });
    first.signal(Signal::KILL);
    first.ended();
    let mut first = Agent::start(&home);
    first.await_state("waiting");
    assert_eq!(first.session(), own);
    assert_eq!(first.terminate(), Some(0), "{}", first.log());
    assert!(!state.exists() && copy.exists());
    assert_eq!((mark(), operator.holders("service/s")), (nonce, vec![session]));
}

#[test]
fn an_agent_whose_state_file_is_removed_keeps_its_readiness_file() {
    let consul = Newer::start();
    let operator = Operator::at(&consul.address());
    let home = home(&consul);
    let mut first = held(&home);
    let (session, state) = (first.session(), home.path("state/session.json"));
    // It stands still meanwhile: otherwise it would claim the state file again.
    first.signal(Signal::STOP);
    fs::remove_file(home.path("state/session.json.lock")).unwrap();
    let apart = beside(&consul, &state);
    let mut second = Agent::start(&apart);
    wait_for("the second one's nonce", || !operator.entry("service/s", &session)["nonce"].is_null());
    first.signal(Signal::CONT);
    wait_for("the first one's readiness file to go", || !first.ready_file().exists());
    assert!(!second.is_ready(), "too late");
    first.await_state("waiting");
    assert_eq!(first.terminate(), Some(0), "{}", first.log());
    assert!(fs::read_to_string(&state).unwrap().contains(&session), "the second one's");
    // Once that has gone the slot is its own again, and it says so.
    second.signal(Signal::KILL);
    second.ended();
    operator.destroy(&session);
    fs::remove_file(&state).unwrap();
    let mut first = Agent::start(&home);
    first.await_ready();
    assert_eq!(first.terminate(), Some(0), "{}", first.log());
}

#[test]
fn an_agent_that_ends_while_its_session_is_contested_leaves_it_and_says_why() {
    let consul = Newer::start();
    let operator = Operator::at(&consul.address());
    let home = Home::new();
    let session = "ttl: 60s, state_file: $HOME/state/session.json";
    home.configure(
        &consul.address(),
        &format!("{}\ndrain: {{timeout: 40s}}\n", ONE.replace("ttl: 10s", session)),
    );
    let mut first = held(&home);
    let session = first.session();
    first.signal(Signal::STOP);
    for lock in ["ready.lock", "state/session.json.lock"] {
        fs::remove_file(home.path(lock)).unwrap();
    }
    let mut second = Agent::start(&home);
    let mark = || operator.entry("service/s", &session)["nonce"].clone();
    wait_for("the second one's nonce", || !mark().is_null());
    let nonce = mark();
    assert_eq!(second.terminate(), Some(1), "{}", second.log());
    let log = second.log();
    assert!(log.contains(log_events::CONTESTED_SESSION_LEFT), "{log}");
    assert!(log.contains("resumed from an agent that may still run"), "{log}");
    assert!(!log.contains(log_events::DRAIN_TIMED_OUT), "it has not waited for that: {log}");
    assert_eq!(operator.holders("service/s"), std::slice::from_ref(&session));
    // Whoever comes next may take it up, and has to wait as well.
    assert!(fs::read_to_string(home.path("state/session.json")).unwrap().contains(&session));
    let mut third = Agent::start(&home);
    wait_for("the third one's nonce", || mark() != nonce);
    assert!(third.log().contains(log_events::STATE_FILE_CONTESTED), "{}", third.log());
    assert_eq!(third.terminate(), Some(1), "{}", third.log());
    first.signal(Signal::CONT);
    first.signal(Signal::KILL);
    first.ended();
}

#[test]
fn files_that_are_removed_are_written_again_and_claimed_again() {
    let consul = Newer::start();
    let home = home(&consul);
    let mut agent = held(&home);
    let contents = || FILES.map(|file| fs::read_to_string(home.path(file)).ok());
    let before = contents();
    for file in FILES {
        fs::remove_file(home.path(file)).unwrap();
    }
    wait_for("the files", || FILES.iter().all(|file| home.path(file).exists()));
    let after = contents();
    assert_eq!((&after[0], &after[1]), (&before[0], &before[1]));
    let log = agent.log();
    assert_eq!(log.matches(log_events::FILE_RESTORED).count(), 2, "{log}");
    assert_eq!(log.matches(log_events::FILE_CLAIMED_AGAIN).count(), 2, "{log}");
    let mut second = Agent::spawn(&home, &[], &[]);
    assert_eq!(second.ended().code(), Some(1), "{}", second.log());
    assert!(agent.is_ready());
    // The state file knows of the new lock file: whoever comes next has the session for itself.
    let session = agent.session();
    wait_for("another state file", || contents()[2] != before[2]);
    agent.signal(Signal::KILL);
    agent.ended();
    let mut agent = Agent::start(&home);
    agent.await_ready();
    assert_eq!(agent.session(), session);
    assert!(!agent.log().contains(log_events::STATE_FILE_CONTESTED), "{}", agent.log());
    assert_eq!(agent.terminate(), Some(0));
}

#[test]
fn a_replaced_file_is_reported_and_unchanged() {
    let consul = Newer::start();
    let home = home(&consul);
    let mut agent = held(&home);
    for file in ["ready", "state/session.json"] {
        fs::write(home.path("new"), "another's").unwrap();
        fs::rename(home.path("new"), home.path(file)).unwrap();
    }
    wait_for("both to be told", || agent.log().matches(log_events::FILE_REPLACED).count() == 2);
    assert!(agent.is_ready(), "what it holds is not in question");
    assert_eq!(agent.terminate(), Some(0), "{}", agent.log());
    for file in ["ready", "state/session.json"] {
        assert_eq!(fs::read_to_string(home.path(file)).unwrap(), "another's", "{file}");
    }
}
