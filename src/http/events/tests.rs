//! Streams over a real socket, with an agent whose status the test sets.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::*;
use crate::agent;
use crate::http::{openapi, router};
use crate::metrics::Metrics;
use crate::watchdog::Watchdog;
use slotkeeper_serve::{Limits, serve};

const TIMEOUT: Duration = Duration::from_secs(60);
/// Longer than any of these tests takes.
const NEVER: Duration = Duration::from_secs(60 * 60);

/// A client of a stream.
type Reader = BufReader<TcpStream>;

fn site(following: Following) -> (watch::Sender<Arc<Snapshot>>, Site) {
    let now = clock::now();
    let (tells, status) = watch::channel(Arc::new(agent::before_start(now)));
    let metrics = Arc::new(Metrics::new().unwrap());
    (tells, Site::new(status, metrics, Arc::new(Watchdog::new(now))).followed(following))
}

/// An agent with one stream.
async fn start(
    pace: Duration,
    silence: Duration,
    life: Duration,
) -> (watch::Sender<Arc<Snapshot>>, SocketAddr) {
    let (tells, site) = site(Following { places: 1, pace, silence, life });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(listener, router(site, address.ip()), Limits::default(), std::future::pending()));
    (tells, address)
}

async fn follow(address: SocketAddr) -> Reader {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /v1/events HTTP/1.0\r\n\r\n").await.unwrap();
    BufReader::new(stream)
}

/// The next line with this start; `None` once the stream has ended.
async fn line(reader: &mut Reader, start: &str) -> Option<String> {
    let read = async {
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).await.unwrap() == 0 {
                return None;
            }
            if line.starts_with(start) {
                return Some(line);
            }
        }
    };
    timeout(TIMEOUT, read).await.unwrap()
}

#[tokio::test]
async fn a_silence_ends_with_an_event() {
    let (_tells, address) = start(Duration::ZERO, Duration::from_millis(20), NEVER).await;
    let mut reader = follow(address).await;
    assert_eq!(line(&mut reader, "event: ").await.as_deref(), Some("event: status\n"));
    for _ in 0..3 {
        assert_eq!(line(&mut reader, "event: ").await.as_deref(), Some("event: alive\n"));
    }
}

#[tokio::test]
async fn a_stream_ends_with_its_lifetime_and_frees_its_permit() {
    let (_tells, address) = start(Duration::ZERO, NEVER, Duration::from_secs(1)).await;
    for _ in 0..3 {
        // With one stream, each client waits for the end of the one before.
        let mut reader = follow(address).await;
        assert_eq!(line(&mut reader, "HTTP/").await.as_deref(), Some("HTTP/1.0 200 OK\r\n"));
        assert_eq!(line(&mut reader, "event: ").await.as_deref(), Some("event: status\n"));
        assert_eq!(line(&mut reader, "event: ").await, None);
    }
}

#[tokio::test]
async fn changes_faster_than_the_pace_are_sent_together() {
    const CHANGES: u32 = 100;
    let pace = Duration::from_secs(1);
    let (tells, address) = start(pace, NEVER, NEVER).await;
    let mut reader = follow(address).await;
    assert!(line(&mut reader, "event: status").await.is_some());
    let began = clock::now();
    let mut last = tells.borrow().id;
    for _ in 0..CHANGES {
        last = last.next();
        tells.send_modify(|shown| Arc::make_mut(shown).id = last);
        // Time in which a change could be sent.
        sleep(Duration::from_millis(2)).await;
    }
    let (mut sent, last) = (0, format!("id: {last}\n"));
    while line(&mut reader, "id: ").await.unwrap() != last {
        sent += 1;
    }
    let most = clock::now().since(began).as_secs() + 1;
    assert!(sent <= most, "{sent} of {CHANGES} in {most} s");
}

#[tokio::test]
async fn its_connection_has_no_time_limit() {
    let (_tells, site) = site(Following::default());
    let response = events(State(site), HeaderMap::new()).await;
    assert!(response.extensions().get::<Endless>().is_some());
}

#[test]
fn the_document_states_the_terms() {
    let Following { silence, life, .. } = Following::default();
    let document: Value = serde_json::from_str(openapi::READ_ONLY).unwrap();
    let stream = &document["paths"]["/v1/events"]["get"];
    let text = stream["description"].as_str().unwrap();
    assert!(text.contains(&format!("for {} s.", silence.as_secs())), "{text}");
    assert!(stream["responses"]["200"]["description"].as_str().unwrap().contains("for an hour"), "{stream}");
    assert_eq!(life, Duration::from_secs(3600));
}
