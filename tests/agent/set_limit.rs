//! `slotkeeper set-limit`: one write that changes the limit and lets everybody in for whom there is room then.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::process::Signal;

use crate::consul::Consul;
use crate::operator::Operator;
use crate::process::{Agent, BINARY, Home};
use crate::support::kv::Put;
use crate::wait_for;

const PREFIX: &str = "service/s";

/// Runs the command against the Consul there: exit code, standard output, standard error.
pub(crate) fn set_limit(consul: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = Command::new(BINARY)
        .arg("set-limit")
        .args(arguments)
        .env_clear()
        .env("CONSUL_HTTP_ADDR", consul)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

/// Configures a semaphore with `more` of its fields.
fn configure(home: &Home, consul: &Consul, more: &str) {
    let semaphore = format!("session: {{ttl: 10s}}\nsemaphores: [{{name: s, prefix: {PREFIX}, {more}}}]");
    home.configure(&consul.address(), &semaphore);
}

fn start(consul: &Consul, more: &str) -> (Home, Agent) {
    let home = Home::new();
    configure(&home, consul, more);
    let agent = Agent::start(&home);
    (home, agent)
}

/// A semaphore with limit 1, one holder and three waiters.
fn one_of_four(consul: &Consul, first: &str) -> (Home, Agent, Vec<(Home, Agent)>) {
    let (home, holder) = start(consul, first);
    holder.await_ready();
    let waiters: Vec<_> = (0..3).map(|_| start(consul, "limit: 1")).collect();
    for (_, waiter) in &waiters {
        waiter.await_state("waiting");
        assert_eq!(slot(waiter), -1);
    }
    (home, holder, waiters)
}

/// The number of the slot that an agent holds, as its metrics say; -1 for none.
fn slot(agent: &Agent) -> i64 {
    let slot = agent.metric("slotkeeper_slot_index{semaphore=\"s\"}");
    assert_eq!(agent.semaphore()["slot_indexes"][0].as_f64().unwrap_or(-1.0), slot);
    slot as i64
}

/// All three have come in by the one write that the record last had.
fn assert_let_in_by_one_write(operator: &Operator, waiters: &[(Home, Agent)]) {
    for (_, waiter) in waiters {
        waiter.await_ready();
        wait_for("the new limit", || waiter.semaphore()["limit"] == 4);
    }
    // Not the indexes of their entries, into which they write who they are a second later.
    let written = operator.lock(PREFIX).unwrap().modify_index;
    let tokens: Vec<_> =
        waiters.iter().map(|(_, waiter)| waiter.semaphore()["fencing_token"].clone()).collect();
    assert_eq!(tokens, [written; 3]);
    let mut slots: Vec<_> = waiters.iter().map(|(_, waiter)| slot(waiter)).collect();
    slots.sort_unstable();
    assert_eq!(slots, [1, 2, 3]);
}

#[test]
fn a_raised_limit_grants_all_waiters_in_one_write() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let (_home, mut holder, mut waiters) = one_of_four(&consul, "limit: 1");
    let (code, said, errors) = set_limit(&consul.address(), &[&format!("{PREFIX}/"), "4"]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert_eq!(said, "service/s: limit changed from 1 to 4; slots were granted to 3 waiters\n");
    assert_let_in_by_one_write(&operator, &waiters);
    wait_for("the holder to see the new limit", || holder.semaphore()["limit"] == 4);
    assert_eq!(holder.semaphore()["configured_limit"], 1);
    let (code, said, _) = set_limit(&consul.address(), &[PREFIX, "4"]);
    assert_eq!((code, said.as_str()), (Some(0), "service/s: the limit is 4 already; nothing to do\n"));
    let (code, said, _) = set_limit(&consul.address(), &["service/s/.lock", "5", "--json"]);
    let done: serde_json::Value = serde_json::from_str(&said).unwrap();
    let expected = serde_json::json!({"schema_version": 1, "kind": "semaphore", "prefix": PREFIX,
            "key": "service/s/.lock", "limit_before": 4, "limit": 5, "slots_taken": 4, "new_holders": [],
            "foreign_waiters": 0});
    assert_eq!((code, done), (Some(0), expected));
    for agent in waiters.iter_mut().map(|(_, waiter)| waiter).chain([&mut holder]) {
        assert_eq!(agent.terminate(), Some(0));
    }
    operator.assert_nothing_left(PREFIX);
}

#[test]
fn a_reload_that_raises_the_limit_grants_all_waiters_in_one_write() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let (home, mut holder, mut waiters) = one_of_four(&consul, "limit: 1, limit_policy: set");
    configure(&home, &consul, "limit: 4, limit_policy: set");
    holder.signal(Signal::HUP);
    assert_let_in_by_one_write(&operator, &waiters);
    for agent in waiters.iter_mut().map(|(_, waiter)| waiter).chain([&mut holder]) {
        assert_eq!(agent.terminate(), Some(0));
    }
    operator.assert_nothing_left(PREFIX);
}

#[test]
fn a_lowered_limit_evicts_no_holder_and_grants_nothing_before_a_slot_is_free() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let mut holders: Vec<_> = (0..3).map(|_| start(&consul, "limit: 3")).collect();
    for (_, holder) in &holders {
        holder.await_ready();
    }
    let (_home, mut waiter) = start(&consul, "limit: 3");
    waiter.await_state("waiting");
    let (code, said, _) = set_limit(&consul.address(), &[PREFIX, "1"]);
    assert_eq!(code, Some(0));
    let expected = "service/s: limit changed from 3 to 1; no holder is evicted; no slot is granted until fewer than 1 \
                    are held (3 now)\n";
    assert_eq!(said, expected);
    for agent in holders.iter().map(|(_, holder)| holder).chain([&waiter]) {
        wait_for("the new limit", || agent.semaphore()["limit"] == 1);
    }
    for left in (0..3).rev() {
        assert_eq!(waiter.semaphore()["state"], "waiting");
        let (_, mut leaving) = holders.pop().unwrap();
        assert!(leaving.is_ready(), "no holder is evicted");
        assert_eq!(leaving.metric("slotkeeper_limit_mismatch{semaphore=\"s\"}"), 1.0);
        assert_eq!(leaving.terminate(), Some(0));
        assert_eq!(operator.holders(PREFIX).len(), left.max(1), "the last one lets the waiter in");
    }
    waiter.await_ready();
    assert_eq!(waiter.terminate(), Some(0));
    operator.assert_nothing_left(PREFIX);
}

#[test]
fn free_slots_are_granted_although_the_limit_is_unchanged() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let entry = r#"{"slotkeeper":1,"state":"waiting","slots":1}"#;
    let sessions: Vec<_> = (0..50)
        .map(|_| {
            let session = operator.create_session();
            operator.put(&format!("{PREFIX}/{session}"), entry, Put::Acquire(&session), 0);
            session
        })
        .collect();
    operator.put(&format!("{PREFIX}/.lock"), r#"{"Limit":48,"Holders":[]}"#, Put::Cas(0), 0);
    let (code, said, _) = set_limit(&consul.address(), &[PREFIX, "48"]);
    assert_eq!(
        (code, said.as_str()),
        (Some(0), "service/s: the limit is 48 already; slots were granted to 48 waiters\n")
    );
    // More than one transaction can let in.
    assert_eq!(operator.holders(PREFIX), sessions[..48]);
    assert_eq!(operator.next(PREFIX), sessions[48..]);
}

#[test]
fn an_impossible_limit_is_refused_with_what_to_do() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let (code, _, said) = set_limit(&consul.address(), &[PREFIX, "3"]);
    assert_eq!(code, Some(1));
    assert!(said.contains("no semaphore at service/s") && said.contains("check the prefix"), "{said}");
    assert!(said.contains("No token was given"), "{said}");
    let (_, _, said) =
        set_limit(&consul.address(), &[PREFIX, "3", "--token", "11111111-2222-3333-4444-555555555555"]);
    assert!(said.contains("check the prefix") && !said.contains("No token"), "{said}");
    assert_eq!(operator.keys(PREFIX), []);

    operator.put(&format!("{PREFIX}/.lock"), "a note", Put::Cas(0), 0);
    let (code, _, said) = set_limit(&consul.address(), &[PREFIX, "3"]);
    assert_eq!(code, Some(1));
    assert!(said.contains("service/s/.lock is not a semaphore") && said.contains("`a note`"));
    assert_eq!(operator.lock(PREFIX).unwrap().value, b"a note");

    for (arguments, cause) in [
        ([PREFIX, "0"], "write a whole number from 1 to 5000"),
        ([PREFIX, "-3"], "-3"),
        ([PREFIX, "5001"], "from 1 to 5000"),
        ([PREFIX, "many"], "from 1 to 5000"),
        (["/service/s", "3"], "begins with a slash; write it without"),
    ] {
        let (code, _, said) = set_limit(&consul.address(), &arguments);
        assert_eq!(code, Some(64), "{arguments:?}: {said}");
        assert!(said.contains(cause), "{arguments:?}: {said}");
    }
    let (code, _, said) = set_limit("ftp://consul", &[PREFIX, "3"]);
    assert_eq!(code, Some(78));
    assert!(said.contains("CONSUL_HTTP_ADDR: consul.address: unknown scheme"), "{said}");
}

#[test]
fn with_consul_out_of_reach_it_ends_with_69() {
    for arguments in [&[PREFIX, "3"][..], &[PREFIX, "3", "--http-addr", "127.0.0.1:2"]] {
        let (code, _, said) = set_limit("127.0.0.1:1", arguments);
        assert_eq!(code, Some(69), "{said}");
        let address = arguments.last().filter(|last| last.contains(':')).unwrap_or(&"127.0.0.1:1");
        assert!(said.contains(&format!("at http://{address}: not reached")), "{said}");
    }
}

#[test]
fn a_lost_answer_makes_set_limit_read_the_outcome() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    operator.put(&format!("{PREFIX}/.lock"), r#"{"Limit":1,"Holders":[]}"#, Put::Cas(0), 0);
    let (code, said, errors) = set_limit(&forgetful(&consul), &[PREFIX, "3"]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert_eq!(said, "service/s: limit changed from 1 to 3; no slot was granted\n");
    assert_eq!(operator.record(PREFIX)["Limit"], 3);
}

/// The address of a proxy that breaks the connection in place of the answer to the first transaction.
fn forgetful(consul: &Consul) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (consul, has_forgotten) = (consul.address(), AtomicBool::new(false));
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let server = TcpStream::connect(&consul).unwrap();
            let forgets = Arc::new(AtomicBool::new(false));
            let answers = (server.try_clone().unwrap(), client.try_clone().unwrap(), Arc::clone(&forgets));
            thread::spawn(move || {
                let (server, client, forgets) = answers;
                pass(server, client, |_| !forgets.load(Ordering::SeqCst));
            });
            pass(client, server, |sent| {
                if sent.starts_with(b"PUT /v1/txn") && !has_forgotten.swap(true, Ordering::SeqCst) {
                    forgets.store(true, Ordering::SeqCst);
                }
                true
            });
        }
    });
    address
}

/// Passes on what comes, until the end or something that is not to pass.
fn pass(mut from: TcpStream, mut to: TcpStream, passes: impl Fn(&[u8]) -> bool) {
    let mut bytes = [0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        if !passes(&bytes[..read]) || to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    for end in [from, to] {
        let _ = end.shutdown(Shutdown::Both);
    }
}

#[test]
fn with_an_agents_configuration_it_reaches_consul_as_the_agent_does() {
    let consul = Consul::start();
    let (home, holder) = start(&consul, "limit: 1");
    holder.await_ready();
    let file = home.path("config.yaml");
    let run = |arguments: &[&str], variable: bool| {
        let mut command = Command::new(BINARY);
        command.args(arguments).env_clear();
        if variable {
            command.env("SLOTKEEPER_CONFIG", &file);
        } else {
            command.arg("--config").arg(&file);
        }
        let Output { status, stdout, stderr } = command.output().unwrap();
        assert!(status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&stderr));
        String::from_utf8(stdout).unwrap()
    };
    assert!(run(&["set-limit", PREFIX, "3"], false).contains("from 1 to 3"));
    assert!(run(&["sessions", PREFIX], true).contains("held"));
    let broken = home.path("broken.yaml");
    std::fs::write(&broken, "consul: {adress: x}").unwrap();
    let refused =
        Command::new(BINARY).args(["sessions", "--config"]).arg(&broken).env_clear().output().unwrap();
    assert_eq!(refused.status.code(), Some(78));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("adress"));
}
