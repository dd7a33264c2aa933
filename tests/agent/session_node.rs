//! The catalogue's node of the sessions, by default one of their own.

use serde_json::{Value, json};
use slotkeeper::internals::log_events;
use slotkeeper::internals::session_node::AUTO_NODE;
use slotkeeper_consul::{Code, Operation};
use slotkeeper_consul_dev::Options;

use crate::consul::{Consul, Newer};
use crate::hold::ONE;
use crate::http;
use crate::operator::Operator;
use crate::process::{Agent, Lodger};
use crate::support::consul::Setup;
use crate::wait_for;

fn get(consul: &str, path: &str) -> Value {
    serde_json::from_str(&http::request(consul, &format!("GET /v1/{path}"), "").body).unwrap()
}

fn put(consul: &str, path: &str, body: &Value) {
    let body = body.to_string();
    let length = format!("Content-Length: {}\r\n", body.len());
    let reply = http::request_with(consul, &format!("PUT /v1/{path}"), &length, &body);
    assert_eq!(reply.status, 200, "{}", reply.body);
}

/// The answers to requests that write sessions, the registration of their node among them.
fn writes(agent: &Agent) -> [f64; 2] {
    [Code::Ok, Code::ServerError].map(|code| agent.requests(Operation::SessionCreate, code))
}

fn node_of(consul: &str, agent: &Agent) -> String {
    Operator::at(consul).session(&agent.session()).unwrap().node
}

#[test]
fn the_node_is_registered_once_and_costs_no_request_after_that() {
    let consul = Consul::start_unused(Setup::default());
    let address = consul.address();
    let mut first = Lodger::start(&address, ONE);
    first.await_ready();
    // Refused for want of the node; the registration; and again.
    assert_eq!((node_of(&address, &first).as_str(), writes(&first)), (AUTO_NODE, [2.0, 1.0]));
    let node = get(&address, &format!("catalog/node/{AUTO_NODE}"));
    assert_eq!((&node["Node"]["Address"], &node["Services"]), (&json!("127.0.0.1"), &json!({})));
    assert_eq!(get(&address, &format!("health/node/{AUTO_NODE}")), json!([]));
    assert_eq!(first.terminate(), Some(0));
    let mut second = Lodger::start(&address, ONE);
    second.await_ready();
    assert_eq!((node_of(&address, &second).as_str(), writes(&second)), (AUTO_NODE, [1.0, 0.0]));
    assert_eq!(get(&address, &format!("catalog/node/{AUTO_NODE}")), node);
    assert_eq!(second.status()["consul"]["session_node_refusal"], Value::Null);
    // An operator removes it: with it goes the session, and the next one has it made again.
    put(&address, "catalog/deregister", &json!({"Node": AUTO_NODE}));
    wait_for("the loss", || second.log().contains(log_events::SLOT_LOST));
    second.await_ready();
    assert_eq!((node_of(&address, &second).as_str(), writes(&second)), (AUTO_NODE, [3.0, 1.0]));
    assert_eq!(second.terminate(), Some(0));
}

#[test]
fn a_node_of_that_name_keeps_what_others_have_given_it() {
    let consul = Consul::start_unused(Setup::default());
    let address = consul.address();
    let theirs = json!({"Node": AUTO_NODE, "Address": "192.0.2.7", "NodeMeta": {"owner": "ops"},
        "Service": {"ID": "web-1", "Service": "web", "Port": 80},
        "Check": {"Node": AUTO_NODE, "CheckID": "disk", "Name": "disk", "Status": "critical"}});
    put(&address, "catalog/register", &theirs);
    let paths = ["catalog/node/", "health/node/"].map(|path| format!("{path}{AUTO_NODE}"));
    let before = paths.clone().map(|path| get(&address, &path));
    let mut agent = Lodger::start(&address, ONE);
    agent.await_ready();
    assert_eq!((node_of(&address, &agent).as_str(), writes(&agent)), (AUTO_NODE, [1.0, 0.0]));
    assert_eq!(agent.terminate(), Some(0));
    assert_eq!(paths.map(|path| get(&address, &path)), before);
}

#[test]
fn the_agents_own_node_is_used_where_it_is_configured_or_checks_need_it() {
    let consul = Consul::start_unused(Setup::default());
    let address = consul.address();
    for session in ["node: agent", "node_checks: [serfHealth]"] {
        let mut agent =
            Lodger::start(&address, &ONE.replace("session: {", &format!("session: {{{session}, ")));
        agent.await_ready();
        assert_eq!((node_of(&address, &agent).as_str(), writes(&agent)), ("test", [1.0, 0.0]), "{session}");
        assert_eq!(agent.terminate(), Some(0));
    }
    assert_eq!(get(&address, "catalog/nodes").as_array().unwrap().len(), 1, "nothing was registered");
}

#[test]
fn the_embedded_server_has_such_a_node_too() {
    let consul = Newer::start_unused(Options::default());
    let mut agent = Lodger::start(&consul.address(), ONE);
    agent.await_ready();
    assert_eq!((node_of(&consul.address(), &agent).as_str(), writes(&agent)), (AUTO_NODE, [2.0, 1.0]));
    assert_eq!(agent.terminate(), Some(0));
}
