//! `/v1/events`: who follows an agent, from its first event to its last.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::consul::Consul;
use crate::hold::{ONE, home};
use crate::http::request;
use crate::operator::Operator;
use crate::process::{Agent, Home};
use crate::support::kv::Put;
use crate::wait_for;

/// Streams that an agent has places for.
const MOST: usize = 32;

/// One event.
#[derive(Debug)]
struct Event {
    id: String,
    name: String,
    data: Value,
}

impl Event {
    fn life(&self) -> &str {
        self.id.split_once('-').unwrap().0
    }

    fn number(&self) -> u64 {
        self.id.split_once('-').unwrap().1.parse().unwrap()
    }
}

/// A stream of them.
struct Stream(BufReader<TcpStream>);

impl Stream {
    fn open(address: &str, headers: &str) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(crate::PATIENCE)).unwrap();
        // An answer to this version of HTTP has no chunks.
        write!(stream, "GET /v1/events HTTP/1.0\r\n{headers}\r\n").unwrap();
        Self(BufReader::new(stream))
    }

    /// Reads the head.
    fn begun(mut self) -> Self {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(self.0.read_line(&mut head).unwrap() > 0, "{head:?}");
        }
        assert!(
            head.starts_with("HTTP/1.0 200 ") && head.contains("content-type: text/event-stream\r\n"),
            "{head}"
        );
        assert!(head.contains("cache-control: no-store\r\n"), "{head}");
        let mut retry = String::new();
        self.0.read_line(&mut retry).unwrap();
        assert_eq!(retry, "retry: 1000\n");
        self
    }

    fn after(agent: &Agent, last: &str) -> Self {
        Self::open(agent.address(), &format!("Last-Event-ID: {last}\r\n")).begun()
    }

    /// The next one that has an id; nothing once the stream has ended.
    fn next(&mut self) -> Option<Event> {
        let (mut id, mut name, mut data) = (None, None, None);
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            match line.trim_end().split_once(": ") {
                Some(("id", text)) => id = Some(text.to_owned()),
                Some(("event", text)) => name = Some(text.to_owned()),
                Some(("data", text)) => data = Some(serde_json::from_str(text).unwrap()),
                None if line == "\n" => {
                    let (was, name, data) = (id.take(), name.take(), data.take());
                    if let Some(id) = was {
                        return Some(Event { id, name: name.unwrap(), data: data.unwrap() });
                    }
                }
                _ => panic!("{line:?}"),
            }
        }
    }

    /// All up to the first status of which that is true.
    fn until(&mut self, condition: impl Fn(&Value) -> bool) -> Vec<Event> {
        let mut events = Vec::new();
        loop {
            events.push(self.next().unwrap_or_else(|| panic!("the stream ended after {events:?}")));
            let last = events.last().unwrap();
            if last.name == "status" && condition(&last.data) {
                return events;
            }
        }
    }
}

/// The changes that an agent keeps, as they are sent.
pub(crate) fn changes_of(agent: &Agent) -> Vec<Value> {
    let events = Stream::open(agent.address(), "").begun().until(|_| true);
    events.into_iter().filter(|event| event.name == "change").map(|event| event.data).collect()
}

/// What the changes among them are.
fn changes(events: &[Event]) -> Vec<&str> {
    events
        .iter()
        .filter(|event| event.name == "change")
        .map(|event| event.data["event"].as_str().unwrap())
        .collect()
}

fn assert_in_order(events: &[Event]) {
    let in_order = |pair: &[Event]| pair[0].life() == pair[1].life() && pair[0].number() < pair[1].number();
    assert!(events.windows(2).all(in_order), "{events:?}");
}

#[test]
fn every_change_is_sent_once_and_a_reconnect_gets_what_it_missed() {
    let consul = Consul::start();
    let home = home(&consul);
    let agent = Agent::start(&home);
    let mut stream = Stream::open(agent.address(), "").begun();
    let held = |status: &Value| status["agent"]["ready"] == true;
    let events = stream.until(held);
    assert_eq!(changes(&events), ["session_started", "acquired", "ready"]);
    let acquired = events.iter().find(|event| event.data["event"] == "acquired").unwrap();
    assert_eq!((&acquired.data["name"], acquired.data["at"].is_string()), (&json!("s"), true));
    assert_eq!(
        (&acquired.data["kind"], &acquired.data["prefix"]),
        (&json!("semaphore"), &json!("service/s"))
    );
    // As `/v1/status` says it, but for the times.
    let last = events.last().unwrap();
    assert_eq!(last.data["semaphores"][0]["fencing_token"], agent.semaphore()["fencing_token"]);
    let failed = |status: &Value| {
        status["agent"]["checks"].as_array().unwrap().iter().any(|check| check["passed"] != true)
    };
    assert!(!failed(&last.data), "{last:?}");
    // A renewal changes the status, and is no event.
    let lease = |event: &Event| event.data["session"]["expires_in_seconds"].as_f64().unwrap();
    let before = lease(last);
    let mut all = events;
    for _ in 0..2 {
        let mut renewed = stream.until(held);
        assert_eq!(changes(&renewed), [""; 0]);
        // Without one, the second time would find less; a busy machine takes some of it before it is told.
        assert!(lease(renewed.last().unwrap()) > before - 5.0, "{renewed:?}");
        all.append(&mut renewed);
    }
    assert_in_order(&all);

    // Who comes again is told the changes after the one it names, and how things stand; others all of them.
    let id_of = |what: &str| all.iter().find(|event| event.data["event"] == what).unwrap().id.clone();
    let newest = &all.last().unwrap().id;
    let told = |last: &str| changes(&Stream::after(&agent, last).until(|_| true)).join(" ");
    assert_eq!(told(&id_of("session_started")), "acquired ready");
    assert_eq!(told(newest), "");
    for nothing_of_this_life in ["0000000000000000-1", "", "x", "1-", &format!("{}-99999", all[0].life())] {
        assert_eq!(told(nothing_of_this_life), "session_started acquired ready", "{nothing_of_this_life:?}");
    }

    let head = request(agent.address(), "HEAD /v1/events", "");
    assert_eq!(
        (head.status, head.header("content-type"), head.body.as_str()),
        (200, Some("text/event-stream"), "")
    );
    let post = request(agent.address(), "POST /v1/events", "Content-Length: 0\r\n");
    assert_eq!((post.status, post.header("allow")), (405, Some("GET,HEAD")));
}

#[test]
fn the_stream_reports_the_end_and_a_successor_has_other_ids() {
    let consul = Consul::start();
    let home = home(&consul);
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let mut streams: Vec<_> = (1..MOST).map(|_| Stream::open(agent.address(), "").begun()).collect();
    for stream in &mut streams {
        stream.until(|_| true);
    }
    let address = agent.address().to_owned();
    let whole = std::thread::spawn(move || request(&address, "GET /v1/events", ""));
    wait_for("all places to be taken", || request(agent.address(), "HEAD /v1/events", "").status == 503);
    assert_eq!(agent.terminate(), Some(0), "{}", agent.log());
    let mut last = String::new();
    for mut stream in streams {
        let events = stream.until(|status| status["semaphores"][0]["state"] == "released");
        assert_in_order(&events);
        assert_eq!(changes(&events), ["draining", "not_ready", "released"], "{events:?}");
        last = events.last().unwrap().id.clone();
        assert!(stream.next().is_none(), "nothing follows the end");
    }
    // In chunks the end is one that is written, and not a connection that breaks.
    let whole = whole.join().unwrap().body;
    assert!(whole.contains(r#""state":"released""#) && whole.ends_with("\r\n0\r\n\r\n"), "{whole}");
    let agent = Agent::start(&home);
    agent.await_ready();
    let events = Stream::after(&agent, &last).until(|_| true);
    assert_eq!(changes(&events), ["session_started", "acquired", "ready"]);
    assert!(!events.iter().any(|event| last.starts_with(event.life())), "{last} {events:?}");
}

#[test]
fn clients_that_never_read_delay_no_other() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    // So many holders, in so many semaphores, that half of the pictures of them are more than a connection takes unread: that is 4 MB
    // or so.
    const CROWDS: usize = 12;
    let holders: Vec<_> = (0..1000).map(|n| format!("{n:0>100}")).collect();
    let record = |limit: usize| json!({"Limit": limit, "Holders": holders}).to_string();
    let mut entries = String::new();
    for crowd in 1..=CROWDS {
        operator.put(&format!("service/big{crowd}/.lock"), &record(1), Put::Plain, 0);
        let big = format!(
            "{{name: big{crowd}, prefix: service/big{crowd}, limit: 1, prune_delay: 10m, required: false}}"
        );
        entries += &format!("\n- {big}");
    }
    let home = Home::new();
    home.configure(&consul.address(), &ONE.replace("[{", "\n- {").replace("}]", &format!("}}{entries}")));
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let crowd = |crowd: usize| -> Value {
        serde_json::from_str(&agent.get(&format!("/v1/semaphores/big{crowd}")).body).unwrap()
    };
    for nth in 1..=CROWDS {
        wait_for("the crowds", || crowd(nth)["slots_taken"] == 1000);
    }
    let memory = || agent.metric("process_resident_memory_bytes");
    let before = memory();

    let mut deaf: Vec<_> = (0..MOST).map(|_| Stream::open(agent.address(), "")).collect();
    let one_more = || request(agent.address(), "GET /v1/events", "");
    wait_for("all places to be taken", || request(agent.address(), "HEAD /v1/events", "").status == 503);
    let refused = one_more();
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("5")));
    assert!(refused.body.contains(r#""code":"busy""#), "{}", refused.body);

    // Everything else goes on: each change is seen, the session is renewed, and whoever asks is answered.
    let renewed = agent.metric("slotkeeper_session_renew_duration_seconds_count");
    const LAST: usize = 5;
    for limit in 2..=LAST {
        for nth in 1..=CROWDS {
            operator.put(&format!("service/big{nth}/.lock"), &record(limit), Put::Plain, 0);
        }
        for nth in 1..=CROWDS {
            wait_for("the change to be seen", || crowd(nth)["limit"] == limit);
        }
    }
    wait_for("renewals", || agent.metric("slotkeeper_session_renew_duration_seconds_count") >= renewed + 2.0);
    assert_eq!((agent.get("/livez").status, agent.get("/readyz").status), (200, 200));
    // What waits for a client is a picture or two, and not each one.
    let grown = (memory() - before) / 1e6;
    assert!(grown < 32.0, "{grown} MB more for {MOST} who do not read");

    // One that begins to read is told how things stand, and not how they stood each time.
    let mut one = deaf.swap_remove(0).begun();
    let all = |status: &Value| (1..=CROWDS).all(|nth| status["semaphores"][nth]["limit"] == LAST);
    let events = one.until(all);
    assert_in_order(&events);
    let pictures = events.iter().filter(|event| event.name == "status").count();
    let changes = (LAST - 1) * CROWDS;
    assert!(pictures < changes, "{pictures} pictures of {changes} changes");
    // Whoever goes away gives a place back.
    drop(one);
    wait_for("a place", || request(agent.address(), "HEAD /v1/events", "").status == 200);
    assert_eq!(agent.terminate(), Some(0), "{}", agent.log());
    let mut rest = Vec::new();
    deaf.remove(0).0.read_to_end(&mut rest).unwrap_or_default();
}
