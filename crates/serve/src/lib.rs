//! The accept loop: hyper connections with a header time-out and a bound on their number, routed by axum.
//!
//! axum's own `serve` has neither bound, which is why this exists.

#![warn(missing_docs, unreachable_pub)]

mod places;
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
use tokio::time::{Instant, sleep_until};

use places::Places;
pub use reader::Endless;
use reader::{Reader, Told};

/// Connections that the kernel takes in before we do. A further one comes again after a second.
const BACKLOG: u32 = 1024;

/// What becomes of a connection that comes when there are as many as there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// It waits in the kernel's backlog until another ends.
    Wait,
    /// It takes the place of another: of the address that has the most of them, the connection that came first goes. For
    /// servers whose answers are at hand, so that what they interrupt can be asked again.
    Displace,
}

/// What one address may have.
#[derive(Clone, Copy, Debug)]
pub struct PerClient {
    /// Connections open at once.
    pub most: usize,
    /// What is sent on a further one before it is closed.
    pub refusal: &'static str,
}

/// On a response: it is not sent, and its connection ends.
#[derive(Clone, Copy, Debug)]
pub struct Unanswered;

impl IntoResponse for Unanswered {
    fn into_response(self) -> Response {
        let mut response = Response::default();
        response.extensions_mut().insert(self);
        response
    }
}

/// What one server allows.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections open at once.
    pub connections: usize,
    /// What becomes of a further one.
    pub when_full: WhenFull,
    /// Connections of one address, where they have a bound of their own.
    pub per_client: Option<PerClient>,
    /// Time a client has for sending its request head, also on an idle kept-alive connection.
    pub header_timeout: Duration,
    /// Bytes of a request head.
    pub header_bytes: usize,
    /// Time that a connection lasts at most: one whose client asks and never reads gives its place back. Where the
    /// answer is [`Endless`], the time that its client has for taking a part of it.
    pub life: Duration,
    /// Whether a connection may bear further requests after its first.
    pub keep_alive: bool,
    /// Time that open requests have for ending once the server is told to stop.
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

/// Where connections come in.
pub trait Listen: Send {
    /// One of them.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next one. May be dropped and called again.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    /// Where it comes from; none where that is no address.
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
        // By itself that is as the system is set.
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    // What an earlier process of ours had open there keeps nobody from it.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves `router` on `listener` until `stop` resolves, then lets open requests end for at most `limits.grace`. No
/// connection outlives the returned future, also where it is dropped.
///
/// # Errors
///
/// An accept error that does not pass by itself (one that comes of a connection or of a lack of descriptors does).
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
    let mut places = Places::<AbortHandle>::default();
    let mut connections = JoinSet::new();
    let mut stop = pin!(stop);
    let mut displaced: usize = 0;
    loop {
        let is_full = places.taken() >= limits.connections;
        let stream = tokio::select! {
            () = &mut stop => break,
            Some(ended) = connections.join_next_with_id() => {
                leave(&mut places, ended);
                continue;
            }
            accepted = listener.accept(), if !is_full || limits.when_full == WhenFull::Displace => match accepted {
                Ok(stream) => stream,
                Err(error) if passes_by_itself(&error) => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
                Err(error) => return Err(error),
            },
        };
        if is_full && let Some(goes) = places.displace() {
            // It ends when it is its turn. Nobody waits for that: all others would have theirs before the next is let in.
            goes.abort();
            displaced = displaced.wrapping_add(1);
            // Whoever comes has some turns before as many have come after it, from whatever addresses.
            if displaced.is_multiple_of((limits.connections / 4).max(1)) {
                tokio::task::yield_now().await;
            }
        }
        let origin = L::origin(&stream);
        if let Some(bound) = limits.per_client {
            // What has ended counts no more, whether or not that was its turn.
            while let Some(ended) = connections.try_join_next_with_id() {
                leave(&mut places, ended);
            }
            if places.taken_by(origin) >= bound.most {
                refuse(stream, bound.refusal);
                continue;
            }
        }
        let reader = Arc::<Reader>::default();
        let service = answering(router.clone(), Arc::clone(&reader));
        let stream = TokioIo::new(Told::new(stream, Arc::clone(&reader)));
        let connection = graceful.watch(http.serve_connection(stream, service_fn(service)));
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
        places.take(origin, task);
    }
    drop(listener);
    let _ = tokio::time::timeout(limits.grace, graceful.shutdown()).await;
    Ok(())
}

/// Tells a client that it has too many connections, as far as that is possible at once.
fn refuse(mut stream: impl AsyncWrite + Unpin, refusal: &str) {
    // A new connection has room for a line; nobody waits for one that has none.
    let _ = stream.write_all(refusal.as_bytes()).now_or_never();
    let _ = stream.shutdown().now_or_never();
}

/// One that has ended, of itself or displaced, has no place any more.
fn leave(places: &mut Places<AbortHandle>, ended: Result<(Id, ()), JoinError>) {
    let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
    places.leave(|task| task.id() == id);
}

/// The router, as what hyper calls; says of the client whether its answer has an end.
fn answering(
    router: Router,
    reader: Arc<Reader>,
) -> impl Fn(Request<Incoming>) -> BoxFuture<'static, io::Result<Response>> {
    let router = TowerToHyperService::new(router);
    move |request| {
        let (answer, reader) = (router.call(request), Arc::clone(&reader));
        Box::pin(async move {
            // Of one that sends many at a time each is a turn of its own, and others have theirs in between.
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

fn passes_by_itself(error: &io::Error) -> bool {
    // EMFILE and ENFILE: out of descriptors until some connection ends.
    matches!(error.raw_os_error(), Some(23 | 24))
        || matches!(
            error.kind(),
            io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted
        )
}

#[cfg(test)]
mod tests;
