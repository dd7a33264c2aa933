//! Who is meant, and who is not.

use std::process::Stdio;

use rustix::process::Signal;

use super::*;
use crate::operator::Operator;
use crate::support::kv::Put;

const LOCK_FLAGS: u64 = 3_304_740_253_564_472_344;

#[test]
fn a_key_that_is_no_such_lock_is_unchanged_and_a_foreign_lock_keeps_its_value() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let session = operator.create_session();
    operator.put("app2/settings", "colour=red", Put::Acquire(&session), 7);
    let Said(code, _, errors) = evict(&consul, &["app2", &session, "--yes"]);
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("app2/settings"), "{errors}");
    let pair = operator.key("app2/settings").unwrap();
    assert_eq!((pair.session.as_deref(), pair.flags), (Some(session.as_str()), 7));
    let Said(code, said, errors) = evict(&consul, &["app2/settings", &session, "--yes"]);
    assert_eq!((code, said), (Some(0), format!("app2/settings: {session} is out\n")), "{errors}");
    let pair = operator.key("app2/settings").unwrap();
    assert_eq!((pair.session, pair.value, pair.flags), (None, b"colour=red".to_vec(), 7));
}

#[test]
fn a_contender_of_another_semaphore_is_no_lock() {
    let consul = Consul::start();
    let (_home, mut agent) = start(&consul, "", "");
    agent.await_ready();
    let session = agent.session();
    let own = format!("{PREFIX}/{session}");
    for (prefix, said) in [("service", own.as_str()), (own.as_str(), "is the contender key of session")] {
        let Said(code, _, errors) = evict(&consul, &[prefix, &session, "--yes", "--force"]);
        assert_eq!(code, Some(1), "{errors}");
        assert!(errors.contains(said), "{errors}");
    }
    assert!(agent.is_ready());
    assert_eq!(agent.terminate(), Some(0));
}

#[test]
fn a_client_of_a_later_version_is_only_evicted_by_force() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let session = operator.create_session();
    let record = format!(r#"{{"Limit":1,"Holders":["{session}"]}}"#);
    operator.put(&format!("{PREFIX}/.lock"), &record, Put::Cas(0), 0);
    let entry = r#"{"slotkeeper":2,"state":"held","slots":1}"#;
    operator.put(&format!("{PREFIX}/{session}"), entry, Put::Acquire(&session), 0);
    let Said(code, _, errors) = evict(&consul, &[PREFIX, &session, "--yes"]);
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("later version of slotkeeper") && errors.contains("--force"), "{errors}");
    assert_eq!(operator.holders(PREFIX), [session.as_str()]);
    assert_eq!(evicted(&consul, &[PREFIX, &session, "--force"])["evicted"], true);
    assert!(operator.holders(PREFIX).is_empty());
}

#[test]
fn an_evicted_client_that_dies_is_removed() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let (_home, mut agent) = start(&consul, "", "");
    agent.await_ready();
    let session = agent.session();
    agent.signal(Signal::STOP);
    let evicting = command(&consul, &[PREFIX, &session, "--yes"]).stdout(Stdio::piped()).spawn().unwrap();
    let marked = || {
        String::from_utf8(operator.contender(PREFIX, &session).unwrap().value).unwrap().contains("evicted_by")
    };
    wait_for("it to be asked", marked);
    operator.destroy(&session);
    let ended = evicting.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(0));
    let said = String::from_utf8(ended.stdout).unwrap();
    assert_eq!(said, format!("{PREFIX}: {session} is out; no new holder\n"));
    assert!(operator.holders(PREFIX).is_empty());
    agent.signal(Signal::CONT);
    assert_eq!(agent.terminate(), Some(0));
}

/// Takes part as one of ours would, and does not answer; then somebody writes over what it is asked.
fn written_over(key: &str, flags: u64) {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let session = operator.create_session();
    let key = key.replace("SESSION", &session);
    if flags == 0 {
        let record = format!(r#"{{"Limit":1,"Holders":["{session}"]}}"#);
        operator.put(&format!("{PREFIX}/.lock"), &record, Put::Cas(0), 0);
    }
    let held = r#"{"slotkeeper":1,"state":"held","slots":1}"#;
    operator.put(&key, held, Put::Acquire(&session), flags);
    let evicting = command(&consul, &[PREFIX, &session, "--yes"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let value = || String::from_utf8(operator.key(&key).unwrap().value).unwrap();
    wait_for("it to be asked", || value().contains("evicted_by"));
    operator.put(&key, "mine now", Put::Plain, flags);
    let ended = evicting.wait_with_output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!((ended.status.code(), ended.stdout), (Some(1), Vec::new()), "{said}");
    assert!(
        said.contains(&format!("session {session} was overwritten by another client meanwhile")),
        "{said}"
    );
    let pair = operator.key(&key).unwrap();
    assert_eq!((pair.session, pair.value), (Some(session), b"mine now".to_vec()));
}

#[test]
fn a_lock_that_is_overwritten_is_not_released() {
    written_over(&format!("{PREFIX}/.lock"), LOCK_FLAGS);
    written_over(PREFIX, LOCK_FLAGS);
}

#[test]
fn a_slot_whose_contender_is_overwritten_is_not_released() {
    written_over(&format!("{PREFIX}/SESSION"), 0);
}
