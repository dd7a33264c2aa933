//! What the person hears who evicts, and is asked.

use std::process::{Child, Stdio};

use rustix::process::Signal;
use serde_json::json;

use super::{PREFIX, Said, command, evict, start};
use crate::consul::Consul;
use crate::operator::Operator;
use crate::process::BINARY;
use crate::terminal::Shell;
use crate::wait_for;

#[test]
fn an_eviction_without_confirmation_changes_nothing() {
    let consul = Consul::start();
    let (_home, mut agent) = start(&consul, "", "");
    agent.await_ready();
    let session = agent.session();
    let Said(code, said, errors) = evict(&consul, &[PREFIX, &session]);
    assert_eq!((code, said.as_str()), (Some(64), ""));
    assert!(
        errors.contains(&format!("evicting session {session} (")) && errors.contains("--yes"),
        "{errors}"
    );

    let line = format!(
        "{BINARY} evict {PREFIX} {} --http-addr {}; echo \"code\" $?\n",
        &session[..6],
        consul.address()
    );
    let mut shell = Shell::start();
    shell.press(&line);
    shell.expect("It is notified at once");
    shell.expect("Go on? [y/N] ");
    shell.press("n\n");
    shell.expect("nothing was done");
    shell.expect("code 1");
    assert!(agent.is_ready());

    shell.press(&line);
    shell.expect("Go on? [y/N] ");
    shell.press("y\n");
    shell.expect("is out; no new holder");
    shell.expect("code 0");
    assert_eq!(agent.terminate(), Some(0));
}

#[test]
fn an_eviction_that_is_outdated_when_confirmed_changes_nothing() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let (_home, mut holder) = start(&consul, "", "");
    holder.await_ready();
    let (_waiter_home, mut waiter) = start(&consul, "", "");
    waiter.await_state("waiting");
    wait_for("its entry", || operator.contender(PREFIX, &waiter.session()).is_some());
    let evict = |session: &str| {
        let mut shell = Shell::start();
        let command =
            format!("{BINARY} evict {PREFIX} {session} --http-addr {}; echo \"code\" $?\n", consul.address());
        shell.press(&command);
        shell.expect("Go on? [y/N] ");
        shell
    };
    let mut of_holder = evict(&holder.session());
    let mut of_waiter = evict(&waiter.session());
    assert_eq!(holder.terminate(), Some(0));
    waiter.await_ready();
    of_holder.press("y\n");
    of_holder.expect("has left meanwhile, so nothing was done");
    of_holder.expect("code 1");
    of_waiter.press("y\n");
    of_waiter.expect("has acquired its slots meanwhile, so nothing was done");
    of_waiter.expect("code 1");
    assert!(waiter.is_ready());
    assert_eq!(waiter.terminate(), Some(0));
}

#[test]
fn an_unknown_client_is_reported_with_the_known_ones() {
    let consul = Consul::start();
    let Said(code, _, errors) = evict(&consul, &[PREFIX, "nobody", "--yes"]);
    assert_eq!(code, Some(1));
    assert!(
        errors.contains(&format!("no participants at {PREFIX}; check the prefix"))
            && errors.contains("No token was given (--token-file"),
        "{errors}"
    );
    let (_home, mut agent) = start(&consul, "", "");
    agent.await_ready();
    let Said(code, _, errors) = evict(&consul, &[PREFIX, "nobody", "--yes"]);
    assert_eq!(code, Some(1));
    assert!(
        errors.contains(&format!("no participant nobody at {PREFIX}; there are {} (held)", agent.session())),
        "{errors}"
    );
    assert_eq!(agent.terminate(), Some(0));
}

/// Those who took other slots have not got this one.
#[test]
fn a_waiter_that_acquired_meanwhile_is_only_reported() {
    let consul = Consul::start();
    let of_three = |pod: &str| crate::inspect::agent(&consul, pod, "limit: 3, format: list");
    let holder = of_three("batch-7");
    holder.await_ready();
    let session = holder.session();
    holder.signal(Signal::STOP);
    let evict = |more: &[&str]| {
        let mut command = command(&consul, &[&[PREFIX, &session, "--yes"], more].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
    };
    let (of_a_person, of_a_program) = (evict(&[]), evict(&["--json"]));
    let operator = Operator::at(&consul.address());
    wait_for("it to be asked", || operator.entry(PREFIX, &session)["evicted_by"].is_string());
    let others = ["batch-8", "batch-9"].map(|pod| {
        let other = of_three(pod);
        other.await_ready();
        other.session()
    });
    holder.signal(Signal::CONT);
    let said = |evicting: Child| {
        let ended = evicting.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(0));
        String::from_utf8(ended.stdout).unwrap()
    };
    let [b, c] = &others;
    let out = format!("{PREFIX}: {session} is out; new holders: {b} (batch-8) and {c} (batch-9)\n");
    assert_eq!(said(of_a_person), out);
    let said: serde_json::Value = serde_json::from_str(&said(of_a_program)).unwrap();
    let new_holders = said["new_holders"].as_array().unwrap();
    let indexes: Vec<_> = new_holders.iter().map(|one| (&one["session"], &one["slot_indexes"])).collect();
    assert_eq!(indexes, [(&json!(b), &json!([1])), (&json!(c), &json!([2]))]);
}
