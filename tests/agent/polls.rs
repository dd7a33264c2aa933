//! Many slots at one agent, within what Consul allows one address by default.

use std::time::Instant;

use serde_json::Value;
use slotkeeper::internals::log_events;
use slotkeeper_consul::{Code, Operation};

use crate::consul::Consul;
use crate::operator::Operator;
use crate::process::Lodger;
use crate::support::consul::Setup;
use crate::support::processes::connections;
use crate::wait_for;

/// As many as a configuration may have.
const ENTRIES: usize = 256;
/// 64 long polls and 8 others.
const CONNECTIONS: usize = 72;

fn prefix(n: usize) -> String {
    format!("c/s{n:03}")
}

fn renewals(agent: &Lodger) -> f64 {
    agent.metric("slotkeeper_session_renew_duration_seconds_count")
}

/// All requests that were answered.
fn requests(agent: &Lodger) -> f64 {
    let text = agent.get("/metrics").body;
    let lines = text.lines().filter(|line| line.starts_with("slotkeeper_consul_requests_total{"));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

fn reads(agent: &Lodger) -> f64 {
    agent.requests(Operation::KvGet, Code::Ok) + agent.requests(Operation::KvGet, Code::NotFound)
}

#[test]
fn two_hundred_and_fifty_six_slots_are_held_at_consuls_default_limit_of_connections() {
    let consul = Consul::start_with(Setup { default_limits: true, ..Setup::default() });
    let operator = Operator::at(&consul.address());
    let entries: Vec<_> =
        (0..ENTRIES).map(|n| format!("- {{name: s{n:03}, prefix: {}, limit: 1}}\n", prefix(n))).collect();
    let config = format!("session: {{ttl: 10s}}\nsemaphores:\n{}", entries.concat());
    let mut agent = Lodger::start(&consul.address(), &config);
    let mut most = 0;
    let mut until = |what: &str, mut condition: Box<dyn FnMut() -> bool + '_>| {
        wait_for(what, || {
            most = most.max(connections(agent.pid(), consul.addr()));
            condition()
        });
    };
    until("all slots", Box::new(|| agent.is_ready()));
    // From here on each has begun its watches; long polls end, and others take their places.
    let before = renewals(&agent);
    until("renewals", Box::new(|| renewals(&agent) >= before + 2.0));
    let (read, asked) = (reads(&agent), requests(&agent));
    #[allow(clippy::disallowed_methods, reason = "a test has no lease")]
    let began = Instant::now();
    until("renewals", Box::new(|| renewals(&agent) >= before + 4.0));
    let (asked, took) = (requests(&agent) - asked, began.elapsed().as_secs_f64());
    let has = connections(agent.pid(), consul.addr());
    eprintln!("{ENTRIES} slots at rest, TTL 10 s: {has} connections, {:.1} requests a second", asked / took);
    let log = agent.log();
    // Of a machine that is busy there may be others.
    let is_meant = |line: &&str| ["connect", "renew", "429"].iter().any(|what| line.contains(what));
    let warnings: Vec<_> = log.lines().filter(|line| line.contains(" WARN ")).filter(is_meant).collect();
    assert!(warnings.is_empty(), "{warnings:#?}");
    assert_eq!(log.matches(log_events::SLOT_LOST).count(), 0);
    assert_eq!(log.matches(log_events::SLOT_ACQUIRED).count(), ENTRIES);
    assert_eq!(reads(&agent), read, "nothing has changed, so no key is read alone");

    // Of so many the last have no long polls of their own.
    let session = agent.session();
    let deleted: Vec<_> = (ENTRIES - 16..ENTRIES).map(prefix).collect();
    for prefix in &deleted {
        operator.delete(&format!("{prefix}/{session}"));
    }
    until("the losses", Box::new(|| agent.log().matches(log_events::SLOT_LOST).count() == deleted.len()));
    until("all slots again", Box::new(|| agent.is_ready()));
    assert_eq!(agent.log().matches("reason=contender_gone").count(), deleted.len());
    // A listing needs no read of a key; the transaction that found it missing does.
    assert!(reads(&agent) > read, "nothing was noticed before the next listing");
    assert!((1..=CONNECTIONS).contains(&most), "{most} connections");

    assert_eq!(agent.terminate(), Some(0));
    for pair in operator.keys("c") {
        assert!(pair.key.ends_with("/.lock"), "{} is left", pair.key);
        let record: Value = serde_json::from_slice(&pair.value).unwrap();
        assert_eq!(record["Holders"], serde_json::json!([]), "{}", pair.key);
    }
    assert_eq!(operator.sessions(), []);
}
