//! What operators of a Consul set, set to the same on both servers.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;
use slotkeeper_consul_dev::{Dialect, Options, Restricted};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

use crate::dialect;
use crate::support::consul::{Consul, Setup};
use crate::support::embedded::Embedded;
use crate::support::http::{self, Body, Response};

/// A Consul with these settings, and the embedded server with the same ones.
async fn both(config: &str, options: Options) -> (Consul, Embedded) {
    let setup = Setup { config: config.to_owned(), ..Setup::default() };
    (Consul::start_with(setup).await, Embedded::start_with(Options { dialect: dialect(), ..options }))
}

#[tokio::test]
async fn limits_of_size_and_of_ttl() {
    let options = Options { max_value: 1000, min_ttl: Duration::from_secs(90), ..Options::default() };
    let config = "limits { kv_max_value_size = 1000 }\nsession_ttl_min = \"90s\"\n";
    let (consul, embedded) = both(config, options).await;
    let set =
        |length: usize| format!(r#"[{{"KV":{{"Verb":"set","Key":"a","Value":"{}"}}}}]"#, "A".repeat(length));
    for (path, body, status) in [
        ("/v1/kv/a", "x".repeat(1000), 200),
        ("/v1/kv/a", "x".repeat(1001), 413),
        // Of a transaction each value counts, and the whole by a bound of its own.
        ("/v1/txn", set(1332), 200),
        ("/v1/txn", set(1400), 413),
        ("/v1/txn", set(700_000), 413),
        ("/v1/session/create", format!(r#"{{"Name":"{}"}}"#, "x".repeat(1000)), 200),
        ("/v1/session/create", r#"{"TTL":"89s"}"#.to_owned(), 500),
        ("/v1/session/create", r#"{"TTL":"90s"}"#.to_owned(), 200),
    ] {
        let [real, ours] = [consul.addr(), embedded.addr()].map(|addr| http::put(addr, path, &body));
        let (real, ours) = tokio::join!(real, ours);
        assert_eq!((real.status, ours.status), (status, status), "{path} {}", body.len());
        if status != 200 {
            assert_eq!(ours.text(), real.text());
        }
    }
}

/// Each server's answer to a connection above the limit, of which nothing was asked.
async fn above_the_limit(addr: SocketAddr) -> String {
    let mut open = Vec::new();
    loop {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        let (mut said, wait) = (Vec::new(), Duration::from_millis(300));
        match tokio::time::timeout(wait, stream.read_to_end(&mut said)).await {
            Ok(_) => return String::from_utf8(said).unwrap(),
            Err(_quiet) => open.push(stream),
        }
        assert!(open.len() < 100, "there is no limit");
    }
}

#[tokio::test]
async fn connections_of_one_address_are_counted() {
    // Whether it leads is asked on connections of their own.
    let setup = Setup {
        default_limits: true,
        config: "limits { http_max_conns_per_client = 8 }".to_owned(),
        ..Setup::default()
    };
    let consul = Consul::start_with(setup).await;
    let options = Options { dialect: dialect(), max_connections_per_client: Some(8), ..Options::default() };
    let embedded = Embedded::start_with(options);
    let (real, ours) = tokio::join!(above_the_limit(consul.addr()), above_the_limit(embedded.addr()));
    assert_eq!(ours, real);
    assert_eq!(ours.starts_with("HTTP/1.1 429 "), dialect() == Dialect::V1_22);
    // The others have ended, so that there is room again.
    let again = async {
        while http::try_request(embedded.addr(), "GET", "/v1/status/leader", &[], Body::None)
            .await
            .map_or(true, |answer| answer.status != 200)
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), again).await.unwrap();
}

/// How often the same request is answered before it is refused, and by what then.
async fn until_refused(addr: SocketAddr, method: &str, path: &str, body: &str) -> Option<(usize, Response)> {
    for n in 0..40 {
        let answer = http::request(addr, method, path, &[], Body::Sized(body.as_bytes())).await;
        if matches!(answer.status, 429 | 503) {
            return Some((n, answer));
        }
    }
    None
}

/// Consul 1.8 has no such limits; there the embedded server answers as a client agent above its `rpc_rate`.
#[tokio::test]
async fn requests_are_limited_in_consuls_words() {
    const NOBODY: &str = "11111111-1111-1111-1111-111111111111";
    let read = "rate limit exceeded, try again later or against a different server";
    let write = "rate limit exceeded for operation that can only be performed by the leader, try again later";
    let options =
        || Options { dialect: Dialect::V1_22, read_rate: Some(1), write_rate: Some(1), ..Options::default() };
    let set = r#"[{"KV":{"Verb":"set","Key":"a"}}]"#;
    for (method, path, body, refused) in [
        ("GET", "/v1/kv/a", "", Some((429, read))),
        ("PUT", "/v1/txn", r#"[{"KV":{"Verb":"get-tree","Key":"a"}}]"#, Some((429, read))),
        ("PUT", "/v1/txn", set, Some((503, write))),
        ("PUT", "/v1/kv/a", "x", Some((503, write))),
        ("DELETE", "/v1/kv/a", "", Some((503, write))),
        ("PUT", &format!("/v1/session/renew/{NOBODY}"), "", Some((503, write))),
        ("PUT", &format!("/v1/session/destroy/{NOBODY}"), "", Some((503, write))),
        ("PUT", "/v1/session/create", "{}", Some((503, write))),
        ("GET", "/v1/session/list", "", None),
        ("GET", &format!("/v1/session/info/{NOBODY}"), "", None),
        ("GET", "/v1/status/leader", "", None),
    ] {
        let server = Embedded::start_with(options());
        let told = until_refused(server.addr(), method, path, body).await;
        // Ten may come at once, and what a slow machine takes adds to them.
        assert!(told.as_ref().is_none_or(|(n, _)| *n >= 10), "{method} {path}");
        let told = told.map(|(_, answer)| (answer.status, answer.text()));
        assert_eq!(told, refused.map(|(status, text)| (status, text.to_owned())), "{method} {path}");
    }
    let older = Embedded::start_with(Options { dialect: Dialect::V1_8, ..options() });
    let (_, told) = until_refused(older.addr(), "GET", "/v1/kv/a", "").await.unwrap();
    assert_eq!((told.status, told.text()), (429, String::new()));
    if dialect() == Dialect::V1_22 {
        let config = r#"limits { request_limits { mode = "enforcing" read_rate = 1 write_rate = 1 } }"#;
        // A server with `-dev` does not enforce them.
        let setup = Setup { config: config.to_owned(), keeps_data: true, ..Setup::default() };
        let consul = Consul::start_with(setup).await;
        for (method, body, refused) in [("GET", "", (429, read)), ("PUT", "x", (503, write))] {
            // It makes its counters beside the first requests, and lets everything through until they are there.
            let told = async {
                loop {
                    if let Some((_, told)) = until_refused(consul.addr(), method, "/v1/kv/a", body).await {
                        return told;
                    }
                }
            };
            let told = tokio::time::timeout(Duration::from_secs(30), told).await.expect("a refusal");
            assert_eq!((told.status, &*told.text()), refused, "{method}");
        }
    }
}

/// What a token that may not see everything is shown, and that 1.22 says so where 1.8 does not.
#[tokio::test]
async fn keys_hidden_from_a_token_are_left_out() {
    let config = r#"acl { enabled = true default_policy = "deny" tokens { master = "root" } }"#;
    let setup = Setup { config: config.to_owned(), token: Some("root".to_owned()), ..Setup::default() };
    let consul = Consul::start_with(setup).await;
    let root = [("X-Consul-Token", "root")];
    let rules = r#"key_prefix "" { policy = "write" } key_prefix "secret/" { policy = "deny" }"#;
    let policy = json!({"Name": "some", "Rules": rules}).to_string();
    let put = async |path: &str, body: &str| {
        http::request(consul.addr(), "PUT", path, &root, Body::Sized(body.as_bytes())).await.json()
    };
    put("/v1/acl/policy", &policy).await;
    let token = put("/v1/acl/token", r#"{"Policies":[{"Name":"some"}]}"#).await;
    let token_of = |field: &str| token[field].as_str().unwrap().to_owned();
    let (secret, accessor) = (token_of("SecretID"), token_of("AccessorID"));
    let restricted =
        Restricted { token: secret.clone(), hidden_keys: vec!["secret/".to_owned()], hides_sessions: true };
    let options = Options {
        dialect: dialect(),
        node: "test".to_owned(),
        restricted: Some(restricted),
        ..Options::default()
    };
    let embedded = Embedded::start_with(options);
    let mut sessions = Vec::new();
    for addr in [consul.addr(), embedded.addr()] {
        for key in ["open/a", "secret/b"] {
            let path = format!("/v1/kv/{key}");
            assert_eq!(http::request(addr, "PUT", &path, &root, Body::Sized(b"x")).await.json(), true);
        }
        let made = http::request(addr, "PUT", "/v1/session/create", &root, Body::Sized(b"{}")).await;
        sessions.push(made.json()["ID"].as_str().unwrap().to_owned());
    }
    let txn = |op: &str| format!(r#"PUT /v1/txn [{{"KV":{{{op}}}}}]"#);
    let asked = [
        "GET /v1/kv/?recurse ".to_owned(),
        "GET /v1/kv/?keys ".to_owned(),
        "GET /v1/kv/open/?recurse ".to_owned(),
        "GET /v1/kv/secret/?recurse ".to_owned(),
        "GET /v1/kv/none/?recurse ".to_owned(),
        "GET /v1/kv/secret/b ".to_owned(),
        "GET /v1/kv/secret/none ".to_owned(),
        "PUT /v1/kv/secret/b y".to_owned(),
        "DELETE /v1/kv/secret/b ".to_owned(),
        "DELETE /v1/kv/secret/?recurse ".to_owned(),
        "DELETE /v1/kv/?recurse ".to_owned(),
        "GET /v1/session/list ".to_owned(),
        "GET /v1/session/node/test ".to_owned(),
        "GET /v1/session/info/ID ".to_owned(),
        "PUT /v1/session/renew/ID ".to_owned(),
        "PUT /v1/session/destroy/ID ".to_owned(),
        "PUT /v1/session/create {}".to_owned(),
        txn(r#""Verb":"get","Key":"secret/b""#),
        txn(r#""Verb":"get-tree","Key":"secret/""#),
        txn(r#""Verb":"set","Key":"secret/b""#),
        txn(r#""Verb":"check-not-exists","Key":"secret/b""#),
        txn(r#""Verb":"check-index","Key":"secret/b","Index":1"#),
        txn(r#""Verb":"delete-tree","Key":"secret/""#),
    ];
    let filtered = "x-consul-results-filtered-by-acls";
    let mut seen = 0;
    for request in &asked {
        let mut parts = request.splitn(3, ' ');
        let (method, path, body) = (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap());
        let mut answers = Vec::new();
        for (addr, session) in [consul.addr(), embedded.addr()].into_iter().zip(&sessions) {
            let path = path.replace("ID", session);
            let token = [("X-Consul-Token", secret.as_str())];
            let answer = http::request(addr, method, &path, &token, Body::Sized(body.as_bytes())).await;
            // Indexes of the two differ, and accessors.
            let text = answer
                .text()
                .replace(&accessor, "ACCESSOR")
                .replace("5ec2e7ed-0000-4000-8000-000000000000", "ACCESSOR");
            let key = || answer.json()[0]["Key"].as_str().map(str::to_owned);
            let listed = if text.trim_start().starts_with('[') { key() } else { None };
            let text = listed.unwrap_or_else(|| text.split_whitespace().collect());
            answers.push((answer.status, text, answer.header(filtered).map(str::to_owned)));
        }
        assert_eq!(answers[1], answers[0], "{request}: the embedded server (left) and Consul (right)");
        seen += usize::from(answers[1].2.is_some());
    }
    assert_eq!(seen, if dialect() == Dialect::V1_22 { 6 } else { 0 }, "answers that say what is hidden");
}
