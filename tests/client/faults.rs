//! What no Consul should do, and what every network does.

use std::sync::Arc;
use std::time::Duration;

use slotkeeper_consul::{
    Address, Client, Code, Error, Kind, MAX_ANSWER, Operation, Read, Secret, Settings, TokenSource, TxnOp,
};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, timeout};

use crate::stub::{Act, Stub};
use crate::{Recorder, client, client_with, spec, write};

const TOKEN: &str = "f00dcafe-hunter2";

async fn put(client: &Client) -> Error {
    write(client, "some/key").await.unwrap_err()
}

async fn put_at(act: Act) -> Error {
    put(&client(&Stub::start(vec![act]).await.addr())).await
}

async fn get_at(act: Act) -> Error {
    client(&Stub::start(vec![act]).await.addr()).kv_get("some/key", Read::default()).await.unwrap_err()
}

#[tokio::test]
async fn no_server_listens() {
    let (_ports, address) = crate::consul::nobody();
    let address: Address = address.parse().unwrap();
    let error = put(&client(&address)).await;
    assert!(error.kind == Kind::NotSent && error.code == Code::Unreachable, "{error}");
    let text = error.to_string();
    assert!(
        text.starts_with(&format!("cannot commit a transaction on some/key at {address}: not reached: ")),
        "{text}"
    );
    assert!(text.contains("refused"), "{text}");
}

#[tokio::test]
async fn the_name_does_not_resolve() {
    // Whether the resolver says so or does not answer: the connection is never made.
    let error = put(&client(&"consul.invalid:8500".parse().unwrap())).await;
    assert!(error.kind == Kind::NotSent && error.code == Code::Unreachable, "{error}");
}

#[tokio::test]
async fn a_host_that_drops_packets_got_nothing() {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let addr = listener.local_addr().unwrap();
    // The server does not accept: once the backlog is full, the kernel drops new connections.
    let mut backlog = Vec::new();
    while let Ok(stream) = timeout(Duration::from_millis(300), TcpStream::connect(addr)).await {
        backlog.push(stream.unwrap());
    }
    let error = put(&client(&addr.to_string().parse().unwrap())).await;
    assert!(error.kind == Kind::NotSent && error.code == Code::Unreachable, "{error}");
}

#[tokio::test]
async fn no_answer_means_that_the_outcome_is_unknown() {
    let stub = Stub::start(vec![Act::Silence]).await;
    let client = client(&stub.addr()).within(Duration::from_millis(200));
    let started = Instant::now();
    let error = put(&client).await;
    assert!(started.elapsed() < Duration::from_secs(5));
    assert!(error.kind == Kind::Unknown && error.code == Code::Timeout, "{error}");
    assert_eq!(
        error.to_string(),
        format!(
            "cannot commit a transaction on some/key at {}: no answer within 200ms; nothing there has answered yet; it may have been applied",
            stub.addr()
        )
    );
    let error = client.kv_get("k", Read::default()).await.unwrap_err();
    assert!(error.kind == Kind::Unknown && error.code == Code::Timeout, "{error}");
    assert_eq!(stub.seen().len(), 2, "a request with an unknown outcome was sent again");
}

#[tokio::test]
async fn a_slow_body_is_no_answer_either() {
    let stub = Stub::start(vec![Act::Say(b"HTTP/1.1 200 X\r\nContent-Length: 4\r\n\r\ntr".into())]).await;
    let error = put(&client(&stub.addr()).within(Duration::from_millis(200))).await;
    assert!(error.kind == Kind::Unknown && error.code == Code::Timeout, "{error}");
}

#[tokio::test]
async fn a_connection_that_breaks_leaves_the_outcome_unknown() {
    for sent in ["", "HTTP/1.1 200 X\r\n", "HTTP/1.1 200 X\r\nContent-Length: 4\r\n\r\ntr"] {
        let error = put_at(Act::Break(sent.into())).await;
        assert!(error.kind == Kind::Unknown && error.code == Code::Interrupted, "{sent:?}: {error}");
    }
}

#[tokio::test]
async fn a_refusal_counts_though_the_connection_breaks_after_it() {
    let sent = "HTTP/1.1 413 X\r\nContent-Length: 100\r\n\r\nRequest body too large";
    let error = put_at(Act::Break(sent.into())).await;
    assert!(error.kind == Kind::Refused && error.code == Code::TooLarge, "{error}");
}

#[tokio::test]
async fn a_write_on_a_kept_connection_that_breaks_is_not_sent_again() {
    let stub = Stub::start(vec![Act::committed(), Act::Break(Vec::new()), Act::committed()]).await;
    let client = client(&stub.addr());
    assert!(write(&client, "k").await.unwrap());
    let error = put(&client).await;
    assert!(error.kind == Kind::Unknown && error.code == Code::Interrupted, "{error}");
    assert_eq!(stub.seen().len(), 2);
    assert!(write(&client, "k").await.unwrap());
}

#[tokio::test]
async fn refusals_have_classes() {
    for (status, body, class) in [
        (500, "No cluster leader", Kind::NoLeader),
        (500, "rpc error making call: EOF", Kind::NoLeader),
        (429, "", Kind::Busy),
        (403, "Permission denied", Kind::Denied),
        (413, "Value exceeds 512 kB limit", Kind::Refused),
        (400, "Failed to parse body", Kind::Refused),
        (502, "<html>bad gateway</html>", Kind::Unknown),
    ] {
        let error = put_at(Act::json(status, body)).await;
        assert_eq!(error.kind, class, "{status}: {error}");
    }
}

#[tokio::test]
async fn garbage_is_not_understood() {
    for body in ["", "<html>", "\"a\"", "tru"] {
        let error = put_at(Act::json(200, body)).await;
        assert!(error.kind == Kind::NotConsul && error.code == Code::BadAnswer, "{body}: {error}");
    }
    let error = get_at(Act::json(200, "{\"a\":1}")).await;
    assert!(error.kind == Kind::NotConsul && error.code == Code::BadAnswer, "{error}");
    let error = get_at(Act::Say(b"SSH-2.0-OpenSSH_9.2\r\n".into())).await;
    assert!(error.kind == Kind::NotConsul && error.is_mismatch(), "{error}");
    let error = get_at(Act::answer(200, "", "[]")).await;
    assert!(
        error.kind == Kind::NotConsul
            && error.code == Code::BadAnswer
            && error.to_string().contains("X-Consul-Index"),
        "{error}"
    );
    for (status, body) in [(200, "{\"Errors\":[{\"OpIndex\":0,\"What\":\"x\"}]}"), (409, "{\"Errors\":null}")]
    {
        let stub = Stub::start(vec![Act::json(status, body)]).await;
        let error = client(&stub.addr()).txn(&[TxnOp::Get { key: "k".into() }]).await.unwrap_err();
        assert_eq!(error.code, Code::BadAnswer, "{error}");
    }
}

#[tokio::test]
async fn an_endless_answer_is_cut_off() {
    let body = format!("[\"{}\"]", "x".repeat(MAX_ANSWER));
    let error = get_at(Act::json(200, &body)).await;
    assert!(
        error.kind == Kind::NotConsul && error.code == Code::BadAnswer && error.to_string().len() < 1000,
        "{error}"
    );
    let error = get_at(Act::json(500, &body)).await;
    assert!(error.kind == Kind::Unknown && error.to_string().len() < 1000, "{error}");
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let other = Stub::start(vec![Act::committed()]).await;
    for status in [301, 302, 307, 308] {
        let location = format!("Location: {}/v1/txn\r\n", other.addr());
        let error = put_at(Act::answer(status, &location, "")).await;
        assert!(error.kind == Kind::NotConsul, "{error}");
    }
    assert!(other.seen().is_empty());
}

#[tokio::test]
async fn only_consuls_own_404_means_that_a_key_is_missing() {
    let error = get_at(Act::answer(404, "", "404 page not found")).await;
    assert!(error.kind == Kind::NotConsul, "{error}");
    let stub = Stub::start(vec![Act::json(404, "")]).await;
    let found = client(&stub.addr()).kv_get("k", Read::default()).await.unwrap();
    assert_eq!((found.index, found.value), (7, None));
    let stub = Stub::start(vec![Act::answer(404, "", "404 page not found")]).await;
    let error = client(&stub.addr()).session_renew("abc").await.unwrap_err();
    assert!(error.kind == Kind::NotConsul, "{error}");
}

#[tokio::test]
async fn an_index_of_zero_counts_as_one() {
    let stub = Stub::start(vec![Act::answer(404, "X-Consul-Index: 0\r\n", "")]).await;
    assert_eq!(client(&stub.addr()).kv_get("k", Read::default()).await.unwrap().index, 1);
}

#[tokio::test]
async fn an_answer_with_hidden_parts_is_a_refusal() {
    let headers = "X-Consul-Index: 7\r\nX-Consul-Results-Filtered-By-ACLs: true\r\n";
    let error = get_at(Act::answer(200, headers, "[]")).await;
    assert_eq!(error.kind, Kind::Denied, "{error}");
    // What is hidden must not pass for a session that has ended.
    let stub = Stub::start(vec![Act::answer(200, headers, "[]")]).await;
    let error = client(&stub.addr()).session_info("abc", Read::default()).await.unwrap_err();
    assert_eq!(error.kind, Kind::Denied, "{error}");
}

#[tokio::test]
async fn a_list_with_hidden_parts_shows_the_rest_and_says_so() {
    let headers = "X-Consul-Index: 7\r\nX-Consul-Results-Filtered-By-ACLs: true\r\n";
    let pair = r#"[{"LockIndex":0,"Key":"p/a","Flags":0,"Value":null,"CreateIndex":2,"ModifyIndex":3}]"#;
    for (status, body, keys) in [(200, pair, 1), (404, "", 0)] {
        let recorder = Arc::new(Recorder::default());
        let stub = Stub::start(vec![Act::answer(status, headers, body)]).await;
        let settings = Settings { address: stub.addr().into(), ..Settings::default() };
        let client = Client::new(&settings, recorder.clone()).unwrap();
        let listed = client.kv_list("p/", Read::default()).await.unwrap();
        assert_eq!((listed.filtered, listed.value.len()), (true, keys));
        assert_ne!(recorder.seen(), [(Operation::KvList, Code::Forbidden)]);
    }
    let stub = Stub::start(vec![Act::answer(200, headers, "[]"), Act::json(200, "[]")]).await;
    let client = client(&stub.addr());
    for filtered in [true, false] {
        let listed = client.session_list(Read::default()).await.unwrap();
        assert_eq!((listed.filtered, listed.value.len()), (filtered, 0));
    }
}

#[tokio::test]
async fn a_token_that_is_sent_back_is_not_shown() {
    let body = format!("cannot serve X-Consul-Token: {TOKEN}");
    let stub = Stub::start(vec![Act::json(500, &body)]).await;
    let client = client_with(&stub.addr(), TokenSource::Value(Secret::new(TOKEN)));
    let error = put(&client).await;
    let shown = format!("{error} {error:?} {client:?}");
    assert!(shown.contains("cannot serve") && !shown.contains(TOKEN), "{shown}");
}

#[tokio::test]
async fn every_request_carries_its_parameters() {
    let stub = Stub::start(vec![Act::json(200, r#"{"ID":"some-id"}"#), Act::json(200, "[]")]).await;
    let settings = Settings {
        address: format!("{}/prefix", stub.addr()).parse().unwrap(),
        token: Some(TokenSource::Value(Secret::new(TOKEN))),
        datacenter: Some("dc 1".into()),
        namespace: Some("team&x".into()),
        partition: Some("p".into()),
        ..Settings::default()
    };
    let recorder = Arc::new(Recorder::default());
    let client = Client::new(&settings, recorder.clone()).unwrap();
    assert!(!format!("{settings:?} {client:?}").contains(TOKEN));
    assert_eq!(client.session_create(&spec()).await.unwrap(), "some-id");
    client.kv_get("a b", Read::consistent().after(5, Duration::from_secs(2))).await.unwrap();
    let [create, get] = stub.seen().try_into().unwrap();
    let (head, body) = create.split_once("\r\n\r\n").unwrap();
    let head = head.to_lowercase();
    assert!(
        head.starts_with("put /prefix/v1/session/create?dc=dc+1&ns=team%26x&partition=p http/1.1"),
        "{head}"
    );
    assert!(head.contains(&format!("\r\nx-consul-token: {TOKEN}\r\n")), "{head}");
    assert!(head.contains(&format!("\r\ncontent-length: {}", body.len())), "{head}");
    assert!(!head.contains("transfer-encoding"), "{head}");
    assert_eq!(
        body,
        r#"{"Name":"client test","TTL":"30s","Behavior":"delete","LockDelay":"0s","NodeChecks":[],"ServiceChecks":[]}"#
    );
    let target = "GET /prefix/v1/kv/a%20b?dc=dc+1&ns=team%26x&partition=p&consistent=&index=5&wait=2000ms ";
    assert!(get.starts_with(target), "{get}");
    assert_eq!(recorder.seen(), [(Operation::SessionCreate, Code::Ok), (Operation::KvWatch, Code::Ok)]);
}

#[tokio::test]
async fn failures_are_observed_too() {
    let recorder = Arc::new(Recorder::default());
    let stub =
        Stub::start(vec![Act::json(500, "No cluster leader"), Act::Break(Vec::new()), Act::Silence]).await;
    let settings = Settings { address: stub.addr().into(), ..Settings::default() };
    let client = Client::new(&settings, recorder.clone()).unwrap().within(Duration::from_secs(3));
    for _ in 0..3 {
        put(&client).await;
    }
    let codes: Vec<_> = recorder.seen().into_iter().map(|(_, code)| code).collect();
    assert_eq!(codes, [Code::ServerError, Code::Interrupted, Code::Timeout]);
}

#[tokio::test]
async fn a_rollback_for_want_of_a_right_is_tried_again_with_a_new_token() {
    let denied = r#"{"Results":null,"Errors":[{"OpIndex":0,"What":"Permission denied"}]}"#;
    let stub = Stub::start(vec![Act::committed(), Act::json(409, denied), Act::committed()]).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "old").unwrap();
    let client = client_with(&stub.addr(), TokenSource::File(file.clone()));
    assert!(write(&client, "k").await.unwrap());
    std::fs::write(&file, "new").unwrap();
    assert!(write(&client, "k").await.unwrap());
    let sent = stub.seen();
    assert_eq!(sent.len(), 3);
    assert!(sent[0].contains("x-consul-token: old") && sent[2].contains("x-consul-token: new"), "{sent:?}");
}

#[test]
fn proxies_of_the_environment_are_not_used() {
    // Variables cannot be set in a process of many threads, so one of the tests above is run in another process.
    let (_ports, address) = crate::consul::nobody();
    let nobody = format!("http://{address}");
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", "faults::refusals_have_classes"]);
    for name in ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"] {
        again.env(name, &nobody);
    }
    let output = again.env_remove("NO_PROXY").env_remove("no_proxy").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
fn futures_can_move_between_threads() {
    fn send<T: Send + 'static>(_: T) {}
    let client = client(&Address::default());
    send(async move {
        let _ = client.kv_get("k", Read::default()).await;
        let _ = client.txn(&[]).await;
    });
}
