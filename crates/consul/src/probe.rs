//! What listens at a port that has closed a connection without an answer, as far as that is certain.
//!
//! A proxy whose Consul is down closes connections too, but at its own time: it does not wait for a request.

use std::future::pending;
use std::ops::Range;
use std::pin::pin;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{Error, Kind, Mismatch, Tried};

/// An answer that takes longer is waited for, but may never come.
const SLOW: Duration = Duration::from_millis(500);
/// Nothing is sent for so long, at least and at most. A proxy that closes each connection after a fixed time meets the end of
/// this time once, and not by three probes in a row.
const QUIET_MILLIS: Range<u64> = 300..700;
/// A close within this time is the answer to what was sent.
const AT_ONCE: Duration = Duration::from_millis(250);

const HTTP_REQUEST: &[u8] = b"GET /v1/status/leader HTTP/1.1\r\nHost: consul\r\nConnection: close\r\n\r\n";
/// A query for the root's name servers: its length, its id, and a question of five bytes.
const DNS_QUERY: &[u8] = b"\x00\x11\x5e\x1f\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x01";

/// Waits for the answer to a request at a place that has never answered. If that takes long, or the connection breaks, it finds out
/// what listens there.
///
/// # Errors
///
/// As of the request; [`Mismatch::NotHttp`] where that is certain.
pub(super) async fn first_answer<T>(
    (host, port): &(String, u16),
    tried: &Tried,
    request: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let mut request = pin!(request);
    let how = "it sends other bytes, or closes the connection in place of an answer";
    let not_http = || Err(Error::new(tried.clone(), Kind::Mismatch(Mismatch::NotHttp), how));
    match timeout(SLOW, &mut request).await {
        Ok(Err(error)) if error.kind == Kind::Interrupted => {
            if is_not_http((host, *port)).await {
                not_http()
            } else {
                Err(error)
            }
        }
        Ok(result) => result,
        // The request goes on meanwhile: its own time counts.
        Err(_) => tokio::select! {
            result = &mut request => result,
            () = async { if !is_not_http((host, *port)).await { pending().await } } => not_http(),
        },
    }
}

/// Whether the port certainly does not serve HTTP: it speaks first, it closes a quiet connection as soon as it gets a request, or
/// it answers as a DNS server. False where that is not certain.
async fn is_not_http(address: (&str, u16)) -> bool {
    let Ok(mut stream) = TcpStream::connect(address).await else { return false };
    let quiet = Duration::from_millis(fastrand::u64(QUIET_MILLIS));
    if let Some(first) = heard(&mut stream, quiet).await {
        // Consul refuses a connection above its limit by a 429 before any request, or closes it.
        return !first.is_empty() && !begins_http(&first);
    }
    match asked(stream, HTTP_REQUEST).await {
        Some(first) => first.is_empty() || !begins_http(&first),
        None => match TcpStream::connect(address).await {
            Ok(stream) => {
                asked(stream, DNS_QUERY).await.is_some_and(|all| all.get(2..4) == DNS_QUERY.get(2..4))
            }
            Err(_) => false,
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
