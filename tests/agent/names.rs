//! A key whose name Consul does not take.

use std::process::Command;

use crate::process::{Agent, BINARY, Home};
use crate::run::job;
use crate::stub::Stub;
use slotkeeper::internals::log_events;

const SESSION: &str = "5e550000-0000-4000-8000-000000000000";
/// As Consul 1.21.5 says it, to which a colon was too much. Newer ones have other rules.
const SAID: &str = "invalid key name, keys should respect the \"^[a-zA-Z0-9,_./\\-?&=]+$\" format";
const PREFIX: &str = "service/a:b";

/// A Consul that takes no key in a path, whatever a transaction may have written.
fn picky() -> Stub {
    Stub::start(|_, path| {
        let session =
            format!(r#"[{{"ID":"{SESSION}","Node":"n","TTL":"10s","CreateIndex":1,"ModifyIndex":1}}]"#);
        Some(match path {
            path if path.contains("/session/create") => (200, format!(r#"{{"ID":"{SESSION}"}}"#)),
            path if path.contains("/session/destroy") => (200, "true".to_owned()),
            path if path.contains("/session/") => (200, session),
            path if path.contains("/txn") => {
                (409, r#"{"Errors":[{"OpIndex":0,"What":"key \"k\" doesn't exist"}]}"#.to_owned())
            }
            _ => (500, SAID.to_owned()),
        })
    })
}

#[test]
fn an_agent_ends_with_the_code_of_a_wrong_configuration() {
    for entry in
        ["semaphores: [{name: s, prefix: 'service/a:b', limit: 1}]", "locks: [{name: l, key: 'service/a:b'}]"]
    {
        let (stub, home) = (picky(), Home::new());
        home.configure(stub.address(), entry);
        let mut agent = Agent::spawn(&home, &[], &[]);
        assert_eq!(agent.ended().code(), Some(78), "{}", agent.log());
        let log = agent.log();
        assert!(log.contains(log_events::KEY_REFUSED) && log.contains(SAID), "{log}");
        assert!(log.contains(PREFIX), "{log}");
        assert!(
            log.contains(&format!("{}: no slot and no session of this agent is left", log_events::DRAINED)),
            "{log}"
        );
    }
}

#[test]
fn a_command_is_not_run() {
    let stub = picky();
    let ran =
        job::run(stub.address(), &["--limit", "1", PREFIX], &["touch", "/nonexistent/ran"]).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(78), "{said}");
    assert!(said.contains(SAID) && said.contains("semaphores.prefix"), "{said}");
}

#[test]
fn an_operators_command_reports_the_rule_of_a_name() {
    let stub = picky();
    for arguments in [
        &["inspect", PREFIX][..],
        &["set-limit", PREFIX, "2"],
        &["prune", PREFIX, "--yes"],
        &["destroy", PREFIX, "--yes"],
    ] {
        let mut command = Command::new(BINARY);
        job::bare(command.args(arguments).args(["--http-addr", stub.address()]));
        let ran = command.output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(78), "{arguments:?}: {said}");
        assert!(said.contains(SAID), "{arguments:?}: {said}");
    }
}

/// What `check` refuses, nobody asks Consul for.
#[test]
fn check_refuses_a_name_that_consul_refuses() {
    for (prefix, rule) in [
        ("service/a ", "begins or ends with a blank"),
        (" service/a", "begins or ends with a blank"),
        ("service/a /", "begins or ends with a blank"),
        ("/service/a", "begins with a slash"),
        ("service/../a", "`.` or `..` segment"),
        ("service/\u{a0}a", "cannot be printed"),
    ] {
        let home = Home::new();
        home.configure("127.0.0.1:1", &format!("semaphores: [{{name: s, prefix: '{prefix}', limit: 1}}]"));
        let mut check = Command::new(BINARY);
        job::bare(check.arg("check").arg(home.path("config.yaml")));
        let checked = check.output().unwrap();
        let said = String::from_utf8_lossy(&checked.stdout) + String::from_utf8_lossy(&checked.stderr);
        assert_eq!(checked.status.code(), Some(78), "{prefix:?}: {said}");
        assert!(said.contains("semaphores[0].prefix") && said.contains(rule), "{prefix:?}: {said}");
        let mut inspect = Command::new(BINARY);
        job::bare(inspect.args(["inspect", prefix, "--http-addr", "127.0.0.1:1"]));
        let inspected = inspect.output().unwrap();
        assert_eq!(inspected.status.code(), Some(64), "{prefix:?}");
        assert!(String::from_utf8_lossy(&inspected.stderr).contains(rule), "{prefix:?}");
    }
}
