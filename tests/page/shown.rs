//! What the page shows as things change, without being loaded again.

use serde_json::json;

use crate::browser::Browser;
use crate::consul::Consul;
use crate::http::request;
use crate::operator::Operator;
use crate::process::{Agent, Home, Lodger};
use crate::support::kv::Put;
use crate::wait_for;

const ONE: &str = "session: {ttl: 10s}\nsemaphores: [{name: writers, prefix: service/writers, limit: 1}]";

#[test]
fn a_slot_changes_hands_before_the_reader_s_eyes() {
    let consul = Consul::start();
    let pod = |name| [("SLOTKEEPER_POD_NAME", name), ("SLOTKEEPER_POD_NAMESPACE", "batch")];
    let mut first = Lodger::start_with(&consul.address(), ONE, &pod("import-1"));
    first.await_ready();
    let second = Lodger::start_with(&consul.address(), ONE, &pod("import-2"));
    second.await_state("waiting");
    let mut page = Browser::open(second.address());
    page.await_texts(&[
        "Not ready",
        "1st of 1 in the queue, waiting for",
        "batch/import-1",
        "Queue",
        "batch/import-2",
        "Waiting",
        "1 of 1 slot taken",
    ]);
    assert_eq!(page.attribute(".slots", "aria-label"), "1 of 1 slot taken: 1 of others, 0 free");
    page.assert_accessible("waiting");
    assert_eq!(page.titles(), ["Not ready · batch/import-2 · slotkeeper"]);

    assert_eq!(first.terminate(), Some(0));
    page.await_texts(&[
        "Everything required is held.",
        "Held for",
        "batch/import-2",
        "this agent",
        "acquired",
    ]);
    page.await_gone("Not ready");
    page.await_gone("Queue");
    page.await_gone("batch/import-1");
    assert_eq!(page.attribute(".slots", "aria-label"), "1 of 1 slot taken: 1 mine, 0 free; mine: slot 0");
    // A renewal fills the bar again, and nothing but the times has changed for it.
    wait_for("renewals", || second.metric("slotkeeper_session_renew_duration_seconds_count") >= 2.0);
    page.await_texts(&["Lease:"]);
    page.assert_accessible("held");
    page.assert_quiet(&[]);
}

#[test]
fn every_part_of_a_status_is_shown() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    // Ten thousand slots, of which two are those of one that is gone, and a record that is none.
    let many = json!({"Limit": 10_000, "Holders": ["gone", "gone"]}).to_string();
    operator.put("service/many/.lock", &many, Put::Plain, 0);
    operator.put("service/blocked/.lock", "a note that somebody left", Put::Plain, 0);
    let config = "session: {ttl: 10s}\n\
                  semaphores:\n\
                  - {name: many, prefix: service/many, limit: 5, slots: 2, prune_delay: 10m, required: false}\n\
                  - {name: blocked, prefix: service/blocked, limit: 1}\n\
                  - {name: lent, prefix: service/lent, limit: 2, mode: on_demand}\n\
                  locks: [{name: leader, key: service/leader, required: false}]\n\
                  control: {listen: '127.0.0.1:0', token_file: '$HOME/control.token'}\n";
    let agent = Lodger::start(&consul.address(), config);
    let mut page = Browser::open(agent.address());
    page.await_texts(&[
        "semaphore/blocked: blocked",
        "Blocked: ",
        "a note that somebody left",
        "4 of 10,000 slots taken: 2 mine, 2 dead, 9,996 free",
        "+ 9,952 more",
        "The stored limit is 10,000; 5 is configured.",
        "Idle",
        "this agent leads",
    ]);
    assert!(page.count(".slot") < 100, "no page has ten thousand boxes");
    page.assert_accessible("blocked");
    // Somebody mends it.
    operator.delete("service/blocked/.lock");
    page.await_texts(&["Everything required is held."]);
    page.await_gone("Blocked: ");
    page.assert_quiet(&[]);
}

#[test]
fn the_agent_is_named_in_the_title_and_above_the_headline() {
    let consul = Consul::start();
    let on_node = [
        ("SLOTKEEPER_NAME", "import"),
        ("SLOTKEEPER_POD_NAME", "loader-7"),
        ("SLOTKEEPER_POD_NAMESPACE", "batch"),
        ("SLOTKEEPER_NODE_NAME", "node-2"),
    ];
    let in_pod = Lodger::start_with(&consul.address(), ONE, &on_node);
    in_pod.await_ready();
    let on_host = [("SLOTKEEPER_NAME", "nightly import"), ("USER", "loader")];
    let on_host = Lodger::start_with(&consul.address(), "locks: [{name: a, key: service/a}]", &on_host);
    on_host.await_ready();
    let host = on_host.status()["agent"]["who"]["host"].as_str().unwrap().to_owned();
    let process = format!("nightly import on {host} pid {}", on_host.pid());
    for (agent, name, rest) in
        [(&in_pod, "import batch/loader-7", "on node-2"), (&on_host, process.as_str(), "user loader")]
    {
        let mut page = Browser::open(agent.address());
        page.await_texts(&["Everything required is held.", name]);
        assert_eq!(page.texts("#agent"), [format!("{name} · {rest}")]);
        assert_eq!(page.texts("#host"), [format!("slotkeeper at {}", agent.address())]);
        assert_eq!(page.titles(), [format!("Ready · {name} · slotkeeper")]);
        page.assert_quiet(&[]);
    }
}

#[test]
fn each_lease_has_a_row_with_its_session() {
    let consul = Consul::start();
    let home = Home::new();
    home.configure(
        &consul.address(),
        "semaphores: [{name: lent, prefix: service/lent, limit: 1, mode: on_demand}]\n\
         control: {listen: '127.0.0.1:0', token_file: '$HOME/token'}",
    );
    let agent = Agent::start(&home);
    // The token is there once the address is in the log.
    let control = agent.control_address();
    let token = std::fs::read_to_string(home.path("token")).unwrap();
    let bearer = format!("Authorization: Bearer {}\r\n", token.trim());
    let lease = request(&control, "POST /v1/semaphores/lent/acquire", &bearer);
    assert_eq!(lease.status, 200, "{lease:?}");
    let lease: serde_json::Value = serde_json::from_str(&lease.body).unwrap();
    let session = lease["session"].as_str().unwrap();
    let mut page = Browser::open(agent.address());
    page.await_texts(&["Leases", "Held · slot 0", " left", "this agent for "]);
    // Its row among the holders, and that of the lease.
    assert_eq!((page.count(".rows .more"), page.count(".rows textarea")), (2, 0));
    page.click(&format!("Details of session {}…", &session[..8]));
    page.await_texts(&[&format!("Session {session}"), "Holds since "]);
    page.assert_accessible("leases");
    page.assert_quiet(&[]);
}
