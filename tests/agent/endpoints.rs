//! What is served, and how.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use slotkeeper::internals::log_events;

use crate::consul::Consul;
use crate::hold::home;
use crate::http::request;
use crate::process::{Agent, BINARY, Home};
use crate::wait_for;

#[test]
fn health_status_and_metrics_as_the_contract_says() {
    let consul = Consul::start();
    let home = home(&consul);
    let mut agent = Agent::start(&home);
    agent.await_ready();
    let address = agent.address().to_owned();

    for path in ["/livez", "/readyz", "/healthz", "/startupz"] {
        let reply = agent.get(path);
        assert_eq!((reply.status, reply.body.as_str()), (200, "ok\n"), "{path}");
        assert_eq!(reply.header("cache-control"), Some("no-store"));
    }
    let verbose = agent.get("/readyz?verbose").body;
    assert!(verbose.contains("[+]semaphore/s ok: held\n") && verbose.ends_with("readyz check passed\n"));

    // For whoever needs some of the lease for stopping. What cannot be understood is no yes.
    assert_eq!(agent.get("/readyz?lease_left=1s").status, 200);
    let shorter = agent.get("/healthz?lease_left=1h");
    assert_eq!(shorter.status, 503);
    assert!(
        shorter.body.contains("[-]lease failed: ") && shorter.body.contains("the 3600 s asked for"),
        "{}",
        shorter.body
    );
    let misasked = agent.get("/readyz?lease_left=41");
    assert_eq!(misasked.status, 400);
    assert!(
        misasked.body.contains("write 41s for seconds") && misasked.body.contains("bad_request"),
        "{}",
        misasked.body
    );

    let one = agent.get("/v1/semaphores/s");
    assert_eq!(one.header("content-type"), Some("application/json"));
    assert!(one.body.contains(r#""state":"held""#), "{}", one.body);
    let unknown = agent.get("/v1/semaphores/nobody");
    assert_eq!(unknown.status, 404);
    assert!(unknown.body.contains(r#""code":"unknown_semaphore""#) && unknown.body.contains("it has s"));
    let document: Value = serde_json::from_str(&agent.get("/v1/openapi.json").body).unwrap();
    assert_eq!(document["openapi"], "3.1.0");
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.contains_key("/readyz") && paths.contains_key("/v1/semaphores/{name}"), "{paths:?}");
    let reads = |item: &Value| item.as_object().unwrap().keys().all(|method| method == "get");
    assert!(paths.values().all(reads), "what changes state is served elsewhere: {paths:?}");
    assert!(document.get("security").is_none());
    let nowhere = agent.get("/v1/nowhere");
    assert_eq!((nowhere.status, nowhere.header("content-type")), (404, Some("application/json")));

    for path in ["/v1/status", "/v1/semaphores/s", "/v1/openapi.json", "/nowhere"] {
        assert!(agent.get(path).body.ends_with("}\n"), "{path} ends its line");
    }
    let head = request(&address, "HEAD /v1/status", "");
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    assert!(head.header("content-length").is_some());
    let post = request(&address, "POST /v1/status", "Content-Length: 0\r\n");
    assert_eq!((post.status, post.header("allow")), (405, Some("GET,HEAD")));
    assert!(post.body.contains(r#""code":"method_not_allowed""#), "{}", post.body);

    let text = agent.get("/metrics");
    assert_eq!(text.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let accept = "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n";
    let open = request(&address, "GET /metrics", accept);
    assert!(open.header("content-type").unwrap().starts_with("application/openmetrics-text; version=1.0.0"));
    assert!(open.body.ends_with("# EOF\n"));
    assert_eq!(agent.terminate(), Some(0));
}

/// RFC 9112, 3.2.
#[test]
fn a_request_names_exactly_one_host() {
    let consul = Consul::start();
    let home = Home::new();
    home.configure(
        &consul.address(),
        "semaphores: [{name: s, prefix: service/s, limit: 1}]\n\
         control: {listen: '127.0.0.1:0', token_file: '$HOME/token'}\n",
    );
    let mut agent = Agent::start(&home);
    agent.await_ready();
    for address in [agent.address(), &agent.control_address()] {
        for (version, hosts, status) in
            [("1.1", 0, "400"), ("1.1", 1, "200"), ("1.1", 2, "400"), ("1.0", 0, "200"), ("1.0", 2, "400")]
        {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(crate::PATIENCE)).unwrap();
            let token = std::fs::read_to_string(home.path("token")).unwrap();
            let hosts_sent = "Host: localhost\r\n".repeat(hosts);
            let head = format!("{hosts_sent}Authorization: Bearer {}\r\nConnection: close\r\n", token.trim());
            write!(stream, "GET /livez HTTP/{version}\r\n{head}\r\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            let wanted = format!("HTTP/{version} {status} ");
            assert!(answer.starts_with(&wanted), "{address}, {hosts} under {version}: {answer}");
            assert_eq!(answer.contains(r#""code":"bad_request""#), status == "400", "{answer}");
        }
    }
    assert_eq!(agent.terminate(), Some(0));
}

#[test]
fn a_website_whose_name_resolves_to_loopback_reads_nothing() {
    let consul = Consul::start();
    let home = home(&consul);
    let get = |agent: &Agent, path: &str, host: &str| {
        let mut stream = TcpStream::connect(agent.address()).unwrap();
        stream.set_read_timeout(Some(crate::PATIENCE)).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\n{host}\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let mut agent = Agent::start(&home);
    for path in ["/", "/v1/status", "/v1/events", "/metrics", "/livez", "/nowhere"] {
        let refused = get(&agent, path, "Host: rebound.example:9377\r\n");
        assert!(
            refused.starts_with("HTTP/1.0 421 ") && refused.contains(r#""code":"misdirected""#),
            "{refused}"
        );
    }
    let port = agent.address().rsplit_once(':').unwrap().1.to_owned();
    for host in ["", "Host: localhost\r\n", &format!("Host: localhost:{port}\r\n"), "Host: [::1]:1\r\n"] {
        let answer = get(&agent, "/livez", host);
        assert!(answer.starts_with("HTTP/1.0 200 "), "{host:?}: {answer}");
    }
    assert_eq!(agent.terminate(), Some(0));
    // Where others may reach it, they do so by whatever name they have for it.
    let agent = Agent::start_with(&home, &[], &[("SLOTKEEPER_HTTP_LISTEN", "0.0.0.0:0")]);
    let answer = get(&agent, "/livez", "Host: agents.example\r\n");
    assert!(answer.starts_with("HTTP/1.0 200 "), "{answer}");
}

/// Of either family, and the commands that ask the agent by the variable by which it listens find it.
#[test]
fn an_agent_at_all_addresses_is_found() {
    let consul = Consul::start();
    let home = home(&consul);
    for (listen, loopbacks) in [("0.0.0.0:0", &["127.0.0.1"][..]), ("[::]:0", &["127.0.0.1", "[::1]"])] {
        let agent = Agent::start_with(&home, &[], &[("SLOTKEEPER_HTTP_LISTEN", listen)]);
        let port = agent.address().rsplit_once(':').unwrap().1;
        for loopback in loopbacks {
            assert_eq!(request(&format!("{loopback}:{port}"), "GET /livez", "").status, 200, "{loopback}");
        }
        for command in [&["wait", "--timeout", "60s"][..], &["probe", "ready"], &["status"]] {
            let mut asked = Command::new(BINARY);
            asked.args(command).env("SLOTKEEPER_HTTP_LISTEN", agent.address());
            let output = asked.output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{command:?} of {listen}: {said}");
        }
    }
}

/// The names of the contract. All exist from the start, except those of requests to Consul.
#[test]
fn every_metric_exists_from_the_start() {
    let mut consul = Consul::start();
    let home = home(&consul);
    consul.stop();
    let agent = Agent::start(&home);
    let mut text = String::new();
    // It listens before it has made the series.
    wait_for("the series", || {
        text = agent.get("/metrics").body;
        text.contains("slotkeeper_slot_held{")
    });
    for name in [
        "slot_held",
        "holders",
        "limit_mismatch",
        "waiters",
        "queue_position",
        "fencing_token",
        "acquire_duration_seconds_count",
        "handoff_duration_seconds_count",
        "hold_duration_seconds_count",
        "pruned_holders_total",
        "prune_duration_seconds_count",
        "cas_conflicts_total",
    ] {
        assert!(text.contains(&format!("\nslotkeeper_{name}{{semaphore=\"s\"}} 0\n")), "{name} in\n{text}");
    }
    assert!(text.contains("\nslotkeeper_slot_index{semaphore=\"s\"} -1\n"), "slots are numbered from 0");
    // Until it is known, the configured limit. It listens before it has said anything of itself.
    wait_for("the limit", || agent.metric("slotkeeper_limit{semaphore=\"s\"}") == 1.0);
    for reason in ["session_gone", "evicted", "contender_gone", "lease_expired", "watch_failed"] {
        assert!(
            text.contains(&format!("slotkeeper_slots_lost_total{{reason=\"{reason}\",semaphore=\"s\"}} 0"))
        );
    }
    for name in [
        "slotkeeper_ready 0",
        "slotkeeper_config_last_reload_successful 1",
        "slotkeeper_session_expiry_timestamp_seconds 0",
        "slotkeeper_session_renew_duration_seconds_count 0",
        "slotkeeper_session_renew_failures_total{reason=",
        "slotkeeper_build_info{",
        "process_resident_memory_bytes",
        "process_start_time_seconds",
    ] {
        assert!(text.contains(&format!("\n{name}")), "{name} in\n{text}");
    }
    // The series of requests appear with the first request, which fails here.
    wait_for("a request", || {
        agent.get("/metrics").body.contains("\nslotkeeper_consul_requests_total{code=\"unreachable\"")
    });
    assert!(
        agent.get("/metrics").body.contains("\nslotkeeper_consul_request_duration_seconds_count{operation=")
    );
}

#[test]
fn a_slow_client_is_cut_off_and_a_large_head_refused() {
    let consul = Consul::start();
    let home = home(&consul);
    let agent = Agent::start(&home);
    let mut slow = TcpStream::connect(agent.address()).unwrap();
    slow.write_all(b"GET /livez HTT").unwrap();
    slow.set_read_timeout(Some(Duration::from_secs(50))).unwrap();
    let mut rest = Vec::new();
    slow.read_to_end(&mut rest).unwrap();
    assert!(!String::from_utf8_lossy(&rest).contains("200 OK"));

    // What is refused unread may reset the connection before the answer is read; it is never served.
    let mut large = TcpStream::connect(agent.address()).unwrap();
    let head =
        format!("GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Large: {}\r\n\r\n", "x".repeat(64 * 1024));
    let mut answer = Vec::new();
    let _ = large.write_all(head.as_bytes()).and_then(|()| large.read_to_end(&mut answer));
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    // Others are served all the while.
    assert_eq!(agent.get("/livez").status, 200);
}

#[test]
fn an_address_in_use_is_reported_before_anything_is_held() {
    let consul = Consul::start();
    let home = home(&consul);
    let first = Agent::start(&home);
    let other = crate::hold::home(&consul);
    let mut second = Agent::spawn(&other, &[], &[("SLOTKEEPER_HTTP_LISTEN", first.address())]);
    assert_eq!(second.ended().code(), Some(1));
    assert!(second.log().contains("cannot listen at http.listen"), "{}", second.log());
    assert!(!second.log().contains(log_events::SESSION_CREATED));
}
