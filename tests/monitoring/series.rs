//! How many series an agent has: each one costs memory in Prometheus, times the number of agents.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use slotkeeper_consul::{Code, Operation};

use crate::consul::Consul;
use crate::http::request_with;
use crate::operator::Operator;
use crate::process::{Agent, Home, Lodger};
use crate::support::kv::Put;
use crate::support::ports::Ports;
use crate::{rules, wait_for, words};

/// The contract for an agent with one semaphore.
const MAX_SERIES: usize = 140;
/// `+Inf` is one of them.
const MAX_BUCKETS: usize = 6;
/// The histogram of requests has its buckets once for each operation.
const MAX_REQUEST_BUCKETS: usize = 4;

const HOLD: &str = "session: {ttl: 10s}\nsemaphores: [{name: s, prefix: p/s, limit: 1}]";
const LEND: &str = "session: {ttl: 10s}\nsemaphores: [{name: s, prefix: p/d, limit: 1, mode: on_demand}]\n\
                    control: {listen: '127.0.0.1:0', token_file: '$HOME/control.token'}";

fn samples(agent: &Agent) -> Vec<String> {
    let text = agent.get("/metrics").body;
    text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

/// Fails above the maximum, and prints the number.
#[allow(clippy::print_stderr, reason = "the number is quoted in docs/metrics.md")]
fn assert_few(agent: &Agent, what: &str) {
    let samples = samples(agent);
    eprintln!("{what}: {} series", samples.len());
    assert!(samples.len() <= MAX_SERIES, "{} series:\n{}", samples.len(), samples.join("\n"));
}

fn renewals(agent: &Agent) -> f64 {
    agent.metric("slotkeeper_session_renew_duration_seconds_count")
}

/// An agent that has waited, was handed a slot, has renewed its session, lost the slot twice, and has written and read all that
/// follows from it.
#[test]
fn an_agent_with_one_semaphore_has_at_most_140_series() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let mut first = Lodger::start(&consul.address(), HOLD);
    first.await_ready();
    assert_few(&first, "first holder");
    let second = Lodger::start(&consul.address(), HOLD);
    second.await_state("waiting");
    wait_for("a place in the queue", || second.semaphore()["position"] == 1);
    assert_eq!(first.terminate(), Some(0));
    second.await_ready();
    assert_eq!(second.metric("slotkeeper_handoff_duration_seconds_count{semaphore=\"s\"}"), 1.0);
    let before = renewals(&second);
    wait_for("renewals", || renewals(&second) >= before + 3.0);
    assert_few(&second, "after a handoff and renewals");

    // A dead holder is pruned, a lost slot acquired again, and a lost session replaced.
    let lost = second.session();
    operator.destroy(&lost);
    wait_for("another session", || second.is_ready() && second.session() != lost);
    operator.put("p/s/.lock", r#"{"Limit":1,"Holders":[]}"#, Put::Plain, 0);
    wait_for("the loss", || {
        second.metric("slotkeeper_slots_lost_total{reason=\"evicted\",semaphore=\"s\"}") == 1.0
    });
    second.await_ready();
    assert_few(&second, "after a lost session and an eviction");

    // Consul does not answer for a while, and then has no leader.
    let mut consul = consul;
    consul.stop();
    wait_for("failures", || second.requests(Operation::SessionRenew, Code::Unreachable) >= 2.0);
    consul.restart();
    second.await_ready();
    assert_few(&second, "after an outage");
}

#[test]
fn an_agent_that_lends_one_semaphore_has_at_most_140_series() {
    let consul = Consul::start();
    let home = Home::new();
    home.configure(&consul.address(), LEND);
    let agent = Agent::start(&home);
    // It writes the token before it listens.
    let control = agent.control_address();
    let ask = |line: &str, body: &str| {
        let token = std::fs::read_to_string(home.path("control.token")).unwrap();
        let headers = format!("Authorization: Bearer {}\r\nContent-Length: {}\r\n", token.trim(), body.len());
        let reply = request_with(&control, line, &headers, body);
        (reply.status, serde_json::from_str::<Value>(&reply.body).unwrap_or_default())
    };
    let acquire = || {
        let (status, lease) = ask("POST /v1/semaphores/s/acquire", &json!({"wait": "60s"}).to_string());
        assert_eq!(status, 200, "{lease}");
        lease["lease"].as_str().unwrap().to_owned()
    };
    let first = acquire();
    std::thread::scope(|scope| {
        let next = scope.spawn(acquire);
        wait_for("a waiter", || agent.metric("slotkeeper_lease_waiters{semaphore=\"s\"}") == 1.0);
        assert_eq!(ask(&format!("POST /v1/leases/{first}/renew"), "").0, 200);
        assert_eq!(ask(&format!("DELETE /v1/leases/{first}"), "").0, 204);
        let second = next.join().unwrap();
        let before = renewals(&agent);
        wait_for("renewals", || {
            assert_eq!(ask(&format!("POST /v1/leases/{second}/renew"), "").0, 200);
            renewals(&agent) >= before + 3.0
        });
        assert_eq!(ask(&format!("DELETE /v1/leases/{second}"), "").0, 204);
    });
    assert_eq!(agent.metric("slotkeeper_hold_duration_seconds_count{semaphore=\"s\"}"), 2.0);
    assert_few(&agent, "after two leases");
    let of_leases = samples(&agent).iter().filter(|line| line.starts_with("slotkeeper_lease")).count();
    assert_eq!(of_leases, 3, "leases, their waiters, and the expired ones");
}

#[test]
fn histograms_have_few_buckets_and_only_entries_with_leases_have_series_of_them() {
    let home = Home::new();
    let ports = Ports::reserve();
    let entries = "semaphores: [{name: s, prefix: p/s, limit: 1}, {name: d, prefix: p/d, limit: 1, mode: on_demand}]\n\
                   locks: [{name: l, key: p/l}, {name: e, key: p/e, mode: on_demand}]\n\
                   control: {listen: 'unix:$HOME/control.sock'}";
    home.configure(&ports.addr(0).to_string(), entries);
    let agent = Agent::start_with(&home, &["--dev"], &[]);
    agent.await_ready();
    let samples = samples(&agent);
    let mut buckets = BTreeMap::<String, usize>::new();
    for sample in &samples {
        if let Some((family, labels)) = sample.split_once("_bucket{") {
            let other = labels.split(',').filter(|pair| !pair.starts_with("le=")).collect::<String>();
            let other = other.split('}').next().unwrap();
            *buckets.entry(format!("{family} {other}")).or_default() += 1;
        }
    }
    assert!(buckets.len() > 10, "{buckets:?}");
    for (series, count) in buckets {
        let of_requests = series.starts_with("slotkeeper_consul_request_duration_seconds ");
        let most = if of_requests { MAX_REQUEST_BUCKETS } else { MAX_BUCKETS };
        assert!(count <= most, "{series} has {count} buckets");
    }
    // Quoted in docs/metrics.md.
    for (name, count) in [("s", 51), ("l", 42)] {
        let label = format!("semaphore=\"{name}\"");
        assert_eq!(samples.iter().filter(|sample| sample.contains(&label)).count(), count, "{name}");
    }
    for (name, lends) in [("s", false), ("d", true), ("l", false), ("e", true)] {
        for family in ["slotkeeper_leases", "slotkeeper_lease_waiters", "slotkeeper_leases_expired_total"] {
            let series = format!("{family}{{semaphore=\"{name}\"}} ");
            assert_eq!(samples.iter().any(|sample| sample.starts_with(&series)), lends, "{series}");
        }
    }
}

/// A counter that appears with its first event has no increase for it. So a counter that a rule reads is 0 from the start, before
/// Consul has answered anything.
#[test]
fn what_rules_count_is_there_before_it_happens() {
    let ports = Ports::reserve();
    let agent = Lodger::start(&ports.addr(0).to_string(), HOLD);
    // It listens before it has made the series.
    wait_for("the series", || {
        samples(&agent).iter().any(|sample| sample.starts_with("slotkeeper_slot_held{"))
    });
    let samples = samples(&agent);
    let exprs = rules::all().iter().map(|rule| rule["expr"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
    let mut used = 0;
    for name in exprs.iter().flat_map(|expr| words(expr, "slotkeeper_")) {
        if ["_total", "_count", "_bucket"].iter().any(|end| name.ends_with(end)) {
            used += 1;
            let is_there = |sample: &String| {
                sample.starts_with(&format!("{name}{{")) || sample.starts_with(&format!("{name} "))
            };
            assert!(samples.iter().any(is_there), "{name} is missing in\n{}", samples.join("\n"));
        }
    }
    assert!(used > 5, "{used}");
    let reasons = |family: &str| samples.iter().filter(|sample| sample.starts_with(family)).count();
    assert_eq!(reasons("slotkeeper_slots_lost_total{"), slotkeeper_semaphore::LossReason::ALL.len());
    assert_eq!(
        reasons("slotkeeper_session_renew_failures_total{"),
        slotkeeper_semaphore::FailureKind::OF_RENEWALS.len()
    );
}
