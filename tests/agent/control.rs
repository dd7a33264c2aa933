//! Leases over HTTP, of semaphores and of locks, by the real binary on a real Consul.

use std::io::Write;
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::consul::Newer;
use crate::http::{Reply, request_with};
use crate::operator::Operator;
use crate::process::{Agent, Home};
use crate::support::freezer::Freezer;
use crate::wait_for;

const CONFIG: &str = "session: {ttl: 10s, lock_delay: 0s}\n\
                      semaphores: [{name: s, prefix: p/s, limit: 1, mode: on_demand}, {name: own, prefix: p/own, limit: 1}]\n\
                      locks: [{name: l, key: p/l, mode: on_demand}]\n\
                      control: {listen: '127.0.0.1:0', token_file: '$HOME/control.token'}\n";

/// An agent with both kinds, and whoever asks it.
pub(crate) struct Desk {
    pub(crate) agent: Agent,
    home: Home,
    address: String,
    token: String,
}

impl Desk {
    fn open(consul: &str) -> Self {
        Self::open_with(consul, CONFIG)
    }

    pub(crate) fn open_with(consul: &str, config: &str) -> Self {
        let home = Home::new();
        home.configure(consul, config);
        let agent = Agent::start(&home);
        agent.await_ready();
        let address = agent.control_address();
        let token = std::fs::read_to_string(home.path("control.token")).unwrap().trim().to_owned();
        Self { agent, home, address, token }
    }

    fn headers(&self, body: &str) -> String {
        format!("Authorization: Bearer {}\r\nContent-Length: {}\r\n", self.token, body.len())
    }

    pub(crate) fn ask(&self, line: &str, body: &str) -> Reply {
        request_with(&self.address, line, &self.headers(body), body)
    }

    pub(crate) fn acquire(&self, what: &str, wait: &str) -> Reply {
        self.ask(&format!("POST /v1/{what}/acquire"), &json!({ "wait": wait }).to_string())
    }

    pub(crate) fn lease(&self, what: &str) -> Value {
        let reply = self.acquire(what, "60s");
        assert_eq!(reply.status, 200, "{}", reply.body);
        serde_json::from_str(&reply.body).unwrap()
    }

    pub(crate) fn of(&self, method: &str, lease: &Value, action: &str) -> Reply {
        self.ask(&format!("{method} /v1/leases/{}{action}", lease["lease"].as_str().unwrap()), "")
    }

    /// The lease after a renewal.
    pub(crate) fn renewed(&self, lease: &Value) -> Value {
        let reply = self.of("POST", lease, "/renew");
        assert_eq!(reply.status, 200, "{}", reply.body);
        serde_json::from_str(&reply.body).unwrap()
    }

    pub(crate) fn code(reply: &Reply) -> (u16, String) {
        let body: Value = serde_json::from_str(&reply.body).unwrap();
        (reply.status, body["code"].as_str().unwrap().to_owned())
    }
}

/// Who has it, whatever it is.
fn owner(operator: &Operator, what: &str) -> Option<String> {
    match what {
        "locks/l" => operator.key("p/l")?.session,
        _ => operator.lock("p/s").and_then(|_| operator.holders("p/s").first().cloned()),
    }
}

#[test]
fn a_lease_is_acquired_renewed_and_released_with_its_own_session() {
    let consul = Newer::start();
    let operator = Operator::at(&consul.address());
    let mut desk = Desk::open(&consul.address());
    for what in ["semaphores/s", "locks/l"] {
        let lease = desk.lease(what);
        assert_eq!(owner(&operator, what).as_deref(), lease["session"].as_str(), "{what}");
        assert_ne!(lease["session"], desk.agent.session());
        assert_eq!((&lease["slot"], &lease["slot_indexes"]), (&json!(0), &json!([0])), "{what}: {lease}");
        assert_eq!(lease["lock_index"], if what == "locks/l" { json!(1) } else { Value::Null });
        let expires = lease["expires_in"].as_f64().unwrap();
        assert!(expires > 0.0 && expires <= 10.0, "{lease}");
        // Another one is not to be had meanwhile.
        assert_eq!(Desk::code(&desk.acquire(what, "0s")), (409, "timed_out".into()));
        assert_eq!(Desk::code(&desk.acquire(what, "100ms")), (409, "timed_out".into()));
        let renewed = desk.of("POST", &lease, "/renew");
        let renewed: Value = serde_json::from_str(&renewed.body).unwrap();
        assert_eq!(
            (&renewed["lease"], &renewed["fencing_token"]),
            (&lease["lease"], &lease["fencing_token"])
        );
        assert_eq!(desk.of("GET", &lease, "").status, 200);
        assert_eq!(desk.of("DELETE", &lease, "").status, 204);
        assert_eq!(owner(&operator, what), None);
        // Once more is harmless; and it is over for good.
        assert_eq!(desk.of("DELETE", &lease, "").status, 204);
        assert_eq!(Desk::code(&desk.of("POST", &lease, "/renew")), (404, "unknown_lease".into()));
        let next = desk.lease(what);
        assert!(next["fencing_token"].as_u64() > lease["fencing_token"].as_u64(), "{next} after {lease}");
        assert_eq!(desk.of("DELETE", &next, "").status, 204);
    }
    assert_eq!(operator.sessions().len(), 1, "the agent's own");
    assert_eq!(desk.agent.terminate(), Some(0));
}

#[test]
fn a_bad_request_gets_an_error_that_says_what_is_wrong() {
    let consul = Newer::start();
    let mut desk = Desk::open(&consul.address());
    for (what, expected) in [
        ("semaphores/none", (404, "unknown_semaphore")),
        ("locks/s", (404, "unknown_lock")),
        ("semaphores/l", (404, "unknown_semaphore")),
        ("semaphores/own", (403, "not_on_demand")),
    ] {
        let (status, code) = Desk::code(&desk.acquire(what, "0s"));
        assert_eq!((status, code.as_str()), expected, "{what}");
    }
    // A lease of another agent.
    let mut other = Desk::open(&consul_free_of(&desk, &consul));
    let lease = other.lease("semaphores/s");
    for (method, action) in [("POST", "/renew"), ("GET", ""), ("DELETE", "")] {
        assert_eq!(Desk::code(&desk.of(method, &lease, action)), (404, "unknown_lease".into()));
    }
    assert_eq!(other.of("POST", &lease, "/renew").status, 200);
    for desk in [&mut other, &mut desk] {
        assert_eq!(desk.agent.terminate(), Some(0));
    }
}

/// The same Consul, once the first agent holds nothing there by itself.
fn consul_free_of(first: &Desk, consul: &Newer) -> String {
    let rest = CONFIG.replace(", {name: own, prefix: p/own, limit: 1}", "");
    first.home.configure(&consul.address(), &rest);
    first.agent.signal(rustix::process::Signal::HUP);
    wait_for("its slot to be given back", || Operator::at(&consul.address()).holders("p/own").is_empty());
    consul.address()
}

#[test]
fn a_client_that_disconnects_while_waiting_leaves_nothing_behind() {
    let consul = Newer::start();
    let operator = Operator::at(&consul.address());
    let mut desk = Desk::open(&consul.address());
    for what in ["semaphores/s", "locks/l"] {
        let lease = desk.lease(what);
        let mut stream = TcpStream::connect(&desk.address).unwrap();
        let body = json!({ "wait": "10m" }).to_string();
        let headers = desk.headers(&body);
        write!(stream, "POST /v1/{what}/acquire HTTP/1.1\r\nHost: x\r\n{headers}\r\n{body}").unwrap();
        wait_for("it to wait", || operator.sessions().len() == 3);
        drop(stream);
        wait_for("its session to go", || operator.sessions().len() == 2);
        assert_eq!(desk.of("DELETE", &lease, "").status, 204);
    }
    assert_eq!(operator.keys("p/s").len(), 1, "only .lock");
    assert_eq!(desk.agent.terminate(), Some(0));
}

#[test]
fn a_lost_lease_is_gone_and_says_why() {
    let consul = Newer::start();
    let operator = Operator::at(&consul.address());
    let mut desk = Desk::open(&consul.address());
    for what in ["semaphores/s", "locks/l"] {
        let lease = desk.lease(what);
        operator.destroy(lease["session"].as_str().unwrap());
        wait_for("it to be lost", || desk.of("POST", &lease, "/renew").status == 410);
        let reply = desk.of("GET", &lease, "");
        assert_eq!(Desk::code(&reply), (410, "lease_lost".into()));
        assert!(reply.body.contains("session_gone"), "{}", reply.body);
        assert_eq!(desk.of("DELETE", &lease, "").status, 204, "harmless");
    }
    // It is not taken again by itself.
    assert_eq!(owner(&operator, "locks/l"), None);
    assert_eq!(desk.agent.terminate(), Some(0));
}

#[test]
fn a_lease_that_is_not_renewed_goes_to_the_next_waiter() {
    let consul = Newer::start();
    let mut desk = Desk::open(&consul.address());
    let kept = [desk.lease("semaphores/s"), desk.lease("locks/l")];
    for (lease, what) in kept.iter().zip(["semaphores/s", "locks/l"]) {
        let reply = desk.acquire(what, "60s");
        assert_eq!(reply.status, 200, "{what}: {}", reply.body);
        assert_eq!(Desk::code(&desk.of("POST", lease, "/renew")), (410, "lease_expired".into()));
    }
    for name in ["s", "l"] {
        let series = format!("slotkeeper_leases_expired_total{{semaphore=\"{name}\"}}");
        assert_eq!(desk.agent.metric(&series), 1.0, "{name}");
        assert_eq!(desk.agent.metric(&format!("slotkeeper_leases{{semaphore=\"{name}\"}}")), 1.0);
    }
    let status = desk.agent.status();
    assert_eq!(status["locks"][0]["leases"][0]["state"], "held");
    assert_eq!(
        (&status["locks"][0]["mode"], &status["locks"][0]["state"]),
        (&json!("on_demand"), &json!("held"))
    );
    assert!(status["locks"][0]["leader"]["mine"] == true, "{status}");
    assert!(
        !status.to_string().contains(kept[0]["lease"].as_str().unwrap()),
        "whoever may look may not release"
    );
    assert_eq!(desk.agent.terminate(), Some(0));
    assert_eq!(Operator::at(&consul.address()).sessions(), []);
}

#[test]
fn a_failing_watch_takes_no_lease_from_a_client_that_has_its_answer() {
    let consul = Newer::start();
    let way = Freezer::start_apart(consul.address().parse().unwrap());
    let strict = CONFIG.replace("ttl: 10s,", "ttl: 10s, watch_grace: 0s,");
    let mut desk = Desk::open_with(&way.addr().to_string(), &strict);
    let lease = desk.lease("semaphores/s");
    let lost = || {
        let series = "slotkeeper_slots_lost_total{reason=\"watch_failed\",semaphore=\"own\"}";
        desk.agent.metric(series) > 0.0
    };
    wait_for("the agent's own slot to be lost, by the strict rule", || {
        way.reset();
        lost()
    });
    let renewed: Value = serde_json::from_str(&desk.of("POST", &lease, "/renew").body).unwrap();
    assert_eq!(renewed["fencing_token"], lease["fencing_token"], "{renewed}");
    assert_eq!(desk.of("DELETE", &lease, "").status, 204);
    assert_eq!(desk.agent.terminate(), Some(0));
}

#[test]
fn a_request_that_cannot_be_meant_so_is_refused_with_the_reason() {
    let consul = Newer::start();
    let operator = Operator::at(&consul.address());
    let config = CONFIG.replace("limit: 1, mode", "limit: 2, slots: 2, mode");
    let desk = Desk::open_with(&consul.address(), &config);
    let refusal = |line: &str, body: &str| {
        let reply = desk.ask(line, body);
        let body: Value = serde_json::from_str(&reply.body).unwrap();
        (reply.status, body["error"].as_str().unwrap().to_owned())
    };
    let (status, said) = refusal("POST /v1/semaphores/s/acquire?wait=5s", "");
    assert!(status == 400 && said.contains(r#"no query is supported here"#), "{status} {said}");
    let (status, said) = refusal("POST /v1/semaphores/s/acquire", r#""30s""#);
    assert!(
        status == 400 && said.contains("expected an object") && !said.contains("Wanted"),
        "{status} {said}"
    );
    let (status, said) = refusal("POST /v1/semaphores/s/acquire", &" ".repeat(5_000_000));
    assert!(status == 413 && said.contains("more than 4096 bytes"), "{status} {said}");
    // The limit is lower than what a lease takes.
    let lease = desk.lease("semaphores/s");
    assert_eq!(desk.of("DELETE", &lease, "").status, 204);
    crate::inspect::operate(&consul.address(), &["set-limit", "p/s", "1"]);
    assert_eq!(operator.record("p/s")["Limit"], 1);
    let (status, said) = refusal("POST /v1/semaphores/s/acquire", r#"{"wait":"2s"}"#);
    assert!(
        status == 409 && said.contains("the limit in force is 1 and this workload takes 2"),
        "{status} {said}"
    );
    assert!(said.contains("slotkeeper set-limit p/s 2"), "{said}");
}

#[test]
fn a_lease_that_is_left_keeps_its_entry_pending() {
    let consul = Newer::start();
    let desk = Desk::open(&consul.address());
    let lease = desk.lease("semaphores/s");
    desk.home.configure(&consul.address(), &CONFIG.replace("limit: 1, mode: on_demand}", "limit: 1}"));
    assert_eq!(desk.ask("POST /v1/reload", "").status, 200);
    assert_eq!(Desk::code(&desk.acquire("semaphores/s", "0s")), (503, "pending".into()));
    assert_eq!(desk.of("DELETE", &lease, "").status, 204);
    wait_for("the agent's own slot", || desk.agent.semaphore()["state"] == "held");
    assert_eq!(Desk::code(&desk.acquire("semaphores/s", "0s")), (403, "not_on_demand".into()));
}

#[test]
fn half_open_connections_keep_no_renewal_waiting() {
    let consul = Newer::start();
    let desk = Desk::open(&consul.address());
    let lease = desk.lease("semaphores/s");
    // More than the server takes, and again while the old ones time out.
    let open = || (0..400).map_while(|_| TcpStream::connect(&desk.address).ok()).collect::<Vec<_>>();
    for _ in 0..3 {
        let crowd = open();
        #[allow(clippy::disallowed_methods, reason = "a test has no lease")]
        let began = std::time::Instant::now();
        desk.renewed(&lease);
        assert!(began.elapsed() < std::time::Duration::from_secs(1), "it took {:?}", began.elapsed());
        drop(crowd);
    }
}
