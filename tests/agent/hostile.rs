//! What anybody may write into Consul's keys, and what is shown of it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use slotkeeper::internals::log_events;

use crate::consul::Consul;
use crate::operator::Operator;
use crate::process::{Agent, BINARY, Home};
use crate::support::kv::Put;
use crate::wait_for;

/// Clears the screen in three ways, begins a line that looks like a log's, turns the text around, is HTML, and ends a C string.
const HOSTILE: &str = "\u{1b}[2J\u{9b}2J\r\n\u{1b}]0;x\u{7}2026-01-01T00:00:00Z ERROR forged\u{202e}\u{2028}<img src=x onerror=alert(1)>\u{0}";
/// The flags of Consul's own locks.
const LOCK_FLAGS: u64 = 3_304_740_253_564_472_344;

/// Asserts that a terminal only shows it.
fn assert_harmless(what: &str, text: &str) {
    let obeyed = |character: &char| character.escape_debug().count() > 1 && !"\n\"'\\".contains(*character);
    let found = text.chars().find(obeyed);
    assert_eq!(found, None, "{what}: {text:?}");
    let forged = text.lines().any(|line| line.starts_with("2026-01-01T00:00:00Z"));
    assert!(!forged, "{what}: {text}");
}

fn identity(text: &str) -> Value {
    json!({"pod": text, "namespace": text, "node": text, "host": text, "pid": 7})
}

fn entry(state: &str, text: &str) -> String {
    let entry = json!({
        "slotkeeper": 1, "state": state, "slots": 1, "since": text, "who": identity(text), "body": text, "together": [],
    });
    entry.to_string()
}

/// Runs one of our commands: all that it prints.
fn said(arguments: &[&str], consul: &str) -> String {
    let mut command = Command::new(BINARY);
    command.args(arguments).env_clear().env("CONSUL_HTTP_ADDR", consul).stdin(Stdio::null());
    let Output { stdout, stderr, .. } = command.output().unwrap();
    String::from_utf8(stdout).unwrap() + &String::from_utf8(stderr).unwrap()
}

/// A semaphore `service/s` that a hostile one holds and another waits for, a dead holder with a hostile name, a lock that is
/// held, a prefix and a key where something else lies.
fn plant(operator: &Operator, text: &str) {
    let [holder, waiter, leader] = [(); 3].map(|()| operator.create_session());
    let put = |key: &str, value: &str, session: &str, flags| {
        operator.acquire_with_large(key, value, session, flags);
    };
    put(&format!("service/s/{holder}"), &entry("held", text), &holder, 0);
    put(&format!("service/s/{waiter}"), text, &waiter, 0);
    let record = json!({"Limit": 2, "Holders": [holder, text], "slotkeeper": {"of": 1, "indexes": [0, 1], "next": [text]}, text: text});
    operator.put("service/s/.lock", &record.to_string(), Put::Cas(0), 0);
    put("service/l", &entry("held", text), &leader, LOCK_FLAGS);
    operator.put("service/x/.lock", text, Put::Cas(0), 0);
    operator.put("service/y", text, Put::Cas(0), 7);
}

/// An agent that wants all of it, and whose hook writes down what it was told.
fn agent(consul: &Consul, format: &str) -> (Agent, Home) {
    let home = Home::new();
    home.configure(
        &consul.address(),
        &format!(
            "log: {{level: debug, format: {format}}}\n\
             semaphores: [{{name: s, prefix: service/s, limit: 2, prune_delay: 1h}}, {{name: x, prefix: service/x, limit: 1}}]\n\
             locks: [{{name: l, key: service/l}}, {{name: y, key: service/y}}]\n\
             hooks: {{on_leader_changed: [sh, -c, 'env > $HOME/told.new && mv $HOME/told.new $HOME/told']}}\n"
        ),
    );
    (Agent::spawn(&home, &[], &[]), home)
}

/// Waits until all of it has been seen and told.
fn await_told(agent: &Agent, home: &Home) {
    for seen in [
        log_events::LOCK_HELD_BY_OTHER,
        log_events::BLOCKED,
        "the key service/x/.lock",
        "the key service/y is not a single-key lock: it holds",
        log_events::WAITING,
    ] {
        wait_for(&format!("the log to tell {seen:?}"), || agent.log().contains(seen));
    }
    wait_for("the hook", || home.path("told").exists());
}

/// What is told at once to one who follows.
fn events(agent: &Agent) -> String {
    let mut stream = TcpStream::connect(agent.address()).unwrap();
    stream.set_read_timeout(Some(crate::PATIENCE)).unwrap();
    stream.write_all(b"GET /v1/events HTTP/1.0\r\n\r\n").unwrap();
    let (mut answer, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        let read = stream.read(&mut chunk).unwrap();
        assert!(read > 0, "{}", answer.escape_ascii());
        answer.extend(&chunk[..read]);
        let text = String::from_utf8_lossy(&answer);
        let (_, body) = text.split_once("\r\n\r\n").unwrap_or_default();
        if body.split_once("event: status\n").is_some_and(|(_, status)| status.ends_with("\n\n")) {
            return body.to_owned();
        }
    }
}

#[test]
fn untrusted_values_are_only_shown() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    plant(&operator, HOSTILE);
    let (mut agent, home) = agent(&consul, "text");
    agent.await_served();
    await_told(&agent, &home);
    let address = agent.address().to_owned();
    let local = ["--address", &address];
    for arguments in [
        &["status"][..],
        &["status", "-o", "wide"],
        &["status", "--json"],
        &["status", "-o", "yaml"],
        &["probe", "ready"],
        &["wait", "--timeout", "0s"],
    ] {
        let said = said(&[arguments, &local].concat(), "");
        assert!(!said.is_empty());
        assert_harmless(&format!("{arguments:?}"), &said);
    }
    // Who holds and who of them is dead is known once it has looked at all of them, which a look at it has it do.
    wait_for("the holders", || {
        let status = said(&[&["status"][..], &local].concat(), "");
        assert_harmless("status", &status);
        status.contains("s is held by session \\u{1b}[2J") && status.contains("(dead), \\u{1b}[2J")
    });
    for arguments in [
        &["sessions"][..],
        &["sessions", "--json"],
        &["sessions", "service/s"],
        &["sessions", "service/s", "--json"],
        &["sessions", "service/l"],
        &["sessions", "service/x"],
        &["list", "service"],
        &["doctor", "service/x"],
        &["doctor", "service/x", "-o", "json"],
        &["list", "service", "-o", "yaml"],
        &["inspect", "service/s", "-o", "yaml"],
        &["sessions", "service/s", "-o", "name"],
        &["set-limit", "service/x", "3"],
        &["set-limit", "service/s", "2"],
    ] {
        let said = said(arguments, &consul.address());
        assert!(!said.is_empty());
        assert_harmless(&format!("{arguments:?}"), &said);
    }
    let table = said(&["sessions", "service/s"], &consul.address());
    assert!(table.contains("\\u{1b}[2J") && table.contains("foreign client"), "{table}");
    let metrics = agent.get("/metrics");
    assert_harmless("/metrics", &metrics.body);
    // Programs get what people get, of a type that no browser renders.
    let json = agent.get("/v1/status");
    assert_eq!(
        (json.header("content-type"), json.header("x-content-type-options")),
        (Some("application/json"), Some("nosniff"))
    );
    assert_harmless("/v1/status", &json.body);
    // Each on its own line, and none an event that nobody has told.
    let events = events(&agent);
    assert!(events.contains("leader_changed") && events.contains("\\u{1b}[2J"), "{events}");
    assert_harmless("/v1/events", &events);
    for line in events.lines().filter(|line| !line.is_empty()) {
        let known = ["retry: ", "id: ", "event: change", "event: status", "data: {"];
        assert!(known.iter().any(|known| line.starts_with(known)), "{line}");
    }
    let who = &agent.status()["semaphores"][0]["holders"][1]["who"];
    assert_harmless("who", who["pod"].as_str().unwrap());
    let told = std::fs::read_to_string(home.path("told")).unwrap();
    assert!(told.contains("SLOTKEEPER_LEADER_POD=\\u{1b}[2J"), "{told}");
    assert_harmless("the hook's environment", &told);
    agent.terminate();
    assert_harmless("the log", &agent.log());
}

#[test]
fn untrusted_values_stay_inside_a_line_of_json() {
    let consul = Consul::start();
    plant(&Operator::at(&consul.address()), HOSTILE);
    let (mut agent, home) = agent(&consul, "json");
    await_told(&agent, &home);
    agent.terminate();
    let log = agent.log();
    assert_harmless("the log", &log);
    for line in log.lines() {
        let event: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert_ne!(event["level"], "forged", "{line}");
    }
}

#[test]
fn half_a_megabyte_in_a_key_is_cut() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    // Consul takes 512 KiB; an entry says it six times.
    plant(&operator, &"n".repeat(70_000));
    let (mut agent, home) = agent(&consul, "json");
    await_told(&agent, &home);
    let told = std::fs::read_to_string(home.path("told")).unwrap();
    assert!(told.contains(&format!("SLOTKEEPER_LEADER_POD={}…", "n".repeat(253))), "{told}");
    let shown = said(&["sessions", "service/s"], &consul.address());
    assert!(shown.len() < 4000, "{} bytes", shown.len());
    agent.terminate();
    let log = agent.log();
    let longest = log.lines().map(str::len).max().unwrap_or_default();
    assert!(
        longest < 4096 && log.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()),
        "{longest} bytes"
    );
}
