//! Leases: a client learns at its next renewal, and may believe in what it has until then.

use serde_json::Value;

use super::{ask, evicted};
use crate::consul::Consul;
use crate::control::Desk;
use crate::operator::Operator;
use crate::wait_for;

const CONFIG: &str = "session: {ttl: 10s, lock_delay: 0s}\n\
                      semaphores: [{name: s, prefix: p/s, limit: 1, mode: on_demand}]\n\
                      locks: [{name: l, key: p/l, mode: on_demand}]\n\
                      control: {listen: '127.0.0.1:0', token_file: '$HOME/control.token'}\n";

fn text(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap().to_owned()
}

#[test]
fn an_evicted_lease_is_handed_off_when_its_client_releases_it() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let desk = Desk::open_with(&consul.address(), CONFIG);
    let grant = desk.lease("semaphores/s");
    let (lease, session) = (text(&grant, "lease"), text(&grant, "session"));
    ask(&consul, "p/s", &session);
    wait_for("it to be known", || desk.ask(&format!("GET /v1/leases/{lease}"), "").status == 410);
    let renewed = desk.ask(&format!("POST /v1/leases/{lease}/renew"), "");
    assert!(
        renewed.status == 410
            && renewed.body.contains("stop the work that it protects and release the lease"),
        "{}",
        renewed.body
    );
    assert_eq!(operator.holders("p/s"), [session.as_str()], "its client may not know yet");
    // What changes of leases is shown a moment later.
    wait_for("its state", || desk.agent.semaphore()["leases"][0]["state"] == "leaving");
    assert_eq!(desk.ask(&format!("DELETE /v1/leases/{lease}"), "").status, 204);
    wait_for("it to be given back", || operator.holders("p/s").is_empty());
}

#[test]
fn an_evicted_lease_of_a_silent_client_is_handed_off_when_it_expires() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let desk = Desk::open_with(&consul.address(), CONFIG);
    for (what, prefix, state) in [("semaphores/s", "p/s", "held"), ("locks/l", "p/l", "locked")] {
        let grant = desk.lease(what);
        let said = evicted(&consul, &[prefix, &text(&grant, "session")]);
        assert_eq!((&said["state"], &said["evicted"]), (&state.into(), &true.into()));
    }
    assert_eq!((operator.holders("p/s"), operator.key("p/l").and_then(|pair| pair.session)), (vec![], None));
    assert_eq!(desk.agent.metric("slotkeeper_slots_lost_total{reason=\"evicted\",semaphore=\"s\"}"), 1.0);
}

#[test]
fn an_evicted_wait_for_a_lease_gets_an_error() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let desk = Desk::open_with(&consul.address(), CONFIG);
    let holder = text(&desk.lease("semaphores/s"), "session");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| desk.ask("POST /v1/semaphores/s/acquire", r#"{"wait":"1m"}"#));
        let contenders = || operator.keys("p/s").into_iter().filter_map(|pair| pair.session);
        wait_for("it to stand in line", || contenders().count() == 2);
        evicted(&consul, &["p/s", &contenders().find(|session| *session != holder).unwrap()]);
        let reply = waiting.join().unwrap();
        assert_eq!(Desk::code(&reply), (409, "timed_out".into()));
        assert!(
            reply.body.contains("ops@") && reply.body.contains("no longer in the queue"),
            "{}",
            reply.body
        );
    });
}
