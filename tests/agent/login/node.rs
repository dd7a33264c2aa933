//! Without a client agent nearby: the address is a server's, and the session is tied to a node that nobody runs on, as by default.

use serde_json::json;
use slotkeeper::internals::log_events;
use slotkeeper_consul::{Code, Operation};

use super::fortress::{Fortress, LOCK, POLICY, SEMAPHORE};
use crate::process::{Agent, Home};
use crate::wait_for;

#[test]
fn a_session_on_a_registered_node_outlives_the_servers_own() {
    let fortress = Fortress::start();
    let homes = [Home::new(), Home::new()];
    fortress.configure(&homes[0], SEMAPHORE);
    let rules = POLICY.replace("session \"slotkeeper\"", "session \"test\"");
    assert_ne!(rules, POLICY);
    let who = format!("token: {}", fortress.token_of(&rules));
    fortress.configure_as(&homes[1], &who, &LOCK.replace("ttl: 10s", "ttl: 10s, node: agent"));
    let [mut tied, mut loose] = [0, 1].map(|n: usize| Agent::start(&homes[n]));
    tied.await_ready();
    loose.await_ready();
    let operator = fortress.operator();
    let session = operator.session(&tied.session()).unwrap();
    assert_eq!((session.node.as_str(), session.node_checks.len()), ("slotkeeper", 0));

    // The server's own health fails, and then its node goes, as the others remove that of one that has died.
    let failing = json!({"Node": "test", "Address": "127.0.0.1", "SkipNodeUpdate": true,
        "Check": {"Node": "test", "CheckID": "serfHealth", "Name": "Serf", "Status": "critical"}});
    fortress.put("catalog/register", &failing);
    assert!(operator.session(&loose.session()).is_some(), "no check ends a session that has none");
    let gone = loose.session();
    fortress.put("catalog/deregister", &json!({"Node": "test"}));
    wait_for("the other one's loss", || loose.log().contains(log_events::SLOT_LOST));
    assert!(operator.session(&gone).is_none());
    let before = tied.requests(Operation::SessionRenew, Code::Ok);
    wait_for("a renewal after it", || tied.requests(Operation::SessionRenew, Code::Ok) > before);
    assert!(tied.is_ready() && tied.session() == session.id, "{}", tied.log());
    assert_eq!(tied.terminate(), Some(0));
    loose.signal(rustix::process::Signal::KILL);
    loose.ended();
}
