//! Whether the client of a connection reads its answer.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// An extension of a response without an end. Its connection lives for as long as the client reads.
#[derive(Clone, Copy, Debug)]
pub struct Endless;

/// The activity of a connection's client.
#[derive(Debug, Default)]
pub(super) struct ClientActivity {
    endless: AtomicBool,
    has_read: AtomicBool,
    has_asked: AtomicBool,
}

impl ClientActivity {
    /// Records that the client receives an endless answer.
    pub(super) fn is_streamed_to(&self) {
        self.endless.store(true, Ordering::Relaxed);
    }

    /// Records that the head of a request has arrived.
    pub(super) fn asks(&self) {
        self.has_asked.store(true, Ordering::Relaxed);
    }

    /// Whether the head of a request has arrived.
    pub(super) fn has_asked(&self) -> bool {
        self.has_asked.load(Ordering::Relaxed)
    }

    /// Whether the connection may stay for another life: its answer is endless, and the client read a part since the last call.
    pub(super) fn may_stay(&self) -> bool {
        self.has_read.swap(false, Ordering::Relaxed) && self.endless.load(Ordering::Relaxed)
    }
}

/// A connection that records its client's activity.
#[derive(Debug)]
pub(super) struct Observed<S> {
    stream: S,
    reader: Arc<ClientActivity>,
}

impl<S> Observed<S> {
    pub(super) fn new(stream: S, reader: Arc<ClientActivity>) -> Self {
        Self { stream, reader }
    }

    fn record(&self, written: io::Result<usize>) -> Poll<io::Result<usize>> {
        if written.is_ok() {
            self.reader.has_read.store(true, Ordering::Relaxed);
        }
        Poll::Ready(written)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Observed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Observed<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes));
        self.record(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, parts));
        self.record(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::Router;
    use axum::body::Body;
    use axum::response::{IntoResponse, Response};
    use axum::routing::get;
    use bytes::Bytes;
    use futures_util::stream;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::super::{Limits, serve};
    use super::*;

    /// Much longer than the thread may stall on a busy machine.
    const LIFE: Duration = Duration::from_secs(4);
    const TIMEOUT: Duration = Duration::from_secs(60);

    async fn endless() -> Response {
        let parts = stream::repeat_with(|| Ok::<_, io::Error>(Bytes::from_static(&[b'x'; 65536])));
        let mut response = Body::from_stream(parts).into_response();
        response.extensions_mut().insert(Endless);
        response
    }

    async fn ask(address: std::net::SocketAddr) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        stream
    }

    #[tokio::test]
    async fn an_endless_answer_lasts_for_as_long_as_the_client_reads() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let limits = Limits { life: LIFE, connections: 1, ..Limits::default() };
        let router = Router::new().route("/", get(endless));
        tokio::spawn(serve(listener, router, limits, std::future::pending()));

        let mut reads = ask(address).await;
        let mut buffer = vec![0; 1 << 20];
        // Three lives pass.
        for _ in 0..24 {
            tokio::time::sleep(LIFE / 8).await;
            assert!(reads.read(&mut buffer).await.unwrap() > 0, "it was cut off while it read");
        }
        // From here on it does not read, so the next client gets its connection.
        let mut next = ask(address).await;
        let first = tokio::time::timeout(TIMEOUT, next.read(&mut buffer)).await;
        assert!(first.unwrap().unwrap() > 0);
        let left = tokio::time::timeout(TIMEOUT, async {
            while reads.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
        });
        left.await.unwrap();
    }
}
