//! `slotkeeper evict`: one that is asked stops its workload first; what cannot be asked is taken out.

mod agent;
mod aim;
mod command;
mod ending;
mod kept;
mod lent;
mod others;
mod person;

use std::process::{Command, Output};

use serde_json::Value;

use crate::consul::Consul;
use crate::process::{Agent, BINARY, Home};
use crate::wait_for;

const PREFIX: &str = "service/s";

/// What the command has said: exit code, standard output, standard error.
pub(crate) struct Said(pub(crate) Option<i32>, pub(crate) String, pub(crate) String);

/// The command line of an operator called `ops`.
fn command(consul: &Consul, arguments: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.arg("evict").args(arguments).env_clear();
    command.env("CONSUL_HTTP_ADDR", consul.address()).env("USER", "ops");
    command
}

pub(crate) fn evict(consul: &Consul, arguments: &[&str]) -> Said {
    let Output { status, stdout, stderr } = command(consul, arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Said(status.code(), text(stdout), text(stderr))
}

/// Asks it to go and does not wait.
fn ask(consul: &Consul, prefix: &str, session: &str) {
    let Said(code, said, errors) = evict(consul, &[prefix, session, "--yes", "--wait", "0s"]);
    assert_eq!(code, Some(0), "{errors}");
    assert!(said.ends_with(&format!("{session} is being evicted\n")), "{said}");
}

/// Evicts and gives what it says as JSON.
fn evicted(consul: &Consul, arguments: &[&str]) -> Value {
    let Said(code, said, errors) = evict(consul, &[arguments, &["--yes", "--json"]].concat());
    assert_eq!(code, Some(0), "{errors}");
    serde_json::from_str(&said).unwrap()
}

/// An agent on one slot of `service/s`; `more` stands in its entry, `rest` beside it.
fn start(consul: &Consul, more: &str, rest: &str) -> (Home, Agent) {
    let home = Home::new();
    let semaphores = format!("semaphores: [{{name: s, prefix: {PREFIX}, limit: 1{more}}}]");
    home.configure(&consul.address(), &format!("session: {{ttl: 10s}}\n{semaphores}\n{rest}"));
    let agent = Agent::start(&home);
    (home, agent)
}

fn lost(agent: &Agent) -> f64 {
    agent.metric("slotkeeper_slots_lost_total{reason=\"evicted\",semaphore=\"s\"}")
}

/// It knows, and still has the slot.
fn await_leaving(agent: &Agent) {
    agent.await_state("leaving");
    let reason = agent.semaphore()["reason"].as_str().unwrap().to_owned();
    assert!(reason.starts_with("evicted by ops@"), "{reason}");
    assert_eq!(lost(agent), 1.0);
    assert!(!agent.is_ready());
    wait_for("the readiness file to go", || !agent.ready_file().exists());
}
