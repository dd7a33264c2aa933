//! An agent whose files are removed, replaced, copied or cut, and another that comes upon them.

use std::fs;
use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;
use slotkeeper::internals::log_events;

use crate::consul::Consul;
use crate::hold::ONE;
use crate::operator::Operator;
use crate::process::{Agent, Home};
use crate::wait_for;

const FILES: [&str; 3] = ["ready", "ready.lock", "state/session.json"];

/// A home whose state file lies at this path.
fn home_with(consul: &Consul, state: &str) -> Home {
    let home = Home::new();
    home.configure(&consul.address(), &ONE.replace("ttl: 10s", &format!("ttl: 10s, state_file: '{state}'")));
    home
}

fn home(consul: &Consul) -> Home {
    home_with(consul, "$HOME/state/session.json")
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

fn kill(agent: &mut Agent) {
    agent.signal(Signal::KILL);
    agent.ended();
}

/// One that does not resume the session that the state file names, and says why.
fn assert_begins_anew(home: &Home, state: &Path, session: &str, why: &str) {
    let mut agent = Agent::start(home);
    // The slot is that of the other session, so that this one waits.
    agent.await_state("waiting");
    let log = agent.log();
    assert!(log.contains(log_events::STATE_FILE_IGNORED) && log.contains(why), "{log}");
    let own = agent.session();
    assert_ne!(own, session);
    wait_for("the new session in the state file", || {
        fs::read_to_string(state).is_ok_and(|text| text.contains(&own) && !text.contains(session))
    });
    assert_eq!(agent.terminate(), Some(0), "{}", agent.log());
}

#[test]
fn a_copy_of_a_state_file_is_not_resumed_beside_its_agent_nor_after_it() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let home = home(&consul);
    let mut first = held(&home);
    let (session, copies) = (first.session(), tempfile::tempdir().unwrap());
    let copy = copies.path().join("session.json");
    fs::copy(home.path("state/session.json"), &copy).unwrap();
    let apart = home_with(&consul, copy.to_str().unwrap());
    assert_begins_anew(&apart, &copy, &session, "it is a copy");
    assert!(first.is_ready() && first.ready_file().exists());
    assert_eq!(operator.holders("service/s"), std::slice::from_ref(&session));
    fs::copy(home.path("state/session.json"), &copy).unwrap();
    kill(&mut first);
    assert_begins_anew(&apart, &copy, &session, "it is a copy");
    // The file itself still resumes it.
    let mut first = held(&home);
    assert_eq!(first.session(), session);
    assert_eq!(first.terminate(), Some(0), "{}", first.log());
    operator.assert_nothing_left("service/s");
}

#[test]
fn a_state_file_of_another_machine_or_another_boot_is_not_resumed() {
    let consul = Consul::start();
    let home = home(&consul);
    let mut agent = held(&home);
    let (session, state) = (agent.session(), home.path("state/session.json"));
    kill(&mut agent);
    let mut saved: Value = serde_json::from_str(&fs::read_to_string(&state).unwrap()).unwrap();
    saved["file"]["boot"] = "5b007000-0000-4000-8000-000000000000".into();
    // In place: it is the same file.
    fs::write(&state, saved.to_string()).unwrap();
    assert_begins_anew(&home, &state, &session, "the machine has been restarted since");
}

#[test]
fn a_state_file_that_was_cut_is_not_resumed() {
    let consul = Consul::start();
    let home = home(&consul);
    let mut agent = held(&home);
    let (session, state) = (agent.session(), home.path("state/session.json"));
    kill(&mut agent);
    let text = fs::read_to_string(&state).unwrap();
    fs::write(&state, &text[..text.len() - 1]).unwrap();
    assert_begins_anew(&home, &state, &session, "its content is damaged");
}

#[test]
fn a_state_file_that_was_removed_has_nothing_to_resume() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let home = home(&consul);
    let mut agent = held(&home);
    let session = agent.session();
    kill(&mut agent);
    fs::remove_file(home.path("state/session.json")).unwrap();
    let mut agent = Agent::start(&home);
    agent.await_state("waiting");
    assert_ne!(agent.session(), session);
    assert!(!agent.log().contains(log_events::STATE_FILE_IGNORED), "{}", agent.log());
    // Its slot is free once the session has ended.
    operator.destroy(&session);
    agent.await_ready();
    assert_eq!(agent.terminate(), Some(0), "{}", agent.log());
}

#[test]
fn an_agent_whose_files_another_one_has_by_now_keeps_its_slot_and_leaves_them() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let home = home(&consul);
    let mut first = held(&home);
    let (session, state) = (first.session(), home.path("state/session.json"));
    // It stands still meanwhile: otherwise it would write them again.
    first.signal(Signal::STOP);
    fs::remove_file(&state).unwrap();
    fs::remove_file(home.path("ready.lock")).unwrap();
    let mut second = Agent::start(&home);
    second.await_state("waiting");
    first.signal(Signal::CONT);
    let told = || first.log().matches("is in use by another agent that runs now").count();
    wait_for("both files to be told", || told() == 2);
    assert!(first.is_ready(), "what it holds is not in question");
    assert_eq!(operator.holders("service/s"), [session]);
    assert!(!first.ready_file().exists(), "the second one is not ready");
    assert_eq!(second.terminate(), Some(0), "{}", second.log());
    // From then on they are its own again, and it can be restarted.
    wait_for("its files", || state.exists() && first.ready_file().exists());
    kill(&mut first);
    let mut again = held(&home);
    assert_eq!(again.session(), first_session(&operator));
    assert_eq!(again.terminate(), Some(0), "{}", again.log());
    operator.assert_nothing_left("service/s");
}

fn first_session(operator: &Operator) -> String {
    operator.holders("service/s").remove(0)
}

#[test]
fn files_that_are_removed_or_replaced_are_written_again() {
    let consul = Consul::start();
    let home = home(&consul);
    let mut agent = held(&home);
    let session = agent.session();
    let before = fs::read_to_string(home.path("ready")).unwrap();
    let restored = |agent: &Agent| agent.log().matches(log_events::FILE_RESTORED).count();
    for file in FILES {
        fs::remove_file(home.path(file)).unwrap();
    }
    wait_for("the files", || FILES.iter().all(|file| home.path(file).exists()));
    wait_for("both to be told", || restored(&agent) == 2);
    assert_eq!(fs::read_to_string(home.path("ready")).unwrap(), before);
    let mut second = Agent::spawn(&home, &[], &[]);
    assert_eq!(second.ended().code(), Some(1), "{}", second.log());
    for file in ["ready", "state/session.json"] {
        fs::write(home.path("new"), "another's").unwrap();
        fs::rename(home.path("new"), home.path(file)).unwrap();
    }
    wait_for("both to be told", || restored(&agent) == 4);
    assert!(agent.is_ready());
    wait_for("the readiness file", || fs::read_to_string(home.path("ready")).unwrap() == before);
    wait_for("the state file", || {
        fs::read_to_string(home.path("state/session.json")).unwrap().contains(&session)
    });
    kill(&mut agent);
    let mut agent = held(&home);
    assert_eq!(agent.session(), session);
    assert_eq!(agent.terminate(), Some(0), "{}", agent.log());
    let left = FILES.map(|file| home.path(file).exists());
    assert_eq!(left, [false, true, false], "{}", agent.log());
}
