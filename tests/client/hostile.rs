//! Untrusted answers: the server may send anything for any time, so each answer is limited in time and in
//! memory, and ends in an error that says what was wrong with it.

use std::future::Future;
use std::io::Write as _;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use slotkeeper_consul::{Address, Client, Code, Error, Kind, MAX_ANSWER, Read};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::client;

/// A head that promises a list of keys.
const HEAD: &str = "HTTP/1.1 200 OK\r\nX-Consul-Index: 7\r\n";

/// What listens where Consul should.
struct Impostor {
    address: Address,
    task: JoinHandle<()>,
}

impl Impostor {
    /// One that does `act` with each connection, after its request.
    async fn start<F: Future<Output = std::io::Result<()>> + Send>(
        act: impl Fn(TcpStream) -> F + Clone + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string().parse().unwrap();
        let task = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let act = act.clone();
                tokio::spawn(async move {
                    let _ = stream.read(&mut [0; 4096]).await;
                    // It ends where the client closes the connection.
                    let _ = act(stream).await;
                });
            }
        });
        Self { address, task }
    }

    /// A server that sends `head`, and then `again` until the client closes the connection.
    async fn endless(head: String, again: Vec<u8>) -> Self {
        Self::start(move |mut stream| {
            let (head, again) = (head.clone(), again.clone());
            async move {
                stream.write_all(head.as_bytes()).await?;
                loop {
                    stream.write_all(&again).await?;
                }
            }
        })
        .await
    }

    /// One that says this and closes the connection.
    async fn saying(answer: impl Into<Vec<u8>>) -> Self {
        let answer = answer.into();
        Self::start(move |mut stream| {
            let answer = answer.clone();
            async move {
                stream.write_all(&answer).await?;
                stream.shutdown().await?;
                // Until the client has read it all.
                stream.read(&mut [0; 1]).await.map(drop)
            }
        })
        .await
    }

    fn client(&self) -> Client {
        client(&self.address)
    }

    async fn list(&self) -> Result<usize, Error> {
        self.client().kv_list("p/", Read::default()).await.map(|found| found.value.len())
    }

    async fn error(&self) -> Error {
        let error = self.list().await.unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with(&format!("cannot list p/ at {}: ", self.address)), "{text}");
        assert!(text.len() < 1000 && !text.contains(char::is_control), "{text}");
        error
    }
}

impl Drop for Impostor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn body(content: &[u8]) -> Vec<u8> {
    let head = format!("{HEAD}Content-Length: {}\r\n\r\n", content.len());
    [head.as_bytes(), content].concat()
}

#[tokio::test]
async fn a_body_without_end_is_cut_off() {
    let chunk = [b"10000\r\n".as_slice(), &[b' '; 0x10000], b"\r\n"].concat();
    for (head, again) in [
        ("Transfer-Encoding: chunked\r\n\r\n", chunk),
        ("Content-Length: 1000000000000\r\n\r\n", vec![b' '; 0x10000]),
        ("Connection: close\r\n\r\n", vec![b' '; 0x10000]),
    ] {
        let error = Impostor::endless(format!("{HEAD}{head}"), again).await.error().await;
        let said = format!("the answer cannot be decoded: it is longer than {MAX_ANSWER} bytes");
        assert!(error.code == Code::BadAnswer && error.detail == said, "{head:?}: {error}");
    }
}

fn compressed(content: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    gzip.write_all(content).unwrap();
    gzip.finish().unwrap()
}

fn compressed_body(content: &[u8]) -> Vec<u8> {
    let head = format!("{HEAD}Content-Encoding: gzip\r\nContent-Length: {}\r\n\r\n", content.len());
    [head.as_bytes(), content].concat()
}

#[tokio::test]
async fn a_compressed_body_counts_as_long_as_it_really_is() {
    let bomb = compressed(&vec![b' '; 20 * MAX_ANSWER]);
    assert!(bomb.len() < MAX_ANSWER / 10);
    let error = Impostor::saying(compressed_body(&bomb)).await.error().await;
    let said = format!("the answer cannot be decoded: it is longer than {MAX_ANSWER} bytes");
    assert!(error.code == Code::BadAnswer && error.detail == said, "{error}");

    let pair = r#"[{"Key":"p/k","Flags":0,"LockIndex":0,"CreateIndex":1,"ModifyIndex":1}]"#;
    let whole = compressed(pair.as_bytes());
    assert_eq!(Impostor::saying(compressed_body(&whole)).await.list().await.unwrap(), 1);
    for broken in [&whole[..whole.len() / 2], b"no gzip at all", b""] {
        let error = Impostor::saying(compressed_body(broken)).await.error().await;
        assert!(matches!(error.code, Code::Interrupted | Code::BadAnswer), "{broken:?}: {error}");
    }
}

#[tokio::test]
async fn a_head_without_end_is_cut_off() {
    for (head, again, kind) in [
        ("HTTP/1.1 200 OK\r\n", "X-Header: x\r\n".repeat(1000), Kind::Unknown),
        ("HTTP/1.1 200 OK\r\nX-Long: ", "x".repeat(0x10000), Kind::Unknown),
        ("", "\r\n".repeat(1000), Kind::NotConsul),
        ("HTTP/1.1 ", "0".repeat(0x10000), Kind::Unknown),
    ] {
        let error = Impostor::endless(head.into(), again.into_bytes()).await.error().await;
        assert!(error.kind == kind && error.code == Code::Interrupted, "{head:?}: {error}");
    }
}

#[tokio::test]
async fn an_endless_interim_answer_gets_no_more_time_than_any_other() {
    let again = "HTTP/1.1 100 Continue\r\n\r\n".repeat(100);
    let endless = Impostor::endless(String::new(), again.into_bytes()).await;
    let error =
        endless.client().within(Duration::from_secs(1)).kv_get("k", Read::default()).await.unwrap_err();
    assert!(error.code == Code::Timeout, "{error}");
}

#[tokio::test]
async fn a_trickle_of_bytes_is_no_answer() {
    let dripping = Impostor::start(|mut stream| async move {
        let answer = body(&[b' '; 1_000_000]);
        for byte in answer {
            stream.write_all(&[byte]).await?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    })
    .await;
    let client = dripping.client().within(Duration::from_secs(1));
    let error = client.kv_get("k", Read::default()).await.unwrap_err();
    assert!(error.code == Code::Timeout, "{error}");
}

#[tokio::test]
async fn a_length_that_is_wrong_is_no_answer() {
    for (head, content) in [
        ("Content-Length: 100\r\n\r\n", "[]"),
        ("Content-Length: -1\r\n\r\n", "[]"),
        ("Content-Length: 18446744073709551616\r\n\r\n", "[]"),
        ("Content-Length: 2\r\nContent-Length: 3\r\n\r\n", "[]"),
        ("Transfer-Encoding: chunked\r\n\r\n", "ffffffffffffffffff\r\n[]"),
        ("Transfer-Encoding: chunked\r\n\r\n", "2\r\n[]"),
        ("Transfer-Encoding: chunked\r\n\r\n", "x"),
    ] {
        let error = Impostor::saying(format!("{HEAD}{head}{content}")).await.error().await;
        assert!(error.code == Code::Interrupted, "{head:?} {content:?}: {error}");
    }
    let longer = Impostor::saying(format!("{HEAD}Content-Length: 2\r\n\r\n[]HTTP/1.1 200 OK\r\n\r\n")).await;
    assert_eq!(longer.list().await.unwrap(), 0, "what comes after the answer is nobody's");
}

#[tokio::test]
async fn json_of_any_depth_and_shape_is_harmless() {
    let deep = MAX_ANSWER / 2 - 1000;
    for (content, why) in [
        ("[".repeat(deep), "it is JSON of another shape"),
        (r#"[{"x":"#.repeat(deep / 6), "it ends too early"),
        (format!("[{}1]", "1,".repeat(deep / 2)), "it is JSON of another shape"),
        (format!("[\"{}\"]", "\\u0000".repeat(deep / 6)), "it is JSON of another shape"),
        (r#"[{"Key":"k","Value":"#.to_owned(), "it ends too early"),
        ("<html>".to_owned(), "it is not JSON"),
    ] {
        let error = Impostor::saying(body(content.as_bytes())).await.error().await;
        assert!(
            error.code == Code::BadAnswer && error.detail.contains(&format!(": {why}")),
            "{why}: {error}"
        );
    }
}

#[tokio::test]
async fn as_many_keys_as_fit_are_read() {
    let pair = r#"{"Key":"p/k","Flags":0,"LockIndex":0,"CreateIndex":1,"ModifyIndex":1}"#;
    let count = MAX_ANSWER / (pair.len() + 1) - 1;
    let content = format!("[{}]", vec![pair; count].join(","));
    assert_eq!(Impostor::saying(body(content.as_bytes())).await.list().await.unwrap(), count);
}

#[tokio::test]
async fn a_session_with_an_invalid_id_is_rejected() {
    let long = "a".repeat(65);
    for id in ["", "a b", "a\\n2026-01-01T00:00:00Z  INFO forged", "../../kv/p", "\\u001b[2J", &long] {
        let answer = body(format!(r#"{{"ID":"{id}"}}"#).as_bytes());
        let error = Impostor::saying(answer).await.client().session_create(&crate::spec()).await.unwrap_err();
        assert!(
            error.code == Code::BadAnswer && error.detail.ends_with(": its ID is not a session ID"),
            "{id}: {error}"
        );
    }
}

#[tokio::test]
async fn a_token_that_is_sent_back_inside_of_json_is_not_shown() {
    const TOKEN: &str = "f00dcafe-hunter2";
    let what = format!(r#"{{"Errors":[{{"OpIndex":0,"What":"no: {TOKEN}"}}]}}"#);
    let head =
        "HTTP/1.1 409 Conflict\r\n".to_owned() + &format!("Content-Length: {}\r\n\r\n{what}", what.len());
    for answer in [body(format!(r#"["{TOKEN}"]"#).as_bytes()), head.into_bytes()] {
        let impostor = Impostor::saying(answer).await;
        let token = slotkeeper_consul::TokenSource::Value(slotkeeper_consul::Secret::new(TOKEN));
        let client = crate::client_with(&impostor.address, token);
        let ops = [slotkeeper_consul::TxnOp::Delete { key: "k".into() }];
        let said = format!("{:?}", client.txn(&ops).await);
        assert!(!said.contains(TOKEN), "{said}");
    }
}
