//! An agent that is about to end, and waits for its workload first.

use serde_json::json;
use slotkeeper::internals::log_events;

use super::{Home, ask};
use crate::consul::Consul;
use crate::control::Desk;
use crate::operator::Operator;
use crate::process::Agent;
use crate::wait_for;

#[test]
fn an_agent_that_decided_to_exit_is_not_ready_and_acquires_nothing() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let others_home = Home::new();
    let theirs = "session: {ttl: 10s}\nsemaphores: [{name: c, prefix: p/c, limit: 1}, {name: d, prefix: p/d, limit: 1}]";
    others_home.configure(&consul.address(), theirs);
    let mut other = Agent::start(&others_home);
    other.await_ready();
    let folder = tempfile::tempdir().unwrap();
    let stopped = folder.path().join("stopped");
    let config = format!(
        "session: {{ttl: 10m}}\n\
         semaphores:\n\
         - {{name: a, prefix: p/a, limit: 1, required: false, on_lost: exit}}\n\
         - {{name: b, prefix: p/b, limit: 1}}\n\
         - {{name: c, prefix: p/c, limit: 1, required: false}}\n\
         - {{name: d, prefix: p/d, limit: 1, mode: on_demand}}\n\
         hooks: {{on_lost: [/bin/sh, -c, 'until [ -e {} ]; do sleep 0.05; done']}}\n\
         control: {{listen: '127.0.0.1:0', token_file: '$HOME/control.token'}}\n",
        stopped.display()
    );
    let mut desk = Desk::open_with(&consul.address(), &config);
    let session = desk.agent.session();
    wait_for("its place in line", || operator.contender("p/c", &session).is_some());
    assert!(desk.agent.ready_file().exists());

    let reply = std::thread::scope(|scope| {
        let client =
            scope.spawn(|| desk.ask("POST /v1/semaphores/d/acquire", &json!({ "wait": "10m" }).to_string()));
        wait_for("a client in line", || operator.keys("p/d").len() == 3);
        ask(&consul, "p/a", &session);
        client.join().unwrap()
    });
    assert_eq!(Desk::code(&reply), (503, "draining".to_owned()));
    wait_for("the readiness file to go", || !desk.agent.ready_file().exists());
    let agent = &desk.agent;
    assert_eq!((agent.get("/readyz").status, agent.metric("slotkeeper_ready")), (503, 0.0));
    let status = agent.status();
    assert_eq!((&status["agent"]["state"], &status["agent"]["ready"]), (&json!("draining"), &json!(false)));
    wait_for("it to leave the line", || operator.contender("p/c", &session).is_none());
    let kept = [operator.holders("p/a"), operator.holders("p/b")];
    assert_eq!(kept, [[session.clone()], [session]], "until the workload has stopped");

    assert_eq!(other.terminate(), Some(0));
    std::fs::write(&stopped, "").unwrap();
    assert_eq!(desk.agent.ended().code(), Some(80), "{}", desk.agent.log());
    assert!(
        !desk.agent.log().contains(&format!("{} name=c", log_events::SLOT_ACQUIRED)),
        "{}",
        desk.agent.log()
    );
    for prefix in ["p/a", "p/b", "p/c", "p/d"] {
        operator.assert_nothing_left(prefix);
    }
}
