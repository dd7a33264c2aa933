//! What listens at a port that has closed a connection without an answer, as far as that is certain.
//!
//! A proxy whose Consul is down closes connections too, but at its own time: it does not wait for a request.

use std::future::pending;
use std::ops::Range;
use std::pin::pin;
use std::time::Duration;

use reqwest::Url;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{Code, Error, Kind, Tried};

/// An answer that takes longer is waited for, but may never come.
const SLOW: Duration = Duration::from_millis(500);
/// Nothing is sent for so long, at least and at most. A proxy that closes each connection after a fixed time meets the end of
/// this time once, and not by three probes in a row.
const QUIET_MILLIS: Range<u64> = 300..700;
/// A connection takes no longer.
const CONNECT: Duration = Duration::from_secs(1);
/// A close within this time is the answer to what was sent.
const AT_ONCE: Duration = Duration::from_millis(250);

/// A query for the root's name servers: its length, its id, and a question of five bytes.
const DNS_QUERY: &[u8] = b"\x00\x11\x5e\x1f\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x01";

/// Waits for the answer to a request at a place that has never answered. If that takes long, or the connection breaks, it finds out
/// what listens there, by a request for `leader`.
///
/// # Errors
///
/// As of the request; [`Kind::NotConsul`] where that is certain.
pub(super) async fn first_answer<T>(
    (host, port): &(String, u16),
    leader: &Url,
    tried: &Tried,
    request: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let mut request = pin!(request);
    let how = "it sends other bytes, or closes the connection in place of an answer";
    let not_http = || Err(Error::new(tried.clone(), Kind::NotConsul, Code::Interrupted, how));
    let place = (host.as_str(), *port);
    match timeout(SLOW, &mut request).await {
        Ok(Err(error)) if error.kind == Kind::Unknown => {
            if is_not_http(place, leader, true).await {
                not_http()
            } else {
                Err(error)
            }
        }
        Ok(result) => result,
        // The request goes on meanwhile: its own time counts.
        Err(_) => tokio::select! {
            result = &mut request => result,
            () = async { if !is_not_http(place, leader, false).await { pending().await } } => not_http(),
        },
    }
}

/// Whether the port certainly does not serve HTTP: it speaks first, it closes a quiet connection as soon as it gets a request, or
/// it answers as a DNS server. False where that is not certain. A close counts only if the client's own request broke, too: behind a
/// slow proxy is a Consul.
async fn is_not_http(address: (&str, u16), leader: &Url, is_broken: bool) -> bool {
    let connect = || async { timeout(CONNECT, TcpStream::connect(address)).await.ok()?.ok() };
    // Gets no request. A server that closes each connection by itself closes this one, too.
    let Some(mut control) = connect().await else { return false };
    let Some(mut stream) = connect().await else { return false };
    let quiet = Duration::from_millis(fastrand::u64(QUIET_MILLIS));
    if let Some(first) = heard(&mut stream, quiet).await {
        // Consul refuses a connection above its limit by a 429 before any request, or closes it.
        return !first.is_empty() && !begins_http(&first);
    }
    // A proxy may know only its own hosts and paths.
    let (path, host) = (leader.path(), leader.authority());
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    match asked(stream, request.as_bytes()).await {
        Some(first) if first.is_empty() => is_broken && heard(&mut control, AT_ONCE).await.is_none(),
        Some(first) => !begins_http(&first),
        None => match connect().await {
            Some(stream) => {
                asked(stream, DNS_QUERY).await.is_some_and(|all| all.get(2..4) == DNS_QUERY.get(2..4))
            }
            None => false,
        },
    }
}

/// Whether these first bytes may be those of an HTTP answer, of which a slow server sends only some.
fn begins_http(first: &[u8]) -> bool {
    first.iter().zip(b"HTTP/").all(|(byte, expected)| byte == expected)
}

/// What the server answers at once.
async fn asked(mut stream: TcpStream, request: &[u8]) -> Option<Vec<u8>> {
    // A failed write is seen by the read.
    let _ = stream.write_all(request).await;
    heard(&mut stream, AT_ONCE).await
}

/// The first bytes within that time; empty if the server closes the connection, `None` if nothing happens.
async fn heard(stream: &mut TcpStream, within: Duration) -> Option<Vec<u8>> {
    let mut first = vec![0; 64];
    let read = timeout(within, stream.read(&mut first)).await.ok()?;
    first.truncate(read.unwrap_or(0));
    Some(first)
}
