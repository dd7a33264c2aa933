//! Tokens that lack a right to the sessions' own node.

use serde_json::Value;
use slotkeeper::internals::log_events::SESSION_NODE_REFUSED;
use slotkeeper::internals::session_node::{NODE_RULE, SESSION_RULE};
use slotkeeper_consul::{Code, Operation, Secret, Settings, TokenSource};

use super::{ROOT, WORKER, denying_with, put_acl};
use crate::consul::Consul;
use crate::inspect::operate;
use crate::operator::Operator;
use crate::process::{Agent, Home};
use crate::run::job::Job;
use crate::wait_for;

const OTHER: &str = "07e457a9-0000-4000-8000-000000000000";

fn root(consul: &Consul) -> Operator {
    Operator::with(&Settings {
        address: consul.address().parse().unwrap(),
        token: Some(TokenSource::Value(Secret::new(ROOT))),
        ..Settings::default()
    })
}

/// A token with these rules for sessions and nodes.
fn make_other(consul: &Consul, rules: &str) {
    let rules = format!("key_prefix \"service/s/\" {{ policy = \"write\" }} {rules}").replace('"', "\\\"");
    put_acl(consul, "policy", &format!(r#"{{"Name":"other","Rules":"{rules}"}}"#));
    put_acl(consul, "token", &format!(r#"{{"SecretID":"{OTHER}","Policies":[{{"Name":"other"}}]}}"#));
}

#[test]
fn without_the_right_the_agents_own_node_is_used_and_that_is_said_once() {
    let consul = denying_with(Consul::start_unused);
    make_other(&consul, r#"session "test" { policy = "write" }"#);
    // The worker may do all with sessions, and make no node; the other may do nothing with this node.
    for (token, rule) in [(WORKER, NODE_RULE), (OTHER, SESSION_RULE)] {
        let home = Home::new();
        home.configure(&consul.address(), crate::hold::ONE);
        let mut agent = Agent::start_with(&home, &["--token", token], &[]);
        agent.await_ready();
        let before = agent.session();
        assert_eq!(root(&consul).session(&before).unwrap().node, "test");
        root(&consul).destroy(&before);
        wait_for("another session", || agent.is_ready() && agent.session() != before);
        assert_eq!(agent.requests(Operation::SessionCreate, Code::Forbidden), 1.0, "{}", agent.log());
        let log = agent.log();
        assert_eq!(log.matches(SESSION_NODE_REFUSED).count(), 1, "{log}");
        let needs = format!("the token needs `{rule}`");
        assert!(log.contains(&needs), "{log}");
        let status = agent.status();
        assert!(status["consul"]["session_node_refusal"].as_str().unwrap().contains(&needs), "{status}");
        let (code, shown, errors) = operate("", &["status", "--address", agent.address()]);
        let shown = shown.replace('\n', " ");
        assert!(code == Some(0) && shown.contains(&needs), "{shown}{errors}");
        assert_eq!(agent.terminate(), Some(0));

        let arguments = ["service/s", "-n", "1", "--token", token];
        for (more, said) in [(&[][..], 1), (&["--quiet"], 0)] {
            let mut run = std::process::Command::new(crate::process::BINARY);
            run.args(["run", "--http-addr", &consul.address()])
                .args(arguments)
                .args(more)
                .args(["--", "true"]);
            crate::run::job::bare(&mut run);
            let mut job = Job::spawn(run, tempfile::tempdir().unwrap());
            assert_eq!(job.code(), Some(0), "{}", job.log());
            let log = job.log();
            assert_eq!(
                (log.matches(SESSION_NODE_REFUSED).count(), log.matches(rule).count() > 0),
                (said, said == 1),
                "{log}"
            );
        }
    }
}

#[test]
fn a_node_that_exists_needs_the_right_to_its_sessions_alone() {
    let consul = denying_with(Consul::start_unused);
    make_other(&consul, SESSION_RULE);
    // Without the node, and without the right to another: the rule that is missing is the node's.
    let home = Home::new();
    home.configure(&consul.address(), crate::hold::ONE);
    let mut agent = Agent::start_with(&home, &["--token", OTHER], &[]);
    wait_for("the rule", || agent.log().contains(&format!("the token needs `{NODE_RULE}`")));
    assert!(!agent.is_ready());
    let headers = format!("X-Consul-Token: {ROOT}\r\n");
    let body = r#"{"Node": "slotkeeper", "Address": "127.0.0.1"}"#;
    let headers = format!("{headers}Content-Length: {}\r\n", body.len());
    let made = crate::http::request_with(&consul.address(), "PUT /v1/catalog/register", &headers, body);
    assert_eq!(made.status, 200, "{}", made.body);
    agent.await_ready();
    assert_eq!(root(&consul).session(&agent.session()).unwrap().node, "slotkeeper");
    assert_eq!(agent.status()["consul"]["session_node_refusal"], Value::Null);
    assert!(!agent.log().contains(SESSION_NODE_REFUSED), "{}", agent.log());
    assert_eq!(agent.terminate(), Some(0));
}
