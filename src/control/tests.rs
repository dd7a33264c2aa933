//! The endpoints over real sockets, with an agent whose answer depends on the requested name.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{mpsc, oneshot, watch};

use super::request::{
    Draining, Grant, Kind, NoLease, NoReload, Refusal, Released, Reloaded, Request, requests,
};
use super::{Gate, Socket, limits, router, token_of_file};
use crate::http::Site;
use crate::metrics::Metrics;
use crate::watchdog::Watchdog;
use crate::{agent, clock};
use slotkeeper_serve::serve;

const TOKEN: &str = "0123456789abcdef";
const TIMEOUT: Duration = Duration::from_secs(60);

/// The requests that the agent received.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Drain,
    Reload,
    Acquire(Kind, String, Duration),
    Renew(String),
    Show(String),
    Release(String),
    /// A waiting client disconnected.
    Left(String),
}

/// Endpoints on a unix socket and at a loopback address, and an agent behind both.
struct Scene {
    folder: tempfile::TempDir,
    address: std::net::SocketAddr,
    asked: mpsc::UnboundedReceiver<Asked>,
}

impl Scene {
    async fn start() -> Self {
        let (requests, receiver) = requests();
        let (tell, asked) = mpsc::unbounded_channel();
        tokio::spawn(answer(receiver, tell));
        Self::with(requests, asked).await
    }

    async fn with(requests: mpsc::Sender<Request>, asked: mpsc::UnboundedReceiver<Asked>) -> Self {
        let now = clock::now();
        let (_, status) = watch::channel(Arc::new(agent::before_start(now)));
        let metrics = Metrics::new().unwrap();
        let site = Site::new(status, Arc::new(metrics), Arc::new(Watchdog::new(now)));
        let folder = tempfile::tempdir().unwrap();
        let socket = Socket::bind(&folder.path().join("s.sock")).unwrap();
        let open = router(requests.clone(), site.clone(), Gate::Open);
        tokio::spawn(serve(socket, open, limits(4), std::future::pending()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let file = folder.path().join("token");
        crate::files::create(&file, TOKEN.as_bytes(), 0o600).unwrap();
        let closed = router(requests, site, Gate::Token(token_of_file(&file).unwrap()));
        tokio::spawn(serve(listener, closed, limits(4), std::future::pending()));
        Self { folder, address, asked }
    }

    async fn unix(&self) -> UnixStream {
        UnixStream::connect(self.folder.path().join("s.sock")).await.unwrap()
    }

    async fn tcp(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends a request to the unix socket.
    async fn ask(&self, line: &str, body: &str) -> Reply {
        exchange(self.unix().await, line, "", body).await
    }

    /// Sends a request to the loopback address; `headers` are whole lines.
    async fn ask_tcp(&self, line: &str, headers: &str) -> Reply {
        exchange(self.tcp().await, line, headers, "").await
    }

    async fn next_asked(&mut self) -> Asked {
        tokio::time::timeout(TIMEOUT, self.asked.recv()).await.unwrap().unwrap()
    }
}

struct Reply {
    status: u16,
    head: String,
    body: String,
}

impl Reply {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {:?}", self.body))
    }

    fn code(&self) -> (u16, String) {
        let json = self.json();
        assert!(json["error"].is_string() && json.as_object().unwrap().len() == 2, "{json}");
        (self.status, json["code"].as_str().unwrap().to_owned())
    }
}

fn text_of(line: &str, headers: &str, body: &str) -> String {
    format!("{line} HTTP/1.1\r\nhost: x\r\n{headers}content-length: {}\r\n\r\n{body}", body.len())
}

async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    line: &str,
    headers: &str,
    body: &str,
) -> Reply {
    // A request that is refused unread may be answered before it is written.
    let _ = stream.write_all(text_of(line, headers, body).as_bytes()).await;
    let mut answer = Vec::new();
    tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Reply { status, head: head.to_lowercase(), body: body.to_owned() }
}

fn grant(kind: Kind, name: &str) -> Grant {
    Grant {
        lease: "lease-1".into(),
        kind,
        name: name.into(),
        key: "service/free".into(),
        session: "c0ffee00-0000-4000-8000-000000000000".into(),
        fencing_token: 42,
        lock_index: (kind == Kind::Lock).then_some(3),
        slot_indexes: vec![3, 5],
        expires_in: Duration::from_micros(27_000_999),
        draining: Some(Draining { ends_in: Some(Duration::from_micros(9_000_999)) }),
    }
}

/// An agent whose answers are chosen by names.
async fn answer(mut requests: mpsc::Receiver<Request>, tell: mpsc::UnboundedSender<Asked>) {
    let reloaded = Reloaded { added: vec!["c".into()], ..Reloaded::default() };
    let refused = Err(NoReload::Refused("f.yaml:3:5: limmit: no such field".into()));
    let mut outcomes = [Ok(reloaded), refused, Err(NoReload::Draining)].into_iter().cycle();
    while let Some(request) = requests.recv().await {
        let asked = match request {
            Request::Drain => Asked::Drain,
            Request::Reload { reply } => {
                reply.send(outcomes.next().unwrap()).unwrap();
                Asked::Reload
            }
            Request::Acquire { kind, name, wait, present, reply } => {
                if name == "crowded" {
                    let (tell, name) = (tell.clone(), name.clone());
                    tokio::spawn(async move {
                        assert!(present.await.is_err());
                        assert!(reply.is_closed(), "the reply channel is closed too");
                        tell.send(Asked::Left(name)).unwrap();
                    });
                } else {
                    reply.send(outcome(kind, &name)).unwrap();
                }
                Asked::Acquire(kind, name, wait)
            }
            Request::Renew { lease, reply } => {
                reply.send(standing(&lease)).unwrap();
                Asked::Renew(lease)
            }
            Request::Show { lease, reply } => {
                reply.send(standing(&lease)).unwrap();
                Asked::Show(lease)
            }
            Request::Release { lease, reply } => {
                let released = match lease.as_str() {
                    "slow" => Ok(Released::UnderWay),
                    other => standing(other).map(|_| Released::Done),
                };
                reply.send(released).unwrap();
                Asked::Release(lease)
            }
        };
        // The receiver is gone at the end of a test.
        let _ = tell.send(asked);
    }
}

fn outcome(kind: Kind, name: &str) -> Result<Grant, Refusal> {
    Err(match name {
        "free" => return Ok(grant(kind, name)),
        "held" => Refusal::NotOnDemand,
        "taken" => Refusal::Timeout,
        "blocked" => Refusal::Blocked("`.lock` holds a picture; remove it".into()),
        "away" => Refusal::Unavailable("GET /v1/kv/x: connection refused".into()),
        "pending" => Refusal::Pending("free of the previous configuration is still being released".into()),
        "ending" => Refusal::Draining,
        "waits" => Refusal::TooManyWaits(32),
        "leases" => Refusal::TooManyLeases(64),
        _ => Refusal::UnknownName { known: vec!["free".into(), "held".into()] },
    })
}

fn standing(lease: &str) -> Result<Grant, NoLease> {
    match lease {
        "lease-1" => Ok(grant(Kind::Semaphore, "free")),
        "released" => Err(NoLease::Released),
        "expired" => Err(NoLease::Expired),
        "lost" => Err(NoLease::Lost("session_gone")),
        _ => Err(NoLease::Unknown),
    }
}

#[tokio::test]
async fn a_lease_is_granted_as_requested() {
    let mut scene = Scene::start().await;
    let reply = scene.ask("POST /v1/semaphores/free/acquire", r#"{"wait":"1m30s"}"#).await;
    assert_eq!(reply.status, 200);
    assert!(reply.head.contains("content-type: application/json") && reply.head.contains("no-store"));
    let lease = r#"{"lease":"lease-1","session":"c0ffee00-0000-4000-8000-000000000000","fencing_token":42,"lock_index":null,"slot_indexes":[3,5],"slot":3,"expires_in_seconds":27.0,"expires_in":27.0,"kind":"semaphore","name":"free","prefix":"service/free","key":null,"draining":true,"draining_ends_in_seconds":9.0}"#;
    assert_eq!(reply.body, format!("{lease}\n"));
    let wait = Duration::from_secs(90);
    assert_eq!(scene.next_asked().await, Asked::Acquire(Kind::Semaphore, "free".into(), wait));
    // As `curl -d` sends it.
    let form = "content-type: application/x-www-form-urlencoded\r\n";
    let reply = exchange(scene.unix().await, "POST /v1/locks/fr%65e/acquire", form, "").await;
    assert_eq!((reply.status, reply.json()["kind"].as_str()), (200, Some("lock")));
    assert_eq!(scene.next_asked().await, Asked::Acquire(Kind::Lock, "free".into(), Duration::ZERO));
    for (line, asked) in [
        ("GET /v1/leases/lease-1", Asked::Show("lease-1".into())),
        ("POST /v1/leases/lease-1/renew", Asked::Renew("lease-1".into())),
    ] {
        let reply = scene.ask(line, "").await;
        assert_eq!((reply.status, reply.body.trim_end()), (200, lease), "{line}");
        assert_eq!(scene.next_asked().await, asked);
    }
    let drained = scene.ask("POST /v1/drain", "").await;
    assert_eq!((drained.status, drained.body.trim_end()), (202, r#"{"state":"draining"}"#));
    assert_eq!(scene.next_asked().await, Asked::Drain);
}

#[tokio::test]
async fn a_reload_says_what_has_changed_or_why_nothing_has() {
    let mut scene = Scene::start().await;
    let document = document("GET /v1/openapi.json", false).await;
    let answers = &document["paths"]["/v1/reload"]["post"]["responses"];
    let done = scene.ask("POST /v1/reload", "").await;
    assert_eq!((done.status, done.json()["added"].clone()), (200, json!(["c"])), "{}", done.body);
    assert_eq!(scene.next_asked().await, Asked::Reload);
    for (status, code, said) in
        [(422, "reload_refused", "limmit: no such field"), (503, "draining", "is ending")]
    {
        let reply = scene.ask("POST /v1/reload", "").await;
        assert_eq!(reply.code(), (status, code.to_owned()));
        let description = answers[status.to_string()]["description"].as_str().unwrap();
        assert!(description.contains(&format!("`{code}`")), "{code} is not in the document: {description}");
        assert!(reply.body.contains("nothing is changed: ") && reply.body.contains(said), "{}", reply.body);
    }
    assert_eq!(scene.ask("GET /v1/reload", "").await.status, 405);
}

#[tokio::test]
async fn every_refusal_has_its_status_its_code_and_the_fix() {
    let scene = Scene::start().await;
    let document = document("GET /v1/openapi.json", false).await;
    let answers = &document["paths"]["/v1/semaphores/{name}/acquire"]["post"]["responses"];
    for (name, status, code, fix) in [
        ("nobody", 404, "unknown_semaphore", "it has free, held"),
        ("%FF", 404, "unknown_semaphore", "it has free, held"),
        ("held", 403, "not_on_demand", "mode: on_demand"),
        ("taken", 409, "timed_out", "within 5s"),
        ("blocked", 409, "blocked", "holds a picture"),
        ("away", 503, "consul_unavailable", "connection refused"),
        ("pending", 503, "pending", "still being released; retry later"),
        ("ending", 503, "draining", "is draining"),
        (
            "waits",
            429,
            "too_many_waits",
            "32 clients wait already, which is the limit; retry later, or raise \
          control.max_waits",
        ),
        ("leases", 429, "too_many_leases", "raise control.max_leases"),
    ] {
        let reply = scene.ask(&format!("POST /v1/semaphores/{name}/acquire"), r#"{"wait":"5s"}"#).await;
        assert_eq!(reply.code(), (status, code.to_owned()), "{name}");
        let description = answers[status.to_string()]["description"].as_str().unwrap();
        assert!(description.contains(&format!("`{code}`")), "{code} is not in the document: {description}");
        assert!(reply.body.contains(fix), "{}", reply.body);
    }
    let too_large = answers["413"]["description"].as_str().unwrap();
    assert!(too_large.contains(&format!("{} bytes", super::acquire::MAX_BODY_BYTES)), "{too_large}");
    let unknown = scene.ask("POST /v1/locks/nobody/acquire", "").await;
    assert_eq!(unknown.code(), (404, "unknown_lock".into()));
    let held = scene.ask("POST /v1/locks/held/acquire", "").await;
    assert!(held.body.contains("in its entry of `locks`"), "{}", held.body);
}

#[tokio::test]
async fn a_lost_lease_has_its_reason() {
    let scene = Scene::start().await;
    let document = document("GET /v1/openapi.json", false).await;
    let answers = &document["paths"]["/v1/leases/{lease}"]["get"]["responses"];
    for (lease, status, code) in [
        ("nobody", 404, "unknown_lease"),
        ("%ff", 404, "unknown_lease"),
        ("released", 404, "unknown_lease"),
        ("expired", 410, "lease_expired"),
        ("lost", 410, "lease_lost"),
    ] {
        for line in [format!("GET /v1/leases/{lease}"), format!("POST /v1/leases/{lease}/renew")] {
            let reply = scene.ask(&line, "").await;
            assert_eq!(reply.code(), (status, code.to_owned()), "{line}");
            let description = answers[status.to_string()]["description"].as_str().unwrap();
            assert!(
                description.contains(&format!("`{code}`")),
                "{code} is not in the document: {description}"
            );
            assert_eq!(reply.body.contains("(session_gone)"), lease == "lost", "{}", reply.body);
        }
    }
    for (lease, status, body) in [
        ("lease-1", 204, ""),
        ("released", 204, ""),
        ("expired", 204, ""),
        ("lost", 204, ""),
        ("slow", 202, "{\"state\":\"leaving\"}\n"),
    ] {
        let reply = scene.ask(&format!("DELETE /v1/leases/{lease}"), "").await;
        assert_eq!((reply.status, reply.body.as_str()), (status, body), "{lease}");
    }
    assert_eq!(scene.ask("DELETE /v1/leases/nobody", "").await.code(), (404, "unknown_lease".into()));
}

#[tokio::test]
async fn invalid_requests_are_refused_in_json() {
    let scene = Scene::start().await;
    let acquire = "POST /v1/semaphores/free/acquire";
    for body in ["wait=30s", r#"{"wait":"2h"}"#, r#"{"wait":"30s","more":1}"#] {
        assert_eq!(scene.ask(acquire, body).await.code(), (400, "bad_request".into()), "{body}");
    }
    let large = format!(r#"{{"wait":"{}"}}"#, "0".repeat(5000));
    assert_eq!(scene.ask(acquire, &large).await.code(), (413, "too_large".into()));
    assert_eq!(scene.ask("POST /v1/nowhere", "").await.code(), (404, "not_found".into()));
    for (line, allow) in [
        ("GET /v1/drain", "allow: post\r\n"),
        ("PUT /v1/leases/lease-1", "allow: get,head,delete\r\n"),
        ("POST /v1/status", "allow: get,head\r\n"),
    ] {
        let reply = scene.ask(line, "").await;
        assert_eq!(reply.code(), (405, "method_not_allowed".into()), "{line}");
        assert!(format!("{}\r\n", reply.head).contains(allow), "{line}: {}", reply.head);
    }
}

#[tokio::test]
async fn the_read_only_endpoints_are_there_too() {
    let scene = Scene::start().await;
    for path in ["/livez", "/metrics", "/v1/status", "/v1/openapi.json"] {
        assert_eq!(scene.ask(&format!("GET {path}"), "").await.status, 200, "{path}");
    }
    assert_eq!(scene.ask("GET /readyz", "").await.status, 503);
    assert_eq!(scene.ask("GET /v1/semaphores/s", "").await.code(), (404, "unknown_semaphore".into()));
}

#[tokio::test]
async fn a_tcp_address_requires_the_token() {
    let scene = Scene::start().await;
    let wrong = TOKEN.replace('f', "0");
    for headers in [
        String::new(),
        format!("authorization: Bearer {wrong}\r\n"),
        format!("authorization: Bearer {TOKEN}0\r\n"),
        format!("authorization: Basic {TOKEN}\r\n"),
        "authorization: Bearer \r\n".to_owned(),
    ] {
        for line in ["POST /v1/semaphores/free/acquire", "GET /v1/status", "GET /nowhere", "PUT /v1/drain"] {
            let reply = scene.ask_tcp(line, &headers).await;
            assert_eq!(reply.code(), (401, "unauthorized".into()), "{line} {headers}");
            assert!(reply.head.contains("www-authenticate: bearer"), "{}", reply.head);
        }
    }
    assert_eq!(scene.ask_tcp("GET /v1/openapi.json", "").await.status, 200);
    for scheme in ["Bearer", "bearer"] {
        let headers = format!("authorization: {scheme} {TOKEN}\r\n");
        assert_eq!(scene.ask_tcp("GET /v1/leases/lease-1", &headers).await.status, 200);
        assert_eq!(scene.ask_tcp("GET /nowhere", &headers).await.code(), (404, "not_found".into()));
    }
}

/// A client that disconnects must leave the queue: the future that waits for it is dropped with its connection.
#[tokio::test]
async fn a_client_that_disconnects_leaves_the_queue() {
    let mut scene = Scene::start().await;
    let request = |headers: &str, body| text_of("POST /v1/semaphores/crowded/acquire", headers, body);
    let wait = r#"{"wait":"1h"}"#;
    let bearer = format!("authorization: Bearer {TOKEN}\r\n");
    for (body, asked) in [(wait, Duration::from_secs(3600)), ("", Duration::ZERO)] {
        let mut unix = scene.unix().await;
        unix.write_all(request("", body).as_bytes()).await.unwrap();
        let acquire = Asked::Acquire(Kind::Semaphore, "crowded".into(), asked);
        assert_eq!(scene.next_asked().await, acquire);
        drop(unix);
        assert_eq!(scene.next_asked().await, Asked::Left("crowded".into()));

        let mut tcp = scene.tcp().await;
        tcp.write_all(request(&bearer, body).as_bytes()).await.unwrap();
        assert_eq!(scene.next_asked().await, acquire);
        // Nothing happens while it is connected.
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(scene.asked.try_recv().is_err());
        drop(tcp);
        assert_eq!(scene.next_asked().await, Asked::Left("crowded".into()));
    }
}

#[tokio::test]
async fn an_agent_that_accepts_nothing_is_an_error() {
    let (sender, receiver) = mpsc::channel(1);
    let (_, asked) = mpsc::unbounded_channel();
    let scene = Scene::with(sender.clone(), asked).await;
    sender.try_send(Request::Drain).unwrap();
    assert_eq!(scene.ask("GET /v1/leases/lease-1", "").await.code(), (503, "busy".into()));
    drop(receiver);
    assert_eq!(scene.ask("GET /v1/leases/lease-1", "").await.code(), (503, "draining".into()));
    // A request that is never answered fails in the same way.
    let (sender, mut receiver) = mpsc::channel(1);
    let (_, asked) = mpsc::unbounded_channel();
    let scene = Scene::with(sender, asked).await;
    tokio::spawn(async move { receiver.recv().await });
    let reply = scene.ask("POST /v1/semaphores/free/acquire", "").await;
    assert_eq!(reply.code(), (503, "draining".into()));
}

#[tokio::test]
async fn a_connection_serves_one_request() {
    let scene = Scene::start().await;
    let reply = scene.ask("GET /livez", "").await;
    assert!(reply.head.contains("connection: close"), "{}", reply.head);
    let (_reply, receiver) = oneshot::channel::<()>();
    drop(receiver);
    assert!(limits(32).life > Duration::from_secs(3600) && limits(32).connections == 288);
}

/// The document of a listener.
async fn document(line: &str, closed: bool) -> Value {
    let scene = Scene::start().await;
    let reply = if closed { scene.ask_tcp(line, "").await } else { scene.ask(line, "").await };
    assert_eq!(reply.status, 200);
    reply.json()
}

/// Every operation of a document, with its path and method.
fn operations(document: &Value) -> impl Iterator<Item = (&str, &str, &Value)> {
    let paths = document["paths"].as_object().unwrap().iter();
    paths.flat_map(|(path, item)| {
        item.as_object()
            .unwrap()
            .iter()
            .map(|(method, operation)| (path.as_str(), method.as_str(), operation))
    })
}

#[tokio::test]
async fn the_document_describes_every_operation_in_whole() {
    for closed in [false, true] {
        let document = document("GET /v1/openapi.json", closed).await;
        assert_eq!(document["openapi"], "3.1.0");
        assert_eq!(document["info"]["license"]["identifier"], "Apache-2.0");
        assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
        let all: Vec<_> = operations(&document).map(|(path, method, _)| (method, path)).collect();
        for one in [
            ("get", "/livez"),
            ("get", "/readyz"),
            ("get", "/healthz"),
            ("get", "/startupz"),
            ("get", "/metrics"),
            ("get", "/v1/status"),
            ("get", "/v1/semaphores/{name}"),
            ("get", "/v1/events"),
            ("get", "/v1/openapi.json"),
            ("post", "/v1/semaphores/{name}/acquire"),
            ("post", "/v1/locks/{name}/acquire"),
            ("get", "/v1/leases/{lease}"),
            ("delete", "/v1/leases/{lease}"),
            ("post", "/v1/leases/{lease}/renew"),
            ("post", "/v1/drain"),
            ("post", "/v1/reload"),
        ] {
            assert!(all.contains(&one), "{one:?} is missing in {all:?}");
        }
        for (path, method, operation) in operations(&document) {
            for text in ["summary", "description", "operationId"] {
                assert!(operation[text].is_string(), "{method} {path} has no {text}");
            }
            assert!(operation["tags"].is_array(), "{method} {path}");
            let bounded =
                |parameter: &Value| parameter["schema"]["pattern"].is_string() || parameter["in"] == "query";
            let parameters = operation["parameters"].as_array();
            assert!(parameters.into_iter().flatten().all(bounded), "{method} {path}");
            let guarded = closed && path != "/v1/openapi.json";
            assert_eq!(operation["responses"]["401"].is_object(), guarded, "{method} {path}");
        }
        let granted = &document["paths"]["/v1/locks/{name}/acquire"]["post"]["responses"]["200"];
        for operation in ["show_lease", "renew_lease", "release_lease"] {
            assert_eq!(granted["links"][operation]["operationId"], operation);
        }
        assert_eq!(document["security"].is_array(), closed);
        assert_eq!(document["components"]["securitySchemes"].is_object(), closed);
        assert_references(&document, &document);
    }
}

/// Every reference resolves.
fn assert_references(document: &Value, value: &Value) {
    match value {
        Value::Object(members) => {
            if let Some(reference) = members.get("$ref").and_then(Value::as_str) {
                let pointer = reference.strip_prefix('#').unwrap();
                assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
            }
            members.values().for_each(|member| assert_references(document, member));
        }
        Value::Array(items) => items.iter().for_each(|item| assert_references(document, item)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
