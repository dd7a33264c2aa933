//! What becomes of a login while its agent runs.

use rustix::process::Signal;
use serde_json::json;
use slotkeeper::internals::log_events;
use slotkeeper_consul::{Code, Operation};

use super::fortress::{BOTH, Fortress, METHOD, PREFIX, SEMAPHORE};
use crate::process::{Agent, Home};
use crate::wait_for;

/// How often it was asked, whatever the answer. Logouts count as `login`.
fn asked(agent: &Agent, operation: &str) -> f64 {
    let text = agent.get("/metrics").body;
    let of = format!("operation=\"{operation}\"");
    let series = text
        .lines()
        .filter(|line| line.starts_with("slotkeeper_consul_requests_total{") && line.contains(&of));
    series.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

fn start(fortress: &Fortress, rest: &str) -> (Home, Agent) {
    let home = Home::new();
    fortress.configure(&home, rest);
    let agent = Agent::start(&home);
    agent.await_ready();
    (home, agent)
}

#[test]
fn a_deleted_token_is_followed_by_another_and_nothing_is_lost() {
    let fortress = Fortress::start();
    let (_home, mut agent) = start(&fortress, BOTH);
    let (session, token) = (agent.session(), agent.semaphore()["fencing_token"].clone());
    let first = fortress.accessors();
    fortress.delete(&format!("acl/token/{}", first[0]));
    wait_for("another login", || asked(&agent, "login") >= 2.0);
    wait_for("its token", || fortress.accessors().len() == 1);
    assert_ne!(fortress.accessors(), first);
    let before = agent.requests(Operation::SessionRenew, Code::Ok);
    wait_for("a renewal with it", || agent.requests(Operation::SessionRenew, Code::Ok) > before);
    assert!(agent.is_ready());
    assert_eq!((agent.session(), agent.semaphore()["fencing_token"].clone()), (session, token));
    assert!(!agent.log().contains(log_events::SLOT_LOST), "{}", agent.log());
    assert_eq!(agent.terminate(), Some(0));
    assert_eq!(fortress.accessors(), [""; 0]);
}

#[test]
fn another_bearer_token_is_logged_in_with_and_the_old_token_ended() {
    let fortress = Fortress::of_kubernetes();
    let (home, mut agent) = start(&fortress, BOTH);
    let (session, first) = (agent.session(), fortress.accessors());
    // As the kubelet does it: a new file takes the place of the old one.
    std::fs::write(home.path("jwt.new"), fortress.bearer()).unwrap();
    std::fs::rename(home.path("jwt.new"), home.path("jwt")).unwrap();
    let mut second = Vec::new();
    wait_for("the old token's end", || {
        second = fortress.accessors();
        second.len() == 1 && second != first
    });
    assert!(agent.is_ready());

    // One that is not believed is told of, and changes nothing.
    std::fs::write(home.path("jwt"), "not-a-token-of-this-cluster").unwrap();
    wait_for("the refusal", || agent.requests(Operation::Login, Code::ServerError) >= 1.0);
    wait_for("its line in the log", || agent.log().contains("still using the current token"));
    assert!(agent.is_ready() && !agent.log().contains("not-a-token-of-this-cluster"), "{}", agent.log());
    assert_eq!((fortress.accessors(), agent.session()), (second, session));
    assert_eq!(agent.terminate(), Some(0));
    assert_eq!(fortress.accessors(), [""; 0]);
}

#[test]
fn without_its_auth_method_an_agent_keeps_its_slot_while_the_lease_lasts_and_comes_back() {
    let fortress = Fortress::start();
    let (_home, mut agent) = start(&fortress, BOTH);
    let session = agent.session();
    // Its tokens go with it.
    fortress.delete(&format!("acl/auth-method/{METHOD}"));
    wait_for("the words for it", || {
        agent.log().contains(&format!("cannot log in by {METHOD} at"))
            && agent.log().contains("there is no auth method of this name")
    });
    wait_for("the loss", || agent.log().contains(log_events::SLOT_LOST) && !agent.is_ready());
    assert!(agent.log().contains("lease_expired"), "{}", agent.log());
    fortress.put_auth_method();
    agent.await_ready();
    assert_eq!(fortress.tokens().len(), 1);
    // It came back before Consul ended the session, or after it.
    assert!(!session.is_empty() && !agent.session().is_empty());
    assert_eq!(agent.terminate(), Some(0));
    assert_eq!(fortress.accessors(), [""; 0]);
}

#[test]
fn a_policy_that_lacks_a_right_costs_few_logins() {
    let fortress = Fortress::start();
    let rules = format!(
        "session_prefix \"\" {{ policy = \"write\" }}\nkey_prefix \"{PREFIX}/\" {{ policy = \"read\" }}"
    );
    let (_, found) = fortress.ask("GET /v1/acl/policy/name/slotkeeper", "");
    let id = serde_json::from_str::<serde_json::Value>(&found).unwrap()["ID"].as_str().unwrap().to_owned();
    fortress.put(&format!("acl/policy/{id}"), &json!({"ID": id, "Name": "slotkeeper", "Rules": rules}));
    let home = Home::new();
    fortress.configure(&home, SEMAPHORE);
    let mut agent = Agent::start(&home);
    wait_for("several refusals", || agent.requests(Operation::Txn, Code::Conflict) >= 6.0);
    let needs = format!(r#"the token needs `key_prefix "{PREFIX}/" {{ policy = "write" }}`"#);
    assert!(agent.log().contains(&needs), "{}", agent.log());
    // Two logins, and the logout of the first token.
    assert!(asked(&agent, "login") <= 3.0, "{}", agent.log());
    assert_eq!(agent.terminate(), Some(0));
    assert_eq!(fortress.accessors(), [""; 0]);
}

#[test]
fn a_reload_keeps_the_login_and_changes_none() {
    let fortress = Fortress::start();
    let (home, mut agent) = start(&fortress, BOTH);
    let token = fortress.accessors();
    fortress.configure(&home, &format!("{BOTH}log: {{level: debug}}\n"));
    agent.signal(Signal::HUP);
    wait_for("the reload", || agent.log().contains("changed=log.level"));
    // One login, and no logout.
    assert_eq!(asked(&agent, "login"), 1.0);
    fortress.configure_as(&home, "token: t", BOTH);
    agent.signal(Signal::HUP);
    wait_for("the refusal", || agent.log().contains("consul.login takes effect only at a restart"));
    assert!(agent.is_ready());
    assert_eq!(fortress.accessors(), token);
    assert_eq!(agent.terminate(), Some(0));
    assert_eq!(fortress.accessors(), [""; 0]);
}
