//! The accept loop of an HTTP server: hyper connections with a time-out for request heads and a limit on their number, routed by axum.
//! axum's own `serve` has neither.

#![warn(missing_docs, unreachable_pub)]

mod connections;
mod reader;

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use rustix::io::Errno;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};

use connections::ConnectionTable;
pub use reader::Endless;
use reader::{ClientActivity, Observed};

/// The backlog of the listening socket. A client above it retries after a second.
const BACKLOG: u32 = 1024;
/// The time in which a new connection's request arrives.
const REQUEST_ARRIVES: Duration = Duration::from_millis(250);

/// What happens to a new connection when the server has the maximum number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// It displaces the oldest connection that has sent no request for 250 ms. Without one it waits in the kernel's backlog until
    /// another ends.
    Wait,
    /// It displaces the oldest connection of the address that has the most. For servers that answer at once, so that clients can repeat
    /// an interrupted request.
    Displace,
}

/// The limit for one address.
#[derive(Clone, Copy, Debug)]
pub struct PerClient {
    /// The maximum number of open connections.
    pub most: usize,
    /// Sent on a further connection before it is closed.
    pub refusal: &'static str,
}

/// An extension of a response: it is not sent, and its connection is closed.
#[derive(Clone, Copy, Debug)]
pub struct Unanswered;

impl IntoResponse for Unanswered {
    fn into_response(self) -> Response {
        let mut response = Response::default();
        response.extensions_mut().insert(self);
        response
    }
}

/// The limits of a server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The maximum number of open connections.
    pub connections: usize,
    /// What happens to a further connection.
    pub when_full: WhenFull,
    /// The limit for one address, if it has its own.
    pub per_client: Option<PerClient>,
    /// The time-out for a request head, also on an idle kept-alive connection.
    pub header_timeout: Duration,
    /// The maximum size of a request head, in bytes; at least 8192.
    pub header_bytes: usize,
    /// The maximum life of a connection, so that a client that never reads cannot keep one. For an [`Endless`] answer: the time within
    /// which the client must read a part of it.
    pub life: Duration,
    /// Whether a connection may carry more than one request.
    pub keep_alive: bool,
    /// The time for open requests to end after the server is stopped.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 128,
            when_full: WhenFull::Wait,
            per_client: None,
            header_timeout: Duration::from_secs(10),
            header_bytes: 16 * 1024,
            life: Duration::from_secs(60),
            keep_alive: true,
            grace: Duration::from_secs(1),
        }
    }
}

/// A source of connections.
pub trait Listen: Send {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Accepts the next connection. It may be dropped and called again.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    /// The client's IP address; `None` if it has none, as on a Unix socket.
    fn origin(_stream: &Self::Stream) -> Option<IpAddr> {
        None
    }
}

impl Listen for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = Self::accept(self).await?;
        // Small answers are written whole; waiting for more to send would only delay them.
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }

    fn origin(stream: &TcpStream) -> Option<IpAddr> {
        stream.peer_addr().ok().map(|peer| peer.ip().to_canonical())
    }
}

/// Listens at an address. `[::]` takes connections of both families; on a system without IPv6 it is `0.0.0.0`. Needs a tokio runtime.
///
/// # Errors
///
/// The system does not give it.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    in_a_family_that_is_there(address, listen_at)
}

/// Opens `address`, and in place of `[::]` `0.0.0.0` where the system refuses the family itself (`ipv6.disable=1`).
fn in_a_family_that_is_there<T>(
    address: SocketAddr,
    open: impl Fn(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let is_any = address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    match open(address) {
        Err(error) if is_any && Errno::from_io_error(&error) == Some(Errno::AFNOSUPPORT) => {
            open((Ipv4Addr::UNSPECIFIED, address.port()).into())
        }
        opened => opened,
    }
}

fn listen_at(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    if address.is_ipv6() {
        // The default depends on a setting of the system.
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    // Connections of an earlier process must not prevent the bind.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves `router` on `listener` until `stop` resolves, then lets open requests end for at most `limits.grace`. No
/// connection outlives the returned future, also where it is dropped.
///
/// # Errors
///
/// A permanent error of `accept`. Errors of one connection and a lack of descriptors are temporary.
pub async fn serve<L: Listen>(
    listener: L,
    router: Router,
    limits: Limits,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let graceful = GracefulShutdown::new();
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .keep_alive(limits.keep_alive)
        .header_read_timeout(limits.header_timeout)
        .max_buf_size(limits.header_bytes.max(8192));
    let mut table = ConnectionTable::<Open>::default();
    let may_go = |(_, client, opened): &Open| {
        limits.when_full == WhenFull::Displace || !client.has_asked() && opened.elapsed() >= REQUEST_ARRIVES
    };
    let mut connections = JoinSet::new();
    let mut stop = pin!(stop);
    let mut displaced: usize = 0;
    loop {
        let is_full = table.len() >= limits.connections;
        let stream = tokio::select! {
            () = &mut stop => break,
            Some(ended) = connections.join_next_with_id() => {
                remove(&mut table, ended);
                continue;
            }
            // With time, a silent connection may be displaced.
            () = sleep(REQUEST_ARRIVES / 5), if is_full => continue,
            accepted = listener.accept(), if !is_full || table.any(may_go) => match accepted {
                Ok(stream) => stream,
                Err(error) if is_temporary(&error) => {
                    sleep(Duration::from_millis(50)).await;
                    continue;
                }
                Err(error) => return Err(error),
            },
        };
        if is_full && limits.when_full == WhenFull::Wait {
            // Requests that have arrived are read first.
            tokio::task::yield_now().await;
        }
        if is_full {
            if let Some((displaced_task, ..)) = table.displace(may_go) {
                // The task ends at its next turn. The accept loop does not wait for it, since all other tasks would run first.
                displaced_task.abort();
                displaced = displaced.wrapping_add(1);
                // Yield now and then, so that a new connection can be served before it is displaced.
                if displaced.is_multiple_of((limits.connections / 4).max(1)) {
                    tokio::task::yield_now().await;
                }
            } else {
                // Each has sent a request since the accept began.
                tokio::select! {
                    () = &mut stop => break,
                    Some(ended) = connections.join_next_with_id() => remove(&mut table, ended),
                }
            }
        }
        let origin = L::origin(&stream);
        if let Some(bound) = limits.per_client {
            // Connections that have ended do not count.
            while let Some(ended) = connections.try_join_next_with_id() {
                remove(&mut table, ended);
            }
            if table.len_of(origin) >= bound.most {
                refuse(stream, bound.refusal);
                continue;
            }
        }
        let reader = Arc::<ClientActivity>::default();
        let service = answering(router.clone(), Arc::clone(&reader));
        let stream = TokioIo::new(Observed::new(stream, Arc::clone(&reader)));
        let connection = graceful.watch(http.serve_connection(stream, service_fn(service)));
        let client = Arc::clone(&reader);
        let task = connections.spawn(async move {
            let mut connection = pin!(connection);
            let mut until = Instant::now() + limits.life;
            loop {
                // A connection's end, orderly or not, concerns its client only.
                tokio::select! {
                    _ = &mut connection => break,
                    () = sleep_until(until) => {
                        if !reader.may_stay() {
                            break;
                        }
                        until += limits.life;
                    }
                }
            }
        });
        table.insert(origin, (task, client, Instant::now()));
    }
    drop(listener);
    let _ = tokio::time::timeout(limits.grace, graceful.shutdown()).await;
    Ok(())
}

/// Sends a refusal to a client with too many connections, without waiting.
fn refuse(mut stream: impl AsyncWrite + Unpin, refusal: &str) {
    // A new connection has room for a line in its buffer.
    let _ = stream.write_all(refusal.as_bytes()).now_or_never();
    let _ = stream.shutdown().now_or_never();
}

/// The task of a connection, its client, and when it was accepted.
type Open = (AbortHandle, Arc<ClientActivity>, Instant);

/// Removes a connection that ended or was displaced.
fn remove(table: &mut ConnectionTable<Open>, ended: Result<(Id, ()), JoinError>) {
    let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
    table.remove(|(task, ..)| task.id() == id);
}

/// The router as a hyper service. It records whether the answer is endless.
fn answering(
    router: Router,
    reader: Arc<ClientActivity>,
) -> impl Fn(Request<Incoming>) -> BoxFuture<'static, io::Result<Response>> {
    let router = TowerToHyperService::new(router);
    move |request| {
        reader.asks();
        let (answer, reader) = (router.call(request), Arc::clone(&reader));
        Box::pin(async move {
            // Requests that a client pipelines yield to other connections.
            tokio::task::yield_now().await;
            let Ok(response) = answer.await;
            if response.extensions().get::<Unanswered>().is_some() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if response.extensions().get::<Endless>().is_some() {
                reader.is_streamed_to();
            }
            Ok(response)
        })
    }
}

fn is_temporary(error: &io::Error) -> bool {
    // EMFILE and ENFILE: out of descriptors until some connection ends.
    matches!(error.raw_os_error(), Some(23 | 24))
        || matches!(
            error.kind(),
            io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted
        )
}

#[cfg(test)]
mod tests;
